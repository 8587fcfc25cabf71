"""What a sweep config says of the msmodeling runner, and what is known of a deployment before any import."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from cache.errors import ConfigError
from cache.identity import TableIdentity, content_digest
from stages.parallelism import Parallelism
from stages.runners import msmodeling_source as source
from stages.runners.base import Deployment, ModelRunner, RunnerOptions, RunnerSpec
from stages.runners.model_config import find_model_config, known_model_names
from stages.runners.msmodeling_checks import (
    check_device,
    check_draft,
    check_parallelism,
    find_model_folder,
    read_config,
    text_config,
)

RUNNER_NAME = "msmodeling"

RUNNER_VERSION = "1"
"""Raised by hand when the mapping from msmodeling's metrics to a record changes."""

LinearAction = Literal[
    "DISABLED",
    "W8A16_STATIC",
    "W8A8_STATIC",
    "W4A8_STATIC",
    "W8A16_DYNAMIC",
    "W8A8_DYNAMIC",
    "W4A8_DYNAMIC",
    "FP8",
    "MXFP4",
]
AttentionAction = Literal["DISABLED", "INT8", "FP8"]

_QUANTIZATION = (
    "quantize_linear_action",
    "quantize_non_expert_linear_action",
    "quantize_lmhead",
    "quantize_attention_action",
    "mxfp4_group_size",
)
_NOT_SETTINGS = (
    "kind",
    "name",
    "path",
    "pins",
    "reserved_memory_gb",
    "profiling_database",
    "draft_model_config_path",
    *_QUANTIZATION,
)
_GROUP_SIZES = ("o_proj_tp_size", "mlp_tp_size", "lmhead_tp_size", "vision_tp_size")


class Pins(BaseModel):
    """What the machine that computed the records had, for a machine that only reads them.

    All five stand in the manifest of a run. What is pinned is not looked up, so a sweep whose shapes are all
    known needs neither msmodeling nor torch; a shape that must be computed is refused where it differs.

    Parameters
    ----------
    source, database : str or None
        Digests of the msmodeling sources and of the measured operators.
    torch, transformers, scipy : str or None
        Package versions; scipy only counts where measured operators are interpolated.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    source: str | None = Field(default=None, pattern="^[0-9a-f]{64}$")
    database: str | None = Field(default=None, pattern="^[0-9a-f]{64}$")
    torch: str | None = None
    transformers: str | None = None
    scipy: str | None = None


class MsModelingOptions(RunnerOptions):
    """The msmodeling runner in a sweep config.

    Defaults are those of msmodeling's throughput optimizer. Fields without a description switch what they
    are named after in the modelled graph, and are passed on as they are.

    Parameters
    ----------
    path : str or None
        The top folder of a checkout; left out, `SHAPECAST_MSMODELING` or an installed `tensor_cast`.
    pins : Pins
        For machines without msmodeling.
    quantize_linear_action, quantize_attention_action : str
        Number formats of the linear layers, and of the KV cache.
    quantize_non_expert_linear_action : str
        The former for everything but experts, where it differs.
    word_embedding_tp : "col", "row" or None
        How the word embedding is split over the tensor parallel group; None keeps it whole.
    o_proj_tp_size, mlp_tp_size, lmhead_tp_size : int or None
        Tensor parallel sizes of single layers; None follows tp.
    dcp_size : int
        Decode context parallel size; divides tp.
    compile : bool
        Whether the graph is compiled and fused before it is estimated: seconds per shape, and other figures.
    num_draft_layers : int
        Layers of a draft model (`engine.speculation`); 0 takes those of its config.
    draft_model_config_path : str or None
        Another draft model's config.json, relative to the config file; None takes msmodeling's own.
    dspark_markov_rank, dspark_markov_head
        The Markov head of a dspark draft model; rank 0 has none.
    performance_model : "analytic" or "profiling"
        Computed operator costs, or measured ones with computed ones where the measurements have gaps.
    profiling_database : str or None
        Folder of measured operators; relative to the config file.
    reserved_memory_gb : float
        Device memory kept free, GiB.
    block_size : int
        Tokens per block of the KV cache.
    """

    kind: Literal["msmodeling"] = "msmodeling"
    path: str | None = None
    pins: Pins = Pins()

    quantize_linear_action: LinearAction = "W8A8_DYNAMIC"
    quantize_non_expert_linear_action: LinearAction = "DISABLED"
    quantize_lmhead: bool = False
    quantize_attention_action: AttentionAction = "DISABLED"
    mxfp4_group_size: int = Field(default=32, gt=0)

    word_embedding_tp: Literal["col", "row"] | None = None
    o_proj_tp_size: int | None = Field(default=None, gt=0)
    mlp_tp_size: int | None = Field(default=None, gt=0)
    lmhead_tp_size: int | None = Field(default=None, gt=0)
    vision_tp_size: int = Field(default=1, gt=0)
    dcp_size: int = Field(default=1, gt=0)

    enable_redundant_experts: bool = False
    enable_shared_expert_tp: bool = False
    enable_external_shared_experts: bool = False
    host_external_shared_experts: bool = False

    compile: bool = False
    allow_graph_break: bool = False
    enable_multistream: bool = False
    enable_sequence_parallel: bool = False
    enable_matmul_allreduce: bool = False
    enable_dispatch_ffn_combine: bool = False
    num_hidden_layers_override: int = Field(default=0, ge=0)
    disable_repetition: bool = False

    num_draft_layers: int = Field(default=0, ge=0)
    draft_model_config_path: str | None = None
    dspark_markov_rank: int = Field(default=256, ge=0)
    dspark_markov_head: Literal["vanilla", "gated", "rnn"] = "vanilla"

    performance_model: Literal["analytic", "profiling"] = "analytic"
    profiling_database: str | None = None
    disable_profiling_interpolation: bool = False

    reserved_memory_gb: float = Field(default=10.0, ge=0, allow_inf_nan=False)
    block_size: int = Field(default=128, gt=0)

    def spec(self, deployment: Deployment) -> MsModelingSpec:
        """Return the spec of one deployment.

        Raises
        ------
        ConfigError
            When msmodeling is not found, does not know the device, would not load the model, or the model
            cannot be spread that way.
        """
        root = source.find_checkout(self.path, deployment.base_dir)
        if root is None and self.pins.source is None:
            raise ConfigError(
                f"msmodeling is not on this machine; {source.HOW_TO_GET}, or set runner.pins.source to the "
                "digest behind the + of runner_version in the manifest of a run that computed the records."
            )
        if root is not None:
            check_device(deployment.device, source.device_profiles(root))
        folder = find_model_folder(deployment, root)
        group_sizes = {name: getattr(self, name) for name in _GROUP_SIZES}
        check_parallelism(
            deployment.model, read_config(folder), deployment.parallelism, group_sizes, self.dcp_size
        )
        draft = check_draft(
            deployment.draft_kind,
            deployment.draft_block_size,
            self.draft_model_config_path,
            deployment.base_dir,
        )
        database = self._database(deployment.base_dir)
        return MsModelingSpec(
            model=deployment.model,
            model_folder=folder,
            device=deployment.device,
            parallelism=deployment.parallelism,
            num_mtp_tokens=deployment.num_mtp_tokens,
            draft_kind=deployment.draft_kind,
            draft_block_size=deployment.draft_block_size,
            options=self,
            root=root,
            database=database,
            draft_config=draft,
            source_digest=self.pins.source or source.source_digest(_found(root)),
            model_digest=source.model_digest(folder),
            database_digest=self._database_digest(database),
            draft_digest=None if draft is None else source.file_digest(draft),
            packages=tuple(self._packages().items()),
        )

    def _database(self, base_dir: Path) -> Path | None:
        if self.performance_model != "profiling":
            return None
        if self.profiling_database is None:
            raise ConfigError(
                "runner.performance_model is profiling, which needs runner.profiling_database: a folder with "
                "op_mapping.yaml and the measured operators."
            )
        return (base_dir / Path(self.profiling_database).expanduser()).resolve()

    def _database_digest(self, database: Path | None) -> str | None:
        if database is None:
            return None
        return self.pins.database or source.database_digest(database)

    def _packages(self) -> dict[str, str]:
        """Return the versions of the packages whose code can change an answer."""
        versions = {name: getattr(self.pins, name) or _installed(name) for name in ("torch", "transformers")}
        if self.performance_model == "profiling" and not self.disable_profiling_interpolation:
            # msmodeling falls back to computed costs without a word where scipy is missing.
            versions["scipy"] = self.pins.scipy or package_version("scipy") or "missing"
        return versions

    @classmethod
    def known_models(cls) -> list[dict[str, str]]:
        """Return the shipped model configs and those of the checkout, a row each."""
        root = source.find_checkout(None, Path())
        folders = {name: find_model_config(name)[1].parent for name in known_model_names()}
        places = dict.fromkeys(folders, "shapecast")
        if root is not None:
            for name, folder in source.model_folders(root).items():
                folders[name], places[name] = folder, "msmodeling"
        rows = []
        for name, folder in folders.items():
            config = read_config(folder)
            text = text_config(config)
            layers, heads = (str(text.get(key, "-")) for key in ("num_hidden_layers", "num_attention_heads"))
            rows.append(
                {
                    "model": name,
                    "type": str(config.get("model_type", "-")),
                    "layers": layers,
                    "heads": heads,
                    "comes with": places[name],
                }
            )
        return rows

    @classmethod
    def known_devices(cls) -> list[dict[str, str]]:
        """Return the device profiles that the sources of msmodeling define, a row each."""
        root = source.find_checkout(None, Path())
        if root is None:
            raise ConfigError(f"msmodeling, whose devices these are, is not here; {source.HOW_TO_GET}.")
        return [
            {"device": name, "vendor": vendor, "defined in": file}
            for name, vendor, file in source.device_profiles(root).rows
        ]


@dataclass(frozen=True)
class MsModelingSpec(RunnerSpec):
    """One deployment for the msmodeling runner.

    Parameters
    ----------
    model, device : str
        As the sweep names them.
    model_folder : Path
        The folder with the model's config.json.
    parallelism, num_mtp_tokens, options
        How the model is spread, speculative tokens, and the options of the sweep.
    draft_kind, draft_block_size
        Method and tokens per block of a draft model; None and 0 without one.
    root, database, draft_config : Path or None
        Checkout, measured operators and draft model config on this machine.
    source_digest, model_digest, database_digest, draft_digest : str or None
        Digests of the files that answers come from.
    packages : tuple of (name, version)
        Packages whose code can change an answer.
    """

    model: str = field(compare=False)
    model_folder: Path = field(compare=False)
    device: str
    parallelism: Parallelism
    num_mtp_tokens: int
    draft_kind: str | None
    draft_block_size: int
    options: MsModelingOptions
    root: Path | None = field(compare=False)
    database: Path | None = field(compare=False)
    draft_config: Path | None = field(compare=False)
    source_digest: str
    model_digest: str
    database_digest: str | None
    draft_digest: str | None
    packages: tuple[tuple[str, str], ...]

    def identity(self) -> TableIdentity:
        """Return the table identity; imports and builds nothing.

        The values of a device profile are part of the sources, so their digest and the name stand for them.
        """
        options = self.options.model_dump()
        quantization = {name: options[name] for name in _QUANTIZATION}
        settings = {name: value for name, value in options.items() if name not in _NOT_SETTINGS}
        return TableIdentity(
            runner=RUNNER_NAME,
            runner_version=f"{RUNNER_VERSION}+{self.source_digest}",
            model_digest=self.model_digest,
            device_digest=content_digest({"profile": self.device, "source": self.source_digest}),
            quantization=quantization,
            parallelism=self.parallelism.as_json(),
            num_mtp_tokens=self.num_mtp_tokens,
            reserved_memory_gb=self.options.reserved_memory_gb,
            settings={
                **settings,
                "profiling_database": self.database_digest,
                "draft_kind": self.draft_kind,
                "draft_block_size": self.draft_block_size,
                "draft_model_config": self.draft_digest,
            },
            packages=dict(self.packages),
            label=f"{self.model} on {self.device}, {self.parallelism} | {options['quantize_linear_action']}",
        )

    def build(self) -> ModelRunner:
        """Return the runner; msmodeling itself is imported when it must answer for a shape."""
        from stages.runners.msmodeling import MsModelingRunner

        return MsModelingRunner(self)


def package_version(name: str) -> str | None:
    """Return the installed version of a package, or None."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _installed(name: str) -> str:
    version = package_version(name)
    if version is None:
        raise ConfigError(
            f"msmodeling needs the package {name}, which is not installed; run `{source.INSTALL_COMMAND}`, "
            f"or copy its version to runner.pins.{name} from the manifest of a run that computed the records."
        )
    return version


def _found(root: Path | None) -> Path:
    assert root is not None, "a checkout or a pinned digest was checked before"
    return root
