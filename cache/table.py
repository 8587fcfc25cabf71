"""The in-memory view of one table: each shape computed once, stopped by the first out-of-memory record."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping

from cache.errors import MissingShapeError
from cache.shapes import ForwardLatencyRecord, ForwardShapeKey

Forward = Callable[[ForwardShapeKey], ForwardLatencyRecord]
Computed = Callable[[ForwardShapeKey, ForwardLatencyRecord, float], None]


class ForwardLatencyTable:
    """Exact records by shape, computed when first needed.

    The table stops at the first out-of-memory record that a candidate meets: that record is kept,
    `memory_exceeded_key` names it, and no later key is ever started. The stop cannot be switched off.

    Parameters
    ----------
    forward : callable
        ForwardShapeKey -> ForwardLatencyRecord; called once per missing shape, one at a time.
    known : mapping, optional
        Records that need no call, e.g. a stored table; read only, may be lazy.
    computed : callable, optional
        Called with (key, record, call_s) right after each call of `forward`; where records are kept.
    """

    def __init__(
        self,
        forward: Forward,
        known: Mapping[ForwardShapeKey, ForwardLatencyRecord] | None = None,
        computed: Computed | None = None,
    ) -> None:
        self._forward = forward
        self._known = known if known is not None else {}
        self._computed = computed
        self._records: dict[ForwardShapeKey, ForwardLatencyRecord] = {}
        self.forward_calls = 0
        self.memory_exceeded_key: ForwardShapeKey | None = None

    def new_candidate(self) -> None:
        """Begin another candidate: it has met no out-of-memory record yet. Records stay."""
        self.memory_exceeded_key = None

    def prefetch(self, keys: Iterable[ForwardShapeKey]) -> None:
        """Make the records of `keys` known, in order, up to the first out-of-memory record.

        Sequential on purpose: a shape behind an out-of-memory one must never be started.
        """
        for key in keys:
            if self.memory_exceeded_key is not None:
                return
            self.get(key)

    def get(self, key: ForwardShapeKey) -> ForwardLatencyRecord:
        """Return the record of `key`, computing it when it is missing.

        Raises
        ------
        MissingShapeError
            When the table has stopped and the record is missing.
        """
        record = self._lookup(key)
        if record is None:
            if self.memory_exceeded_key is not None:
                raise MissingShapeError(
                    f"The table stopped at the out-of-memory shape ({self.memory_exceeded_key}), "
                    f"so the shape ({key}) has no record and is not computed; "
                    "read only shapes up to the stop."
                )
            record = self._compute(key)
        if record.out_of_memory and self.memory_exceeded_key is None:
            self.memory_exceeded_key = key
        return record

    def __contains__(self, key: ForwardShapeKey) -> bool:
        return self._lookup(key) is not None

    def _lookup(self, key: ForwardShapeKey) -> ForwardLatencyRecord | None:
        record = self._records.get(key)
        if record is None:
            record = self._known.get(key)
            if record is not None:
                self._records[key] = record
        return record

    def _compute(self, key: ForwardShapeKey) -> ForwardLatencyRecord:
        started = time.perf_counter()
        record = self._forward(key)
        call_s = time.perf_counter() - started
        self.forward_calls += 1
        self._records[key] = record
        if self._computed is not None:
            self._computed(key, record, call_s)
        return record
