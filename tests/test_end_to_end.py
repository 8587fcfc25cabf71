"""A user's view: the installed command, from config to files."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from tests.conftest import Shapecast

SWEEP = """
name: small
runner: {kind: roofline, quantization: {weights: fp8, activations: fp8, kv_cache: bf16}}
models: [Qwen/Qwen3-8B, meta-llama/Llama-3.1-8B]
devices: [H100-SXM-80G, L40S-48G]
parallelism: [{tp: 2}, {dp: 2}]
modes: [aggregated, prefill, decode]
workloads: [{input_length: 4000, output_length: 64}]
engine: {max_batched_tokens: [512, 4096]}
concurrency: {batch_sizes: [1, 8, 64, 512]}
limits: {ttft_ms: 5000, tpot_ms: 40}
"""

OUTPUTS = ("results.parquet", "best.csv", "report.html", "manifest.json")


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(SWEEP, encoding="utf-8")
    return path


def digests(out: Path) -> dict[str, str]:
    return {name: hashlib.sha256((out / name).read_bytes()).hexdigest() for name in OUTPUTS}


def shapes_line(text: str) -> str:
    return next(line for line in text.splitlines() if line.startswith("Shapes:"))


def test_a_second_run_computes_nothing_and_writes_the_same_bytes(
    shapecast: Shapecast, config: Path, tmp_path: Path
) -> None:
    first = shapecast("run", config, "--out", "a")
    second = shapecast("run", config, "--out", "b")

    assert "Best aggregated deployment" in first.stdout
    assert " 0 reused, " in shapes_line(first.stdout)
    assert " 0 computed;" in shapes_line(second.stdout)
    assert digests(tmp_path / "a") == digests(tmp_path / "b")


def test_schedulers_and_job_counts_write_the_same_bytes(
    shapecast: Shapecast, config: Path, tmp_path: Path
) -> None:
    written = []
    for scheduler, jobs in (("threads", 4), ("processes", 2), ("single-threaded", 1), ("threads", 1)):
        out = f"{scheduler}-{jobs}"
        options = ("--scheduler", scheduler, "--jobs", jobs, "--tables", f"tables-{out}")
        shapecast("run", config, "--out", out, "--quiet", *options)
        written.append(digests(tmp_path / out))
    assert all(one == written[0] for one in written)


IMPORTS = """
import sys
from pipeline.cli import app
app(sys.argv[1:], standalone_mode=False)
print([name for name in sys.modules if name.startswith("stages.runners.")], file=sys.stderr)
"""


def test_only_a_run_that_computes_imports_the_runner_module(
    config: Path, tmp_path: Path, tables: Path
) -> None:
    imported = []
    for _ in range(2):
        command = [sys.executable, "-c", IMPORTS, "run", str(config), "--out", str(tmp_path / "out")]
        done = subprocess.run(
            [*command, "--tables", str(tables)], capture_output=True, text=True, check=True, timeout=120
        )
        imported.append(done.stderr)
    assert "'stages.runners.roofline'" in imported[0]
    assert "'stages.runners.roofline'" not in imported[1]
    assert "'stages.runners.roofline_spec'" in imported[1]


def test_quiet_prints_only_the_output_folder(shapecast: Shapecast, config: Path) -> None:
    assert shapecast("run", config, "--out", "out", "--quiet").stdout == "out\n"


def test_rows_are_typed_and_complete(shapecast: Shapecast, config: Path, tmp_path: Path) -> None:
    shapecast("run", config, "--out", "out", "--quiet")
    rows = pd.read_parquet(tmp_path / "out" / "results.parquet")
    assert len(rows) == 2 * 2 * 2 * 3 * 2 * 4
    chunked = rows[(rows["mode"] == "aggregated") & (rows["max_batched_tokens"] == 512)]
    assert set(chunked["prefill_num_chunks"]) == {8}
    assert (rows["effective_input_length"] == 4000).all()
    assert (rows["forward_shape_count"] > 0).all()
    assert rows["feasible"].dtype == bool
    best = pd.read_csv(tmp_path / "out" / "best.csv")
    assert len(best) == rows["feasible"].sum()
    assert not best[best["mode"] == "decode"]["tokens_per_s_per_device"].diff().gt(0).any()


def test_the_manifest_names_identities_digests_and_counts(
    shapecast: Shapecast, config: Path, tmp_path: Path, tables: Path
) -> None:
    shapecast("run", config, "--out", "out", "--quiet")
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert {table["id"] for table in manifest["tables"]} == {
        folder.name for folder in tables.iterdir() if len(folder.name) == 64
    }
    assert all(len(table["records_sha256"]) == 64 and table["records"] for table in manifest["tables"])
    assert manifest["counts"]["cells"] == 48
    assert manifest["files"]["results.parquet"] == digests(tmp_path / "out")["results.parquet"]


def test_cells_log_chunks_shapes_and_the_memory_stop(
    shapecast: Shapecast, config: Path, tmp_path: Path
) -> None:
    shapecast("run", config, "--out", "out", "--quiet")
    log = (tmp_path / "out" / "run.log").read_text()
    for mode in ("aggregated", "prefill"):
        lines = [line for line in log.splitlines() if f", {mode}" in line]
        assert len(lines) == 16
        assert sum("latency table used, 8 prefill chunks, " in line for line in lines) == 8
        assert all("forward shapes, stops on negative memory" in line for line in lines)


def test_a_sweep_in_which_nothing_fits_says_what_stopped_it(shapecast: Shapecast, config: Path) -> None:
    config.write_text(SWEEP.replace("ttft_ms: 5000, tpot_ms: 40", "ttft_ms: 0.01, tpot_ms: 0.01"))
    done = shapecast("run", config, "--out", "out")
    assert "No candidate is feasible." in done.stdout
    assert "TPOT is" in done.stdout
    assert "over the limit of 0.01 ms" in done.stdout
    config.write_text(SWEEP.replace("[1, 8, 64, 512]", "[100000]"))
    assert "out of memory by" in shapecast("run", config, "--out", "oom").stdout
