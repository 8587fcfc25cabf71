"""Search over batch size: which loads are tried, in which order, and which of them become results.

A strategy only decides; evaluating a batch size is the caller's. The order of visits of `exponential`
is that of the design, section 4.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from cache.errors import InvalidValueError
from stages.result import CandidateResult
from stages.search_estimate import LatencyLimits, LinearEstimate

Evaluate = Callable[[int], CandidateResult]

Strategy = Literal["exponential", "linear_exponential", "bisect", "exhaustive_frontier"]
STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)

FIRST_RIGHT = 512
"""Where an open search probes first, and how far an exhaustive one goes when no range is given."""

MOST_PROBES = 10
"""How often an open search doubles its right bound at most."""

TIE = 1e-9
"""Throughputs that differ by less, relatively, are equal: rounding tells them apart, not serving."""


@dataclass(frozen=True)
class BatchRange:
    """The batch sizes a search may visit.

    Parameters
    ----------
    left : int
        The smallest; > 0.
    right : int or None
        The largest; None leaves the search open: it finds its own.

    Raises
    ------
    InvalidValueError
        When the range is empty or does not begin above 0.
    """

    left: int = 1
    right: int | None = None

    def __post_init__(self) -> None:
        if self.left < 1:
            raise InvalidValueError(f"The batch range begins at {self.left}; a batch size is at least 1.")
        if self.right is not None and self.right < self.left:
            raise InvalidValueError(
                f"The batch range [{self.left}, {self.right}] is reversed; give the smaller size first."
            )


@dataclass(frozen=True)
class BisectionCheck:
    """What bisection would have found where every batch size is known.

    Attributes
    ----------
    best : int or None
        The best batch size along the bisection path; None when it finds none.
    loss : float
        Share of the true best throughput that bisection misses, 0 to 1.
    """

    best: int | None
    loss: float


@dataclass(frozen=True)
class Found:
    """What a search visited and found.

    Attributes
    ----------
    visited : tuple of int
        Batch sizes in the order of their first visit.
    kept : tuple of int
        Feasible ones that are results, in the order in which they were found. A bound that was only
        probed is none.
    results : mapping
        Batch size -> result, of each visited one.
    bisection : BisectionCheck or None
        Of an exhaustive search.
    """

    visited: tuple[int, ...]
    kept: tuple[int, ...]
    results: Mapping[int, CandidateResult]
    bisection: BisectionCheck | None = None

    @property
    def best(self) -> int | None:
        """The kept batch size with the highest throughput."""
        return best_batch_size(self.results, self.kept)

    @property
    def rows(self) -> tuple[int, ...]:
        """What a table of results shows, in order of visits: what was kept, and what was stopped."""
        kept = set(self.kept)
        return tuple(size for size in self.visited if size in kept or not self.results[size].feasible)


def best_batch_size(results: Mapping[int, CandidateResult], sizes: Sequence[int]) -> int | None:
    """Return which of `sizes` gives the highest throughput; of equals (see `TIE`) the largest."""
    if not sizes:
        return None
    most = max(results[size].tokens_per_s for size in sizes)
    return max(size for size in sizes if results[size].tokens_per_s >= most * (1 - TIE))


def search(
    strategy: Strategy,
    evaluate: Evaluate,
    bounds: BatchRange,
    limits: LatencyLimits | None = None,
    *,
    memory_grows: bool = True,
) -> Found:
    """Search the batch sizes of one deployment.

    Parameters
    ----------
    strategy : str
        One of `STRATEGIES`; `bisect` needs a closed range.
    evaluate : callable
        Batch size -> CandidateResult; called once per visited size.
    bounds : BatchRange
        Where to search.
    limits : LatencyLimits, optional
        What `linear_exponential` extrapolates to; the limits that `evaluate` applies.
    memory_grows : bool
        Whether memory grows with every request, as where all decode together; prefill in waves
        does not, so `linear_exponential` then leaves memory out.

    Raises
    ------
    InvalidValueError
        When the strategy is unknown, or needs a range that is not given.
    """
    visits = _Visits(evaluate)
    if strategy == "bisect" and bounds.right is None:
        raise InvalidValueError("The search bisect has no range; give one, such as [1, 256].")
    if strategy in ("exponential", "bisect"):
        return visits.found(_bisected(visits, bounds))
    if strategy == "linear_exponential":
        estimate = LinearEstimate(limits or LatencyLimits(), memory_grows)
        return visits.found(_LinearSearch(visits, bounds, estimate).kept())
    if strategy == "exhaustive_frontier":
        return _exhausted(visits, bounds)
    raise InvalidValueError(f"There is no search {strategy!r}; use {', '.join(STRATEGIES)}.")


def listed(evaluate: Evaluate, sizes: Sequence[int]) -> Found:
    """Evaluate the given batch sizes: no search, in its form."""
    visits = _Visits(evaluate)
    return visits.found([size for size in sizes if visits.feasible(size)])


class _Visits:
    """Evaluates each batch size once and remembers the order."""

    def __init__(self, evaluate: Evaluate) -> None:
        self._evaluate = evaluate
        self.results: dict[int, CandidateResult] = {}

    def feasible(self, size: int) -> bool:
        if size not in self.results:
            self.results[size] = self._evaluate(size)
        return self.results[size].feasible

    def found(self, kept: Sequence[int], bisection: BisectionCheck | None = None) -> Found:
        return Found(tuple(self.results), tuple(dict.fromkeys(kept)), self.results, bisection)


def _bisected(visits: _Visits, bounds: BatchRange) -> list[int]:
    if not visits.feasible(bounds.left):
        return []
    left, right = bounds.left, bounds.right
    if right is None:
        left, right = _grown(visits.feasible, left, max(FIRST_RIGHT, left), MOST_PROBES)
    kept: list[int] = []
    _bisect(visits.feasible, left, right, kept)
    return kept


def _grown(feasible: Callable[[int], bool], left: int, right: int, probes: int) -> tuple[int, int]:
    """Double `right` until it stops, `left` following."""
    for _ in range(probes):
        if not feasible(right):
            break
        left, right = right, right * 2
    return left, right


def _bisect(feasible: Callable[[int], bool], left: int, right: int, kept: list[int]) -> int:
    """Append the feasible middles to `kept`; return the first batch size that is too large."""
    while left <= right:
        middle = (left + right) // 2
        if feasible(middle):
            left = middle + 1
            kept.append(middle)
        else:
            right = middle - 1
    return left


def _exhausted(visits: _Visits, bounds: BatchRange) -> Found:
    right = bounds.right if bounds.right is not None else max(FIRST_RIGHT, bounds.left)
    kept = [size for size in range(bounds.left, right + 1) if visits.feasible(size)]
    # All of the range is known, so that this path visits nothing new.
    path = _bisected(visits, BatchRange(bounds.left, right))
    best, reached = (best_batch_size(visits.results, sizes) for sizes in (kept, path))
    loss = 0.0
    if best is not None:
        got = visits.results[reached].tokens_per_s if reached is not None else 0.0
        loss = 1 - got / visits.results[best].tokens_per_s
    return visits.found(kept, BisectionCheck(reached, loss if loss > TIE else 0.0))


class _LinearSearch:
    """The bisection of `exponential`, less the visits that a linear estimate shows to be hopeless.

    The batch size on which the search ends up is bounded by one that is too large. Where only the
    estimate says so, that one is visited after all; a wrong estimate is then no longer trusted. So the
    search ends on the same bound as `exponential`.
    """

    def __init__(self, visits: _Visits, bounds: BatchRange, estimate: LinearEstimate) -> None:
        self._visits = visits
        self._bounds = bounds
        self._estimate = estimate
        self._trusted = True
        self._assumed: set[int] = set()
        self._probed: set[int] = set()

    def kept(self) -> list[int]:
        """Search, and return the feasible middles."""
        left, right = self._bounds.left, self._bounds.right
        if not self._visits.feasible(left):
            return []
        kept: list[int] = []
        if right is None:
            left, right = self._grow(left, max(FIRST_RIGHT, left))
        while True:
            bound = _bisect(self._feasible, left, right, kept)
            wrong = self._wrong_assumption(bound)
            if wrong is None:
                return kept
            self._trusted = False
            self._assumed.discard(wrong)
            if wrong in self._probed:
                left, right = self._grow(left, wrong)
            else:
                kept.append(wrong)
                left, right = wrong + 1, self._next_stop(wrong) - 1

    def _wrong_assumption(self, bound: int) -> int | None:
        """Return the size that was assumed to be too large, ends the search, and is feasible.

        It stands at the bound; or just before it, where an open search ran up to its own probe.
        """
        for size in (bound - 1, bound):
            if size in self._assumed and self._visits.feasible(size):
                return size
        return None

    def _grow(self, left: int, right: int) -> tuple[int, int]:
        def feasible(size: int) -> bool:
            self._probed.add(size)
            return self._feasible(size)

        return _grown(feasible, left, right, MOST_PROBES - len(self._probed - {right}))

    def _feasible(self, size: int) -> bool:
        known = size in self._visits.results
        if not known and self._trusted and size > self._estimate.most(self._visits.results):
            self._assumed.add(size)
            return False
        return self._visits.feasible(size)

    def _next_stop(self, above: int) -> int:
        """Return the least batch size above `above` that is known or assumed to be too large."""
        stopped = {size for size, result in self._visits.results.items() if not result.feasible}
        larger = [size for size in stopped | self._assumed if size > above]
        return min(larger, default=(self._bounds.right or above) + 1)
