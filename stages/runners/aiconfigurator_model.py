"""Model configs for the `aiconfigurator` runner: find them, read them, check what a deployment asks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cache.errors import ConfigError
from stages.runners.aiconfigurator_package import DISTRIBUTION, Package
from stages.runners.base import Deployment
from stages.runners.shipped import looks_like_path, match_name, read_text, unknown_name

CONFIG_FILE = "config.json"
QUANTIZATION_FILE = "hf_quant_config.json"  # where NVIDIA's checkpoints keep their number formats

RENAMED_MODELS = {
    f"meta-llama/Llama-3.1-{size}": f"meta-llama/Meta-Llama-3.1-{size}" for size in ("8B", "70B", "405B")
}
"""Today's Hugging Face names -> the names under which the package ships the same configs."""

_EXPERT_KEYS = ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts")
_MEMORY_TP = (1, 2, 4, 8)  # sizes in the package's memory model (sdk/backends/base_backend.py); above 8 as 8


def find_model(deployment: Deployment, package: Package | None) -> tuple[str, dict[str, str]]:
    """Return the name of the model and, when it is a path, the texts of its config files.

    Parameters
    ----------
    deployment : Deployment
        Its model is a name that the package ships, a config.json, or the folder of one.
    package : Package or None
        None where it is not installed; then any name is taken as it is.

    Raises
    ------
    ConfigError
        When there is no such name or file, or the package does not know the architecture.
    """
    name = RENAMED_MODELS.get(deployment.model, deployment.model)
    known = match_name(name, package.models) if package is not None else None
    if known is not None:
        return known, {}
    path = deployment.base_dir / Path(deployment.model).expanduser()
    folder = path.parent if path.name == CONFIG_FILE else path
    if (folder / CONFIG_FILE).is_file():
        return deployment.model, _read_files(folder, package)
    if looks_like_path(deployment.model, (".json",)):
        raise ConfigError(f"{path} is no model config; give an existing {CONFIG_FILE}, or its folder.")
    if package is not None:
        raise unknown_name("model", deployment.model, package.models, f"the path of a {CONFIG_FILE}")
    return name, {}


def _read_files(folder: Path, package: Package | None) -> dict[str, str]:
    paths = [path for name in (CONFIG_FILE, QUANTIZATION_FILE) if (path := folder / name).is_file()]
    files = {path.name: read_text(path, "model config") for path in paths}
    for path in paths:
        parse_config(files[path.name], str(path))
    architecture = architecture_of(parse_config(files[CONFIG_FILE], CONFIG_FILE))
    if package is not None and architecture not in package.architectures:
        raise ConfigError(
            f"{folder / CONFIG_FILE} has the architecture {architecture or 'none'}, which "
            f"{DISTRIBUTION} {package.version} does not know; it knows "
            f"{', '.join(package.architectures)}."
        )
    return files


def parse_config(text: str, where: str) -> dict[str, Any]:
    """Return a Hugging Face config; numbers that JSON does not know (Infinity, NaN) become text.

    Raises
    ------
    ConfigError
        When the text is no JSON object.
    """
    try:
        config = json.loads(text, parse_constant=str)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{where} is no JSON ({error}); expected a Hugging Face {CONFIG_FILE}.") from error
    if not isinstance(config, dict):
        raise ConfigError(f"{where} holds a {type(config).__name__}; expected a Hugging Face {CONFIG_FILE}.")
    return config


def model_config(package: Package | None, model: str, files: Mapping[str, str]) -> dict[str, Any]:
    """Return the config of a model, empty where it is a shipped one of a package that is not installed."""
    if not files and package is None:
        return {}
    texts = files or (package.model_files(model) if package else {})
    return parse_config(texts[CONFIG_FILE], model)


def architecture_of(config: Mapping[str, Any]) -> str:
    """Return the first architecture that a config names, or an empty text."""
    return str(next(iter(config.get("architectures") or []), ""))


def check_parallelism(deployment: Deployment, config: Mapping[str, Any]) -> None:
    """Refuse parallel sizes that the model, or the package's memory model, does not have.

    Parameters
    ----------
    config : mapping
        The Hugging Face config; what it does not say is not checked here.

    Raises
    ------
    ConfigError
        When a size does not divide what it splits.
    """
    sizes = deployment.parallelism
    text = config.get("text_config") or config  # multimodal configs nest the language model
    heads = text.get("num_attention_heads")
    expert_counts = [text[key] for key in _EXPERT_KEYS if isinstance(text.get(key), int)]
    if sizes.moe_dp != 1:
        raise ConfigError(
            f"moe_dp is {sizes.moe_dp}; the aiconfigurator runner spreads experts over all "
            "tp * dp devices, so ep * moe_tp must be tp * dp and moe_dp 1."
        )
    if isinstance(heads, int) and heads % sizes.tp:
        raise ConfigError(
            f"tp is {sizes.tp}, which does not divide the {heads} attention heads of "
            f"{deployment.model}; choose a divisor."
        )
    if sizes.tp < max(_MEMORY_TP) and sizes.tp not in _MEMORY_TP:
        raise ConfigError(
            f"tp is {sizes.tp}; the memory model of {DISTRIBUTION} knows tp "
            f"{', '.join(map(str, _MEMORY_TP))} and above."
        )
    if expert_counts and expert_counts[0] % sizes.ep:
        raise ConfigError(
            f"ep is {sizes.ep}, which does not divide the {expert_counts[0]} experts of "
            f"{deployment.model}; choose a divisor."
        )
