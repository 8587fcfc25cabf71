"""Trace: where a candidate's time goes, small enough to keep beside its result and to draw.

Two views: the prefill passes of one prompt as its context grows, and the schedule over time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from cache.shapes import BOUND_TYPES, ForwardLatencyRecord, ForwardShapeKey
from stages.breakdown import bound_shares
from stages.plan import Plan
from stages.replay import Replay
from stages.schedule import NO_PASS

MOST_CHUNKS = 256
MOST_SEGMENTS = 400
_DIGITS = 6

Columns = dict[str, list[Any]]


@dataclass(frozen=True, eq=False)
class Trace:
    """Where a candidate's time goes.

    Attributes
    ----------
    chunks : mapping of str to list
        One entry per prefill chunk, in order of context: `seq_len` (tokens after the pass), `query_len`,
        `requests`, `latency_ms`, and `<bound type>_ms` where the runner tells. Of several passes of one
        chunk the one with the most time stands for it. Evenly thinned to `MOST_CHUNKS`; empty where steps
        mix prompts of several lengths.
    segments : mapping of str to list
        The schedule in order of time: `start_ms`, `end_ms`, `steps`, and per step the requests in its
        prefill and decode pass, `prefill_requests` and `decode_requests`. A segment is a run of equal steps,
        or, in schedules with more than `MOST_SEGMENTS` runs, the mean over neighbouring runs.
    runs_per_segment : int
        Runs that one segment stands for.
    """

    chunks: Columns
    segments: Columns
    runs_per_segment: int

    def as_json(self) -> dict[str, Any]:
        """Return the trace as plain JSON values."""
        return {
            "chunks": self.chunks,
            "segments": self.segments,
            "runs_per_segment": self.runs_per_segment,
        }


def trace(plan: Plan, times: Replay, records: Mapping[ForwardShapeKey, ForwardLatencyRecord]) -> Trace:
    """Return where the time of a replayed plan goes.

    Parameters
    ----------
    plan : Plan
        What ran.
    times : Replay
        When.
    records : mapping
        Records of the shapes that were reached.
    """
    runs_per_segment = max(-(-times.run_count // MOST_SEGMENTS), 1)
    return Trace(_chunks(times, records), _segments(plan, times, runs_per_segment), runs_per_segment)


def _chunks(times: Replay, records: Mapping[ForwardShapeKey, ForwardLatencyRecord]) -> Columns:
    if any(key.segments is not None for key in times.used):
        # Steps that mix prompts of several lengths have no one context that grows.
        return {"seq_len": [], "query_len": [], "requests": [], "latency_ms": []}
    longest: dict[int, tuple[float, ForwardShapeKey]] = {}
    for key, time_ms in zip(times.used, times.key_ms, strict=True):
        if not key.is_decode and longest.get(key.seq_len, (-1.0,))[0] < time_ms:
            longest[key.seq_len] = float(time_ms), key
    keys = _thinned([longest[seq_len][1] for seq_len in sorted(longest)])
    columns: Columns = {
        "seq_len": [key.seq_len for key in keys],
        "query_len": [key.query_len for key in keys],
        "requests": [key.model_concurrency for key in keys],
        "latency_ms": _rounded(records[key].latency_ms for key in keys),
    }
    shares = [bound_shares(records[key]) for key in keys]
    for index, name in enumerate(BOUND_TYPES):
        parts = [share[index] if share else 0.0 for share in shares]
        if any(parts):
            columns[f"{name}_ms"] = _rounded(
                part * records[key].latency_ms for part, key in zip(parts, keys, strict=True)
            )
    return columns


def _thinned(keys: list[ForwardShapeKey]) -> list[ForwardShapeKey]:
    """Return at most `MOST_CHUNKS` keys, evenly spread, the first and last among them."""
    if len(keys) <= MOST_CHUNKS:
        return keys
    picked = np.linspace(0, len(keys) - 1, MOST_CHUNKS).round().astype(int)
    return [keys[index] for index in picked]


def _segments(plan: Plan, times: Replay, runs_per_segment: int) -> Columns:
    schedule, count = plan.schedule, times.run_count
    if count == 0:
        return {name: [] for name in ("start_ms", "end_ms", "steps", "prefill_requests", "decode_requests")}
    firsts = np.arange(0, count, runs_per_segment)
    steps = schedule.run_steps[:count]
    sums = np.add.reduceat(steps, firsts)
    ends_ms = times.run_ends_ms[np.append(firsts[1:], count) - 1]
    # The last entry, 0, answers NO_PASS.
    assert NO_PASS == -1
    requests = np.array([*(key.model_concurrency for key in plan.schedule.keys), 0])
    columns: Columns = {
        "start_ms": _rounded([times.start_ms, *ends_ms[:-1]]),
        "end_ms": _rounded(ends_ms),
        "steps": sums.tolist(),
    }
    for name, run_keys in (("prefill", schedule.run_prefill), ("decode", schedule.run_decode)):
        total = np.add.reduceat(requests[run_keys[:count]] * steps, firsts)
        columns[f"{name}_requests"] = _rounded(total / sums)
    return columns


def _rounded(values: Any) -> list[float]:
    """Return numbers to six digits: enough for a picture, and half the size."""
    return [float(f"{float(value):.{_DIGITS}g}") for value in values]
