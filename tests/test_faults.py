"""What happens to a real run when it is killed, when the disk is full, read-only, deleted or shared."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cache.folder import LocalFolder
from cache.store import ShapeStore
from tests.slow_plugin import SHAPES_PER_TABLE, SlowRuns, finished

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals and mounts")


@pytest.fixture
def runs(tmp_path: Path) -> SlowRuns:
    return SlowRuns(tmp_path, tmp_path / "tables")


def wait_until(condition: object, timeout_s: float = 60.0) -> None:
    ended_s = time.monotonic() + timeout_s
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < ended_s, "nothing happened"
        time.sleep(0.005)


def kill_at(runs: SlowRuns, process: subprocess.Popen[str], kill: int, chance: random.Random) -> set[object]:
    """Kill a run at a random moment, or while a file is being written; return what was there before."""
    calls_before = len(runs.calls)
    wait_until(lambda: len(runs.calls) > calls_before or process.poll() is not None)
    time.sleep(chance.uniform(0.0, 0.6))
    if kill % 2:
        folder = Path(str(runs.tables)) / runs.identity.id
        ended_s = time.monotonic() + 0.5
        while time.monotonic() < ended_s and not list(folder.glob(".*.tmp")):
            pass
    acknowledged = set(runs.view())
    process.kill()
    process.communicate()
    return acknowledged


def test_nothing_acknowledged_is_lost_by_thirty_kills_and_a_rerun_computes_the_rest(runs: SlowRuns) -> None:
    chance = random.Random(20_261_129)
    survived: set[object] = set()
    interrupted = 0
    for kill in range(30):
        # A few shapes per flush and thirty unlike moments: begin, middle and end of what is published.
        process = runs.start("out", call_s=chance.choice([0.002, 0.02, 0.2]))
        acknowledged = kill_at(runs, process, kill, chance)
        interrupted += process.returncode == -9
        now = set(runs.view())  # Every record right.
        assert acknowledged <= now
        assert survived <= now
        survived = now
        if len(survived) == SHAPES_PER_TABLE:
            break
    assert interrupted >= min(30, kill)
    computed_before = len(runs.calls)
    runs.finish("out", call_s=0.0)
    assert len(runs.calls) - computed_before == SHAPES_PER_TABLE - len(survived)
    assert len(runs.view()) == SHAPES_PER_TABLE
    computed_before = len(runs.calls)
    runs.finish("again", "--frozen")
    assert len(runs.calls) == computed_before


def test_a_file_is_on_disk_before_it_has_its_name_and_its_name_before_publish_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a power cut keeps cannot be tested; the order that makes it so can."""
    events: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def noted_fsync(descriptor: int) -> None:
        fsync(descriptor)
        what = "folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file"
        events.append(f"sync {what}, readers see {[path.name for path in tmp_path.glob('[!.]*')]}")

    def noted_replace(self: Path, target: Path) -> Path:
        events.append(f"name {Path(target).name}")
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(Path, "replace", noted_replace)
    LocalFolder(tmp_path).publish("a", b"content")
    assert events == ["sync file, readers see []", "name a", "sync folder, readers see ['a']"]


def test_ctrl_c_keeps_what_was_computed(runs: SlowRuns) -> None:
    process = runs.start("out", call_s=0.01)
    wait_until(lambda: len(runs.calls) > 30)
    process.send_signal(2)
    assert "computed records are kept" in finished(process, expect=130)
    assert len(runs.view()) == len(runs.calls)


def test_a_table_folder_deleted_during_a_run_is_there_again_at_its_end(runs: SlowRuns) -> None:
    process = runs.start("out", call_s=0.003)
    wait_until(lambda: list(Path(str(runs.tables)).glob("*/part-*")))
    known = len(runs.view())
    shutil.rmtree(runs.tables)
    finished(process)
    assert known > 0
    assert len(runs.view()) == SHAPES_PER_TABLE
    assert ShapeStore(runs.tables).open(runs.identity.id).identity == runs.identity
    assert len(runs.calls) == SHAPES_PER_TABLE


@pytest.mark.parametrize("scheduler", ["threads", "processes"])
def test_two_runs_at_once_on_one_table_lose_nothing_and_compute_little_twice(
    runs: SlowRuns, scheduler: str
) -> None:
    both = [runs.start(name, "--scheduler", scheduler, call_s=0.003) for name in ("a", "b")]
    for process in both:
        finished(process)
    assert len(runs.view()) == SHAPES_PER_TABLE
    assert len(runs.calls) - len(set(runs.calls)) <= 5
    a, b = ((runs.base / name / "results.parquet").read_bytes() for name in ("a", "b"))
    assert a == b


def test_a_run_that_waits_goes_on_when_the_other_is_killed(runs: SlowRuns) -> None:
    first = runs.start("a", call_s=0.1)
    wait_until(lambda: len(runs.calls) > 5)
    second = runs.start("b", call_s=0.0)
    assert second.stderr is not None
    assert "Another run computes for" in second.stderr.readline()
    first.kill()
    first.communicate()
    finished(second)
    assert len(runs.view()) == SHAPES_PER_TABLE


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 16 MiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "none", disk], check=False).returncode:
        pytest.skip("only root can mount a small file system")
    yield disk
    subprocess.run(["umount", disk], check=True)


def fill(path: Path) -> None:
    """Write a file until the disk is full."""
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(b"x" * 512):
            pass


@pytest.mark.parametrize("out", ["out", "disk/out"])
def test_a_full_disk_ends_the_run_with_one_sentence_and_a_rerun_continues(
    small_disk: Path, tmp_path: Path, out: str
) -> None:
    runs = SlowRuns(tmp_path, small_disk / "tables")
    process = runs.start(out, call_s=0.003)
    wait_until(lambda: list(small_disk.glob("tables/*/part-*")))
    fill(small_disk / "filler")
    message = finished(process, expect=1)
    assert message.count("\n") == 1
    assert message.startswith("shapecast: error: The disk of the table folder ")
    assert message.endswith("is full; records computed so far are kept: make room and run again.\n")
    kept = len(runs.view())
    assert 0 < kept < SHAPES_PER_TABLE
    (small_disk / "filler").unlink()
    subprocess.run(["mount", "-o", "remount,size=64m", small_disk], check=True)
    computed_before = len(runs.calls)
    runs.finish(out)
    assert len(runs.calls) - computed_before == SHAPES_PER_TABLE - kept
    assert len(runs.view()) == SHAPES_PER_TABLE


@pytest.fixture
def read_only_tables(tmp_path: Path) -> Iterator[SlowRuns]:
    """Runs on tables in which a third of the shapes is known, and which cannot be written."""
    runs = SlowRuns(tmp_path, tmp_path / "tables")
    config = runs.config.read_text()
    runs.config.write_text(config.replace("[100, 200, 300]", "[100]"))
    runs.finish("first", call_s=0.0)
    runs.config.write_text(config)
    tables = Path(str(runs.tables))
    bind = subprocess.run(["mount", "--bind", tables, tables], check=False).returncode == 0
    if bind:
        subprocess.run(["mount", "-o", "remount,ro,bind", tables], check=True)
    elif os.geteuid() != 0:
        for path in [tables, *tables.iterdir()]:
            path.chmod(0o555)
    else:
        pytest.skip("root writes everywhere, and may not mount here")
    yield runs
    if bind:
        subprocess.run(["umount", tables], check=True)


def test_a_run_on_read_only_tables_uses_them_and_says_that_nothing_is_kept(
    read_only_tables: SlowRuns,
) -> None:
    runs = read_only_tables
    known = len(runs.view())
    assert known == SHAPES_PER_TABLE // 3
    message = runs.finish("second", call_s=0.0)
    assert message.count("\n") == 1
    assert "is read-only" in message
    assert "New records are not kept." in message
    assert len(runs.calls) == SHAPES_PER_TABLE
    assert len(runs.view()) == known
    assert (runs.base / "second" / "results.parquet").exists()


def test_many_read_only_tables_are_one_line(read_only_tables: SlowRuns) -> None:
    runs = read_only_tables
    names = [f"model-{number}" for number in range(6)]
    runs.config.write_text(runs.config.read_text().replace("[one]", f"[{', '.join(['one', *names])}]"))
    message = runs.finish("second", call_s=0.0)
    assert message.count("\n") == 1
    assert f"The table folder {runs.tables} is read-only" in message


@pytest.mark.parametrize("damage", ["truncated", "garbled", "emptied", "foreign"])
def test_a_run_sets_a_damaged_file_aside_and_computes_its_shapes_again(runs: SlowRuns, damage: str) -> None:
    runs.finish("a", call_s=0.0)
    (part,) = Path(str(runs.tables)).glob("*/part-*")
    data = part.read_bytes()
    part.write_bytes({
        "truncated": data[: len(data) // 2],
        "garbled": data[:500] + b"garbage" + data[507:],
        "emptied": b"",
        "foreign": b"PK\x03\x04 something else",
    }[damage])  # fmt: skip
    message = runs.finish("b", call_s=0.0)
    assert message.count("\n") == 1
    assert part.name in message
    assert "set aside under quarantine/" in message
    assert (part.parent / "quarantine" / part.name).exists()
    assert len(runs.calls) == 2 * SHAPES_PER_TABLE
    assert len(runs.view()) == SHAPES_PER_TABLE
    assert (runs.base / "a/results.parquet").read_bytes() == (runs.base / "b/results.parquet").read_bytes()


def test_a_run_refuses_tables_that_contradict_themselves(runs: SlowRuns) -> None:
    from dataclasses import replace

    from cache.schema import StoredRecord
    from tests.slow_plugin import expected_record

    runs.finish("a", call_s=0.0)
    key = next(iter(runs.view()))
    wrong = replace(expected_record(key), latency_ms=1e6)
    ShapeStore(runs.tables).table(runs.identity).append([StoredRecord(key, wrong, 1, 1.0)])
    message = runs.finish("b", expect=1)
    assert message.count("\n") == 1
    assert f"Two records of one shape ({key}) differ in latency_ms: " in message
    assert "1000000.0 in " in message
    assert not (runs.base / "b").exists()
