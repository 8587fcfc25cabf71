"""A run in a notebook."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from plotly.graph_objects import Figure

from cache.errors import InvalidValueError, OutputError
from pipeline import LoadedRun, load_run
from tests.report_runs import SWEEP, sweep


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sweep(SWEEP, tmp_path_factory.mktemp("notebook")).out


@pytest.fixture(scope="module")
def run(out: Path) -> LoadedRun:
    return load_run(out)


def test_frames_hold_the_rows_the_ranks_and_the_facts(run: LoadedRun) -> None:
    assert len(run.results) == 2 * 2 * 2 * 3 * 2 * 4
    assert len(run.best) == run.results["feasible"].sum()
    assert list(run.best.groupby("mode")["rank"].first()) == [1, 1, 1]
    assert len(run.winners) == 2 * 2 * 3
    assert set(run.stops["stop_reason"]) <= {"prefill_oom", "decode_oom", "ttft_limit", "tpot_limit"}
    assert len(run.tables) == 8
    assert run.config["name"] == "small"
    assert "shapecast" in run.versions
    assert (run.ratios["balanced_qps"] <= run.ratios["p_qps"]).all()


def test_the_frontier_never_falls_in_both_axes(run: LoadedRun) -> None:
    front = run.frontier("decode")
    for _, line in front.groupby("model"):
        ordered = line.sort_values("tokens_per_s_per_user")
        assert ordered["tokens_per_s_per_device"].is_monotonic_decreasing


@pytest.mark.parametrize(
    "make",
    [
        lambda run: run.trade_off(),
        lambda run: run.trade_off("prefill"),
        lambda run: run.latency("ttft"),
        lambda run: run.latency("tpot", "decode"),
        lambda run: run.memory(),
        lambda run: run.bounds(),
        lambda run: run.outcomes(),
        lambda run: run.chunks(),
        lambda run: run.timeline(1),
    ],
)
def test_each_chart_is_a_figure_with_points_and_writes_no_file(
    run: LoadedRun, out: Path, make: object
) -> None:
    before = sorted(out.iterdir())
    figure = make(run)  # type: ignore[operator]
    assert isinstance(figure, Figure)
    assert any(len(trace.x) for trace in figure.data)
    assert sorted(out.iterdir()) == before


def test_points_say_which_deployment_they_are(run: LoadedRun) -> None:
    texts = [text for trace in run.trade_off("decode").data[:-1] for text in trace.text]
    assert texts
    assert all("batch" in text and "TPOT" in text for text in texts)


def test_a_mode_that_was_not_swept_is_refused(tmp_path: Path) -> None:
    text = SWEEP.replace("[aggregated, prefill, decode]", "decode").replace("ttft_ms: 5000, ", "")
    run = load_run(sweep(text, tmp_path).out)
    assert run.trade_off().data
    with pytest.raises(InvalidValueError, match="mode is 'prefill'; this run has decode"):
        run.trade_off("prefill")
    with pytest.raises(InvalidValueError, match="which is 'e2e'; it must be 'ttft' or 'tpot'"):
        run.latency("e2e")  # type: ignore[arg-type]


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="so it is no run"):
        load_run(tmp_path)


def test_importing_pipeline_imports_neither_pandas_nor_plotly() -> None:
    code = "import sys, pipeline; sys.exit(any(name in sys.modules for name in ('pandas', 'plotly')))"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
