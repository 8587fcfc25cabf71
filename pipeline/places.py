"""Where a run keeps what lasts, and what it does there before and after its work."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from cache.errors import ConfigError, StoreError
from cache.folder import ReadOnlyError, UnreachableError
from cache.remote import shown_url
from cache.spool import spool_of, unsent_records, upload
from cache.store import (
    LAST_USED_NAME,
    RUNNER_NAME,
    TABLES_VARIABLE,
    ShapeStore,
    StoredTable,
    StoreWarning,
    default_tables_root,
    user_cache_dir,
)
from pipeline.cells import Cell
from pipeline.config import LoadedConfig
from pipeline.recipe import Recipe
from pipeline.tasks import Places


def places_for(tables: str | None) -> Places:
    """Return where records and memoized results are kept.

    The latter are pickles, which run code when they are loaded, while tables are made to be shared. So they
    are always in the user's own cache folder.

    Parameters
    ----------
    tables : str or None
        Path or URL of the shape store; None for the default.
    """
    root = tables or default_tables_root()
    named = bool(tables or os.environ.get(TABLES_VARIABLE))
    if named and "://" not in root:
        root = str(Path(root).absolute())  # Workers of a cluster may have another working directory.
    return Places(root, user_cache_dir() / "memo")


def send_unsent(places: Places) -> None:
    """Send what an earlier run could not, before anything is read.

    Raises
    ------
    UnreachableError
        When the server cannot be reached.
    """
    try:
        upload(ShapeStore(places.tables))
    except ReadOnlyError as error:
        warnings.warn(f"{error} Records of an earlier run stay unsent.", StoreWarning, stacklevel=2)


def require_sent(places: Places) -> None:
    """Try again to send what a run could not.

    Raises
    ------
    StoreError
        When records stay behind: how many, where, and what to do.
    """
    store = ShapeStore(places.tables)
    try:
        upload(store)
    except (UnreachableError, ReadOnlyError) as error:
        spool = spool_of(store)
        raise StoreError(
            f"{error} The results are written; {unsent_records(store):,} new records are kept in "
            f"{spool.root if spool else ''}; the next run with --tables {shown_url(places.tables)} sends "
            "them."
        ) from None


def note_use(cells: Sequence[Cell], loaded: LoadedConfig, places: Places) -> None:
    """Keep beside each table that a run used how it can be computed again, and the day of its last use.

    Best effort: a table that cannot be written is used all the same.
    """
    store = ShapeStore(places.tables)
    today = datetime.now(UTC).date().isoformat().encode()
    used = {cell.identity.id: cell for cell in cells}
    for cell in used.values():
        with suppress(StoreError, FileNotFoundError):
            _note(store.table(cell.identity), cell, loaded, today)


def _note(table: StoredTable, cell: Cell, loaded: LoadedConfig, today: bytes) -> None:
    names = table.folder.names()
    if not names:
        return
    if LAST_USED_NAME not in names or table.folder.read(LAST_USED_NAME).strip() != today:
        table.folder.publish(LAST_USED_NAME, today + b"\n")
    if RUNNER_NAME not in names:
        recipe = _recipe(cell, loaded)
        if recipe is not None:
            table.folder.publish(RUNNER_NAME, recipe.as_file())


def _recipe(cell: Cell, loaded: LoadedConfig) -> Recipe | None:
    """Return the entry of the config that the cell's spec came from, with its deployment."""
    for options in loaded.runners:
        recipe = Recipe.of(options, cell, loaded.base_dir)
        with suppress(ConfigError):
            if recipe.spec().identity().id == cell.identity.id:
                return recipe
    return None
