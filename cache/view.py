"""A stored table as a read-only mapping from shape to record, decoded when asked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from cache.errors import ConflictError
from cache.schema import (
    KEY_COLUMNS,
    PROVENANCE_COLUMNS,
    SCHEMA,
    VALUE_COLUMNS,
    KeyRow,
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

    @property
    def name(self) -> str:
        """The file's name without its folder."""
        return self.source.rpartition("/")[2]

    def key_rows(self) -> Iterator[KeyRow]:
        """Yield the key of each row, as a tuple."""
        return zip(*(_to_list(self.table[name]) for name in KEY_COLUMNS), strict=True)

    def row(self, index: int, names: Sequence[str]) -> dict[str, Any]:
        """Return some columns of one row."""
        return {name: self.column(name)[index] for name in names}

    def record(self, index: int) -> ForwardLatencyRecord:
        """Return the record of one row."""
        return record_of(self.row(index, VALUE_COLUMNS))

    def column(self, name: str) -> list[Any]:
        """Return the values of one column."""
        if name not in self._columns:
            self._columns[name] = _to_list(self.table[name])
        return self._columns[name]

    def age_order(self, index: int) -> tuple[Any, ...]:
        """Return what orders rows of one key from the earliest computed on, without ties of unlike rows."""
        first = self.row(index, ("computed_at", "call_s", "runner", "runner_version"))
        return *((value is not None, value) for value in first.values()), repr(self.row(index, VALUE_COLUMNS))


def _to_list(column: pa.ChunkedArray) -> list[Any]:
    """Return a column as Python values.

    Columns of whole numbers take the way over NumPy, ten times as fast, and over DLPack, because
    pyarrow's own `to_numpy` imports pandas.
    """
    if column.null_count == len(column):
        return [None] * len(column)
    if column.null_count == 0 and pa.types.is_boolean(column.type):
        return [value == 1 for value in _to_list(column.cast(pa.uint8()))]
    if column.null_count == 0 and pa.types.is_integer(column.type):
        return [value for chunk in column.chunks for value in np.from_dlpack(chunk).tolist()]
    return list(column.to_pylist())


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
        self._rows: dict[KeyRow, tuple[Part, int]] = {} if before is None else dict(before._rows)
        for part in parts:
            self._index(part)

    def _index(self, part: Part) -> None:
        self.parts.append(part)
        for index, key in enumerate(part.key_rows()):
            first, first_index = self._rows.setdefault(key, (part, index))
            if first is part and first_index == index:
                continue
            check_equal_rows(key, first, first_index, part, index)
            if part.age_order(index) < first.age_order(first_index):
                self._rows[key] = part, index

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

    def out_of_memory_rows(self) -> dict[KeyRow, bool]:
        """Return, for the row of each key, whether its record is out of memory."""
        return {key: part.column("memory_left_gb")[index] < 0 for key, (part, index) in self._rows.items()}

    def record_rows(self) -> dict[KeyRow, tuple[Any, ...]]:
        """Return, for the row of each key, the values of its record in the order of `VALUE_COLUMNS`."""
        return {
            key: tuple(part.column(name)[index] for name in VALUE_COLUMNS)
            for key, (part, index) in self._rows.items()
        }

    def distinct(self) -> pa.Table:
        """Return all rows as one table, each key once as first computed, in the order of the keys.

        The same records give the same table, however they are spread over parts.
        """
        offsets: dict[int, int] = {}
        total = 0
        for part in self.parts:
            offsets[id(part)] = total
            total += part.table.num_rows
        rows = sorted(self._rows.items(), key=_key_order)
        if not rows:
            return SCHEMA.empty_table()
        everything = pa.concat_tables([part.table for part in self.parts])
        taken = everything.take(pa.array([offsets[id(part)] + index for _, (part, index) in rows]))
        return taken.combine_chunks()


def check_equal_rows(key: KeyRow, one: Part, one_index: int, two: Part, two_index: int) -> None:
    """Refuse two rows of one key that differ.

    Raises
    ------
    ConflictError
        Naming the shape, both values and both sources.
    """
    first, second = one.row(one_index, VALUE_COLUMNS), two.row(two_index, VALUE_COLUMNS)
    # Texts are compared too, so the order of estimators counts, and NaN equals itself.
    if first == second or repr(first) == repr(second):
        return
    name = next(name for name in first if first[name] != second[name])
    raise ConflictError(
        f"Two records of one shape ({key_of(key)}) differ in {name}: {first[name]} in "
        f"{one.source} and {second[name]} in {two.source}; the runner is not "
        "deterministic, or one file is wrong: remove the wrong file."
    )


def _key_order(item: tuple[KeyRow, object]) -> tuple[tuple[bool, Any], ...]:
    return tuple((value is not None, value) for value in item[0])
