"""Device profiles: the public figures of one accelerator and of the links between several.

Units: memory sizes are GiB (2**30 bytes), bandwidths decimal GB/s (10**9 bytes), compute TFLOPS (10**12
operations per second, dense: without structured sparsity), latencies and overheads microseconds.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from cache.errors import ConfigError
from cache.identity import content_digest
from cache.shapes import LARGEST_COUNT
from configs import DEVICES_DIR
from stages.runners.shipped import first_problem, looks_like_path, match_name, read_text, unknown_name

_LARGEST = 1e9
_POSITIVE = Field(gt=0, le=_LARGEST, allow_inf_nan=False)
_NOT_NEGATIVE = Field(ge=0, le=_LARGEST, allow_inf_nan=False)
_SHARE = Field(gt=0, le=1)


class _Part(BaseModel):
    """A part of a profile: unknown fields are errors, nothing is coerced, nothing changes later."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class PeakCompute(_Part):
    """Peak dense TFLOPS of the matrix units per number format, and of the vector units.

    A format that the matrix units do not have is left out. `vector` is the FP32 rate of the
    general-purpose units, because norms and softmax accumulate in FP32.
    """

    bf16: float = _POSITIVE
    vector: float = _POSITIVE
    fp8: float | None = Field(default=None, gt=0, le=_LARGEST, allow_inf_nan=False)
    int8: float | None = Field(default=None, gt=0, le=_LARGEST, allow_inf_nan=False)
    fp4: float | None = Field(default=None, gt=0, le=_LARGEST, allow_inf_nan=False)


class Link(_Part):
    """What one device can send over a kind of link, in one direction, and the time until it arrives."""

    bandwidth_gb_per_s: float = _POSITIVE
    latency_us: float = _NOT_NEGATIVE


class Interconnect(_Part):
    """Links inside a node of `devices_per_node` devices, and between nodes."""

    devices_per_node: int = Field(gt=0, le=LARGEST_COUNT)
    intra_node: Link
    inter_node: Link


class Efficiency(_Part):
    """Share of a peak figure that kernels reach; to be fitted to measurements where there are any.

    `experts` is the share of the compute peak that the many small products of routed experts reach, uneven
    routing included; left out, they reach `compute`.
    """

    compute: float = _SHARE
    memory: float = _SHARE
    communication: float = _SHARE
    experts: float | None = Field(default=None, gt=0, le=1)


class DeviceProfile(_Part):
    """One accelerator, as the unit that a serving engine places work on.

    Parameters
    ----------
    description : str
        What one device is, for people.
    memory_gb : float
        Memory that the driver reports, GiB. Not the advertised size: an "80 GB" H100 has 79.65 GiB.
    memory_bandwidth_gb_per_s : float
        Peak memory bandwidth, decimal GB/s.
    peak_tflops : PeakCompute
        Peak compute rates.
    interconnect : Interconnect
        Links to other devices.
    efficiency : Efficiency
        Shares of the peaks that are reached.
    operator_overhead_us : float
        Fixed time per operator (launch, ramp up and down), microseconds.
    sources : mapping
        Figure -> public document it is from.
    """

    description: str = Field(min_length=1)
    memory_gb: float = _POSITIVE
    memory_bandwidth_gb_per_s: float = _POSITIVE
    peak_tflops: PeakCompute
    interconnect: Interconnect
    efficiency: Efficiency
    operator_overhead_us: float = _NOT_NEGATIVE
    sources: dict[str, str]

    @field_validator("sources")
    @classmethod
    def _sources_name_figures(cls, sources: dict[str, str]) -> dict[str, str]:
        for figure in sources:
            if figure.split(".")[0] not in cls.model_fields:
                raise ValueError(f"{figure!r} names no figure of a device profile")
        return sources

    @model_validator(mode="after")
    def _figures_have_sources(self) -> DeviceProfile:
        for figure in ("memory_gb", "memory_bandwidth_gb_per_s", "peak_tflops", "interconnect"):
            if not any(name.split(".")[0] == figure for name in self.sources):
                raise ValueError(f"sources must name where {figure} is from")
        return self

    @property
    def digest(self) -> str:
        """SHA-256 of the content; where the file lies and what it is called are no part of it."""
        return content_digest(self.model_dump(mode="json", exclude_none=True))


def known_device_names() -> list[str]:
    """Return the names of the shipped device profiles, sorted."""
    return sorted(path.stem for path in DEVICES_DIR.glob("*.yaml"))


def find_device_profile(device: str, base_dir: Path = Path()) -> tuple[str, Path]:
    """Return the name for people and the profile file of a device.

    Parameters
    ----------
    device : str
        A shipped name (case does not matter) or the path of a profile. A shipped name wins.
    base_dir : Path
        What a relative path is relative to.

    Raises
    ------
    ConfigError
        When there is no such device.
    """
    names = known_device_names()
    name = match_name(device, names)
    if name is not None:
        return name, DEVICES_DIR / f"{name}.yaml"
    path = base_dir / Path(device).expanduser()
    if path.is_dir():
        raise ConfigError(f"Device profile {path} is a directory; give a YAML file or a shipped name.")
    if path.exists() or looks_like_path(device, (".yaml", ".yml")):
        return path.stem, path
    raise unknown_name("device", device, names, "the path of a device profile (YAML)")


def load_device(path: Path) -> DeviceProfile:
    """Read the device profile at `path`.

    Raises
    ------
    ConfigError
        When the file cannot be read, is no YAML mapping, or a field is missing, unknown or out of range.
    """
    text = read_text(path, "Device profile")
    try:
        fields: Any = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
        raise ConfigError(f"Device profile {path} is no valid YAML{where}; correct the file.") from None
    if not isinstance(fields, dict):
        raise ConfigError(f"Device profile {path} is no YAML mapping; give a profile with named fields.")
    try:
        return DeviceProfile.model_validate(fields)
    except ValidationError as error:
        raise ConfigError(f"Device profile {path}: {first_problem(error)}.") from None
