"""The trade-off as a small chart of characters."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence

import pandas as pd

from pipeline.findings import pareto_front, short_names, trade_off_axis, with_derived
from pipeline.units import format_number
from stages.candidate import MODES

_ROWS = 12
_MARKS = "oxsdvw*p"
_LEFT = 9


def pareto_chart(frame: pd.DataFrame, width: int) -> list[str]:
    """Return the Pareto fronts of the run's first mode as lines of at most `width` characters.

    Upwards throughput per device, to the right the speed of one user (in prefill: TTFT, less is better), on a
    logarithmic axis; a mark per device and model. Nothing when fewer than two points are on a front.
    """
    mode = next((mode for mode in MODES if mode in set(frame["mode"])), None)
    if mode is None:
        return []
    axis, more_is_better = trade_off_axis(mode)
    rows = with_derived(frame)
    front = pareto_front(rows, mode)
    others = rows[(rows["mode"] == mode) & rows["feasible"] & ~rows["row"].isin(front)]
    points, others = (_drawable(part, axis) for part in (rows.iloc[front], others))
    if len(points) < 2:
        return []
    names = _names(points)
    marks = {name: _MARKS[place % len(_MARKS)] for place, name in enumerate(dict.fromkeys(names))}
    shown = pd.concat([others, points])  # The front is drawn last, on top.
    xs = [math.log10(value) for value in shown[axis]]
    ys = [float(value) for value in shown["tokens_per_s_per_device"]]
    grid = _grid(xs, ys, [*("." * len(others)), *(marks[name] for name in names)], width - _LEFT - 2)
    unit = "tokens/s per user" if more_is_better else "TTFT, ms"
    low, high = (format_number(10**value) for value in (min(xs), max(xs)))
    gap = max(width - _LEFT - 2 - len(low) - len(high) - len(unit), 2)
    legend = ", ".join(
        [*(f"{mark} {name}" for name, mark in marks.items()), *([". others"] * bool(len(others)))]
    )
    return [
        f"Pareto front, {mode}: tokens/s per device upwards",
        *textwrap.wrap(legend, width),
        *_with_axis(grid, max(ys)),
        " " * (_LEFT + 1) + low + " " * (gap // 2) + unit + " " * (gap - gap // 2) + high,
        "",
    ]


def _drawable(rows: pd.DataFrame, axis: str) -> pd.DataFrame:
    """Return the rows that have a place on the axes."""
    finite = (rows[axis] < math.inf) & (rows["tokens_per_s_per_device"] < math.inf)
    return rows[(rows[axis] > 0) & finite]


def _names(points: pd.DataFrame) -> list[str]:
    """Return, per point, its device, and its model where there are several."""
    models = short_names(points["model"])
    several = len(models) > 1
    return [
        f"{models[model]} on {device}" if several else str(device)
        for model, device in zip(points["model"], points["device"], strict=True)
    ]


def _grid(xs: Sequence[float], ys: Sequence[float], marks: Sequence[str], width: int) -> list[list[str]]:
    grid = [[" "] * width for _ in range(_ROWS)]
    span = max(xs) - min(xs) or 1.0
    top = max(ys) or 1.0
    for x, y, mark in zip(xs, ys, marks, strict=True):
        column = round((x - min(xs)) / span * (width - 1))
        row = _ROWS - 1 - round(y / top * (_ROWS - 1))
        grid[row][column] = mark
    return grid


def _with_axis(grid: Sequence[Sequence[str]], top: float) -> list[str]:
    lines = []
    for place, row in enumerate(grid):
        label = format_number(top) if place == 0 else "0" if place == len(grid) - 1 else ""
        lines.append(f"{label:>{_LEFT}} |{''.join(row)}".rstrip())
    return lines
