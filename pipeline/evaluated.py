"""A judged candidate on its way to a result row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pipeline.cells import Cell
from pipeline.tasks import PrefetchCounts
from stages.candidate import Candidate
from stages.result import CandidateResult


@dataclass(frozen=True)
class SearchNote:
    """What a search says of one of its rows.

    Attributes
    ----------
    visit : int
        The how manieth candidate of the cell's search it was, from 1.
    bisection_batch_size : int or None
        On the best row of an exhaustive search: the best batch size along the bisection path.
    bisection_loss : float or None
        On that row: share of its throughput that bisection misses.
    """

    visit: int
    bisection_batch_size: int | None = None
    bisection_loss: float | None = None


class Evaluated(NamedTuple):
    """A candidate, its result, and what the search that found it says."""

    candidate: Candidate
    result: CandidateResult
    note: SearchNote | None = None


@dataclass(frozen=True)
class Searched:
    """What a searching cell found, and its counts."""

    rows: tuple[Evaluated, ...]
    counts: PrefetchCounts


def evaluated_rows(cell: Cell, found: Sequence[CandidateResult] | Searched) -> tuple[Evaluated, ...]:
    """Return the rows of a cell, whether its candidates were listed or searched."""
    if isinstance(found, Searched):
        return found.rows
    pairs = zip(cell.candidates(), found, strict=True)
    return tuple(Evaluated(candidate, cell.judged(candidate, result)) for candidate, result in pairs)
