"""Compaction: many small part files of a table become one.

It is safe beside readers, writers and other compactions, without any lock. A file is deleted only after
a file with all of its rows has been published, and only if its rows were read into that file:

- A reader that meets a deleted file lists again; a writer's new file was not read, so it stays.
- The merged rows depend on the rows read alone: of duplicates the earliest computed is taken. So two
  compactions cannot each delete the other's result, unless both hold the same rows in files of
  unlike bytes. Then (`_already_merged`) nothing is written, and both keep the file that sorts first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from cache.folder import ReadOnlyError
from cache.store import StoredTable
from cache.view import Part, TableView

SCATTERED_PARTS = 64
"""More part files than this make opening a table slow."""


@dataclass(frozen=True)
class Compaction:
    """What a compaction did, or would do.

    Attributes
    ----------
    parts : int
        Part files before.
    records : int
        Distinct records.
    """

    parts: int
    records: int


def compact(table: StoredTable) -> Compaction:
    """Merge all part files of a table into one.

    Raises
    ------
    ConflictError
        When two records of one shape differ; nothing is changed then.
    StoreError
        When the folder cannot be written.
    """
    view = table.load()
    parts = view.parts
    done = Compaction(len(parts), len(view))
    if len(parts) > 1:
        merged = view.distinct()
        kept = _already_merged(parts, merged) or table.publish(merged)
        for part in parts:
            if part.name != kept:
                table.folder.delete(part.name)
    table.folder.sweep()
    return done


def compact_if_scattered(table: StoredTable) -> None:
    """Compact a table that has many part files; a read-only one stays as it is."""
    try:
        if len(table.part_names()) > SCATTERED_PARTS:
            compact(table)
    except ReadOnlyError:
        return


def _already_merged(parts: Sequence[Part], merged: pa.Table) -> str | None:
    """Return the first name of a part that has exactly the merged rows."""
    whole = [part for part in parts if part.table.num_rows == merged.num_rows]
    names = [part.name for part in whole if TableView([part]).distinct().equals(merged)]
    return min(names, default=None)
