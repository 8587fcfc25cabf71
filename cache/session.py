"""One process's work on one stored table: what is known, and what has just been computed."""

from __future__ import annotations

import hashlib
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from cache.folder import UnreachableError
from cache.lock import lock_of
from cache.schema import KeyRow, key_values, record_digest_text
from cache.shapes import ForwardLatencyRecord, ForwardShapeKey
from cache.store import StoredTable, StoreWarning, short_id
from cache.view import TableView
from cache.writer import RecordWriter


class TableSession(Mapping[ForwardShapeKey, ForwardLatencyRecord]):
    """The records of a stored table, with those computed here on top.

    New records are known at once, even before they are published, and also where the table is read-only.

    Parameters
    ----------
    table : StoredTable
        Where records are kept.
    spool : StoredTable, optional
        Where they are kept while the server of a remote table cannot be reached.
    view : TableView, optional
        What has been read of the table already.
    """

    def __init__(
        self, table: StoredTable, spool: StoredTable | None = None, view: TableView | None = None
    ) -> None:
        self._table = table
        self._view = view
        self._lock = lock_of(table.folder)
        self._locked = False
        self._fresh: dict[ForwardShapeKey, ForwardLatencyRecord] = {}
        self._digests: dict[ForwardShapeKey, bytes] = {}
        self._stale = False
        self.writer = RecordWriter(table, spool)

    @property
    def view(self) -> TableView:
        """What is stored, as of the last refresh."""
        return self._view if self._view is not None else TableView([])

    def refresh(self) -> None:
        """Take in what other processes have published since.

        A server that drops out after the first time is no reason to stop: at worst, what others publish
        meanwhile is computed twice.
        """
        if self._stale:
            return
        try:
            self._view = self._table.load(self._view)
        except UnreachableError as error:
            if self._view is None:
                raise
            self._stale = True
            text = self._table.without_id(f"{error} The run goes on with what it knows.")
            warnings.warn(text, StoreWarning, stacklevel=1)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Publish what is computed inside, and let other runs compute for this table afterwards."""
        try:
            with self.writer:
                yield
        finally:
            if self._locked:
                self._lock.release()
                self._locked = False

    def get_or_lock(
        self, key: ForwardShapeKey, check_stop: Callable[[], None]
    ) -> ForwardLatencyRecord | None:
        """Return a record; None when it is missing and this process is the one to compute it.

        While another run computes for the table this waits, since that run may well be computing the same.

        Parameters
        ----------
        key : ForwardShapeKey
            The shape.
        check_stop : callable
            Called while waiting; raises to end it.
        """
        record = self.get(key)
        if record is not None or self._locked:
            return record
        waiting = False
        while not self._lock.try_acquire():
            if not waiting:
                identity = self._table.identity
                warnings.warn(
                    f"Another run computes for the table {short_id(identity.id)} ({identity.label}); this "
                    "one waits and uses its records.",
                    StoreWarning,
                    stacklevel=2,
                )
            waiting = True
            check_stop()
            time.sleep(self._lock.poll_s)
        self._locked = True
        self.refresh()
        return self.get(key)

    def add(self, key: ForwardShapeKey, record: ForwardLatencyRecord, call_s: float) -> None:
        """Take a record that has just been computed here."""
        self._fresh[key] = record
        self.writer.add(key, record, call_s)

    def close(self) -> None:
        """Publish what is not published yet, or not any more."""
        self.writer.close()

    def digest(self, key: ForwardShapeKey) -> bytes:
        """Return the SHA-256 of a known record with its key."""
        digest = self._digests.get(key)
        if digest is None:
            digest = self._digests[key] = hashlib.sha256(record_digest_text(key, self[key]).encode()).digest()
        return digest

    def out_of_memory_rows(self) -> dict[KeyRow, bool]:
        """Return, for the row of each known key, whether its record is out of memory."""
        fresh = {key_values(key): record.out_of_memory for key, record in self._fresh.items()}
        return self.view.out_of_memory_rows() | fresh

    def __getitem__(self, key: ForwardShapeKey) -> ForwardLatencyRecord:
        record = self._fresh.get(key)
        return self.view[key] if record is None else record

    def __contains__(self, key: object) -> bool:
        return key in self._fresh or key in self.view

    def __iter__(self) -> Iterator[ForwardShapeKey]:
        yield from self._fresh
        yield from (key for key in self.view if key not in self._fresh)

    def __len__(self) -> int:
        return sum(1 for _ in self)
