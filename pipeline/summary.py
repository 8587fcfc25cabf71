"""The closing summary of a run on the terminal, in 80 columns: best deployments, trade-off, ratio, shapes."""

from __future__ import annotations

from typing import Any

import pandas as pd
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from pipeline.findings import (
    answer,
    devices_text,
    load_text,
    nearest_stops,
    short_names,
    short_parallelism,
    why,
    winners,
    with_derived,
)
from pipeline.pareto_text import pareto_chart
from pipeline.ratio_mode import print_splits
from pipeline.ratios import run_ratios
from pipeline.rows import WORKLOAD_COLUMNS, ranked
from pipeline.run import SweepRun
from pipeline.search_summary import print_missed
from pipeline.units import format_cell, format_number, heading
from stages.candidate import MODES

_TOP = 5
_WIDTH = 80
_NUMBERS = ("ttft_ms", "tpot_ms", "tokens_per_s", "tokens_per_s_per_device", "memory_left_gb")
_SHORT_HEADINGS = {"tokens_per_s_per_device": "/device", "memory_left_gb": "GiB left"}


_LEGEND = (
    "TTFT: time to the first token. TPOT: time per further token. batch: requests per replica. "
    "budget: tokens per step of a replica. ratio: prefill instances per decode instance."
)


def print_summary(run: SweepRun, console: Console) -> None:
    """Print what a run found."""
    frame = with_derived(run.frame)
    ranks = ranked(frame)
    best = winners(frame)
    if best.empty:
        _print_nothing_feasible(frame, console)
    else:
        for question, deployment, figures in answer(best):
            console.print(f"[bold]{escape(question)}:[/bold]")
            console.print(f"  {escape(deployment)}\n  {escape(figures)}")
        console.print()
        for mode in (mode for mode in MODES if mode in set(ranks["mode"])):
            _print_mode(mode, ranks[ranks["mode"] == mode], frame, console)
        _print_devices(best, frame, console)
        _print_ratios(frame, console)
        if run.total_devices is not None:
            print_splits(frame, run.total_devices, console)
        for line in pareto_chart(frame, _WIDTH):
            console.print(escape(line), soft_wrap=True)
        print_missed(frame, console)
    console.print(_LEGEND, style="dim")
    counts = run.counts
    console.print(
        f"Shapes: {counts.needed:,} needed, {counts.reused:,} reused, {counts.computed:,} computed; "
        f"{counts.stopped:,} of {len(frame):,} candidates stopped out of memory.",
        soft_wrap=True,
    )
    console.print(f"Results: {escape(str(run.out))}", soft_wrap=True)


def _print_mode(mode: str, rows: pd.DataFrame, frame: pd.DataFrame, console: Console) -> None:
    """Print the best deployments of a mode, each with its best load; `rank` is that among all rows."""
    deployments = rows.drop_duplicates(["runner", "model", "device", "parallelism", *WORKLOAD_COLUMNS])
    shown = deployments.head(_TOP)
    title = f"{mode}: the best {len(shown)} of {len(deployments)} deployments, {len(rows)} feasible rows"
    console.print(_deployments(title, shown, frame, ranks=True))


def _print_devices(best: pd.DataFrame, frame: pd.DataFrame, console: Console) -> None:
    """Print devices side by side, each with its best deployment."""
    if best["device"].nunique() < 2:
        return
    for mode in (mode for mode in MODES if mode in set(best["mode"])):
        rows = best[best["mode"] == mode]
        console.print(_deployments(f"best per device, {mode}", rows, frame, ranks=False))


def _deployments(title: str, rows: pd.DataFrame, frame: pd.DataFrame, *, ranks: bool) -> Table:
    table = _table(title)
    if ranks:
        table.add_column("#", justify="right")
    table.add_column("deployment", ratio=1, overflow="fold")
    numbers = [name for name in _NUMBERS if not rows[name].isna().all()]
    for name in numbers:
        table.add_column(_SHORT_HEADINGS.get(name, heading(name)), justify="right", no_wrap=True)
    models = short_names(frame["model"])
    several = {name for name in ("model", "runner", "workload") if frame[name].nunique() > 1}
    for row in rows.to_dict("records"):
        rank = [str(row["rank"])] if ranks else []
        cells = (format_cell(row[name]) for name in numbers)
        table.add_row(*rank, escape(_short_deployment(row, models, several)), *cells)
    return table


def _short_deployment(row: dict[Any, Any], models: dict[str, str], several: set[str]) -> str:
    lines = [models[row["model"]]] if "model" in several else []
    lines += [devices_text(row), load_text(row)]
    if "workload" in several:
        lines.append(row["workload"])
    if "runner" in several:
        lines.append(f"{row['runner']} runner")
    return "\n".join(lines)


def _print_ratios(frame: pd.DataFrame, console: Console) -> None:
    found = [(group, rows[0]) for group, rows in run_ratios(frame) if rows]
    if not found:
        return
    table = _table("prefill/decode ratio, best pair")
    table.add_column("pair", ratio=1, overflow="fold")
    for name in ("ratio", "prefill req/s", "decode req/s", "balanced"):
        table.add_column(name, justify="right")
    models = short_names(frame["model"])
    for group, row in found:
        halves = (
            f"{name}: {short_parallelism(half.parallelism)}, batch {half.batch_size}"
            for name, half in (("prefill", row.prefill), ("decode", row.decode))
        )
        pair = f"{models[str(group['model'])]}, {group['device']}\n" + "\n".join(halves)
        numbers = (row.pd_ratio, row.p_qps, row.d_qps, row.balanced_qps)
        table.add_row(escape(pair), *(format_number(value) for value in numbers))
    console.print(table)


def _print_nothing_feasible(frame: pd.DataFrame, console: Console) -> None:
    """Say that nothing fits, and per mode and deployment what stopped the candidate nearest to feasible."""
    console.print("[bold]No candidate is feasible.[/bold] What stopped the nearest of each deployment:")
    for row in nearest_stops(frame):
        where = (
            f"{row['model']} on {row['device']}, {row['parallelism']}, {row['mode']}, "
            f"batch {row['batch_size']}"
        )
        console.print(f"  {escape(where)}: {escape(why(row))}", soft_wrap=True)


def _table(title: str) -> Table:
    return Table(
        title=title,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        width=_WIDTH,
        pad_edge=False,
        collapse_padding=True,
    )
