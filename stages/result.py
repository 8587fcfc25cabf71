"""What comes out of a candidate's evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from stages.trace import Trace

StopReason = Literal["prefill_oom", "decode_oom", "ttft_limit", "tpot_limit"]
STOP_REASONS: tuple[StopReason, ...] = get_args(StopReason)


@dataclass(frozen=True)
class CandidateResult:
    """What a candidate achieves.

    Parameters
    ----------
    ttft_ms, tpot_ms : float or None
        Mean time to first token and per later output token, ms; None where the mode defines none.
    tokens_per_s, tokens_per_s_per_device : float
        Throughput: output tokens, or input tokens in prefill mode.
    memory_left_gb : float
        Least device memory left over the records used, GiB.
    concurrency : int
        Requests in flight over all replicas.
    effective_input_length : int
        Prompt tokens computed per request.
    prefill_num_chunks : int
        Chunks per prompt, or steps of all prompts when these differ in length; 0 in decode mode.
    stop_reason : str or None
        Why the candidate is not feasible; None when it is.
    prefill_breakdown, decode_breakdown : str or None
        Share of time per bound type; None where there is none.
    memory_total_gb, weight_gb, kv_cache_gb, activation_gb, reserved_gb : float or None
        Parts of the record with the least memory left; None where the runner gives none.
    forward_shape_count : int
        Distinct shapes of the candidate's plan.
    stop_shape : str or None
        The out-of-memory shape, in words.
    source_shares : mapping
        Share of the candidate's time per kind of source of its records; "unknown" where a runner
        says nothing.
    bound_shares : mapping
        Share of the candidate's time per bound type.
    kv_transfer_ms : float or None
        How much of the TTFT is handing the KV cache over to decode, ms; None where nothing is.
    trace : Trace or None
        Where its time goes; only a sweep's best candidates have one.
    """

    ttft_ms: float | None
    tpot_ms: float | None
    tokens_per_s: float
    tokens_per_s_per_device: float
    memory_left_gb: float
    concurrency: int
    effective_input_length: int
    prefill_num_chunks: int
    stop_reason: StopReason | None
    prefill_breakdown: str | None
    decode_breakdown: str | None
    memory_total_gb: float | None = None
    weight_gb: float | None = None
    kv_cache_gb: float | None = None
    activation_gb: float | None = None
    reserved_gb: float | None = None
    forward_shape_count: int = 0
    stop_shape: str | None = None
    source_shares: Mapping[str, float] = field(default_factory=dict)
    bound_shares: Mapping[str, float] = field(default_factory=dict)
    kv_transfer_ms: float | None = None
    trace: Trace | None = field(default=None, compare=False, repr=False)

    @property
    def feasible(self) -> bool:
        """Whether the candidate fits memory and limits."""
        return self.stop_reason is None

    @property
    def out_of_memory(self) -> bool:
        """Whether an out-of-memory record stopped the candidate."""
        return self.memory_left_gb < 0


def limit_stop_reason(
    ttft_ms: float | None, tpot_ms: float | None, ttft_limit_ms: float | None, tpot_limit_ms: float | None
) -> StopReason | None:
    """Return which limit is broken; the TPOT limit is named first."""
    if tpot_limit_ms is not None and (tpot_ms or 0.0) > tpot_limit_ms:
        return "tpot_limit"
    if ttft_limit_ms is not None and (ttft_ms or 0.0) > ttft_limit_ms:
        return "ttft_limit"
    return None


def best_index(results: list[CandidateResult]) -> int | None:
    """Return which feasible result of one deployment is best; None where none is feasible.

    The order is that in which a run ranks its rows.
    """
    feasible = [index for index, result in enumerate(results) if result.feasible]
    if not feasible:
        return None
    return min(
        feasible,
        key=lambda index: (
            -results[index].tokens_per_s_per_device,
            results[index].ttft_ms or 0.0,
            results[index].tpot_ms or 0.0,
            index,
        ),
    )
