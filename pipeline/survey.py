"""What a run would do: which shapes its candidates need, which have a record, which must be computed.

Decided from plans and stored records alone: no runner is imported, and nothing is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cache.errors import MissingShapeError
from cache.identity import TableIdentity, content_digest
from cache.schema import KeyRow, key_of, key_values
from cache.session import TableSession
from cache.shapes import ForwardLatencyRecord, ForwardShapeKey
from cache.store import ShapeStore, StoredTable
from cache.view import TableView
from pipeline.cells import Cell
from pipeline.frozen import FrozenError
from pipeline.lazy_task import walked
from pipeline.search_task import searched
from pipeline.tasks import Places, plan_task

_NAMED_TABLES = 3
_NAMED_SHAPES = 3


@dataclass(frozen=True)
class TableSurvey:
    """What a run would need of one table.

    Attributes
    ----------
    identity : TableIdentity
        The table.
    cells : int
        Cells of the sweep that use it.
    known : int
        Shapes that have a record and are reached.
    missing : tuple of ForwardShapeKey
        Shapes without one, in order of first use. A run computes at most these: an out-of-memory record
        among them stops its candidate.
    compute_s : float or None
        Estimated time of the missing calls, s, from recorded ones; None where none is recorded.
    open_cells : int
        Cells that decide what they need while they run, and meet a missing shape. What they need behind
        it depends on its record, so it is not counted.
    """

    identity: TableIdentity
    cells: int
    known: int
    missing: tuple[ForwardShapeKey, ...]
    compute_s: float | None
    open_cells: int = 0

    @property
    def needed(self) -> int:
        """Shapes that the candidates reach, as far as is known."""
        return self.known + len(self.missing)


@dataclass(frozen=True)
class Survey:
    """What a run would do.

    Attributes
    ----------
    cells, candidates : int
        Size of the sweep.
    tables : tuple of TableSurvey
        Per identity, in the order of the sweep.
    """

    cells: int
    candidates: int
    tables: tuple[TableSurvey, ...]

    @property
    def known(self) -> int:
        """Shapes that have a record, over all tables."""
        return sum(table.known for table in self.tables)

    @property
    def missing(self) -> int:
        """Shapes that must be computed at most, over all tables."""
        return sum(len(table.missing) for table in self.tables)

    @property
    def needed(self) -> int:
        """Shapes that the candidates reach, over all tables."""
        return self.known + self.missing

    @property
    def open_cells(self) -> int:
        """Cells of which only the first missing shape is known."""
        return sum(table.open_cells for table in self.tables)

    @property
    def compute_s(self) -> float | None:
        """Estimated time of all missing calls one after another, s; None when a table has no estimate."""
        times = [table.compute_s for table in self.tables]
        return None if None in times else sum(time for time in times if time is not None)

    def as_json(self) -> dict[str, Any]:
        """Return the survey as plain JSON values."""
        return {
            "cells": self.cells,
            "candidates": self.candidates,
            "shapes_needed": self.needed,
            "shapes_known": self.known,
            "shapes_to_compute_at_most": self.missing,
            "compute_s": self.compute_s,
            "open_cells": self.open_cells,
            "tables": [
                {
                    "id": table.identity.id,
                    "label": table.identity.label,
                    "cells": table.cells,
                    "shapes_needed": table.needed,
                    "shapes_known": table.known,
                    "shapes_to_compute_at_most": len(table.missing),
                    "compute_s": table.compute_s,
                    "open_cells": table.open_cells,
                }
                for table in self.tables
            ],
        }


@dataclass
class _Need:
    """What the cells of one identity need: key lists, one per candidate."""

    identity: TableIdentity
    cells: int = 0
    key_lists: dict[int, list[KeyRow]] = field(default_factory=dict)
    walks: list[Cell] = field(default_factory=list)


def survey(cells: Sequence[Cell], places: Places) -> Survey:
    """Return what a run of `cells` would do.

    Raises
    ------
    StoreError
        When the tables cannot be read.
    """
    plans: dict[str, list[list[KeyRow]]] = {}
    needs: dict[str, _Need] = {}
    for cell in cells:
        need = needs.setdefault(cell.identity.id, _Need(cell.identity))
        need.cells += 1
        if cell.search is not None or not cell.plans_dry:
            need.walks.append(cell)
            continue
        inputs = cell.plan_inputs()
        name = content_digest(repr(inputs))
        if name not in plans:
            plans[name] = [[key_values(key) for key in one.keys] for one in plan_task(inputs, places)]
        # Cells share plans, and the same list need not be walked twice.
        need.key_lists.update((id(keys), keys) for keys in plans[name])
    store = ShapeStore(places.tables)
    views = {name: store.table(need.identity).load(tidy=False) for name, need in needs.items()}
    seconds = _CallTimes(views, needs)
    tables = []
    for name, need in needs.items():
        known, missing = _reach(need.key_lists.values(), views[name].out_of_memory_rows())
        session = _SurveySession(store.table(need.identity), views[name])
        met = [_walk(cell, session, places, known) for cell in need.walks]
        missing.update(dict.fromkeys(key_values(key) for key in met if key is not None))
        keys = tuple(key_of(row) for row in missing)
        time_s, open_cells = seconds.estimate(need.identity, keys), sum(key is not None for key in met)
        tables.append(TableSurvey(need.identity, need.cells, len(known), keys, time_s, open_cells))
    return Survey(len(cells), sum(len(cell.batch_sizes) for cell in cells), tuple(tables))


def _walk(cell: Cell, session: _SurveySession, places: Places, known: set[KeyRow]) -> ForwardShapeKey | None:
    """Walk a cell as far as records lead; take note of those, and return the shape at which it ends."""
    try:
        if cell.search is not None:
            searched(cell, cell.search, session, places)
        else:
            walked(cell.index, cell.spec, cell.candidates(), session, cell.identity)
    except FrozenError as error:
        return error.key
    finally:
        known.update(session.reached)
    return None


class _SurveySession(TableSession):
    """A session that computes nothing and takes note of what is asked."""

    def __init__(self, table: StoredTable, view: TableView) -> None:
        super().__init__(table, view=view)
        self.reached: set[KeyRow] = set()

    def get_or_lock(self, key: ForwardShapeKey, check_stop: Callable[[], None]) -> ForwardLatencyRecord:
        """Return a record, or end the walk that asks for a missing one."""
        record = self.get(key)
        if record is None:
            raise FrozenError(key)
        self.reached.add(key_values(key))
        return record


def _reach(
    key_lists: Iterable[list[KeyRow]], records: Mapping[KeyRow, bool]
) -> tuple[set[KeyRow], dict[KeyRow, None]]:
    """Return the known shapes that are reached, and the missing ones in order of first use.

    A candidate needs nothing behind its first out-of-memory record.
    """
    known: set[KeyRow] = set()
    missing: dict[KeyRow, None] = {}
    for keys in key_lists:
        for key in keys:
            out_of_memory = records.get(key)
            if out_of_memory is None:
                missing[key] = None
                continue
            known.add(key)
            if out_of_memory:
                break
    return known, missing


class _CallTimes:
    """Mean recorded call times, s: per table and phase, or of the runner's other tables in the sweep."""

    def __init__(self, views: Mapping[str, TableView], needs: Mapping[str, _Need]) -> None:
        self._times: dict[tuple[str, bool], list[float]] = {}
        for name, view in views.items():
            for part in view.parts:
                for is_decode, call_s in zip(part.column("is_decode"), part.column("call_s"), strict=True):
                    for of in (name, needs[name].identity.runner):
                        total = self._times.setdefault((of, is_decode), [0.0, 0.0])
                        total[0] += call_s
                        total[1] += 1

    def estimate(self, identity: TableIdentity, keys: Sequence[ForwardShapeKey]) -> float | None:
        """Return the time of calls for `keys`, s."""
        total_s = 0.0
        for phase in (False, True):
            count = sum(1 for key in keys if key.is_decode is phase)
            mean_s = self._mean_s(identity, phase)
            if count and mean_s is None:
                return None
            total_s += count * (mean_s or 0.0)
        return total_s

    def _mean_s(self, identity: TableIdentity, phase: bool) -> float | None:
        for of in (identity.id, identity.runner):
            for key in ((of, phase), (of, not phase)):
                if key in self._times:
                    total_s, calls = self._times[key]
                    return total_s / calls
        return None


def refuse_missing(found: Survey) -> None:
    """Refuse a frozen run that lacks a record.

    Raises
    ------
    MissingShapeError
        With the count per table and its first shapes.
    """
    lacking = [table for table in found.tables if table.missing]
    if not lacking:
        return
    parts = [
        f"{len(table.missing):,} in {table.identity.id[:12]} ({table.identity.label}), first "
        + ", ".join(f"({key})" for key in table.missing[:_NAMED_SHAPES])
        for table in lacking[:_NAMED_TABLES]
    ]
    if len(lacking) > _NAMED_TABLES:
        more = len(lacking) - _NAMED_TABLES
        parts.append(f"the rest in {more:,} more table{'s' if more > 1 else ''}")
    raise MissingShapeError(
        f"A frozen run computes nothing, but {found.missing:,} of {found.needed:,} shapes have no record: "
        f"{'; '.join(parts)}. Run without --frozen, or name tables that hold them with --tables."
    )
