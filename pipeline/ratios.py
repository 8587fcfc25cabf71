"""Prefill/decode ratio rows of a run, from its result rows."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from pipeline.rows import WORKLOAD_COLUMNS
from stages.pd_ratio import Half, RatioRow, ratio_rows

_SAME = [
    "runner",
    "model",
    "device",
    *WORKLOAD_COLUMNS,
    "num_mtp_tokens",
    "speculation",
    "speculation_block_size",
    "speculation_accepted_length",
]
_HALF = ["batch_size", "concurrency", "num_devices", "parallelism", "device", "kv_transfer_ms"]


def run_ratios(frame: pd.DataFrame) -> Iterator[tuple[dict[str, object], list[RatioRow]]]:
    """Yield, per model, device and workload whose both halves have feasible rows, the ranked pairs.

    Parameters
    ----------
    frame : DataFrame
        Result rows of a run.
    """
    feasible = frame[frame["feasible"]]
    for values, rows in feasible.groupby(_SAME, sort=False, dropna=False):
        prefills = _halves(rows[rows["mode"] == "prefill"], "ttft_ms")
        decodes = _halves(rows[rows["mode"] == "decode"], "tpot_ms")
        if prefills and decodes:
            group = dict(zip(_SAME, values, strict=True))
            yield group, ratio_rows(prefills, decodes, int(str(group["output_length"])))


def _halves(rows: pd.DataFrame, latency: str) -> list[Half]:
    """Return the distinct halves: decode rows repeat for each max_batched_tokens, which decode ignores."""
    halves = [
        Half(
            row[latency],
            row["batch_size"],
            row["concurrency"],
            row["num_devices"],
            row["parallelism"],
            row["device"],
            0.0 if pd.isna(row["kv_transfer_ms"]) else row["kv_transfer_ms"],
        )
        for row in rows[[latency, *_HALF]].to_dict("records")
    ]
    return list(dict.fromkeys(halves))
