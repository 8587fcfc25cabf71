"""How many requests would still fit, from a line through what is known."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from stages.result import CandidateResult

LATENCY_RELAXATION = 1.5
"""Latencies bend, so the way to their limit is stretched by this."""

MEMORY_RELAXATION = 1.0
"""A request's KV cache does not."""


@dataclass(frozen=True)
class LatencyLimits:
    """Latency limits, ms; None for none."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None


class LinearEstimate:
    """The largest batch size that a line through visited ones allows.

    Parameters
    ----------
    limits : LatencyLimits
        Where latencies must end.
    memory_grows : bool
        Whether each further request takes memory.
    """

    def __init__(self, limits: LatencyLimits, memory_grows: bool) -> None:
        self._limits = limits
        self._memory_grows = memory_grows

    def most(self, results: Mapping[int, CandidateResult]) -> float:
        """Return the estimate; infinity where nothing can be said."""
        feasible = [size for size in results if results[size].feasible]
        if not feasible:
            return math.inf
        base = max(feasible)
        most = self._by_memory(results, sorted(feasible)) if self._memory_grows else math.inf
        ttft = [(size, result.ttft_ms) for size, result in results.items()]
        tpot = [(size, result.tpot_ms) for size, result in results.items()]
        return min(
            most,
            _by_latency(base, ttft, self._limits.ttft_ms),
            _by_latency(base, tpot, self._limits.tpot_ms),
        )

    def _by_memory(self, results: Mapping[int, CandidateResult], feasible: list[int]) -> float:
        base = feasible[-1]
        left_gb = results[base].memory_left_gb
        kv_cache_gb = results[base].kv_cache_gb
        if kv_cache_gb is not None:
            # At most what a request takes: the tightest pass may hold fewer requests than the batch.
            per_request_gb = kv_cache_gb / base
        elif len(feasible) > 1:
            before = feasible[-2]
            per_request_gb = (results[before].memory_left_gb - left_gb) / (base - before)
        else:
            return math.inf
        return base + MEMORY_RELAXATION * left_gb / per_request_gb if per_request_gb > 0 else math.inf


def _by_latency(base: int, points: Iterable[tuple[int, float | None]], limit_ms: float | None) -> float:
    """Return where the line from `base` to the nearest known size, above if there is one, meets the limit."""
    known = {size: value for size, value in points if value is not None and math.isfinite(value)}
    others = sorted(size for size in known if size != base)
    if limit_ms is None or base not in known or not others:
        return math.inf
    other = next((size for size in others if size > base), others[-1])
    slope = (known[other] - known[base]) / (other - base)
    return base + LATENCY_RELAXATION * (limit_ms - known[base]) / slope if slope > 0 else math.inf
