"""`shapecast tables compact`, `rm`, `prune`, `merge`, `export` and `import`: what changes a store."""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

from cache.compact import compact
from cache.compare import add_records, missing_records
from cache.errors import OutputError, StoreError, UsageError, shown
from cache.exchange import SUFFIXES, decode_file, encode_file
from cache.folder import Folder
from cache.store import RUNNER_NAME, EmptyTableError, ShapeStore, StoredTable, short_id
from cache.view import Part
from pipeline.tables.listing import format_bytes, table_facts

Say = Callable[[str], None]

_ADD_YES = "Nothing is changed yet; add --yes to do it."


def compact_tables(tables: Sequence[StoredTable], say: Say, *, yes: bool) -> None:
    """Make one file of the part files of each table, or say what would be done."""
    scattered = [(table, table.part_names()) for table in tables]
    scattered = [(table, names) for table, names in scattered if len(names) > 1]
    for table, names in scattered:
        if yes:
            done = compact(table)
            say(f"Compacted {_named(table)}: {done.records:,} records from {done.parts:,} files in one.")
        else:
            say(f"Would make one file of the {len(names):,} of {_named(table)}.")
    if not scattered:
        say("Every table is in one file already.")
    elif not yes:
        say(_ADD_YES)


def remove_tables(
    tables: Sequence[StoredTable], say: Say, *, yes: bool, empty: Sequence[Folder] = ()
) -> None:
    """Delete tables and empty folders of such, or say what would be deleted."""
    for folder in empty:
        if yes:
            folder.delete_folder()
        say(f"{'Deleted' if yes else 'Would delete'} {folder}, which is empty.")
    for table in tables:
        facts = table_facts(table)
        what = f"{_named(table)}: {facts.records:,} records, {format_bytes(facts.bytes)}"
        if yes:
            table.folder.delete_folder()
        say(f"{'Deleted' if yes else 'Would delete'} {what}.")
    if (tables or empty) and not yes:
        say(_ADD_YES)


def prunable(
    tables: Sequence[StoredTable], older_than: datetime | None, unused_since: datetime | None
) -> list[StoredTable]:
    """Return the tables whose newest record is older, and that no run has used since; both if both are given.

    A table that no run has noted the use of counts as used when its newest record was computed.
    """
    chosen = []
    for table in tables:
        facts = table_facts(table)
        newest = facts.computed[1] if facts.computed else datetime.min.replace(tzinfo=UTC)
        used = newest
        with suppress(ValueError):
            day = date.fromisoformat(facts.last_used or "")
            used = datetime(day.year, day.month, day.day, tzinfo=UTC)
        old = older_than is None or newest < older_than
        unused = unused_since is None or max(used, newest) < unused_since
        if old and unused:
            chosen.append(table)
    return chosen


def parse_time(text: str | None, option: str, now: datetime) -> datetime | None:
    """Return the time that "90d", "12w" (ago) or "2026-01-31" means.

    Raises
    ------
    UsageError
        When it means none.
    """
    if text is None:
        return None
    ago = re.fullmatch(r"(\d{1,6})([dw])", text)
    try:
        if ago:
            return now - timedelta(days=int(ago[1]) * (7 if ago[2] == "w" else 1))
        return datetime.fromisoformat(text).replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        raise UsageError(
            f"{option} is {shown(text)}; expected a time ago such as 90d or 12w, or a date such as "
            "2026-01-31."
        ) from None


def merge_stores(store: ShapeStore, sources: Sequence[str], say: Say) -> None:
    """Take all records of other stores in; nothing is written when one of them conflicts.

    Raises
    ------
    StoreError
        When a source is no store.
    ConflictError
        When two records of one shape differ.
    """
    found: dict[str, tuple[StoredTable, list[Part], list[StoredTable]]] = {}
    for source in sources:
        if Path(source).is_file():
            raise StoreError(
                f"{source} is a file, not a store; name the folder that holds the tables, or take an "
                "exported file in with `shapecast tables import`."
            )
        other = ShapeStore(source)
        ids = other.ids()
        if not ids:
            raise StoreError(f"{other.root} is no store: it has no tables; name the folder that holds them.")
        for table_id in ids:
            try:
                theirs = other.open(table_id)
            except EmptyTableError:
                continue
            table, parts, origins = found.setdefault(table_id, (store.table(theirs.identity), [], []))
            parts += theirs.load(tidy=False).parts
            origins.append(theirs)
    for table, parts, _ in found.values():
        missing_records(table, parts)  # All is checked before anything is written.
    total = 0
    for table, parts, origins in found.values():
        added = add_records(table, parts)
        total += added
        _take_recipe(table, origins)
        say(f"{_named(table)}: {added:,} new records.")
    say(f"Merged {total:,} new records into {len(found):,} tables of {store.root}.")


def _take_recipe(table: StoredTable, origins: Sequence[StoredTable]) -> None:
    """Copy the note on how a table is computed, where there is none yet."""
    for origin in origins:
        names = table.folder.names()
        if not names or RUNNER_NAME in names:
            return
        with suppress(FileNotFoundError):
            table.folder.publish(RUNNER_NAME, origin.folder.read(RUNNER_NAME))


def export_table(table: StoredTable, path: Path, *, force: bool) -> int:
    """Write a table as one file with its identity inside, and return its number of records.

    Raises
    ------
    UsageError
        When the file ends neither in .parquet nor in .csv.
    OutputError
        When the file is there already, or cannot be written.
    """
    if path.suffix not in SUFFIXES:
        raise UsageError(f"The file {path} must end in .parquet or .csv, which tells the format.")
    if path.exists() and not force:
        raise OutputError(f"The file {path} is there already; choose another, or replace it with --force.")
    rows = table.load(tidy=False).distinct()
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        with temporary.open("xb") as file:
            file.write(encode_file(rows, table.identity, path.suffix))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink()
        raise OutputError(f"The file {path} cannot be written ({error.strerror}); choose another.") from error
    return int(rows.num_rows)


def import_table(store: ShapeStore, path: Path, say: Say) -> None:
    """Take the records of an exported file in.

    Raises
    ------
    StoreError
        When the file is no table, or is damaged.
    ConflictError
        When a record differs from one that is there.
    """
    rows, identity = decode_file(path)
    table = store.table(identity)
    added = add_records(table, [Part(str(path), rows)])
    say(f"{_named(table)}: {added:,} new records of {rows.num_rows:,} in {path}.")


def _named(table: StoredTable) -> str:
    label = table.identity.label
    return f"{short_id(table.identity.id)} ({label})" if label else short_id(table.identity.id)
