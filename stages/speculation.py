"""Draft speculation: a draft model proposes a block of tokens, and one decode step checks all of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from cache.errors import InvalidValueError
from stages.checks import require_int

DraftKind = Literal["dflash", "dspark"]
DRAFT_KINDS: tuple[DraftKind, ...] = get_args(DraftKind)

_UNDRAFTED_TOKENS: dict[DraftKind, int] = {"dflash": 1, "dspark": 0}
"""Tokens at the head of a block that are not drafted, and so cannot be accepted. A dflash block begins with
the token of the step before; dspark drafts from that token on, and so the whole block (msmodeling, user guide
of the throughput optimizer, August 2026: accepted lengths up to n - 1 and up to n)."""


@dataclass(frozen=True)
class Speculation:
    """How tokens are drafted.

    Parameters
    ----------
    kind : {"dflash", "dspark"}
        The drafting method.
    block_size : int
        Tokens that one decode step computes per request, n; > 0.
    accepted_length : float
        Drafted tokens that a step accepts on average. Counts as at least 0 and at most what a block can
        hold: n - 1 for dflash, n for dspark.

    Raises
    ------
    ValueError
        When a field is out of its range.
    """

    kind: DraftKind
    block_size: int
    accepted_length: float

    def __post_init__(self) -> None:
        if self.kind not in DRAFT_KINDS:
            raise InvalidValueError(
                f"speculation.kind is {self.kind!r}; it must be one of {', '.join(DRAFT_KINDS)}."
            )
        require_int("speculation.block_size", self.block_size, 1)
        if not math.isfinite(self.accepted_length):
            raise InvalidValueError(
                f"speculation.accepted_length is {self.accepted_length!r}; it must be a finite number."
            )

    @property
    def tokens_per_step(self) -> float:
        """Tokens that a decode step yields per request: those accepted, and one of its own."""
        most = self.block_size - _UNDRAFTED_TOKENS[self.kind]
        return min(max(self.accepted_length, 0.0), float(most)) + 1

    def __str__(self) -> str:
        return f"{self.kind.upper()}={self.block_size} ({self.tokens_per_step - 1:g} accepted)"
