"""Two tables side by side: joined when they agree, told apart when they need not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from cache.identity import TableIdentity
from cache.schema import KeyRow, key_of
from cache.shapes import ForwardShapeKey
from cache.store import StoredTable
from cache.view import Part, TableView


def add_records(table: StoredTable, parts: Sequence[Part]) -> int:
    """Publish the records of `parts` that a table lacks, with their provenance, and return their number.

    Raises
    ------
    ConflictError
        When a record differs from one of the table; nothing is written then.
    """
    missing = missing_records(table, parts)
    if missing.num_rows:
        table.publish(missing)
    return int(missing.num_rows)


def missing_records(table: StoredTable, parts: Sequence[Part]) -> pa.Table:
    """Return the records of `parts` that a table lacks.

    Raises
    ------
    ConflictError
        When a record differs from one of the table.
    """
    own = table.load()
    TableView(parts, own)
    known = own.out_of_memory_rows()
    theirs = TableView(parts).distinct()
    return theirs.filter(pa.array([key not in known for key in Part("", theirs).key_rows()], pa.bool_()))


@dataclass(frozen=True)
class Difference:
    """How two tables differ.

    Attributes
    ----------
    fields : list of (str, object, object)
        Fields of the identity that differ, with both values; nested ones with a dot.
    only_first, only_second : int
        Shapes that one table alone has.
    equal : int
        Shapes whose records are equal in both.
    changed : list of (ForwardShapeKey, float, float)
        Shapes whose records differ, with both latencies, ms; the largest relative change first.
    """

    fields: list[tuple[str, object, object]]
    only_first: int
    only_second: int
    equal: int
    changed: list[tuple[ForwardShapeKey, float, float]]


def difference(
    first: TableView, first_identity: TableIdentity, second: TableView, second_identity: TableIdentity
) -> Difference:
    """Return how two tables differ."""
    one, two = first.record_rows(), second.record_rows()
    shared = [key for key in one if key in two]
    changed: list[tuple[KeyRow, float, float]] = []
    for key in shared:
        if one[key] != two[key]:
            changed.append((key, one[key][0], two[key][0]))
    changed.sort(key=lambda item: -abs(relative_change(item[1], item[2])))
    return Difference(
        identity_difference(first_identity, second_identity),
        len(one) - len(shared),
        len(two) - len(shared),
        len(shared) - len(changed),
        [(key_of(key), before, after) for key, before, after in changed],
    )


def relative_change(before: float, after: float) -> float:
    """Return the change from `before` to `after` as a share of `before`."""
    if before == after:
        return 0.0
    return (after - before) / before if before else float("inf")


def identity_difference(one: TableIdentity, two: TableIdentity) -> list[tuple[str, object, object]]:
    """Return the fields in which two identities differ, nested ones with a dot, and both values."""
    first, second = _flat(one), _flat(two)
    names = [*first, *(name for name in second if name not in first)]
    return [
        (name, first.get(name), second.get(name)) for name in names if first.get(name) != second.get(name)
    ]


def _flat(identity: TableIdentity) -> dict[str, object]:
    flat: dict[str, object] = {}
    for name, value in identity.as_json().items():
        if isinstance(value, dict):
            flat.update({f"{name}.{inner}": item for inner, item in value.items()})
        else:
            flat[name] = value
    return flat
