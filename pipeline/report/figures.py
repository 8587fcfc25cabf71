"""Charts of a run's rows as plain plotly figures (dicts), the same for the page and for notebooks.

Every trace of points carries the numbers of its rows in `customdata`, by which the page filters it. Names go
through `plotly_text`, because plotly reads a little HTML in every text.
"""

from __future__ import annotations

import html
import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from pipeline.findings import (
    deployment_text,
    figures_text,
    pareto_front,
    series,
    short_names,
    trade_off_axis,
    why,
)

Figure = dict[str, Any]

PALETTE = (
    "#3b82c4", "#e08e1b", "#2a9d74", "#d1495b", "#8d6cc7", "#3fa7c9", "#a08a2a", "#c76ba5",
)  # fmt: skip
"""Mid tones, told apart on light and on dark paper and by most colour-blind readers."""

SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "star", "hexagon")
LIMIT_COLOR = "#d1495b"
MUTED_COLOR = "#8a8f98"


def plotly_text(text: object) -> str:
    """Return `text` so that plotly shows it as it is."""
    return html.escape(str(text), quote=False)


def hover_text(row: Mapping[Any, Any]) -> str:
    """Return what hovering over a row's point shows."""
    lines = [
        f"<b>{plotly_text(row['model'])}</b>",
        plotly_text(deployment_text(row)),
        plotly_text(row["workload"]),
        plotly_text(figures_text(row) if row["tokens_per_s"] else row["mode"]),
    ]
    if not row["feasible"]:
        lines.append(f"<b>not feasible</b>: {plotly_text(why(row))}")
    return "<br>".join(lines)


def layout(x_title: str, y_title: str, **more: Any) -> Figure:
    """Return the layout that all charts share: no paper of its own, legend below."""
    base: Figure = {
        "xaxis": {"title": {"text": x_title}, "automargin": True, "zeroline": False},
        "yaxis": {"title": {"text": y_title}, "automargin": True, "zeroline": False},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "margin": {"l": 56, "r": 16, "t": 16, "b": 48},
        "legend": {"orientation": "h", "yanchor": "bottom", "y": 1.02, "x": 0, "traceorder": "normal"},
        "hovermode": "closest",
        "height": 420,
        "font": {"family": "system-ui, sans-serif", "size": 13},
    }
    for name, value in more.items():
        base[name] = {**base[name], **value} if isinstance(base.get(name), dict) else value
    return base


def groups(frame: pd.DataFrame) -> list[tuple[str, str, str, pd.DataFrame]]:
    """Return the rows per device and model: the name to show, colour, symbol, rows.

    Colours tell devices apart, symbols models; the name leaves out what all rows share.
    """
    devices = list(frame["device"].unique())
    models = list(frame["model"].unique())
    short = short_names(models)
    runners = list(frame["runner"].unique())
    found = []
    for key, rows in frame.groupby(["runner", "model", "device"], sort=False):
        runner, model, device = map(str, key)
        parts = [device] if len(devices) > 1 or len(models) == 1 else []
        parts += [short[model]] if len(models) > 1 else []
        parts += [runner] if len(runners) > 1 else []
        place = models.index(model) + len(models) * runners.index(runner)
        color = PALETTE[devices.index(device) % len(PALETTE)]
        found.append((plotly_text(" · ".join(parts)), color, SYMBOLS[place % len(SYMBOLS)], rows))
    return found


def trade_off(frame: pd.DataFrame, mode: str) -> Figure:
    """Return throughput per device against speed per user, with the Pareto front.

    Parameters
    ----------
    frame : DataFrame
        Rows with derived columns (`findings.with_derived`).
    mode : str
        Which mode's rows; in prefill the speed is the TTFT.
    """
    axis, more_is_better = trade_off_axis(mode)
    rows = frame[(frame["mode"] == mode) & (frame["tokens_per_s"] > 0) & frame[axis].notna()]
    data: list[Figure] = []
    for name, color, symbol, group in groups(rows):
        for feasible in (True, False):
            points = group[group["feasible"] == feasible]
            if points.empty:
                continue
            data.append(
                {
                    **_points(points, axis, "tokens_per_s_per_device", name, color),
                    "mode": "markers",
                    "legendgroup": name,
                    "showlegend": bool(feasible or not group["feasible"].any()),
                    "meta": {"role": "feasible" if feasible else "stopped"},
                    "marker": {
                        "color": color,
                        "symbol": symbol if feasible else f"{symbol}-open",
                        "size": 9 if feasible else 6,
                        "opacity": 0.9 if feasible else 0.45,
                    },
                }
            )
    data.append(_front(rows, mode, axis, more_is_better=more_is_better))
    unit = "input tokens/s per device" if mode == "prefill" else "tokens/s per device"
    x_title = "TTFT, ms (less is better)" if mode == "prefill" else "tokens/s per user (1000 / TPOT)"
    return {
        "data": data,
        "layout": layout(x_title, unit, xaxis={"type": "log"}, yaxis={"rangemode": "tozero"}),
    }


def _front(rows: pd.DataFrame, mode: str, axis: str, *, more_is_better: bool) -> Figure:
    by_row = {int(row["row"]): row for row in rows.to_dict("records")}
    xs: list[float | None] = []
    ys: list[float | None] = []
    numbers: list[int | None] = []
    before = None
    for number in pareto_front_rows(rows, mode):
        row = by_row[number]
        here = (row["model"], row["workload"])
        if before not in (None, here):
            xs, ys, numbers = [*xs, None], [*ys, None], [*numbers, None]
        before = here
        xs.append(float(row[axis]))
        ys.append(float(row["tokens_per_s_per_device"]))
        numbers.append(number)
    return {
        "type": "scatter",
        "mode": "lines",
        "name": "Pareto front",
        "x": xs,
        "y": ys,
        "customdata": numbers,
        "hoverinfo": "skip",
        "line": {"color": MUTED_COLOR, "width": 2, "shape": "linear"},
        "meta": {"role": "front", "more_is_better": more_is_better},
    }


def pareto_front_rows(rows: pd.DataFrame, mode: str) -> list[int]:
    """Return the row numbers (column `row`) of the front of some rows."""
    numbers = list(rows["row"])
    return [int(numbers[place]) for place in pareto_front(rows, mode)]


def latency(frame: pd.DataFrame, mode: str, column: str) -> Figure:
    """Return TTFT or TPOT against concurrency, a line per deployment, with the limit.

    Parameters
    ----------
    frame : DataFrame
        Rows with derived columns.
    mode : str
        Which mode's rows.
    column : {"ttft_ms", "tpot_ms"}
        Which latency.
    """
    rows = frame[(frame["mode"] == mode) & (frame["tokens_per_s"] > 0) & (frame[column] > 0)]
    rows = rows[rows[column] != float("inf")]
    data = []
    for name, color, symbol, group in groups(rows):
        # One trace per device and model; deployments are lines in it, set apart by gaps.
        parts = [
            line.sort_values("concurrency", kind="stable")
            for _, line in group.groupby(series(group), sort=False)
        ]
        data.append(
            {
                **_points_with_gaps(parts, "concurrency", column, name),
                "mode": "lines+markers",
                "connectgaps": False,
                "line": {"color": color, "width": 1},
                "marker": {"color": color, "symbol": symbol, "size": 6},
                "meta": {"role": "line"},
            }
        )
    name = column[:4].upper()
    limits = [float(one) for one in sorted(rows[column.replace("_ms", "_limit_ms")].dropna().unique())]
    axes = {"xaxis": {"type": "log"}, "yaxis": {"type": "log"}}
    return {
        "data": data,
        "layout": layout(
            "concurrency (requests in flight)", f"{name}, ms", **axes,
            shapes=[_limit_line(value) for value in limits],
            annotations=[_limit_note(name, value) for value in limits],
        ),
    }  # fmt: skip


def _limit_line(value: float) -> Figure:
    line = {"color": LIMIT_COLOR, "width": 2, "dash": "dash"}
    return {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": value, "y1": value, "line": line}


def _limit_note(name: str, value: float) -> Figure:
    return {
        "xref": "paper", "x": 0, "xanchor": "left", "yref": "y", "y": math.log10(value), "yanchor": "bottom",
        "text": f"{name} limit {value:,g} ms", "showarrow": False, "font": {"color": LIMIT_COLOR},
    }  # fmt: skip


def _points(rows: pd.DataFrame, x: str, y: str, name: str, color: str) -> Figure:
    return {
        "type": "scatter",
        "name": name,
        "x": rounded(rows[x]),
        "y": rounded(rows[y]),
        "customdata": [int(row) for row in rows["row"]],
        "hovertemplate": "%{text}<extra></extra>",
    }


def _points_with_gaps(parts: list[pd.DataFrame], x: str, y: str, name: str) -> Figure:
    figure: Figure = {"type": "scatter", "name": name, "x": [], "y": [], "customdata": []}
    for index, part in enumerate(parts):
        for axis, values in (
            ("x", rounded(part[x])),
            ("y", rounded(part[y])),
            ("customdata", [int(row) for row in part["row"]]),
        ):
            figure[axis] += [*([None] if index else []), *values]
    figure["hovertemplate"] = "%{text}<extra></extra>"
    return figure


def rounded(values: Any) -> list[float | int | None]:
    """Return numbers to six digits, whole ones as they are; None for what is not finite."""
    return [_number(value) for value in values]


def _number(value: Any) -> float | int | None:
    if isinstance(value, int) or (hasattr(value, "dtype") and value.dtype.kind in "iu"):
        return int(value)
    number = float(value)
    if number != number or number in (float("inf"), float("-inf")):
        return None
    return float(f"{number:.6g}")


def with_hover(figure: Figure, texts: Mapping[int, str]) -> Figure:
    """Return a figure whose points show their rows' texts, for use outside the page."""
    data = [
        {**one, "text": [texts.get(row, "") for row in one["customdata"]]} if "customdata" in one else one
        for one in figure["data"]
    ]
    return {**figure, "data": data}
