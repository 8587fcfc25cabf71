"""The tables of a report, as values: what the page, Markdown and the comparison print each in their way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from pipeline.findings import stops
from pipeline.ratios import run_ratios
from pipeline.report.part_figures import BOUND_LABELS, MEMORY_PARTS
from pipeline.rows import SOURCE_KINDS
from pipeline.saved import SavedRun
from pipeline.units import heading


@dataclass(frozen=True)
class ReportTable:
    """A table with a fixed name.

    Attributes
    ----------
    name : str
        Element id on the page.
    caption : str
        What it shows.
    headings : list of str
        One per column.
    rows : list of list
        Values: text, numbers, or None.
    """

    name: str
    caption: str
    headings: list[str]
    rows: list[list[Any]]

    def first(self, most: int) -> ReportTable:
        """Return the table with at most so many rows; its caption says when there are more."""
        if len(self.rows) <= most:
            return self
        caption = f"{self.caption} (the first {most:,} of {len(self.rows):,})"
        return replace(self, caption=caption, rows=self.rows[:most])


def answer_table(frame: pd.DataFrame, best: pd.DataFrame, mode: str) -> ReportTable:
    """Return the best deployment per model, device and workload in one mode.

    This and the other tables take the run's rows with derived columns (`findings.with_derived`) and, where
    they show the best deployments, what `findings.winners` returns.
    """
    best = best[best["mode"] == mode]
    columns = [
        *_varying(frame, ("model", "runner")), "device", "num_devices", "parallelism",
        *_varying(frame, ("workload",)),
        *(() if mode == "decode" else ("max_batched_tokens",)),
        "batch_size", "concurrency", "ttft_ms", "tpot_ms", "tokens_per_s", "tokens_per_s_per_device",
        "memory_left_gb",
    ]  # fmt: skip
    return _of_rows(f"answer-{mode}", f"Best deployment per device, {mode}", best, columns)


def memory_table(frame: pd.DataFrame, best: pd.DataFrame) -> ReportTable:
    """Return the memory of one device for each best deployment, GiB."""
    headings = {name: f"{label} GiB" for name, (label, _) in MEMORY_PARTS.items()}
    return _of_winners("memory-table", "Memory of one device, GiB", frame, best, headings)


def bounds_table(frame: pd.DataFrame, best: pd.DataFrame) -> ReportTable:
    """Return what bounds the time of each best deployment, percent."""
    headings = {f"{name}_share": f"{label} %" for name, (label, _) in BOUND_LABELS.items()}
    return _of_winners("bounds-table", "Time by bound type, percent", frame, best, headings, factor=100)


def provenance_table(frame: pd.DataFrame, best: pd.DataFrame) -> ReportTable:
    """Return how the latencies behind each best deployment came about, percent of its time."""
    headings = {f"{kind}_share": f"{kind} %" for kind in SOURCE_KINDS if f"{kind}_share" in frame}
    return _of_winners(
        "provenance-table", "How the latencies came about, percent of time", frame, best, headings, factor=100
    )


def stops_table(frame: pd.DataFrame) -> ReportTable:
    """Return, per deployment that stops somewhere, the first load that does not fit, and why."""
    found = stops(frame)
    columns = [
        "mode", *_varying(frame, ("model", "runner")), "device", "parallelism",
        *_varying(frame, ("workload",)), "max_batched_tokens", "largest_fit", "batch_size",
        "why",
    ]  # fmt: skip
    return _of_rows(
        "stops-table", "First load that does not fit", found, columns,
        {"largest_fit": "largest batch that fits", "batch_size": "first that does not", "why": "why"},
    )  # fmt: skip


def stop_counts_table(frame: pd.DataFrame) -> ReportTable:
    """Return how many candidates of each model, device and mode are feasible, and what stops the rest."""
    outcome = frame["stop_reason"].fillna("feasible")
    counts = pd.crosstab([frame["mode"], frame["model"], frame["device"]], outcome)
    rows = [
        [*map(str, key), *map(int, values)] for key, values in zip(counts.index, counts.values, strict=True)
    ]
    headings = ["mode", "model", "device", *(str(name).replace("_", " ") for name in counts.columns)]
    return ReportTable("stop-counts-table", "Candidates by outcome", headings, rows)


def identities_table(run: SavedRun) -> ReportTable:
    """Return the tables that the run's latencies come from, digests cut to be read."""
    rows = [
        [
            table["label"], table["identity"]["runner"], short_digest(table["identity"]["runner_version"]),
            short_digest(table["id"]), table["records"], short_digest(table["records_sha256"]),
        ]
        for table in sorted_identities(run)
    ]  # fmt: skip
    headings = [
        "deployment",
        "runner",
        "runner version",
        "table identity",
        "records",
        "digest of the records",
    ]
    return ReportTable("identities-table", "Shape tables", headings, rows)


def sorted_identities(run: SavedRun) -> list[dict[str, Any]]:
    """Return the run's tables in the order of their labels."""
    return sorted(run.facts.tables, key=lambda table: (str(table["label"]), str(table["id"])))


def short_digest(digest: str) -> str:
    """Return the beginning of a long digest."""
    return digest if len(digest) <= 20 else f"{digest[:16]}…"


def ratio_table(frame: pd.DataFrame) -> ReportTable:
    """Return the best prefill/decode pair per model and device."""
    rows = []
    for group, pairs in run_ratios(frame):
        if pairs:
            best = pairs[0]
            rows.append(
                [
                    group["model"], group["device"],
                    *(f"{half.parallelism}, batch {half.batch_size}" for half in (best.prefill, best.decode)),
                    best.pd_ratio, best.p_qps, best.d_qps, best.balanced_qps,
                ]
            )  # fmt: skip
    headings = [
        "model", "device", "prefill", "decode", "prefill instances per decode instance",
        "prefill req/s", "decode req/s", "balanced req/s",
    ]  # fmt: skip
    return ReportTable("ratio-table", "Best prefill/decode pair", headings, rows)


def _of_winners(
    name: str,
    caption: str,
    frame: pd.DataFrame,
    best: pd.DataFrame,
    headings: Mapping[str, str],
    factor: float = 1,
) -> ReportTable:
    shown = {
        column: text
        for column, text in headings.items()
        if best[column].notna().any() and (best[column] != 0).any()
    }
    best = best.assign(**{column: best[column] * factor for column in shown})
    columns = [
        "mode", *_varying(frame, ("model", "runner")), "device", "parallelism",
        *_varying(frame, ("workload",)), *shown,
    ]  # fmt: skip
    return _of_rows(name, caption, best, columns, shown)


def _of_rows(
    name: str,
    caption: str,
    rows: pd.DataFrame,
    columns: Sequence[str],
    headings: Mapping[str, str] | None = None,
) -> ReportTable:
    shown = [name for name in columns if name == "why" or (name in rows and not rows[name].isna().all())]
    values = [[_plain(value) for value in row] for row in rows[shown].itertuples(index=False)]
    return ReportTable(name, caption, [(headings or {}).get(one, heading(one)) for one in shown], values)


def _varying(frame: pd.DataFrame, columns: Sequence[str]) -> list[str]:
    """Return those columns in which the run has several values."""
    return [column for column in columns if frame[column].nunique() > 1]


def _plain(value: Any) -> Any:
    """Return a pandas value as text, int, float or None."""
    if value is None or isinstance(value, str):
        return value
    if pd.isna(value):
        return None
    return value.item() if hasattr(value, "item") else value
