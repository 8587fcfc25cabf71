"""The task of a cell that searches: it walks the stages candidate by candidate, as the search asks.

What is visited next depends on what was found, so there is no plan of the whole cell beforehand; the stage
functions and the table are those of the other tasks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial

from cache.session import TableSession
from cache.shapes import ForwardShapeKey
from cache.table import ForwardLatencyTable
from pipeline.cell_search import CellSearch
from pipeline.cells import Cell, plan_input
from pipeline.evaluated import Evaluated, Searched, SearchNote
from pipeline.tasks import (
    Places,
    PrefetchCounts,
    Prefetched,
    Records,
    cell_table,
    check_stop,
    open_session,
    plan_task,
    replay_task,
)
from stages.aggregate import aggregate
from stages.candidate import Candidate
from stages.evaluate import plan_and_prefetch
from stages.plan import Plan, plans_dry
from stages.prefetch import prefetch
from stages.replay import Replay
from stages.result import CandidateResult, best_index
from stages.search import Found, listed, search
from stages.search_estimate import LatencyLimits
from stages.trace import trace
from stages.workload import Engine


def search_task(cell: Cell, wanted: CellSearch, places: Places, _after: object = None) -> Searched:
    """Search a cell; new records are published before this returns.

    `_after` is what came before on the same identity: one writer at a time.
    """
    return searched(cell, wanted, open_session(places.tables, cell.identity), places)


def searched(cell: Cell, wanted: CellSearch, session: TableSession, places: Places) -> Searched:
    """Search a cell over the records of a session, computing what it lacks."""
    walk = _Walk(cell, cell_table(cell.index, cell.spec, cell.identity, session), places)
    rows: list[Evaluated] = []
    visits = 0
    with session.writing():
        for budget in wanted.budgets:
            make = partial(_candidate, cell, replace(cell.engine, max_batched_tokens=budget))
            found = _found(wanted, cell, partial(walk.result, make))
            rows += _rows(found, make, visits)
            visits += len(found.visited)
            if found.results[found.visited[0]].stop_reason != "prefill_oom":
                break
    best = best_index([one.result for one in rows])
    if best is not None:
        rows[best] = rows[best]._replace(result=walk.traced(rows[best].candidate))
    digests = frozenset(session.digest(key) for key in walk.used)
    counts = PrefetchCounts(digests, walk.table.forward_calls, walk.stopped)
    return Searched(tuple(rows), counts)


class _Walk:
    """Takes candidates through the stages one by one, and keeps count."""

    def __init__(self, cell: Cell, table: ForwardLatencyTable, places: Places) -> None:
        self._cell = cell
        self.table = table
        self.used: dict[ForwardShapeKey, None] = {}
        self.stopped = 0
        self._places = places

    def result(self, make: Callable[[int], Candidate], batch_size: int) -> CandidateResult:
        """Return the result of one batch size."""
        candidate = make(batch_size)
        plan, times, records = self._walked(candidate)
        self.used.update(dict.fromkeys(records))
        result = self._cell.judged(candidate, aggregate(candidate, plan, times, records))
        self.stopped += result.out_of_memory
        return result

    def traced(self, candidate: Candidate) -> CandidateResult:
        """Return the result of a candidate with its trace, as the best one of a cell has it."""
        plan, times, records = self._walked(candidate)
        result = self._cell.judged(candidate, aggregate(candidate, plan, times, records))
        return replace(result, trace=trace(plan, times, records))

    def _walked(self, candidate: Candidate) -> tuple[Plan, Replay, Records]:
        check_stop()
        if plans_dry(candidate):
            plan = _planned(plan_input(candidate), self._places)
            records = prefetch(self.table, [plan.keys])
        else:
            plan, records = plan_and_prefetch(candidate, self.table)
        known = Prefetched(records, frozenset(), 0, 0)
        return plan, replay_task([candidate], [plan], known, self._places)[0], records


def searched_counts(searched: Searched) -> PrefetchCounts:
    """Return the counts of a search, which the next task of the identity waits for."""
    return searched.counts


def _candidate(cell: Cell, engine: Engine, batch_size: int) -> Candidate:
    return cell.candidate(batch_size, engine)


def _found(wanted: CellSearch, cell: Cell, evaluate: Callable[[int], CandidateResult]) -> Found:
    if wanted.strategy is None:
        return listed(evaluate, wanted.batch_sizes)
    return search(
        wanted.strategy,
        evaluate,
        wanted.bounds,
        LatencyLimits(cell.ttft_limit_ms, cell.tpot_limit_ms),
        memory_grows=cell.mode != "prefill",
    )


def _rows(found: Found, make: Callable[[int], Candidate], visits_before: int) -> list[Evaluated]:
    places = {size: visits_before + place for place, size in enumerate(found.visited, start=1)}
    best = found.best if found.bisection is not None else None
    rows = []
    for size in found.rows:
        note = SearchNote(places[size])
        if size == best and found.bisection is not None:
            note = SearchNote(places[size], found.bisection.best, found.bisection.loss)
        rows.append(Evaluated(make(size), found.results[size], note))
    return rows


@lru_cache(maxsize=4096)
def _planned(candidate: Candidate, places: Places) -> Plan:
    """Return a plan; cells of one process that differ in no input of it share it."""
    return plan_task([candidate], places)[0]
