"""A policy that keeps steps within a time budget, so that running requests do not wait for prompts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from cache.errors import InvalidValueError
from stages.scheduler import UNLIMITED, AskRecord, DecodeFirstSlack, LazyScheduler, Step


@dataclass(frozen=True, repr=False)
class StepTimeBudget(LazyScheduler):
    """Decode first; prefill as many prompts as keep the step within `step_ms`.

    Tokens are limited as in `decode_first_slack`. Prompts are taken in powers of two, so that few shapes
    are needed, and larger ones are asked for only where smaller ones keep the time. When nothing decodes, one
    prompt is taken however long it takes.

    Parameters
    ----------
    step_ms : float
        Time budget of a step, ms; > 0.

    Raises
    ------
    ValueError
        When it is not positive.
    """

    step_ms: float

    name: ClassVar[str] = "step_time_budget"

    def __post_init__(self) -> None:
        if (
            isinstance(self.step_ms, bool)
            or not isinstance(self.step_ms, int | float)
            or not self.step_ms > 0
        ):
            raise InvalidValueError(
                f"The setting step_ms of the scheduler {self.name!r} is {self.step_ms!r}; it must be a "
                "positive number of milliseconds."
            )
        object.__setattr__(self, "step_ms", float(self.step_ms))

    def decide(self, step: Step, record: AskRecord) -> tuple[int, int]:
        """Return the largest power of two that keeps the time, and all that can decode."""
        most, decode = DecodeFirstSlack().decide(step.ready, step.front, step.query_len, step.budget)
        taken, count = 0, 1
        while count <= most and self.latency_ms(step, record, count, decode) <= self.step_ms:
            taken, count = count, 2 * count
        if taken == decode == 0 and most:
            return 1, 0
        return taken, decode

    def equal_decisions(
        self, ready: int, change: int, front: int, prefill: int, query_len: int, budget: int
    ) -> int:
        """Return that a decision stays as long as the same number decode.

        Counts are tried in one order whatever is behind the front, so a count that was taken is taken
        again while as many prompts are left.
        """
        return 1 if change else UNLIMITED
