"""Options and spec of the `aiconfigurator` runner: measured NVIDIA silicon, described without importing it.

The figures are those of aiconfigurator-core (Apache-2.0, https://github.com/ai-dynamo/aiconfigurator):
operator tables measured per system, engine and engine version, and a compiled estimator that adds them
up. What is asked of a config is checked against the files of the installation; what only the estimator
can know (a table without the number format of this model) is found by `build`, before any shape.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from cache.errors import ConfigError
from cache.identity import TableIdentity, content_digest
from cache.memo import source_digest
from stages.parallelism import Parallelism
from stages.runners.aiconfigurator_model import (
    architecture_of,
    check_parallelism,
    find_model,
    model_config,
    parse_config,
)
from stages.runners.aiconfigurator_package import (
    BACKENDS,
    DISTRIBUTION,
    INSTALL_COMMAND,
    KNOWN_RELEASES,
    Package,
    installed_package,
)
from stages.runners.base import Deployment, ModelRunner, RunnerOptions, RunnerSpec
from stages.runners.shipped import match_name, unknown_name

RUNNER_VERSION = "1"
"""Raised by hand when the runner's meaning changes; the code that asks and converts is digested besides."""

ARITHMETIC_MODULES = ("aiconfigurator", "aiconfigurator_engine", "roofline_batch")
"""Modules of this package whose text can change an answer; they are read and not imported."""

SYSTEM_OF_DEVICE = {
    "A100-SXM-80G": "a100_sxm",
    "B200-SXM-180G": "b200_sxm",
    "H100-SXM-80G": "h100_sxm",
    "H200-SXM-141G": "h200_sxm",
    "L40S-48G": "l40s",
}
"""Names of the shipped device profiles -> the package's systems, so that one config serves both runners."""

GemmMode = Literal[
    "bfloat16",
    "int8_wo",
    "int4_wo",
    "fp8",
    "fp8_static",
    "sq",
    "fp8_block",
    "fp8_ootb",
    "nvfp4",
    "nvfp4_wo",
    "w4a16_nvfp4",
]
MoeMode = Literal[
    "bfloat16",
    "fp8",
    "int4_wo",
    "fp8_block",
    "w4afp8",
    "nvfp4",
    "nvfp4_wo",
    "w4a16_mxfp4",
    "w4a8_mxfp4_mxfp8",
    "w4a8_mxfp4_mxfp8_trtllm",
    "w4a16_mxfp4_cutlass",
    "w4a16_nvfp4",
]
KvCacheMode = Literal["bfloat16", "int8", "fp8"]
AttentionMode = Literal["bfloat16", "float16", "fp8", "fp8_block"]
CommunicationMode = Literal["half", "int8", "fp8"]


class AIConfiguratorQuantization(BaseModel):
    """Number formats by the package's names; what is left out follows the checkpoint's own config."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    gemm: GemmMode | None = None
    moe: MoeMode | None = None
    kvcache: KvCacheMode | None = None
    fmha: AttentionMode | None = None
    comm: CommunicationMode | None = None


class AIConfiguratorOptions(RunnerOptions):
    """What a sweep config says under `runner` for measured NVIDIA silicon.

    Parameters
    ----------
    backend : str
        Serving engine whose kernels were measured: vllm, sglang or trtllm.
    backend_version : str or None
        Version of the engine; None is the one that the package maintains as current.
    quantization : AIConfiguratorQuantization
        Number formats.
    reserved_memory_gb : float
        Memory to keep free besides the package's own overheads, GiB.
    package_version : str or None
        Version ("0.12.0") or release ("0.12.0+2b8d78e6c46e") of aiconfigurator-core. None is the installed
        one; naming it lets a run use kept records where the package is not installed.
    """

    kind: Literal["aiconfigurator"]
    backend: Literal["vllm", "sglang", "trtllm"] = "vllm"
    backend_version: str | None = None
    quantization: AIConfiguratorQuantization = AIConfiguratorQuantization()
    reserved_memory_gb: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    package_version: str | None = None

    @property
    def title(self) -> str:
        """The engine is what a comparison is about."""
        return self.name or f"{self.kind} {self.backend}"

    def spec(self, deployment: Deployment) -> AIConfiguratorSpec:
        """Return the spec of one deployment; see `RunnerOptions.spec`."""
        package, release = self._package()
        device = match_name(deployment.device, list(SYSTEM_OF_DEVICE)) or deployment.device
        system = SYSTEM_OF_DEVICE.get(device, device)
        model, files = find_model(deployment, package)
        version = self.backend_version
        if package is None:
            if version is None:
                raise ConfigError(
                    f"runner.backend_version is not given and {DISTRIBUTION} {release} is not installed, so "
                    f"the version of {self.backend} is unknown; give it, or run: {INSTALL_COMMAND}"
                )
        else:
            version = self._checked_version(package, system)
            self._check_hardware(package, model if not files else "", system, version)
        check_parallelism(deployment, model_config(package, model, files))
        return AIConfiguratorSpec(
            model=model,
            model_files=tuple(sorted(files.items())),
            system=system,
            backend=self.backend,
            backend_version=version,
            release=release,
            parallelism=deployment.parallelism,
            num_mtp_tokens=deployment.num_mtp_tokens,
            quantization=self.quantization,
            reserved_memory_gb=float(self.reserved_memory_gb),
        )

    def _package(self) -> tuple[Package | None, str]:
        """Return the installation that serves this config, if there is one, and the release it asks for."""
        package = installed_package()
        wanted = self.package_version
        if package is not None and wanted in (None, package.version, package.release):
            return package, package.release
        if wanted is None:
            raise ConfigError(
                f"The aiconfigurator runner needs {DISTRIBUTION}, which is not installed; to use kept "
                "records alone, give runner.package_version and runner.backend_version, to compute, "
                f"run: {INSTALL_COMMAND}"
            )
        release = KNOWN_RELEASES.get(wanted, wanted)
        if "+" not in release:
            raise ConfigError(
                f"runner.package_version is {wanted!r}, which is not installed and none of the versions "
                f"known by themselves ({', '.join(KNOWN_RELEASES)}); give the release as it stands in the "
                f"identity of the kept records, like {next(iter(KNOWN_RELEASES.values()))!r}."
            )
        return None, release

    def _checked_version(self, package: Package, system: str) -> str:
        if system not in package.systems:
            names = sorted([*package.systems, *SYSTEM_OF_DEVICE])
            raise unknown_name("device", system, names, "one of all that `shapecast devices` lists")
        versions = package.versions(system, self.backend)
        if not versions:
            raise ConfigError(
                f"{DISTRIBUTION} {package.version} has no figures of {self.backend} on "
                f"{system}; there are figures of {', '.join(package.backends(system))}."
            )
        if self.backend_version is not None and self.backend_version not in versions:
            raise ConfigError(
                f"{DISTRIBUTION} {package.version} has no {self.backend} "
                f"{self.backend_version} on {system}; available are {', '.join(versions)}."
            )
        return self.backend_version or versions[0]

    def _check_hardware(self, package: Package, model: str, system: str, version: str) -> None:
        if self.quantization.gemm or self.quantization.moe:
            return  # the verdict is about the formats of the checkpoint
        reason = package.incompatibility(model, system, self.backend, version)
        if reason is not None:
            elsewhere = ", ".join(package.working_systems(model, self.backend)) or "no system known here"
            raise ConfigError(
                f"{model} does not run on {system} with {self.backend} {version} ({reason}); "
                f"it runs on {elsewhere}."
            )

    @classmethod
    def known_models(cls) -> list[dict[str, str]]:
        """Return the models with a shipped config: name and architecture."""
        package = _required_package()
        return [
            {"model": name, "architecture": architecture_of(model_config(package, name, {}))}
            for name in package.models
        ]

    @classmethod
    def known_devices(cls) -> list[dict[str, str]]:
        """Return the systems with measured tables: names, memory, versions per engine (default first)."""
        package = _required_package()
        other_name = {system: device for device, system in SYSTEM_OF_DEVICE.items()}
        return [
            {
                "device": system,
                "device profile": other_name.get(system, ""),
                "memory (GiB)": f"{package.system_profile(system)['gpu']['mem_capacity'] / 2**30:.0f}",
                **{backend: ", ".join(package.versions(system, backend)) for backend in BACKENDS},
            }
            for system in package.systems
        ]


@dataclass(frozen=True)
class AIConfiguratorSpec(RunnerSpec):
    """One deployment on measured silicon.

    Parameters
    ----------
    model : str
        The package's name of the model or, with `model_files`, where the config came from (for people).
    model_files : tuple of (str, str)
        File name and text of a config of one's own; carried along, so that any worker can build from it.
    system, backend, backend_version : str
        Whose measurements; the version is always explicit.
    release : str
        Release of aiconfigurator-core: "version+digest of its sources and tables".
    """

    model: str
    model_files: tuple[tuple[str, str], ...]
    system: str
    backend: str
    backend_version: str
    release: str
    parallelism: Parallelism
    num_mtp_tokens: int
    quantization: AIConfiguratorQuantization
    reserved_memory_gb: float

    def identity(self) -> TableIdentity:
        """Return the table identity.

        A shipped model and a system are named within a release, whose digest covers their content.
        """
        model: Any = {"model": self.model, "release": self.release}
        if self.model_files:
            model = {name: parse_config(text, name) for name, text in self.model_files}
        return TableIdentity(
            runner="aiconfigurator",
            runner_version=f"{RUNNER_VERSION}+{source_digest(*_arithmetic_files())}",
            model_digest=content_digest(model),
            device_digest=content_digest({"system": self.system, "release": self.release}),
            quantization=self.quantization.model_dump(),
            parallelism=self.parallelism.as_json(),
            num_mtp_tokens=self.num_mtp_tokens,
            reserved_memory_gb=self.reserved_memory_gb,
            settings={"backend": self.backend, "backend_version": self.backend_version},
            packages={DISTRIBUTION: self.release},
            label=f"{self.model} on {self.system}, {self.backend} {self.backend_version}, {self.parallelism}",
        )

    def build(self) -> ModelRunner:
        """Import the package and build the runner; see `stages.runners.aiconfigurator.build_runner`."""
        from stages.runners.aiconfigurator import build_runner

        return build_runner(self)


def _arithmetic_files() -> tuple[Path, ...]:
    return tuple(Path(__file__).parent / f"{name}.py" for name in ARITHMETIC_MODULES)


def _required_package() -> Package:
    package = installed_package()
    if package is None:
        raise ConfigError(
            f"What the aiconfigurator runner knows stands in {DISTRIBUTION}, which is not "
            f"installed; run: {INSTALL_COMMAND}"
        )
    return package
