"""What is served, and by what kind of engine."""

from __future__ import annotations

import math
from dataclasses import dataclass

from cache.errors import InvalidValueError
from stages.checks import require_int
from stages.lengths import LengthDistribution, effective_length
from stages.scheduler import SchedulingPolicy
from stages.speculation import Speculation

MOST_CHUNKS = 65_536
"""The most chunks that a prompt may take: each is a forward pass of its own, to be computed and kept."""


@dataclass(frozen=True)
class Image:
    """The images that come with the prompts.

    Parameters
    ----------
    height, width : int
        Pixels; > 0.
    batch_size : int or None
        Images per forward pass; None for the candidate's batch size.

    Raises
    ------
    ValueError
        When a field is out of its range.
    """

    height: int
    width: int
    batch_size: int | None = None

    def __post_init__(self) -> None:
        require_int("image.height", self.height, 1)
        require_int("image.width", self.width, 1)
        if self.batch_size is not None:
            require_int("image.batch_size", self.batch_size, 1)


@dataclass(frozen=True)
class Workload:
    """What every request of a sweep looks like.

    Parameters
    ----------
    input_length : int
        Prompt tokens, L_in; > 0. With `input_lengths`, their mean rounded down; see `Workload.of_lengths`.
    output_length : int
        Generated tokens, L_out; > 0.
    prefix_cache_hit_rate : float
        Fraction of the prompt already in the KV cache, h; 0 <= h < 1.
    input_lengths : LengthDistribution or None
        How long prompts are, when they differ.
    image : Image or None
        Images of each request; None for text.

    Raises
    ------
    ValueError
        When a field is out of its range.
    """

    input_length: int
    output_length: int
    prefix_cache_hit_rate: float = 0.0
    input_lengths: LengthDistribution | None = None
    image: Image | None = None

    @classmethod
    def of_lengths(
        cls,
        input_lengths: LengthDistribution,
        output_length: int,
        prefix_cache_hit_rate: float = 0.0,
        image: Image | None = None,
    ) -> Workload:
        """Return the workload whose prompts have several lengths."""
        return cls(input_lengths.mean_length, output_length, prefix_cache_hit_rate, input_lengths, image)

    def __post_init__(self) -> None:
        require_int("input_length", self.input_length, 1)
        if self.input_lengths is not None and self.input_length != self.input_lengths.mean_length:
            raise InvalidValueError(
                f"input_length is {self.input_length}; with input_lengths it must be their mean, "
                f"{self.input_lengths.mean_length}: use Workload.of_lengths."
            )
        require_int("output_length", self.output_length, 1)
        if not 0 <= self.prefix_cache_hit_rate < 1:
            raise InvalidValueError(
                f"prefix_cache_hit_rate is {self.prefix_cache_hit_rate!r}; it must be at least 0 and below 1."
            )

    @property
    def effective_input_length(self) -> int:
        """Prompt tokens that must be computed, E; their mean, rounded down, when prompts differ in length."""
        if self.input_lengths is not None:
            return self.input_lengths.mean_effective_length(self.prefix_cache_hit_rate)
        return effective_length(self.input_length, self.prefix_cache_hit_rate)


@dataclass(frozen=True)
class Engine:
    """How the serving engine schedules and speculates.

    Parameters
    ----------
    max_batched_tokens : int
        Token budget of one replica in one step; also the largest prefill chunk of one request.
    num_mtp_tokens : int
        Tokens that multi-token prediction adds per decode step.
    mtp_acceptance_rate : tuple of float
        Acceptance rate of each speculative token, in order; at least `num_mtp_tokens` of them.
    serving_cost_ms : float
        Fixed cost of serving outside the forward pass, ms.
    scheduler : str or SchedulingPolicy
        The scheduling policy of mixed prefill and decode steps: its name, or the policy with its settings.
    speculation : Speculation or None
        A draft model instead of multi-token prediction.

    Raises
    ------
    ValueError
        When a field is out of its range.
    """

    max_batched_tokens: int
    num_mtp_tokens: int = 0
    mtp_acceptance_rate: tuple[float, ...] = (0.9, 0.6, 0.4, 0.2)
    serving_cost_ms: float = 0.0
    scheduler: str | SchedulingPolicy = "decode_first_slack"
    speculation: Speculation | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "mtp_acceptance_rate", tuple(self.mtp_acceptance_rate))
        require_int("max_batched_tokens", self.max_batched_tokens, 1)
        require_int("num_mtp_tokens", self.num_mtp_tokens, 0)
        if len(self.mtp_acceptance_rate) < self.num_mtp_tokens:
            raise InvalidValueError(
                f"mtp_acceptance_rate has {len(self.mtp_acceptance_rate)} rates; num_mtp_tokens is "
                f"{self.num_mtp_tokens}, so give a rate for each of these tokens."
            )
        if not all(0 <= rate <= 1 for rate in self.mtp_acceptance_rate):
            raise InvalidValueError(
                f"mtp_acceptance_rate is {list(self.mtp_acceptance_rate)}; each rate must be between 0 and 1."
            )
        if self.speculation is not None and self.num_mtp_tokens:
            raise InvalidValueError(
                f"num_mtp_tokens is {self.num_mtp_tokens} together with {self.speculation.kind} speculation; "
                "a step drafts one way only: set num_mtp_tokens to 0, or leave speculation out."
            )
        if not 0 <= self.serving_cost_ms < math.inf:
            raise InvalidValueError(
                f"serving_cost_ms is {self.serving_cost_ms!r}; it must be a finite number of at least 0."
            )

    @property
    def decode_query_len(self) -> int:
        """Tokens that one decode step computes per request."""
        if self.speculation is not None:
            return self.speculation.block_size
        return self.num_mtp_tokens + 1

    @property
    def tokens_per_decode_step(self) -> float:
        """Tokens that one decode step yields per request, on average."""
        if self.speculation is not None:
            return self.speculation.tokens_per_step
        return 1 + math.fsum(self.mtp_acceptance_rate[: self.num_mtp_tokens])

    def fold_decode_ms(self, latency_ms: float) -> float:
        """Return the latency per output token of a raw decode latency, ms."""
        return latency_ms / self.tokens_per_decode_step


@dataclass(frozen=True)
class ChunkPlan:
    """How one request's prompt is cut: chunk i computes `query_len(i)` tokens up to `seq_len(i)`.

    Parameters
    ----------
    effective_input_length : int
        Tokens to compute, E.
    chunk_length : int
        The longest chunk.
    """

    effective_input_length: int
    chunk_length: int

    @property
    def num_chunks(self) -> int:
        """Number of chunks."""
        return -(-self.effective_input_length // self.chunk_length)

    def query_len(self, index: int) -> int:
        """Return the new tokens of chunk `index`; only the last chunk may be shorter."""
        return min(self.chunk_length, self.effective_input_length - index * self.chunk_length)

    def seq_len(self, index: int) -> int:
        """Return the tokens in the KV cache after chunk `index`."""
        return min((index + 1) * self.chunk_length, self.effective_input_length)
