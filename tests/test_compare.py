"""What changed between two runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.report.compare import Comparison, compare_runs
from pipeline.report.compare_output import comparison_page
from pipeline.report.tables import ReportTable
from pipeline.saved import SavedRun
from tests.conftest import Shapecast
from tests.report_runs import SWEEP, row, saved, sweep
from tests.test_report import HOSTILE


def changes(a: SavedRun, b: SavedRun) -> dict[str, ReportTable]:
    return {table.name: table for table in compare_runs(a, b).tables}


def with_facts(run: SavedRun, **facts: object) -> SavedRun:
    return replace(run, facts=replace(run.facts, **facts))  # type: ignore[arg-type]


def table(name: str, digest: str) -> dict[str, object]:
    return {"id": name, "label": f"label {name}", "records": 3, "records_sha256": digest, "identity": {}}


def test_equal_runs_have_no_changes() -> None:
    comparison = compare_runs(saved(row(), row(batch_size=2)), saved(row(), row(batch_size=2)))
    assert comparison.same
    assert comparison.sentences == [
        "2 candidates are in both runs; 0 of them differ.",
        "Config, versions, tables, records and results are the same.",
    ]


def test_changed_config_fields_are_named_by_their_path() -> None:
    a = with_facts(saved(row()), config={"name": "x", "limits": {"ttft_ms": 1.0}, "models": ["m"]})
    b = with_facts(saved(row()), config={"name": "x", "limits": {"ttft_ms": 2.0}, "models": ["m", "n"]})
    assert changes(a, b)["config"].rows == [
        ["limits.ttft_ms", "1.0", "2.0"],
        ["models", '["m"]', '["m", "n"]'],
    ]


def test_changed_versions_are_named() -> None:
    b = with_facts(saved(row()), versions={"shapecast": "1", "dask": "2"})
    assert changes(saved(row()), b)["versions"].rows == [["dask", None, "2"], ["shapecast", "0", "1"]]


def test_tables_of_one_run_and_other_records_are_named() -> None:
    a = with_facts(saved(row()), tables=[table("both", "1"), table("a", "1"), table("same", "1")])
    b = with_facts(saved(row()), tables=[table("both", "2"), table("b", "1"), table("same", "1")])
    rows = changes(a, b)["tables"].rows
    assert [(one[0], one[2].split(" records")[0]) for one in rows] == [
        ("label a", "only in A"),
        ("label b", "only in B"),
        ("label both", "3"),
    ]


def test_another_best_deployment_is_named_with_its_change() -> None:
    a = saved(row(), row(batch_size=2, tokens_per_s_per_device=50.0))
    b = saved(row(tokens_per_s_per_device=40.0), row(batch_size=2, tokens_per_s_per_device=50.0))
    (line,) = changes(a, b)["best"].rows
    assert line[0] == "aggregated, m on d"
    assert "batch 1," in line[1]
    assert "batch 2," in line[2]
    assert line[3:] == [100.0, 50.0, -50.0]


def test_candidates_differ_by_latency_memory_or_outcome_and_not_by_rounding() -> None:
    stopped = {"feasible": False, "stop_reason": "ttft_limit", "ttft_limit_ms": 1.0}
    a = saved(*(row(batch_size=size) for size in (1, 2, 3, 4, 5)))
    b = saved(
        row(batch_size=1, ttft_ms=10.0 * (1 + 1e-13)),
        row(batch_size=2, ttft_ms=20.0),
        row(batch_size=3, memory_left_gb=2.5),
        row(batch_size=4, **stopped),
        row(batch_size=5, tokens_per_s=300.0),
    )
    rows = changes(a, b)["candidates"].rows
    assert [line[0].split("batch ")[1].split(",")[0] for line in rows] == ["5", "2", "3", "4"]
    assert rows[0][1:] == [0.0, 0.0, pytest.approx(200.0), 0.0, "feasible"]
    assert rows[1][1:] == [pytest.approx(100.0), 0.0, 0.0, 0.0, "feasible"]
    assert rows[2][4] == -0.5
    assert rows[3][5] == "feasible -> ttft_limit"


def test_candidates_of_one_run_only_are_counted() -> None:
    comparison = compare_runs(saved(row(), row(batch_size=2)), saved(row(), row(device="e"), row(model="n")))
    assert "1 candidates are only in A." in comparison.sentences
    assert "2 candidates are only in B." in comparison.sentences
    assert not comparison.same or comparison.sentences


def test_runs_with_another_runner_are_compared_candidate_by_candidate() -> None:
    a, b = saved(row()), saved(row(runner="recorded", tokens_per_s=110.0))
    (line,) = changes(a, b)["candidates"].rows
    assert line[3] == pytest.approx(10.0)


def test_candidates_of_several_runners_in_one_run_are_kept_apart() -> None:
    both = saved(row(), row(runner="recorded", tokens_per_s=110.0))
    assert compare_runs(both, both).same


def test_the_command_prints_and_writes_what_changed(shapecast: Shapecast, tmp_path: Path) -> None:
    sweep(SWEEP, tmp_path, out="a")
    sweep(SWEEP.replace("ttft_ms: 5000", "ttft_ms: 500"), tmp_path, out="b")
    done = shapecast("compare", "a", "b", "--html", "changes.html")
    assert "limits.ttft_ms" in done.stdout
    assert "feasible -> ttft_limit" in done.stdout
    assert max(len(line) for line in done.stdout.splitlines()) <= 80
    page = (tmp_path / "changes.html").read_text(encoding="utf-8")
    assert "feasible -&gt; ttft_limit" in page
    assert "http" not in page.replace("http-equiv", "")


def test_hostile_names_add_no_markup_to_the_comparison() -> None:
    comparison = Comparison(
        (HOSTILE, HOSTILE), [HOSTILE], [ReportTable("t", HOSTILE, [HOSTILE], [[HOSTILE]])]
    )
    page = comparison_page(comparison).decode()
    assert "<img" not in page
    assert page.count("<script") == 1


def test_a_side_that_is_no_run_is_named(shapecast: Shapecast, tmp_path: Path) -> None:
    sweep(SWEEP, tmp_path, out="a")
    assert "The folder b does not exist" in shapecast("compare", "a", "b", expect=1).stderr
