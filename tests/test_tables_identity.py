"""Two runs share records only if everything that could change a latency is the same."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from cache.errors import ShapecastError
from cache.identity import TableIdentity, canonical_json, content_digest
from configs import DEVICES_DIR, MODELS_DIR
from stages.parallelism import Parallelism
from stages.runners.base import Deployment, RunnerOptions
from stages.runners.recorded_spec import RecordedOptions
from stages.runners.roofline_spec import RooflineOptions

FULL = TableIdentity(
    runner="a",
    runner_version="1",
    model_digest="m",
    device_digest="d",
    quantization={"weights": "fp8"},
    parallelism={"tp": 4, "moe_dp": None},
    num_mtp_tokens=1,
    reserved_memory_gb=8.5,
    settings={"block_size": 128, "nested": {"list": [1, 2.0, True, None]}},
    packages={"some-package": "1.2.3"},
    label="for people",
)

OTHER_VALUES: dict[str, list[Any]] = {
    "runner": ["b", ""],
    "runner_version": ["2", "1 "],
    "model_digest": ["n"],
    "device_digest": ["e"],
    "quantization": [{}, {"weights": "fp16"}, {"weights": "fp8", "kv_cache": "fp8"}],
    "parallelism": [{"tp": 8, "moe_dp": None}, {"tp": 4, "moe_dp": 1}, {"tp": 4}],
    "num_mtp_tokens": [0, 2],
    "reserved_memory_gb": [8.0, 8.500000000000002],
    "settings": [{}, {"block_size": 64}, {"block_size": 128.0, "nested": {"list": [1, 2.0, True, None]}}],
    "packages": [{}, {"some-package": "1.2.4"}, {"some-package": "1.2.3", "more": "1"}],
}


@pytest.mark.parametrize("name", [field.name for field in fields(TableIdentity) if field.name != "label"])
def test_every_field_of_an_identity_changes_its_id(name: str) -> None:
    ids = [replace(FULL, **{name: value}).id for value in OTHER_VALUES[name]]
    assert len({FULL.id, *ids}) == 1 + len(ids)


def test_the_label_is_no_part_of_an_identity() -> None:
    assert replace(FULL, label="another").id == FULL.id
    assert replace(FULL, label="another") == FULL


def test_an_identity_survives_its_json() -> None:
    assert TableIdentity.from_json(json.loads(FULL.canonical), FULL.label) == FULL
    assert TableIdentity.from_json(json.loads(FULL.canonical)).id == FULL.id


def test_digests_are_as_they_were() -> None:
    """Change these only with a reason: every table of every user is renamed, and computed again."""
    assert canonical_json({"b": [1, 1.0, True, None, "é"], "a": {}}) == (
        '{"a":{},"b":[1,1.0,true,null,"\\u00e9"]}'
    )
    assert content_digest({"b": [1, 1.0, True, None, "é"], "a": {}}) == FROZEN_CONTENT
    assert FULL.id == FROZEN_IDENTITY


FROZEN_CONTENT = "8958880653666a47b21cc873a1becfc01a387417bd2d596a4d1e95948e333f0b"
FROZEN_IDENTITY = "de352c3b105b8435843776e4404e6f5cae262cd1f863427fab66cc8b9be9c6e1"


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(item, (*path, key))
    elif isinstance(value, list) and value:
        for index, item in enumerate(value):
            yield from leaves(item, (*path, index))
    else:
        yield path


def changed(content: Any, path: tuple[Any, ...]) -> Any:
    """Return a copy of JSON content with one value changed."""
    copy = json.loads(json.dumps(content))
    place = copy
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = another(place[path[-1]])
    return copy


def another(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, float):
        return value * 0.999
    return "x" if value in (None, [], {}) else f"{value}x"


def roofline_id(folder: Path, model: Any, device: Any, **options: Any) -> str | None:
    """Return the identity's id; None where the deployment is refused, and so shares no record either."""
    (folder / "config.json").write_text(json.dumps(model))
    (folder / "device.yaml").write_text(yaml.safe_dump(device))
    try:
        parsed = RooflineOptions.model_validate({"kind": "roofline", **options})
        return parsed.spec(Deployment("config.json", "device.yaml", Parallelism(), 0, folder)).identity().id
    except (ShapecastError, ValueError):
        return None


MODEL_NAMES = ["Qwen/Qwen3-8B", "Qwen/Qwen3-30B-A3B", "deepseek-ai/DeepSeek-V3", "openai/gpt-oss-120b"]


@pytest.mark.parametrize("name", MODEL_NAMES)
def test_every_value_in_a_model_config_changes_the_identity(name: str, tmp_path: Path) -> None:
    model = json.loads((MODELS_DIR / name / "config.json").read_text())
    device = yaml.safe_load((DEVICES_DIR / "B200-SXM-180G.yaml").read_text())
    base = roofline_id(tmp_path, model, device)
    assert base is not None
    seen = 0
    for path in list(leaves(model)):
        other = roofline_id(tmp_path, changed(model, path), device)
        assert other != base, path
        seen += other is not None
    assert seen >= 8


@pytest.mark.parametrize("name", sorted(path.stem for path in DEVICES_DIR.glob("*.yaml")))
def test_every_value_in_a_device_profile_changes_the_identity(name: str, tmp_path: Path) -> None:
    model = json.loads((MODELS_DIR / "Qwen/Qwen3-8B/config.json").read_text())
    device = yaml.safe_load((DEVICES_DIR / f"{name}.yaml").read_text())
    base = roofline_id(tmp_path, model, device)
    assert base is not None
    seen = 0
    for path in list(leaves(device)):
        other = roofline_id(tmp_path, model, changed(device, path))
        assert other != base, path
        seen += other is not None
    assert seen >= 10


def options_of(kind: type[RunnerOptions]) -> set[str]:
    return set(kind.model_fields) - {"kind", "name"}


ROOFLINE_OPTIONS: dict[str, Any] = {
    "quantization": {"kv_cache": "fp8"},
    "reserved_memory_gb": 9.0,
    "block_size": 64,
}


@pytest.mark.parametrize("name", sorted(options_of(RooflineOptions)))
def test_every_option_of_the_roofline_runner_changes_the_identity(name: str, tmp_path: Path) -> None:
    model = json.loads((MODELS_DIR / "Qwen/Qwen3-8B/config.json").read_text())
    device = yaml.safe_load((DEVICES_DIR / "H100-SXM-80G.yaml").read_text())
    base = roofline_id(tmp_path, model, device)
    assert roofline_id(tmp_path, model, device, **{name: ROOFLINE_OPTIONS[name]}) not in (None, base)


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    path = tmp_path / "recording.csv"
    pd.DataFrame({
        "is_decode": [True, True], "model_concurrency": [1, 1], "query_len": [1, 1], "seq_len": [9, 9],
        "latency_ms": [1.0, 2.0], "memory_left_gb": [1.0, 1.0], "device": ["a", "b"], "ms": [3.0, 4.0],
    }).to_csv(path, index=False)  # fmt: skip
    return path


def recorded_id(folder: Path, **options: Any) -> str:
    parsed = RecordedOptions.model_validate({"kind": "recorded", "path": "recording.csv", **options})
    return parsed.spec(Deployment("m", "a", Parallelism(), 0, folder)).identity().id


def test_what_a_sweep_calls_a_runner_is_no_part_of_the_identity(recording: Path, tmp_path: Path) -> None:
    where = {"device": "a"}
    assert recorded_id(tmp_path, where=where, name="mine") == recorded_id(tmp_path, where=where)
    model = json.loads((MODELS_DIR / "Qwen/Qwen3-8B/config.json").read_text())
    device = yaml.safe_load((DEVICES_DIR / "H100-SXM-80G.yaml").read_text())
    assert roofline_id(tmp_path, model, device, name="mine") == roofline_id(tmp_path, model, device)


def test_every_option_of_the_recorded_runner_changes_the_identity(recording: Path, tmp_path: Path) -> None:
    assert options_of(RecordedOptions) == {"path", "where", "columns"}
    base = recorded_id(tmp_path, where={"device": "a"})
    assert recorded_id(tmp_path, where={"device": "b"}) != base
    assert recorded_id(tmp_path, where={"device": "a"}, columns={"latency_ms": "ms"}) != base
    (tmp_path / "elsewhere").mkdir()
    shutil.copy(recording, tmp_path / "elsewhere" / "renamed.csv")
    assert recorded_id(tmp_path, where={"device": "a"}, path="elsewhere/renamed.csv") == base
    recording.write_text(recording.read_text().replace("2.0", "2.5"))
    assert recorded_id(tmp_path, where={"device": "a"}) != base


PARALLEL_SIZES: list[dict[str, int]] = [
    {"tp": 2}, {"dp": 2}, {"pp": 2}, {"dp": 2, "ep": 2}, {"tp": 2, "ep": 2}, {"dp": 2, "moe_dp": 2},
]  # fmt: skip


@pytest.mark.parametrize("sizes", PARALLEL_SIZES, ids=str)
def test_every_size_of_a_parallel_group_changes_the_identity(sizes: dict[str, int]) -> None:
    def identity(parallelism: Parallelism) -> str:
        options = RooflineOptions.model_validate({"kind": "roofline"})
        return options.spec(Deployment("Qwen3-30B-A3B", "H200-SXM-141G", parallelism)).identity().id

    others = [
        {},
        {"tp": 2},
        {"dp": 2},
        {"pp": 2},
        {"dp": 2, "ep": 2},
        {"tp": 2, "ep": 2},
        {"dp": 2, "moe_dp": 2},
    ]
    others = [other for other in others if other != sizes]
    assert identity(Parallelism(**sizes)) not in {identity(Parallelism(**other)) for other in others}


def test_speculative_tokens_change_the_identity() -> None:
    options = RooflineOptions.model_validate({"kind": "roofline"})
    ids = {
        options.spec(Deployment("DeepSeek-V3", "H200-SXM-141G", Parallelism(tp=8, ep=8), tokens))
        .identity()
        .id
        for tokens in (0, 1, 2)
    }
    assert len(ids) == 3


QUERIES = re.findall(
    r"^```py\n(.*?)\n```", (Path(__file__).parents[1] / "docs" / "tables.md").read_text(), re.S | re.M
)


@pytest.fixture(scope="module")
def queried(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.store_cases import stored, table_at

    folder = tmp_path_factory.mktemp("queried")
    table_at(folder / "tables").append(stored(range(40)))
    table_at(folder / "tables").append(stored(range(40, 60)))
    return folder


@pytest.mark.parametrize("query", QUERIES, ids=["pandas", "duckdb"])
def test_the_documented_queries_work_as_written(
    query: str, queried: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "duckdb" in query:
        pytest.importorskip("duckdb")
    monkeypatch.chdir(queried)
    imports, _, expression = query.rpartition("\n\n")
    names: dict[str, Any] = {}
    exec(imports, names)
    result = eval(expression, names)
    counts = dict(result.fetchall()) if "duckdb" in query else dict(result["count"])
    assert counts == {True: 12, False: 48}
