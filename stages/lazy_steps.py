"""The schedule of a policy that looks at latencies: made while records are asked for."""

from __future__ import annotations

from cache.shapes import ForwardLatencyRecord, ForwardShapeKey
from stages.candidate import Candidate
from stages.mixed_steps import MixedSteps
from stages.schedule import Schedule
from stages.scheduler import AskRecord, LazyScheduler, Step

AskedRecords = dict[ForwardShapeKey, ForwardLatencyRecord]


def walk_lazy_steps(
    candidate: Candidate, scheduler: LazyScheduler, record: AskRecord
) -> tuple[Schedule, AskedRecords]:
    """Return the schedule that the policy makes, and all records it asked for, in order.

    An out-of-memory record ends the walk, also when it was asked for and never scheduled: its pass is the
    last step.

    Parameters
    ----------
    candidate : Candidate
        An aggregated candidate whose prompts take several chunks.
    scheduler : LazyScheduler
        Its policy.
    record : callable
        Where records come from, such as the `get` of a table.
    """
    steps = _LazyMixedSteps(candidate, scheduler, record)
    try:
        steps.plan()
    except _OutOfMemoryError as stop:
        key = stop.key
        steps.builder.run(None if key.is_decode else key, key if key.is_decode else None, 1)
    return steps.builder.build(), steps.asked


class _OutOfMemoryError(Exception):
    """A record that was asked for does not fit the device: the walk ends here."""

    def __init__(self, key: ForwardShapeKey) -> None:
        super().__init__(str(key))
        self.key = key


class _LazyMixedSteps(MixedSteps):
    def __init__(self, candidate: Candidate, scheduler: LazyScheduler, record: AskRecord) -> None:
        super().__init__(candidate, scheduler)
        self.asked: AskedRecords = {}
        self._lazy = scheduler
        self._record = record

    def decide(self, ready: int, front: int, query_len: int, chunk: int) -> tuple[int, int]:
        """Ask the policy, and make sure that what it schedules has been asked for."""
        step = Step(
            ready,
            front,
            query_len,
            self.budget,
            lambda count: self.keys.prefill(count, chunk),
            self.keys.decode,
            self.candidate.engine.fold_decode_ms,
        )
        prefill, decode = self._lazy.decide(step, self._ask)
        if 0 < prefill <= front:
            self._ask(step.prefill_key(prefill))
        if 0 < decode <= ready:
            self._ask(step.decode_key(decode))
        return prefill, decode

    def equal_decisions(self, ready: int, change: int, front: int, prefill: int, query_len: int) -> int:
        """Return 1 when the decode count changes: its next shape may be out of memory."""
        return 1 if change else super().equal_decisions(ready, change, front, prefill, query_len)

    def chunks_before_the_last(self) -> None:
        """Plan these passes one by one: each chunk has latencies of its own."""
        for chunk in range(self.keys.chunks.num_chunks - 1):
            for prefill, steps in self.pass_decisions(chunk):
                self.builder.run(self.keys.prefill(prefill, chunk), None, steps)

    def _ask(self, key: ForwardShapeKey) -> ForwardLatencyRecord:
        if key not in self.asked:
            self.asked[key] = self._record(key)
        if self.asked[key].out_of_memory:
            raise _OutOfMemoryError(key)
        return self.asked[key]
