"""The Dask graph of a sweep.

Per cell: plan -> dedupe -> prefetch -> replay -> aggregate. Cells that differ only in model, device or limits
share the plan and dedupe tasks. The prefetch tasks of one identity form a chain, so one writer per identity
exists in a run and no shape is computed twice; different identities run in parallel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dask.delayed import Delayed, delayed

from cache.identity import content_digest
from pipeline.cells import Cell
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
    """Return, per cell, the tasks whose results are wanted: the aggregate and the prefetch's count.

    Task names start with the stage and end with the cell's index, which progress reads.
    """
    plans: dict[str, tuple[Delayed, Delayed]] = {}
    last: dict[str, Delayed] = {}
    wanted = []
    for cell in cells:
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
            last.get(cell.identity.id),
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
