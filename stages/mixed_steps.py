"""The step-by-step schedule of chunked prefill beside decode, planned in runs of equal steps.

Between events (a chunk pass ending, a request finishing, the decode count changing) all steps are
equal, so the plan jumps from event to event: O(chunks + concurrency) while every ready request decodes
in every step. With more ready requests than budget it steps literally.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from cache.errors import InvalidValueError
from stages.candidate import Candidate
from stages.schedule import NO_PASS, Schedule, ScheduleBuilder
from stages.scheduler import UNLIMITED, Scheduler, SchedulingPolicy
from stages.scheduler_registry import get_scheduler
from stages.shape_keys import ShapeKeys


def plan_mixed_steps(candidate: Candidate) -> Schedule:
    """Return the schedule of an aggregated candidate whose prompts take several chunks.

    Raises
    ------
    InvalidValueError
        When the scheduler decides on nothing, or on more than there is, or decides by latencies.
    """
    scheduler = get_scheduler(candidate.engine.scheduler)
    if not isinstance(scheduler, Scheduler):
        raise InvalidValueError(
            f"The scheduler {scheduler} decides by latencies, so its steps cannot be planned without "
            "records; evaluate the candidate instead."
        )
    steps = DryMixedSteps(candidate, scheduler)
    steps.plan()
    return steps.builder.build()


class MixedSteps(ABC):
    """One candidate's schedule as it is planned.

    Before the last chunk no request is ready, so those passes are plain. From the last chunk on, requests
    become ready and decode.

    Parameters
    ----------
    candidate : Candidate
        An aggregated candidate whose prompts take several chunks.
    scheduler : SchedulingPolicy
        Its policy.
    """

    def __init__(self, candidate: Candidate, scheduler: SchedulingPolicy) -> None:
        self.builder = ScheduleBuilder()
        self.candidate = candidate
        self.keys = ShapeKeys(candidate)
        self.budget = candidate.budget_tokens
        self._scheduler = scheduler
        self._chunks = self.keys.chunks
        self._tokens_after_first = candidate.workload.output_length - 1
        # A shape is made and looked up once, however many runs use it.
        self._prefill_index: dict[tuple[int, int], int] = {}
        self._decode_index: dict[int, int] = {0: NO_PASS}

    def plan(self) -> None:
        """Plan all steps."""
        self.chunks_before_the_last()
        front, ready = self.last_chunk_while_all_decode()
        if front or ready.count:
            self.last_chunk(front, ready)

    @abstractmethod
    def decide(self, ready: int, front: int, query_len: int, chunk: int) -> tuple[int, int]:
        """Ask the policy about a step whose front is at chunk `chunk`."""

    @abstractmethod
    def chunks_before_the_last(self) -> None:
        """Plan the passes of all chunks but the last.

        All requests pass chunk i before any starts chunk i + 1: those behind the front have one index.
        """

    def pass_decisions(self, chunk: int) -> Iterator[tuple[int, int]]:
        """Yield (prefill count, steps) until all requests have passed `chunk`, while none is ready."""
        front, query_len = self.candidate.concurrency, self._chunks.query_len(chunk)
        while front:
            prefill, _ = self._decide(0, front, query_len, chunk)
            steps = min(front // prefill, self.equal_decisions(0, 0, front, prefill, query_len))
            yield prefill, steps
            front -= prefill * steps

    def last_chunk_while_all_decode(self) -> tuple[int, ReadyQueue]:
        """Plan the last chunk's pass, and the decoding after it, while every ready request decodes.

        Then requests finish in the order in which they became ready, a fixed number of steps later. So
        steps are planned in blocks, in each of which the same number join and the same number finish at
        every step, and the decode count is an arithmetic progression.
        Returns what is left when a step comes in which only some of the ready requests decode: how many
        requests still wait for their last chunk, and the ready ones.
        """
        builder, wanted = self.builder, self._tokens_after_first
        chunk = self._chunks.num_chunks - 1
        front, ready = self.candidate.concurrency, 0
        joined: deque[_Joined] = deque()  # the next to finish first
        while front or ready:
            query_len = self._chunks.query_len(chunk) if front else self.budget
            prefill, decode = self._decide(ready, front, query_len, chunk)
            if decode != ready:
                break
            start = builder.steps
            steps = front // prefill if prefill else UNLIMITED
            if prefill and wanted:
                steps = min(steps, wanted)  # Then the first of those that join now finish.
            finish = 0
            if ready:
                due = joined[0].first_step + wanted
                finish = joined[0].count if due == start else 0
                steps = min(steps, joined[0].steps if finish else due - start)
            change = (prefill if wanted else 0) - finish
            steps = min(steps, self.equal_decisions(ready, change, front, prefill, query_len))
            self._run(prefill, chunk, ready, change, steps)
            if finish:
                builder.finished(joined[0].first_step, start, finish, steps)
                joined[0].first_step += steps
                joined[0].steps -= steps
                if not joined[0].steps:
                    joined.popleft()
            if prefill:
                self._first_tokens(start, steps, prefill)
                if wanted:
                    joined.append(_Joined(start, steps, prefill))
            front -= prefill * steps
            ready += change * steps
        waiting = [(one.first_step + i, one.count) for one in joined for i in range(one.steps)]
        return front, ReadyQueue(wanted, builder.steps, waiting)

    def last_chunk(self, front: int, ready: ReadyQueue) -> None:
        """Plan the rest of the last chunk's pass and of the decoding, for any decode counts."""
        builder, chunk = self.builder, self._chunks.num_chunks - 1
        while front or ready.count:
            query_len = self._chunks.query_len(chunk) if front else self.budget
            prefill, decode = self._decide(ready.count, front, query_len, chunk)
            start = builder.steps
            steps = ready.equal_steps(decode)
            if prefill:
                steps = 1 if self._tokens_after_first else min(steps, front // prefill)
            steps = min(steps, self.equal_decisions(ready.count, 0, front, prefill, query_len))
            self._run(prefill, chunk, decode, 0, steps)
            if prefill:
                front -= prefill * steps
                self._first_tokens(start, steps, prefill)
                if self._tokens_after_first:
                    ready.join(prefill, start)
            ready.decode(builder, decode, steps)

    def _run(self, prefill: int, chunk: int, decode: int, change: int, steps: int) -> None:
        """Append steps whose decode count begins at `decode` and changes by `change` after each."""
        prefill_index = self._prefill(prefill, chunk)
        if not change:
            self.builder.run_indexed(prefill_index, self._decode(decode), steps)
            return
        counts = range(decode, decode + change * steps, change)
        self.builder.single_steps(prefill_index, [self._decode(count) for count in counts])

    def _prefill(self, count: int, chunk: int) -> int:
        if not count:
            return NO_PASS
        shape = (count, chunk)
        if shape not in self._prefill_index:
            self._prefill_index[shape] = self.builder.index(self.keys.prefill(count, chunk))
        return self._prefill_index[shape]

    def _decode(self, count: int) -> int:
        if count not in self._decode_index:
            self._decode_index[count] = self.builder.index(self.keys.decode(count))
        return self._decode_index[count]

    def _first_tokens(self, start: int, steps: int, count: int) -> None:
        self.builder.first_tokens(start, count, steps)
        if not self._tokens_after_first:
            self.builder.finished(start, start, count, steps)

    def equal_decisions(self, ready: int, change: int, front: int, prefill: int, query_len: int) -> int:
        """Return for how many steps a decision stays; see `SchedulingPolicy.equal_decisions`."""
        return self._scheduler.equal_decisions(ready, change, front, prefill, query_len, self.budget)

    def _decide(self, ready: int, front: int, query_len: int, chunk: int) -> tuple[int, int]:
        prefill, decode = self.decide(ready, front, query_len, chunk)
        if not (0 <= prefill <= front and 0 <= decode <= ready) or prefill == decode == 0:
            raise _wrong_decision(self._scheduler.name, prefill, decode, front, ready, query_len, self.budget)
        return prefill, decode


class DryMixedSteps(MixedSteps):
    """The schedule of a policy that is decided without latencies.

    Parameters
    ----------
    candidate, scheduler
        As for `MixedSteps`.
    """

    def __init__(self, candidate: Candidate, scheduler: Scheduler) -> None:
        super().__init__(candidate, scheduler)
        self._dry = scheduler

    def decide(self, ready: int, front: int, query_len: int, chunk: int) -> tuple[int, int]:
        """Ask the policy, which does not see which chunk it is."""
        return self._dry.decide(ready, front, query_len, self.budget)

    def chunks_before_the_last(self) -> None:
        """Plan these passes, which are of one length and so of the same steps."""
        decisions = list(self.pass_decisions(0))
        for chunk in range(self._chunks.num_chunks - 1):
            for prefill, steps in decisions:
                self.builder.run_indexed(self._prefill(prefill, chunk), NO_PASS, steps)


def _wrong_decision(
    name: str, prefill: int, decode: int, front: int, ready: int, query_len: int, budget: int
) -> InvalidValueError:
    if prefill == decode == 0:
        return InvalidValueError(
            f"The scheduler {name!r} makes no progress: with {front} prompts of {query_len} tokens "
            f"and {ready} ready requests it starts nothing in a budget of {budget} tokens; "
            "raise max_batched_tokens."
        )
    return InvalidValueError(
        f"The scheduler {name!r} decided on {prefill} prefills of {front} and {decode} decodes "
        f"of {ready}; it must stay within what is waiting."
    )


@dataclass
class _Joined:
    """Groups of `count` requests that became ready after each of `steps` steps from `first_step` on."""

    first_step: int
    steps: int
    count: int


class ReadyQueue:
    """Requests that have their first token, first in first out, as groups of equal requests.

    A group is `[count, due, start]`: its requests got their first token after step `start` and have
    `due - elapsed` tokens left, where `elapsed` counts the steps in which all requests decoded. So a step
    in which all decode touches no group.

    Parameters
    ----------
    tokens_after_first : int
        Tokens that a request still wants when it joins.
    step : int
        The step that comes next.
    waiting : iterable of (int, int)
        First-token step and count of the requests that are ready already, and of which all have decoded
        in every step since: the next to finish first.
    """

    def __init__(
        self, tokens_after_first: int, step: int = 0, waiting: Iterable[tuple[int, int]] = ()
    ) -> None:
        self.tokens_after_first = tokens_after_first
        # A step in which all decode puts those that join before the others, so the newest stand first.
        self._groups = deque(
            [count, tokens_after_first - (step - 1 - start), start] for start, count in reversed([*waiting])
        )
        self.count = sum(group[0] for group in self._groups)
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
            return UNLIMITED
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
