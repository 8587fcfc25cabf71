"""What is evaluated: one deployment under one load."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from cache.errors import InvalidValueError
from stages.parallelism import Parallelism
from stages.workload import ChunkPlan, Engine, Workload, require_int

Mode = Literal["aggregated", "prefill", "decode"]
MODES: tuple[Mode, ...] = get_args(Mode)


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
