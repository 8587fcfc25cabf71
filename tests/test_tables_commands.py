"""`shapecast tables`, as a user meets it."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from cache.identity import TableIdentity
from cache.lock import LocalLock
from cache.schema import StoredRecord, decode_table, records_of
from cache.shapes import ForwardShapeKey
from cache.store import ShapeStore, part_name
from pipeline.tables.verify import recomputed_differences
from tests.conftest import DATA, Shapecast
from tests.in_process import command_here
from tests.store_cases import IDENTITY, expected, part_paths, record, shape, stored, table_at

OTHER = replace(IDENTITY, parallelism={"tp": 4}, label="another deployment")

SWEEP = """
name: tiny
runner: {kind: roofline}
models: [Qwen/Qwen3-8B]
devices: [H100-SXM-80G, H200-SXM-141G]
modes: [aggregated]
workloads: [{input_length: 1000, output_length: 16}]
engine: {max_batched_tokens: 256}
concurrency: {batch_sizes: [1, 2]}
"""


@pytest.fixture
def shapecast(tmp_path: Path, tables: Path, monkeypatch: pytest.MonkeyPatch) -> Shapecast:
    return command_here(tmp_path, tables, monkeypatch)


@pytest.fixture
def swept(shapecast: Shapecast, tmp_path: Path) -> Path:
    """Run a sweep, and return its config."""
    config = tmp_path / "tiny.yaml"
    config.write_text(SWEEP)
    shapecast("run", config, "--quiet")
    return config


def test_ls_lists_each_table_with_its_counts(shapecast: Shapecast, tables: Path) -> None:
    assert f"There are no tables in {tables}." in shapecast("tables", "ls").stdout
    table_at(tables).append(stored(range(3)))
    table_at(tables).append(stored(range(2, 5)))
    table_at(tables, OTHER).append(stored(range(7)))
    lines = shapecast("tables", "ls").stdout.splitlines()
    (line,) = (line for line in lines if IDENTITY.id[:12] in line)
    assert [cell.strip() for cell in line.split("│")][1:6] == [
        IDENTITY.id[:12], "a model on a device", "fake", "5", "2",
    ]  # fmt: skip
    assert any("another deployment" in line for line in lines)


def test_show_prints_the_identity_in_full_and_the_provenance(shapecast: Shapecast, tables: Path) -> None:
    table_at(tables).append(stored(range(4)))
    text = shapecast("tables", "show", IDENTITY.id[:6]).stdout
    assert json.loads(text.partition("\nidentity\n")[2]) == IDENTITY.as_json()
    assert re.search(rf"table +{IDENTITY.id}\n", text)
    assert re.search(r"records +4 in 1 file\n", text)
    assert re.search(r"computed +2025-10-09T08:53:20\+00:00 to ", text)
    assert re.search(r"runner calls +7 s in all\n", text)
    assert re.search(
        r"come about +75\.0% analytic \(in 4 records\), 25\.0% measured \(in 4 records\)\n", text
    )


def test_a_run_leaves_the_day_of_use_and_how_to_compute(
    shapecast: Shapecast, swept: Path, tables: Path
) -> None:
    for folder in (tables / name for name in ShapeStore(tables).ids()):
        assert (folder / "last-used").read_text().strip() == datetime.now(UTC).date().isoformat()
        assert json.loads((folder / "runner.json").read_text())["model"] == "Qwen/Qwen3-8B"
        (folder / "last-used").write_text("2026-01-01\n")
    shapecast("run", swept, "--quiet", "--frozen")
    assert all("2026-01-01" not in path.read_text() for path in tables.glob("*/last-used"))


def test_the_day_of_use_is_written_once_a_day(shapecast: Shapecast, swept: Path, tables: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in tables.glob("*/last-used")}
    shapecast("run", swept, "--quiet")
    assert {path: path.stat().st_mtime_ns for path in tables.glob("*/last-used")} == before


# verify


def test_verify_is_content_with_a_sound_store(shapecast: Shapecast, swept: Path, tables: Path) -> None:
    lines = shapecast("tables", "verify").stdout.splitlines()
    assert len(lines) == 2
    assert all(line.endswith("; all right.") for line in lines)


def test_verify_names_a_damaged_file_and_leaves_it(shapecast: Shapecast, tables: Path) -> None:
    table_at(tables).append(stored(range(3)))
    table_at(tables, OTHER).append(stored(range(3)))
    (path,) = part_paths(tables)
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    done = shapecast("tables", "verify", expect=1)
    assert path.name in done.stdout
    assert f"{OTHER.id[:12]}: 3 records in 1 file; all right." in done.stdout
    assert done.stderr == "shapecast: error: 1 of 2 tables are not all right; see above.\n"
    assert path.exists()


def test_verify_names_a_conflict_with_both_values(shapecast: Shapecast, tables: Path) -> None:
    table_at(tables).append(stored(range(3)))
    table_at(tables).append([StoredRecord(shape(1), record(1, latency_ms=77.0), 1, 1.0)])
    done = shapecast("tables", "verify", IDENTITY.id[:8], expect=1)
    assert re.search(r"differ in latency_ms: (1\.1 in .* and 77\.0|77\.0 in .* and 1\.1) in ", done.stdout)


def test_verify_finds_a_key_that_cannot_be(shapecast: Shapecast, tables: Path) -> None:
    impossible = ForwardShapeKey(False, 1, 5, 9)
    object.__setattr__(impossible, "seq_len", 2)
    table_at(tables).append([StoredRecord(impossible, record(1), 1, 1.0)])
    done = shapecast("tables", "verify", expect=1)
    assert "its row 1 has the seq_len 2; expected no less than query_len." in done.stdout


def test_verify_finds_a_table_in_the_folder_of_another(shapecast: Shapecast, tables: Path) -> None:
    table_at(tables).append(stored(range(3)))
    (tables / IDENTITY.id).rename(tables / ("0" * 64))
    done = shapecast("tables", "verify", expect=1)
    assert f"holds the table {IDENTITY.id}, whose name its folder must have" in done.stdout


def test_verify_computes_shapes_again(shapecast: Shapecast, swept: Path, tables: Path) -> None:
    assert "5 computed again; all right." in shapecast("tables", "verify", "--recompute", "5").stdout
    store = ShapeStore(tables)
    table = store.open(store.ids()[0])
    rows = table.load().distinct()
    changed = rows.set_column(
        rows.schema.get_field_index("latency_ms"), rows.schema.field("latency_ms"),
        [[value * (1 + 1e-12) for value in rows["latency_ms"].to_pylist()]],
    )  # fmt: skip
    for name in table.part_names():
        table.folder.delete(name)
    table.publish(changed)
    done = shapecast("tables", "verify", "--recompute", "3", expect=1)
    assert done.stdout.count(" computed again differs in latency_ms: kept is ") == 3


def test_verify_without_a_note_takes_a_config(shapecast: Shapecast, swept: Path, tables: Path) -> None:
    for path in tables.glob("*/runner.json"):
        path.unlink()
    done = shapecast("tables", "verify", "--recompute", "1", expect=1)
    assert done.stdout.count("no run has left a runner.json beside it; name a sweep config") == 2
    shapecast("tables", "verify", "--recompute", "1", "--config", swept)


def test_verify_does_not_compute_with_another_identity(
    shapecast: Shapecast, swept: Path, tables: Path
) -> None:
    for path in tables.glob("*/runner.json"):
        path.write_text(path.read_text().replace('"block_size": 128', '"block_size": 64'))
    done = shapecast("tables", "verify", "--recompute", "1", expect=1)
    assert "another identity today (settings.block_size was 128 and is 64)" in done.stdout


def test_all_shapes_are_computed_again_when_asked_for_more_than_there_are(tmp_path: Path) -> None:
    table_at(tmp_path).append(stored(range(4)))
    asked = []

    class Runner:
        def forward(self, key: ForwardShapeKey) -> object:
            asked.append(key)
            return record(99)

    def first(numbers: range, count: int) -> list[int]:
        return list(numbers)[:count]

    view = table_at(tmp_path).load()
    found = recomputed_differences(view, Runner(), 10, first)  # type: ignore[arg-type]
    assert set(asked) == set(expected(range(4)))
    assert len(found) == 4


def test_a_negative_number_of_shapes_is_a_usage_error(shapecast: Shapecast) -> None:
    assert "--recompute" in shapecast("tables", "verify", "--recompute", "-1", expect=2).stderr


# ids


def test_an_unknown_id_names_close_ones(shapecast: Shapecast, tables: Path) -> None:
    table_at(tables).append(stored(range(3)))
    typo = ("1" if IDENTITY.id[0] != "1" else "2") + IDENTITY.id[1:12]
    done = shapecast("tables", "show", typo, expect=1)
    assert done.stderr == (
        f"shapecast: error: No table in {tables} has an id that starts with '{typo}'; did you mean "
        f"{IDENTITY.id[:12]} (a model on a device)?\n"
    )
    assert "did you mean" in shapecast("tables", "show", "Model", expect=1).stderr
    assert "`shapecast tables ls` lists all" in shapecast("tables", "show", "zzzz", expect=1).stderr


def test_an_ambiguous_beginning_names_the_tables(shapecast: Shapecast, tables: Path) -> None:
    identities = [replace(IDENTITY, num_mtp_tokens=number) for number in range(17)]
    for identity in identities:  # Of 17 ids, two share the first digit.
        table_at(tables, identity).append(stored(range(1)))
    digits = [identity.id[0] for identity in identities]
    twice = next(digit for digit in digits if digits.count(digit) > 1)
    done = shapecast("tables", "rm", twice, "--yes", expect=1)
    assert f"'{twice}' is the beginning of {digits.count(twice)} tables: " in done.stderr
    assert "give more of the id" in done.stderr
    assert len(ShapeStore(tables).ids()) == 17


# compact, rm, prune


def test_compact_says_what_it_would_do_until_yes(shapecast: Shapecast, tables: Path) -> None:
    for number in range(3):
        table_at(tables).append(stored([number]))
    done = shapecast("tables", "compact")
    assert "Would make one file of the 3 of " in done.stdout
    assert "add --yes" in done.stdout
    assert len(part_paths(tables)) == 3
    assert "3 records from 3 files in one" in shapecast("tables", "compact", "--yes").stdout
    assert len(part_paths(tables)) == 1
    assert "in one file already" in shapecast("tables", "compact").stdout
    assert dict(table_at(tables).load()) == expected(range(3))


def test_rm_says_what_it_would_do_until_yes(shapecast: Shapecast, tables: Path) -> None:
    table_at(tables).append(stored(range(3)))
    table_at(tables, OTHER).append(stored(range(3)))
    done = shapecast("tables", "rm", IDENTITY.id[:10])
    assert f"Would delete {IDENTITY.id[:12]} (a model on a device): 3 records" in done.stdout
    assert len(ShapeStore(tables).ids()) == 2
    assert "Deleted" in shapecast("tables", "rm", IDENTITY.id[:10], "--yes").stdout
    assert ShapeStore(tables).ids() == [OTHER.id]


def test_a_folder_that_a_killed_run_left_empty_is_no_table(shapecast: Shapecast, tables: Path) -> None:
    table_at(tables).append(stored([1], computed_at_us=days_ago_us(0)))
    shell = tables / ("0" * 64)
    shell.mkdir()
    (shell / ".lock").touch()
    assert "000000000000" not in shapecast("tables", "ls").stdout
    assert "000000000000" not in shapecast("tables", "verify").stdout
    assert "killed early" in shapecast("tables", "show", "0000", expect=1).stderr
    shapecast("tables", "compact")
    assert (
        f"Would delete {shell}, which is empty." in shapecast("tables", "prune", "--older-than", "9d").stdout
    )
    assert shell.exists()
    held = LocalLock(shell)
    assert held.try_acquire()
    assert "No table" in shapecast("tables", "prune", "--older-than", "9d", "--yes").stdout
    held.release()
    assert "Deleted" in shapecast("tables", "prune", "--older-than", "9d", "--yes").stdout
    assert ShapeStore(tables).ids() == [IDENTITY.id]


def test_a_store_of_empty_folders_has_no_tables(shapecast: Shapecast, tables: Path, tmp_path: Path) -> None:
    (tables / ("0" * 64)).mkdir(parents=True)
    for command in ("ls", "verify"):
        assert f"There are no tables in {tables}." in shapecast("tables", command).stdout
    table_at(tmp_path / "other").append(stored([1]))
    (tmp_path / "other" / ("1" * 64)).mkdir()
    assert "Merged 1 new records into 1 tables" in shapecast("tables", "merge", "other").stdout


@pytest.mark.parametrize("command", ["ls", "verify", "compact", "show 12", "rm 12", "prune --older-than 1d"])
def test_a_folder_that_is_named_and_not_there_is_an_error(shapecast: Shapecast, command: str) -> None:
    done = shapecast("tables", *command.split(), "--tables", "nowhere", expect=1)
    assert done.stderr == (
        "shapecast: error: The folder nowhere does not exist, so no tables are there; check --tables.\n"
    )


def days_ago_us(days: float) -> int:
    return int((time.time() - days * 86400) * 1e6)


def test_prune_deletes_what_is_old_and_unused(shapecast: Shapecast, tables: Path) -> None:
    old_used, old_unused, young = (replace(IDENTITY, num_mtp_tokens=number) for number in range(3))
    for identity, days in ((old_used, 100), (old_unused, 100), (young, 1)):
        table_at(tables, identity).append(stored([1], computed_at_us=days_ago_us(days)))
    today = datetime.now(UTC).date()
    (tables / old_used.id / "last-used").write_text(f"{today - timedelta(days=2)}\n")
    (tables / old_unused.id / "last-used").write_text(f"{today - timedelta(days=95)}\n")

    def chosen(*options: object) -> set[str]:
        done = shapecast("tables", "prune", *options)
        return {identity.id for identity in (old_used, old_unused, young) if identity.id[:12] in done.stdout}

    assert chosen("--older-than", "30d") == {old_used.id, old_unused.id}
    assert chosen("--older-than", "20w") == set()
    assert chosen("--unused-since", "30d") == {old_unused.id}
    assert chosen("--unused-since", f"{today - timedelta(days=98)}") == set()
    assert chosen("--older-than", "30d", "--unused-since", "1d") == {old_used.id, old_unused.id}
    assert "No table is that old or unused." in shapecast("tables", "prune", "--older-than", "20w").stdout
    assert len(ShapeStore(tables).ids()) == 3
    shapecast("tables", "prune", "--unused-since", "30d", "--yes")
    assert set(ShapeStore(tables).ids()) == {old_used.id, young.id}


def test_prune_needs_to_know_what_may_go(shapecast: Shapecast) -> None:
    assert "give --older-than or --unused-since" in shapecast("tables", "prune", expect=2).stderr
    done = shapecast("tables", "prune", "--older-than", "long", expect=2)
    assert done.stderr == (
        "shapecast: error: --older-than is 'long'; expected a time ago such as 90d or 12w, or a date such as "
        "2026-01-31.\n"
    )


# diff


def test_diff_tells_identities_and_records_apart(shapecast: Shapecast, tables: Path) -> None:
    table_at(tables).append(stored(range(6)))
    table_at(tables, OTHER).append(stored(range(2, 9)))
    table_at(tables, OTHER).append([StoredRecord(shape(1), record(1, latency_ms=2.2), 1, 1.0)])
    text = shapecast("tables", "diff", IDENTITY.id[:12], OTHER.id[:12]).stdout
    assert re.search(r"parallelism\.tp +│ 2 +│ 4 ", text)
    assert "4 shapes have equal records, 1 differ, 1 are only in " in text
    assert f"3 only in {OTHER.id[:12]}." in text
    assert re.search(rf"{re.escape(str(shape(1)))} │ +1\.10 │ +2\.20 │ +\+100\.00% │", text)


def test_diff_takes_exported_files(shapecast: Shapecast, tables: Path) -> None:
    table_at(tables).append(stored(range(6)))
    shapecast("tables", "export", IDENTITY.id[:8], "kept.csv")
    text = shapecast("tables", "diff", "kept.csv", IDENTITY.id[:8]).stdout
    assert "Both are of one identity." in text
    assert "6 shapes have equal records, 0 differ, 0 are only in kept.csv" in text


# schema


def test_a_newer_schema_is_refused_by_every_command_that_reads(
    shapecast: Shapecast, swept: Path, tables: Path
) -> None:
    (part, *_) = sorted(tables.glob("*/part-*"))
    rows = pq.read_table(part)
    pq.write_table(
        rows.replace_schema_metadata({**rows.schema.metadata, b"shapecast.schema_version": b"99"}), part
    )
    for command in (("plan", swept), ("run", swept, "--frozen"), ("run", swept, "--out", "new")):
        done = shapecast(*command, expect=1)
        assert "has schema version 99; this shapecast reads up to 2: upgrade shapecast" in done.stderr
    assert part.exists()


def test_a_table_of_an_older_schema_is_read_by_the_commands(shapecast: Shapecast, tables: Path) -> None:
    """The file was written by a version that knew schema 1 only."""
    old = DATA / "part_v1.parquet"
    rows, identity = decode_table(old.read_bytes(), old.name)
    folder = tables / identity.id
    folder.mkdir(parents=True)
    shutil.copy(old, folder / part_name(old.read_bytes()))
    assert "2 records in 1 file; all right." in shapecast("tables", "verify").stdout
    assert json.loads(shapecast("tables", "show", identity.id).stdout.partition("\nidentity\n")[2]) == (
        identity.as_json()
    )
    new_key = ForwardShapeKey.of_segments(False, [(300, 812, 1), (512, 512, 3)])
    ShapeStore(tables).table(identity).append([StoredRecord(new_key, record(1), 1, 1.0)])
    shapecast("tables", "compact", "--yes")
    assert set(ShapeStore(tables).open(identity.id).load()) == {
        *(key for key, _ in records_of(rows)),
        new_key,
    }


def test_tables_may_be_a_file_url(shapecast: Shapecast, tables: Path) -> None:
    table_at(tables).append(stored(range(3)))
    assert IDENTITY.id[:12] in shapecast("tables", "ls", "--tables", f"file://{tables}").stdout


def test_unlabelled_identities_are_shown(shapecast: Shapecast, tables: Path) -> None:
    identity = TableIdentity("bare", "1", "m" * 64, "d" * 64)
    table_at(tables, identity).append(stored(range(3)))
    assert "bare" in shapecast("tables", "ls").stdout
    assert "bare" in shapecast("tables", "show", identity.id, SHAPECAST_TABLES=os.fspath(tables)).stdout
