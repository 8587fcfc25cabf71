"""The dimensions of a sweep: parallelisms, workloads and engines as its config names or searches them."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from cache.errors import ConfigError, InvalidValueError
from pipeline.cell_search import CellSearch, auto_budgets, budget_grid, cell_search
from pipeline.config import LoadedConfig
from pipeline.parallel_search import searched_parallelisms
from pipeline.search_config import ParallelismSearchSection
from stages.candidate import Mode
from stages.lengths import LengthBin, LengthDistribution
from stages.parallelism import Parallelism
from stages.scheduler import SchedulingPolicy
from stages.scheduler_registry import get_scheduler, is_built_in, make_scheduler
from stages.speculation import Speculation
from stages.workload import Engine, Image, Workload

Made = TypeVar("Made")


def is_searched(loaded: LoadedConfig) -> bool:
    """Whether the config leaves it to a search which deployments there are."""
    sections = loaded.config.parallelism
    return loaded.config.engine.num_mtp_tokens == "auto" or any(one.search for one in sections)


def parallelisms(loaded: LoadedConfig) -> list[Parallelism]:
    """Return the deployments that the config names or searches."""
    found: list[Parallelism] = []
    for index, section in enumerate(loaded.config.parallelism):
        where = f"parallelism[{index}]"
        if section.search is not None:
            found += _searched(loaded, where, section.search)
        else:
            sizes = section.model_dump(exclude_none=True)
            found += [_checked(loaded, where, partial(Parallelism, **one)) for one in _combinations(sizes)]
    return list(dict.fromkeys(found))


def section_of(loaded: LoadedConfig, parallelism: Parallelism) -> int | None:
    """Return the index of the first section that lists a deployment; None when it is searched."""
    for index, section in enumerate(loaded.config.parallelism):
        if section.search is None:
            sizes = section.model_dump(exclude_none=True)
            if parallelism in [Parallelism(**one) for one in _combinations(sizes)]:
                return index
    return None


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


def workloads(loaded: LoadedConfig) -> list[Workload]:
    """Return the workloads of the config."""
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


def engines(
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
        values["scheduler"] = _checked(loaded, "engine.scheduler", partial(_scheduler, values["scheduler"]))
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


def _scheduler(choice: str | Mapping[str, Any]) -> str | SchedulingPolicy:
    if isinstance(choice, str):
        policy = get_scheduler(choice)
        return choice if is_built_in(policy) else policy
    return make_scheduler(choice["kind"], {name: choice[name] for name in choice if name != "kind"})


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
