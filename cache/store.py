"""The shape store: records that outlive the process, one table per identity.

    ROOT/<identity id>/identity.json            what the table holds, readable
    ROOT/<identity id>/part-<sha256>.parquet    immutable; named by the digest of its bytes
    ROOT/<identity id>/quarantine/              files that could not be trusted

A part file is published whole, and its name proves its content at every read.
"""

from __future__ import annotations

import hashlib
import os
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import platformdirs
import pyarrow as pa

from cache.errors import SchemaError, StoreError
from cache.folder import Folder, LocalFolder, ReadOnlyError
from cache.identity import TableIdentity
from cache.schema import (
    StoredRecord,
    decode_table,
    encode_table,
    identity_file,
    parse_identity_file,
    rows_table,
)
from cache.shapes import ForwardLatencyRecord, ForwardShapeKey
from cache.view import Part, TableView

TABLES_VARIABLE = "SHAPECAST_TABLES"
IDENTITY_NAME = "identity.json"
QUARANTINE_NAME = "quarantine"

FLUSH_RECORDS = 256
FLUSH_S = 2.0
"""A writer holds back at most so many records, or so much work, before it publishes them."""

_READ_ATTEMPTS = 20


class StoreWarning(UserWarning):
    """Something in a store could not be used; the run goes on without it."""


def default_tables_dir() -> Path:
    """Return the store that is used when none is named: $SHAPECAST_TABLES, or the user's cache folder."""
    named = os.environ.get(TABLES_VARIABLE)
    if named:
        return Path(named)
    return Path(platformdirs.user_cache_dir("shapecast", appauthor=False)) / "tables"


class ShapeStore:
    """All tables under one root.

    Parameters
    ----------
    root : Path, str or Folder
        Where the tables are; need not exist yet.
    """

    def __init__(self, root: Path | str | Folder) -> None:
        self.root = root if isinstance(root, Folder) else LocalFolder(Path(root))

    def table(self, identity: TableIdentity) -> StoredTable:
        """Return the table of an identity, whether or not it has records."""
        return StoredTable(self.root.child(identity.id), identity)

    def ids(self) -> list[str]:
        """Return the ids of all tables, sorted."""
        return [name for name in self.root.child_names() if len(name) == 64]

    def open(self, table_id: str) -> StoredTable:
        """Return a table by its id.

        Raises
        ------
        StoreError
            When its identity file is missing or does not match.
        """
        folder = self.root.child(table_id)
        try:
            data = folder.read(IDENTITY_NAME)
        except FileNotFoundError as error:
            raise StoreError(f"{folder} has no {IDENTITY_NAME}, so it is no table.") from error
        return StoredTable(folder, parse_identity_file(data, f"{folder}/{IDENTITY_NAME}"))


class StoredTable:
    """The records of one identity on disk."""

    def __init__(self, folder: Folder, identity: TableIdentity) -> None:
        self.folder = folder
        self.identity = identity

    def part_names(self) -> list[str]:
        """Return the names of the part files."""
        return [name for name in self.folder.names() if is_part_name(name)]

    def load(self, seen: TableView | None = None) -> TableView:
        """Return all records.

        A file that cannot be trusted is set aside under `quarantine/` with a warning.

        Parameters
        ----------
        seen : TableView, optional
            An earlier answer; its files are immutable and so not read again.

        Raises
        ------
        SchemaError
            When a newer shapecast wrote a file.
        ConflictError
            When two records of one shape differ.
        """
        for _ in range(_READ_ATTEMPTS):
            try:
                return self._load(seen)
            except FileNotFoundError:
                continue  # A compaction has just replaced files that were listed; list again.
        raise StoreError(f"The files of {self.folder} change faster than they can be read; run again.")

    def _load(self, seen: TableView | None) -> TableView:
        known = {part.source for part in seen.parts} if seen is not None else set()
        new = [name for name in self._data_names() if self._source(name) not in known]
        if seen is not None and not new:
            return seen
        return TableView([part for name in new if (part := self._trusted(name))], seen)

    def _source(self, name: str) -> str:
        return f"{self.folder}/{name}"

    def read_part(self, name: str) -> pa.Table:
        """Return the rows of one part file.

        Raises
        ------
        StoreError
            When its bytes, columns or identity are not what its place and name promise.
        """
        data = self.folder.read(name)
        source = self._source(name)
        table, identity = decode_table(data, source)
        if name != part_name(data):
            raise StoreError(
                f"{source} is not named by the digest of its content; it was changed or renamed."
            )
        if identity.id != self.identity.id:
            raise StoreError(f"{source} belongs to the table {identity.id}.")
        return table

    def append(self, rows: list[StoredRecord]) -> str:
        """Publish rows as one part file, and return its name."""
        return self.publish(rows_table(rows, self.identity))

    def publish(self, table: pa.Table) -> str:
        """Publish an Arrow table as one part file, and return its name."""
        data = encode_table(table, self.identity)
        name = part_name(data)
        if IDENTITY_NAME not in self.folder.names():
            self.folder.publish(IDENTITY_NAME, identity_file(self.identity))
        self.folder.publish(name, data)
        return name

    def _data_names(self) -> list[str]:
        names = self.folder.names()
        if IDENTITY_NAME in names:
            self._check_identity_file()
        return [name for name in names if name != IDENTITY_NAME]

    def _check_identity_file(self) -> None:
        source = self._source(IDENTITY_NAME)
        try:
            parse_identity_file(self.folder.read(IDENTITY_NAME), source)
        except SchemaError:
            raise
        except StoreError as error:
            # The parts carry the identity as well, so the next write restores this file.
            self._set_aside(IDENTITY_NAME, error)

    def _trusted(self, name: str) -> Part | None:
        try:
            return Part(self._source(name), self.read_part(name))
        except SchemaError:
            raise
        except StoreError as error:
            self._set_aside(name, error)
            return None

    def _set_aside(self, name: str, error: StoreError) -> None:
        done = f"it is set aside under {QUARANTINE_NAME}/"
        try:
            self.folder.set_aside(name, QUARANTINE_NAME)
        except FileNotFoundError:
            return  # Another run has set it aside.
        except ReadOnlyError:
            done = "it is ignored"
        warnings.warn(f"{error} So {done}, and its shapes count as unknown.", StoreWarning, stacklevel=4)


class RecordWriter:
    """Publishes records in batches, so that little is lost when the process dies.

    Parameters
    ----------
    table : StoredTable
        Where to.
    clock_us : callable, optional
        The time of a record, microseconds since 1970 UTC.
    """

    def __init__(self, table: StoredTable, clock_us: Callable[[], int] | None = None) -> None:
        self._table = table
        self._clock_us = clock_us or (lambda: time.time_ns() // 1000)
        self._rows: list[StoredRecord] = []
        self._since = 0.0
        self.keeps_records = True

    def add(self, key: ForwardShapeKey, record: ForwardLatencyRecord, call_s: float) -> None:
        """Take a record that has just been computed; publish when enough has gathered."""
        if not self._rows:
            self._since = time.monotonic() - call_s
        self._rows.append(StoredRecord(key, record, self._clock_us(), call_s))
        if len(self._rows) >= FLUSH_RECORDS or time.monotonic() - self._since >= FLUSH_S:
            self.flush()

    def flush(self) -> None:
        """Publish what has gathered. In a read-only folder, warn once and go on."""
        if not self._rows:
            return
        try:
            if self.keeps_records:
                self._table.append(self._rows)
        except ReadOnlyError as error:
            self.keeps_records = False
            warnings.warn(f"{error} New records are not kept.", StoreWarning, stacklevel=3)
        self._rows = []

    def __enter__(self) -> RecordWriter:
        return self

    def __exit__(self, *exception: object) -> None:
        self.flush()


def part_name(data: bytes) -> str:
    """Return the name of a part file with this content."""
    return f"part-{hashlib.sha256(data).hexdigest()}.parquet"


def is_part_name(name: str) -> bool:
    """Whether a file name is that of a part file."""
    return name.startswith("part-") and name.endswith(".parquet")
