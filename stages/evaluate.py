"""One candidate from plan to result: the composition of the stage functions."""

from __future__ import annotations

from cache.table import ForwardLatencyTable
from stages.aggregate import Records, aggregate
from stages.candidate import Candidate
from stages.lazy_steps import AskedRecords
from stages.plan import Plan, plan, plan_lazily, plans_dry
from stages.prefetch import prefetch
from stages.replay import Replay, replay
from stages.result import CandidateResult
from stages.scheduler_registry import get_scheduler


def replay_plan(candidate: Candidate, planned: Plan, records: Records) -> Replay:
    """Return the times of a candidate's plan. Disaggregated prefill starts after the serving cost."""
    engine = candidate.engine
    start_ms = engine.serving_cost_ms if candidate.mode == "prefill" else 0.0
    return replay(planned.schedule, records, engine, get_scheduler(engine.scheduler), start_ms)


def plan_and_prefetch(candidate: Candidate, table: ForwardLatencyTable) -> tuple[Plan, AskedRecords]:
    """Return the plan of one candidate and the records it reaches, computing those that `table` lacks."""
    if plans_dry(candidate):
        planned = plan(candidate)
        return planned, prefetch(table, [planned.keys])
    table.new_candidate()
    return plan_lazily(candidate, table.get)


def evaluate(candidate: Candidate, table: ForwardLatencyTable) -> CandidateResult:
    """Return the result of one candidate, computing the shapes that `table` lacks.

    The result is that of calling the model runner at every step of the schedule. A table may serve
    many candidates: each begins without the out-of-memory stop of the one before.

    Parameters
    ----------
    candidate : Candidate
        What to judge.
    table : ForwardLatencyTable
        Where records come from.
    """
    planned, records = plan_and_prefetch(candidate, table)
    return aggregate(candidate, planned, replay_plan(candidate, planned, records), records)
