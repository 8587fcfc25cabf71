"""The Dask graph of a sweep.

Per cell: plan -> dedupe -> prefetch -> replay -> aggregate. Cells that differ only in model, device or limits
share the plan and dedupe tasks. A cell that searches is one task. The prefetch and search tasks of one
identity form a chain, so one writer per identity exists in a run and no shape is computed twice; different
identities run in parallel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dask.delayed import Delayed, delayed

from cache.identity import content_digest
from pipeline.cells import Cell
from pipeline.search_task import search_task, searched_counts
from pipeline.tasks import (
    Places,
    aggregate_task,
    dedupe_task,
    done_task,
    plan_task,
    prefetch_task,
    replay_task,
)


def build_graph(cells: Sequence[Cell], places: Places) -> list[tuple[Delayed, Delayed]]:
    """Return, per cell, the tasks whose results are wanted: the aggregate (or the search) and the counts.

    Task names start with the stage and end with the cell's index, which progress reads.
    """
    plans: dict[str, tuple[Delayed, Delayed]] = {}
    last: dict[str, Delayed] = {}
    wanted = []
    for cell in cells:
        before = last.get(cell.identity.id)
        if cell.search is not None:
            searched = _task(search_task, f"search-{cell.index}", cell, cell.search, places, before)
            done = _task(searched_counts, f"done-{cell.index}", searched)
            last[cell.identity.id] = done
            wanted.append((searched, done))
            continue
        inputs = cell.plan_inputs()
        name = content_digest(repr(inputs))[:16]
        if name not in plans:
            planned = _task(plan_task, f"plan-{name}", inputs, places)
            plans[name] = planned, _task(dedupe_task, f"dedupe-{name}", planned)
        planned, keys = plans[name]
        prefetched = _task(
            prefetch_task,
            f"prefetch-{cell.index}",
            cell.index,
            cell.spec,
            cell.identity,
            planned,
            keys,
            places,
            before,
        )
        done = _task(done_task, f"done-{cell.index}", prefetched)
        last[cell.identity.id] = done
        candidates = cell.candidates()
        times = _task(replay_task, f"replay-{cell.index}", candidates, planned, prefetched, places)
        results = _task(aggregate_task, f"aggregate-{cell.index}", candidates, planned, times, prefetched)
        wanted.append((results, done))
    return wanted


def _task(function: Callable[..., Any], name: str, *arguments: Any) -> Delayed:
    task: Delayed = delayed(function, traverse=False)(*arguments, dask_key_name=name)
    return task
