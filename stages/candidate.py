"""What is evaluated: one deployment under one load."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from cache.errors import InvalidValueError
from cache.shapes import LARGEST_COUNT
from stages.checks import require_int
from stages.parallelism import Parallelism
from stages.workload import MOST_CHUNKS, ChunkPlan, Engine, Workload

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
        When a field is out of its range, the requests in flight or the tokens of one request are more than
        `LARGEST_COUNT`, or a prompt takes more than `MOST_CHUNKS` chunks.
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
        self._check_size()

    def _check_size(self) -> None:
        if self.concurrency > LARGEST_COUNT:
            raise InvalidValueError(
                f"batch_size * dp * pp is {self.concurrency} requests in flight; it must be at most "
                f"{LARGEST_COUNT}: lower batch_size."
            )
        workload = self.workload
        tokens = workload.input_length + workload.output_length + self.engine.decode_query_len
        if tokens > LARGEST_COUNT:
            raise InvalidValueError(
                f"input_length, output_length and the drafted tokens come to {tokens} tokens; they must be "
                f"at most {LARGEST_COUNT} together: shorten them."
            )
        num_chunks = self.chunks.num_chunks
        if self.mode != "decode" and num_chunks > MOST_CHUNKS:
            raise InvalidValueError(
                f"max_batched_tokens is {self.engine.max_batched_tokens}, which cuts a prompt of "
                f"{self.workload.effective_input_length} tokens into {num_chunks} chunks; it must be at most "
                f"{MOST_CHUNKS} chunks: raise max_batched_tokens to "
                f"{-(-self.workload.effective_input_length // MOST_CHUNKS)} or more."
            )

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
