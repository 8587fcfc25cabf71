"""Table identity: everything besides the shape that can change a latency, and its digest."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from cache.errors import InvalidValueError


def canonical_json(value: Any) -> str:
    """Return `value` as JSON with sorted keys and no spare space, so equal values give equal text.

    Numbers are tagged by their type: 1, 1.0 and True give three texts.

    Raises
    ------
    InvalidValueError
        When a value is no JSON value, or a number is not finite.
    """
    _check_plain(value, "")
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def _check_plain(value: Any, where: str) -> None:
    """Refuse what JSON would change silently, e.g. int keys or tuples of other types."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            if not isinstance(key, str):
                raise InvalidValueError(f"{where or 'value'} has the key {key!r}; keys must be strings.")
            _check_plain(item, f"{where}.{key}" if where else key)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            _check_plain(item, f"{where}[{index}]")
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise InvalidValueError(f"{where or 'value'} is {value}; it must be a finite number.")
    elif not (value is None or isinstance(value, str | int | bool)):
        raise InvalidValueError(f"{where or 'value'} is a {type(value).__name__}; expected a JSON value.")


def content_digest(value: Any) -> str:
    """Return the SHA-256 of the canonical JSON of `value`, as 64 hex digits."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


@dataclass(frozen=True)
class TableIdentity:
    """Everything besides the shape that can change a latency.

    Parameters
    ----------
    runner : str
        Name of the model runner.
    runner_version : str
        Version of the runner: what changes when its arithmetic or its data change.
    model_digest : str
        Digest of the content of the model config (not of its name or place).
    device_digest : str
        Digest of the content of the device profile.
    quantization : mapping
        Number formats of weights, activations and KV cache.
    parallelism : mapping
        Sizes of all parallel groups.
    num_mtp_tokens : int
        Speculative tokens per step: they change the graph.
    reserved_memory_gb : float
        Device memory kept free, GiB.
    settings : mapping
        Whatever else the runner takes that can change an answer.
    packages : mapping
        Versions of the packages that compute the answer.
    label : str
        For people only ("Qwen/Qwen3-32B on H100-SXM-80G, TP=8"); no part of the identity.
    """

    runner: str
    runner_version: str
    model_digest: str
    device_digest: str
    quantization: Mapping[str, Any] = field(default_factory=dict)
    parallelism: Mapping[str, Any] = field(default_factory=dict)
    num_mtp_tokens: int = 0
    reserved_memory_gb: float = 0.0
    settings: Mapping[str, Any] = field(default_factory=dict)
    packages: Mapping[str, str] = field(default_factory=dict)
    label: str = field(default="", compare=False)

    def as_json(self) -> dict[str, Any]:
        """Return the identity as plain JSON values, label left out."""
        return {
            "runner": self.runner,
            "runner_version": self.runner_version,
            "model_digest": self.model_digest,
            "device_digest": self.device_digest,
            "quantization": dict(self.quantization),
            "parallelism": dict(self.parallelism),
            "num_mtp_tokens": self.num_mtp_tokens,
            "reserved_memory_gb": float(self.reserved_memory_gb),
            "settings": dict(self.settings),
            "packages": dict(self.packages),
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any], label: str = "") -> TableIdentity:
        """Return the identity that `as_json` wrote."""
        return cls(**fields, label=label)

    @cached_property
    def canonical(self) -> str:
        """The canonical JSON of the identity."""
        return canonical_json(self.as_json())

    @cached_property
    def id(self) -> str:
        """SHA-256 of the canonical JSON, 64 hex digits; the name of the table."""
        return hashlib.sha256(self.canonical.encode()).hexdigest()

    def __hash__(self) -> int:
        return hash(self.id)
