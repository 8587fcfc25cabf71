"""What a sweep config says of the roofline runner, and what is known of a deployment without building it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import Field

from cache.errors import ConfigError
from cache.identity import TableIdentity
from cache.shapes import LARGEST_COUNT
from stages.parallelism import Parallelism
from stages.runners.architecture import ModelArchitecture
from stages.runners.base import Deployment, ModelRunner, RunnerOptions, RunnerSpec
from stages.runners.device import DeviceProfile, find_device_profile, known_device_names, load_device
from stages.runners.model_config import find_model_config, known_model_names, load_architecture
from stages.runners.quantization import Quantization
from stages.runners.shipped import concerning

RUNNER_NAME = "roofline"

RUNNER_VERSION = "1"
"""Raised by hand when the runner's meaning changes; its formulas are digested besides."""

ARITHMETIC_MODULES = (
    "architecture",
    "device",
    "model_config",
    "quantization",
    "roofline",
    "roofline_batch",
    "roofline_communication",
    "roofline_experts",
    "roofline_memory",
    "roofline_operators",
    "roofline_spec",
    "roofline_work",
)
"""Modules of this package whose text can change an answer."""


@cache
def arithmetic_digest() -> str:
    """Return the SHA-256 of the text of `ARITHMETIC_MODULES`, which are read and not imported.

    A changed formula thus never finds records of the old one. Newlines are normalised, so that a
    checkout on another platform gives the same digest.
    """
    digest = hashlib.sha256()
    for name in ARITHMETIC_MODULES:
        text = (Path(__file__).parent / f"{name}.py").read_text(encoding="utf-8")
        digest.update(f"{name}\0{text}\0".encode())
    return digest.hexdigest()


Content = TypeVar("Content")


def _loaded(load: Callable[[Path], Content], path: Path) -> Content:
    """Return `load(path)`, which large sweeps ask for hundreds of times; read again when the file changes."""
    try:
        status = path.stat()
    except OSError:
        return load(path)  # It says what is wrong.
    content: Content = _loaded_once(load, path, status.st_mtime_ns, status.st_size)
    return content


@lru_cache(maxsize=256)
def _loaded_once(load: Callable[[Path], Any], path: Path, _mtime_ns: int, _size: int) -> Any:
    return load(path)


class RooflineOptions(RunnerOptions):
    """The roofline runner in a sweep config.

    A draft model (dflash, dspark) is not part of its forward pass: a decode step is the target model
    checking a block, whose tokens are the key's `query_len`. So deployments with and without one share a
    table, and the time of drafting is left out.

    Parameters
    ----------
    quantization : Quantization
        Number formats of weights, activations and KV cache.
    reserved_memory_gb : float
        Device memory kept free, GiB: driver, runtime, communication buffers, graphs, fragmentation.
    block_size : int
        Tokens per block of the KV cache.
    """

    kind: Literal["roofline"]
    quantization: Quantization = Quantization()
    reserved_memory_gb: float = Field(default=10.0, ge=0, le=1e9, allow_inf_nan=False)
    block_size: int = Field(default=128, gt=0, le=LARGEST_COUNT)

    def spec(self, deployment: Deployment) -> RooflineSpec:
        """Return the spec of one deployment.

        Raises
        ------
        ConfigError
            When model or device cannot be found or read, or the model cannot be deployed that way.
        """
        with concerning("model"):
            model_name, model_path = find_model_config(deployment.model, deployment.base_dir)
            architecture = _loaded(load_architecture, model_path)
        with concerning("device"):
            device_name, device_path = find_device_profile(deployment.device, deployment.base_dir)
            device = _loaded(load_device, device_path)
        spec = RooflineSpec(
            architecture=architecture,
            device=device,
            parallelism=deployment.parallelism,
            quantization=self.quantization,
            num_mtp_tokens=deployment.num_mtp_tokens,
            reserved_memory_gb=self.reserved_memory_gb,
            block_size=self.block_size,
            model_name=model_name,
            device_name=device_name,
        )
        check_deployment(spec)
        return spec

    @classmethod
    def known_models(cls) -> list[dict[str, str]]:
        """Return the shipped models, a row each."""
        rows = []
        for name in known_model_names():
            model = load_architecture(find_model_config(name)[1])
            rows.append(
                {
                    "model": name,
                    "architecture": model.architecture,
                    "parameters (B)": f"{model.num_parameters / 1e9:.1f}",
                    "active (B)": f"{model.num_active_parameters / 1e9:.1f}",
                    "layers": str(model.num_layers),
                    "attention": model.attention_kind.upper(),
                    "heads": str(model.num_heads),
                    "KV heads": "-" if model.latent is not None else str(model.num_kv_heads),
                    "experts": str(model.experts.num_experts) if model.experts is not None else "-",
                    "MTP layers": str(model.num_mtp_layers) if model.num_mtp_layers else "-",
                }
            )
        return rows

    @classmethod
    def known_devices(cls) -> list[dict[str, str]]:
        """Return the shipped devices, a row each."""
        rows = []
        for name in known_device_names():
            device = load_device(find_device_profile(name)[1])
            peaks, links = device.peak_tflops, device.interconnect
            rows.append(
                {
                    "device": name,
                    "description": device.description,
                    "memory (GiB)": f"{device.memory_gb:g}",
                    "bandwidth (GB/s)": f"{device.memory_bandwidth_gb_per_s:g}",
                    **{
                        f"{format_} (TFLOPS)": f"{peak:g}" if peak is not None else "-"
                        for format_, peak in (("BF16", peaks.bf16), ("FP8", peaks.fp8), ("INT8", peaks.int8))
                    },
                    "per node": str(links.devices_per_node),
                    "in node (GB/s)": f"{links.intra_node.bandwidth_gb_per_s:g}",
                    "between nodes (GB/s)": f"{links.inter_node.bandwidth_gb_per_s:g}",
                }
            )
        return rows


@dataclass(frozen=True)
class RooflineSpec(RunnerSpec):
    """One deployment for the roofline runner.

    Parameters
    ----------
    architecture, device, parallelism, quantization
        Model, device, how the model is spread, number formats.
    num_mtp_tokens : int
        Speculative tokens per decode step.
    reserved_memory_gb : float
        Device memory kept free, GiB.
    block_size : int
        Tokens per block of the KV cache.
    model_name, device_name : str
        For people; no part of the identity.
    """

    architecture: ModelArchitecture
    device: DeviceProfile
    parallelism: Parallelism
    quantization: Quantization
    num_mtp_tokens: int
    reserved_memory_gb: float
    block_size: int
    model_name: str = field(compare=False)
    device_name: str = field(compare=False)

    def identity(self) -> TableIdentity:
        """Return the table identity; imports and builds nothing."""
        return TableIdentity(
            runner=RUNNER_NAME,
            runner_version=f"{RUNNER_VERSION}+{arithmetic_digest()}",
            model_digest=self.architecture.digest,
            device_digest=self.device.digest,
            quantization=self.quantization.model_dump(),
            parallelism=self.parallelism.as_json(),
            num_mtp_tokens=self.num_mtp_tokens,
            reserved_memory_gb=self.reserved_memory_gb,
            settings={"block_size": self.block_size},
            label=f"{self.model_name} on {self.device_name}, {self.parallelism} | {self.quantization}",
        )

    def build(self) -> ModelRunner:
        """Import and build the runner."""
        # A run that finds every shape in its table must not pay for this import.
        from stages.runners.roofline import RooflineRunner

        return RooflineRunner(self)


def check_deployment(spec: RooflineSpec) -> None:
    """Check that the model can be spread and computed as `spec` says.

    Raises
    ------
    ConfigError
        When it cannot: the value, what is expected and what to do.
    """
    _check_device(spec)
    _check_tensor_parallelism(spec)
    _check_experts(spec)
    if spec.parallelism.pp > spec.architecture.num_layers:
        raise ConfigError(
            f"pp is {spec.parallelism.pp}, but {spec.model_name} has {spec.architecture.num_layers} layers; "
            "each pipeline stage needs one, so lower pp.",
            "pp",
        )
    if spec.num_mtp_tokens < 0:
        raise ConfigError(f"num_mtp_tokens is {spec.num_mtp_tokens}; it must be 0 or more.", "num_mtp_tokens")
    if spec.num_mtp_tokens and not spec.architecture.num_mtp_layers:
        raise ConfigError(
            f"num_mtp_tokens is {spec.num_mtp_tokens}, but {spec.model_name} has no multi-token prediction "
            "layers to draft with; set it to 0 or choose a model with num_nextn_predict_layers.",
            "num_mtp_tokens",
        )


def _check_device(spec: RooflineSpec) -> None:
    activations = spec.quantization.activations
    if getattr(spec.device.peak_tflops, activations) is None:
        raise ConfigError(
            f"quantization.activations is {activations}, but {spec.device_name} has no {activations} peak in "
            "its profile; choose bf16 activations (weights may stay quantized) or another device."
        )
    if spec.reserved_memory_gb >= spec.device.memory_gb:
        raise ConfigError(
            f"reserved_memory_gb is {spec.reserved_memory_gb:g}, but {spec.device_name} has "
            f"{spec.device.memory_gb:g} GiB; reserve less than that."
        )


def _check_tensor_parallelism(spec: RooflineSpec) -> None:
    model, tp, name = spec.architecture, spec.parallelism.tp, spec.model_name
    if model.num_heads % tp:
        raise ConfigError(
            f"tp is {tp}, but {name} has {model.num_heads} attention heads; choose a tp that divides them "
            f"({_divisors(model.num_heads)}).",
            "tp",
        )
    kv_heads = model.num_kv_heads
    if model.latent is None and kv_heads % tp and tp % kv_heads:
        raise ConfigError(
            f"tp is {tp}, but {name} has {kv_heads} key/value heads; choose a tp that divides them or is a "
            "multiple of them.",
            "tp",
        )
    dense = any(not kind.has_experts for kind in model.layers)
    if dense and model.intermediate_size % tp:
        raise ConfigError(
            f"tp is {tp}, but the dense layers of {name} have an intermediate size of "
            f"{model.intermediate_size}; choose a tp that divides it.",
            "tp",
        )


def _check_experts(spec: RooflineSpec) -> None:
    model, sizes, name = spec.architecture, spec.parallelism, spec.model_name
    experts = model.experts
    if experts is None:
        if sizes.ep > 1:
            raise ConfigError(f"ep is {sizes.ep}, but {name} has no experts to spread; set ep to 1.", "ep")
        if sizes.moe_dp is not None and sizes.moe_dp > 1:
            raise ConfigError(
                f"moe_dp is {sizes.moe_dp}, but {name} has no experts; set moe_dp to 1.", "moe_dp"
            )
        return
    if experts.num_experts % sizes.ep:
        raise ConfigError(
            f"ep is {sizes.ep}, but {name} has {experts.num_experts} experts per layer; choose an ep that "
            f"divides them ({_divisors(experts.num_experts)}).",
            "ep",
        )
    moe_tp = sizes.moe_tp or 1
    if experts.intermediate_size % moe_tp:
        raise ConfigError(
            f"moe_tp is {moe_tp}, but the experts of {name} have an intermediate size of "
            f"{experts.intermediate_size}; choose a moe_tp that divides it, for example by raising ep.",
            "moe_tp",
        )
    if experts.shared_intermediate_size % sizes.tp:
        raise ConfigError(
            f"tp is {sizes.tp}, but the shared experts of {name} have an intermediate size of "
            f"{experts.shared_intermediate_size}; choose a tp that divides it.",
            "tp",
        )


def _divisors(number: int) -> str:
    return ", ".join(str(size) for size in range(1, number + 1) if number % size == 0)
