"""The Dask graph of a sweep.

Per cell: plan -> dedupe -> prefetch -> replay -> aggregate. Cells that differ only in model, device or limits
share the plan and dedupe tasks. A cell whose scheduler looks at latencies plans inside its prefetch, and a
cell that searches is one task. The prefetch and search tasks of one identity form a chain, so one writer per
identity exists in a run and no shape is computed twice; different identities run in parallel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from dask.delayed import Delayed, delayed

from cache.identity import content_digest
from pipeline.cells import Cell
from pipeline.lazy_task import plans_task, walk_task
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
            searched = _task(f"search-{cell.index}", partial(search_task, cell, cell.search, places), before)
            done = _task(f"done-{cell.index}", searched_counts, searched)
            last[cell.identity.id] = done
            wanted.append((searched, done))
            continue
        name = f"prefetch-{cell.index}"
        if cell.plans_dry:
            planned, keys = _planned(cell, places, plans)
            prefetch = partial(prefetch_task, cell.index, cell.spec, cell.identity, places=places)
            prefetched = _task(name, prefetch, planned, keys, before)
        else:
            walk = partial(walk_task, cell.index, cell.spec, cell.identity, cell.plan_inputs(), places)
            prefetched = _task(name, walk, before)
            planned = _task(f"plans-{cell.index}", plans_task, prefetched)
        done = _task(f"done-{cell.index}", done_task, prefetched)
        last[cell.identity.id] = done
        candidates = cell.candidates()
        replay = partial(replay_task, candidates, places=places)
        times = _task(f"replay-{cell.index}", replay, planned, prefetched)
        results = _task(
            f"aggregate-{cell.index}", partial(aggregate_task, candidates), planned, times, prefetched
        )
        wanted.append((results, done))
    return wanted


def _planned(
    cell: Cell, places: Places, plans: dict[str, tuple[Delayed, Delayed]]
) -> tuple[Delayed, Delayed]:
    """Return the plan and dedupe tasks of a cell, those of an earlier cell where they are the same."""
    inputs = cell.plan_inputs()
    name = content_digest(repr(inputs))[:16]
    if name not in plans:
        planned = _task(f"plan-{name}", partial(plan_task, inputs, places))
        plans[name] = planned, _task(f"dedupe-{name}", dedupe_task, planned)
    return plans[name]


def _task(name: str, function: Callable[..., Any], *dependencies: Delayed | None) -> Delayed:
    """Return a task. Its data are bound to the function: Dask would search arguments for tasks inside."""
    task: Delayed = delayed(function, traverse=False)(*dependencies, dask_key_name=name)
    return task
