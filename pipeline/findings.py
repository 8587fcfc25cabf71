"""What a run's rows say: the best deployments, the Pareto front, and what stopped the rest."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from pipeline.rows import SCHEMA, WORKLOAD_COLUMNS, ranked
from pipeline.units import format_number
from stages.candidate import MODES

_LOAD_COLUMNS = {"batch_size", "concurrency"}
_NO_GROUPS = {"cell", "effective_input_length", "mtp_acceptance_rate", "ttft_limit_ms", "tpot_limit_ms"}
_SERIES_COLUMNS = [
    name for name in SCHEMA.names[: SCHEMA.names.index("feasible")] if name not in _LOAD_COLUMNS | _NO_GROUPS
]
"""The inputs of a row, less its load: what tells deployments under rising load apart."""


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


def load_text(row: Mapping[Any, Any]) -> str:
    """Return a row's batch and its token budget, in short."""
    budget = "" if row["mode"] == "decode" else f", budget {row['max_batched_tokens']:,}"
    return f"batch {row['batch_size']:,}{budget}"


def devices_text(row: Mapping[Any, Any]) -> str:
    """Return a row's devices and its parallel groups of more than one, in short."""
    return f"{row['num_devices']} x {row['device']} {short_parallelism(row['parallelism'])}"


def short_parallelism(text: str) -> str:
    """Return the parallel groups of more than one device."""
    groups = text.split(" | ")
    return " ".join(group for group in groups if not group.endswith("=1")) or groups[0]


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


def with_derived(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a run's rows with what follows from them; rows that have it already are returned as they are.

    The columns are `row` (the row's number in the run), `tokens_per_s_per_user` (1000 / TPOT), `workload`
    (in words), `workload_number` (in the order of the config) and `series` (the same for one deployment
    under all its loads).
    """
    if "series" in frame:
        return frame
    numbers = frame.groupby(WORKLOAD_COLUMNS, sort=False, dropna=False).ngroup().to_numpy()
    firsts = frame.iloc[np.unique(numbers, return_index=True)[1]]
    texts = np.array([workload_text(row) for row in firsts.to_dict("records")], dtype=object)
    columns = [name for name in _SERIES_COLUMNS if name in frame]
    with np.errstate(divide="ignore"):
        per_user = 1000 / frame["tpot_ms"].astype("float64")
    return frame.assign(
        row=range(len(frame)),
        tokens_per_s_per_user=per_user,
        workload=texts[numbers] if len(frame) else [],
        workload_number=numbers,
        series=frame.groupby(columns, sort=False, dropna=False).ngroup(),
    )


def winners(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the best feasible row of each mode, workload, runner, model and device, in that order.

    The column `rank` is the row's place within its mode; modes, workloads and models stand in the order of
    the config, the devices of one model best first. The rows have the columns of `with_derived`.
    """
    rows = with_derived(frame)
    tops = ranked(rows).drop_duplicates(["mode", "workload_number", "runner", "model", "device"])
    places = pd.DataFrame(
        {
            "mode": [MODES.index(mode) for mode in tops["mode"]],
            "workload": tops["workload_number"].to_numpy(),
            "runner": _first_places(rows["runner"], tops["runner"]),
            "model": _first_places(rows["model"], tops["model"]),
            "rank": tops["rank"].to_numpy(),
        }
    )
    return tops.iloc[places.sort_values(list(places.columns), kind="stable").index].reset_index(drop=True)


def _first_places(column: pd.Series, values: pd.Series) -> list[int]:
    """Return where each of `values` first stands among the distinct values of `column`."""
    places = {value: place for place, value in enumerate(column.unique())}
    return [places[value] for value in values]


def best_overall(best: pd.DataFrame) -> pd.DataFrame:
    """Return the best of `winners` per model and workload: aggregated if any is, else of each half."""
    modes = ["aggregated"] if (best["mode"] == "aggregated").any() else list(best["mode"].unique())
    rows = best[best["mode"].isin(modes)].sort_values("rank", kind="stable")
    return rows.drop_duplicates(["mode", "model", "workload_number"]).sort_index()


def answer(best: pd.DataFrame) -> list[tuple[str, str, str]]:
    """Return the answer per model and workload: the question, the deployment, and its figures.

    `best` is what `winners` returns.
    """
    several_runners = best["runner"].nunique() > 1
    return [
        (
            f"Best {row['mode']} deployment of {row['model']} for {workload_text(row)}",
            deployment_text(row) + (f", by the {row['runner']} runner" if several_runners else ""),
            figures_text(row),
        )
        for row in best_overall(best).to_dict("records")
    ]


def short_names(names: Iterable[str]) -> dict[str, str]:
    """Return names for charts: the last part of a path or repository name, where that is unique."""
    full = list(dict.fromkeys(names))
    last = {name: name.removesuffix("/config.json").rsplit("/", 1)[-1] for name in full}
    return last if len(set(last.values())) == len(full) else {name: name for name in full}


def trade_off_axis(mode: str) -> tuple[str, bool]:
    """Return what a mode trades throughput for: a column, and whether more of it is better."""
    return ("ttft_ms", False) if mode == "prefill" else ("tokens_per_s_per_user", True)


def pareto_front(frame: pd.DataFrame, mode: str) -> list[int]:
    """Return the numbers of a mode's rows that no other beats in both throughput and speed.

    Fronts are separate per model and workload and hold feasible rows only; of rows with equal figures the
    first is on it. Numbers are those of the column `row`, front by front, from low to high on the axis.
    """
    axis, more_is_better = trade_off_axis(mode)
    rows = with_derived(frame)
    rows = rows[(rows["mode"] == mode) & rows["feasible"]]
    front: list[int] = []
    for _, group in rows.groupby(["model", "workload_number"], sort=False):
        order = group[["row", axis, "tokens_per_s_per_device"]].sort_values(
            [axis, "tokens_per_s_per_device"], ascending=[not more_is_better, False], kind="stable"
        )
        best = -math.inf
        kept = []
        for row, value in zip(order["row"], order["tokens_per_s_per_device"], strict=True):
            if value > best:
                best = value
                kept.append(int(row))
        front += kept[::-1] if more_is_better else kept
    return front


def stops(frame: pd.DataFrame) -> pd.DataFrame:
    """Return, per deployment that stops somewhere, its first stopped row in the order of the load.

    The column `largest_fit` is the largest feasible batch size below it, 0 for none, and `why` the reason
    in words.
    """
    rows = with_derived(frame).sort_values(["series", "batch_size"], kind="stable")
    firsts = rows[~rows["feasible"]].drop_duplicates("series")
    first_batch = rows["series"].map(firsts.set_index("series")["batch_size"])
    fits = rows[rows["feasible"] & (rows["batch_size"] < first_batch)].groupby("series")["batch_size"].max()
    return firsts.assign(
        largest_fit=firsts["series"].map(fits).fillna(0).astype("int64"),
        why=[why(row) for row in firsts.to_dict("records")],
    )


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
