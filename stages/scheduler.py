"""Scheduling policies: who is served in one step of mixed prefill and decode.

A policy is small, immutable data with a `decide`. There are two kinds:

- `Scheduler` decides without latencies, so that its schedule is known before anything is computed.
- `LazyScheduler` looks at latencies: it asks for the records of shapes while its schedule is made.

Both give the same form of schedule, which is then replayed alike.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from cache.shapes import ForwardLatencyRecord, ForwardShapeKey

FloatArray = npt.NDArray[np.float64]

AskRecord = Callable[[ForwardShapeKey], ForwardLatencyRecord]

SLACK = 1.15
"""By how much a step may exceed the token budget, as in the reference optimizer's default policy
(msmodeling, decode first with slack, 2026)."""


UNLIMITED = 1 << 62
"""More steps than any schedule has."""


class SchedulingPolicy(ABC):
    """What all policies have.

    Implementations with settings are frozen dataclasses: equal settings, equal policy.

    Attributes
    ----------
    name : str
        The name used in configs.
    """

    name: ClassVar[str]

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

    def __str__(self) -> str:
        text = ", ".join(f"{one.name}={getattr(self, one.name)!r}" for one in policy_settings(type(self)))
        return f"{self.name}({text})" if text else self.name

    def __repr__(self) -> str:
        return str(self)


def policy_settings(policy: type[SchedulingPolicy]) -> tuple[dataclasses.Field[Any], ...]:
    """Return the settings of a policy: the fields of its dataclass."""
    return dataclasses.fields(policy) if dataclasses.is_dataclass(policy) else ()


class Scheduler(SchedulingPolicy):
    """A policy that is decided without latencies."""

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


@dataclass(frozen=True)
class Step:
    """The step that a lazy policy decides on.

    Attributes
    ----------
    ready, front, query_len, budget : int
        As for `Scheduler.decide`.
    prefill_key, decode_key : callable
        Count -> the shape in which so many requests prefill or decode in this step.
    fold_decode_ms : callable
        Raw decode latency -> latency per output token, ms.
    """

    ready: int
    front: int
    query_len: int
    budget: int
    prefill_key: Callable[[int], ForwardShapeKey]
    decode_key: Callable[[int], ForwardShapeKey]
    fold_decode_ms: Callable[[float], float]


class LazyScheduler(SchedulingPolicy):
    """A policy that looks at latencies."""

    @abstractmethod
    def decide(self, step: Step, record: AskRecord) -> tuple[int, int]:
        """Return how many requests prefill and decode in the next step.

        Parameters
        ----------
        step : Step
            What is waiting.
        record : callable
            ForwardShapeKey -> ForwardLatencyRecord. A shape that is asked for is computed, unless its
            record is known. One that is out of memory ends the candidate there and then, so
            ask for small shapes before large ones.

        Returns
        -------
        (int, int)
            Prefill count, at most `front`; decode count, at most `ready`. The decision must follow from
            the step and the records alone.
        """

    def latency_ms(self, step: Step, record: AskRecord, prefill: int, decode: int) -> float:
        """Return how long the step would take with these counts, ms; asks for the records it needs."""
        prefill_ms = decode_ms = 0.0
        if prefill:
            prefill_ms = record(step.prefill_key(prefill)).latency_ms
        if decode:
            decode_ms = step.fold_decode_ms(record(step.decode_key(decode)).latency_ms)
        return float(self.step_latency_ms(np.array([prefill_ms]), np.array([decode_ms]))[0])


@dataclass(frozen=True, repr=False)
class DecodeFirstSlack(Scheduler):
    """Decode first; prefill fills the rest of the budget, which may be exceeded by 15%."""

    name: ClassVar[str] = "decode_first_slack"

    def decide(self, ready: int, front: int, query_len: int, budget: int) -> tuple[int, int]:
        """Decode what the budget allows, then prefill what fits 1.15 times the budget."""
        decode = min(ready, budget)
        prefill = max(0, min(front, (int(SLACK * budget) - decode) // query_len))
        return prefill, decode

    def equal_decisions(
        self, ready: int, change: int, front: int, prefill: int, query_len: int, budget: int
    ) -> int:
        """Return after how many steps the rest of the budget holds another number of prompts."""
        if change == 0 or (change < 0 and front == 0):
            return UNLIMITED
        rest = int(SLACK * budget) - min(ready, budget)
        if change > 0:
            # The rest shrinks: until it no longer holds `prefill` prompts, or not all can decode.
            return max(1, min((rest - prefill * query_len) // change, (budget - ready) // change) + 1)
        # The rest grows: until it holds one more.
        return max(1, ((prefill + 1) * query_len - 1 - rest) // -change + 1)
