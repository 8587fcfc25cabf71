"""The report of a run as one HTML page: everything inline, nothing fetched, the same bytes every time."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from importlib.resources import files
from typing import Any

import pandas as pd

from pipeline import findings
from pipeline.findings import pareto_front, winners, with_derived
from pipeline.report import figures, part_figures, tables, words
from pipeline.report.tables import ReportTable
from pipeline.saved import RESULTS_NAME, SavedRun
from pipeline.units import format_cell, heading
from stages.candidate import MODES

MOST_ROWS = 2000
"""Candidates that a page shows; of larger runs it shows the Pareto fronts and the best deployments' loads."""

MOST_TABLE_ROWS = 500
MOST_CARDS = 12
MOST_BARS = 60

_FILTERS = ("mode", "model", "device", "parallelism", "workload", "runner")
_TABLE_COLUMNS = (
    "mode", "model", "runner", "device", "parallelism", "num_devices", "workload", "max_batched_tokens",
    "batch_size", "concurrency", "feasible", "stop_reason", "ttft_ms", "tpot_ms", "tokens_per_s_per_user",
    "tokens_per_s", "tokens_per_s_per_device", "memory_left_gb", "prefill_num_chunks", "forward_shape_count",
)  # fmt: skip


def report_page(run: SavedRun) -> bytes:
    """Return the bytes of report.html."""
    frame = with_derived(run.frame)
    run = replace(run, frame=frame)
    best = winners(frame)
    rows = shown_rows(frame)
    page_data = {
        "rows": _row_columns(rows),
        "headings": {name: heading(name) for name in _TABLE_COLUMNS},
        "filters": [name for name in _FILTERS if rows[name].nunique() > 1],
        "charts": _charts(frame, best, rows),
        "traces": _traces(run, best),
    }
    scripts = [asset("plotly-basic.min.js"), asset("tables.js") + asset("page.js")]
    text: str = (
        environment()
        .get_template("page.html.j2")
        .render(
            **_findings(frame, best),
            **_trust(run, best),
            modes=[mode for mode in MODES if mode in set(frame["mode"])],
            charts=page_data["charts"],
            chart_notes=_CHART_NOTES,
            filters=page_data["filters"],
            traces=page_data["traces"],
            asked=words.asked(run),
            candidates=len(frame),
            left_out=len(frame) - len(rows),
            results_name=RESULTS_NAME,
            style=asset("page.css"),
            plotly_license=asset("plotly-basic.LICENSE"),
            scripts=scripts,
            script_hashes=[script_hash(script) for script in scripts],
            data=inline_json(page_data),
        )
    )
    return text.encode()


def _findings(frame: pd.DataFrame, best: pd.DataFrame) -> dict[str, Any]:
    """Return what the template needs of the rows."""
    return {
        "answer": findings.answer(best)[:MOST_CARDS],
        "nothing_feasible": [] if frame["feasible"].any() else words.nothing_feasible(frame),
        "answer_tables": _answer_tables(frame, best),
        "memory_table": tables.memory_table(frame, best).first(MOST_TABLE_ROWS),
        "bounds_table": tables.bounds_table(frame, best).first(MOST_TABLE_ROWS),
        "stops_table": tables.stops_table(frame).first(MOST_TABLE_ROWS),
        "stop_counts_table": tables.stop_counts_table(frame).first(MOST_TABLE_ROWS),
    }


def _trust(run: SavedRun, best: pd.DataFrame) -> dict[str, Any]:
    """Return what the template needs to say how far to trust the run."""
    return {
        "name": words.config_name(run),
        "notes": words.notes(run),
        "same_sources": words.same_sources(run.frame),
        "provenance_table": tables.provenance_table(run.frame, best).first(MOST_TABLE_ROWS),
        "identities_table": tables.identities_table(run).first(MOST_TABLE_ROWS),
        "identities": tables.sorted_identities(run)[:MOST_TABLE_ROWS],
        "versions": sorted(run.facts.versions.items()),
        "run": run.facts.run,
        "command": words.reproduce_command(run),
        "config_yaml": words.config_yaml(run),
    }


def shown_rows(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the rows that a page shows, in the order of the run, with derived columns.

    All of them up to `MOST_ROWS`; of larger runs the best deployments, the fronts, then the other loads of
    the best deployments.
    """
    rows = with_derived(frame)
    if len(rows) <= MOST_ROWS:
        return rows
    best = winners(rows)
    front = [row for mode in rows["mode"].unique() for row in pareto_front(rows, mode)]
    loads = rows["row"][rows["series"].isin(best["series"])]
    wanted = list(dict.fromkeys([*best["row"], *front, *loads]))
    return rows.iloc[sorted(wanted[:MOST_ROWS])]


def script_hash(script: str) -> str:
    """Return the hash by which a Content-Security-Policy allows exactly this script."""
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def inline_json(value: Any) -> str:
    """Return JSON that no HTML parser can see markup in."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _row_columns(rows: pd.DataFrame) -> dict[str, Any]:
    """Return the rows by column; text columns as places in the list of their values."""
    columns: dict[str, Any] = {
        "row": [int(row) for row in rows["row"]],
        "hover": [figures.hover_text(row) for row in rows.to_dict("records")],
    }
    for name in _TABLE_COLUMNS:
        values = rows[name]
        if pd.api.types.is_bool_dtype(values):
            columns[name] = [bool(value) for value in values]
        elif pd.api.types.is_numeric_dtype(values):
            columns[name] = figures.rounded(values)
        else:
            texts = ["" if pd.isna(value) else str(value) for value in values]
            levels = list(dict.fromkeys(texts))
            places = {text: place for place, text in enumerate(levels)}
            columns[name] = {"levels": levels, "codes": [places[text] for text in texts]}
    return columns


def _charts(frame: pd.DataFrame, best: pd.DataFrame, rows: pd.DataFrame) -> dict[str, Any]:
    """Return the charts by element id; all but the last three are made of rows, and filtered."""
    looks = figures.styles(frame)
    found: dict[str, Any] = {}
    for mode in MODES:
        if mode not in set(rows["mode"]):
            continue
        found[f"trade-off-{mode}"] = figures.trade_off(rows, mode, looks)
        for column in ("ttft_ms", "tpot_ms"):
            figure = figures.latency(rows, mode, column, looks)
            if figure["data"]:
                found[f"{column[:4]}-{mode}"] = figure
    if len(best):
        found["memory"] = part_figures.memory(best.head(MOST_BARS))
        found["bounds"] = part_figures.bounds(best.head(MOST_BARS))
    found["stop-counts"] = part_figures.stop_counts(frame)
    return {name: figure for name, figure in found.items() if figure["data"]}


def _traces(run: SavedRun, best: pd.DataFrame) -> list[dict[str, Any]]:
    """Return, per best candidate with a trace, its label, charts and columns."""
    rows = {row["row"]: row for row in best.to_dict("records")}
    return [
        {
            "label": part_figures.short_label(rows[trace["row"]], best),
            "deployment": findings.deployment_text(rows[trace["row"]]),
            "chunks": part_figures.chunks(trace) if trace["chunks"]["seq_len"] else None,
            "timeline": part_figures.timeline(trace),
            "columns": {"chunks": trace["chunks"], "segments": trace["segments"]},
            "runs_per_segment": trace["runs_per_segment"],
        }
        for trace in run.facts.traces
        if trace["row"] in rows
    ]


def _answer_tables(frame: pd.DataFrame, best: pd.DataFrame) -> list[ReportTable]:
    found = [tables.answer_table(frame, best, mode) for mode in MODES if mode in set(frame["mode"])]
    ratio = tables.ratio_table(frame)
    return [table.first(MOST_TABLE_ROWS) for table in [*found, ratio] if table.rows]


_FRONTS = (
    "is better; the grey lines are the Pareto fronts of the feasible points, one per model and workload. "
    "Open points are over a limit."
)
_LOADS = "A line per deployment as the load rises, coloured as above; what ran out of memory has no latency."
_CHART_NOTES: Mapping[str, str] = {
    "trade-off": f"Up and to the right {_FRONTS}",
    "trade-off-prefill": f"Up and to the left {_FRONTS}",
    "ttft": _LOADS,
    "tpot": _LOADS,
}


@lru_cache(maxsize=1)
def environment() -> Any:
    """Return where templates come from; they escape what they are given."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("pipeline.report", "assets"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["cell"] = format_cell
    environment.filters["sort_value"] = _sort_value
    return environment


def _sort_value(value: Any) -> str:
    return "" if value is None or isinstance(value, str) else repr(value)


@lru_cache(maxsize=8)
def asset(name: str) -> str:
    """Return a file of the page as text."""
    return files("pipeline.report").joinpath("assets", name).read_text(encoding="utf-8")
