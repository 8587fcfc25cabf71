"""What a model runner is, and what the pipeline must know of one without building it.

A runner comes in three pieces, so that a run that finds every shape in its table never imports one:

- `RunnerOptions`: what a sweep config says under `runner`, typed and validated.
- `RunnerSpec`: one deployment for one runner. Small and picklable; gives the table identity from
  files and package versions alone, and builds the runner when a shape must be computed.
- `ModelRunner`: answers `forward(key)`. Lives in a module that only `RunnerSpec.build` imports.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Protocol

from pydantic import BaseModel, ConfigDict, Field

from cache.identity import TableIdentity
from cache.shapes import ForwardLatencyRecord, ForwardShapeKey
from stages.parallelism import Parallelism


class ModelRunner(Protocol):
    """Anything that turns a forward shape into a latency record."""

    def forward(self, key: ForwardShapeKey) -> ForwardLatencyRecord:
        """Return the record of one forward pass."""
        ...


@dataclass(frozen=True)
class Deployment:
    """One model on some devices, as a sweep names them.

    Parameters
    ----------
    model, device : str
        As written in the sweep config: a name the runner knows, or a path.
    parallelism : Parallelism
        How the model is spread.
    num_mtp_tokens : int
        Speculative (multi-token prediction) tokens per decode step.
    base_dir : Path
        What relative paths are relative to.
    draft_kind : str or None
        Method of a draft model ("dflash", "dspark"); None without one.
    draft_block_size : int
        Tokens per block of the draft model; 0 without one. A runner whose forward pass includes the
        draft model must put both into the table identity. One that answers for the target model alone need
        not: the tokens of a block are in the key, as `query_len`.
    """

    model: str
    device: str
    parallelism: Parallelism
    num_mtp_tokens: int = 0
    base_dir: Path = Path()
    draft_kind: str | None = None
    draft_block_size: int = 0


class RunnerSpec(ABC):
    """One deployment for one runner: small, typed, picklable.

    Implementations are frozen dataclasses.
    """

    @abstractmethod
    def identity(self) -> TableIdentity:
        """Return the table identity without importing or building the runner."""

    @abstractmethod
    def build(self) -> ModelRunner:
        """Import and build the runner."""


class RunnerOptions(BaseModel, ABC):
    """What a sweep config says under `runner`."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    kind: str
    name: Annotated[str, Field(min_length=1)] | None = None
    """What rows and reports call the runner, e.g. to tell two of one kind apart; no part of the identity."""

    needs_model: ClassVar[bool] = True
    needs_device: ClassVar[bool] = True

    @property
    def title(self) -> str:
        """What rows and reports call the runner."""
        return self.name or self.kind

    @abstractmethod
    def spec(self, deployment: Deployment) -> RunnerSpec:
        """Return the spec of one deployment.

        Raises
        ------
        ConfigError
            When the runner cannot serve this deployment: one sentence with what is available.
        """

    @classmethod
    def known_models(cls) -> list[dict[str, str]]:
        """Return the models that the runner knows by name, a row each (column -> text)."""
        return []

    @classmethod
    def known_devices(cls) -> list[dict[str, str]]:
        """Return the devices that the runner knows by name, a row each (column -> text)."""
        return []
