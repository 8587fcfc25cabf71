"""Outputs hold no path of one machine: the same content in other folders gives the same bytes."""

from __future__ import annotations

import json
from pathlib import Path

from configs import DEVICES_DIR, MODELS_DIR
from pipeline.config import load_config
from pipeline.output_names import OutputNames, short_name
from tests.conftest import Shapecast

SWEEP = """
name: mine
runner: {{kind: {kind}}}
models: [{models}]
devices: [{home}/mine.yaml, H100-SXM-80G]
parallelism: {{tp: 2}}
workloads: {{input_length: 400, output_length: 64}}
engine: {{max_batched_tokens: 512}}
concurrency: {{batch_sizes: 4}}
"""

RECORDS = "is_decode,model_concurrency,query_len,seq_len,latency_ms,memory_left_gb\n" + "".join(
    f"{is_decode},{count},{query},{length},5.0,1.0\n"
    for is_decode, count, query, length in [(0, 1, 400, 400), (1, 4, 1, 433), (0, 4, 400, 400)]
)


def home(tmp_path: Path, name: str) -> Path:
    """Return a folder with two models that share a name, a device and records."""
    folder = tmp_path / name
    for place, model in (("a", "Qwen/Qwen3-8B"), ("b", "meta-llama/Llama-3.1-8B")):
        (folder / place / "my.model").mkdir(parents=True)
        source = MODELS_DIR / model / "config.json"
        (folder / place / "my.model" / "config.json").write_bytes(source.read_bytes())
    (folder / "mine.yaml").write_bytes((DEVICES_DIR / "H200-SXM-141G.yaml").read_bytes())
    (folder / "records.csv").write_text(RECORDS)
    return folder


def written(shapecast: Shapecast, folder: Path, text: str) -> dict[str, bytes]:
    (folder / "sweep.yaml").write_text(text)
    out = folder / "out"
    shapecast("run", folder / "sweep.yaml", "--out", out)
    return {path.name: path.read_bytes() for path in sorted(out.iterdir()) if path.suffix != ".log"}


def test_outputs_of_absolute_paths_are_the_same_on_every_machine(
    shapecast: Shapecast, tmp_path: Path
) -> None:
    found = []
    for name in ("alice", "bob"):
        folder = home(tmp_path, name)
        models = f"{folder}/a/my.model, {folder}/b/my.model/config.json"
        found.append(written(shapecast, folder, SWEEP.format(kind="roofline", models=models, home=folder)))
    assert found[0] == found[1]
    for name, data in found[0].items():
        assert str(tmp_path).encode() not in data, name
    manifest = json.loads(found[0]["manifest.json"])
    assert manifest["config"]["devices"] == ["mine", "H100-SXM-80G"]
    one, other = manifest["config"]["models"]
    assert one.startswith("my.model-")
    assert other.startswith("my.model-")
    assert one != other


def test_a_changed_model_in_the_same_place_is_a_different_run(shapecast: Shapecast, tmp_path: Path) -> None:
    folder = home(tmp_path, "alice")
    written(shapecast, folder, SWEEP.format(kind="roofline", models=f"{folder}/a/my.model", home=folder))
    (folder / "a").rename(folder / "old")
    (folder / "b").rename(folder / "a")
    failed = shapecast("run", folder / "sweep.yaml", "--out", folder / "out", expect=1)
    assert "already holds a different run" in failed.stderr


def test_the_path_of_records_is_kept_without_its_folders(tmp_path: Path) -> None:
    folder = home(tmp_path, "alice")
    for path, kept in ((f"{folder}/records.csv", "records.csv"), ("data/records.csv", "data/records.csv")):
        text = SWEEP.format(kind=f"recorded, path: {path}", models="m", home=folder)
        (tmp_path / "sweep.yaml").write_text(text)
        loaded = load_config(tmp_path / "sweep.yaml")
        assert OutputNames.of(loaded).config(loaded)["runner"] == [{"kind": "recorded", "path": kept}]


def test_names_are_those_of_the_file_or_folder_and_relative_paths_stay() -> None:
    assert short_name("/home/me/mymodel/config.json") == "mymodel"
    assert short_name("/home/me/Qwen2.5") == "Qwen2.5"
    assert short_name("~/devices/mine.yaml") == "mine"
    for text in ("Qwen/Qwen3-8B", "../mymodel/config.json", "mine.yaml"):
        assert short_name(text) == text
