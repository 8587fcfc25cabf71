"""The roofline's spec: what it refuses, what changes its identity, and that it imports no arithmetic."""

from __future__ import annotations

import ast
import json
import pickle
import shutil
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

import stages.runners
from cache.errors import ConfigError
from cache.shapes import ForwardShapeKey
from configs import DEVICES_DIR, MODELS_DIR
from stages.parallelism import Parallelism
from stages.runners.base import Deployment
from stages.runners.quantization import Quantization
from stages.runners.roofline_spec import ARITHMETIC_MODULES, RooflineOptions, RooflineSpec
from tests.roofline_cases import spec, with_device

RUNNERS_DIR = Path(stages.runners.__file__).parent


def test_options_have_the_documented_defaults() -> None:
    options = RooflineOptions.model_validate({"kind": "roofline"})
    assert options.quantization == Quantization(weights="bf16", activations="bf16", kv_cache="bf16")
    assert (options.reserved_memory_gb, options.block_size) == (10.0, 128)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"quantization": {"activations": "fp8"}}, "activations fp8 need weights fp8, not bf16; set weights"),
        ({"quantization": {"activations": "int8", "weights": "fp8"}}, "int8 need weights int8, not fp8"),
        ({"quantization": {"activations": "fp8", "weights": "int4"}}, "fp8 need weights fp8, not int4"),
        ({"quantization": {"weights": "fp16"}}, "quantization.weights"),
        ({"quantization": {"kv_cache": "int8"}}, "quantization.kv_cache"),
        ({"quantization": {"cache": "fp8"}}, "quantization.cache"),
        ({"reserved_memory_gb": -1}, "reserved_memory_gb"),
        ({"block_size": 0}, "block_size"),
        ({"block_size": 12.5}, "block_size"),
        ({"blocksize": 16}, "blocksize"),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        RooflineOptions.model_validate({"kind": "roofline", **options})


@pytest.mark.parametrize(
    ("model", "sizes", "message"),
    [
        (
            "Qwen3-32B",
            {"tp": 3},
            r"tp is 3, but Qwen/Qwen3-32B has 64 attention .*\(1, 2, 4, 8, 16, 32, 64\)",
        ),
        ("Qwen3-32B", {"tp": 128}, r"tp is 128, but Qwen/Qwen3-32B has 64 attention heads"),
        ("Llama-3.1-8B", {"pp": 33}, r"pp is 33, but meta-llama/Llama-3.1-8B has 32 layers; .* lower pp\."),
        (
            "Llama-3.1-8B",
            {"dp": 2, "ep": 2},
            r"ep is 2, but meta-llama/Llama-3.1-8B has no experts to spread",
        ),
        ("Qwen3-30B-A3B", {"dp": 6, "ep": 6}, r"ep is 6, but Qwen/Qwen3-30B-A3B has 128 experts per layer"),
        ("Qwen3-30B-A3B", {"tp": 2, "dp": 5}, r"moe_tp is 10, but the experts of Qwen/Qwen3-30B-A3B have an"),
    ],
)
def test_a_model_that_cannot_be_spread_that_way_is_refused(
    model: str, sizes: dict[str, int], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        spec(model, parallelism=Parallelism(**sizes))


def model_dir(tmp_path: Path, name: str, **changes: Any) -> str:
    config = json.loads((MODELS_DIR / name / "config.json").read_text()) | changes
    (tmp_path / "config.json").write_text(json.dumps(config))
    return str(tmp_path)


def test_key_value_heads_must_divide_tp_or_be_divided_by_it(tmp_path: Path) -> None:
    six = model_dir(tmp_path, "Qwen/Qwen3-8B", num_attention_heads=24, num_key_value_heads=6)
    with pytest.raises(ConfigError, match=r"tp is 4, but .* has 6 key/value heads; choose a tp that"):
        spec(six, parallelism=Parallelism(tp=4))
    for tp in (1, 2, 3, 6, 12, 24):
        assert spec(six, parallelism=Parallelism(tp=tp)).parallelism.tp == tp


def test_latent_attention_has_no_key_value_heads_to_divide() -> None:
    assert spec("DeepSeek-V3", parallelism=Parallelism(tp=128, ep=128)).architecture.num_kv_heads == 128


def test_inner_sizes_of_dense_layers_and_shared_experts_must_divide(tmp_path: Path) -> None:
    odd = model_dir(tmp_path, "Qwen/Qwen3-8B", intermediate_size=12290)
    with pytest.raises(ConfigError, match=r"tp is 4, but the dense layers of .* size of 12290; choose"):
        spec(odd, parallelism=Parallelism(tp=4))
    odd = model_dir(tmp_path, "deepseek-ai/DeepSeek-V3", moe_intermediate_size=1026)
    with pytest.raises(ConfigError, match=r"tp is 4, but the shared experts of .* size of 1026; choose"):
        spec(odd, parallelism=Parallelism(tp=4, ep=4))


def test_an_activation_format_needs_a_peak_of_the_device_and_weights_do_not() -> None:
    fp8 = {"weights": "fp8", "activations": "fp8"}
    with pytest.raises(ConfigError, match=r"activations is fp8, but A100-SXM-80G has no fp8 peak in its"):
        spec("Qwen3-8B", "A100-SXM-80G", quantization=fp8)
    assert spec("Qwen3-8B", "A100-SXM-80G", quantization={"weights": "fp8"}).quantization.weights == "fp8"


def test_speculative_tokens_need_prediction_layers() -> None:
    with pytest.raises(ConfigError, match=r"num_mtp_tokens is 1, but Qwen/Qwen3-8B has no .* set it to 0"):
        spec("Qwen3-8B", num_mtp_tokens=1)
    with pytest.raises(ConfigError, match=r"num_mtp_tokens is -1; it must be 0 or more\."):
        spec("DeepSeek-V3", num_mtp_tokens=-1)
    assert spec("DeepSeek-V3", num_mtp_tokens=4).num_mtp_tokens == 4


def test_more_memory_than_there_is_cannot_be_reserved() -> None:
    with pytest.raises(ConfigError, match=r"reserved_memory_gb is 45, but L40S-48G has 44.99 GiB; res"):
        spec("Qwen3-8B", "L40S-48G", reserved_memory_gb=45)


@pytest.mark.parametrize(
    ("model", "device", "message"),
    [
        ("Qwen3-33B", "H100-SXM-80G", "Unknown model 'Qwen3-33B'"),
        ("Qwen3-32B", "H100", "Unknown device 'H100'"),
    ],
)
def test_unknown_names_are_refused(model: str, device: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        spec(model, device)


BASE = spec("Qwen3-30B-A3B", "B200-SXM-180G", Parallelism(tp=2, dp=2, ep=4))


@pytest.mark.parametrize(
    "change",
    [
        {"architecture": spec("Qwen3-8B").architecture},
        {"device": spec("Qwen3-8B", "H200-SXM-141G").device},
        *(
            {"parallelism": Parallelism(**sizes)}
            for sizes in (
                {"tp": 4, "dp": 1, "ep": 4},
                {"tp": 2, "dp": 2, "ep": 2},
                {"tp": 2, "dp": 2, "ep": 2, "moe_dp": 2},
                {"tp": 2, "dp": 2, "ep": 4, "pp": 2},
            )
        ),
        *(
            {"quantization": Quantization(**formats)}
            for formats in ({"weights": "fp8"}, {"weights": "fp8", "activations": "fp8"}, {"kv_cache": "fp8"})
        ),
        {"num_mtp_tokens": 1},
        {"reserved_memory_gb": 11.0},
        {"block_size": 64},
    ],
    ids=str,
)
def test_every_field_of_a_spec_changes_its_identity(change: dict[str, Any]) -> None:
    assert replace(BASE, **change).identity().id != BASE.identity().id


def test_the_fields_tested_above_are_all_but_the_names() -> None:
    tested = {
        "architecture",
        "device",
        "parallelism",
        "quantization",
        "num_mtp_tokens",
        "reserved_memory_gb",
        "block_size",
    }
    assert {field.name for field in fields(RooflineSpec)} == tested | {"model_name", "device_name"}


def test_a_figure_of_the_device_changes_the_identity() -> None:
    assert with_device(BASE, memory_gb=100.0).identity().id != BASE.identity().id


def test_names_and_places_change_no_identity(tmp_path: Path) -> None:
    shutil.copytree(MODELS_DIR / "Qwen/Qwen3-8B", tmp_path / "mine")
    shutil.copy(DEVICES_DIR / "L40S-48G.yaml", tmp_path / "card.yaml")
    options = RooflineOptions.model_validate({"kind": "roofline"})
    moved = options.spec(Deployment("mine", "card.yaml", Parallelism(), base_dir=tmp_path))
    shipped = spec("Qwen3-8B", "L40S-48G")
    assert moved == shipped
    assert moved.identity().id == shipped.identity().id
    assert moved.identity().label.startswith("mine on card, ")


def test_the_label_says_model_device_and_deployment() -> None:
    identity = spec("Qwen3-32B", parallelism=Parallelism(tp=4), quantization={"weights": "fp8"}).identity()
    assert identity.label == ("Qwen/Qwen3-32B on H100-SXM-80G, TP=4 | PP=1 | DP=1 | W fp8 | A bf16 | KV bf16")


def test_a_spec_survives_pickling_with_its_identity_and_answers() -> None:
    copy = pickle.loads(pickle.dumps(BASE))
    key = ForwardShapeKey(True, 8, 1, 4096)
    assert copy == BASE
    assert copy.identity().id == BASE.identity().id
    assert copy.build().forward(key).as_json() == BASE.build().forward(key).as_json()


def test_an_identity_imports_no_arithmetic() -> None:
    code = """
import sys
from stages.parallelism import Parallelism
from stages.runners.base import Deployment
from stages.runners.roofline_spec import RooflineOptions
options = RooflineOptions(kind="roofline")
spec = options.spec(Deployment("Qwen3-32B", "H100-SXM-80G", Parallelism(tp=4)))
assert spec.identity().id
options.known_models(), options.known_devices()
before = {name for name in sys.modules if name.startswith("stages.runners.roofline")}
assert before == {"stages.runners.roofline_spec"}, before
spec.build()
assert "stages.runners.roofline" in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def imported_runner_modules(name: str) -> set[str]:
    tree = ast.parse((RUNNERS_DIR / f"{name}.py").read_text())
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}
    package = "stages.runners."
    return {module.removeprefix(package) for module in modules if module.startswith(package)}


def test_every_module_that_the_runner_imports_is_part_of_its_version() -> None:
    found, waiting = set(), {"roofline"}
    while waiting:
        name = waiting.pop()
        found.add(name)
        waiting |= imported_runner_modules(name) - found
    # These find files, read text and word errors; they compute nothing.
    assert found - {"base", "shipped"} == set(ARITHMETIC_MODULES)


def test_shipped_models_and_devices_are_listed_with_their_figures() -> None:
    models = {row["model"]: row for row in RooflineOptions.known_models()}
    assert len(models) == 8
    assert models["deepseek-ai/DeepSeek-V3"] == {
        "model": "deepseek-ai/DeepSeek-V3",
        "architecture": "DeepseekV3ForCausalLM",
        "parameters (B)": "671.0",
        "active (B)": "37.6",
        "layers": "61",
        "attention": "MLA",
        "heads": "128",
        "KV heads": "-",
        "experts": "256",
        "MTP layers": "1",
    }
    devices = {row["device"]: row for row in RooflineOptions.known_devices()}
    assert len(devices) == 8
    assert devices["A100-SXM-80G"] == {
        "device": "A100-SXM-80G",
        "description": "NVIDIA A100 80GB SXM",
        "memory (GiB)": "80",
        "bandwidth (GB/s)": "2039",
        "BF16 (TFLOPS)": "312",
        "FP8 (TFLOPS)": "-",
        "INT8 (TFLOPS)": "624",
        "per node": "8",
        "in node (GB/s)": "300",
        "between nodes (GB/s)": "25",
    }


FROZEN_SPECS = {
    "dense": spec("Qwen3-32B", "H100-SXM-80G", Parallelism(tp=4, dp=2)),
    "experts": spec("Qwen3-235B-A22B", "MI300X-192G", Parallelism(tp=4, dp=2, ep=8)),
    "latent": spec(
        "DeepSeek-V3",
        "H200-SXM-141G",
        Parallelism(tp=4, dp=4, pp=2, ep=16),
        num_mtp_tokens=1,
        quantization={"weights": "fp8", "activations": "fp8", "kv_cache": "fp8"},
    ),
    "sliding": spec("gpt-oss-120b", "B200-SXM-180G", Parallelism(tp=2), quantization={"weights": "int4"}),
}
PREFILL, DECODE = ForwardShapeKey(False, 4, 1024, 131072), ForwardShapeKey(True, 64, 2, 4096)


# Change these only with a reason: every stored latency of the runner is dropped when a formula changes.
FROZEN: dict[tuple[str, ForwardShapeKey], tuple[float, float]] = {
    ("dense", PREFILL): (255.72462019952985, 38.28041424751282),
    ("dense", DECODE): (12.063226174368468, 46.38043632507325),
    ("experts", PREFILL): (348.8199827633647, 113.43184350013732),
    ("experts", DECODE): (21.752174384913697, 119.42294834136962),
    ("latent", PREFILL): (366.5214796524201, 103.79492249488831),
    ("latent", DECODE): (17.90510559860201, 106.23678102493287),
    ("sliding", PREFILL): (94.06563554749629, 130.68882268428803),
    ("sliding", DECODE): (7.698664578342519, 135.28080552577973),
}


@pytest.mark.parametrize(("name", "key"), list(FROZEN))
def test_latency_and_memory_left_are_as_they_were(name: str, key: ForwardShapeKey) -> None:
    record = FROZEN_SPECS[name].build().forward(key)
    assert (record.latency_ms, record.memory_left_gb) == pytest.approx(FROZEN[name, key], rel=1e-12)


def test_identities_of_shipped_models_and_devices_are_as_they_were() -> None:
    identity = FROZEN_SPECS["dense"].identity()
    assert identity.runner_version.startswith("1+")
    assert identity.as_json() | {"runner_version": ""} == {
        "runner": "roofline",
        "runner_version": "",
        "model_digest": "2a49f76454e967cb0ac2848fee3757baa81f3918e873e743afc7d033182e11bb",
        "device_digest": "b546c4d2717f55704c62acf43c98b51a2bc5c276f5fe4d259fd4aaaf2ebe58ac",
        "quantization": {"weights": "bf16", "activations": "bf16", "kv_cache": "bf16"},
        "parallelism": {"tp": 4, "dp": 2, "pp": 1, "ep": 1, "moe_tp": 8, "moe_dp": 1},
        "num_mtp_tokens": 0,
        "reserved_memory_gb": 10.0,
        "settings": {"block_size": 128},
        "packages": {},
    }
