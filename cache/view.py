"""A stored table as a read-only mapping from shape to record, decoded when asked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from cache.errors import ConflictError
from cache.schema import (
    COLUMNS,
    KEY_COLUMNS,
    PROVENANCE_COLUMNS,
    SCHEMA,
    VALUE_COLUMNS,
    key_of,
    key_values,
    record_of,
)
from cache.shapes import ForwardLatencyRecord, ForwardShapeKey


class Part:
    """The rows of one part file.

    Parameters
    ----------
    source : str
        Where they came from, for messages.
    table : pyarrow.Table
        The rows, of `SCHEMA`.
    """

    def __init__(self, source: str, table: pa.Table) -> None:
        self.source = source
        self.table = table
        self._columns: dict[str, list[Any]] = {}

    def keys(self) -> Iterator[tuple[Any, ...]]:
        """Yield the key of each row, as a tuple."""
        return zip(*(self.table[name].to_pylist() for name in KEY_COLUMNS), strict=True)

    def row(self, index: int, names: Sequence[str]) -> dict[str, Any]:
        """Return some columns of one row."""
        return {name: self._column(name)[index] for name in names}

    def record(self, index: int) -> ForwardLatencyRecord:
        """Return the record of one row."""
        return record_of(self.row(index, VALUE_COLUMNS))

    def _column(self, name: str) -> list[Any]:
        if name not in self._columns:
            self._columns[name] = self.table[name].to_pylist()
        return self._columns[name]


class TableView(Mapping[ForwardShapeKey, ForwardLatencyRecord]):
    """The records of some part files of one table.

    Parameters
    ----------
    parts : sequence of Part
        Where the records are.
    before : TableView, optional
        A view whose parts come first, and need not be indexed again.

    Raises
    ------
    ConflictError
        When two rows of one key differ in any value (provenance may differ).
    """

    def __init__(self, parts: Sequence[Part], before: TableView | None = None) -> None:
        self.parts: list[Part] = [] if before is None else list(before.parts)
        self._rows: dict[tuple[Any, ...], tuple[Part, int]] = {} if before is None else dict(before._rows)
        for part in parts:
            self._index(part)

    def _index(self, part: Part) -> None:
        self.parts.append(part)
        for index, key in enumerate(part.keys()):
            first = self._rows.setdefault(key, (part, index))
            if first != (part, index):
                check_equal_rows(key, *first, part, index)

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[ForwardShapeKey]:
        return (key_of(key) for key in self._rows)

    def __getitem__(self, key: ForwardShapeKey) -> ForwardLatencyRecord:
        part, index = self._rows[key_values(key)]
        return part.record(index)

    def __contains__(self, key: object) -> bool:
        return isinstance(key, ForwardShapeKey) and key_values(key) in self._rows

    def provenance(self, key: ForwardShapeKey) -> dict[str, Any]:
        """Return runner, runner_version, computed_at and call_s of a record."""
        part, index = self._rows[key_values(key)]
        return part.row(index, PROVENANCE_COLUMNS)

    def distinct(self) -> pa.Table:
        """Return all rows as one table, each key once, in the order of the keys."""
        rows = [part.row(index, COLUMNS) for _, (part, index) in sorted(self._rows.items(), key=_key_order)]
        return pa.Table.from_pylist(rows, SCHEMA)


def check_equal_rows(key: tuple[Any, ...], one: Part, one_index: int, two: Part, two_index: int) -> None:
    """Refuse two rows of one key that differ.

    Raises
    ------
    ConflictError
        Naming the shape, both values and both sources.
    """
    first, second = one.record(one_index).as_json(), two.record(two_index).as_json()
    if first == second:
        return
    name = next(name for name in first if first[name] != second[name])
    raise ConflictError(
        f"Two records of one shape ({key_of(key)}) differ in {name}: {first[name]} in "
        f"{one.source} and {second[name]} in {two.source}; the runner is not "
        "deterministic, or one file is wrong: remove the wrong file."
    )


def _key_order(item: tuple[tuple[Any, ...], object]) -> tuple[Any, ...]:
    *numbers, segments = item[0]
    return (*(-1 if value is None else int(value) for value in numbers), segments or "")
