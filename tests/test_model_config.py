"""Model configs: the shipped ones give the published sizes; a bad one is named with file and field."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cache.errors import ConfigError
from configs import MODELS_DIR
from stages.runners.architecture import LayerKind, ModelArchitecture
from stages.runners.model_config import (
    KNOWN_ARCHITECTURES,
    find_model_config,
    known_model_names,
    load_architecture,
)

# Billions of parameters as published: Llama 3.1 and Qwen3 model cards (the safetensors totals of the
# repositories), DeepSeek-V3 technical report (671B without multi-token prediction), gpt-oss model card.
PUBLISHED_BILLIONS = {
    "Qwen/Qwen3-235B-A22B": (235.09, 22.19),
    "Qwen/Qwen3-30B-A3B": (30.53, 3.35),
    "Qwen/Qwen3-32B": (32.76, 32.76),
    "Qwen/Qwen3-8B": (8.19, 8.19),
    "deepseek-ai/DeepSeek-V3": (671.03, 37.55),
    "meta-llama/Llama-3.1-70B": (70.55, 70.55),
    "meta-llama/Llama-3.1-8B": (8.03, 8.03),
    "openai/gpt-oss-120b": (116.83, 5.71),
}


def shipped(name: str) -> dict[str, Any]:
    fields = json.loads((MODELS_DIR / name / "config.json").read_text())
    assert isinstance(fields, dict)
    return fields


@pytest.fixture
def write(tmp_path: Path) -> Callable[[Any], Path]:
    def write_config(fields: Any) -> Path:
        path = tmp_path / "config.json"
        path.write_text(fields if isinstance(fields, str) else json.dumps(fields))
        return path

    return write_config


def load(name: str) -> ModelArchitecture:
    return load_architecture(find_model_config(name)[1])


@pytest.mark.parametrize("name", known_model_names())
def test_a_shipped_model_has_its_published_number_of_parameters(name: str) -> None:
    total, active = PUBLISHED_BILLIONS[name]
    model = load(name)
    assert model.num_parameters / 1e9 == pytest.approx(total, abs=0.006)
    assert model.num_active_parameters / 1e9 == pytest.approx(active, abs=0.006)


def test_llama_has_exactly_the_parameters_of_its_checkpoint() -> None:
    assert load("Llama-3.1-8B").num_parameters == 8_030_261_248
    assert load("Llama-3.1-70B").num_parameters == 70_553_706_496


def test_deepseek_has_latent_attention_shared_experts_dense_first_layers_and_a_prediction_module() -> None:
    model = load("DeepSeek-V3")
    assert model.attention_kind == "mla"
    assert model.latent is not None
    assert (model.latent.cached_size, model.latent.qk_head_dim) == (576, 192)
    assert model.experts is not None
    assert model.experts.shared_intermediate_size == 2048
    assert [kind.has_experts for kind in model.layers] == [False] * 3 + [True] * 58
    # The report counts 14B for the module with the shared embedding and LM head.
    assert (model.mtp_parameters + 2 * model.embedding_parameters) / 1e9 == pytest.approx(14, rel=0.05)


def test_gpt_oss_slides_in_every_other_layer_beginning_with_the_first() -> None:
    model = load("gpt-oss-120b")
    assert model.layers == (LayerKind(True, True), LayerKind(True, False)) * 18
    assert model.sliding_window_tokens == 128
    assert model.intermediate_size == 0


def test_gpt_oss_without_layer_types_slides_the_same(write: Callable[[Any], Path]) -> None:
    fields = shipped("openai/gpt-oss-120b")
    del fields["layer_types"]
    assert load_architecture(write(fields)).layers == load("gpt-oss-120b").layers


def test_qwen_moe_has_dense_layers_where_its_step_and_list_say(write: Callable[[Any], Path]) -> None:
    fields = shipped("Qwen/Qwen3-30B-A3B") | {
        "num_hidden_layers": 6,
        "decoder_sparse_step": 2,
        "mlp_only_layers": [3],
    }
    model = load_architecture(write(fields))
    assert [kind.has_experts for kind in model.layers] == [False, True, False, False, False, True]
    assert model.intermediate_size == 6144


def test_qwen2_has_biases_on_queries_keys_and_values_only(write: Callable[[Any], Path]) -> None:
    fields = shipped("Qwen/Qwen3-8B") | {"architectures": ["Qwen2ForCausalLM"]}
    model = load_architecture(write(fields))
    assert (model.qkv_bias, model.output_bias, model.qk_norm) == (True, False, False)


def test_qwen_slides_from_max_window_layers_on_when_switched_on(write: Callable[[Any], Path]) -> None:
    fields = shipped("Qwen/Qwen3-8B") | {
        "use_sliding_window": True,
        "sliding_window": 4096,
        "max_window_layers": 30,
    }
    model = load_architecture(write(fields))
    assert [kind.is_sliding for kind in model.layers] == [False] * 30 + [True] * 6


def test_mixtral_reads_its_experts_and_window(write: Callable[[Any], Path]) -> None:
    fields = shipped("meta-llama/Llama-3.1-8B") | {
        "architectures": ["MixtralForCausalLM"],
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "vocab_size": 32000,
        "sliding_window": None,
    }
    model = load_architecture(write(fields))
    # Mixtral 8x7B: 46.7B parameters, 12.9B active (Mixtral of Experts, arXiv:2401.04088).
    assert model.num_parameters / 1e9 == pytest.approx(46.7, abs=0.05)
    assert model.num_active_parameters / 1e9 == pytest.approx(12.9, abs=0.05)


def test_mistral_slides_in_every_layer_when_it_has_a_window(write: Callable[[Any], Path]) -> None:
    fields = shipped("meta-llama/Llama-3.1-8B") | {
        "architectures": ["MistralForCausalLM"],
        "sliding_window": 4096,
    }
    assert all(kind.is_sliding for kind in load_architecture(write(fields)).layers)


def test_tied_embeddings_are_counted_once(write: Callable[[Any], Path]) -> None:
    fields = shipped("Qwen/Qwen3-8B")
    untied = load_architecture(write(fields))
    tied = load_architecture(write(fields | {"tie_word_embeddings": True}))
    assert untied.num_parameters - tied.num_parameters == 151936 * 4096


@pytest.mark.parametrize("text", ["Qwen/Qwen3-32B", "qwen/qwen3-32b", "Qwen3-32B", "qwen3-32b"])
def test_a_shipped_name_is_found_in_any_case_and_without_its_owner(text: str) -> None:
    assert find_model_config(text) == ("Qwen/Qwen3-32B", MODELS_DIR / "Qwen/Qwen3-32B/config.json")


def test_a_path_may_be_a_file_or_a_directory_relative_to_the_base(tmp_path: Path) -> None:
    shutil.copytree(MODELS_DIR / "Qwen/Qwen3-8B", tmp_path / "mine")
    assert find_model_config("mine", tmp_path)[1] == tmp_path / "mine" / "config.json"
    assert find_model_config("mine/config.json", tmp_path)[1] == tmp_path / "mine/config.json"
    assert find_model_config(str(tmp_path / "mine"))[1] == tmp_path / "mine" / "config.json"


def test_moving_and_reordering_a_config_keeps_its_digest(write: Callable[[Any], Path]) -> None:
    fields = shipped("Qwen/Qwen3-32B")
    moved = load_architecture(write(dict(reversed(fields.items()))))
    assert moved.digest == load("Qwen3-32B").digest


NUMBERS_AND_FLAGS = [
    (name, field)
    for name in known_model_names()
    for field, value in shipped(name).items()
    if isinstance(value, int)
]


@pytest.mark.parametrize(("name", "field"), NUMBERS_AND_FLAGS)
def test_every_number_and_flag_of_a_config_changes_its_digest(
    name: str, field: str, write: Callable[[Any], Path]
) -> None:
    fields = shipped(name) | {"sliding_window": 128, "max_window_layers": 3}
    fields.pop("layer_types", None)
    value = fields[field]
    grows = value == 1 or field == "num_attention_heads"
    other = (not value) if isinstance(value, bool) else value * 2 if grows else value // 2
    base, changed = load_architecture(write(fields)), load_architecture(write(fields | {field: other}))
    assert base.digest != changed.digest


def test_an_unknown_name_is_answered_with_close_ones() -> None:
    with pytest.raises(ConfigError, match=r"Unknown model 'Qwen3-33B': close names are .*Qwen/Qwen3-32B"):
        find_model_config("Qwen3-33B")


def test_a_name_close_to_nothing_is_answered_with_all_names() -> None:
    with pytest.raises(ConfigError, match=r"known names are Qwen/.*openai/gpt-oss-120b; or give"):
        find_model_config("zzzzzzzz")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    name, path = find_model_config("./nowhere/config.json", tmp_path)
    assert name == "./nowhere/config.json"
    with pytest.raises(ConfigError, match=r"Model config .*nowhere/config.json does not exist; give"):
        load_architecture(path)


def test_a_directory_without_config_json_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"Directory .*empty has no config.json; give a directory with"):
        find_model_config("empty", tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            '{"hidden_size": 3,',
            r"config.json is no valid JSON \(line 1, column \d+: .*\); correct the file\.",
        ),
        ("", r"is no valid JSON \(line 1, column 1"),
        ("[1, 2]", r"is no JSON object; give a Hugging Face config.json\."),
        ('{"rope_theta": NaN}', r"holds a number that is not finite"),
        ("[" * 100_000, r"nested too deeply"),
        ('{"hidden_size": 1' + "0" * 5000 + "}", r"holds a number that is not finite or far too long"),
    ],
)
def test_text_that_is_no_config_is_refused(text: str, message: str, write: Callable[[Any], Path]) -> None:
    with pytest.raises(ConfigError, match=message):
        load_architecture(write(text))


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"is no UTF-8 text"):
        load_architecture(tmp_path / "config.json")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, r"names 'GPT2LMHeadModel', which .* knows DeepseekV3"),
        ({"architectures": None}, r"field architectures is None; it must be a list with the class name"),
        ({"architectures": []}, r"field architectures is \[\]"),
        (
            {"hidden_size": 10**400},
            r"field hidden_size is 10+\.\.\. \(401 characters\); it must be at most 2147483647",
        ),
        ({"num_hidden_layers": 10**6}, r"field num_hidden_layers is 1000000; it must be at most 65536\."),
        ({"num_experts": 2**31}, r"field num_experts is 2147483648; it must be at most 65536\."),
        ({"hidden_size": None}, r"config.json: field hidden_size is missing; it must be an integer"),
        ({"hidden_size": "5120"}, r"field hidden_size is '5120'; it must be an integer of at least 1\."),
        ({"hidden_size": 5120.0}, r"field hidden_size is 5120.0; it must be an integer"),
        ({"num_hidden_layers": 0}, r"field num_hidden_layers is 0; it must be an integer of at least 1\."),
        ({"num_hidden_layers": True}, r"field num_hidden_layers is True; it must be an integer"),
        ({"num_key_value_heads": 7}, r"num_key_value_heads is 7; it must be a divisor of .*heads \(32\)"),
        ({"num_attention_heads": 24, "head_dim": None}, r"num_attention_heads is 24; it must be a divisor"),
        ({"tie_word_embeddings": 1}, r"field tie_word_embeddings is 1; it must be true or false\."),
        ({"num_experts": None}, r"field num_experts is missing"),
        ({"num_experts_per_tok": 200}, r"field num_experts_per_tok is 200; it must be at most 128\."),
        ({"mlp_only_layers": [-1]}, r"mlp_only_layers is a list of 1; it must be a list of layer numbers"),
        ({"use_sliding_window": True, "max_window_layers": 3}, r"field sliding_window is missing"),
    ],
)
def test_a_field_that_cannot_be_used_is_named_with_its_file(
    change: dict[str, Any], message: str, write: Callable[[Any], Path]
) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        load_architecture(write(shipped("Qwen/Qwen3-30B-A3B") | change))
    assert str(error.value).endswith(".")
    assert "config.json" in str(error.value)


@pytest.mark.parametrize(
    ("kinds", "message"),
    [
        (
            ["full_attention"],
            r"layer_types is a list of 1; it must be a list of 36 layer types, one per layer",
        ),
        (
            ["full_attention"] * 35 + ["linear_attention"],
            r"layer_types is 'linear_attention'; it must be full",
        ),
        ("full_attention", r"layer_types is 'full_attention'; it must be a list of 36"),
    ],
)
def test_layer_types_that_cannot_be_used_are_named(
    kinds: Any, message: str, write: Callable[[Any], Path]
) -> None:
    with pytest.raises(ConfigError, match=message):
        load_architecture(write(shipped("openai/gpt-oss-120b") | {"layer_types": kinds}))


def test_every_known_architecture_is_named_when_one_is_unknown(write: Callable[[Any], Path]) -> None:
    with pytest.raises(ConfigError) as error:
        load_architecture(write({"architectures": ["Unknown"]}))
    assert all(name in str(error.value) for name in KNOWN_ARCHITECTURES)
