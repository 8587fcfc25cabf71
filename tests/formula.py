"""The closed-form latencies of the golden formula cases; see tests/data/README.md."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from cache import ForwardLatencyRecord, ForwardShapeKey


def formula_forward(formula: Mapping[str, float]) -> Callable[[ForwardShapeKey], ForwardLatencyRecord]:
    def forward(key: ForwardShapeKey) -> ForwardLatencyRecord:
        c, q, s = key.model_concurrency, key.query_len, key.seq_len
        if key.is_decode:
            latency_ms = (
                formula["decode_base_ms"]
                + formula["decode_ms_per_request"] * c
                + formula["decode_ms_per_kv_token"] * c * s
            )
        else:
            latency_ms = (
                formula["prefill_base_ms"]
                + formula["prefill_ms_per_token"] * c * q
                + formula["prefill_ms_per_pair"] * c * q * s
            )
        breakdown = {
            "memory_bound": q * c,
            "communication_bound": 0.5 * c,
            "compute_bound_mma": 2 * s,
            "compute_bound_gp": 0.25,
        }
        memory_left_gb = formula["memory_gb"] - formula["gb_per_token"] * c * s
        return ForwardLatencyRecord(latency_ms, memory_left_gb, {"formula": breakdown})

    return forward
