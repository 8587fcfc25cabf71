"""Expansion of a sweep config into cells: the units that the graph is made of."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from cache.errors import ConfigError, InvalidValueError
from cache.identity import TableIdentity
from pipeline.config import LoadedConfig
from stages.candidate import Candidate, Mode
from stages.lengths import LengthBin, LengthDistribution
from stages.parallelism import Parallelism
from stages.runners.base import Deployment, RunnerOptions, RunnerSpec
from stages.scheduler import get_scheduler
from stages.speculation import Speculation
from stages.workload import Engine, Image, Workload

Made = TypeVar("Made")


@dataclass(frozen=True)
class Cell:
    """One deployment under one workload in one mode, with its candidate loads.

    Attributes
    ----------
    index : int
        Place in the expansion, from 0.
    runner, model, device : str
        As the config names them.
    spec : RunnerSpec
        How shapes are computed.
    identity : TableIdentity
        Where records are kept.
    mode, workload, engine, parallelism
        What is deployed and served.
    batch_sizes : tuple of int
        Requests per replica, one candidate each.
    ttft_limit_ms, tpot_limit_ms : float or None
        Limits that apply in this mode.
    """

    index: int
    runner: str
    model: str
    device: str
    spec: RunnerSpec
    identity: TableIdentity
    mode: Mode
    workload: Workload
    engine: Engine
    parallelism: Parallelism
    batch_sizes: tuple[int, ...]
    ttft_limit_ms: float | None
    tpot_limit_ms: float | None

    def candidates(self) -> tuple[Candidate, ...]:
        """Return the candidates, one per batch size."""
        return tuple(
            Candidate(
                self.mode,
                self.workload,
                self.engine,
                self.parallelism,
                batch_size,
                self.ttft_limit_ms,
                self.tpot_limit_ms,
            )
            for batch_size in self.batch_sizes
        )

    def plan_inputs(self) -> tuple[Candidate, ...]:
        """Return the candidates less what no plan depends on, so that cells can share plans."""
        layout = Parallelism(dp=self.parallelism.dp, pp=self.parallelism.pp)
        return tuple(
            replace(candidate, parallelism=layout, ttft_limit_ms=None, tpot_limit_ms=None)
            for candidate in self.candidates()
        )

    def __str__(self) -> str:
        return (
            f"{self.model} on {self.device}, {self.parallelism}, {self.mode}, "
            f"{self.engine.max_batched_tokens} batched tokens"
        )


def expand(loaded: LoadedConfig) -> list[Cell]:
    """Return the cells of a sweep, in the order of the config.

    Raises
    ------
    ConfigError
        When a combination cannot be deployed: file, place and reason.
    """
    config = loaded.config
    parallelisms = _parallelisms(loaded)
    workloads = _workloads(loaded)
    engines = _engines(loaded)
    specs: dict[Deployment, tuple[RunnerSpec, TableIdentity]] = {}
    cells: list[Cell] = []
    for index, options in enumerate(loaded.runners):
        specs.clear()
        grid = itertools.product(
            config.models, config.devices, parallelisms, config.modes, workloads, engines
        )
        for model, device, parallelism, mode, workload, engine in grid:
            draft = engine.speculation
            deployment = Deployment(
                model,
                device,
                parallelism,
                engine.num_mtp_tokens,
                loaded.base_dir,
                draft_kind=None if draft is None else draft.kind,
                draft_block_size=0 if draft is None else draft.block_size,
            )
            if deployment not in specs:
                specs[deployment] = _spec(loaded, index, options, deployment)
            spec, identity = specs[deployment]
            cells.append(
                Cell(
                    len(cells),
                    options.kind,
                    model,
                    device,
                    spec,
                    identity,
                    mode,
                    workload,
                    engine,
                    parallelism,
                    tuple(config.concurrency.batch_sizes),
                    None if mode == "decode" else config.limits.ttft_ms,
                    None if mode == "prefill" else config.limits.tpot_ms,
                )
            )
    return cells


def _spec(
    loaded: LoadedConfig, index: int, options: RunnerOptions, deployment: Deployment
) -> tuple[RunnerSpec, TableIdentity]:
    try:
        spec = options.spec(deployment)
        return spec, spec.identity()
    except ConfigError as error:
        where = "runner" if len(loaded.runners) == 1 else f"runner[{index}]"
        raise ConfigError(
            f"{loaded.path}: {deployment.model} on {deployment.device} with {deployment.parallelism} "
            f"({where} {options.kind}): {error}"
        ) from error


def _parallelisms(loaded: LoadedConfig) -> list[Parallelism]:
    found = [
        _checked(loaded, f"parallelism[{index}]", partial(Parallelism, **sizes))
        for index, section in enumerate(loaded.config.parallelism)
        for sizes in _combinations(section.model_dump(exclude_none=True))
    ]
    return list(dict.fromkeys(found))


def _workloads(loaded: LoadedConfig) -> list[Workload]:
    found = [
        _checked(loaded, f"workloads[{index}]", partial(_workload, fields))
        for index, section in enumerate(loaded.config.workloads)
        for fields in _combinations(section.model_dump())
    ]
    return list(dict.fromkeys(found))


def _workload(fields: Mapping[str, Any]) -> Workload:
    rest = {name: value for name, value in fields.items() if name not in ("input_length", "image")}
    length, image = fields["input_length"], fields["image"]
    rest["image"] = None if image is None else Image(**image)
    if isinstance(length, int):
        return Workload(length, **rest)
    bins = tuple(LengthBin(**one) for one in length["bins"])
    return Workload.of_lengths(LengthDistribution(bins), **rest)


def _engines(loaded: LoadedConfig) -> list[Engine]:
    fields = loaded.config.engine.model_dump()
    rates = tuple(fields.pop("mtp_acceptance_rate"))
    engines = []
    for values in _combinations(fields):
        _checked(loaded, "engine.scheduler", partial(get_scheduler, values["scheduler"]))
        engines.append(_checked(loaded, "engine", partial(_engine, {**values, "mtp_acceptance_rate": rates})))
    return engines


def _engine(fields: Mapping[str, Any]) -> Engine:
    draft = fields["speculation"]
    return Engine(**{**fields, "speculation": None if draft is None else Speculation(**draft)})


def _combinations(fields: Mapping[str, list[Any]]) -> Iterator[dict[str, Any]]:
    """Yield each combination of one value per field; the last field changes fastest."""
    for values in itertools.product(*fields.values()):
        yield dict(zip(fields, values, strict=True))


def _checked(loaded: LoadedConfig, where: str, make: Callable[[], Made]) -> Made:
    try:
        return make()
    except InvalidValueError as error:
        raise ConfigError(f"{loaded.path}: {where}: {error}") from error
