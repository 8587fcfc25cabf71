"""What can be found wrong with a deployment for msmodeling before anything is imported."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cache.errors import ConfigError
from stages.parallelism import Parallelism
from stages.runners import msmodeling_source as source
from stages.runners.base import Deployment
from stages.runners.model_config import CONFIG_NAME, find_model_config, known_model_names
from stages.runners.shipped import looks_like_path, match_name, read_text, unknown_name


def check_device(device: str, known: source.Devices) -> None:
    """Check that a checkout defines a device profile, as far as its text shows.

    Raises
    ------
    ConfigError
        When it surely does not; names what is close.
    """
    if device in known.names or not known.complete:
        return
    close = difflib.get_close_matches(device.upper(), known.names, n=3, cutoff=0.4) or known.names
    raise ConfigError(
        f"msmodeling has no device profile {device!r}; use {' or '.join(close)}, or add a profile to the "
        f"checkout's {source.PACKAGE}/device_profiles."
    )


def find_model_folder(deployment: Deployment, root: Path | None) -> Path:
    """Return the folder of a model: a name of the checkout, a shipped name, or a path.

    Raises
    ------
    ConfigError
        When there is none, or msmodeling would not load it.
    """
    model, own = deployment.model, {} if root is None else source.model_folders(root)
    if model in own:
        folder = own[model]
    else:
        names = known_model_names()
        exists = (deployment.base_dir / Path(model).expanduser()).exists()
        if not (match_name(model, names) or exists or looks_like_path(model, (".json",))):
            raise unknown_name("model", model, [*names, *own], "the path of a folder with a config.json")
        config = find_model_config(model, deployment.base_dir)[1]
        if config.name != CONFIG_NAME:
            raise ConfigError(
                f"msmodeling reads the {CONFIG_NAME} of a folder, not {config}; rename the file."
            )
        folder = config.parent
    # msmodeling takes no links in the path of a model.
    folder = folder.resolve()
    if root is not None and (reason := source.reason_to_reject(root, folder)):
        raise ConfigError(f"msmodeling refuses the model folder {folder}: {reason}.")
    return folder


def check_draft(kind: str | None, block_size: int, config: str | None, base_dir: Path) -> Path | None:
    """Return the file of a draft model's config, or None when msmodeling's own is used or there is no draft.

    Parameters
    ----------
    kind, block_size
        Method and tokens per block of the draft model.
    config : str or None
        Another config.json for it.
    base_dir : Path
        What a relative `config` is relative to.

    Raises
    ------
    ConfigError
        When the block is too short, or the file is missing.
    """
    if kind is None:
        return None
    if block_size < 2:
        raise ConfigError(
            f"speculation.block_size is {block_size}, but a draft model of msmodeling adds at least one "
            "token to that of the target; give 2 or more."
        )
    if config is None:
        return None
    path = (base_dir / Path(config).expanduser()).resolve()
    if not path.is_file():
        raise ConfigError(
            f"runner.draft_model_config_path is {path}, which is no file; give the config.json of a draft "
            "model."
        )
    return path


def read_config(folder: Path) -> dict[str, Any]:
    """Return the content of a model's config.json.

    Raises
    ------
    ConfigError
        When it cannot be read, or names no architecture.
    """
    path = folder / CONFIG_NAME
    text = read_text(path, "Model config")
    try:
        config = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path} is no JSON (line {error.lineno}: {error.msg}); mend it.") from None
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise ConfigError(
            f"{path} has no model_type, from which msmodeling tells the architecture; give the config.json "
            "of a Hugging Face model."
        )
    return config


def text_config(config: dict[str, Any]) -> dict[str, Any]:
    """Return the language model's part of a config."""
    inner = config.get("text_config")
    return inner if isinstance(inner, dict) else config


def check_parallelism(
    model: str,
    config: dict[str, Any],
    sizes: Parallelism,
    group_sizes: Mapping[str, int | None],
    dcp_size: int,
) -> None:
    """Check what must divide what.

    Parameters
    ----------
    model : str
        For the message.
    config : dict
        The model's config.json.
    sizes : Parallelism
        How the model is spread.
    group_sizes : mapping
        Option -> tensor parallel size of single layers; None follows tp.
    dcp_size : int
        Decode context parallel size.

    Raises
    ------
    ConfigError
        When a size does not divide.
    """
    text = text_config(config)
    heads, layers = text.get("num_attention_heads"), text.get("num_hidden_layers")
    if isinstance(heads, int) and heads % sizes.tp:
        raise ConfigError(
            f"tp is {sizes.tp}, which does not divide the {heads} attention heads of {model}; choose a "
            "divisor."
        )
    if isinstance(layers, int) and sizes.pp > layers:
        raise ConfigError(
            f"pp is {sizes.pp}, but {model} has {layers} layers; each pipeline stage needs one, so lower pp."
        )
    if sizes.tp % dcp_size:
        raise ConfigError(
            f"runner.dcp_size is {dcp_size}, which does not divide tp ({sizes.tp}); choose a divisor."
        )
    stage = sizes.tp * sizes.dp
    for name, size in group_sizes.items():
        if size is not None and stage % size:
            raise ConfigError(
                f"runner.{name} is {size}, which does not divide tp * dp ({stage}), the devices of one "
                "pipeline stage; choose a divisor."
            )
