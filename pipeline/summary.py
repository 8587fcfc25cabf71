"""The closing summary of a run on the terminal: best deployments, devices side by side, ratio, shapes."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable
from typing import Any

import pandas as pd
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from pipeline.ratios import run_ratios
from pipeline.rows import WORKLOAD_COLUMNS, ranked
from pipeline.run import SweepRun
from pipeline.units import format_cell, format_number, heading

_TOP = 8
_RANKED_COLUMNS = [
    "rank", "model", "device", "parallelism", "max_batched_tokens", "batch_size", "ttft_ms", "tpot_ms",
    "tokens_per_s", "tokens_per_s_per_device", "memory_left_gb",
]  # fmt: skip
_DEVICE_COLUMNS = [
    "model", "device", "num_devices", "batch_size", "ttft_ms", "tpot_ms", "tokens_per_s",
    "tokens_per_s_per_device", "memory_left_gb",
]  # fmt: skip
_NO_CHUNKS_IN_DECODE = "max_batched_tokens"


def print_summary(run: SweepRun, console: Console) -> None:
    """Print what a run found."""
    best = ranked(run.frame)
    if best.empty:
        _print_nothing_feasible(run.frame, console)
    else:
        _print_best_overall(best, console)
        for mode, rows in best.groupby("mode", sort=True):
            _print_mode(str(mode), rows, console)
        if best["device"].nunique() > 1:
            _print_devices(best, console)
        _print_ratios(run.frame, console)
    counts = run.counts
    console.print(
        f"Shapes: {counts.needed:,} needed, {counts.reused:,} reused, {counts.computed:,} computed; "
        f"{counts.stopped:,} of {len(run.frame):,} candidates stopped out of memory."
    )
    console.print(f"Results: {escape(str(run.out))}", soft_wrap=True)


def _print_best_overall(best: pd.DataFrame, console: Console) -> None:
    """Name the best row per workload: aggregated where that was swept, else of each half."""
    modes = ["aggregated"] if (best["mode"] == "aggregated").any() else sorted(best["mode"].unique())
    for mode in modes:
        rows = best[best["mode"] == mode]
        for _, group in rows.groupby(WORKLOAD_COLUMNS, sort=False, dropna=False):
            row = group.iloc[0]
            console.print(f"[bold]Best {mode} deployment[/bold] for {_workload(row)}:")
            console.print(f"  {escape(_deployment(row))}\n  {_figures(row)}")


def _workload(row: pd.Series) -> str:
    hit_rate = row["prefix_cache_hit_rate"]
    cached = f", {100 * hit_rate:g}% of the prompt cached" if hit_rate else ""
    lengths, inputs = row["input_length_bins"], f"{row['input_length']:,}"
    if not pd.isna(lengths):
        inputs += f" (mean of {lengths})"
    images = ""
    if not pd.isna(row["image_height"]):
        images = f", images of {row['image_height']:.0f} x {row['image_width']:.0f}"
    return f"{inputs} input and {row['output_length']:,} output tokens{images}{cached}"


def _deployment(row: pd.Series) -> str:
    chunks = "" if row["mode"] == "decode" else f", {row['max_batched_tokens']:,} batched tokens"
    return (
        f"{row['model']} on {row['num_devices']} x {row['device']}, {row['parallelism']}{chunks}, "
        f"batch {row['batch_size']} (concurrency {row['concurrency']})"
    )


def _figures(row: pd.Series) -> str:
    parts = []
    for name in ("ttft_ms", "tpot_ms"):
        if not pd.isna(row[name]):
            parts.append(f"{name[:4].upper()} {format_number(row[name])} ms")
    kind = "input tokens/s" if row["mode"] == "prefill" else "tokens/s"
    parts.append(f"{format_number(row['tokens_per_s'])} {kind}")
    parts.append(f"{format_number(row['tokens_per_s_per_device'])} per device")
    parts.append(f"{format_number(row['memory_left_gb'])} GiB left")
    return ", ".join(parts)


def _print_mode(mode: str, rows: pd.DataFrame, console: Console) -> None:
    columns = list(_RANKED_COLUMNS)
    if mode == "decode":
        columns.remove(_NO_CHUNKS_IN_DECODE)
        rows = _distinct(rows)
    if mode in ("prefill", "decode"):
        columns.remove("tpot_ms" if mode == "prefill" else "ttft_ms")
    title = f"{mode}: {min(_TOP, len(rows))} of {len(rows)} feasible"
    console.print(_table(title, rows.head(_TOP), columns))


def _distinct(rows: pd.DataFrame) -> pd.DataFrame:
    """Decode ignores max_batched_tokens, so rows that differ only in it are one."""
    kept = rows.drop_duplicates(["runner", "model", "device", "parallelism", "batch_size", *WORKLOAD_COLUMNS])
    return kept.assign(rank=range(1, len(kept) + 1))


def _print_devices(best: pd.DataFrame, console: Console) -> None:
    for mode, rows in best.groupby("mode", sort=True):
        tops = rows.drop_duplicates(["model", "device", *WORKLOAD_COLUMNS]).sort_values(
            ["model", *WORKLOAD_COLUMNS, "rank"], kind="stable"
        )
        columns = [name for name in _DEVICE_COLUMNS if not tops[name].isna().all()]
        console.print(_table(f"best per device, {mode}", tops, columns))


def _print_ratios(frame: pd.DataFrame, console: Console) -> None:
    found = [(group, rows[0]) for group, rows in run_ratios(frame) if rows]
    if not found:
        return
    table = Table(title="prefill/decode ratio, best pair", title_justify="left")
    for name in ("model", "device", "prefill", "decode"):
        table.add_column(name)
    for name in ("prefill per decode", "prefill req/s", "decode req/s", "balanced req/s"):
        table.add_column(name, justify="right")
    for group, row in found:
        table.add_row(
            escape(str(group["model"])), escape(str(group["device"])),
            *(f"{escape(half.parallelism)}, batch {half.batch_size}" for half in (row.prefill, row.decode)),
            *(format_number(value) for value in (row.pd_ratio, row.p_qps, row.d_qps, row.balanced_qps)),
        )  # fmt: skip
    console.print(table)


def _print_nothing_feasible(frame: pd.DataFrame, console: Console) -> None:
    """Say that nothing fits, and per mode and deployment what stopped the candidate nearest to feasible."""
    console.print("[bold]No candidate is feasible.[/bold] What stopped the nearest of each deployment:")
    groups = ["mode", "model", "device", "parallelism"]
    for (mode, model, device, parallelism), rows in frame.groupby(groups, sort=False):
        row = min(rows.to_dict("records"), key=_excess)
        where = f"{model} on {device}, {parallelism}, {mode}, batch {row['batch_size']}"
        console.print(f"  {escape(where)}: {escape(_why(row))}", soft_wrap=True)


def _excess(row: dict[Hashable, Any]) -> tuple[bool, float]:
    """Order stopped rows by how far they are from feasible: limits before memory."""
    if row["memory_left_gb"] < 0:
        return True, -row["memory_left_gb"]
    ratios = [
        row[f"{name}_ms"] / row[f"{name}_limit_ms"]
        for name in ("ttft", "tpot")
        if not math.isnan(row[f"{name}_limit_ms"]) and not math.isnan(row[f"{name}_ms"])
    ]
    return False, max(ratios, default=math.inf)


def _why(row: dict[Hashable, Any]) -> str:
    reason = str(row["stop_reason"])
    if reason.endswith("_oom"):
        lacking = format_number(-row["memory_left_gb"])
        return f"out of memory by {lacking} GiB at the {row['stop_shape']}"
    name = reason.removesuffix("_limit")
    value, limit = (format_number(row[f"{name}{end}"]) for end in ("_ms", "_limit_ms"))
    return f"{name.upper()} is {value} ms, over the limit of {limit} ms"


def _table(title: str, rows: pd.DataFrame, columns: Iterable[str]) -> Table:
    columns = list(columns)
    table = Table(title=title, title_justify="left")
    for name in columns:
        numeric = pd.api.types.is_numeric_dtype(rows[name])
        table.add_column(heading(name), justify="right" if numeric else "left")
    for values in rows[columns].itertuples(index=False):
        table.add_row(*(escape(format_cell(value)) for value in values))
    return table
