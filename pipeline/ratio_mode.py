"""What a run with a ratio section adds: the file of ranked pairs, and how its devices are split."""

from __future__ import annotations

from typing import Any

import pandas as pd
from rich.console import Console
from rich.markup import escape

from pipeline.ratios import run_ratios
from pipeline.units import format_number
from stages.pd_ratio import Half, RatioRow, Split, best_split, nearest_split

MOST_PAIRS = 1000
"""Pairs per model, device and workload that the file keeps, from the best."""


def ratio_frame(frame: pd.DataFrame, total_devices: int | None) -> pd.DataFrame:
    """Return the ranked pairs of a run, with their splits where a total number of devices is given.

    Parameters
    ----------
    frame : DataFrame
        Result rows.
    total_devices : int or None
        Devices to split into instances.
    """
    rows = [
        {"rank": rank, **group, **_pair(pair), **_splits(pair, total_devices)}
        for group, pairs in run_ratios(frame)
        for rank, pair in enumerate(pairs[:MOST_PAIRS], start=1)
    ]
    return pd.DataFrame(rows, columns=list(rows[0]) if rows else ["rank"])


def ratio_file(frame: pd.DataFrame, total_devices: int | None) -> bytes:
    """Return the bytes of ratio.csv."""
    text: str = ratio_frame(frame, total_devices).to_csv(index=False, lineterminator="\n")
    return text.encode()


def print_splits(frame: pd.DataFrame, total_devices: int, console: Console) -> None:
    """Print how the best pair of each model, device and workload shares `total_devices`."""
    for text in split_sentences(frame, total_devices):
        console.print(escape(text), soft_wrap=True)


def split_sentences(frame: pd.DataFrame, total_devices: int) -> list[str]:
    """Return how the best pair of each model, device and workload shares `total_devices`, in words."""
    sentences = []
    for group, pairs in run_ratios(frame):
        if not pairs:
            continue
        nearest, best = nearest_split(pairs[0], total_devices), best_split(pairs[0], total_devices)
        where = f"{group['model']} on {total_devices} x {group['device']}"
        if not best.decodes:
            text = "not even one instance of each half fits."
        elif nearest == best:
            text = f"{_instances(best)}, both nearest to the ratio and fastest."
        else:
            text = (
                f"fastest are {_instances(best)}; nearest to the ratio are {_instances(nearest)}, "
                f"{100 * (1 - nearest.qps / best.qps):.1f}% less."
            )
        sentences.append(f"{where}: {text}")
    return sentences


def _instances(split: Split) -> str:
    return f"{split.prefills} prefill + {split.decodes} decode instances ({format_number(split.qps)} req/s)"


def _pair(pair: RatioRow) -> dict[str, Any]:
    return {
        **_half("prefill", pair.prefill),
        **_half("decode", pair.decode),
        "ttft_ms": pair.prefill.latency_ms,
        "kv_transfer_ms": pair.prefill.kv_transfer_ms,
        "tpot_ms": pair.decode.latency_ms,
        "p_qps": pair.p_qps,
        "d_qps": pair.d_qps,
        "pd_ratio": pair.pd_ratio,
        "balanced_qps": pair.balanced_qps,
    }


def _half(name: str, half: Half) -> dict[str, Any]:
    return {
        f"{name}_parallelism": half.parallelism,
        f"{name}_devices": half.num_devices,
        f"{name}_batch_size": half.batch_size,
        f"{name}_concurrency": half.concurrency,
    }


def _splits(pair: RatioRow, total_devices: int | None) -> dict[str, Any]:
    if total_devices is None:
        return {}
    columns: dict[str, Any] = {}
    for name, split in (
        ("nearest", nearest_split(pair, total_devices)),
        ("best", best_split(pair, total_devices)),
    ):
        columns |= {
            f"{name}_prefill_instances": split.prefills,
            f"{name}_decode_instances": split.decodes,
            f"{name}_total_qps": split.qps,
        }
    return columns
