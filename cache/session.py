"""One process's work on one stored table: what is known, and what has just been computed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping

from cache.schema import record_digest_text
from cache.shapes import ForwardLatencyRecord, ForwardShapeKey
from cache.store import RecordWriter, StoredTable
from cache.view import TableView


class TableSession(Mapping[ForwardShapeKey, ForwardLatencyRecord]):
    """The records of a stored table, with those computed here on top.

    New records are known at once, even before they are published, and also where the table is read-only.

    Parameters
    ----------
    table : StoredTable
        Where records are kept.
    """

    def __init__(self, table: StoredTable) -> None:
        self._table = table
        self._view = TableView([])
        self._fresh: dict[ForwardShapeKey, ForwardLatencyRecord] = {}
        self._digests: dict[ForwardShapeKey, bytes] = {}
        self.writer = RecordWriter(table)

    def refresh(self) -> None:
        """Take in what other processes have published since."""
        self._view = self._table.load(self._view)

    def add(self, key: ForwardShapeKey, record: ForwardLatencyRecord, call_s: float) -> None:
        """Take a record that has just been computed here."""
        self._fresh[key] = record
        self.writer.add(key, record, call_s)

    def digest(self, key: ForwardShapeKey) -> bytes:
        """Return the SHA-256 of a known record with its key."""
        digest = self._digests.get(key)
        if digest is None:
            digest = self._digests[key] = hashlib.sha256(record_digest_text(key, self[key]).encode()).digest()
        return digest

    def __getitem__(self, key: ForwardShapeKey) -> ForwardLatencyRecord:
        record = self._fresh.get(key)
        return self._view[key] if record is None else record

    def __contains__(self, key: object) -> bool:
        return key in self._fresh or key in self._view

    def __iter__(self) -> Iterator[ForwardShapeKey]:
        yield from self._fresh
        yield from (key for key in self._view if key not in self._fresh)

    def __len__(self) -> int:
        return sum(1 for _ in self)
