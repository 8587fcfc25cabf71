"""The report: made again from results.parquet alone, the same bytes, safe with any name."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from cache.errors import OutputError
from pipeline.findings import winners
from pipeline.report.flat import report_csv
from pipeline.report.markdown import report_markdown
from pipeline.report.page import MOST_ROWS, inline_json, report_page, shown_rows
from pipeline.report.part_figures import short_label
from pipeline.saved import FACTS_KEY, MOST_TRACES, SavedRun, best_traces, read_run, results_file
from stages.result import CandidateResult
from stages.trace import Trace
from tests.conftest import Shapecast
from tests.report_runs import SWEEP, frame, row, saved, sweep

HOSTILE = "</script><script>window.hacked=1</script><img src=x onerror=window.hacked=1>\"'`${1}`|*_[x](y)"


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sweep(SWEEP, tmp_path_factory.mktemp("report")).out


@pytest.fixture(scope="module")
def run(out: Path) -> SavedRun:
    return read_run(out)


class Page(HTMLParser):
    """The elements, ids and text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(str(value))
            if name in ("src", "href"):
                self.links.append(str(value))


def page_of(run: SavedRun) -> str:
    return report_page(run).decode()


def page_data(text: str) -> dict[str, object]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)
    assert found
    data: dict[str, object] = json.loads(found[1])
    return data


def test_job_counts_schedulers_and_folders_make_the_same_page(tmp_path: Path) -> None:
    digests = set()
    for folder, jobs, scheduler in (
        ("a", 1, "single-threaded"),
        ("b/c", 4, "threads"),
        ("d", 2, "processes"),
    ):
        done = sweep(SWEEP, tmp_path / folder, jobs=jobs, scheduler=scheduler)
        digests.add(hashlib.sha256((done.out / "report.html").read_bytes()).hexdigest())
    assert len(digests) == 1


def test_the_page_is_made_again_from_the_results_alone(
    out: Path, tmp_path: Path, shapecast: Shapecast
) -> None:
    (tmp_path / "alone").mkdir()
    shutil.copy(out / "results.parquet", tmp_path / "alone")
    assert shapecast("report", "alone").stdout == "alone/report.html\n"
    assert (tmp_path / "alone" / "report.html").read_bytes() == (out / "report.html").read_bytes()


def test_nothing_of_time_or_place_is_in_the_page(out: Path) -> None:
    text = (out / "report.html").read_text(encoding="utf-8")
    assert str(out.parent) not in text
    assert not re.search(r"\b20\d\d-\d\d-\d\dT", text.split("</style>")[1].split("<script>")[0])


def test_element_ids_are_fixed_and_unique(run: SavedRun) -> None:
    ids = Page(page_of(run)).ids
    assert len(ids) == len(set(ids))
    assert {"asked", "answer", "why", "stopped", "inside", "trust", "trade-off-aggregated"} <= set(ids)
    order = ["asked", "answer", "why", "stopped", "inside", "trust"]
    assert [name for name in ids if name in order] == order


def test_the_page_refers_to_nothing_outside_itself(run: SavedRun) -> None:
    links = Page(page_of(run)).links
    assert all(link.startswith(("#", "data:")) for link in links)


def test_every_chart_has_a_table_beside_it(run: SavedRun) -> None:
    text = page_of(run)
    charts = re.findall(r'class="chart" id="([\w-]+)"', text)
    assert len(charts) >= 9
    for chart in charts:
        after = text.split(f'class="chart" id="{chart}"')[1].split("</figure>")[0]
        assert "<details" in after, f"the chart {chart} has no table"


def test_the_page_answers_in_words(run: SavedRun) -> None:
    text = page_of(run)
    assert "Best aggregated deployment of Qwen/Qwen3-8B for 4,000 input and 64 output tokens" in text
    assert "TTFT at most 5,000 ms, TPOT at most 40 ms" in text
    assert "out of memory by" in text
    assert "shapecast run small.yaml --out out/small" in text
    for table in run.facts.tables:
        assert table["id"] in text
        assert table["records_sha256"] in text


def test_the_config_on_the_page_makes_the_same_run(run: SavedRun, tmp_path: Path) -> None:
    import html

    config = re.search(r'<pre id="config"><code>(.*?)</code>', page_of(run), re.S)
    assert config
    again = sweep(html.unescape(config[1]), tmp_path)
    assert read_run(again.out).facts == run.facts


def hostile_run() -> SavedRun:
    names = dict.fromkeys(("model", "device", "runner", "parallelism", "scheduler", "identity"), HOSTILE)
    rows = [row(**names), row(**names | {"device": "=1+1"}), row(**names, mode="prefill", tpot_ms=None)]
    stopped = row(**names, batch_size=2, feasible=False, stop_reason="decode_oom", stop_shape=HOSTILE)
    run = saved(*rows, stopped | {"memory_left_gb": -1.0}, name=HOSTILE)
    facts = run.facts
    facts.tables.append(
        {
            "id": HOSTILE,
            "label": HOSTILE,
            "identity": {"runner": HOSTILE, "runner_version": HOSTILE},
            "records": 1,
            "records_sha256": HOSTILE,
        }
    )
    trace = {
        "chunks": {"seq_len": [1], "query_len": [1], "requests": [1], "latency_ms": [1.0]},
        "segments": {
            "start_ms": [0.0], "end_ms": [1.0], "steps": [1], "prefill_requests": [1.0],
            "decode_requests": [0.0],
        },
        "runs_per_segment": 1,
    }  # fmt: skip
    facts.traces.append({"row": 0, **trace})
    return run


def test_hostile_names_add_no_element_to_the_page() -> None:
    clean = saved(row(), row(device="e"), row(mode="prefill", tpot_ms=None))
    assert set(Page(page_of(hostile_run())).tags) <= {*Page(page_of(clean)).tags, "select", "option", "label"}
    text = page_of(hostile_run())
    assert Page(text).tags.count("script") == 3
    assert "<img" not in text.split("</style>")[1].split('<script type="application/json"')[0]


def test_hostile_names_stay_what_they_are_in_the_data() -> None:
    text = page_of(hostile_run())
    raw = text.split('id="data">')[1].split("</script>")[0]
    assert "<" not in raw
    rows = page_data(text)["rows"]
    assert isinstance(rows, dict)
    assert rows["model"]["levels"] == [HOSTILE]
    assert all("<script" not in hover and "<img" not in hover for hover in rows["hover"])


def test_hostile_names_end_neither_tables_nor_code_in_markdown() -> None:
    text = report_markdown(hostile_run())
    outside = "\n".join(line for line in text.splitlines() if not line.startswith("    "))
    assert not re.search(r"(?<!\\)<", outside)
    tables = [line for line in outside.splitlines() if line.startswith("|")]
    assert tables
    widths = {len(re.findall(r"(?<!\\)\|", line)) for line in tables[:3]}
    assert len(widths) == 1


def test_names_that_a_spreadsheet_would_run_are_quoted_in_csv() -> None:
    assert "\n" in report_csv(hostile_run())
    assert ",'=1+1," in report_csv(hostile_run())


def test_inline_json_holds_no_markup() -> None:
    assert inline_json({"a": "</script>&\u2028"}) == '{"a":"\\u003c/script\\u003e\\u0026\\u2028"}'


def many(count: int) -> SavedRun:
    rows = [
        row(
            cell=number // 8, device=f"device-{number % 5}", parallelism=f"TP={number // 40}",
            tp=number // 40, batch_size=number % 8 + 1, concurrency=number % 8 + 1,
            ttft_ms=100.123456789 + number, tpot_ms=5.123456789 + number % 97,
            tokens_per_s=1000.0 + number % 1009, tokens_per_s_per_device=100.123456789 + number % 1009,
        )
        for number in range(count)
    ]  # fmt: skip
    return saved(*rows)


def test_a_page_of_2000_candidates_stays_small() -> None:
    run = many(2000)
    page = report_page(run)
    assert len(page) < 3_000_000
    data = page_data(page.decode())
    assert len(data["rows"]["row"]) == 2000  # type: ignore[index]
    assert "left-out" not in Page(page.decode()).ids


def test_a_larger_run_shows_the_fronts_and_names_the_parquet_file() -> None:
    run = many(2500)
    page = report_page(run).decode()
    shown = shown_rows(run.frame)
    assert len(shown) <= MOST_ROWS
    from pipeline.findings import pareto_front

    assert set(pareto_front(run.frame, "aggregated")) <= set(shown["row"])
    assert set(winners(run.frame)["row"]) <= set(shown["row"])
    assert "left-out" in Page(page).ids
    assert "The run has 2,500 candidates." in page
    assert "results.parquet" in page.split('id="left-out"')[1].split("</p>")[0]
    assert len(page) < 6_000_000


def test_only_the_first_winners_keep_a_trace() -> None:
    rows = [
        row(model=f"m{number}", tokens_per_s_per_device=1.0 + number) for number in range(MOST_TRACES + 9)
    ]
    rows.append(row(model="m0", feasible=False, stop_reason="ttft_limit", ttft_limit_ms=1.0))
    plain = CandidateResult(1.0, 1.0, 1.0, 1.0, 1.0, 1, 1, 1, None, None, None)
    traced = replace(plain, trace=Trace({}, {}, 1))
    kept = best_traces(frame(*rows), [*([traced] * (len(rows) - 2)), plain, traced])
    assert [one["row"] for one in kept] == list(range(MOST_TRACES))
    assert best_traces(frame(*rows), [plain] * len(rows)) == []


def test_a_runner_without_memory_parts_and_breakdowns_has_a_page() -> None:
    parts = ("memory_total_gb", "weight_gb", "kv_cache_gb", "activation_gb", "reserved_gb")
    shares = ("memory_bound_share", "compute_bound_mma_share", "analytic_share")
    bare = row(**dict.fromkeys((*parts, *shares)))
    page = page_of(saved(bare))
    assert 'class="chart" id="memory"' in page
    assert 'class="chart" id="bounds"' not in page


def test_a_run_that_is_all_out_of_memory_has_no_empty_trade_off() -> None:
    stopped = {"feasible": False, "stop_reason": "prefill_oom", "stop_shape": "s", "memory_left_gb": -1.0}
    infinite = {"ttft_ms": float("inf"), "tpot_ms": float("inf"), "tokens_per_s": 0.0}
    page = page_of(saved(row(**stopped, **infinite, tokens_per_s_per_device=0.0)))
    assert "trade-off-aggregated" not in page.split("<script")[0]
    assert "out of memory by 1.00 GiB at the s" in page


def test_bars_name_workloads_in_short_where_that_tells_them_apart() -> None:
    rows = [row(), row(output_length=20), row(prefix_cache_hit_rate=0.5)]
    best = winners(frame(*rows))
    labels = [short_label(one, best) for one in best.to_dict("records")]
    assert labels == [
        "d · 100/10 · aggregated",
        "d · 100/20 · aggregated",
        "d · 100/10, 50% cached · aggregated",
    ]
    best = winners(frame(row(), row(input_length_bins="0-200: 100%")))
    labels = [short_label(one, best) for one in best.to_dict("records")]
    assert labels[1] == "d · 100 (mean of 0-200: 100%) input and 10 output tokens · aggregated"


def test_many_names_are_listed_in_part() -> None:
    page = page_of(saved(*(row(parallelism=f"TP={number}", tp=number) for number in range(1, 40))))
    assert "TP=12, and 27 more" in page


def test_long_tables_are_cut_and_say_so() -> None:
    stopped = {"feasible": False, "stop_reason": "ttft_limit", "batch_size": 2}
    rows = [
        row(model=f"m{number}", ttft_limit_ms=1.0, **load) for number in range(520) for load in ({}, stopped)
    ]
    page = report_page(saved(*rows)).decode()
    assert "Best deployment per device, aggregated (the first 500 of 520)" in page
    assert "First load that does not fit (the first 500 of 520)" in page
    assert page.count('class="card"') == 12


def test_the_page_says_what_bisection_would_have_missed_and_how_devices_are_split() -> None:
    found = row(bisection_batch_size=4, bisection_loss=0.125, batch_size=7, visit=3)
    halves = [row(mode="prefill", tpot_ms=None), row(mode="decode", ttft_ms=None)]
    run = saved(found, *halves)
    run = replace(run, facts=replace(run.facts, config={"name": "made", "ratio": {"total_devices": 9}}))
    for text in (page_of(run), report_markdown(run).replace("\\", "")):
        assert "Bisection would have missed 12.50% of 100.0 tokens/s" in text
        assert "m on 9 x d: " in text
    assert 'id="notes"' not in page_of(saved(row()))


def test_a_run_in_which_nothing_fits_has_a_page_and_markdown(tmp_path: Path) -> None:
    text = SWEEP.replace("ttft_ms: 5000, tpot_ms: 40", "ttft_ms: 0.01, tpot_ms: 0.01")
    run = read_run(sweep(text, tmp_path).out)
    for page in (page_of(run), report_markdown(run)):
        assert "No candidate is feasible." in page
        assert "over the limit of 0.01 ms" in page


def test_markdown_and_csv_are_written_where_asked(out: Path, tmp_path: Path, shapecast: Shapecast) -> None:
    shutil.copytree(out, tmp_path / "run")
    assert shapecast("report", "run", "--format", "md").stdout == "run/report.md\n"
    assert shapecast("report", "run", "--format", "csv", "--to", "rows.csv").stdout == "rows.csv\n"
    assert "## The answer" in (tmp_path / "run" / "report.md").read_text(encoding="utf-8")
    assert len((tmp_path / "rows.csv").read_text(encoding="utf-8").splitlines()) == 2 * 2 * 2 * 3 * 2 * 4 + 1


def test_a_run_imports_no_plotly(tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(SWEEP, encoding="utf-8")
    code = (
        "import sys; from pipeline.cli import app; app(sys.argv[1:], standalone_mode=False);"
        "assert 'jinja2' in sys.modules; sys.exit('plotly' in sys.modules)"
    )
    command = [sys.executable, "-c", code, "run", "small.yaml", "--out", "out", "--tables", "tables"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=120)


# ---- bad input


def test_a_folder_that_does_not_exist_is_named(shapecast: Shapecast) -> None:
    done = shapecast("report", "nowhere", expect=1)
    assert done.stderr == (
        "shapecast: error: The folder nowhere does not exist; give the output folder of a run.\n"
    )


def test_a_folder_without_results_is_no_run(shapecast: Shapecast, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "holds no results.parquet, so it is no run" in shapecast("report", "empty", expect=1).stderr


@pytest.mark.parametrize("damage", ["truncate", "garble", "empty"])
def test_damaged_results_are_named_in_one_sentence(
    damage: str, out: Path, tmp_path: Path, shapecast: Shapecast
) -> None:
    (tmp_path / "run").mkdir()
    data = (out / "results.parquet").read_bytes()
    broken = {"truncate": data[: len(data) // 2], "garble": b"PAR1" + b"x" * 400 + b"PAR1", "empty": b""}
    (tmp_path / "run" / "results.parquet").write_bytes(broken[damage])
    done = shapecast("report", "run", expect=1)
    assert "run/results.parquet is damaged or cannot be read" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_results_of_a_newer_version_say_so(run: SavedRun, tmp_path: Path) -> None:
    (tmp_path / "results.parquet").write_bytes(changed(run, {"facts_version": 2}))
    with pytest.raises(OutputError, match=r"was written by a newer shapecast \(format 2, .* upgrade"):
        read_run(tmp_path)


def test_facts_that_make_no_sense_are_damage(run: SavedRun, tmp_path: Path) -> None:
    (tmp_path / "results.parquet").write_bytes(changed(run, {"facts_version": None}))
    with pytest.raises(OutputError, match="its run facts cannot be read"):
        read_run(tmp_path)


def test_a_parquet_file_of_another_program_is_no_run(tmp_path: Path) -> None:
    import pandas as pd

    pd.DataFrame({"a": [1]}).to_parquet(tmp_path / "results.parquet")
    with pytest.raises(OutputError, match="does not say which run it belongs to"):
        read_run(tmp_path)


def test_results_without_a_needed_column_name_it(run: SavedRun, tmp_path: Path) -> None:
    table = pq.read_table(write(run, tmp_path))
    pq.write_table(table.drop_columns(["tpot_ms"]), tmp_path / "results.parquet")
    with pytest.raises(OutputError, match="lacks the column tpot_ms"):
        read_run(tmp_path)


def test_results_with_more_or_fewer_other_columns_are_read(run: SavedRun, tmp_path: Path) -> None:
    import pyarrow as pa

    table = pq.read_table(write(run, tmp_path))
    table = table.drop_columns(["unknown_share", "scheduler"])
    table = table.append_column("news", pa.array([1] * table.num_rows))
    pq.write_table(table, tmp_path / "results.parquet")
    assert page_of(read_run(tmp_path))


def test_a_report_that_cannot_be_written_names_the_file(
    out: Path, tmp_path: Path, shapecast: Shapecast
) -> None:
    shutil.copytree(out, tmp_path / "run")
    done = shapecast("report", "run", "--to", "missing/report.html", expect=1)
    assert "missing/report.html cannot be written" in done.stderr


def write(run: SavedRun, folder: Path) -> Path:
    import pyarrow as pa

    path = folder / "results.parquet"
    path.write_bytes(results_file(pa.Table.from_pandas(run.frame, preserve_index=False), run.facts))
    return path


def changed(run: SavedRun, facts: dict[str, object]) -> bytes:
    """The bytes of results whose facts were changed."""
    import io

    import pyarrow as pa

    table = pa.Table.from_pandas(run.frame, preserve_index=False)
    content = json.loads(pq.read_schema(pa.BufferReader(results_file(table, run.facts))).metadata[FACTS_KEY])
    buffer = io.BytesIO()
    pq.write_table(table.replace_schema_metadata({FACTS_KEY: json.dumps(content | facts)}), buffer)
    return buffer.getvalue()
