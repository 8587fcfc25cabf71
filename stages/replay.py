"""Replay: when each step of a schedule ends, once the latencies of its shapes are known.

Arithmetic on arrays of runs. It knows only the schedule's form, never the policy that made it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cache.shapes import ForwardLatencyRecord, ForwardShapeKey
from stages.schedule import NO_PASS, Schedule
from stages.scheduler import SchedulingPolicy
from stages.workload import Engine

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Replay:
    """The times of a schedule, from its first step up to its end or its out-of-memory shape.

    Attributes
    ----------
    start_ms : float
        When the first step starts.
    run_ends_steps : int array, shape (runs,)
        Steps up to the end of each run.
    run_ends_ms : float array, shape (runs,)
        When each run ends.
    step_ms : float array, shape (runs,)
        Latency of each step of a run.
    used : tuple of ForwardShapeKey
        The shapes that were reached, in order of first use; ends with the out-of-memory one, if any.
    oom_key : ForwardShapeKey or None
        The out-of-memory shape.
    end_ms : float
        When the schedule ends, or the out-of-memory pass would have.
    key_ms : float array, shape (used,)
        Time in which each used shape sets the step's latency; 0 for the shorter pass of a step.
    run_count : int
        Runs that are complete: all, or those before the out-of-memory pass.
    """

    start_ms: float
    run_ends_steps: IntArray
    run_ends_ms: FloatArray
    step_ms: FloatArray
    used: tuple[ForwardShapeKey, ...]
    oom_key: ForwardShapeKey | None
    end_ms: float
    key_ms: FloatArray
    run_count: int

    def after_step_ms(self, steps: IntArray) -> FloatArray:
        """Return when each of `steps` (from 0) ends, ms."""
        run = np.searchsorted(self.run_ends_steps, steps, side="right")
        return self.run_ends_ms[run] - (self.run_ends_steps[run] - 1 - steps) * self.step_ms[run]


def replay(
    schedule: Schedule,
    records: Mapping[ForwardShapeKey, ForwardLatencyRecord],
    engine: Engine,
    scheduler: SchedulingPolicy,
    start_ms: float = 0.0,
) -> Replay:
    """Return the times of `schedule`. Calls no runner.

    Parameters
    ----------
    schedule : Schedule
        What runs.
    records : mapping
        Records of the schedule's shapes, at least up to the first out-of-memory one.
    engine : Engine
        How decode latencies are folded.
    scheduler : SchedulingPolicy
        How long a step of two passes takes.
    start_ms : float
        When the first step starts.

    Raises
    ------
    KeyError
        When a record before the first out-of-memory one is missing.
    """
    used, latencies_ms, oom_index = _reached(schedule, records, engine)
    # Unreached shapes stand as 0: only runs before the out-of-memory pass are read. The last entry, 0,
    # answers NO_PASS.
    raw_ms = np.zeros(len(schedule.keys) + 1)
    raw_ms[: len(used)] = latencies_ms
    prefill_ms, decode_ms = raw_ms[schedule.run_prefill], raw_ms[schedule.run_decode]
    step_ms = scheduler.step_latency_ms(prefill_ms, decode_ms)
    run_ms = schedule.run_steps * step_ms
    run_ends_ms = start_ms + np.cumsum(run_ms)
    run_count = len(run_ms)
    end_ms = float(run_ends_ms[-1])
    if oom_index is not None:
        run_count = _first_run_with(schedule, oom_index)
        before_ms = float(run_ends_ms[run_count - 1]) if run_count else start_ms
        end_ms = before_ms + float(raw_ms[oom_index])
    key_ms = _time_per_key(schedule, run_count, run_ms, prefill_ms >= decode_ms)[: len(used)]
    if oom_index is not None:
        key_ms[oom_index] += raw_ms[oom_index]
    return Replay(
        start_ms=start_ms,
        run_ends_steps=np.cumsum(schedule.run_steps),
        run_ends_ms=run_ends_ms,
        step_ms=step_ms,
        used=used,
        oom_key=None if oom_index is None else used[oom_index],
        end_ms=end_ms,
        key_ms=key_ms,
        run_count=run_count,
    )


def _reached(
    schedule: Schedule, records: Mapping[ForwardShapeKey, ForwardLatencyRecord], engine: Engine
) -> tuple[tuple[ForwardShapeKey, ...], list[float], int | None]:
    """Return the shapes up to the first out-of-memory one, their folded latencies, and its index."""
    fold = engine.tokens_per_decode_step
    latencies_ms: list[float] = []
    for index, key in enumerate(schedule.keys):
        record = records[key]
        latencies_ms.append(record.latency_ms / fold if key.is_decode else record.latency_ms)
        if record.memory_left_gb < 0:
            return schedule.keys[: index + 1], latencies_ms, index
    return schedule.keys, latencies_ms, None


def _first_run_with(schedule: Schedule, key_index: int) -> int:
    hit = (schedule.run_prefill == key_index) | (schedule.run_decode == key_index)
    return int(np.argmax(hit))


def _time_per_key(
    schedule: Schedule, run_count: int, run_ms: FloatArray, prefill_rules: npt.NDArray[np.bool_]
) -> FloatArray:
    """Return the time of each run, summed by the shape that sets its steps' latency."""
    ruling = np.where(
        (prefill_rules & (schedule.run_prefill != NO_PASS)) | (schedule.run_decode == NO_PASS),
        schedule.run_prefill,
        schedule.run_decode,
    )
    totals = np.bincount(ruling[:run_count], run_ms[:run_count], minlength=len(schedule.keys))
    return totals.astype(np.float64)
