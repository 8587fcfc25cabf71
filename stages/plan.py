"""Plan: which passes a candidate runs, in which order. Decided without any latency.

The rules are those of the design, section 4; how equal steps are planned at once is its section 5.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from cache.errors import InvalidValueError
from cache.shapes import ForwardShapeKey
from stages.candidate import Candidate
from stages.lazy_steps import AskedRecords, walk_lazy_steps
from stages.mixed_steps import plan_mixed_steps
from stages.schedule import Schedule, ScheduleBuilder
from stages.scheduler import AskRecord, LazyScheduler
from stages.scheduler_registry import get_scheduler
from stages.segment_steps import add_segment_steps
from stages.shape_keys import ShapeKeys


class Rule(StrEnum):
    """How a schedule's times are read as TTFT, TPOT and throughput."""

    MIXED_STEPS = "mixed_steps"
    PREFILL_THEN_DECODE = "prefill_then_decode"
    SEGMENTS_THEN_DECODE = "segments_then_decode"
    PREFILL_FORWARD = "prefill_forward"
    PREFILL_WAVES = "prefill_waves"
    DECODE = "decode"


@dataclass(frozen=True, eq=False)
class Plan:
    """A candidate's schedule and the rule by which its times are read.

    Attributes
    ----------
    rule : Rule
        How times are read.
    schedule : Schedule
        What runs.
    asked : tuple of ForwardShapeKey or None
        The shapes that a policy looked at while it made the schedule; None where none was needed.
    """

    rule: Rule
    schedule: Schedule
    asked: tuple[ForwardShapeKey, ...] | None = None

    @property
    def keys(self) -> tuple[ForwardShapeKey, ...]:
        """The distinct shapes that are needed, in order of first use."""
        return self.schedule.keys if self.asked is None else self.asked


def plans_dry(candidate: Candidate) -> bool:
    """Whether the candidate can be planned without records; else `plan_lazily` must be used."""
    if not _has_mixed_steps(candidate):
        return True
    return not isinstance(get_scheduler(candidate.engine.scheduler), LazyScheduler)


def plan_lazily(candidate: Candidate, record: AskRecord) -> tuple[Plan, AskedRecords]:
    """Return the plan of a candidate whose scheduler looks at latencies, and the records it asked for.

    Parameters
    ----------
    candidate : Candidate
        One for which `plans_dry` is false.
    record : callable
        ForwardShapeKey -> ForwardLatencyRecord.
    """
    scheduler = get_scheduler(candidate.engine.scheduler)
    assert isinstance(scheduler, LazyScheduler)
    schedule, asked = walk_lazy_steps(candidate, scheduler, record)
    return Plan(Rule.MIXED_STEPS, schedule, tuple(asked)), asked


MOST_PLANNED_STEPS = 2_000_000
"""The most steps, as `planned_steps` counts them, that a listed candidate may take: seconds of planning."""


def planned_steps(candidate: Candidate) -> int:
    """Estimate how many steps planning cannot skip: a whole pass each, or a token each above the budget."""
    steps = candidate.chunks.num_chunks + candidate.concurrency
    if candidate.concurrency > candidate.budget_tokens:
        steps += candidate.concurrency * candidate.workload.output_length // candidate.budget_tokens
    return steps


def require_plannable(candidate: Candidate) -> None:
    """Refuse a candidate whose planning would take minutes.

    Raises
    ------
    InvalidValueError
        When it takes more than `MOST_PLANNED_STEPS`.
    """
    steps = planned_steps(candidate)
    if candidate.workload.input_lengths is not None:
        # Each step of prompts of several lengths is put together on its own.
        steps += candidate.batch_size * candidate.chunks.num_chunks
    if candidate.mode != "decode" and steps > MOST_PLANNED_STEPS:
        raise InvalidValueError(
            f"batch_size is {candidate.batch_size}, which takes about {steps} steps to plan; it must be at "
            f"most {MOST_PLANNED_STEPS}: lower batch_size, or raise max_batched_tokens."
        )


def _has_mixed_steps(candidate: Candidate) -> bool:
    lengths = candidate.workload.input_lengths
    return candidate.mode == "aggregated" and lengths is None and candidate.chunks.num_chunks > 1


def plan(candidate: Candidate) -> Plan:
    """Return the plan of one candidate.

    Raises
    ------
    InvalidValueError
        When the scheduler is unknown, makes no progress or decides by latencies.
    """
    if candidate.mode == "decode":
        return _plan_decode(candidate)
    if candidate.mode == "prefill":
        return _plan_prefill(candidate)
    if candidate.workload.input_lengths is not None:
        return _plan_segments_then_decode(candidate)
    if candidate.chunks.num_chunks == 1:
        return _plan_prefill_then_decode(candidate)
    return Plan(Rule.MIXED_STEPS, plan_mixed_steps(candidate))


def _plan_decode(candidate: Candidate) -> Plan:
    builder = ScheduleBuilder()
    builder.run(None, ShapeKeys(candidate).decode(candidate.concurrency), 1)
    return Plan(Rule.DECODE, builder.build())


def _plan_prefill_then_decode(candidate: Candidate) -> Plan:
    """Whole prompts in waves as large as the budget allows, then all requests decode together."""
    builder = ScheduleBuilder()
    length = candidate.workload.effective_input_length
    keys = ShapeKeys(candidate)
    _add_waves(builder, keys, candidate.concurrency, 0, candidate.budget_tokens // length)
    builder.run(None, keys.decode(candidate.concurrency), candidate.workload.output_length)
    return Plan(Rule.PREFILL_THEN_DECODE, builder.build())


def _plan_segments_then_decode(candidate: Candidate) -> Plan:
    """Prompts of several lengths in full steps, then all requests decode together."""
    builder = ScheduleBuilder()
    add_segment_steps(builder, candidate)
    builder.run(None, ShapeKeys(candidate).decode(candidate.concurrency), candidate.workload.output_length)
    return Plan(Rule.SEGMENTS_THEN_DECODE, builder.build())


def _plan_prefill(candidate: Candidate) -> Plan:
    builder = ScheduleBuilder()
    if candidate.workload.input_lengths is not None:
        add_segment_steps(builder, candidate)
        return Plan(Rule.PREFILL_WAVES, builder.build())
    keys, concurrency = ShapeKeys(candidate), candidate.concurrency
    chunks = keys.chunks
    if chunks.num_chunks == 1 and concurrency * chunks.query_len(0) <= candidate.budget_tokens:
        _add_waves(builder, keys, concurrency, 0, concurrency)
        return Plan(Rule.PREFILL_FORWARD, builder.build())
    for chunk in range(chunks.num_chunks):
        wave = max(candidate.budget_tokens // chunks.query_len(chunk), 1)
        _add_waves(builder, keys, concurrency, chunk, wave)
    return Plan(Rule.PREFILL_WAVES, builder.build())


def _add_waves(builder: ScheduleBuilder, keys: ShapeKeys, concurrency: int, chunk: int, wave: int) -> None:
    """Run chunk `chunk` of all requests in waves of `wave`; the last chunk ends with first tokens."""
    last = chunk == keys.chunks.num_chunks - 1
    full_waves, rest = divmod(concurrency, wave)
    for count, waves in ((wave, full_waves), (rest, 1)):
        if count == 0 or waves == 0:
            continue
        if last:
            builder.first_tokens(builder.steps, count, waves)
        builder.run(keys.prefill(count, chunk), None, waves)
