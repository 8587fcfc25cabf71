"""Expansion of a sweep config into cells: the units that the graph is made of."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from cache.errors import ConfigError, InvalidValueError
from cache.identity import TableIdentity
from pipeline.cell_search import CellSearch, auto_budgets, budget_grid, cell_search
from pipeline.config import LoadedConfig
from pipeline.parallel_search import searched_parallelisms
from pipeline.search_config import ParallelismSearchSection
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
        Requests per replica, one candidate each; none where they are searched.
    ttft_limit_ms, tpot_limit_ms : float or None
        Limits that apply in this mode.
    search : CellSearch or None
        How candidates are found, where they are not known beforehand.
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
    search: CellSearch | None = None

    def candidate(self, batch_size: int, engine: Engine | None = None) -> Candidate:
        """Return the candidate of one batch size; `engine` stands in for the cell's."""
        return Candidate(
            self.mode,
            self.workload,
            engine if engine is not None else self.engine,
            self.parallelism,
            batch_size,
            self.ttft_limit_ms,
            self.tpot_limit_ms,
        )

    def candidates(self) -> tuple[Candidate, ...]:
        """Return the candidates, one per batch size."""
        return tuple(self.candidate(batch_size) for batch_size in self.batch_sizes)

    def plan_inputs(self) -> tuple[Candidate, ...]:
        """Return what the plans of the candidates depend on, so that cells can share plans."""
        return tuple(plan_input(candidate) for candidate in self.candidates())

    def __str__(self) -> str:
        return (
            f"{self.model} on {self.device}, {self.parallelism}, {self.mode}, "
            f"{self.engine.max_batched_tokens} batched tokens"
        )


def plan_input(candidate: Candidate) -> Candidate:
    """Return a candidate less what no plan depends on."""
    layout = Parallelism(dp=candidate.parallelism.dp, pp=candidate.parallelism.pp)
    return replace(candidate, parallelism=layout, ttft_limit_ms=None, tpot_limit_ms=None)


def expand(loaded: LoadedConfig) -> list[Cell]:
    """Return the cells of a sweep, in the order of the config.

    Combinations that a search tries and that cannot be deployed are left out.

    Raises
    ------
    ConfigError
        When a combination that is asked for cannot be deployed, or none of those that are searched:
        file, place and reason.
    """
    config = loaded.config
    grid = itertools.product(
        config.models, config.devices, _parallelisms(loaded), config.modes, _workloads(loaded)
    )
    points = [point for point in grid if _has_half_size(loaded, point[3], point[2])]
    _check_halves(loaded, points)
    cells: list[Cell] = []
    for index, options in enumerate(loaded.runners):
        specs = _Specs(loaded, index, options)
        for model, device, parallelism, mode, workload in points:
            for engine, search in _engines(loaded, mode, workload):
                found = specs.get(model, device, parallelism, engine)
                if found is None:
                    continue
                cells.append(
                    Cell(
                        len(cells),
                        options.kind,
                        model,
                        device,
                        *found,
                        mode,
                        workload,
                        engine,
                        parallelism,
                        tuple(config.concurrency.batch_sizes or ()),
                        None if mode == "decode" else config.limits.ttft_ms,
                        None if mode == "prefill" else config.limits.tpot_ms,
                        search,
                    )
                )
        specs.check_some_are_left()
    return cells


class _Specs:
    """The specs of one runner's deployments, each made once; what a search may leave out is None."""

    def __init__(self, loaded: LoadedConfig, index: int, options: RunnerOptions) -> None:
        self._loaded = loaded
        self._where = "runner" if len(loaded.runners) == 1 else f"runner[{index}]"
        self._options = options
        self._known: dict[Deployment, tuple[RunnerSpec, TableIdentity] | None] = {}
        self._first_error: dict[tuple[str, str], ConfigError] = {}

    def get(
        self, model: str, device: str, parallelism: Parallelism, engine: Engine
    ) -> tuple[RunnerSpec, TableIdentity] | None:
        draft = engine.speculation
        deployment = Deployment(
            model,
            device,
            parallelism,
            engine.num_mtp_tokens,
            self._loaded.base_dir,
            draft_kind=None if draft is None else draft.kind,
            draft_block_size=0 if draft is None else draft.block_size,
        )
        if deployment not in self._known:
            self._known[deployment] = self._made(deployment)
        return self._known[deployment]

    def check_some_are_left(self) -> None:
        """Refuse a model on a device of which no searched combination can be deployed."""
        left = {(one.model, one.device) for one, spec in self._known.items() if spec is not None}
        for pair, error in self._first_error.items():
            if pair not in left:
                raise error

    def _made(self, deployment: Deployment) -> tuple[RunnerSpec, TableIdentity] | None:
        try:
            spec = self._options.spec(deployment)
            return spec, spec.identity()
        except ConfigError as error:
            sentence = ConfigError(
                f"{self._loaded.path}: {deployment.model} on {deployment.device} with "
                f"{deployment.parallelism} ({self._where} {self._options.kind}): {error}"
            )
            if not _is_searched(self._loaded):
                raise sentence from error
            self._first_error.setdefault((deployment.model, deployment.device), sentence)
            return None


def _is_searched(loaded: LoadedConfig) -> bool:
    """Whether the config leaves it to a search which deployments there are."""
    sections = loaded.config.parallelism
    return loaded.config.engine.num_mtp_tokens == "auto" or any(one.search for one in sections)


def _parallelisms(loaded: LoadedConfig) -> list[Parallelism]:
    found: list[Parallelism] = []
    for index, section in enumerate(loaded.config.parallelism):
        where = f"parallelism[{index}]"
        if section.search is not None:
            found += _searched(loaded, where, section.search)
        else:
            sizes = section.model_dump(exclude_none=True)
            found += [_checked(loaded, where, partial(Parallelism, **one)) for one in _combinations(sizes)]
    return list(dict.fromkeys(found))


def _searched(loaded: LoadedConfig, where: str, section: ParallelismSearchSection) -> list[Parallelism]:
    ratio = loaded.config.ratio
    counts = section.num_devices or []
    if ratio is not None:
        counts = list(dict.fromkeys([*counts, ratio.prefill_devices, ratio.decode_devices]))
    found = [
        parallelism
        for count in counts
        for parallelism in _checked(loaded, f"{where}.search", partial(searched_parallelisms, section, count))
    ]
    combinations = len(found) * len(_mtp_tokens(loaded))
    if combinations > section.max_combinations:
        warnings.warn(
            f"{loaded.path}: {where}.search tries {combinations} combinations of parallel sizes and "
            f"speculative tokens, more than max_combinations ({section.max_combinations}); name fewer sizes, "
            "or raise it.",
            stacklevel=2,
        )
    return found


def _has_half_size(loaded: LoadedConfig, mode: Mode, parallelism: Parallelism) -> bool:
    """Whether a deployment has the devices of its half, where a ratio names them."""
    ratio = loaded.config.ratio
    if ratio is None or mode == "aggregated":
        return True
    return parallelism.num_devices == (ratio.prefill_devices if mode == "prefill" else ratio.decode_devices)


def _check_halves(loaded: LoadedConfig, points: Sequence[tuple[Any, ...]]) -> None:
    ratio = loaded.config.ratio
    if ratio is None:
        return
    for mode, count in (("prefill", ratio.prefill_devices), ("decode", ratio.decode_devices)):
        if not any(point[3] == mode for point in points):
            raise ConfigError(
                f"{loaded.path}: ratio.{mode}_devices is {count}, but no parallelism uses {count} devices; "
                "add one, or change the number."
            )


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


def _mtp_tokens(loaded: LoadedConfig) -> list[int]:
    engine = loaded.config.engine
    if engine.num_mtp_tokens == "auto":
        return list(range(len(engine.mtp_acceptance_rate) + 1))
    return engine.num_mtp_tokens


def _engines(
    loaded: LoadedConfig, mode: Mode, workload: Workload
) -> Iterator[tuple[Engine, CellSearch | None]]:
    """Yield the engines of a grid point, and what is searched with each."""
    section = loaded.config.engine
    fields = section.model_dump()
    rates = tuple(fields.pop("mtp_acceptance_rate"))
    fields["max_batched_tokens"] = _budgets(section.max_batched_tokens, mode, workload)
    fields["num_mtp_tokens"] = _mtp_tokens(loaded)
    for values in _combinations(fields):
        budgets = values["max_batched_tokens"]
        values["max_batched_tokens"] = budgets[0]
        _checked(loaded, "engine.scheduler", partial(get_scheduler, values["scheduler"]))
        if section.num_mtp_tokens == "auto" and values["speculation"] and values["num_mtp_tokens"]:
            continue  # A draft model stands in for multi-token prediction.
        engine = _checked(loaded, "engine", partial(_engine, {**values, "mtp_acceptance_rate": rates}))
        yield engine, cell_search(loaded.config.concurrency, budgets)


def _budgets(budgets: str | Sequence[int], mode: Mode, workload: Workload) -> list[tuple[int, ...]]:
    """Return the token budgets of each cell of a grid point; in decode no budget is better than another."""
    if not isinstance(budgets, str):
        return [(budget,) for budget in budgets]
    tried = auto_budgets(workload) if budgets == "auto" else budget_grid(workload)
    if mode == "decode":
        return [(max(tried),)]
    return [tried] if budgets == "auto" else [(budget,) for budget in tried]


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
