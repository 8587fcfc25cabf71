"""The step-by-step schedule of chunked prefill beside decode, planned in runs of equal steps.

Between events (a chunk pass ending, a request finishing, the decode count changing) all steps are
equal, so the plan jumps from event to event: O(chunks + concurrency) while every ready request decodes
in every step. With more ready requests than budget it steps literally.
"""

from __future__ import annotations

from collections import deque
from functools import cache

from cache.errors import InvalidValueError
from cache.shapes import ForwardShapeKey
from stages.candidate import Candidate
from stages.schedule import Schedule, ScheduleBuilder
from stages.scheduler import Scheduler, get_scheduler
from stages.shape_keys import decode_key, prefill_key


def plan_mixed_steps(candidate: Candidate) -> Schedule:
    """Return the schedule of an aggregated candidate whose prompts take several chunks.

    Raises
    ------
    InvalidValueError
        When the scheduler decides on nothing, or on more than there is.
    """
    scheduler = get_scheduler(candidate.engine.scheduler)
    chunks = candidate.chunks
    ready = ReadyQueue(candidate.workload.output_length - 1)
    builder = ScheduleBuilder()

    @cache
    def decode_shape(count: int) -> ForwardShapeKey | None:
        return decode_key(candidate, count) if count else None

    # All requests pass chunk i before any starts chunk i + 1: those behind the front have one index.
    for chunk in range(chunks.num_chunks):
        last = chunk == chunks.num_chunks - 1
        query_len = chunks.query_len(chunk)
        front = candidate.concurrency
        while front:
            prefill, decode = _decide(scheduler, ready.count, front, query_len, candidate.budget_tokens)
            steps = ready.equal_steps(decode)
            if prefill:
                joins = last and ready.tokens_after_first > 0
                steps = 1 if joins else min(steps, front // prefill)
            if not scheduler.steady:
                steps = 1
            shape = prefill_key(candidate, prefill, chunk) if prefill else None
            start = builder.steps
            builder.run(shape, decode_shape(decode), steps)
            front -= prefill * steps
            if last and prefill:
                _give_first_tokens(builder, ready, start, steps, prefill)
            ready.decode(builder, decode, steps)
    while ready.count:
        _, decode = _decide(scheduler, ready.count, 0, candidate.budget_tokens, candidate.budget_tokens)
        steps = ready.equal_steps(decode) if scheduler.steady else 1
        builder.run(None, decode_shape(decode), steps)
        ready.decode(builder, decode, steps)
    return builder.build()


def _decide(scheduler: Scheduler, ready: int, front: int, query_len: int, budget: int) -> tuple[int, int]:
    prefill, decode = scheduler.decide(ready, front, query_len, budget)
    if not (0 <= prefill <= front and 0 <= decode <= ready):
        raise InvalidValueError(
            f"The scheduler {scheduler.name!r} decided on {prefill} prefills of {front} and {decode} decodes "
            f"of {ready}; it must stay within what is waiting."
        )
    if prefill == decode == 0:
        raise InvalidValueError(
            f"The scheduler {scheduler.name!r} makes no progress: with {front} prompts of {query_len} tokens "
            f"and {ready} ready requests it starts nothing in a budget of {budget} tokens; "
            "raise max_batched_tokens."
        )
    return prefill, decode


def _give_first_tokens(
    builder: ScheduleBuilder, ready: ReadyQueue, start: int, steps: int, prefill: int
) -> None:
    for step in range(start, start + steps):
        builder.first_tokens(step, prefill)
        if ready.tokens_after_first == 0:
            builder.finished(step, step, prefill)
        else:
            ready.join(prefill, step)


class ReadyQueue:
    """Requests that have their first token, first in first out, as groups of equal requests.

    A group is `[count, due, start]`: its requests got their first token after step `start` and have
    `due - elapsed` tokens left, where `elapsed` counts the steps in which all requests decoded. So a step
    in which all decode touches no group.

    Parameters
    ----------
    tokens_after_first : int
        Tokens that a request still wants when it joins.
    """

    def __init__(self, tokens_after_first: int) -> None:
        self.tokens_after_first = tokens_after_first
        self.count = 0
        self._groups: deque[list[int]] = deque()
        self._elapsed = 0
        self._joined = False
        # While only full steps happen, the groups stand newest first, so the next to finish is last.
        self._next_due_is_last = True

    def join(self, count: int, start: int) -> None:
        """Append `count` requests; they decode from the next step on."""
        self._groups.append([count, self.tokens_after_first + self._elapsed, start])
        self.count += count
        self._joined = True

    def equal_steps(self, decode: int) -> int:
        """Return for how many steps a decode count of `decode` stays right: until the next finish."""
        if decode == 0:
            return 1 << 62
        if decode < self.count:
            return 1
        return self._next_due() - self._elapsed

    def decode(self, builder: ScheduleBuilder, decode: int, steps: int) -> None:
        """Let the `decode` requests at the front decode `steps` tokens, up to the step just planned."""
        joined, self._joined = self._joined, False
        if decode == 0:
            self._next_due_is_last &= len(self._groups) <= 1
            return
        newest = self._groups[-1][0] if joined else 0
        if decode == self.count - newest:
            self._decode_all(builder, steps, joined)
        else:
            self._decode_front(builder, decode)

    def _decode_all(self, builder: ScheduleBuilder, steps: int, joined: bool) -> None:
        """All but a group that has just joined decode, and so pass behind that group."""
        self._elapsed += steps
        if joined:
            newest = self._groups.pop()
            newest[1] += steps
            self._groups.appendleft(newest)
        while self._groups and self._next_due() <= self._elapsed:
            self._finish_due(builder)

    def _next_due(self) -> int:
        if self._next_due_is_last:
            return self._groups[-1][1]
        return min(group[1] for group in self._groups)

    def _finish_due(self, builder: ScheduleBuilder) -> None:
        if self._next_due_is_last:
            done = [self._groups.pop()]
        else:
            done = [group for group in self._groups if group[1] <= self._elapsed]
            self._groups = deque(group for group in self._groups if group[1] > self._elapsed)
        for count, _, start in done:
            self.count -= count
            builder.finished(start, builder.steps - 1, count)

    def _decode_front(self, builder: ScheduleBuilder, decode: int) -> None:
        """Only the front decodes: one literal step."""
        self._next_due_is_last = False
        waiting = decode
        moved: list[list[int]] = []
        while waiting:
            group = self._groups.popleft()
            count = min(group[0], waiting)
            waiting -= count
            if count < group[0]:
                self._groups.appendleft([group[0] - count, group[1], group[2]])
            due = group[1] - 1
            if due == self._elapsed:
                self.count -= count
                builder.finished(group[2], builder.steps - 1, count)
            elif moved and moved[-1][1:] == [due, group[2]]:
                moved[-1][0] += count
            else:
                moved.append([count, due, group[2]])
        self._groups.extend(moved)
