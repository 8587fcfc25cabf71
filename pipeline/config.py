"""The sweep config: what a YAML file may say, validated field by field.

A list anywhere in `models`, `devices`, `parallelism`, `modes`, `workloads` and `engine` is a dimension of
the grid; a scalar is a fixed value.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, Discriminator, Field, Tag, ValidationError, model_validator

from cache.errors import ConfigError, shown
from cache.shapes import LARGEST_COUNT
from pipeline.config_fields import (
    Auto,
    Count,
    Milliseconds,
    Name,
    OneOrMore,
    PositiveMilliseconds,
    Section,
    word_or_values,
)
from pipeline.search_config import ConcurrencySection, ParallelismSearchSection, RatioSection
from pipeline.serving_config import SchedulerChoice, SpeculationSection, WorkloadSection
from pipeline.yaml_file import load_yaml_mapping
from stages.candidate import Mode
from stages.runners.base import RunnerOptions
from stages.runners.registry import runner_options

_LONGEST_FIELD = 80


class ParallelismSection(Section):
    """Sizes of the parallel groups, or what is searched for them."""

    search: ParallelismSearchSection | None = None
    tp: OneOrMore[Count] = [1]
    dp: OneOrMore[Count] = [1]
    pp: OneOrMore[Count] = [1]
    ep: OneOrMore[Count] = [1]
    moe_tp: OneOrMore[Count] | None = None
    moe_dp: OneOrMore[Count] | None = None

    @model_validator(mode="after")
    def _search_or_sizes(self) -> ParallelismSection:
        sizes = sorted(self.model_fields_set - {"search"})
        if self.search is not None and sizes:
            raise ValueError(f"search finds the sizes itself; leave out {', '.join(sizes)}, or search")
        return self


class EngineSection(Section):
    """How the serving engine schedules and speculates."""

    max_batched_tokens: Annotated[
        Annotated[Literal["auto", "search"], Tag("[word]")] | Annotated[OneOrMore[Count], Tag("[values]")],
        Discriminator(word_or_values),
    ]
    num_mtp_tokens: Annotated[
        Annotated[Auto, Tag("[word]")]
        | Annotated[OneOrMore[Annotated[int, Field(ge=0, le=LARGEST_COUNT)]], Tag("[values]")],
        Discriminator(word_or_values),
    ] = [0]
    mtp_acceptance_rate: list[Annotated[float, Field(ge=0, le=1)]] = [0.9, 0.6, 0.4, 0.2]
    serving_cost_ms: OneOrMore[Milliseconds] = [0.0]
    scheduler: OneOrMore[SchedulerChoice] = ["decode_first_slack"]
    speculation: OneOrMore[SpeculationSection | None] = [None]


class LimitsSection(Section):
    """Latency limits; prefill is held to the first, decode to the second, aggregated to both."""

    ttft_ms: PositiveMilliseconds | None = None
    tpot_ms: PositiveMilliseconds | None = None


class SweepConfig(Section):
    """A sweep config file."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)]
    runner: OneOrMore[dict[str, Any]]
    models: OneOrMore[Name]
    devices: OneOrMore[Name]
    parallelism: OneOrMore[ParallelismSection] = [ParallelismSection()]
    modes: OneOrMore[Mode] = ["aggregated"]
    ratio: RatioSection | None = None
    workloads: OneOrMore[WorkloadSection]
    engine: EngineSection
    concurrency: ConcurrencySection
    limits: LimitsSection = LimitsSection()

    @model_validator(mode="after")
    def _acceptance_covers_tokens(self) -> SweepConfig:
        if self.engine.num_mtp_tokens == "auto":
            return self
        most = max(self.engine.num_mtp_tokens)
        if len(self.engine.mtp_acceptance_rate) < most:
            raise ValueError(
                f"engine.mtp_acceptance_rate has {len(self.engine.mtp_acceptance_rate)} rates but "
                f"engine.num_mtp_tokens asks for {most}; give a rate for each token"
            )
        return self

    @model_validator(mode="after")
    def _limits_have_a_mode(self) -> SweepConfig:
        for name, other in (("ttft_ms", "decode"), ("tpot_ms", "prefill")):
            if getattr(self.limits, name) is not None and self.modes == [other]:
                raise ValueError(
                    f"limits.{name} is given, but the only mode is {other}, which it does not limit; "
                    "leave it out, or add a mode"
                )
        return self

    @model_validator(mode="after")
    def _ratio_has_both_halves(self) -> SweepConfig:
        if self.ratio is not None and not {"prefill", "decode"} <= set(self.modes):
            raise ValueError("ratio pairs prefill with decode; set modes to [prefill, decode]")
        for index, section in enumerate(self.parallelism):
            if section.search is not None and section.search.num_devices is None and self.ratio is None:
                raise ValueError(
                    f"parallelism[{index}].search.num_devices is missing; only a ratio section can stand "
                    "in for it"
                )
        return self

    def as_json(self) -> dict[str, Any]:
        """Return the config as plain JSON values, defaults filled in."""
        return self.model_dump(mode="json")


class LoadedConfig:
    """A sweep config with its place and its runners' options.

    Parameters
    ----------
    config : SweepConfig
        The content.
    path : Path
        The file, which relative paths are relative to.
    runners : list of RunnerOptions
        The validated `runner` entries.
    content : mapping or None
        What the file says, for places in messages.
    """

    def __init__(
        self,
        config: SweepConfig,
        path: Path,
        runners: list[RunnerOptions],
        content: Mapping[str, Any] | None = None,
    ) -> None:
        self.config = config
        self.path = path
        self.runners = runners
        self._content = content or {}

    def place(self, field: str, index: int) -> str:
        """Return where a value of a dimension stands in the file, e.g. `models[1]`, or `models` alone."""
        return f"{field}[{index}]" if isinstance(self._content.get(field), list) else field

    @property
    def base_dir(self) -> Path:
        """What relative paths in the config are relative to."""
        return self.path.parent


def load_config(path: Path) -> LoadedConfig:
    """Return a validated sweep config.

    Raises
    ------
    ConfigError
        Naming the file, the path in it, and the reason.
    """
    return parse_config(load_yaml_mapping(path, "sweep config"), path)


def parse_config(content: Mapping[str, Any], path: Path) -> LoadedConfig:
    """Return a validated sweep config from its content; `path` is where it stands, for messages and paths.

    Raises
    ------
    ConfigError
        Naming the file, the path in it, and the reason.
    """
    try:
        config = SweepConfig.model_validate(content)
    except ValidationError as error:
        raise ConfigError(validation_sentence(error, path, SweepConfig, content)) from error
    single = len(config.runner) == 1
    runners = [
        _runner_options(entry, path, index, single=single) for index, entry in enumerate(config.runner)
    ]
    return LoadedConfig(config, path, runners, content)


def _runner_options(entry: dict[str, Any], path: Path, index: int, *, single: bool) -> RunnerOptions:
    kind = entry.get("kind")
    if not isinstance(kind, str):
        raise ConfigError(f"{path}: runner.kind is missing; name a runner, such as roofline.")
    try:
        options_class = runner_options(kind)
    except ConfigError as error:
        raise ConfigError(f"{path}: runner.kind: {error}") from error
    try:
        return options_class.model_validate(entry)
    except ValidationError as error:
        where = "runner" if single else f"runner[{index}]"
        raise ConfigError(validation_sentence(error, path, options_class, entry, where)) from error


def validation_sentence(
    error: ValidationError, path: Path, model: type[BaseModel], content: Any, inside: str = ""
) -> str:
    """Return the first finding of a validation as one sentence: file, path in the file, reason.

    An unknown field comes first: it is often the misspelled name of one that then counts as missing.
    """
    findings = sorted(error.errors(), key=lambda finding: finding["type"] != "extra_forbidden")
    where = _dotted(inside, _path_in_file(findings[0]["loc"], content))
    others = len(findings) - 1
    more = f" (and {others} more finding{'s' if others > 1 else ''})" if others else ""
    sentence = f"{path}: {where + ': ' if where else ''}{_reason(findings[0], model)}{more}"
    return sentence if sentence.endswith("?") else f"{sentence}."


def _path_in_file(location: tuple[int | str, ...], content: Any) -> Iterator[int | str]:
    """Yield the parts of a location that stand in the file.

    Left out are the index of a scalar that was taken as a list of one, and the name of the alternative
    of a union, e.g. `function-after[...]`, which pydantic adds.
    """
    for part in location:
        if isinstance(part, int):
            if not isinstance(content, list):
                continue
            content = content[part] if part < len(content) else None
        elif isinstance(content, dict) and part in content:
            content = content[part]
        elif "[" in part or "(" in part:
            continue
        yield part


def _reason(finding: Any, model: type[BaseModel]) -> str:
    kind, value = finding["type"], finding.get("input")
    if kind == "extra_forbidden":
        field = str(finding["loc"][-1])
        close = difflib.get_close_matches(field, _all_fields(model), n=1)
        return "this field is unknown" + (f"; did you mean {close[0]}?" if close else "; remove it")
    if kind == "missing":
        return "this field is missing; it is required"
    if kind == "too_short":
        return "give at least one value"
    if kind == "string_pattern_mismatch":
        return f"use letters, digits, '.', '_' and '-', beginning with a letter or digit, not {shown(value)}"
    message: str = finding["msg"].removeprefix("Value error, ")
    message = message[0].lower() + message[1:]
    if isinstance(value, str | int | float | bool) or value is None:
        return f"{message}, not {shown(value)}"
    return message


def _dotted(inside: str, parts: Iterable[int | str]) -> str:
    text = inside
    for part in parts:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            name = part if len(part) <= _LONGEST_FIELD else f"{part[:_LONGEST_FIELD]}..."
            text += f".{name}" if text else name
    return text


def _all_fields(model: type[BaseModel]) -> set[str]:
    names: set[str] = set()
    for name, field in model.model_fields.items():
        names.add(name)
        for inner in _models_in(field.annotation):
            names |= _all_fields(inner)
    return names


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for inner in get_args(annotation) for model in _models_in(inner)]
