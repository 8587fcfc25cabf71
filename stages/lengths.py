"""Prompts of several lengths: a distribution in bins, and how many requests of a load fall into each."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from cache.errors import InvalidValueError
from stages.checks import require_int

_LARGEST_WEIGHT = 1e15


@dataclass(frozen=True)
class LengthBin:
    """Prompts of `min_tokens` up to but without `max_tokens` tokens.

    Parameters
    ----------
    min_tokens, max_tokens : int
        The range, tokens; 0 <= min_tokens < max_tokens.
    weight : float
        Its share of the requests, relative to the other bins; > 0.

    Raises
    ------
    ValueError
        When the bin is empty or weighs nothing.
    """

    min_tokens: int
    max_tokens: int
    weight: float

    def __post_init__(self) -> None:
        for name in ("min_tokens", "max_tokens"):
            require_int(name, getattr(self, name), 0)
        if self.max_tokens <= self.min_tokens:
            raise InvalidValueError(
                f"The bin from {self.min_tokens} to {self.max_tokens} tokens is empty; max_tokens must be "
                "greater than min_tokens."
            )
        if not 0 < self.weight <= _LARGEST_WEIGHT:
            raise InvalidValueError(
                f"The bin from {self.min_tokens} to {self.max_tokens} tokens has the weight {self.weight!r}; "
                f"it must be positive and at most {_LARGEST_WEIGHT:g}: leave out a bin that weighs nothing."
            )

    @property
    def length(self) -> int:
        """The length that stands for the bin: its midpoint rounded down, tokens."""
        return (self.min_tokens + self.max_tokens) // 2


class Sample(NamedTuple):
    """Requests of one length in a load: the bin's length and how many."""

    length: int
    requests: int


@dataclass(frozen=True)
class LengthDistribution:
    """How long prompts are.

    Parameters
    ----------
    bins : tuple of LengthBin
        In the order in which a load is served.

    Raises
    ------
    ValueError
        When there is no bin, or two overlap.
    """

    bins: tuple[LengthBin, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "bins", tuple(self.bins))
        if not self.bins:
            raise InvalidValueError("A length distribution has no bins; give at least one.")
        ordered = sorted(self.bins, key=lambda one: one.min_tokens)
        for lower, upper in pairwise(ordered):
            if upper.min_tokens < lower.max_tokens:
                raise InvalidValueError(
                    f"The bins from {lower.min_tokens} to {lower.max_tokens} tokens and from "
                    f"{upper.min_tokens} to {upper.max_tokens} tokens overlap; let a bin begin where the one "
                    "before ends."
                )

    @property
    def shares(self) -> tuple[float, ...]:
        """The share of the requests per bin."""
        total = _sum(one.weight for one in self.bins)
        return tuple(one.weight / total for one in self.bins)

    @property
    def mean_length(self) -> int:
        """Mean prompt length, rounded down, at least 1 token."""
        return self._mean([one.length for one in self.bins])

    def mean_effective_length(self, prefix_cache_hit_rate: float) -> int:
        """Return the mean of the tokens to compute per prompt, rounded down, at least 1."""
        return self._mean([effective_length(one.length, prefix_cache_hit_rate) for one in self.bins])

    def samples(self, requests: int, prefix_cache_hit_rate: float = 0.0) -> tuple[Sample, ...]:
        """Return how many of `requests` requests fall into each bin, without bins that get none.

        Each bin gets the whole part of its share, and the requests that are left go to the largest
        remainders (Hamilton's method), among equal ones to the prompt with more tokens to compute. All
        in double precision, as the recorded figures are: 14 requests at shares of 1/6 and 4/6 have equal
        remainders on paper only.
        """
        ideal = [requests * share for share in self.shares]
        counts = [math.floor(count) for count in ideal]

        def claim(index: int) -> tuple[float, int]:
            length = effective_length(self.bins[index].length, prefix_cache_hit_rate)
            return ideal[index] - counts[index], length

        ranked = sorted(range(len(counts)), key=claim, reverse=True)
        for index in ranked[: requests - sum(counts)]:
            counts[index] += 1
        pairs = zip(self.bins, counts, strict=True)
        return tuple(Sample(one.length, count) for one, count in pairs if count)

    def _mean(self, lengths: list[int]) -> int:
        mean = _sum(length * share for length, share in zip(lengths, self.shares, strict=True))
        return max(1, math.floor(mean))

    def __str__(self) -> str:
        parts = zip(self.bins, self.shares, strict=True)
        return ", ".join(f"{one.min_tokens}-{one.max_tokens}: {100 * share:.3g}%" for one, share in parts)


def _sum(values: Iterable[float]) -> float:
    """Add one by one: since Python 3.12 the built-in corrects rounding, which could change a floor."""
    total = 0.0
    for value in values:
        total += value
    return total


def effective_length(length: int, prefix_cache_hit_rate: float) -> int:
    """Return the tokens of a prompt that must be computed, at least 1."""
    return max(1, length - math.floor(length * prefix_cache_hit_rate))
