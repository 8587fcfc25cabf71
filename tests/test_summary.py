"""The summary in the terminal and as JSON."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from pipeline.pareto_text import pareto_chart
from pipeline.run import RunCounts, SweepRun
from pipeline.summary import print_summary
from pipeline.summary_json import RunSummary, summary_json
from tests.conftest import Shapecast
from tests.report_runs import SWEEP, frame, row, sweep

COUNTS = RunCounts(needed=3, computed=2, stopped=0)
LONG = "an-organisation/a-model-with-a-rather-long-name-of-seventy-characters-in-all-70B"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> SweepRun:
    return sweep(SWEEP, tmp_path_factory.mktemp("summary"))


def printed(run: SweepRun, *, terminal: bool = False) -> str:
    stream = io.StringIO()
    print_summary(run, Console(file=stream, width=80, force_terminal=terminal, highlight=False))
    return stream.getvalue()


def tables_of(text: str) -> list[str]:
    """The lines from the first table on, less the closing ones, which are sentences."""
    lines = text.splitlines()
    start = next(place for place, line in enumerate(lines) if "feasible" in line)
    return lines[start : next(place for place, line in enumerate(lines) if line.startswith("Shapes:"))]


def test_tables_and_chart_fit_80_columns(run: SweepRun) -> None:
    assert max(len(line) for line in tables_of(printed(run))) <= 80


def test_long_names_are_folded_and_not_cut() -> None:
    rows = [row(model=LONG, batch_size=size, device=f"d{size}") for size in (1, 2)]
    rows.append(row(model="other"))
    text = printed(SweepRun(Path("out"), frame(*rows), COUNTS))
    assert max(len(line) for line in tables_of(text)) <= 80
    assert "…" not in text
    folded = "".join(line[4:32].strip() for line in tables_of(text))
    assert LONG.rsplit("/", 1)[1] in folded


def test_colours_are_used_on_a_terminal_only(run: SweepRun) -> None:
    assert "\x1b[" in printed(run, terminal=True)
    assert "\x1b[" not in printed(run)


def test_piped_output_has_no_colours(shapecast: Shapecast, tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(SWEEP, encoding="utf-8")
    done = shapecast("run", "small.yaml", "--out", "out")
    assert "\x1b[" not in done.stdout + done.stderr


def test_names_are_no_markup_in_the_terminal() -> None:
    rows = [row(model="[red]m[/red]", device="[/]d"), row(model="[red]m[/red]", device="e")]
    text = printed(SweepRun(Path("out"), frame(*rows), COUNTS), terminal=True)
    assert "[red]m[/red]" in text
    assert "[/]d" in text


def test_the_text_chart_marks_the_front_at_its_ends() -> None:
    points = [(10.0, 90.0, "a"), (5.0, 50.0, "b"), (2.0, 10.0, "a"), (9.0, 10.0, "a")]
    rows = frame(
        *(row(tpot_ms=tpot, tokens_per_s_per_device=value, device=device) for tpot, value, device in points)
    )
    lines = pareto_chart(rows, 80)
    assert max(len(line) for line in lines) <= 80
    grid = [line.split("|")[1] for line in lines if "|" in line]
    assert grid[0] == "o"
    assert grid[-2].endswith("o")
    assert len(grid[-2]) == 80 - 11
    assert sum(line.count("o") for line in grid) == 2
    assert sum(line.count("x") for line in grid) == 1
    assert lines[0] == "Pareto front, aggregated: tokens/s per device upwards"
    assert sum(line.count(".") for line in grid) == 1
    assert lines[1] == "o a, x b, . others"


def test_one_point_makes_no_chart() -> None:
    assert pareto_chart(frame(row()), 80) == []


# ---- JSON


def test_json_is_the_only_output_and_of_the_documented_form(shapecast: Shapecast, tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(SWEEP, encoding="utf-8")
    text = shapecast("run", "small.yaml", "--out", "out", "--json").stdout
    summary = RunSummary.model_validate_json(text)
    assert summary.summary_version == 1
    assert summary.out == "out"
    assert summary.counts.candidates == 2 * 2 * 2 * 3 * 2 * 4
    assert summary.counts.shapes_computed == summary.counts.shapes_needed > 0
    assert len(summary.best) == 2 * 2 * 3
    assert summary.pareto
    assert summary.ratios
    assert summary.nearest_stopped == []
    assert {one.mode for one in summary.best} == {"aggregated", "prefill", "decode"}


def test_json_of_a_run_in_which_nothing_fits_says_what_stopped_it() -> None:
    stopped = row(feasible=False, stop_reason="ttft_limit", ttft_limit_ms=1.0, tpot_ms=float("inf"))
    summary = json.loads(summary_json(SweepRun(Path("out"), frame(stopped), COUNTS)))
    assert summary["best"] == []
    (nearest,) = summary["nearest_stopped"]
    assert nearest["why"] == "TTFT is 10.00 ms, over the limit of 1.00 ms"
    assert nearest["tpot_ms"] is None


def test_the_schema_of_the_json_is_frozen() -> None:
    schema = RunSummary.model_json_schema()
    assert sorted(schema["properties"]) == [
        "best", "counts", "nearest_stopped", "out", "pareto", "ratios", "summary_version",
    ]  # fmt: skip
    assert sorted(schema["$defs"]["CandidateSummary"]["required"]) == [
        "batch_size", "concurrency", "device", "identity", "input_length", "max_batched_tokens",
        "memory_left_gb", "mode", "model", "num_devices", "output_length", "parallelism", "runner",
        "tokens_per_s", "tokens_per_s_per_device", "tpot_ms", "ttft_ms", "workload",
    ]  # fmt: skip


def test_json_and_quiet_together_are_refused(shapecast: Shapecast, tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(SWEEP, encoding="utf-8")
    done = shapecast("run", "small.yaml", "--json", "--quiet", expect=2)
    assert "--quiet and --json were both given" in done.stderr
