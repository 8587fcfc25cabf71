"""Charts of the best deployments: memory, bound types, stops; and where the time of one goes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from cache.shapes import BOUND_TYPES
from pipeline.findings import short_names
from pipeline.report.figures import MUTED_COLOR, PALETTE, Figure, layout, plotly_text, rounded

MEMORY_PARTS = {
    "weight_gb": ("weights", PALETTE[0]),
    "kv_cache_gb": ("KV cache", PALETTE[1]),
    "activation_gb": ("activations", PALETTE[2]),
    "reserved_gb": ("reserved", MUTED_COLOR),
    "memory_left_gb": ("left", "rgba(138,143,152,0.25)"),
}
BOUND_LABELS = dict(
    zip(
        BOUND_TYPES,
        (
            ("memory", PALETTE[0]),
            ("communication", PALETTE[1]),
            ("matrix compute", PALETTE[2]),
            ("vector compute", PALETTE[4]),
        ),
        strict=True,
    )
)
STOP_LABELS = {
    "feasible": ("feasible", PALETTE[2]),
    "ttft_limit": ("over the TTFT limit", PALETTE[1]),
    "tpot_limit": ("over the TPOT limit", PALETTE[6]),
    "prefill_oom": ("out of memory in prefill", PALETTE[3]),
    "decode_oom": ("out of memory in decode", PALETTE[7]),
}


def short_label(row: Mapping[Any, Any], frame: pd.DataFrame) -> str:
    """Return a name for a best row that tells it apart from the others in `frame`."""
    parts = [row["device"]]
    if frame["model"].nunique() > 1:
        parts.append(short_names(frame["model"])[row["model"]])
    if frame["runner"].nunique() > 1:
        parts.append(row["runner"])
    if frame["workload"].nunique() > 1:
        parts.append(_short_workload(row, frame))
    return " · ".join([*map(str, parts), str(row["mode"])])


def _short_workload(row: Mapping[Any, Any], frame: pd.DataFrame) -> str:
    """Return a workload as input/output tokens, or in full where that does not tell all apart."""
    lengths = frame["input_length"].astype(str) + "/" + frame["output_length"].astype(str)
    short = lengths + [f", {100 * rate:g}% cached" if rate else "" for rate in frame["prefix_cache_hit_rate"]]
    apart = short.nunique() == frame["workload"].nunique()
    return str(short[frame["workload"] == row["workload"]].iloc[0]) if apart else str(row["workload"])


def memory(best: pd.DataFrame) -> Figure:
    """Return the memory of one device per best row, by its parts, GiB."""
    return _stacked(best, MEMORY_PARTS, "GiB per device", 1.0)


def bounds(best: pd.DataFrame) -> Figure:
    """Return the time of each best row by what bounds it, percent."""
    parts = {f"{name}_share": label for name, label in BOUND_LABELS.items()}
    return _stacked(best, parts, "% of time", 100.0)


def _stacked(best: pd.DataFrame, parts: Mapping[str, tuple[str, str]], unit: str, factor: float) -> Figure:
    labels = [plotly_text(short_label(row, best)) for row in best.to_dict("records")]
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "name": name,
            "x": rounded(best[column] * factor),
            "y": labels,
            "marker": {"color": color},
            "hovertemplate": f"%{{y}}<br>{name}: %{{x:.2f}} {unit.split()[0]}<extra></extra>",
        }
        for column, (name, color) in parts.items()
        if best[column].notna().any() and (best[column] != 0).any()
    ]
    return {"data": data, "layout": _bars_layout(len(labels), unit)}


def _bars_layout(bars: int, unit: str) -> Figure:
    return layout(
        unit, "", barmode="stack", height=130 + 26 * bars, bargap=0.25,
        yaxis={"autorange": "reversed", "type": "category"},
    )  # fmt: skip


def stop_counts(frame: pd.DataFrame, most: int = 60) -> Figure:
    """Return how many candidates of each model, device and mode are feasible, and what stops the rest.

    At most `most` bars are shown.
    """
    outcome = frame["stop_reason"].fillna("feasible")
    groups = frame.assign(outcome=outcome).groupby(["mode", "model", "device"], sort=False)
    labels: list[str] = []
    counts: list[pd.Series] = []
    models = short_names(frame["model"])
    for key, rows in groups:
        mode, model, device = map(str, key)
        labels.append(plotly_text(" · ".join([device, *([models[model]] if len(models) > 1 else []), mode])))
        counts.append(rows["outcome"].value_counts())
        if len(labels) == most:
            break
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "name": name,
            "x": [int(count.get(reason, 0)) for count in counts],
            "y": labels,
            "marker": {"color": color},
            "hovertemplate": f"%{{y}}<br>%{{x}} {name}<extra></extra>",
        }
        for reason, (name, color) in STOP_LABELS.items()
        if any(reason in count for count in counts)
    ]
    return {"data": data, "layout": _bars_layout(len(labels), "candidates")}


def chunks(trace: Mapping[str, Any]) -> Figure:
    """Return the latency of each prefill chunk as the context grows, by bound type where known."""
    columns: Mapping[str, Sequence[Any]] = trace["chunks"]
    parts = {f"{name}_ms": label for name, label in BOUND_LABELS.items() if f"{name}_ms" in columns}
    known = bool(parts)
    shown = parts or {"latency_ms": ("forward pass", PALETTE[0])}
    widths = list(columns["query_len"])
    starts = [seq - width for seq, width in zip(columns["seq_len"], widths, strict=True)]
    details = [
        f"{requests} x {query:,} tokens up to {seq:,}: {latency:,.4g} ms"
        for requests, query, seq, latency in zip(
            columns["requests"], widths, columns["seq_len"], columns["latency_ms"], strict=True
        )
    ]
    data = [
        {
            "type": "bar",
            "name": name,
            "x": starts,
            "offset": 0,
            "width": widths,
            "y": columns[column],
            "text": details,
            "textposition": "none",
            "marker": {"color": color, "line": {"width": 0}},
            "hovertemplate": f"%{{text}}<br>{name}: %{{y:.4g}} ms<extra></extra>",
        }
        for column, (name, color) in shown.items()
    ]
    title = "latency of the pass, ms" if known else "latency, ms"
    return {
        "data": data,
        "layout": layout("context, tokens", title, barmode="stack", bargap=0, height=360),
    }


def timeline(trace: Mapping[str, Any]) -> Figure:
    """Return the schedule over time: requests in each step's prefill and decode pass."""
    columns: Mapping[str, Sequence[Any]] = trace["segments"]
    times_s = [start / 1000 for start in columns["start_ms"]]
    if columns["end_ms"]:
        times_s.append(columns["end_ms"][-1] / 1000)
    data = []
    details = [
        f"{steps:,} steps of {(end - start) / steps:,.4g} ms"
        for start, end, steps in zip(columns["start_ms"], columns["end_ms"], columns["steps"], strict=True)
    ]
    for index, (name, color) in enumerate((("prefill", PALETTE[1]), ("decode", PALETTE[0]))):
        values = list(columns[f"{name}_requests"])
        data.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": f"{name} requests per step",
                "x": times_s,
                "y": [*values, *values[-1:]],
                "text": [*details, *details[-1:]],
                "line": {"shape": "hv", "color": color, "width": 1.5},
                "fill": "tozeroy",
                "xaxis": "x",
                "yaxis": "y" if index == 0 else "y2",
                "hovertemplate": f"{name}: %{{y:.4g}} requests at %{{x:.4g}} s<br>%{{text}}<extra></extra>",
            }
        )
    axis = {"automargin": True, "zeroline": False, "rangemode": "tozero"}
    return {
        "data": data,
        "layout": layout(
            "time, s", "prefill", height=360,
            xaxis={"anchor": "y2"},
            yaxis={**axis, "domain": [0.56, 1]},
            yaxis2={**axis, "domain": [0, 0.44], "title": {"text": "decode"}, "anchor": "x"},
        ),
    }  # fmt: skip
