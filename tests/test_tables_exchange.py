"""`shapecast tables merge`, `export` and `import`: records that travel, with the conflict rule."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest

from cache.schema import StoredRecord
from cache.shapes import ForwardShapeKey
from cache.store import ShapeStore
from tests.conftest import Shapecast
from tests.in_process import command_here
from tests.store_cases import IDENTITY, expected, part_paths, record, shape, stored, table_at

OTHER = replace(IDENTITY, parallelism={"tp": 4}, label="another deployment")


@pytest.fixture
def shapecast(tmp_path: Path, tables: Path, monkeypatch: pytest.MonkeyPatch) -> Shapecast:
    return command_here(tmp_path, tables, monkeypatch)


# merge


def test_merge_takes_in_what_is_missing_with_its_provenance(
    shapecast: Shapecast, tables: Path, tmp_path: Path
) -> None:
    table_at(tables).append(stored(range(3), computed_at_us=5_000))
    table_at(tmp_path / "a").append(stored(range(5), computed_at_us=7_000))
    table_at(tmp_path / "b", OTHER).append(stored(range(4)))
    (tmp_path / "a" / IDENTITY.id / "runner.json").write_text("{}")
    done = shapecast("tables", "merge", "a", "b")
    assert "2 new records" in done.stdout
    assert "Merged 6 new records into 2 tables" in done.stdout
    view = table_at(tables).load()
    assert dict(view) == expected(range(5))
    assert [view.provenance(shape(n))["computed_at"].microsecond for n in (0, 4)] == [5_000, 7_004]
    assert dict(table_at(tables, OTHER).load()) == expected(range(4))
    assert (tables / IDENTITY.id / "runner.json").read_text() == "{}"
    before = part_paths(tables)
    assert "Merged 0 new records" in shapecast("tables", "merge", "a", "b").stdout
    assert part_paths(tables) == before


def test_a_merge_with_a_conflict_writes_nothing(shapecast: Shapecast, tables: Path, tmp_path: Path) -> None:
    table_at(tables).append(stored(range(3)))
    table_at(tmp_path / "a", OTHER).append(stored(range(3)))
    table_at(tmp_path / "b").append([StoredRecord(shape(1), record(1, latency_ms=9.9), 1, 1.0)])
    before = sorted(tables.rglob("*"))
    done = shapecast("tables", "merge", "a", "b", expect=1)
    assert "differ in latency_ms: 1.1 in " in done.stderr
    assert "and 9.9 in " in done.stderr
    assert sorted(tables.rglob("*")) == before


def test_two_sources_of_a_merge_may_not_differ_either(
    shapecast: Shapecast, tables: Path, tmp_path: Path
) -> None:
    table_at(tmp_path / "a").append(stored(range(3)))
    table_at(tmp_path / "b").append([StoredRecord(shape(1), record(1, latency_ms=9.9), 1, 1.0)])
    assert "differ in latency_ms" in shapecast("tables", "merge", "a", "b", expect=1).stderr
    assert not tables.exists()


def test_a_damaged_file_of_another_store_is_left_there_and_left_out(
    shapecast: Shapecast, tables: Path, tmp_path: Path
) -> None:
    table_at(tmp_path / "a").append(stored(range(3)))
    (good,) = part_paths(tmp_path / "a")
    table_at(tmp_path / "a").append(stored(range(3, 5)))
    (bad,) = set(part_paths(tmp_path / "a")) - {good}
    bad.write_bytes(b"")
    assert bad.name in shapecast("tables", "merge", "a").stderr
    assert dict(table_at(tables).load()) == expected(range(3))
    assert bad.exists()


def test_a_folder_that_is_no_store_is_not_merged(shapecast: Shapecast, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    for name in ("photos", "nowhere"):
        done = shapecast("tables", "merge", name, expect=1)
        assert f"{name} is no store: it has no tables; name the folder that holds them." in done.stderr


def test_a_file_is_not_merged(shapecast: Shapecast, tables: Path) -> None:
    table_at(tables).append(stored(range(3)))
    shapecast("tables", "export", IDENTITY.id[:6], "t.csv")
    assert shapecast("tables", "merge", "t.csv", expect=1).stderr == (
        "shapecast: error: t.csv is a file, not a store; name the folder that holds the tables, or take an "
        "exported file in with `shapecast tables import`.\n"
    )


# export, import


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_an_exported_table_is_imported_as_it_was(
    shapecast: Shapecast, tables: Path, tmp_path: Path, suffix: str
) -> None:
    segmented = ForwardShapeKey.of_segments(False, [(300, 812, 1), (512, 512, 3)], replicas=2)
    images = ForwardShapeKey(True, 8, 1, 1537, 8, 1024, 768)
    rows = [StoredRecord(key, record(3), 1_760_000_000_123_456, 0.1) for key in (segmented, images)]
    table_at(tables).append([*stored(range(5)), *rows])
    shapecast("tables", "export", IDENTITY.id[:6], f"t.{suffix}")
    assert "7 new records of 7" in shapecast("tables", "import", f"t.{suffix}", "--tables", "new").stdout
    one, two = (table_at(root).load() for root in (tables, tmp_path / "new"))
    assert dict(one) == dict(two)
    assert one.distinct().equals(two.distinct())
    assert ShapeStore(tmp_path / "new").open(IDENTITY.id).identity.label == IDENTITY.label
    assert "0 new records" in shapecast("tables", "import", f"t.{suffix}").stdout


def test_an_exported_table_is_plain_csv_or_parquet(
    shapecast: Shapecast, tables: Path, tmp_path: Path
) -> None:
    table_at(tables).append(stored(range(5)))
    shapecast("tables", "export", IDENTITY.id[:6], "t.csv")
    shapecast("tables", "export", IDENTITY.id[:6], "t.parquet")
    frames = pd.read_csv(tmp_path / "t.csv", comment="#"), pd.read_parquet(tmp_path / "t.parquet")
    for frame in frames:
        assert list(frame["latency_ms"]) == [1.1, 2.1, 3.1, 4.1, 0.1]  # Prefill first, then by size.


def test_an_existing_file_is_replaced_only_when_forced(
    shapecast: Shapecast, tables: Path, tmp_path: Path
) -> None:
    table_at(tables).append(stored(range(5)))
    (tmp_path / "t.csv").write_text("precious")
    done = shapecast("tables", "export", IDENTITY.id[:6], "t.csv", expect=1)
    assert done.stderr == (
        "shapecast: error: The file t.csv is there already; choose another, or replace it with --force.\n"
    )
    assert (tmp_path / "t.csv").read_text() == "precious"
    shapecast("tables", "export", IDENTITY.id[:6], "t.csv", "--force")
    assert (tmp_path / "t.csv").read_text().startswith("# shapecast table\n")


def test_an_export_needs_a_format(shapecast: Shapecast, tables: Path) -> None:
    table_at(tables).append(stored(range(5)))
    done = shapecast("tables", "export", IDENTITY.id[:6], "t.xlsx", expect=2)
    assert "must end in .parquet or .csv" in done.stderr


@pytest.mark.parametrize(("content", "message"), [
    (b"", "t.csv is no exported table: it begins neither like a Parquet file nor with"),
    (b"a,b\n1,2\n", "t.csv is no exported table: it begins neither like a Parquet file nor with"),
    (b"PAR1 and nothing more", "is not a readable Parquet file"),
    (b"# shapecast table\n# nothing: more\n", "not a table that shapecast exported: its head"),
    (b"# shapecast table\n# schema_version: 1\n# identity: {\"settings\": 5}\n# label: \"\"\n"
     b"# content_sha256: 0\nx\n",
     "not a table that shapecast exported: its head"),
    (b"# shapecast table\n# schema_version: 1\n# identity: {}\n# label: \"\"\n# content_sha256: 0\nx\n1\n",
     "is not a table that shapecast exported"),
    (b"# shapecast table\n# schema_version: 99\n# identity: {}\n# label: \"\"\n# content_sha256: 0\nx\n1\n",
     "has schema version 99; this shapecast reads up to 2: upgrade shapecast"),
])  # fmt: skip
def test_a_file_that_is_no_table_is_not_imported(
    shapecast: Shapecast, tmp_path: Path, tables: Path, content: bytes, message: str
) -> None:
    (tmp_path / "t.csv").write_bytes(content)
    assert message in shapecast("tables", "import", "t.csv", expect=1).stderr
    assert not tables.exists()


def test_a_missing_file_is_not_imported(shapecast: Shapecast) -> None:
    assert (
        "The file t.csv cannot be read (No such file"
        in shapecast("tables", "import", "t.csv", expect=1).stderr
    )


def test_a_foreign_parquet_file_is_not_imported(shapecast: Shapecast, tmp_path: Path) -> None:
    pd.DataFrame({"a": [1]}).to_parquet(tmp_path / "t.parquet")
    assert "it names no identity" in shapecast("tables", "import", "t.parquet", expect=1).stderr


@pytest.mark.parametrize(("old", "new"), [
    ("1.1,20.0", "1.2,20.0"),
    ("fake,1,", "fake,2,"),
    ('"tp":2', '"tp":8'),
    ("false,2,2,3,,,,1.1", "false,2,2,4,,,,1.1"),
])  # fmt: skip
def test_a_changed_csv_file_is_not_imported(
    shapecast: Shapecast, tables: Path, tmp_path: Path, old: str, new: str
) -> None:
    table_at(tables).append(stored(range(5)))
    shapecast("tables", "export", IDENTITY.id[:6], "t.csv")
    text = (tmp_path / "t.csv").read_text()
    assert old in text
    (tmp_path / "t.csv").write_text(text.replace(old, new, 1))
    done = shapecast("tables", "import", "t.csv", "--tables", "new", expect=1)
    assert "The content of t.csv does not have the digest that it names" in done.stderr
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("rows", [0, 1, 4])
@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 0.8, 0.99])
def test_a_csv_file_that_is_cut_short_is_not_imported(
    shapecast: Shapecast, tables: Path, tmp_path: Path, rows: int, share: float
) -> None:
    table_at(tables).append(stored(range(5)))
    shapecast("tables", "export", IDENTITY.id[:6], "t.csv")
    lines = (tmp_path / "t.csv").read_text().splitlines(keepends=True)
    last = lines[6 + rows]
    (tmp_path / "t.csv").write_text("".join(lines[: 6 + rows]) + last[: int(share * len(last))])
    done = shapecast("tables", "import", "t.csv", "--tables", "new", expect=1)
    assert "ends in the middle of a line, so it was cut short; get a whole copy." in done.stderr


def test_a_cell_that_is_no_value_is_named(shapecast: Shapecast, tables: Path, tmp_path: Path) -> None:
    table_at(tables).append(stored(range(5)))
    shapecast("tables", "export", IDENTITY.id[:6], "t.csv")
    text = (tmp_path / "t.csv").read_text()
    (tmp_path / "t.csv").write_text(text.replace("2025-10-09T", "yesterday ", 1))
    done = shapecast("tables", "import", "t.csv", expect=1)
    assert (
        "t.csv is not a table that shapecast exported: line 7 has the computed_at 'yesterday " in done.stderr
    )


def test_a_changed_parquet_file_is_not_imported(shapecast: Shapecast, tables: Path, tmp_path: Path) -> None:
    table_at(tables).append(stored(range(5)))
    shapecast("tables", "export", IDENTITY.id[:6], "t.parquet")
    rows = pq.read_table(tmp_path / "t.parquet")
    pq.write_table(rows.slice(1), tmp_path / "t.parquet")
    assert "does not have the digest" in shapecast("tables", "import", "t.parquet", expect=1).stderr


def test_a_part_file_is_imported_under_its_own_name_only(
    shapecast: Shapecast, tables: Path, tmp_path: Path
) -> None:
    table_at(tables).append(stored(range(5)))
    (part,) = part_paths(tables)
    shutil.copy(part, tmp_path / "renamed.parquet")
    assert "does not have the digest" in shapecast("tables", "import", "renamed.parquet", expect=1).stderr
    assert "5 new records" in shapecast("tables", "import", part, "--tables", "new").stdout


def test_an_import_that_conflicts_is_refused(shapecast: Shapecast, tables: Path, tmp_path: Path) -> None:
    table_at(tmp_path / "other").append([StoredRecord(shape(1), record(1, latency_ms=9.9), 1, 1.0)])
    shapecast("tables", "export", IDENTITY.id[:6], "t.csv", "--tables", "other")
    table_at(tables).append(stored(range(3)))
    done = shapecast("tables", "import", "t.csv", expect=1)
    assert "1.1 in " in done.stderr
    assert "and 9.9 in t.csv" in done.stderr
    assert dict(table_at(tables).load()) == expected(range(3))
