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
    """

    name: ClassVar[str]

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

    def equal_decisions(
        self, ready: int, change: int, front: int, prefill: int, query_len: int, budget: int
    ) -> int:
        """Return for how many steps the decision just made surely stays, so that they are planned at once.

        Parameters
        ----------
        ready : int
            Ready requests in the first of these steps, all or as many as the budget allows of which decode.
        change : int
            By how much `ready` changes after each step.
        front : int
            Requests at the front in the first of these steps; 0 means none come.
        prefill : int
            The prefill count of the decision; at least as many stay at the front in every step.
        query_len, budget : int
            As for `decide`.

        Returns
        -------
        int
            At least 1, which is always right: then the policy is asked at every step.
        """
        return 1

    def step_latency_ms(self, prefill_ms: FloatArray, decode_ms: FloatArray) -> FloatArray:
        """Return the latency of steps whose passes take `prefill_ms` and `decode_ms` (0 for no pass)."""
        return np.maximum(prefill_ms, decode_ms)


class DecodeFirstSlack(Scheduler):
    """Decode first; prefill fills the rest of the budget, which may be exceeded by 15%."""

    name = "decode_first_slack"

    def decide(self, ready: int, front: int, query_len: int, budget: int) -> tuple[int, int]:
        """Decode what the budget allows, then prefill what fits 1.15 times the budget."""
        decode = min(ready, budget)
        prefill = max(0, min(front, (int(1.15 * budget) - decode) // query_len))
        return prefill, decode

    def equal_decisions(
        self, ready: int, change: int, front: int, prefill: int, query_len: int, budget: int
    ) -> int:
        """Return after how many steps the rest of the budget holds another number of prompts."""
        if change == 0 or (change < 0 and front == 0):
            return UNLIMITED
        rest = int(1.15 * budget) - min(ready, budget)
        if change > 0:
            # The rest shrinks: until it no longer holds `prefill` prompts, or not all can decode.
            return max(1, min((rest - prefill * query_len) // change, (budget - ready) // change) + 1)
        # The rest grows: until it holds one more.
        return max(1, ((prefill + 1) * query_len - 1 - rest) // -change + 1)


UNLIMITED = 1 << 62
"""More steps than any schedule has."""

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
