"""The schedule: latency-free data that says which passes run in which order, and who gets tokens when."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cache.shapes import ForwardShapeKey

IntArray = npt.NDArray[np.int64]

NO_PASS = -1
"""Stands in a run for a prefill or decode pass that does not take place."""


@dataclass(frozen=True, eq=False)
class Schedule:
    """Runs of identical steps, and the token events between them.

    Attributes
    ----------
    keys : tuple of ForwardShapeKey
        The distinct shapes, in order of first use (prefill before decode within a step).
    run_prefill, run_decode : int arrays, shape (runs,)
        Index into `keys` of each run's prefill and decode pass; `NO_PASS` for none.
    run_steps : int array, shape (runs,)
        How many identical steps each run has.
    first_step, first_count : int arrays, shape (first-token events,)
        `first_count` requests got their first token at the end of step `first_step` (from 0).
    finish_start, finish_end, finish_count : int arrays, shape (finish events,)
        `finish_count` requests whose first token came after step `finish_start` finished after
        step `finish_end`.
    """

    keys: tuple[ForwardShapeKey, ...]
    run_prefill: IntArray
    run_decode: IntArray
    run_steps: IntArray
    first_step: IntArray
    first_count: IntArray
    finish_start: IntArray
    finish_end: IntArray
    finish_count: IntArray

    @property
    def num_steps(self) -> int:
        """Steps in all."""
        return int(self.run_steps.sum())


class ScheduleBuilder:
    """Collects runs and events in step order, merging equal neighbouring runs."""

    def __init__(self) -> None:
        self._key_index: dict[ForwardShapeKey, int] = {}
        self._runs: list[list[int]] = []
        self._first: tuple[list[int], list[int]] = ([], [])
        self._finish: tuple[list[int], list[int], list[int]] = ([], [], [])
        self.steps = 0

    def run(self, prefill: ForwardShapeKey | None, decode: ForwardShapeKey | None, steps: int) -> None:
        """Append `steps` identical steps."""
        prefill_index = NO_PASS if prefill is None else self.index(prefill)
        decode_index = NO_PASS if decode is None else self.index(decode)
        self.run_indexed(prefill_index, decode_index, steps)

    def run_indexed(self, prefill_index: int, decode_index: int, steps: int) -> None:
        """Append `steps` identical steps of shapes whose `index` is known."""
        self.steps += steps
        if self._runs:
            last = self._runs[-1]
            if last[0] == prefill_index and last[1] == decode_index:
                last[2] += steps
                return
        self._runs.append([prefill_index, decode_index, steps])

    def single_steps(self, prefill_index: int, decode_indexes: Iterable[int]) -> None:
        """Append single steps that differ in their decode shape, no two neighbours alike."""
        first, *rest = decode_indexes
        self.run_indexed(prefill_index, first, 1)
        self._runs.extend([prefill_index, decode_index, 1] for decode_index in rest)
        self.steps += len(rest)

    def first_tokens(self, step: int, count: int, steps: int = 1) -> None:
        """Note that `count` requests got their first token at the end of `step`.

        With `steps`, as many more follow, each a step later.
        """
        self._first[0].extend(range(step, step + steps))
        self._first[1].extend([count] * steps)

    def finished(self, start: int, end: int, count: int, steps: int = 1) -> None:
        """Note that `count` requests started at `start` finished at the end of step `end`.

        With `steps`, as many more such groups follow, each a step later in both.
        """
        self._finish[0].extend(range(start, start + steps))
        self._finish[1].extend(range(end, end + steps))
        self._finish[2].extend([count] * steps)

    def build(self) -> Schedule:
        """Return what was collected."""
        runs = np.array(self._runs, dtype=np.int64).reshape(len(self._runs), 3).T
        columns = [*runs, *self._first, *self._finish]
        arrays = [np.ascontiguousarray(column, dtype=np.int64) for column in columns]
        return Schedule(tuple(self._key_index), *arrays)

    def index(self, key: ForwardShapeKey) -> int:
        """Return the number of a shape; shapes are numbered by their first use, prefill before decode."""
        return self._key_index.setdefault(key, len(self._key_index))
