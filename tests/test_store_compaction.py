"""Compaction: fewer files, the same records, safe beside whatever else uses the table."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from cache.compact import SCATTERED_PARTS, compact, compact_if_scattered
from cache.errors import ConflictError
from cache.folder import LocalFolder
from cache.schema import PROVENANCE_COLUMNS, StoredRecord
from cache.session import TableSession
from cache.store import StoredTable
from tests.store_cases import IDENTITY, expected, part_paths, record, shape, stored, table_at


def test_many_files_become_one_with_the_same_records_and_provenance(tmp_path: Path) -> None:
    table = table_at(tmp_path)
    for start in range(0, 50, 5):
        table.append(stored(range(start, start + 5)))
    before = table.load()
    done = compact(table)
    assert (done.parts, done.records) == (10, 50)
    assert len(part_paths(tmp_path)) == 1
    after = table_at(tmp_path).load()
    assert dict(after) == expected(range(50))
    for number in range(50):
        assert after.provenance(shape(number)) == before.provenance(shape(number))
    assert set(after.provenance(shape(1))) == set(PROVENANCE_COLUMNS)


def test_of_duplicates_the_earliest_computed_stays(tmp_path: Path) -> None:
    table = table_at(tmp_path)
    for computed_at_us in (3_000, 1_000, 2_000):
        table.append(stored(range(4), computed_at_us=computed_at_us))
    compact(table)
    view = table_at(tmp_path).load()
    assert [view.provenance(shape(n))["computed_at"].microsecond for n in range(4)] == [
        1000, 1001, 1002, 1003,
    ]  # fmt: skip


def test_the_merged_file_depends_on_the_records_alone(tmp_path: Path) -> None:
    names = []
    for folder, chunks in (("a", [range(9)]), ("b", [range(4, 9), range(4)]), ("c", [range(7), range(3, 9)])):
        table = table_at(tmp_path / folder)
        for chunk in chunks:
            table.append(stored(reversed(chunk)))
        table.append(stored([20]))
        compact(table)
        (path,) = part_paths(tmp_path / folder)
        names.append(path.name)
    assert len(set(names)) == 1


def test_compacting_again_changes_nothing(tmp_path: Path) -> None:
    table = table_at(tmp_path)
    table.append(stored(range(3)))
    table.append(stored(range(3, 6)))
    compact(table)
    (path,) = part_paths(tmp_path)
    before = path.stat().st_mtime_ns
    compact(table)
    assert part_paths(tmp_path) == [path]
    assert path.stat().st_mtime_ns == before


def test_a_merged_file_that_is_already_there_is_not_deleted(tmp_path: Path) -> None:
    """Two compactions race: the second reads the small files and the result of the first."""
    table = table_at(tmp_path)
    for start in (0, 3):
        table.append(stored(range(start, start + 3)))
    small = {path: path.read_bytes() for path in part_paths(tmp_path)}
    compact(table)
    for path, data in small.items():
        path.write_bytes(data)
    compact(table)
    assert len(part_paths(tmp_path)) == 1
    assert dict(table_at(tmp_path).load()) == expected(range(6))


def test_a_file_with_all_rows_in_other_bytes_is_kept_instead_of_written_again(tmp_path: Path) -> None:
    """Else two compactions with unlike labels (or Parquet libraries) could delete each other's result."""
    other_label = table_at(tmp_path, replace(IDENTITY, label="another name"))
    name = other_label.append(list(reversed(stored(range(6)))))
    table_at(tmp_path).append(stored(range(3)))
    compact(table_at(tmp_path))
    assert [path.name for path in part_paths(tmp_path)] == [name]


def test_a_conflict_is_named_and_nothing_is_changed(tmp_path: Path) -> None:
    table = table_at(tmp_path)
    table.append(stored(range(3)))
    table.append([StoredRecord(shape(1), record(1, latency_ms=55.0), 1, 1.0)])
    before = part_paths(tmp_path)
    with pytest.raises(ConflictError, match=r"differ in latency_ms: 1\.1 in .* and 55\.0|55\.0 in .*1\.1"):
        compact(table)
    assert part_paths(tmp_path) == before


class SlowFolder(LocalFolder):
    """A folder in which listing and reading lie far apart, so that files vanish in between."""

    def names(self) -> list[str]:
        found = super().names()
        time.sleep(0.01)
        return found


def test_readers_see_every_record_while_the_table_is_compacted(tmp_path: Path) -> None:
    table = table_at(tmp_path)
    stop = threading.Event()
    failures: list[object] = []
    written = [0]

    def write() -> None:
        while not stop.is_set():
            start = written[0]
            table.append(stored(range(start, start + 3)))
            written[0] = start + 3

    def merge() -> None:
        while not stop.is_set():
            compact(table_at(tmp_path))

    def read() -> None:
        while not stop.is_set():
            known = written[0]
            view = StoredTable(SlowFolder(tmp_path / IDENTITY.id), IDENTITY).load()
            failures.extend(number for number in range(known) if shape(number) not in view)

    def guarded(work: object) -> None:
        try:
            work()  # type: ignore[operator]
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in (write, merge, merge, read, read)]
    for thread in threads:
        thread.start()
    time.sleep(4)
    stop.set()
    for thread in threads:
        thread.join()
    assert failures == []
    assert written[0] > 30
    assert dict(table_at(tmp_path).load()) == expected(range(written[0]))


def test_a_run_compacts_a_table_of_many_files_when_it_ends(tmp_path: Path) -> None:
    table = table_at(tmp_path)
    for number in range(SCATTERED_PARTS):
        table.append(stored([number]))
    compact_if_scattered(table)
    assert len(part_paths(tmp_path)) == SCATTERED_PARTS
    session = TableSession(table)
    session.refresh()
    session.add(shape(SCATTERED_PARTS), record(SCATTERED_PARTS), 0.0)
    session.close()
    assert len(part_paths(tmp_path)) == 1
    assert dict(table_at(tmp_path).load()) == expected(range(SCATTERED_PARTS + 1))


def test_a_run_that_computes_nothing_compacts_too(tmp_path: Path) -> None:
    table = table_at(tmp_path)
    for number in range(SCATTERED_PARTS + 1):
        table.append(stored([number]))
    session = TableSession(table)
    session.refresh()
    session.close()
    assert len(part_paths(tmp_path)) == 1


def test_a_long_run_compacts_on_the_way(tmp_path: Path) -> None:
    session = TableSession(table_at(tmp_path))
    for number in range(3 * SCATTERED_PARTS):
        session.add(shape(number), record(number), 3.0)
    assert len(part_paths(tmp_path)) <= SCATTERED_PARTS + 1
    session.close()
    assert dict(table_at(tmp_path).load()) == expected(range(3 * SCATTERED_PARTS))


def test_unfinished_files_of_dead_processes_are_deleted_after_a_day(tmp_path: Path) -> None:
    table = table_at(tmp_path)
    table.append(stored(range(3)))
    table.append(stored(range(3, 6)))
    old, new = (tmp_path / IDENTITY.id / f".{name}.tmp" for name in ("old", "new"))
    old.write_bytes(b"half a file")
    new.write_bytes(b"half a file")
    os.utime(old, (time.time() - 90_000, time.time() - 90_000))
    compact(table)
    assert not old.exists()
    assert new.exists()
    assert dict(table_at(tmp_path).load()) == expected(range(6))
