"""How a sweep runs does not change what it finds: order, interruption, a cluster, the memo."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import joblib
import pytest

from cache import ForwardLatencyRecord
from cache.memo import Memo
from cache.store import StoreWarning
from pipeline.cells import expand
from pipeline.config import load_config
from pipeline.execute import compute
from pipeline.graph import build_graph
from pipeline.places import places_for
from pipeline.tasks import (
    MEMOIZE_FROM_RUNS,
    MEMOIZE_FROM_STEPS,
    Prefetched,
    Watch,
    plan_task,
    replay_task,
    start_run,
)
from stages import Candidate, Engine, Parallelism, Workload
from stages.plan import plan
from tests.conftest import Shapecast, own_places
from tests.test_end_to_end import SWEEP, digests, shapes_line

SLOW_RUNNER = """
import time
from typing import Literal
from cache import ForwardLatencyRecord, ForwardShapeKey, TableIdentity
from stages.runners.base import RunnerOptions, RunnerSpec

class SlowSpec(RunnerSpec):
    def identity(self):
        return TableIdentity("slow", "1", "m", "d")
    def build(self):
        return self
    def forward(self, key):
        time.sleep(0.05)
        return ForwardLatencyRecord(key.query_len * key.model_concurrency, 10.0)

class SlowOptions(RunnerOptions):
    kind: Literal["slow"]
    def spec(self, deployment):
        return SlowSpec()
"""

SLOW_SWEEP = """
name: slow
runner: {kind: slow}
models: m
devices: d
workloads: {input_length: 20000, output_length: 4}
engine: {max_batched_tokens: 100}
concurrency: {batch_sizes: [1, 2]}
"""


@pytest.fixture
def slow_runner(tmp_path: Path) -> dict[str, str]:
    """Install a runner of 50 ms a call as a plug-in; return the environment that sees it."""
    site = tmp_path / "site"
    info = site / "slow_runner-1.dist-info"
    info.mkdir(parents=True)
    (site / "slow_runner.py").write_text(SLOW_RUNNER)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: slow-runner\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[shapecast.runners]\nslow = slow_runner:SlowOptions\n")
    (tmp_path / "slow.yaml").write_text(SLOW_SWEEP)
    paths = [str(site), os.environ.get("PYTHONPATH", "")]
    return {"PYTHONPATH": os.pathsep.join(path for path in paths if path)}


@pytest.mark.parametrize("scheduler", ["threads", "processes", "single-threaded"])
def test_an_interrupted_run_keeps_its_records_and_the_next_one_continues(
    scheduler: str, shapecast: Shapecast, tmp_path: Path, tables: Path, slow_runner: dict[str, str]
) -> None:
    command = [sys.executable, "-m", "pipeline.cli", "run", "slow.yaml", "--scheduler", scheduler]
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        env={**os.environ, **own_places(tmp_path, tables), **slow_runner},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 180
    while not list(tables.glob("*/part-*.parquet")):
        assert time.monotonic() < deadline, "no record was published"
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "interrupted; computed records are kept, so the same command continues" in errors
    assert "Traceback" not in errors
    assert not (tmp_path / "out" / "slow" / "results.parquet").exists()

    line = shapes_line(shapecast("run", "slow.yaml", **slow_runner).stdout)
    needed, reused, computed = [int(word) for word in line.replace(",", "").split() if word.isdecimal()][:3]
    assert needed == 202
    assert reused >= 30
    assert computed == needed - reused


def test_the_order_of_cells_changes_no_result(tmp_path: Path) -> None:
    path = tmp_path / "sweep.yaml"
    path.write_text(SWEEP)
    cells = expand(load_config(path))
    found = []
    for seed in (None, 1, 2):
        order = list(cells)
        if seed is not None:
            random.Random(seed).shuffle(order)
        places = places_for(str(tmp_path / f"tables-{seed}"))
        watch = Watch()
        start_run(watch)
        pairs = compute(build_graph(order, places), "threads", 3, watch, lambda _: None, lambda *_: None)
        results = {
            cell.index: (rows, counts.digests) for cell, (rows, counts) in zip(order, pairs, strict=True)
        }
        found.append([results[cell.index] for cell in cells])
    assert found[0] == found[1] == found[2]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[str]:
    """Start a Dask scheduler and two workers as processes of their own."""
    address = tmp_path / "scheduler.json"
    options = ["--no-dashboard", f"--scheduler-file={address}"]
    scheduler = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--port=0", *options]
    worker = [sys.executable, "-m", "distributed.cli.dask_worker", "--nthreads=1", *options]
    processes = [
        subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL)
        for command in (scheduler, worker, worker)
    ]
    try:
        deadline = time.monotonic() + 180
        while not address.exists():
            assert time.monotonic() < deadline, "the scheduler did not start"
            time.sleep(0.1)
        yield json.loads(address.read_text())["address"]
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(timeout=30)


def test_a_cluster_writes_the_same_bytes(shapecast: Shapecast, tmp_path: Path, cluster: str) -> None:
    (tmp_path / "sweep.yaml").write_text(SWEEP)
    shapecast("run", "sweep.yaml", "--out", "here", "--quiet", "--tables", "here-tables")
    for out in ("there", "again"):
        shapecast(
            "run", "sweep.yaml", "--out", out, "--quiet", "--tables", "there-tables", "--scheduler", cluster
        )
        assert digests(tmp_path / out) == digests(tmp_path / "here")


def test_a_cluster_that_does_not_answer_is_one_sentence(shapecast: Shapecast, tmp_path: Path) -> None:
    (tmp_path / "sweep.yaml").write_text(SWEEP)
    failed = shapecast("run", "sweep.yaml", "--scheduler", "tcp://127.0.0.1:1", expect=1)
    assert "No Dask scheduler answers at tcp://127.0.0.1:1" in failed.stderr


def literal_candidate() -> Candidate:
    """A candidate whose plan cannot skip steps: far more requests than budget."""
    return Candidate("aggregated", Workload(40, 200), Engine(4), Parallelism(), batch_size=400)


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user-cache"))
    return tmp_path / "user-cache" / "shapecast"


def test_expensive_plans_are_loaded_the_second_time(tmp_path: Path, own_cache: Path) -> None:
    candidates = (literal_candidate(),)
    places = places_for(str(tmp_path / "tables"))
    first = plan_task(candidates, places)
    assert len(first[0].schedule.run_steps)
    stored = list(own_cache.rglob("output.pkl"))
    assert len(stored) == 1
    before = stored[0].stat().st_mtime_ns
    second = plan_task(candidates, places)
    assert stored[0].stat().st_mtime_ns == before
    assert second[0].keys == first[0].keys == plan(candidates[0]).keys
    assert second[0].schedule.run_steps.tolist() == first[0].schedule.run_steps.tolist()
    assert candidates[0].concurrency * candidates[0].workload.output_length / 4 >= MEMOIZE_FROM_STEPS


@pytest.mark.parametrize("variable", [None, "SHAPECAST_TABLES"])
def test_no_pickle_is_kept_or_loaded_beside_shared_tables(
    tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch, variable: str | None
) -> None:
    tables = tmp_path / "shared"
    if variable:
        monkeypatch.setenv(variable, str(tables))
    places = places_for(None if variable else str(tables))
    assert places.tables == str(tables)
    plan_task((literal_candidate(),), places)
    assert not tables.exists()
    assert (own_cache / "memo").stat().st_mode & 0o777 == 0o700


def test_a_memo_that_others_can_write_to_is_not_used(tmp_path: Path) -> None:
    folder = tmp_path / "memo"
    folder.mkdir()
    folder.chmod(0o770)
    with pytest.warns(StoreWarning, match="Others may write to .*memo"):
        memo = Memo(folder, "a" * 64)
    assert memo.call(plan, literal_candidate()).rule == "mixed_steps"
    assert not list(folder.iterdir())


def test_what_cannot_be_the_plans_is_not_taken_from_the_memo(tmp_path: Path, own_cache: Path) -> None:
    candidates, places = (literal_candidate(),), places_for(str(tmp_path / "tables"))
    first = plan_task(candidates, places)
    (stored,) = own_cache.rglob("output.pkl")
    for wrong in ([], ["text"], "text", first * 2):
        joblib.dump(wrong, stored)
        assert plan_task(candidates, places)[0].keys == first[0].keys


def test_arguments_that_follow_from_others_are_neither_compared_nor_stored(tmp_path: Path) -> None:
    memo = Memo(tmp_path, "a" * 64)
    # A lock can be neither hashed nor stored.
    assert memo.call(divmod_of, (7, 2), threading.Lock(), ignore=["lock"]) == (3, 1)
    assert memo.call(divmod_of, (7, 2), threading.Lock(), ignore=["lock"]) == (3, 1)
    assert len(list(tmp_path.rglob("output.pkl"))) == 1


def divmod_of(numbers: tuple[int, int], lock: object) -> tuple[int, int]:
    assert lock is not None
    return divmod(*numbers)


def test_a_memoized_replay_is_another_when_a_record_is(tmp_path: Path, own_cache: Path) -> None:
    candidate = Candidate("aggregated", Workload(50_000, 2), Engine(1), Parallelism(), batch_size=1)
    plans = [plan(candidate)] * 2
    assert 2 * len(plans[0].schedule.run_steps) >= MEMOIZE_FROM_RUNS
    ends = []
    for latency_ms in (1.0, 2.0, 1.0):
        records = {key: ForwardLatencyRecord(latency_ms, 1.0) for key in plans[0].keys}
        known = Prefetched(records, frozenset(), 0, 0)
        ends.append(replay_task([candidate] * 2, plans, known, places_for(str(tmp_path)))[0].end_ms)
    assert ends[1] == 2 * ends[0]
    assert ends[2] == ends[0]
    assert len(list(own_cache.rglob("output.pkl"))) == 2


def test_the_memo_is_keyed_by_arguments_and_by_the_version_of_the_code(tmp_path: Path) -> None:
    for code in ("a" * 64, "b" * 64):
        assert Memo(tmp_path, code).call(plan, literal_candidate()).rule == "mixed_steps"
    assert len(list(tmp_path.rglob("output.pkl"))) == 2
    Memo(None, "c" * 64).call(plan, literal_candidate())
    assert len(list(tmp_path.rglob("output.pkl"))) == 2
