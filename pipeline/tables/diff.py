"""`shapecast tables diff`: what differs between two tables, and by how much."""

from __future__ import annotations

import statistics

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cache.compare import difference, relative_change
from cache.store import ShapeStore
from pipeline.tables.find import read_table_or_file
from pipeline.units import format_number

_SHOWN = 10


def print_difference(store: ShapeStore, first: str, second: str, out: Console) -> None:
    """Print how two tables, or exported files, differ."""
    one, one_identity = read_table_or_file(store, first)
    two, two_identity = read_table_or_file(store, second)
    found = difference(one, one_identity, two, two_identity)
    if not found.fields:
        out.print("Both are of one identity.")
    else:
        table = Table("identity", escape(first), escape(second), title_justify="left")
        for name, before, after in found.fields:
            table.add_row(name, escape(str(before)), escape(str(after)))
        out.print(table)
    out.print(
        f"{found.equal:,} shapes have equal records, {len(found.changed):,} differ, {found.only_first:,} are "
        f"only in {escape(first)}, {found.only_second:,} only in {escape(second)}.",
        soft_wrap=True,
    )
    if not found.changed:
        return
    changes = [relative_change(before, after) for _, before, after in found.changed]
    out.print(
        f"Of those that differ, the latency changes by {_percent(statistics.median(changes))} in the median, "
        f"from {_percent(min(changes))} to {_percent(max(changes))}; the largest:",
        soft_wrap=True,
    )
    table = Table("shape")
    for name in (f"ms in {first}", f"ms in {second}", "change"):
        table.add_column(escape(name), justify="right")
    for (key, before, after), change in list(zip(found.changed, changes, strict=True))[:_SHOWN]:
        table.add_row(str(key), format_number(before), format_number(after), _percent(change))
    out.print(table)


def _percent(share: float) -> str:
    return f"{100 * share:+.2f}%"
