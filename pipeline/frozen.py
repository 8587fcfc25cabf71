"""Runs that compute nothing."""

from __future__ import annotations

from dataclasses import dataclass

from cache.errors import MissingShapeError
from cache.identity import TableIdentity
from cache.shapes import ForwardLatencyRecord, ForwardShapeKey
from stages.runners.base import ModelRunner, RunnerSpec


class FrozenError(MissingShapeError):
    """A shape without record was met where nothing may be computed.

    Parameters
    ----------
    key : ForwardShapeKey
        The shape.
    """

    def __init__(self, key: ForwardShapeKey) -> None:
        super().__init__(
            f"The shape ({key}) has no record, and a frozen run computes nothing; run without --frozen."
        )
        self.key = key


@dataclass(frozen=True)
class FrozenSpec(RunnerSpec):
    """A spec whose runner computes nothing.

    Parameters
    ----------
    spec : RunnerSpec
        The spec that it stands for.
    """

    spec: RunnerSpec

    def identity(self) -> TableIdentity:
        """Return the identity of the spec that it stands for."""
        return self.spec.identity()

    def build(self) -> ModelRunner:
        """Return a runner that refuses every shape; imports nothing."""
        return _FrozenRunner()


class _FrozenRunner:
    def forward(self, key: ForwardShapeKey) -> ForwardLatencyRecord:
        raise FrozenError(key)
