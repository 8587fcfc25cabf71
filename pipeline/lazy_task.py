"""The prefetch of a cell whose scheduler looks at latencies: it plans while it asks for records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cache.identity import TableIdentity
from cache.session import TableSession
from pipeline.tasks import Places, Prefetched, Records, cell_table, check_stop, open_session
from stages.candidate import Candidate
from stages.evaluate import plan_and_prefetch
from stages.plan import Plan
from stages.runners.base import RunnerSpec


@dataclass(frozen=True)
class Walked(Prefetched):
    """What the prefetch of such a cell gave.

    Attributes
    ----------
    plans : tuple of Plan
        The plan of each candidate; its keys are those that its scheduler asked for.
    """

    plans: tuple[Plan, ...]


def walk_task(
    cell_index: int,
    spec: RunnerSpec,
    identity: TableIdentity,
    candidates: Sequence[Candidate],
    places: Places,
    _after: object = None,
) -> Walked:
    """Plan a cell and make its records known; new ones are published before this returns.

    `_after` is the prefetch of the same identity that came before: one writer at a time.
    """
    return walked(cell_index, spec, candidates, open_session(places.tables, identity), identity)


def walked(
    cell_index: int,
    spec: RunnerSpec,
    candidates: Sequence[Candidate],
    session: TableSession,
    identity: TableIdentity,
) -> Walked:
    """Plan candidates over the records of a session, computing what it lacks."""
    table = cell_table(cell_index, spec, identity, session)
    records: Records = {}
    plans: list[Plan] = []
    stopped = 0
    with session.writing():
        for candidate in candidates:
            check_stop()
            planned, asked = plan_and_prefetch(candidate, table)
            plans.append(planned)
            records.update(asked)
            stopped += any(record.out_of_memory for record in asked.values())
    digests = frozenset(session.digest(key) for key in records)
    return Walked(records, digests, table.forward_calls, stopped, tuple(plans))


def plans_task(walked: Walked) -> list[Plan]:
    """Return the plans that a walk made."""
    return list(walked.plans)
