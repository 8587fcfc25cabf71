"""What a run's rows say: the best deployments, the Pareto front, and what stopped the rest."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from pipeline.rows import WORKLOAD_COLUMNS, ranked
from pipeline.units import format_number
from stages.candidate import MODES

_SERIES_COLUMNS = (
    "mode", "runner", "model", "device", "parallelism", *WORKLOAD_COLUMNS, "max_batched_tokens",
    "num_mtp_tokens", "serving_cost_ms", "scheduler",
)  # fmt: skip


def workload_text(row: Mapping[Any, Any]) -> str:
    """Return a row's workload in words."""
    hit_rate = row["prefix_cache_hit_rate"]
    cached = f", {100 * hit_rate:g}% of the prompt cached" if hit_rate else ""
    lengths, inputs = row["input_length_bins"], f"{row['input_length']:,}"
    if not pd.isna(lengths):
        inputs += f" (mean of {lengths})"
    images = ""
    if not pd.isna(row["image_height"]):
        images = f", images of {row['image_height']:.0f} x {row['image_width']:.0f}"
    return f"{inputs} input and {row['output_length']:,} output tokens{images}{cached}"


def deployment_text(row: Mapping[Any, Any]) -> str:
    """Return what a row deploys, in words: devices, parallelism, token budget, load."""
    budget = "" if row["mode"] == "decode" else f", {row['max_batched_tokens']:,} batched tokens"
    return (
        f"{row['num_devices']} x {row['device']}, {row['parallelism']}{budget}, "
        f"batch {row['batch_size']} (concurrency {row['concurrency']})"
    )


def figures_text(row: Mapping[Any, Any]) -> str:
    """Return what a row achieves, in words."""
    parts = []
    for name in ("ttft_ms", "tpot_ms"):
        if not pd.isna(row[name]):
            parts.append(f"{name[:4].upper()} {format_number(row[name])} ms")
    kind = "input tokens/s" if row["mode"] == "prefill" else "tokens/s"
    parts.append(f"{format_number(row['tokens_per_s'])} {kind}")
    parts.append(f"{format_number(row['tokens_per_s_per_device'])} per device")
    parts.append(f"{format_number(row['memory_left_gb'])} GiB left")
    return ", ".join(parts)


def winners(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the best feasible row of each mode, workload, runner, model and device, in that order.

    The column `rank` is the row's place within its mode; modes, workloads and models stand in the order of
    the config, the devices of one model best first.
    """
    best = ranked(frame.assign(row=range(len(frame))))
    tops = best.drop_duplicates(["mode", "runner", "model", "device", *WORKLOAD_COLUMNS])
    # A row's place in the order of the config: that of the first row of its kind.
    order = pd.DataFrame(
        {
            "mode": [MODES.index(mode) for mode in frame["mode"]],
            "workload": frame.groupby(WORKLOAD_COLUMNS, sort=False, dropna=False).ngroup().to_numpy(),
            "runner": pd.factorize(frame["runner"])[0],
            "model": pd.factorize(frame["model"])[0],
        }
    )
    places = order.iloc[tops["row"]].assign(rank=tops["rank"].to_numpy()).reset_index(drop=True)
    sorted_places = places.sort_values(list(places.columns), kind="stable").index
    return tops.iloc[sorted_places].reset_index(drop=True)


def best_overall(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the best row per model and workload: aggregated where that is feasible, else of each half."""
    best = winners(frame)
    modes = ["aggregated"] if (best["mode"] == "aggregated").any() else list(best["mode"].unique())
    return best[best["mode"].isin(modes)].drop_duplicates(["mode", "model", *WORKLOAD_COLUMNS])


def answer(frame: pd.DataFrame) -> list[tuple[str, str, str]]:
    """Return the answer per model and workload: the question, the deployment, and its figures."""
    return [
        (
            f"Best {row['mode']} deployment of {row['model']} for {workload_text(row)}",
            deployment_text(row),
            figures_text(row),
        )
        for row in best_overall(frame).to_dict("records")
    ]


def short_names(names: Iterable[str]) -> dict[str, str]:
    """Return names for charts: the last part of a path or repository name, where that is unique."""
    full = list(dict.fromkeys(names))
    last = {name: name.removesuffix("/config.json").rsplit("/", 1)[-1] for name in full}
    return last if len(set(last.values())) == len(full) else {name: name for name in full}


def user_speed(frame: pd.DataFrame) -> pd.Series:
    """Return the output tokens per second that one user sees: 1000 / TPOT."""
    with np.errstate(divide="ignore"):
        return 1000 / frame["tpot_ms"].astype("float64")


def trade_off_axis(mode: str) -> tuple[str, bool]:
    """Return what a mode trades throughput for: a column, and whether more of it is better."""
    return ("ttft_ms", False) if mode == "prefill" else ("tokens_per_s_per_user", True)


def pareto_front(frame: pd.DataFrame, mode: str) -> list[int]:
    """Return the positions of a mode's rows that no other beats in both throughput and speed.

    Fronts are separate per model and workload and hold feasible rows only; of rows with equal figures the
    first is on it. Positions are those in `frame`, front by front, from low to high on the trade-off's axis.
    """
    axis, more_is_better = trade_off_axis(mode)
    rows = with_derived(frame)
    rows = rows[(rows["mode"] == mode) & rows["feasible"]]
    front: list[int] = []
    for _, group in rows.groupby(["model", *WORKLOAD_COLUMNS], sort=False, dropna=False):
        speed = group[axis] if more_is_better else -group[axis]
        order = group.assign(speed=speed).sort_values(
            ["speed", "tokens_per_s_per_device"], ascending=[False, False], kind="stable"
        )
        best = -math.inf
        kept = []
        for row, value in zip(order["row"], order["tokens_per_s_per_device"], strict=True):
            if value > best:
                best = value
                kept.append(int(row))
        front += kept[::-1] if more_is_better else kept
    return front


def with_derived(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the rows with their number (`row`), the speed per user and the workload in words."""
    rows = frame.assign(row=range(len(frame)), tokens_per_s_per_user=user_speed(frame))
    texts: dict[tuple[Any, ...], str] = {}
    keys = _workload_keys(frame)
    for key, row in zip(keys, frame[WORKLOAD_COLUMNS].to_dict("records"), strict=True):
        if key not in texts:
            texts[key] = workload_text(row)
    return rows.assign(workload=[texts[key] for key in keys])


def _workload_keys(frame: pd.DataFrame) -> list[tuple[Any, ...]]:
    """Return each row's workload as a tuple that equals that of the same workload, nulls too."""
    columns = [frame[name].astype(object).where(frame[name].notna(), None) for name in WORKLOAD_COLUMNS]
    return list(zip(*columns, strict=True))


def series(frame: pd.DataFrame) -> pd.Series:
    """Return a number per row that is the same for one deployment under all its loads."""
    columns = [name for name in _SERIES_COLUMNS if name in frame]
    return frame.groupby(columns, sort=False, dropna=False).ngroup()


def stops(frame: pd.DataFrame) -> pd.DataFrame:
    """Return, per deployment that stops somewhere, its first stopped row in the order of the load.

    The column `largest_fit` is the largest feasible batch size below it, 0 for none, and `why` the reason
    in words.
    """
    rows = frame.assign(row=range(len(frame)))
    found: list[dict[Hashable, Any]] = []
    for _, group in rows.groupby(series(frame), sort=False):
        stopped = group[~group["feasible"]].sort_values("batch_size", kind="stable")
        if stopped.empty:
            continue
        first = stopped.iloc[0].to_dict()
        fits = group[group["feasible"] & (group["batch_size"] < first["batch_size"])]["batch_size"]
        found.append({**first, "largest_fit": int(fits.max()) if len(fits) else 0, "why": why(first)})
    return pd.DataFrame(found, columns=[*rows.columns, "largest_fit", "why"])


def nearest_stops(frame: pd.DataFrame) -> list[dict[Hashable, Any]]:
    """Return, per mode and deployment, the stopped row that is nearest to feasible."""
    groups = ["mode", "model", "device", "parallelism"]
    stopped = frame[~frame["feasible"]]
    return [min(rows.to_dict("records"), key=_excess) for _, rows in stopped.groupby(groups, sort=False)]


def why(row: Mapping[Any, Any]) -> str:
    """Return why a row is not feasible, in words."""
    reason = str(row["stop_reason"])
    if reason.endswith("_oom"):
        lacking = format_number(-row["memory_left_gb"])
        return f"out of memory by {lacking} GiB at the {row['stop_shape']}"
    name = reason.removesuffix("_limit")
    value, limit = (format_number(row[f"{name}{end}"]) for end in ("_ms", "_limit_ms"))
    return f"{name.upper()} is {value} ms, over the limit of {limit} ms"


def _excess(row: Mapping[Any, Any]) -> tuple[bool, float]:
    """Order stopped rows by how far they are from feasible: limits before memory."""
    if row["memory_left_gb"] < 0:
        return True, -row["memory_left_gb"]
    ratios = [
        row[f"{name}_ms"] / row[f"{name}_limit_ms"]
        for name in ("ttft", "tpot")
        if not math.isnan(row[f"{name}_limit_ms"]) and not math.isnan(row[f"{name}_ms"])
    ]
    return False, max(ratios, default=math.inf)
