"""`shapecast plan` and `shapecast run --frozen`: exact, without a runner, without a trace."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Shapecast, own_places

SWEEP = """
name: small
runner: {kind: roofline, quantization: {weights: fp8, activations: fp8, kv_cache: bf16}}
models: [Qwen/Qwen3-8B]
devices: [H100-SXM-80G, L40S-48G]
parallelism: [{tp: 2}, {dp: 2}]
modes: [aggregated, prefill, decode]
workloads: [{input_length: [4000, 8000], output_length: 64}]
engine: {max_batched_tokens: [512, 4096]}
concurrency: {batch_sizes: [1, 8, 512]}
"""

NOTHING_FITS_LATE = SWEEP.replace("[1, 8, 512]", "[1, 8, 512, 4096]")


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(SWEEP, encoding="utf-8")
    return path


def numbers(text: str) -> dict[str, int]:
    """Return the counts of the line of a run that starts with "Shapes:"."""
    line = next(line for line in text.splitlines() if line.startswith("Shapes:"))
    found = [part.split() for part in line.removeprefix("Shapes: ").split(";")[0].split(", ")]
    return {name: int(count.replace(",", "")) for count, name in found}


def planned(shapecast: Shapecast, config: Path) -> dict[str, object]:
    content: dict[str, object] = json.loads(shapecast("plan", config, "--json").stdout)
    return content


def test_a_run_computes_what_the_plan_says(shapecast: Shapecast, config: Path) -> None:
    config.write_text(SWEEP.replace("[1, 8, 512]", "[1, 8]"))  # Nothing runs out of memory.
    before = planned(shapecast, config)
    ran = numbers(shapecast("run", config).stdout)
    after = planned(shapecast, config)
    assert before["shapes_known"] == 0
    assert before["shapes_to_compute_at_most"] == ran["computed"] == before["shapes_needed"] > 0
    assert (after["shapes_known"], after["shapes_to_compute_at_most"]) == (ran["computed"], 0)
    assert after["cells"] == 48
    assert after["candidates"] == 96
    assert sum(table["cells"] for table in after["tables"]) == 48  # type: ignore[attr-defined]


def test_a_plan_counts_what_is_known_of_a_larger_sweep(shapecast: Shapecast, config: Path) -> None:
    config.write_text(SWEEP.replace("[1, 8, 512]", "[1]"))
    first = numbers(shapecast("run", config).stdout)
    config.write_text(SWEEP.replace("[1, 8, 512]", "[1, 8]"))
    plan = planned(shapecast, config)
    second = numbers(shapecast("run", config, "--force").stdout)
    assert plan["shapes_known"] == first["computed"] == second["reused"]
    assert plan["shapes_to_compute_at_most"] == second["computed"]


def test_an_out_of_memory_stop_saves_planned_shapes_the_first_time_only(
    shapecast: Shapecast, config: Path
) -> None:
    config.write_text(NOTHING_FITS_LATE)
    before = planned(shapecast, config)
    ran = numbers(shapecast("run", config).stdout)
    after = planned(shapecast, config)
    assert 0 < ran["computed"] < before["shapes_to_compute_at_most"]  # type: ignore[operator]
    assert after["shapes_to_compute_at_most"] == 0
    assert after["shapes_needed"] == after["shapes_known"] == ran["needed"]


def test_the_time_is_estimated_from_recorded_calls(shapecast: Shapecast, config: Path) -> None:
    assert planned(shapecast, config)["compute_s"] is None
    assert "unknown before the first call is recorded" in shapecast("plan", config).stdout
    config.write_text(SWEEP.replace("[1, 8, 512]", "[1]"))
    shapecast("run", config)
    config.write_text(SWEEP)
    plan = planned(shapecast, config)
    assert 1e-6 < plan["compute_s"] / plan["shapes_to_compute_at_most"] < 0.1  # type: ignore[operator]
    text = shapecast("plan", config).stdout
    assert f"{plan['shapes_to_compute_at_most']:,} to compute at most, about " in text


def test_a_plan_writes_nothing(shapecast: Shapecast, config: Path, tmp_path: Path, tables: Path) -> None:
    shapecast("run", config)
    (damaged, *_) = sorted(tables.glob("*/part-*"))
    damaged.write_bytes(b"damaged")
    before = sorted((path, path.stat().st_mtime_ns) for path in tmp_path.rglob("*"))
    done = shapecast("plan", config)
    assert f"{damaged.name} is not a readable Parquet file" in done.stderr
    assert "it is ignored" in done.stderr
    assert sorted((path, path.stat().st_mtime_ns) for path in tmp_path.rglob("*")) == before


def test_a_frozen_run_with_every_record_gives_the_same_files(
    shapecast: Shapecast, config: Path, tmp_path: Path
) -> None:
    shapecast("run", config, "--out", "a")
    done = shapecast("run", config, "--frozen", "--out", "b")
    assert numbers(done.stdout)["computed"] == 0
    for name in ("results.parquet", "best.csv", "report.html", "manifest.json"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_a_frozen_run_that_lacks_a_record_says_which_and_writes_nothing(
    shapecast: Shapecast, config: Path, tmp_path: Path, tables: Path
) -> None:
    config.write_text(SWEEP.replace("[1, 8, 512]", "[1]"))
    shapecast("run", config, "--out", "a")
    config.write_text(SWEEP)
    plan = planned(shapecast, config)
    before = sorted(tables.rglob("*"))
    done = shapecast("run", config, "--frozen", "--out", "b", expect=1)
    assert done.stderr.count("\n") == 1
    count = plan["shapes_to_compute_at_most"]
    needed = plan["shapes_needed"]
    assert f"computes nothing, but {count:,} of {needed:,} shapes have no record" in done.stderr
    table = plan["tables"][0]  # type: ignore[index]
    assert f"{table['shapes_to_compute_at_most']:,} in {table['id'][:12]} ({table['label']}), " in done.stderr
    assert re.search(r"first \((prefill|decode) of \d+ x \d+ tokens at length \d+\), \(", done.stderr)
    assert "the rest in 1 more table." in done.stderr
    assert not (tmp_path / "b").exists()
    assert sorted(tables.rglob("*")) == before


SEARCH = """
name: search
runner: {kind: roofline}
models: [Qwen/Qwen3-8B]
devices: [H100-SXM-80G]
modes: [aggregated, decode]
workloads: [{input_length: 2000, output_length: 64}]
engine: {max_batched_tokens: 512}
concurrency: {search: bisect, range: [1, 64]}
limits: {tpot_ms: 40}
"""


def test_a_plan_follows_searches_as_far_as_records_lead(
    shapecast: Shapecast, config: Path, tables: Path
) -> None:
    config.write_text(SEARCH)
    before = planned(shapecast, config)
    assert (before["shapes_known"], before["open_cells"]) == (0, 2)
    assert ", 2 meet a shape that has no record" in shapecast("plan", config).stdout
    assert "have no record" in shapecast("run", config, "--frozen", expect=1).stderr
    assert not tables.exists()
    ran = numbers(shapecast("run", config).stdout)
    after = planned(shapecast, config)
    assert after["shapes_known"] == ran["needed"] == ran["computed"]
    assert (after["shapes_to_compute_at_most"], after["open_cells"]) == (0, 0)
    assert numbers(shapecast("run", config, "--frozen").stdout)["computed"] == 0


NO_RUNNER = """
import sys
sys.modules["stages.runners.roofline"] = None
from pipeline.cli import main
main()
"""


def test_a_frozen_run_works_with_no_runner_installed(
    shapecast: Shapecast, config: Path, tmp_path: Path, tables: Path
) -> None:
    shapecast("run", config, "--out", "a")
    command = [sys.executable, "-c", NO_RUNNER, "run", str(config), "--out", "b"]
    environment = {**os.environ, **own_places(tmp_path, tables)}
    frozen = subprocess.run(
        [*command, "--frozen"], env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert frozen.returncode == 0, frozen.stderr
    assert (tmp_path / "a/results.parquet").read_bytes() == (tmp_path / "b/results.parquet").read_bytes()
    environment["SHAPECAST_TABLES"] = str(tmp_path / "empty")
    computing = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert computing.returncode == 1
    assert "stages.runners.roofline" in computing.stderr
