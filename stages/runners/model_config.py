"""Read a Hugging Face config.json into a `ModelArchitecture`."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from cache.errors import ConfigError, shown
from cache.identity import content_digest
from cache.shapes import LARGEST_COUNT
from configs import MODELS_DIR
from stages.runners.architecture import Experts, LatentAttention, LayerKind, ModelArchitecture
from stages.runners.shipped import looks_like_path, match_name, read_text, unknown_name

CONFIG_NAME = "config.json"

_MOST_PARTS = 65_536
"""Layers, heads or experts beyond which a config is a mistake: these are counted one by one."""


def known_model_names() -> list[str]:
    """Return the names of the shipped model configs ("Qwen/Qwen3-32B"), sorted."""
    paths = MODELS_DIR.glob(f"*/*/{CONFIG_NAME}")
    return sorted(path.parent.relative_to(MODELS_DIR).as_posix() for path in paths)


def find_model_config(model: str, base_dir: Path = Path()) -> tuple[str, Path]:
    """Return the name for people and the config file of a model.

    Parameters
    ----------
    model : str
        A shipped name (case does not matter, a unique one may leave out its owner), a config.json, or
        a directory with one. A shipped name wins over a path of the same text.
    base_dir : Path
        What a relative path is relative to.

    Raises
    ------
    ConfigError
        When there is no such model, or a directory has no config.json.
    """
    names = known_model_names()
    name = match_name(model, names)
    if name is not None:
        return name, MODELS_DIR / name / CONFIG_NAME
    path = base_dir / Path(model).expanduser()
    if path.is_dir():
        if not (path / CONFIG_NAME).is_file():
            raise ConfigError(f"Directory {path} has no {CONFIG_NAME}; give a directory with one.")
        return model, path / CONFIG_NAME
    if path.exists() or looks_like_path(model, (".json",)):
        return model, path
    raise unknown_name("model", model, names, "the path of a config.json")


def load_architecture(path: Path) -> ModelArchitecture:
    """Read the config.json at `path`.

    Raises
    ------
    ConfigError
        When the file cannot be read, is no JSON object, is of an unknown architecture, or lacks a field.
    """
    text = read_text(path, "Model config")
    try:
        fields = json.loads(text)
        if not isinstance(fields, dict):
            raise ConfigError(f"Model config {path} is no JSON object; give a Hugging Face config.json.")
        digest = content_digest(fields)
    except json.JSONDecodeError as error:
        raise ConfigError(
            f"Model config {path} is no valid JSON (line {error.lineno}, column {error.colno}: {error.msg}); "
            "correct the file."
        ) from None
    except (ValueError, RecursionError):  # ValueError: also a number of thousands of digits.
        raise ConfigError(
            f"Model config {path} holds a number that is not finite or far too long, or is nested "
            "too deeply; correct it."
        ) from None
    return replace(_parse(_Reader(path, fields)), digest=digest)


@dataclass(frozen=True)
class _Reader:
    """Typed access to the fields of one config; every error names the file and the field."""

    path: Path
    fields: dict[str, Any]

    def fail(self, field: str, value: Any, expected: str) -> NoReturn:
        text = f"a list of {len(value)}" if isinstance(value, list) and value else shown(value)
        raise ConfigError(f"Model config {self.path}: field {field} is {text}; it must be {expected}.")

    def _get(self, field: str, default: Any, expected: str) -> Any:
        if self.fields.get(field) is not None:
            return self.fields[field]
        if default is None:
            raise ConfigError(f"Model config {self.path}: field {field} is missing; it must be {expected}.")
        return default

    def integer(
        self, field: str, default: int | None = None, minimum: int = 1, maximum: int = LARGEST_COUNT
    ) -> int:
        expected = f"an integer of at least {minimum}"
        value = self._get(field, default, expected)
        if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
            self.fail(field, value, expected)
        if value > maximum:
            self.fail(field, value, f"at most {maximum}")
        return value

    def optional_integer(self, field: str) -> int | None:
        return None if self.fields.get(field) is None else self.integer(field)

    def flag(self, field: str, default: bool | None = None) -> bool:
        value = self._get(field, default, "true or false")
        if not isinstance(value, bool):
            self.fail(field, value, "true or false")
        return value

    def integers(self, field: str) -> list[int]:
        value = self.fields.get(field) or []
        if not isinstance(value, list) or not all(type(item) is int and item >= 0 for item in value):
            self.fail(field, value, "a list of layer numbers from 0")
        return value


def _parse(reader: _Reader) -> ModelArchitecture:
    """Return the architecture that `reader` describes."""
    names = reader.fields.get("architectures")
    if not isinstance(names, list) or not names or not isinstance(names[0], str):
        reader.fail("architectures", names, "a list with the class name of the model")
    parse = _ARCHITECTURES.get(names[0])
    if parse is None:
        raise ConfigError(
            f"Model config {reader.path}: field architectures names {shown(names[0])}, which the roofline "
            f"runner does not know; it knows {', '.join(sorted(_ARCHITECTURES))}."
        )
    return parse(reader, names[0])


def _base(reader: _Reader, architecture: str) -> ModelArchitecture:
    """Return what all architectures have in common: sizes, and dense layers with full attention."""
    hidden, heads = reader.integer("hidden_size"), reader.integer("num_attention_heads", maximum=_MOST_PARTS)
    kv_heads = reader.integer("num_key_value_heads", default=heads)
    if heads % kv_heads:
        reader.fail("num_key_value_heads", kv_heads, f"a divisor of num_attention_heads ({heads})")
    head_dim = reader.optional_integer("head_dim")
    if head_dim is None:
        if hidden % heads:
            reader.fail("num_attention_heads", heads, f"a divisor of hidden_size ({hidden})")
        head_dim = hidden // heads
    return ModelArchitecture(
        architecture=architecture,
        digest="",
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate_size=reader.integer("intermediate_size"),
        vocab_size=reader.integer("vocab_size"),
        layers=(LayerKind(False, False),) * reader.integer("num_hidden_layers", maximum=_MOST_PARTS),
        tied_embeddings=reader.flag("tie_word_embeddings", default=False),
    )


def _with_window(
    reader: _Reader, model: ModelArchitecture, default: Callable[[int], bool]
) -> ModelArchitecture:
    """Return `model` with the sliding-window layers that `layer_types`, or else `default`, names."""
    kinds = reader.fields.get("layer_types")
    if kinds is None:
        sliding = [default(index) for index in range(model.num_layers)]
    elif not isinstance(kinds, list) or len(kinds) != model.num_layers:
        reader.fail("layer_types", kinds, f"a list of {model.num_layers} layer types, one per layer")
    else:
        for kind in kinds:
            if kind not in ("full_attention", "sliding_attention"):
                reader.fail("layer_types", kind, "full_attention or sliding_attention")
        sliding = [kind == "sliding_attention" for kind in kinds]
    layers = tuple(kind._replace(is_sliding=flag) for kind, flag in zip(model.layers, sliding, strict=True))
    window = reader.integer("sliding_window") if any(sliding) else None
    return replace(model, layers=layers, sliding_window_tokens=window)


def _with_experts(
    reader: _Reader, model: ModelArchitecture, experts: Experts, has_experts: Callable[[int], bool]
) -> ModelArchitecture:
    """Return `model` with `experts` in the layers for which `has_experts` holds."""
    if experts.experts_per_token > experts.num_experts:
        reader.fail("num_experts_per_tok", experts.experts_per_token, f"at most {experts.num_experts}")
    layers = tuple(kind._replace(has_experts=has_experts(index)) for index, kind in enumerate(model.layers))
    dense = any(not kind.has_experts for kind in layers)
    return replace(
        model, layers=layers, experts=experts, intermediate_size=model.intermediate_size if dense else 0
    )


def _llama(reader: _Reader, architecture: str) -> ModelArchitecture:
    bias = reader.flag("attention_bias", default=False)
    mlp_bias = reader.flag("mlp_bias", default=False)
    return replace(_base(reader, architecture), qkv_bias=bias, output_bias=bias, mlp_bias=mlp_bias)


def _mistral(reader: _Reader, architecture: str) -> ModelArchitecture:
    # Mistral slides in every layer as soon as the config gives a window.
    has_window = reader.optional_integer("sliding_window") is not None
    return _with_window(reader, _base(reader, architecture), lambda _: has_window)


def _qwen_window(reader: _Reader, model: ModelArchitecture) -> ModelArchitecture:
    """Return `model` with Qwen's rule: where sliding is switched on, layers from max_window_layers on do."""
    if not reader.flag("use_sliding_window", default=False):
        return model
    first = reader.integer("max_window_layers", minimum=0)
    return _with_window(reader, model, lambda index: index >= first)


def _qwen2(reader: _Reader, architecture: str) -> ModelArchitecture:
    return _qwen_window(reader, replace(_base(reader, architecture), qkv_bias=True))


def _qwen3(reader: _Reader, architecture: str) -> ModelArchitecture:
    bias = reader.flag("attention_bias", default=False)
    model = replace(_base(reader, architecture), qkv_bias=bias, output_bias=bias, qk_norm=True)
    return _qwen_window(reader, model)


def _qwen3_moe(reader: _Reader, architecture: str) -> ModelArchitecture:
    step = reader.integer("decoder_sparse_step", default=1)
    dense = set(reader.integers("mlp_only_layers"))
    experts = Experts(
        num_experts=reader.integer("num_experts", maximum=_MOST_PARTS),
        experts_per_token=reader.integer("num_experts_per_tok"),
        intermediate_size=reader.integer("moe_intermediate_size"),
    )
    model = _qwen3(reader, architecture)
    return _with_experts(reader, model, experts, lambda i: i not in dense and (i + 1) % step == 0)


def _mixtral(reader: _Reader, architecture: str) -> ModelArchitecture:
    experts = Experts(
        num_experts=reader.integer("num_local_experts", maximum=_MOST_PARTS),
        experts_per_token=reader.integer("num_experts_per_tok"),
        intermediate_size=reader.integer("intermediate_size"),
    )
    return _with_experts(reader, _mistral(reader, architecture), experts, lambda _: True)


def _deepseek_v3(reader: _Reader, architecture: str) -> ModelArchitecture:
    first = reader.integer("first_k_dense_replace", minimum=0)
    every = reader.integer("moe_layer_freq", default=1)
    inner = reader.integer("moe_intermediate_size")
    experts = Experts(
        num_experts=reader.integer("n_routed_experts", maximum=_MOST_PARTS),
        experts_per_token=reader.integer("num_experts_per_tok"),
        intermediate_size=inner,
        shared_intermediate_size=inner * reader.integer("n_shared_experts", default=0, minimum=0),
        router_bias=True,
    )
    latent = LatentAttention(
        q_lora_rank=reader.optional_integer("q_lora_rank"),
        kv_lora_rank=reader.integer("kv_lora_rank"),
        qk_nope_head_dim=reader.integer("qk_nope_head_dim"),
        qk_rope_head_dim=reader.integer("qk_rope_head_dim"),
        v_head_dim=reader.integer("v_head_dim"),
    )
    model = replace(
        _base(reader, architecture),
        latent=latent,
        head_dim=latent.qk_head_dim,
        num_mtp_layers=reader.integer("num_nextn_predict_layers", default=0, minimum=0),
    )
    return _with_experts(reader, model, experts, lambda index: index >= first and index % every == 0)


def _gpt_oss(reader: _Reader, architecture: str) -> ModelArchitecture:
    bias = reader.flag("attention_bias", default=True)
    experts = Experts(
        num_experts=reader.integer("num_local_experts", maximum=_MOST_PARTS),
        experts_per_token=reader.integer("num_experts_per_tok"),
        intermediate_size=reader.integer("intermediate_size"),
        router_bias=True,
        expert_bias=True,
    )
    model = replace(_base(reader, architecture), qkv_bias=bias, output_bias=bias, attention_sinks=True)
    # Without layer_types every other layer slides, beginning with the first.
    model = _with_window(reader, model, lambda index: index % 2 == 0)
    return _with_experts(reader, model, experts, lambda _: True)


_ARCHITECTURES: dict[str, Callable[[_Reader, str], ModelArchitecture]] = {
    "LlamaForCausalLM": _llama,
    "MistralForCausalLM": _mistral,
    "Qwen2ForCausalLM": _qwen2,
    "Qwen3ForCausalLM": _qwen3,
    "Qwen3MoeForCausalLM": _qwen3_moe,
    "MixtralForCausalLM": _mixtral,
    "DeepseekV3ForCausalLM": _deepseek_v3,
    "GptOssForCausalLM": _gpt_oss,
}

KNOWN_ARCHITECTURES = tuple(_ARCHITECTURES)
