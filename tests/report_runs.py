"""Runs that the tests of the report share."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from rich.console import Console

from pipeline.config import load_config
from pipeline.rows import SCHEMA
from pipeline.run import RunOptions, SweepRun, run_sweep
from pipeline.saved import RunFacts, SavedRun

SWEEP = """
name: small
runner: {kind: roofline, quantization: {weights: fp8, activations: fp8, kv_cache: bf16}}
models: [Qwen/Qwen3-8B, meta-llama/Llama-3.1-8B]
devices: [H100-SXM-80G, L40S-48G]
parallelism: [{tp: 2}, {dp: 2}]
modes: [aggregated, prefill, decode]
workloads: [{input_length: 4000, output_length: 64}]
engine: {max_batched_tokens: [512, 4096]}
concurrency: {batch_sizes: [1, 8, 64, 512]}
limits: {ttft_ms: 5000, tpot_ms: 40}
"""


def sweep(
    text: str, folder: Path, *, out: str = "out", jobs: int = 1, scheduler: str = "threads"
) -> SweepRun:
    """Run a sweep in a folder, quietly, with tables of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "sweep.yaml"
    config.write_text(text, encoding="utf-8")
    options = RunOptions(
        out=folder / out,
        tables=str(folder / "tables"),
        jobs=jobs,
        scheduler=scheduler,
        quiet=True,
        force=True,
    )
    return run_sweep(load_config(config), options, Console(quiet=True))


def row(**values: object) -> dict[str, object]:
    """One result row; what is not given is plain."""
    plain: dict[str, object] = {
        "cell": 0, "mode": "aggregated", "runner": "roofline", "model": "m", "device": "d",
        "parallelism": "TP=1 | PP=1 | DP=1", "tp": 1, "dp": 1, "pp": 1, "ep": 1, "moe_tp": 1, "moe_dp": 1,
        "num_devices": 1, "input_length": 100, "output_length": 10, "prefix_cache_hit_rate": 0.0,
        "effective_input_length": 100, "max_batched_tokens": 50, "num_mtp_tokens": 0,
        "mtp_acceptance_rate": [], "serving_cost_ms": 0.0, "scheduler": "decode_first_slack",
        "batch_size": 1, "concurrency": 1, "ttft_limit_ms": None, "tpot_limit_ms": None, "feasible": True,
        "stop_reason": None, "stop_shape": None, "ttft_ms": 10.0, "tpot_ms": 5.0, "tokens_per_s": 100.0,
        "tokens_per_s_per_device": 100.0, "memory_left_gb": 3.0, "memory_total_gb": 10.0, "weight_gb": 4.0,
        "kv_cache_gb": 2.0, "activation_gb": 1.0, "reserved_gb": 0.0, "prefill_num_chunks": 2,
        "forward_shape_count": 3, "analytic_share": 1.0, "measured_share": 0.0, "interpolated_share": 0.0,
        "unknown_share": 0.0, "memory_bound_share": 0.5, "compute_bound_mma_share": 0.5,
        "communication_bound_share": 0.0, "compute_bound_gp_share": 0.0, "identity": "i",
    }  # fmt: skip
    assert set(values) <= set(SCHEMA.names), "a column that results do not have"
    return plain | values


def frame(*rows: dict[str, object]) -> pd.DataFrame:
    """Result rows as a run has them."""
    import pyarrow as pa

    return pa.Table.from_pylist(list(rows), SCHEMA).to_pandas()


def saved(*rows: dict[str, object], name: str = "made") -> SavedRun:
    """A run of given rows."""
    facts = RunFacts("0" * 64, {"name": name}, {"shapecast": "0"}, [], [])
    return SavedRun(frame(*rows), facts)
