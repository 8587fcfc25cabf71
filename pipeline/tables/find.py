"""Tables by what a user types: the beginning of an id, or a file."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from cache.errors import StoreError, shown
from cache.exchange import SUFFIXES, decode_file
from cache.folder import Folder, LocalFolder
from cache.identity import TableIdentity
from cache.lock import lock_of
from cache.store import EmptyTableError, ShapeStore, StoredTable, short_id
from cache.view import Part, TableView
from pipeline.places import places_for

_SHOWN = 3


class UnknownTableError(StoreError):
    """No table, or more than one, is meant."""


def open_store(tables: str | None, *, to_write: bool = False) -> ShapeStore:
    """Return the store at a path or URL; the default one when none is given.

    Raises
    ------
    StoreError
        When a folder is named that does not exist, and the store is not to be made.
    """
    store = ShapeStore(places_for(tables).tables)
    root = store.root
    if tables and not to_write and isinstance(root, LocalFolder) and not root.path.exists():
        raise StoreError(f"The folder {tables} does not exist, so no tables are there; check --tables.")
    return store


def find_table(store: ShapeStore, text: str) -> StoredTable:
    """Return the table whose id starts with `text`.

    Raises
    ------
    UnknownTableError
        When there is none (with close ones), or more than one.
    """
    ids = store.ids()
    found = [table_id for table_id in ids if table_id.startswith(text.lower())] if text else []
    if len(found) > 1:
        raise UnknownTableError(
            f"{shown(text)} is the beginning of {len(found)} tables: {_named(store, found)}; give more of "
            "the id."
        )
    if not found:
        close = _close(store, ids, text)
        hint = f"did you mean {_named(store, close)}?" if close else "`shapecast tables ls` lists all."
        raise UnknownTableError(f"No table in {store.root} has an id that starts with {shown(text)}; {hint}")
    return store.open(found[0])


def find_tables(store: ShapeStore, texts: Sequence[str]) -> list[StoredTable]:
    """Return the tables that are meant, each once; all when nothing is given."""
    if not texts:
        found = []
        for table_id in store.ids():
            with suppress(EmptyTableError):
                found.append(store.open(table_id))
        return found
    found = [find_table(store, text) for text in texts]
    return list({table.identity.id: table for table in found}.values())


def empty_folders(store: ShapeStore) -> list[Folder]:
    """Return the folders of tables in which nothing is, and that no run is about to fill."""
    empty = []
    for table_id in store.ids():
        try:
            store.open(table_id)
        except EmptyTableError:
            folder = store.root.child(table_id)
            if not isinstance(folder, LocalFolder):
                empty.append(folder)
                continue
            lock = lock_of(folder)
            if lock.try_acquire():
                lock.release()
                empty.append(folder)
        except StoreError:
            continue
    return empty


def read_table_or_file(store: ShapeStore, text: str) -> tuple[TableView, TableIdentity]:
    """Return the records of a table, or of an exported file."""
    if text.endswith(SUFFIXES):
        rows, identity = decode_file(Path(text))
        return TableView([Part(text, rows)]), identity
    table = find_table(store, text)
    return table.load(tidy=False), table.identity


def _close(store: ShapeStore, ids: Sequence[str], text: str) -> list[str]:
    beginnings = {table_id[: len(text)]: table_id for table_id in ids}
    close = [
        beginnings[one] for one in difflib.get_close_matches(text.lower(), beginnings, _SHOWN, cutoff=0.6)
    ]
    if close or not text:
        return close
    return [table_id for table_id in ids if text.lower() in _label(store, table_id).lower()][:_SHOWN]


def _named(store: ShapeStore, ids: Sequence[str]) -> str:
    named = [f"{short_id(table_id)} ({_label(store, table_id)})" for table_id in ids[:_SHOWN]]
    more = len(ids) - len(named)
    return ", ".join(named) + (f" and {more} more" if more else "")


def _label(store: ShapeStore, table_id: str) -> str:
    try:
        return store.open(table_id).identity.label or "no label"
    except StoreError:
        return "unreadable"
