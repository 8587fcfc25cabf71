"""What a sweep config says of the load and how it is served: lengths, images, drafts, scheduling policies."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import ConfigDict, Discriminator, Field, Tag

from pipeline.config_fields import Count, Name, OneOrMore, Rate, Section
from stages.speculation import DraftKind


class BinSection(Section):
    """Prompts of `min_tokens` up to but without `max_tokens`, and their share of the requests."""

    min_tokens: int
    max_tokens: int
    weight: float


class LengthsSection(Section):
    """How long prompts are, when they differ."""

    bins: list[BinSection]


def _lengths_tag(value: Any) -> str:
    return "[bins]" if isinstance(value, dict | LengthsSection) else "[tokens]"


PromptLength = Annotated[
    Annotated[Count, Tag("[tokens]")] | Annotated[LengthsSection, Tag("[bins]")],
    Discriminator(_lengths_tag),
]


class ImageSection(Section):
    """Images of each request: their size in pixels, and how many a forward pass has."""

    height: int
    width: int
    batch_size: int | None = None


class WorkloadSection(Section):
    """Lengths of prompts and outputs, tokens, the share of the prompt that is cached, and images."""

    input_length: OneOrMore[PromptLength]
    output_length: OneOrMore[Count]
    prefix_cache_hit_rate: OneOrMore[Rate] = [0.0]
    image: OneOrMore[ImageSection | None] = [None]


class SpeculationSection(Section):
    """A draft model: how it drafts, tokens per block, and how many are accepted on average."""

    kind: DraftKind
    block_size: Count
    accepted_length: Annotated[float, Field(allow_inf_nan=False)]


class SchedulerSection(Section):
    """A scheduling policy with its settings, which stand beside its name."""

    model_config = ConfigDict(extra="allow")

    kind: Name


def _scheduler_tag(value: Any) -> str:
    return "[settings]" if isinstance(value, dict | SchedulerSection) else "[name]"


SchedulerChoice = Annotated[
    Annotated[Name, Tag("[name]")] | Annotated[SchedulerSection, Tag("[settings]")],
    Discriminator(_scheduler_tag),
]
