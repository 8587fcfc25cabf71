"""Field types that the sections of a sweep config share."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag

from cache.errors import shown
from cache.shapes import LARGEST_COUNT

Item = TypeVar("Item")


def _as_list(value: Any) -> Any:
    return value if isinstance(value, list) else [value]


def _without_repeats(values: list[Item]) -> list[Item]:
    for index, value in enumerate(values):
        if value in values[:index]:
            raise ValueError(f"{shown(value)} stands twice; name each value once")
    return values


OneOrMore = Annotated[
    list[Item], BeforeValidator(_as_list), Field(min_length=1), AfterValidator(_without_repeats)
]
"""A scalar, or a list that is a dimension of the grid."""

Name = Annotated[str, Field(min_length=1)]
Count = Annotated[int, Field(gt=0, le=LARGEST_COUNT)]
Rate = Annotated[float, Field(ge=0, lt=1)]
LARGEST_FIGURE = 1e12
"""The largest time, bandwidth or size that is accepted: no serving has it, and sums of it stay finite."""

Milliseconds = Annotated[float, Field(ge=0, le=LARGEST_FIGURE, allow_inf_nan=False)]
PositiveMilliseconds = Annotated[float, Field(gt=0, le=LARGEST_FIGURE, allow_inf_nan=False)]
PositiveFigure = PositiveMilliseconds
Auto = Literal["auto"]


def word_or_values(value: Any) -> str:
    """Return which form a field takes that is a word or a list, so that messages speak of that one."""
    return "[word]" if isinstance(value, str) else "[values]"


Sizes = Annotated[
    Annotated[Auto, Tag("[word]")] | Annotated[OneOrMore[Count], Tag("[values]")],
    Discriminator(word_or_values),
]
"""Parallel sizes: a list, or `auto` for the powers of two up to the number of devices."""


class Section(BaseModel):
    """A part of a config: unknown fields are refused, values are not converted."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
