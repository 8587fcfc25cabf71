"""Charts of a run's rows as plain plotly figures (dicts), the same for the page and for notebooks.

Every trace of points carries the numbers of its rows in `customdata`, by which the page filters it. Names go
through `plotly_text`, because plotly reads a little HTML in every text.
"""

from __future__ import annotations

import html
import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from pipeline.findings import (
    deployment_text,
    figures_text,
    pareto_front,
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
_HOVER = "%{text}<extra></extra>"
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
        "hoverlabel": {"align": "left"},
        "height": 420,
        "font": {"family": "system-ui, sans-serif", "size": 13},
    }
    for name, value in more.items():
        base[name] = {**base[name], **value} if isinstance(base.get(name), dict) else value
    return base


class Style(NamedTuple):
    """How the points of one runner, model and device look."""

    name: str
    color: str
    symbol: str


Styles = dict[tuple[str, str, str], Style]


def styles(frame: pd.DataFrame) -> Styles:
    """Return the look of each runner, model and device of a run.

    Colours tell devices apart, symbols models and runners; names leave out what all rows share.
    """
    devices, models, runners = (list(frame[name].unique()) for name in ("device", "model", "runner"))
    short = short_names(models)
    found = {}
    for runner, model, device in itertools.product(runners, models, devices):
        parts = [device] if len(devices) > 1 or len(models) == 1 else []
        parts += [short[model]] if len(models) > 1 else []
        parts += [runner] if len(runners) > 1 else []
        symbol = SYMBOLS[(models.index(model) + len(models) * runners.index(runner)) % len(SYMBOLS)]
        color = PALETTE[devices.index(device) % len(PALETTE)]
        found[runner, model, device] = Style(plotly_text(" · ".join(parts)), color, symbol)
    return found


def _groups(rows: pd.DataFrame, looks: Styles) -> Iterator[tuple[Style, pd.DataFrame]]:
    """Yield the rows of each runner, model and device, and how they look."""
    for key, group in rows.groupby(["runner", "model", "device"], sort=False):
        runner, model, device = map(str, key)
        yield looks[runner, model, device], group


def trade_off(frame: pd.DataFrame, mode: str, looks: Styles) -> Figure:
    """Return throughput per device against speed per user, with the Pareto front.

    Parameters
    ----------
    frame : DataFrame
        Rows with derived columns (`findings.with_derived`).
    mode : str
        Which mode's rows; in prefill the speed is the TTFT.
    looks : mapping
        See `styles`.
    """
    axis, more_is_better = trade_off_axis(mode)
    rows = frame[(frame["mode"] == mode) & (frame["tokens_per_s"] > 0) & frame[axis].notna()]
    data: list[Figure] = []
    for look, group in _groups(rows, looks):
        feasible = group["feasible"].to_numpy()
        for points, is_feasible in ((group[feasible], True), (group[~feasible], False)):
            if len(points):
                shown = bool(is_feasible or not feasible.any())
                data.append(_cloud(points, axis, look, feasible=is_feasible, in_legend=shown))
    if data:
        data.append(_front(rows, mode, axis, more_is_better=more_is_better))
    unit = "input tokens/s per device" if mode == "prefill" else "tokens/s per device"
    x_title = "TTFT, ms (less is better)" if mode == "prefill" else "tokens/s per user (1000 / TPOT)"
    return {
        "data": data,
        "layout": layout(x_title, unit, xaxis={"type": "log"}, yaxis={"rangemode": "tozero"}),
    }


def _cloud(points: pd.DataFrame, axis: str, look: Style, *, feasible: bool, in_legend: bool) -> Figure:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": look.name,
        "x": rounded(points[axis]),
        "y": rounded(points["tokens_per_s_per_device"]),
        "customdata": points["row"].tolist(),
        "hovertemplate": _HOVER,
        "legendgroup": look.name,
        "showlegend": in_legend,
        "meta": {"role": "feasible" if feasible else "stopped"},
        "marker": {
            "color": look.color,
            "symbol": look.symbol if feasible else f"{look.symbol}-open",
            "size": 9 if feasible else 6,
            "opacity": 0.9 if feasible else 0.45,
        },
    }


def _front(rows: pd.DataFrame, mode: str, axis: str, *, more_is_better: bool) -> Figure:
    on_front = rows.set_index("row").loc[pareto_front(rows, mode)]
    lines = pd.factorize(pd.MultiIndex.from_frame(on_front[["model", "workload_number"]]))[0]
    return {
        "type": "scatter",
        "mode": "lines",
        "name": "Pareto front",
        "x": _with_gaps(rounded(on_front[axis]), lines),
        "y": _with_gaps(rounded(on_front["tokens_per_s_per_device"]), lines),
        "customdata": _with_gaps(on_front.index.tolist(), lines),
        "hoverinfo": "skip",
        "line": {"color": MUTED_COLOR, "width": 2, "shape": "linear"},
        "meta": {"role": "front", "more_is_better": more_is_better},
    }


def latency(frame: pd.DataFrame, mode: str, column: str, looks: Styles) -> Figure:
    """Return TTFT or TPOT against concurrency, a line per deployment, with the limit.

    Parameters
    ----------
    frame : DataFrame
        Rows with derived columns.
    mode : str
        Which mode's rows.
    column : {"ttft_ms", "tpot_ms"}
        Which latency.
    looks : mapping
        See `styles`.
    """
    reached = (frame["tokens_per_s"] > 0) & (frame[column] > 0) & (frame[column] < math.inf)
    rows = frame[(frame["mode"] == mode) & reached]
    data = [_lines(group, column, look) for look, group in _groups(rows, looks)]
    name = column[:4].upper()
    limits = [float(one) for one in sorted(rows[column.replace("_ms", "_limit_ms")].dropna().unique())]
    return {
        "data": data,
        "layout": layout(
            "concurrency (requests in flight)", f"{name}, ms",
            xaxis={"type": "log"},
            yaxis={"type": "log"},
            shapes=[_limit_line(value) for value in limits],
            annotations=[_limit_note(name, value) for value in limits],
        ),
    }  # fmt: skip


def _lines(group: pd.DataFrame, column: str, look: Style) -> Figure:
    """Return one trace for a device and model; its deployments are lines set apart by gaps."""
    points = group.sort_values(["series", "concurrency"], kind="stable")
    lines = points["series"].to_numpy()
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": look.name,
        "x": _with_gaps(points["concurrency"].tolist(), lines),
        "y": _with_gaps(rounded(points[column]), lines),
        "customdata": _with_gaps(points["row"].tolist(), lines),
        "hovertemplate": _HOVER,
        "connectgaps": False,
        "line": {"color": look.color, "width": 1},
        "marker": {"color": look.color, "symbol": look.symbol, "size": 6},
        "meta": {"role": "line"},
    }


def _limit_line(value: float) -> Figure:
    line = {"color": LIMIT_COLOR, "width": 2, "dash": "dash"}
    return {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": value, "y1": value, "line": line}


def _limit_note(name: str, value: float) -> Figure:
    return {
        "xref": "paper", "x": 0, "xanchor": "left", "yref": "y", "y": math.log10(value), "yanchor": "bottom",
        "text": f"{name} limit {value:,g} ms", "showarrow": False, "font": {"color": LIMIT_COLOR},
    }  # fmt: skip


def _with_gaps(values: list[Any], lines: npt.NDArray[Any]) -> list[Any]:
    """Return the values with None where the next line begins."""
    found: list[Any] = []
    for place, value in enumerate(values):
        if place and lines[place] != lines[place - 1]:
            found.append(None)
        found.append(value)
    return found


def rounded(values: Any) -> list[float | int | None]:
    """Return numbers to six digits, whole ones as they are; None for what is not finite."""
    array = np.asarray(values)
    if array.dtype.kind in "iu":
        return [int(value) for value in array]
    return [float(f"{value:.6g}") if math.isfinite(value) else None for value in array.astype("float64")]


def with_hover(figure: Figure, texts: Mapping[int, str]) -> Figure:
    """Return a figure whose points show their rows' texts, for use outside the page."""
    data = [
        {**one, "text": [texts.get(row, "") for row in one["customdata"]]} if "customdata" in one else one
        for one in figure["data"]
    ]
    return {**figure, "data": data}
