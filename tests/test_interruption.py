"""Ctrl-C, SIGTERM and SIGKILL, at any moment of a run and however they reach it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.slow_plugin import SlowRuns, finished

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")

KEPT = "shapecast: error: interrupted; computed records are kept, so the same command continues.\n"


@pytest.fixture
def runs(tmp_path: Path) -> SlowRuns:
    return SlowRuns(tmp_path, tmp_path / "tables")


def start(runs: SlowRuns, call_s: float = 0.01) -> subprocess.Popen[str]:
    """Start a run in a process group of its own, as a shell does."""
    return runs.start("out", "--scheduler", "processes", call_s=call_s, process_group=0)


def wait_until(condition: Callable[[], object]) -> None:
    ended_s = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < ended_s, "nothing happened"
        time.sleep(0.005)


def workers_of(process: subprocess.Popen[str]) -> list[int]:
    """Return the children that were spawned to run tasks."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    if not children.exists():
        pytest.skip("needs /proc to see children")
    found = [int(child) for child in children.read_text().split()]
    return [child for child in found if b"spawn_main" in command_line(child)]


def command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@pytest.mark.parametrize("after_s", [0.0, 0.1, 0.6, 1.2])
def test_ctrl_c_while_workers_start_ends_as_at_any_other_time(runs: SlowRuns, after_s: float) -> None:
    process = start(runs)
    wait_until(lambda: workers_of(process))
    time.sleep(after_s)
    os.killpg(process.pid, signal.SIGINT)
    assert finished(process, expect=130) == KEPT
    assert len(runs.view()) == len(runs.calls)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("group", [True, False])
def test_a_signal_to_the_process_or_to_its_group_keeps_what_workers_computed(
    runs: SlowRuns, number: signal.Signals, group: bool
) -> None:
    process = start(runs)
    wait_until(lambda: len(runs.calls) > 20)
    (os.killpg if group else os.kill)(process.pid, number)
    assert finished(process, expect=128 + number) == KEPT
    assert len(runs.view()) == len(runs.calls)


def test_workers_end_with_a_parent_that_is_killed_and_publish_what_they_have(runs: SlowRuns) -> None:
    process = start(runs)
    wait_until(lambda: len(runs.calls) > 20)
    workers = workers_of(process)
    assert workers
    process.kill()
    process.communicate(timeout=20)  # Returns when nobody holds its pipes any more.
    wait_until(lambda: not any(command_line(worker) for worker in workers))
    assert len(runs.view()) >= len(runs.calls) - len(workers)
