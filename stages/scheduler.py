"""Scheduling policies: who is served in one step of mixed prefill and decode."""

from __future__ import annotations

import difflib
from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from cache.errors import InvalidValueError

FloatArray = npt.NDArray[np.float64]


class Scheduler(ABC):
    """A policy that is decided without latencies.

    Attributes
    ----------
    name : str
        The name used in configs.
    steady : bool
        Whether the decision depends on `ready` only through `min(ready, budget)` and, as long as
        `front` is at least the prefill count it decided on, not on `front`. A steady policy's equal
        steps are planned at once; any other policy is asked at every step.
    """

    name: ClassVar[str]
    steady: ClassVar[bool] = False

    @abstractmethod
    def decide(self, ready: int, front: int, query_len: int, budget: int) -> tuple[int, int]:
        """Return how many requests prefill and decode in the next step.

        Parameters
        ----------
        ready : int
            Requests that have their first token and want more.
        front : int
            Requests at the front of the prefill queue that share one chunk index; 0 for none.
        query_len : int
            Tokens of that chunk; `budget` when nothing is pending.
        budget : int
            Tokens of one step over all replicas.

        Returns
        -------
        (int, int)
            Prefill count, at most `front`; decode count, at most `ready`.
        """

    def step_latency_ms(self, prefill_ms: FloatArray, decode_ms: FloatArray) -> FloatArray:
        """Return the latency of steps whose passes take `prefill_ms` and `decode_ms` (0 for no pass)."""
        return np.maximum(prefill_ms, decode_ms)


class DecodeFirstSlack(Scheduler):
    """Decode first; prefill fills the rest of the budget, which may be exceeded by 15%."""

    name = "decode_first_slack"
    steady = True

    def decide(self, ready: int, front: int, query_len: int, budget: int) -> tuple[int, int]:
        """Decode what the budget allows, then prefill what fits 1.15 times the budget."""
        decode = min(ready, budget)
        prefill = max(0, min(front, (int(1.15 * budget) - decode) // query_len))
        return prefill, decode


_SCHEDULERS: dict[str, Scheduler] = {DecodeFirstSlack.name: DecodeFirstSlack()}


def register_scheduler(scheduler: Scheduler) -> None:
    """Make a policy available under its name, in this process."""
    _SCHEDULERS[scheduler.name] = scheduler


def scheduler_names() -> list[str]:
    """Return the names that `get_scheduler` takes."""
    return sorted(_SCHEDULERS)


def get_scheduler(name: str) -> Scheduler:
    """Return the policy called `name`.

    Raises
    ------
    ValueError
        When there is none.
    """
    if name not in _SCHEDULERS:
        close = difflib.get_close_matches(name, _SCHEDULERS) or scheduler_names()
        raise InvalidValueError(f"There is no scheduler {name!r}; use {' or '.join(close)}.")
    return _SCHEDULERS[name]
