"""Publishing of records as they are computed, so that little is lost whatever happens."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable

from cache.compact import compact_if_scattered
from cache.folder import ReadOnlyError, UnreachableError
from cache.schema import StoredRecord, key_values, rows_table
from cache.shapes import ForwardLatencyRecord, ForwardShapeKey
from cache.store import StoredTable, StoreWarning
from cache.view import Part, TableView

FLUSH_RECORDS = 256
FLUSH_S = 2.0
"""A writer holds back at most so many records, or so much work, before it publishes them."""

MERGE_PARTS = 64
"""A writer makes one part of its own ones when there are so many, and at its end."""


class RecordWriter:
    """Publishes records in batches, so that little is lost when the process dies.

    Parameters
    ----------
    table : StoredTable
        Where to.
    spool : StoredTable, optional
        Where to while the server of a remote table cannot be reached.
    clock_us : callable, optional
        The time of a record, microseconds since 1970 UTC.
    """

    def __init__(
        self,
        table: StoredTable,
        spool: StoredTable | None = None,
        clock_us: Callable[[], int] | None = None,
    ) -> None:
        self._table = table
        self._spool = spool
        self._clock_us = clock_us or (lambda: time.time_ns() // 1000)
        self._rows: list[StoredRecord] = []
        self._since = 0.0
        self._published: dict[str, list[StoredRecord]] = {}
        self.keeps_records = True
        self.spooling = False

    def add(self, key: ForwardShapeKey, record: ForwardLatencyRecord, call_s: float) -> None:
        """Take a record that has just been computed; publish when enough has gathered."""
        if not self._rows:
            self._since = time.monotonic() - call_s
        self._rows.append(StoredRecord(key, record, self._clock_us(), call_s))
        if len(self._rows) >= FLUSH_RECORDS or time.monotonic() - self._since >= FLUSH_S:
            self.flush()

    def flush(self) -> None:
        """Publish what has gathered. In a read-only folder, warn once and go on.

        Raises
        ------
        StoreError
            When it cannot be published; it is kept for the next attempt.
        """
        if not self._rows:
            return
        try:
            if self.keeps_records:
                self._publish(self._rows)
        except ReadOnlyError as error:
            self.keeps_records = False
            # It names the store and always stands here, so that a run over many tables says it once.
            text = self._table.without_id(f"{error} New records are not kept.")
            warnings.warn(text, StoreWarning, stacklevel=1)
        self._rows = []

    def _publish(self, rows: list[StoredRecord]) -> None:
        if not self.spooling:
            try:
                self._published[self._table.append(rows)] = rows
            except (UnreachableError, ReadOnlyError) as error:
                # Permission that ends during a run has expired; without it from the start, nothing is kept.
                expired = isinstance(error, ReadOnlyError) and self._published
                if self._spool is None or not (isinstance(error, UnreachableError) or expired):
                    raise
                self.spooling = True  # Every further attempt would wait for the same server.
        if self.spooling and self._spool is not None:
            self._spool.append(rows)
        elif len(self._published) >= MERGE_PARTS:
            self._merge()

    def close(self) -> None:
        """Publish what has gathered and what has vanished from the table since, and tidy the table."""
        self.flush()
        if self.spooling or not self.keeps_records:
            return
        try:
            if self._published:
                self._restore()
                self._merge()
            compact_if_scattered(self._table)
        except UnreachableError:
            return  # All of it was published, and the next run tidies.

    def _restore(self) -> None:
        """Publish again what somebody has deleted since it was published here."""
        names = set(self._table.part_names())
        gone = [rows for name, rows in self._published.items() if name not in names]
        if not gone:
            return
        known = self._table.load().out_of_memory_rows()  # Compaction moves records to another file.
        for rows in gone:
            missing = [row for row in rows if key_values(row.key) not in known]
            if missing:
                self._table.append(missing)

    def _merge(self) -> None:
        """Make one part of those published here, so that a run adds one file to a table."""
        if len(self._published) == 1:
            return
        rows = [row for part in self._published.values() for row in part]
        merged = self._table.publish(TableView([Part("", rows_table(rows, self._table.identity))]).distinct())
        for name in self._published:
            if name != merged:
                self._table.folder.delete(name)
        self._published = {merged: rows}

    def __enter__(self) -> RecordWriter:
        return self

    def __exit__(self, *exception: object) -> None:
        self.flush()
