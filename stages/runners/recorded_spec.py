"""The spec of the recorded runner: answers come from a file of records."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from cache.errors import ConfigError
from cache.identity import TableIdentity, content_digest
from stages.runners.base import Deployment, RunnerOptions, RunnerSpec

if TYPE_CHECKING:
    from stages.runners.recorded import RecordedRunner

RECORDED_VERSION = "1"


class RecordedOptions(RunnerOptions):
    """What a sweep config says of recorded latencies.

    Attributes
    ----------
    path : str
        A Parquet or CSV file, one forward pass per row, with the columns `is_decode`,
        `model_concurrency`, `query_len`, `seq_len`, `latency_ms` and `memory_left_gb`; optional are the
        image columns, `memory_total_gb`, `memory_weight_gb`, `memory_kv_cache_gb`,
        `memory_activation_gb`, `memory_reserved_gb`, `breakdowns_json` and `sources_json`.
    where : dict
        Column -> value that a row must have. `{model}`, `{device}`, `{tp}`, `{dp}`, `{pp}`, `{ep}`,
        `{draft_kind}` ("none" without a draft model) and `{draft_block_size}` in a value stand for those of
        the deployment, so one file can hold a whole grid.
    columns : dict
        Column of the list above -> what the file calls it.
    """

    needs_model: ClassVar[bool] = False
    needs_device: ClassVar[bool] = False

    kind: Literal["recorded"] = "recorded"
    path: str
    where: dict[str, str | int | bool] = {}
    columns: dict[str, str] = {}

    def spec(self, deployment: Deployment) -> RecordedSpec:
        """Return the spec of one deployment; the file must exist."""
        path = deployment.base_dir / self.path
        if path.suffix not in (".parquet", ".csv"):
            raise ConfigError(f"The records file {path} must end in .parquet or .csv.")
        if not path.is_file():
            raise ConfigError(f"There is no records file at {path}; `path` is relative to the config file.")
        names = {
            "model": deployment.model,
            "device": deployment.device,
            **{name: getattr(deployment.parallelism, name) for name in ("tp", "dp", "pp", "ep")},
            "draft_kind": deployment.draft_kind or "none",
            "draft_block_size": deployment.draft_block_size,
        }
        where = {column: _filled(value, names, column) for column, value in self.where.items()}
        return RecordedSpec(
            path,
            tuple(sorted(where.items())),
            tuple(sorted(self.columns.items())),
            f"{deployment.model} on {deployment.device}, {deployment.parallelism} (recorded)",
        )


def _filled(value: str | int | bool, names: dict[str, object], column: str) -> str | int | bool:
    if not isinstance(value, str):
        return value
    try:
        return value.format(**names)
    except (KeyError, IndexError, ValueError) as error:
        raise ConfigError(
            f"runner.where.{column} is {value!r}; only {', '.join('{' + name + '}' for name in names)} "
            "can stand in braces."
        ) from error


@dataclass(frozen=True)
class RecordedSpec(RunnerSpec):
    """A file of records, and which of its rows answer."""

    path: Path
    where: tuple[tuple[str, str | int | bool], ...]
    columns: tuple[tuple[str, str], ...]
    label: str

    def identity(self) -> TableIdentity:
        """Return the identity: the file's content, and which rows and columns are read."""
        status = self.path.stat()
        digest = _file_digest(self.path, status.st_mtime_ns, status.st_size)
        return TableIdentity(
            runner="recorded",
            runner_version=RECORDED_VERSION,
            model_digest=digest,
            device_digest=content_digest(None),
            settings={"where": dict(self.where), "columns": dict(self.columns)},
            label=self.label,
        )

    def build(self) -> RecordedRunner:
        """Read the file."""
        from stages.runners.recorded import RecordedRunner

        return RecordedRunner(self.path, dict(self.where), dict(self.columns))


@lru_cache(maxsize=256)
def _file_digest(path: Path, _mtime_ns: int, _size: int) -> str:
    """Return the SHA-256 of a file, read again only when it has changed."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
