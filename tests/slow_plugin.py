"""A model runner that takes its time, installed as a plug-in: for tests that interrupt real runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from cache.identity import TableIdentity
from cache.schema import record_digest_text
from cache.shapes import ForwardLatencyRecord, ForwardShapeKey
from cache.store import ShapeStore
from cache.view import TableView

MODULE = """
import os
import time
from dataclasses import dataclass
from typing import Literal

from cache.identity import TableIdentity
from cache.shapes import ForwardLatencyRecord
from stages.runners.base import RunnerOptions, RunnerSpec


def latency_ms(key):
    return key.model_concurrency + 0.25 * key.seq_len + (0.5 if key.is_decode else 0.125)


class Runner:
    def forward(self, key):
        time.sleep(float(os.environ.get("SLOW_CALL_S", "0.001")))
        with open(os.environ["SLOW_CALLS"], "a") as log:
            log.write(f"{key}\\\\n")
        breakdowns = {"slow": {"memory_bound": 1.0}}
        return ForwardLatencyRecord(latency_ms(key), 10.0, breakdowns, None, {"measured": 1.0})


class Options(RunnerOptions):
    kind: Literal["slow"]

    def spec(self, deployment):
        return Spec(deployment.model)


@dataclass(frozen=True)
class Spec(RunnerSpec):
    model: str

    def identity(self):
        return TableIdentity("slow", "1", self.model, "none", label=f"slow {self.model}")

    def build(self):
        return Runner()
"""

SHAPES_PER_TABLE = 3 * 400

CONFIG = """
name: slow
runner: {kind: slow}
models: [one]
devices: [any]
modes: [decode]
workloads: [{input_length: [100, 200, 300], output_length: 10}]
engine: {max_batched_tokens: 8192}
concurrency: {batch_sizes: [SIZES]}
""".replace("SIZES", ", ".join(str(size) for size in range(1, 401)))


def expected_record(key: ForwardShapeKey) -> ForwardLatencyRecord:
    latency_ms = key.model_concurrency + 0.25 * key.seq_len + (0.5 if key.is_decode else 0.125)
    return ForwardLatencyRecord(latency_ms, 10.0, {"slow": {"memory_bound": 1.0}}, None, {"measured": 1.0})


class SlowRuns:
    """Real runs of the command with the slow runner.

    Parameters
    ----------
    base : Path
        An empty folder: plug-in, config, log of calls, outputs.
    tables : Path or str
        Root of the tables.
    """

    def __init__(self, base: Path, tables: Path | str) -> None:
        self.base = base
        self.tables = tables
        self.calls_path = base / "calls.txt"
        self.config = base / "slow.yaml"
        self.config.write_text(CONFIG)
        plug_in = base / "plug-in"
        info = plug_in / "slow_runner-1.dist-info"
        info.mkdir(parents=True)
        (plug_in / "slow_runner.py").write_text(MODULE.replace("\\\\n", "\\n"))
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: slow-runner\nVersion: 1\n")
        (info / "entry_points.txt").write_text("[shapecast.runners]\nslow = slow_runner:Options\n")
        path = os.pathsep.join([str(plug_in), str(Path(__file__).parents[1])])
        self.environment = {
            **os.environ, "PYTHONPATH": path, "SLOW_CALLS": str(self.calls_path),
            "XDG_CACHE_HOME": str(base / "user-cache"),
        }  # fmt: skip

    def start(self, out: str, *options: str, call_s: float = 0.001, **how: Any) -> subprocess.Popen[str]:
        """Start a run; it writes to the folder `out`."""
        command = [sys.executable, "-m", "pipeline.cli", "run", str(self.config), "--quiet"]
        return subprocess.Popen(
            [*command, "--out", str(self.base / out), "--tables", str(self.tables), *options],
            env={**self.environment, "SLOW_CALL_S": str(call_s), **how.pop("environment", {})},
            cwd=self.base, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **how,
        )  # fmt: skip

    def finish(self, out: str, *options: str, expect: int = 0, **how: Any) -> str:
        """Run to the end, and return what it wrote on standard error."""
        return finished(self.start(out, *options, **how), expect)

    @property
    def calls(self) -> list[str]:
        """The shapes that were computed, over all runs, in words."""
        return self.calls_path.read_text().splitlines() if self.calls_path.exists() else []

    def view(self) -> TableView:
        """Return what is stored now, every record checked against the truth."""
        view = ShapeStore(self.tables).table(self.identity).load(tidy=False)
        for key, record in view.items():
            truth = expected_record(key)
            assert record_digest_text(key, record) == record_digest_text(key, truth), key
        return view

    @property
    def identity(self) -> TableIdentity:
        """The identity of the one table."""
        return TableIdentity("slow", "1", "one", "none", label="slow one")


def finished(process: subprocess.Popen[str], expect: int = 0) -> str:
    """Wait for a run, and return what it wrote on standard error."""
    out, err = process.communicate(timeout=300)
    assert process.returncode == expect, out + err
    assert "Traceback" not in err, err
    return err
