"""The example runner of docs/runners.md, installed as a plug-in, works like a built-in one."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pandas as pd
import pytest

from tests.conftest import Shapecast
from tests.test_end_to_end import shapes_line

PAGE = Path(__file__).parent.parent / "docs" / "runners.md"

SWEEP = """
name: own
runner: [{kind: linear}, {kind: linear, ms_per_token: 0.05, name: slower}, {kind: linear, ms_per_token: 0.5}]
models: [a-model]
devices: [a-device]
parallelism: {tp: [1, 2]}
workloads: {input_length: 4096, output_length: 32}
engine: {max_batched_tokens: 1024}
concurrency: {batch_sizes: [1, 8]}
"""


@pytest.fixture
def plug_in(tmp_path: Path) -> dict[str, str]:
    example = re.search(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.S | re.M)
    assert example is not None
    module = example.group(1)
    assert len(module.splitlines()) < 40
    info = tmp_path / "site" / "my_package-1.dist-info"
    info.mkdir(parents=True)
    (tmp_path / "site" / "linear.py").write_text(module)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        "[shapecast.runners]\nlinear = linear:LinearOptions\nbad = linear:Nothing\n"
    )
    (tmp_path / "own.yaml").write_text(SWEEP)
    paths = [str(tmp_path / "site"), os.environ.get("PYTHONPATH", "")]
    return {"PYTHONPATH": os.pathsep.join(path for path in paths if path)}


def test_the_documented_runner_sweeps_and_keeps_its_records(
    shapecast: Shapecast, tmp_path: Path, plug_in: dict[str, str]
) -> None:
    shapecast("run", "own.yaml", "--out", "out", "--quiet", **plug_in)
    rows = pd.read_parquet(tmp_path / "out" / "results.parquet")
    assert list(rows["runner"].unique()) == ["linear #1", "slower", "linear #2"]
    assert rows["identity"].nunique() == 6
    assert rows["feasible"].all()
    again = shapecast("run", "own.yaml", "--out", "again", "--frozen", **plug_in)
    assert " 0 computed;" in shapes_line(again.stdout)
    assert (tmp_path / "out" / "manifest.json").read_bytes() == (
        tmp_path / "again" / "manifest.json"
    ).read_bytes()


def test_a_plug_in_that_cannot_be_loaded_is_one_sentence(
    shapecast: Shapecast, tmp_path: Path, plug_in: dict[str, str]
) -> None:
    (tmp_path / "own.yaml").write_text(SWEEP.replace("kind: linear", "kind: bad"))
    failed = shapecast("run", "own.yaml", expect=1, **plug_in)
    assert "The runner 'bad' is registered as linear:Nothing, which cannot be imported" in failed.stderr
    (tmp_path / "own.yaml").write_text(SWEEP.replace("kind: linear", "kind: linaer"))
    failed = shapecast("run", "own.yaml", expect=1, **plug_in)
    assert "There is no runner 'linaer'; use linear." in failed.stderr


def test_equal_records_of_two_tables_count_twice(
    shapecast: Shapecast, tmp_path: Path, plug_in: dict[str, str]
) -> None:
    sweep = SWEEP.replace("models: [a-model]", "models: [a-model, its-twin]")
    (tmp_path / "own.yaml").write_text(sweep)
    line = shapes_line(shapecast("run", "own.yaml", **plug_in).stdout)
    needed, reused, computed = [int(word.replace(",", "")) for word in line.split() if word[0].isdecimal()][
        :3
    ]
    assert (reused, computed) == (0, needed)
