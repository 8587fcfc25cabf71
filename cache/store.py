"""The shape store: records that outlive the process, one table per identity.

    ROOT/<identity id>/identity.json            what the table holds, readable
    ROOT/<identity id>/part-<sha256>.parquet    immutable; named by the digest of its bytes
    ROOT/<identity id>/quarantine/              files that could not be trusted
    ROOT/<identity id>/runner.json, last-used   notes: how to compute again, when last used

A part file is published whole, and its name proves its content at every read.
"""

from __future__ import annotations

import hashlib
import os
import time
import warnings
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import platformdirs
import pyarrow as pa

from cache.checks import check_values
from cache.errors import SchemaError, StoreError
from cache.folder import Folder, LocalFolder, ReadOnlyError
from cache.identity import TableIdentity
from cache.lock import CLAIMS_NAME
from cache.schema import (
    StoredRecord,
    decode_table,
    encode_table,
    identity_file,
    parse_identity_file,
    rows_table,
)
from cache.view import Part, TableView

TABLES_VARIABLE = "SHAPECAST_TABLES"
IDENTITY_NAME = "identity.json"
RUNNER_NAME = "runner.json"
LAST_USED_NAME = "last-used"
QUARANTINE_NAME = "quarantine"

_NOTES = (RUNNER_NAME, LAST_USED_NAME)
"""Files beside the records that no record depends on."""

_READ_FOR_S = 30.0
"""For how long a table is read that compactions change all the time."""


class EmptyTableError(StoreError):
    """The folder has the name of a table, and nothing in it."""


class StoreWarning(UserWarning):
    """Something in a store could not be used; the run goes on without it."""


def user_cache_dir() -> Path:
    """Return the folder for what shapecast keeps for this user on this machine."""
    return Path(platformdirs.user_cache_dir("shapecast", appauthor=False))


def default_tables_root() -> str:
    """Return the store that is used when none is named: $SHAPECAST_TABLES, or the user's cache folder."""
    return os.environ.get(TABLES_VARIABLE) or str(user_cache_dir() / "tables")


def open_folder(root: Path | str) -> Folder:
    """Return the folder at a path or URL.

    Raises
    ------
    ShapecastError
        When a URL cannot be used: its kind is unknown, or it has a password in it.
    """
    if "://" not in str(root):
        return LocalFolder(Path(root))
    from cache.remote import remote_folder

    return remote_folder(str(root))


class ShapeStore:
    """All tables under one root.

    Parameters
    ----------
    root : Path, str or Folder
        Where the tables are, a path or URL; need not exist yet.
    """

    def __init__(self, root: Path | str | Folder) -> None:
        self.root = root if isinstance(root, Folder) else open_folder(root)

    def table(self, identity: TableIdentity) -> StoredTable:
        """Return the table of an identity, whether or not it has records."""
        return StoredTable(self.root.child(identity.id), identity)

    def ids(self) -> list[str]:
        """Return the ids of all tables, sorted."""
        return [name for name in self.root.child_names() if is_table_id(name)]

    def open(self, table_id: str) -> StoredTable:
        """Return a table by its id.

        Raises
        ------
        EmptyTableError
            When nothing is in its folder.
        StoreError
            When nothing in its folder tells its identity.
        """
        folder = self.root.child(table_id)
        try:
            identity = parse_identity_file(folder.read(IDENTITY_NAME), f"{folder}/{IDENTITY_NAME}")
        except SchemaError:
            raise
        except (StoreError, FileNotFoundError) as error:
            try:
                identity = self._identity_of_parts(folder)
            except EmptyTableError:
                raise
            except StoreError as other:
                raise (error if isinstance(error, StoreError) else other) from None
        if identity.id != table_id:
            raise StoreError(
                f"{folder} holds the table {identity.id}, whose name its folder must have; rename it back."
            )
        return StoredTable(folder, identity)

    def _identity_of_parts(self, folder: Folder) -> TableIdentity:
        """Return the identity in the first readable part: each carries it."""
        for name in filter(is_part_name, folder.names()):
            try:
                return decode_table(folder.read(name), f"{folder}/{name}")[1]
            except SchemaError:
                raise
            except (StoreError, FileNotFoundError):
                continue
        if not set(folder.names()) - set(_NOTES) and set(folder.child_names()) <= {CLAIMS_NAME}:
            raise EmptyTableError(
                f"{folder} is empty, as a run leaves it that is killed early; `shapecast tables prune` "
                "deletes it."
            )
        raise StoreError(f"{folder} has no {IDENTITY_NAME} and no readable part file, so it is no table.")


@dataclass(frozen=True)
class Examination:
    """What is in a table's folder, found without changing anything.

    Attributes
    ----------
    parts : list of Part
        The part files that can be trusted.
    problems : list of str
        A sentence for each file that cannot.
    quarantined : list of str
        Names of the files that were set aside earlier.
    """

    parts: list[Part]
    problems: list[str]
    quarantined: list[str]


class StoredTable:
    """The records of one identity on disk."""

    def __init__(self, folder: Folder, identity: TableIdentity) -> None:
        self.folder = folder
        self.identity = identity

    def without_id(self, text: str) -> str:
        """Return a message with the store in the place of this table's folder."""
        folder = str(self.folder)
        return text.replace(folder, folder.removesuffix(self.identity.id).rstrip("/\\"))

    def part_names(self) -> list[str]:
        """Return the names of the part files."""
        return [name for name in self.folder.names() if is_part_name(name)]

    def load(self, seen: TableView | None = None, *, tidy: bool = True) -> TableView:
        """Return all records.

        A file that cannot be trusted is set aside under `quarantine/` with a warning.

        Parameters
        ----------
        seen : TableView, optional
            An earlier answer; its files are immutable and so not read again.
        tidy : bool
            Whether such a file is set aside, or only ignored with a warning.

        Raises
        ------
        SchemaError
            When a newer shapecast wrote a file.
        ConflictError
            When two records of one shape differ.
        """
        read: dict[str, Part | None] = {}
        give_up_s = time.monotonic() + _READ_FOR_S
        while time.monotonic() < give_up_s:
            view = self._load(seen, tidy, read)
            if view is not None:
                return view
        raise StoreError(f"The files of {self.folder} change faster than they can be read; run again.")

    def examine(self) -> Examination:
        """Return what is in the folder, without setting anything aside."""
        parts, problems = [], []
        for name in self.folder.names():
            try:
                if name == IDENTITY_NAME:
                    parse_identity_file(self.folder.read(name), self._source(name))
                elif name not in _NOTES:
                    parts.append(Part(self._source(name), self.read_part(name)))
            except FileNotFoundError:
                continue  # Another run has compacted it.
            except StoreError as error:
                problems.append(str(error))
        return Examination(parts, problems, self.folder.child(QUARANTINE_NAME).names())

    def _load(self, seen: TableView | None, tidy: bool, read: dict[str, Part | None]) -> TableView | None:
        """Return all records; None when a compaction has replaced files between listing and reading.

        Then the files stand in `read` that were read: they are immutable, so the next try reads only others.
        """
        known = {part.source for part in seen.parts} if seen is not None else set()
        try:
            new = [name for name in self._data_names(tidy) if self._source(name) not in known]
        except FileNotFoundError:
            return None
        if seen is not None and not new:
            return seen
        for name in new:
            if name not in read:
                with suppress(FileNotFoundError):
                    read[name] = self._trusted(name, tidy)
        if not all(name in read for name in new):
            return None
        return TableView([part for name in new if (part := read[name]) is not None], seen)

    def _source(self, name: str) -> str:
        return f"{self.folder}/{name}"

    def read_part(self, name: str) -> pa.Table:
        """Return the rows of one part file.

        Raises
        ------
        StoreError
            When its bytes, columns or identity are not what its place and name promise, or a value cannot be.
        """
        data = self.folder.read(name)
        source = self._source(name)
        table, identity = decode_table(data, source)
        if name != part_name(data):
            raise StoreError(
                f"{source} is not named by the digest of its content; it was changed or renamed."
            )
        if identity.id != self.identity.id:
            raise StoreError(f"{source} belongs to the table {short_id(identity.id)}.")
        check_values(table, source)
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

    def _data_names(self, tidy: bool) -> list[str]:
        names = self.folder.names()
        if IDENTITY_NAME in names:
            self._check_identity_file(tidy)
        return [name for name in names if name != IDENTITY_NAME and name not in _NOTES]

    def _check_identity_file(self, tidy: bool) -> None:
        source = self._source(IDENTITY_NAME)
        try:
            parse_identity_file(self.folder.read(IDENTITY_NAME), source)
        except SchemaError:
            raise
        except StoreError as error:
            self._restore_identity_file(error, tidy)

    def _restore_identity_file(self, error: StoreError, tidy: bool) -> None:
        """Write the file anew: it is for people, and the parts carry the identity as well."""
        done = "ignored"
        if tidy:
            with suppress(ReadOnlyError, FileNotFoundError):
                self.folder.set_aside(IDENTITY_NAME, QUARANTINE_NAME)
                self.folder.publish(IDENTITY_NAME, identity_file(self.identity))
                done = f"set aside under {QUARANTINE_NAME}/ and written anew"
        warnings.warn(f"{error} It is {done}; no record depends on it.", StoreWarning, stacklevel=5)

    def _trusted(self, name: str, tidy: bool) -> Part | None:
        try:
            return Part(self._source(name), self.read_part(name))
        except SchemaError:
            raise
        except StoreError as error:
            self._set_aside(name, error, tidy)
            return None

    def _set_aside(self, name: str, error: StoreError, tidy: bool) -> None:
        done = f"it is set aside under {QUARANTINE_NAME}/" if tidy else "it is ignored"
        try:
            if tidy:
                self.folder.set_aside(name, QUARANTINE_NAME)
        except FileNotFoundError:
            return  # Another run has set it aside.
        except ReadOnlyError:
            done = "it is ignored"
        warnings.warn(f"{error} So {done}, and its shapes count as unknown.", StoreWarning, stacklevel=4)


def short_id(table_id: str) -> str:
    """Return as much of a table's id as people need."""
    return table_id[:12]


def part_name(data: bytes) -> str:
    """Return the name of a part file with this content."""
    return f"part-{hashlib.sha256(data).hexdigest()}.parquet"


def is_part_name(name: str) -> bool:
    """Whether a file name is that of a part file."""
    return name.startswith("part-") and name.endswith(".parquet")


def is_table_id(name: str) -> bool:
    """Whether a folder name is that of a table."""
    return len(name) == 64 and all(digit in "0123456789abcdef" for digit in name)
