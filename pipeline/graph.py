"""The Dask graph of a sweep.

Per cell: plan -> dedupe -> prefetch -> replay -> aggregate. Cells that differ only in model, device or limits
share the plan and dedupe tasks. A cell whose scheduler looks at latencies plans inside its prefetch, and a
cell that searches is one task. The prefetch and search tasks of one identity form a chain, so one writer per
identity exists in a run and no shape is computed twice; different identities run in parallel.
"""

from __future__ import annotations

import uuid
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
    """Return, per cell, the tasks whose results are wanted: the aggregate (or the search) and the counts."""
    graph = _Graph(places)
    return [graph.add(cell) for cell in cells]


def stage_and_cell(name: str) -> tuple[str, int | None]:
    """Return the stage of a task by its name, and its cell's index; None where cells share the task."""
    stage, index, _ = name.split("-")
    return stage, None if stage in ("plan", "dedupe") else int(index)


class _Graph:
    """The tasks made so far.

    A task's name is its stage, its cell's index (see `stage_and_cell`) and a mark of this graph, because
    a cluster keeps results by name and serves other runs too.
    """

    def __init__(self, places: Places) -> None:
        self._places = places
        self._mark = uuid.uuid4().hex
        self._plans: dict[str, tuple[Delayed, Delayed]] = {}
        self._last: dict[str, Delayed] = {}

    def add(self, cell: Cell) -> tuple[Delayed, Delayed]:
        """Add a cell's tasks, and return those whose results are wanted."""
        if cell.search is not None:
            search = partial(search_task, cell, cell.search, self._places)
            found = self._task("search", cell.index, search, self._last.get(cell.identity.id))
            counts = self._task("done", cell.index, searched_counts, found)
        else:
            found, counts = self._staged(cell)
        self._last[cell.identity.id] = counts
        return found, counts

    def _staged(self, cell: Cell) -> tuple[Delayed, Delayed]:
        before = self._last.get(cell.identity.id)
        if cell.plans_dry:
            planned, keys = self._planned(cell)
            prefetch = partial(prefetch_task, cell.index, cell.spec, cell.identity, places=self._places)
            prefetched = self._task("prefetch", cell.index, prefetch, planned, keys, before)
        else:
            walk = partial(walk_task, cell.index, cell.spec, cell.identity, cell.plan_inputs(), self._places)
            prefetched = self._task("prefetch", cell.index, walk, before)
            planned = self._task("plans", cell.index, plans_task, prefetched)
        candidates = cell.candidates()
        replay = partial(replay_task, candidates, places=self._places)
        times = self._task("replay", cell.index, replay, planned, prefetched)
        aggregate = partial(aggregate_task, candidates)
        results = self._task("aggregate", cell.index, aggregate, planned, times, prefetched)
        return results, self._task("done", cell.index, done_task, prefetched)

    def _planned(self, cell: Cell) -> tuple[Delayed, Delayed]:
        """Return the plan and dedupe tasks of a cell, those of an earlier cell where they are the same."""
        inputs = cell.plan_inputs()
        name = content_digest(repr(inputs))[:16]
        if name not in self._plans:
            planned = self._task("plan", name, partial(plan_task, inputs, self._places))
            self._plans[name] = planned, self._task("dedupe", name, dedupe_task, planned)
        return self._plans[name]

    def _task(
        self, stage: str, index: int | str, function: Callable[..., Any], *dependencies: Delayed | None
    ) -> Delayed:
        """Return a task. Its data are bound to the function: Dask would search arguments for tasks inside."""
        name = f"{stage}-{index}-{self._mark}"
        task: Delayed = delayed(function, traverse=False)(*dependencies, dask_key_name=name)
        return task
