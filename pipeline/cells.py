"""Expansion of a sweep config into cells: the units that the graph is made of."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from cache.errors import ConfigError, InvalidValueError
from cache.identity import TableIdentity
from pipeline.cell_search import CellSearch
from pipeline.config import LoadedConfig
from pipeline.grid import engines, is_searched, parallelisms, section_of, workloads
from pipeline.output_names import OutputNames
from stages.candidate import Candidate, Mode
from stages.parallelism import Parallelism
from stages.pd_ratio import KvTransfer
from stages.plan import plans_dry, require_plannable
from stages.result import CandidateResult
from stages.runners.base import Deployment, RunnerOptions, RunnerSpec
from stages.workload import Engine, Workload


@dataclass(frozen=True)
class Cell:
    """One deployment under one workload in one mode, with its candidate loads.

    Attributes
    ----------
    index : int
        Place in the expansion, from 0.
    runner : str
        The runner's title, which no other runner of the sweep has.
    model, device : str
        As the config names them.
    model_name, device_name : str
        As outputs name them.
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
    transfer : KvTransfer or None
        How prefill hands over to decode, where the two are paired.
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
    transfer: KvTransfer | None = None
    model_name: str = ""
    device_name: str = ""

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

    def judged(self, candidate: Candidate, result: CandidateResult) -> CandidateResult:
        """Return a candidate's result as it counts in this cell."""
        return result if self.transfer is None else self.transfer.handed_over(candidate, result)

    def candidates(self) -> tuple[Candidate, ...]:
        """Return the candidates, one per batch size."""
        return tuple(self.candidate(batch_size) for batch_size in self.batch_sizes)

    def plan_inputs(self) -> tuple[Candidate, ...]:
        """Return what the plans of the candidates depend on, so that cells can share plans."""
        return tuple(plan_input(candidate) for candidate in self.candidates())

    @property
    def plans_dry(self) -> bool:
        """Whether the candidates can be planned without records; their number does not matter for that."""
        return plans_dry(self.candidate(1))

    def __str__(self) -> str:
        return (
            f"{self.model_name} on {self.device_name}, {self.parallelism}, {self.mode}, "
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
        config.models, config.devices, parallelisms(loaded), config.modes, workloads(loaded)
    )
    points = [point for point in grid if _has_half_size(loaded, point[3], point[2])]
    _check_halves(loaded, points)
    cells: list[Cell] = []
    titles = _titles(loaded.runners)
    for index, options in enumerate(loaded.runners):
        specs = _Specs(loaded, index, options)
        for model, device, parallelism, mode, workload in points:
            for engine, search in engines(loaded, mode, workload):
                found = specs.get(model, device, parallelism, engine)
                if found is None:
                    continue
                cells.append(
                    Cell(
                        len(cells),
                        titles[index],
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
                        None if config.ratio is None else config.ratio.kv_transfer.transfer(),
                        specs.names.models[model],
                        specs.names.devices[device],
                    )
                )
        specs.check_some_are_left()
    _check_sizes(loaded, cells)
    return cells


def _check_sizes(loaded: LoadedConfig, cells: Sequence[Cell]) -> None:
    """Refuse loads that are too large, before anything is written."""
    for cell in cells:
        searched = () if cell.search is None else (cell.search.bounds.left, cell.search.bounds.right)
        try:
            for size in cell.batch_sizes or searched:
                if size is not None:  # An open search ends by itself.
                    require_plannable(cell.candidate(size))
        except InvalidValueError as error:
            raise ConfigError(f"{loaded.path}: {cell}: {error}") from error


def _titles(runners: Sequence[RunnerOptions]) -> list[str]:
    """Return what rows call each runner; those with one title are numbered."""
    titles = [options.title for options in runners]
    return [
        title if titles.count(title) == 1 else f"{title} #{titles[: index + 1].count(title)}"
        for index, title in enumerate(titles)
    ]


class _Specs:
    """The specs of one runner's deployments, each made once; what a search may leave out is None."""

    def __init__(self, loaded: LoadedConfig, index: int, options: RunnerOptions) -> None:
        self._loaded = loaded
        self.names = OutputNames.of(loaded)
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
            identity = spec.identity()
            label = self.names.label(identity.label, deployment.model, deployment.device)
            return spec, replace(identity, label=label)
        except ConfigError as error:
            place = self._place(error.field, deployment)
            sentence = ConfigError(f"{self._loaded.path}: {place}: {error}", error.field)
            if not is_searched(self._loaded):
                raise sentence from error
            self._first_error.setdefault((deployment.model, deployment.device), sentence)
            return None

    def _place(self, field: str | None, deployment: Deployment) -> str:
        """Return the place in the file that an error is about; the deployment where that cannot be told."""
        config, of_runner = self._loaded.config, f"{self._where} {self._options.kind}"
        place = None
        if field == "model":
            place = self._loaded.place("models", config.models.index(deployment.model))
        elif field == "device":
            place = self._loaded.place("devices", config.devices.index(deployment.device))
        elif field == "num_mtp_tokens":
            place = "engine.num_mtp_tokens"
        elif field is not None:
            index = section_of(self._loaded, deployment.parallelism)
            place = None if index is None else f"{self._loaded.place('parallelism', index)}.{field}"
        if place is None:
            return f"{deployment.model} on {deployment.device} with {deployment.parallelism} ({of_runner})"
        return place if len(self._loaded.runners) == 1 else f"{place} ({of_runner})"


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
