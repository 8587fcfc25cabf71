"""What changed between two runs: config, versions, tables, records, best deployments, candidates."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from pipeline.findings import devices_text, load_text, winners, with_derived
from pipeline.report.tables import ReportTable, short_digest
from pipeline.report.words import config_name
from pipeline.saved import SavedRun

_METRICS = {"ttft_ms": "TTFT %", "tpot_ms": "TPOT %", "tokens_per_s": "tokens/s %"}
_KEY = (
    "mode", "model", "device", "parallelism", "workload", "max_batched_tokens", "num_mtp_tokens",
    "serving_cost_ms", "scheduler", "batch_size",
)  # fmt: skip
_CLOSE = 1e-9


@dataclass(frozen=True)
class Comparison:
    """What changed from run A to run B.

    Attributes
    ----------
    names : (str, str)
        The names of the sweeps.
    sentences : list of str
        What changed, in short.
    tables : list of ReportTable
        The changes; empty ones are left out.
    """

    names: tuple[str, str]
    sentences: list[str]
    tables: list[ReportTable]

    @property
    def same(self) -> bool:
        """Whether nothing changed."""
        return not self.tables


def compare_runs(a: SavedRun, b: SavedRun) -> Comparison:
    """Return what changed from run A to run B."""
    rows_a, rows_b = with_derived(a.frame), with_derived(b.frame)
    deltas, only_a, only_b, common = _candidates(rows_a, rows_b)
    tables = [
        _config_table(a, b),
        _versions_table(a, b),
        _tables_table(a, b),
        _best_table(winners(rows_a), winners(rows_b)),
        deltas,
    ]
    sentences = [
        f"{common:,} candidates are in both runs; {len(deltas.rows):,} of them differ.",
        *(
            f"{count:,} candidates are only in {side}."
            for side, count in (("A", only_a), ("B", only_b))
            if count
        ),
    ]
    found = [table for table in tables if table.rows]
    if not found and not only_a and not only_b:
        sentences.append("Config, versions, tables, records and results are the same.")
    return Comparison((config_name(a), config_name(b)), sentences, found)


def _config_table(a: SavedRun, b: SavedRun) -> ReportTable:
    before, after = dict(_leaves(a.facts.config)), dict(_leaves(b.facts.config))
    return ReportTable("config", "Config", ["field", "A", "B"], _changed(before, after))


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield each field of a config with its value as text; lists of plain values count as one value."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _leaves(item, f"{path}.{name}" if path else str(name))
    elif isinstance(value, list) and any(isinstance(item, Mapping | list) for item in value):
        for place, item in enumerate(value):
            yield from _leaves(item, f"{path}[{place}]")
    else:
        yield path, json.dumps(value)


def _versions_table(a: SavedRun, b: SavedRun) -> ReportTable:
    rows = _changed(dict(a.facts.versions), dict(b.facts.versions))
    return ReportTable("versions", "Versions", ["package", "A", "B"], rows)


def _changed(before: Mapping[str, str], after: Mapping[str, str]) -> list[list[Any]]:
    names = sorted({*before, *after})
    return [
        [name, before.get(name), after.get(name)] for name in names if before.get(name) != after.get(name)
    ]


def _tables_table(a: SavedRun, b: SavedRun) -> ReportTable:
    """Return the tables of one run only, and those of which the runs used other records."""
    before, after = ({table["id"]: table for table in run.facts.tables} for run in (a, b))
    rows: list[list[Any]] = []
    for name in sorted({*before, *after}, key=lambda one: ((before.get(one) or after[one])["label"], one)):
        one, other = before.get(name), after.get(name)
        label = (one or other or {})["label"]
        if one is None or other is None:
            rows.append([label, short_digest(name), "only in B" if one is None else "only in A"])
        elif one["records_sha256"] != other["records_sha256"]:
            what = f"{one['records']:,} records in A and {other['records']:,} in B, or other values"
            rows.append([label, short_digest(name), what])
    return ReportTable("tables", "Shape tables and records", ["deployment", "identity", "change"], rows)


def _best_table(a: pd.DataFrame, b: pd.DataFrame) -> ReportTable:
    before, after = (
        {(row["mode"], row["workload"], row["model"], row["device"]): row for row in best.to_dict("records")}
        for best in (a.iloc[::-1], b.iloc[::-1])
    )
    several = a["workload"].nunique() > 1 or b["workload"].nunique() > 1
    rows: list[list[Any]] = []
    for key in dict.fromkeys([*reversed(before), *reversed(after)]):
        one, other = before.get(key), after.get(key)
        texts = [None if row is None else f"{devices_text(row)}, {load_text(row)}" for row in (one, other)]
        values = [None if row is None else float(row["tokens_per_s_per_device"]) for row in (one, other)]
        change = _percent(*values)
        if texts[0] != texts[1] or change:
            mode, workload, model, device = key
            text = f"{mode}, {model} on {device}" + (f", {workload}" if several else "")
            rows.append([text, *texts, *values, change])
    headings = ["best of", "A", "B", "A, per device", "B, per device", "change %"]
    return ReportTable("best", "Best deployments, tokens/s per device", headings, rows)


def _candidates(a: pd.DataFrame, b: pd.DataFrame) -> tuple[ReportTable, int, int, int]:
    """Return the candidates that differ, largest change of throughput first, and how many are where."""
    key = [*_KEY, *(["runner"] if _several_per_key(a) or _several_per_key(b) else [])]
    before, after = (_by_key(rows, key) for rows in (a, b))
    several = a["workload"].nunique() > 1 or b["workload"].nunique() > 1
    common = [one for one in before if one in after]
    changed: list[tuple[float, list[Any]]] = []
    for one in common:
        old, new = before[one], after[one]
        changes = [_percent(_finite(old[name]), _finite(new[name])) for name in _METRICS]
        left = float(new["memory_left_gb"]) - float(old["memory_left_gb"])
        outcomes = ["feasible" if row["feasible"] else str(row["stop_reason"]) for row in (old, new)]
        if any(changes) or abs(left) > _CLOSE or outcomes[0] != outcomes[1]:
            outcome = outcomes[0] if outcomes[0] == outcomes[1] else " -> ".join(outcomes)
            text = f"{old['mode']}, {old['model']} on {devices_text(old)}, {load_text(old)}"
            text += f", {old['workload']}" if several else ""
            changed.append((abs(changes[-1] or 0.0), [text, *changes, left, outcome]))
    changed.sort(key=lambda pair: -pair[0])
    headings = ["candidate", *_METRICS.values(), "GiB left", "outcome"]
    table = ReportTable("candidates", "Candidates", headings, [row for _, row in changed])
    return table, len(before) - len(common), len(after) - len(common), len(common)


def _several_per_key(rows: pd.DataFrame) -> bool:
    return bool(rows.duplicated(list(_KEY)).any())


def _by_key(rows: pd.DataFrame, key: list[str]) -> dict[tuple[Any, ...], dict[Any, Any]]:
    return {tuple(row[name] for name in key): row for row in rows.to_dict("records")}


def _finite(value: Any) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)


def _percent(old: float | None, new: float | None) -> float | None:
    """Return the change in percent; 0 where it is rounding, None where there is nothing to compare."""
    if old is None or new is None or not math.isfinite(old) or not math.isfinite(new):
        return None
    if old == new or (old and abs(new / old - 1) < _CLOSE):
        return 0.0
    return 100 * (new / old - 1) if old else None
