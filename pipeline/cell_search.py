"""What a cell searches: batch sizes by a strategy, and token budgets."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.search_config import ConcurrencySection
from stages.search import BatchRange, Strategy
from stages.workload import Workload

AUTO_FACTORS = (4, 2, 1)
"""Token budgets that `auto` tries, in prompts, as the reference optimizer does (msmodeling, 2026)."""

LEAST_BUDGET_TOKENS = 512
"""Where the grid of `max_batched_tokens: search` begins."""

USUAL_BUDGET_TOKENS = 8192
"""The grid reaches at least this budget, in which several short prompts share a step."""


@dataclass(frozen=True)
class CellSearch:
    """How a searching cell finds its candidates.

    Attributes
    ----------
    strategy : str or None
        How batch sizes are searched; None when `batch_sizes` lists them.
    bounds : BatchRange
        Where they are searched.
    batch_sizes : tuple of int
        The listed ones.
    budgets : tuple of int
        Values of max_batched_tokens; each but the last gives way to the next when prefill of its
        first candidate runs out of memory.
    """

    strategy: Strategy | None
    bounds: BatchRange
    batch_sizes: tuple[int, ...]
    budgets: tuple[int, ...]


def cell_search(section: ConcurrencySection, budgets: tuple[int, ...]) -> CellSearch | None:
    """Return the search of a cell; None where its candidates are known beforehand."""
    if section.search is None and len(budgets) == 1:
        return None
    bounds = BatchRange(*section.range) if section.range is not None else BatchRange()
    return CellSearch(section.search, bounds, tuple(section.batch_sizes or ()), budgets)


def auto_budgets(workload: Workload) -> tuple[int, ...]:
    """Return the token budgets that `auto` tries in turn: whole prompts, cached prefix included."""
    return tuple(factor * workload.input_length for factor in AUTO_FACTORS)


def budget_grid(workload: Workload) -> tuple[int, ...]:
    """Return the token budgets that `search` tries: powers of two, and one, two and four prompts."""
    whole = auto_budgets(workload)
    most = max(USUAL_BUDGET_TOKENS, *whole)
    grid = set(whole)
    budget = LEAST_BUDGET_TOKENS
    while budget < most:
        grid.add(budget)
        budget *= 2
    return tuple(sorted({*grid, budget}))
