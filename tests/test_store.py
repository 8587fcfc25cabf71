"""The shape store: what is written is read, what cannot be trusted is set aside, what differs is refused."""

from __future__ import annotations

import shutil
import warnings
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cache.errors import ConflictError, SchemaError, StoreError
from cache.schema import SCHEMA_VERSION, StoredRecord
from cache.session import TableSession
from cache.store import ShapeStore, StoreWarning
from cache.writer import RecordWriter
from tests.store_cases import IDENTITY, Tamper, expected, part_paths, record, shape, stored, table_at


def test_records_are_read_as_they_were_written(tmp_path: Path) -> None:
    table = table_at(tmp_path)
    table.append(stored(range(5)))
    table.append(stored(range(5, 9)))
    assert dict(table_at(tmp_path).load()) == expected(range(9))


def test_each_record_keeps_its_provenance(tmp_path: Path) -> None:
    table_at(tmp_path).append([StoredRecord(shape(3), record(3), 1_760_000_000_000_123, 1.5)])
    provenance = table_at(tmp_path).load().provenance(shape(3))
    assert provenance["runner"] == "fake"
    assert provenance["runner_version"] == "1"
    assert provenance["computed_at"].isoformat() == "2025-10-09T08:53:20.000123+00:00"
    assert provenance["call_s"] == 1.5
    assert table_at(tmp_path).load()[shape(3)].sources == {"analytic": 0.75, "measured": 0.25}


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def garble(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def replace_with_text(path: Path) -> None:
    path.write_text("not Parquet at all")


def replace_with_foreign_parquet(path: Path) -> None:
    pq.write_table(pa.table({"a": [1, 2]}), path)


def rename(path: Path) -> None:
    path.rename(path.with_name("part-" + "0" * 64 + ".parquet"))


def change_a_value(path: Path) -> None:
    table = pq.read_table(path)
    column = pa.array([value + 1 for value in table["latency_ms"].to_pylist()])
    pq.write_table(table.set_column(table.schema.get_field_index("latency_ms"), "latency_ms", column), path)


def replace_with_part_of_another_table(path: Path) -> None:
    other = table_at(path.parent.parent, replace(IDENTITY, runner="other"))
    name = other.append(stored(range(2)))
    path.unlink()
    shutil.copy(Path(str(other.folder)) / name, path.parent / name)


TAMPERS = [truncate, garble, empty, replace_with_text, replace_with_foreign_parquet, rename, change_a_value,
           replace_with_part_of_another_table]  # fmt: skip


@pytest.mark.parametrize("tamper", TAMPERS)
def test_an_untrusted_file_is_set_aside_and_the_rest_is_read(tmp_path: Path, tamper: Tamper) -> None:
    table = table_at(tmp_path)
    table.append(stored(range(2)))
    good = part_paths(tmp_path)
    table.append(stored(range(2, 5)))
    (bad,) = set(part_paths(tmp_path)) - set(good)
    tamper(bad)
    (bad,) = set(part_paths(tmp_path)) - set(good)
    with pytest.warns(StoreWarning, match=bad.name):
        assert dict(table_at(tmp_path).load()) == expected(range(2))
    assert not bad.exists()
    assert (bad.parent / "quarantine" / bad.name).exists()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert dict(table_at(tmp_path).load()) == expected(range(2))


def test_a_foreign_file_in_a_table_is_set_aside(tmp_path: Path) -> None:
    table_at(tmp_path).append(stored(range(2)))
    stranger = tmp_path / IDENTITY.id / "notes.txt"
    stranger.write_text("mine")
    with pytest.warns(StoreWarning, match=r"notes\.txt"):
        assert dict(table_at(tmp_path).load()) == expected(range(2))
    assert (stranger.parent / "quarantine" / "notes.txt").read_text() == "mine"


NO_IDENTITY = [b"", b"\xff\xfe", b"[1]", b"{}", b"[" * 100_000, b'{"schema_version": 1}',
               b'{"schema_version": 1, "id": "a", "label": "b", "identity": []}',
               b'{"schema_version": 1, "id": "a", "label": "b", "identity": {"runner": NaN}}']  # fmt: skip


@pytest.mark.parametrize("content", [None, *NO_IDENTITY], ids=lambda content: str(content)[:20])
def test_a_wrong_identity_file_is_set_aside_and_written_anew(tmp_path: Path, content: bytes | None) -> None:
    table = table_at(tmp_path)
    table.append(stored(range(2)))
    path = tmp_path / IDENTITY.id / "identity.json"
    sound = path.read_bytes()
    wrong = sound.replace(b'"fake"', b'"fake2"') if content is None else content
    path.write_bytes(wrong)
    assert ShapeStore(tmp_path).open(IDENTITY.id).identity == IDENTITY
    (problem,) = table_at(tmp_path).examine().problems
    assert ("was edited: it says" if content is None else "is not an identity file") in problem
    with pytest.warns(StoreWarning) as caught:
        assert dict(table.load()) == expected(range(2))
    assert [str(one.message) for one in caught] == [
        f"{problem} It is set aside under quarantine/ and written anew; no record depends on it."
    ]
    assert (path.parent / "quarantine" / "identity.json").read_bytes() == wrong
    assert path.read_bytes() == sound


def test_reading_without_tidying_leaves_an_untrusted_file_where_it_is(tmp_path: Path) -> None:
    table_at(tmp_path).append(stored(range(2)))
    (path,) = part_paths(tmp_path)
    truncate(path)
    with pytest.warns(StoreWarning, match="it is ignored"):
        assert len(table_at(tmp_path).load(tidy=False)) == 0
    assert path.exists()
    assert table_at(tmp_path).examine().problems
    assert path.exists()


def write_newer(path: Path) -> None:
    table = pq.read_table(path)
    metadata = {**table.schema.metadata, b"shapecast.schema_version": str(SCHEMA_VERSION + 1).encode()}
    pq.write_table(table.replace_schema_metadata(metadata), path)


def test_a_newer_schema_is_refused_and_left_alone(tmp_path: Path) -> None:
    table_at(tmp_path).append(stored(range(2)))
    (path,) = part_paths(tmp_path)
    write_newer(path)
    with pytest.raises(SchemaError, match=rf"schema version {SCHEMA_VERSION + 1}; .*upgrade shapecast"):
        table_at(tmp_path).load()
    assert path.exists()


@pytest.mark.parametrize(("change", "name"), [
    ({"latency_ms": 99.0}, "latency_ms"),
    ({"memory_left_gb": 19.0}, "memory_left_gb"),
    ({"breakdowns": {"fake": {"memory_bound": 7.0}}}, "breakdowns_json"),
    ({"memory": None}, "memory_total_gb"),
    ({"sources": {"measured": 1.0}}, "sources_json"),
])  # fmt: skip
def test_two_records_of_one_shape_that_differ_are_refused(
    tmp_path: Path, change: dict[str, object], name: str
) -> None:
    table = table_at(tmp_path)
    table.append(stored([3]))
    table.append([StoredRecord(shape(3), replace(record(3), **change), 1, 1.0)])  # type: ignore[arg-type]
    one, two = (path.name for path in part_paths(tmp_path))
    with pytest.raises(ConflictError, match=rf"differ in {name}: ") as caught:
        table_at(tmp_path).load()
    assert one in str(caught.value)
    assert two in str(caught.value)
    assert str(shape(3)) in str(caught.value)


def test_the_order_of_estimators_is_part_of_a_record(tmp_path: Path) -> None:
    table = table_at(tmp_path)
    parts = {"a": {"memory_bound": 1.0}, "b": {"memory_bound": 2.0}}
    for breakdowns in (parts, dict(reversed(parts.items()))):
        table.append([StoredRecord(shape(3), replace(record(3), breakdowns=breakdowns), 1, 1.0)])
    with pytest.raises(ConflictError, match="breakdowns_json"):
        table_at(tmp_path).load()


def test_equal_records_of_two_runs_are_one_record(tmp_path: Path) -> None:
    table_at(tmp_path).append(stored(range(3), computed_at_us=2_000))
    table_at(tmp_path).append(stored(range(3), computed_at_us=1_000))
    view = table_at(tmp_path).load()
    assert dict(view) == expected(range(3))
    assert view.provenance(shape(0))["computed_at"].microsecond == 1_000


def test_a_view_is_extended_without_reading_known_files_again(tmp_path: Path) -> None:
    table = table_at(tmp_path)
    table.append(stored(range(3)))
    first = table.load()
    (path,) = part_paths(tmp_path)
    path.write_bytes(b"garbled after it was read")
    assert table.load(first) is first
    table.append(stored(range(3, 5)))
    assert dict(table.load(first)) == expected(range(5))


def test_a_table_is_opened_by_the_identity_in_its_parts_when_the_identity_file_is_gone(
    tmp_path: Path,
) -> None:
    table_at(tmp_path).append(stored(range(2)))
    (tmp_path / IDENTITY.id / "identity.json").unlink()
    assert ShapeStore(tmp_path).open(IDENTITY.id).identity == IDENTITY
    for path in part_paths(tmp_path):
        path.unlink()
    (tmp_path / IDENTITY.id / "notes.txt").write_text("mine")
    with pytest.raises(StoreError, match=r"no identity\.json and no readable part file"):
        ShapeStore(tmp_path).open(IDENTITY.id)


def test_a_writer_publishes_when_enough_records_or_enough_work_has_gathered(tmp_path: Path) -> None:
    writer = RecordWriter(table_at(tmp_path))
    for number in range(255):
        writer.add(shape(number), record(number), 0.0)
    assert part_paths(tmp_path) == []
    writer.add(shape(255), record(255), 0.0)
    assert len(part_paths(tmp_path)) == 1
    writer.add(shape(256), record(256), 2.5)
    assert len(part_paths(tmp_path)) == 2


def test_a_session_knows_its_records_before_they_are_published(tmp_path: Path) -> None:
    session = TableSession(table_at(tmp_path))
    session.refresh()
    session.add(shape(1), record(1), 0.0)
    assert session[shape(1)] == record(1)
    assert part_paths(tmp_path) == []
    session.close()
    assert dict(table_at(tmp_path).load()) == expected([1])


def test_what_a_task_computes_is_published_when_it_ends(tmp_path: Path) -> None:
    session = TableSession(table_at(tmp_path))
    with session.writing():
        session.add(shape(1), record(1), 0.0)
    assert dict(table_at(tmp_path).load()) == expected([1])


@pytest.mark.parametrize("count", [256, 600])  # One part, and several.
def test_a_session_publishes_again_what_was_deleted_while_it_ran(tmp_path: Path, count: int) -> None:
    session = TableSession(table_at(tmp_path))
    session.refresh()
    for number in range(count):
        session.add(shape(number), record(number), 0.0)
        if number == (255 if count == 256 else 400):
            shutil.rmtree(tmp_path / IDENTITY.id)
    session.close()
    assert dict(table_at(tmp_path).load()) == expected(range(count))
    assert (tmp_path / IDENTITY.id / "identity.json").exists()


def test_a_session_publishes_nothing_again_that_was_only_compacted(tmp_path: Path) -> None:
    from cache.compact import compact

    session = TableSession(table_at(tmp_path))
    session.refresh()
    for number in range(600):
        session.add(shape(number), record(number), 0.0)
    compact(table_at(tmp_path))
    (path,) = part_paths(tmp_path)
    session.close()
    assert len(part_paths(tmp_path)) == 2
    assert path in part_paths(tmp_path)
    assert dict(table_at(tmp_path).load()) == expected(range(600))
