"""The local spool: records that a remote store did not take, kept until it does.

USER CACHE/unsent/<digest of the store's URL>/<identity id>/part-<sha256>.parquet
"""

from __future__ import annotations

from collections.abc import Iterator

from cache.folder import LocalFolder
from cache.remote import RemoteFolder
from cache.store import EmptyTableError, ShapeStore, StoredTable, is_part_name, user_cache_dir

SPOOL_NAME = "unsent"


def spool_of(store: ShapeStore) -> ShapeStore | None:
    """Return the spool of a remote store; None for a local one, which needs none."""
    if not isinstance(store.root, RemoteFolder):
        return None
    return ShapeStore(LocalFolder(user_cache_dir() / SPOOL_NAME / store.root.digest))


def upload(store: ShapeStore) -> int:
    """Send what earlier runs could not, and return the number of files sent.

    Names are digests of contents, so sending twice, or from two processes, does no harm.

    Raises
    ------
    UnreachableError
        When the server still cannot be reached; what has not been sent stays.
    ReadOnlyError
        When the server does not take it.
    """
    spool = spool_of(store)
    if spool is None:
        return 0
    sent = 0
    for waiting in _tables(spool):
        for name in waiting.part_names():
            store.table(waiting.identity).publish(waiting.read_part(name))
            waiting.folder.delete(name)
            sent += 1
        if not any(is_part_name(name) for name in waiting.folder.names()):
            waiting.folder.delete_folder()
    return sent


def unsent_records(store: ShapeStore) -> int:
    """Return how many records wait in the spool of a store."""
    spool = spool_of(store)
    if spool is None:
        return 0
    return sum(part.table.num_rows for table in _tables(spool) for part in table.examine().parts)


def _tables(spool: ShapeStore) -> Iterator[StoredTable]:
    for table_id in spool.ids():
        try:
            table = spool.open(table_id)
        except EmptyTableError:
            continue  # Its process was killed while it deleted the folder.
        yield table
