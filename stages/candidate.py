"""What is evaluated, and what comes out of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, get_args

from cache.errors import InvalidValueError
from stages.parallelism import Parallelism
from stages.workload import ChunkPlan, Engine, Workload, require_int

if TYPE_CHECKING:
    from stages.trace import Trace

Mode = Literal["aggregated", "prefill", "decode"]
MODES: tuple[Mode, ...] = get_args(Mode)

StopReason = Literal["prefill_oom", "decode_oom", "ttft_limit", "tpot_limit"]
STOP_REASONS: tuple[StopReason, ...] = get_args(StopReason)


@dataclass(frozen=True)
class Candidate:
    """One deployment under one load, to be judged.

    Parameters
    ----------
    mode : {"aggregated", "prefill", "decode"}
        Prefill and decode on the same devices, or one disaggregated half.
    workload : Workload
        The requests.
    engine : Engine
        The serving engine.
    parallelism : Parallelism
        How the model is spread.
    batch_size : int
        Requests in flight per data-parallel replica; > 0.
    ttft_limit_ms, tpot_limit_ms : float or None
        Latency limits, ms; None for none.

    Raises
    ------
    ValueError
        When a field is out of its range.
    """

    mode: Mode
    workload: Workload
    engine: Engine
    parallelism: Parallelism
    batch_size: int
    ttft_limit_ms: float | None = None
    tpot_limit_ms: float | None = None

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise InvalidValueError(f"mode is {self.mode!r}; it must be one of {', '.join(MODES)}.")
        require_int("batch_size", self.batch_size, 1)
        for name in ("ttft_limit_ms", "tpot_limit_ms"):
            limit = getattr(self, name)
            if limit is not None and not limit > 0:
                raise InvalidValueError(f"{name} is {limit!r}; a limit must be positive, or left out.")

    @property
    def concurrency(self) -> int:
        """Requests in flight over all replicas, C."""
        return self.batch_size * self.parallelism.dp * self.parallelism.pp

    @property
    def input_tokens(self) -> int:
        """Prompt tokens of all requests in flight, cached ones included."""
        lengths = self.workload.input_lengths
        if lengths is None:
            return self.concurrency * self.workload.input_length
        replicas = self.parallelism.dp
        samples = lengths.samples(-(-self.concurrency // replicas), self.workload.prefix_cache_hit_rate)
        return replicas * sum(sample.length * sample.requests for sample in samples)

    @property
    def deployment_label(self) -> str:
        """The parallel groups and speculation, for people."""
        mtp, speculation = self.engine.num_mtp_tokens, self.engine.speculation
        drafts = [f"MTP={mtp}"] if mtp else [] if speculation is None else [str(speculation)]
        return " | ".join([str(self.parallelism), *drafts])

    @property
    def budget_tokens(self) -> int:
        """The scheduler's token budget over all replicas, B."""
        return self.engine.max_batched_tokens * self.parallelism.dp

    @property
    def chunks(self) -> ChunkPlan:
        """How a prompt is cut into chunks."""
        return ChunkPlan(self.workload.effective_input_length, self.engine.max_batched_tokens)


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


def is_finite(value: float | None) -> bool:
    """Whether `value` is a finite number."""
    return value is not None and math.isfinite(value)
