"""The sweep config: what a YAML file may say, validated field by field.

A list anywhere in `models`, `devices`, `parallelism`, `modes`, `workloads` and `engine` is a dimension of
the grid; a scalar is a fixed value.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from cache.errors import ConfigError
from pipeline.yaml_file import load_yaml_mapping
from stages.candidate import Mode
from stages.runners.base import RunnerOptions
from stages.runners.registry import runner_options

Item = TypeVar("Item")


def _as_list(value: Any) -> Any:
    return value if isinstance(value, list) else [value]


def _without_repeats(values: list[Item]) -> list[Item]:
    for index, value in enumerate(values):
        if value in values[:index]:
            raise ValueError(f"{value!r} stands twice; name each value once")
    return values


OneOrMore = Annotated[
    list[Item], BeforeValidator(_as_list), Field(min_length=1), AfterValidator(_without_repeats)
]
"""A scalar, or a list that is a dimension of the grid."""

Name = Annotated[str, Field(min_length=1)]
Count = Annotated[int, Field(gt=0)]
Rate = Annotated[float, Field(ge=0, lt=1)]
Milliseconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
PositiveMilliseconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class ParallelismSection(_Section):
    """Sizes of the parallel groups."""

    tp: OneOrMore[Count] = [1]
    dp: OneOrMore[Count] = [1]
    pp: OneOrMore[Count] = [1]
    ep: OneOrMore[Count] = [1]
    moe_tp: OneOrMore[Count] | None = None
    moe_dp: OneOrMore[Count] | None = None


class WorkloadSection(_Section):
    """Lengths of prompts and outputs, tokens, and the share of the prompt that is cached."""

    input_length: OneOrMore[Count]
    output_length: OneOrMore[Count]
    prefix_cache_hit_rate: OneOrMore[Rate] = [0.0]


class EngineSection(_Section):
    """How the serving engine schedules and speculates."""

    max_batched_tokens: OneOrMore[Count]
    num_mtp_tokens: OneOrMore[Annotated[int, Field(ge=0)]] = [0]
    mtp_acceptance_rate: list[Annotated[float, Field(ge=0, le=1)]] = [0.9, 0.6, 0.4, 0.2]
    serving_cost_ms: OneOrMore[Milliseconds] = [0.0]
    scheduler: OneOrMore[Name] = ["decode_first_slack"]


class ConcurrencySection(_Section):
    """Which loads are tried, in requests per replica."""

    batch_sizes: OneOrMore[Count]


class LimitsSection(_Section):
    """Latency limits; prefill is held to the first, decode to the second, aggregated to both."""

    ttft_ms: PositiveMilliseconds | None = None
    tpot_ms: PositiveMilliseconds | None = None


class SweepConfig(_Section):
    """A sweep config file."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)]
    runner: OneOrMore[dict[str, Any]]
    models: OneOrMore[Name]
    devices: OneOrMore[Name]
    parallelism: OneOrMore[ParallelismSection] = [ParallelismSection()]
    modes: OneOrMore[Mode] = ["aggregated"]
    workloads: OneOrMore[WorkloadSection]
    engine: EngineSection
    concurrency: ConcurrencySection
    limits: LimitsSection = LimitsSection()

    @model_validator(mode="after")
    def _acceptance_covers_tokens(self) -> SweepConfig:
        most = max(self.engine.num_mtp_tokens)
        if len(self.engine.mtp_acceptance_rate) < most:
            raise ValueError(
                f"engine.mtp_acceptance_rate has {len(self.engine.mtp_acceptance_rate)} rates but "
                f"engine.num_mtp_tokens asks for {most}; give a rate for each token"
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
    """

    def __init__(self, config: SweepConfig, path: Path, runners: list[RunnerOptions]) -> None:
        self.config = config
        self.path = path
        self.runners = runners

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
    content = load_yaml_mapping(path, "sweep config")
    try:
        config = SweepConfig.model_validate(content)
    except ValidationError as error:
        raise ConfigError(validation_sentence(error, path, SweepConfig)) from error
    runners = [_runner_options(entry, path, index) for index, entry in enumerate(config.runner)]
    return LoadedConfig(config, path, runners)


def _runner_options(entry: dict[str, Any], path: Path, index: int) -> RunnerOptions:
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
        raise ConfigError(validation_sentence(error, path, options_class, f"runner[{index}]")) from error


def validation_sentence(error: ValidationError, path: Path, model: type[BaseModel], inside: str = "") -> str:
    """Return the first finding of a validation as one sentence: file, path in the file, reason."""
    finding = error.errors()[0]
    names = [part for part in finding["loc"] if not _is_type_tag(part)]
    where = _dotted([inside, *names] if inside else names)
    more = f" (and {error.error_count() - 1} more findings)" if error.error_count() > 1 else ""
    return f"{path}: {where + ': ' if where else ''}{_reason(finding, model)}{more}."


def _reason(finding: Any, model: type[BaseModel]) -> str:
    kind, value = finding["type"], finding.get("input")
    if kind == "extra_forbidden":
        field = str(finding["loc"][-1])
        close = difflib.get_close_matches(field, _all_fields(model), n=1)
        return "this field is unknown" + (f"; did you mean {close[0]}?" if close else "; remove it")
    if kind == "missing":
        return "this field is missing; it is required"
    message: str = finding["msg"].removeprefix("Value error, ")
    message = message[0].lower() + message[1:]
    if isinstance(value, str | int | float | bool) or value is None:
        return f"{message}, not {value!r}"
    return message


def _dotted(names: Iterable[object]) -> str:
    text = ""
    for name in names:
        text += f"[{name}]" if isinstance(name, int) else (f".{name}" if text else str(name))
    return text


def _is_type_tag(part: object) -> bool:
    """Whether pydantic added this to the path, e.g. `function-after[...]`; no field is so named."""
    return isinstance(part, str) and ("[" in part or "(" in part)


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
