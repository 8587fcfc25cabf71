"""Result rows: one per candidate, every input and output a typed column."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import pandas as pd
import pyarrow as pa

from cache.shapes import BOUND_TYPES
from pipeline.cells import Cell
from pipeline.evaluated import Evaluated, SearchNote
from stages.aggregate import UNKNOWN_SOURCE
from stages.candidate import Candidate
from stages.result import CandidateResult
from stages.speculation import Speculation
from stages.workload import Image

SOURCE_KINDS = ("measured", "interpolated", "analytic", UNKNOWN_SOURCE)

SCHEMA = pa.schema(
    [
        ("cell", pa.int64()),
        ("mode", pa.string()),
        ("runner", pa.string()),
        ("model", pa.string()),
        ("device", pa.string()),
        ("parallelism", pa.string()),
        ("tp", pa.int64()),
        ("dp", pa.int64()),
        ("pp", pa.int64()),
        ("ep", pa.int64()),
        ("moe_tp", pa.int64()),
        ("moe_dp", pa.int64()),
        ("num_devices", pa.int64()),
        ("input_length", pa.int64()),
        ("input_length_bins", pa.string()),
        ("output_length", pa.int64()),
        ("image_batch_size", pa.int64()),
        ("image_height", pa.int64()),
        ("image_width", pa.int64()),
        ("prefix_cache_hit_rate", pa.float64()),
        ("effective_input_length", pa.int64()),
        ("max_batched_tokens", pa.int64()),
        ("num_mtp_tokens", pa.int64()),
        ("mtp_acceptance_rate", pa.list_(pa.float64())),
        ("speculation", pa.string()),
        ("speculation_block_size", pa.int64()),
        ("speculation_accepted_length", pa.float64()),
        ("serving_cost_ms", pa.float64()),
        ("scheduler", pa.string()),
        ("batch_size", pa.int64()),
        ("concurrency", pa.int64()),
        ("ttft_limit_ms", pa.float64()),
        ("tpot_limit_ms", pa.float64()),
        ("feasible", pa.bool_()),
        ("stop_reason", pa.string()),
        ("stop_shape", pa.string()),
        ("ttft_ms", pa.float64()),
        ("tpot_ms", pa.float64()),
        ("tokens_per_s", pa.float64()),
        ("tokens_per_s_per_device", pa.float64()),
        ("memory_left_gb", pa.float64()),
        ("memory_total_gb", pa.float64()),
        ("weight_gb", pa.float64()),
        ("kv_cache_gb", pa.float64()),
        ("activation_gb", pa.float64()),
        ("reserved_gb", pa.float64()),
        ("prefill_num_chunks", pa.int64()),
        ("forward_shape_count", pa.int64()),
        ("prefill_breakdown", pa.string()),
        ("decode_breakdown", pa.string()),
        *((f"{name}_share", pa.float64()) for name in BOUND_TYPES),
        *((f"{kind}_share", pa.float64()) for kind in SOURCE_KINDS),
        ("kv_transfer_ms", pa.float64()),
        ("visit", pa.int64()),
        ("bisection_batch_size", pa.int64()),
        ("bisection_loss", pa.float64()),
        ("identity", pa.string()),
    ]
)

WORKLOAD_COLUMNS = [
    "input_length", "input_length_bins", "output_length",
    "image_batch_size", "image_height", "image_width", "prefix_cache_hit_rate",
]  # fmt: skip
"""What tells workloads apart; null where a workload has no such thing."""

BEST_COLUMNS = [
    "rank", "mode", "runner", "model", "device", "parallelism", "num_devices",
    "input_length", "input_length_bins", "output_length",
    "prefix_cache_hit_rate", "max_batched_tokens", "batch_size", "concurrency", "ttft_ms", "tpot_ms",
    "tokens_per_s", "tokens_per_s_per_device", "memory_left_gb", "prefill_num_chunks", "forward_shape_count",
    "identity",
]  # fmt: skip


def result_rows(cells: Sequence[Cell], evaluated: Sequence[Sequence[Evaluated]]) -> pa.Table:
    """Return the result table of a run, in the order of cells and candidates."""
    rows = [_row(cell, *one) for cell, cell_rows in zip(cells, evaluated, strict=True) for one in cell_rows]
    return pa.Table.from_pylist(rows, SCHEMA)


def _row(
    cell: Cell, candidate: Candidate, result: CandidateResult, note: SearchNote | None
) -> dict[str, Any]:
    engine, workload = candidate.engine, candidate.workload
    row: dict[str, Any] = {
        "cell": cell.index,
        "mode": cell.mode,
        "runner": cell.runner,
        "model": cell.model_name,
        "device": cell.device_name,
        "parallelism": candidate.deployment_label,
        **candidate.parallelism.as_json(),
        "num_devices": candidate.parallelism.num_devices,
        "input_length": workload.input_length,
        "input_length_bins": None if workload.input_lengths is None else str(workload.input_lengths),
        "output_length": workload.output_length,
        **_image(workload.image),
        "prefix_cache_hit_rate": workload.prefix_cache_hit_rate,
        "max_batched_tokens": engine.max_batched_tokens,
        "num_mtp_tokens": engine.num_mtp_tokens,
        "mtp_acceptance_rate": list(engine.mtp_acceptance_rate[: engine.num_mtp_tokens]),
        **_speculation(engine.speculation),
        "serving_cost_ms": engine.serving_cost_ms,
        "scheduler": str(engine.scheduler),
        "batch_size": candidate.batch_size,
        "ttft_limit_ms": candidate.ttft_limit_ms,
        "tpot_limit_ms": candidate.tpot_limit_ms,
        "feasible": result.feasible,
        "identity": cell.identity.id,
    }
    for name in SCHEMA.names:
        if name not in row and hasattr(result, name):
            row[name] = getattr(result, name)
    if note is not None:
        row |= asdict(note)
    row |= {f"{name}_share": result.bound_shares.get(name) for name in BOUND_TYPES}
    row |= {f"{kind}_share": result.source_shares.get(kind, 0.0) for kind in SOURCE_KINDS}
    return row


def _image(image: Image | None) -> dict[str, int | None]:
    if image is None:
        return {}
    return {"image_batch_size": image.batch_size, "image_height": image.height, "image_width": image.width}


def _speculation(speculation: Speculation | None) -> dict[str, Any]:
    if speculation is None:
        return {}
    return {
        "speculation": speculation.kind,
        "speculation_block_size": speculation.block_size,
        "speculation_accepted_length": speculation.accepted_length,
    }


def ranked(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the feasible rows, best first within each mode, with their `rank` from 1.

    Best is the highest throughput per device; then the highest throughput, the lowest latencies, and the
    order of the config.
    """
    feasible = frame[frame["feasible"]].sort_values(
        ["mode", "tokens_per_s_per_device", "tokens_per_s", "ttft_ms", "tpot_ms", "cell", "batch_size"],
        ascending=[True, False, False, True, True, True, True],
        kind="stable",
    )
    ranks = feasible.groupby("mode").cumcount() + 1
    return feasible.assign(rank=ranks).reset_index(drop=True)
