"""`shapecast tables ls` and `show`: what is kept, and how it came about."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cache.errors import ConflictError, StoreError
from cache.spool import spool_of, unsent_records
from cache.store import LAST_USED_NAME, EmptyTableError, ShapeStore, StoredTable, short_id
from cache.view import TableView
from pipeline.units import format_duration


@dataclass(frozen=True)
class TableFacts:
    """What is known of a table without its records.

    Attributes
    ----------
    records, files, bytes : int
        Distinct records, part files, and the size of all files.
    computed : tuple of datetime or None
        When the first and the last record were computed.
    last_used : str or None
        Day on which a run last used it.
    trouble : str or None
        Why it cannot be read as it is.
    """

    records: int
    files: int
    bytes: int
    computed: tuple[datetime, datetime] | None
    last_used: str | None
    trouble: str | None


def table_facts(table: StoredTable) -> TableFacts:
    """Return what a table holds; changes nothing."""
    sizes = table.folder.sizes()
    found = table.examine()
    trouble = found.problems[0] if found.problems else None
    try:
        records = len(TableView(found.parts))
    except ConflictError as error:
        records, trouble = 0, str(error)
    times = [time for part in found.parts for time in part.column("computed_at")]
    last_used = None
    with suppress(FileNotFoundError, StoreError):
        last_used = table.folder.read(LAST_USED_NAME).decode(errors="replace").strip()
    return TableFacts(
        records,
        len(found.parts),
        sum(sizes.values()),
        (min(times), max(times)) if times else None,
        last_used,
        trouble,
    )


def print_tables(store: ShapeStore, out: Console) -> None:
    """Print all tables of a store."""
    table = Table()
    for name in ("table", "deployment", "runner"):
        table.add_column(name, overflow="fold")
    for name in ("records", "files", "size", "last used"):
        table.add_column(name, justify="right")
    troubles = []
    for table_id in store.ids():
        try:
            stored = store.open(table_id)
        except EmptyTableError:
            continue
        except StoreError as error:
            troubles.append(str(error))
            continue
        facts = table_facts(stored)
        if facts.trouble:
            troubles.append(facts.trouble)
        table.add_row(
            short_id(table_id),
            escape(stored.identity.label),
            escape(stored.identity.runner),
            f"{facts.records:,}",
            f"{facts.files:,}",
            format_bytes(facts.bytes),
            facts.last_used or "-",
        )
    if table.row_count:
        out.print(table)
    elif not troubles:
        out.print(no_tables(store), soft_wrap=True, markup=False)
    for trouble in troubles:
        out.print(escape(trouble), soft_wrap=True)
    waiting = unsent_records(store)
    spool = spool_of(store)
    if waiting and spool is not None:
        out.print(
            f"{waiting:,} records in {escape(str(spool.root))} wait for the next run to send them.",
            soft_wrap=True,
        )


def no_tables(store: ShapeStore) -> str:
    """Return a sentence for a store without tables."""
    return f"There are no tables in {store.root}."


def print_table(table: StoredTable, out: Console) -> None:
    """Print the identity of a table in full, and where its records come from."""
    identity, facts, found = table.identity, table_facts(table), table.examine()
    rows: list[tuple[str, str]] = [
        ("table", identity.id),
        ("label", identity.label),
        ("folder", str(table.folder)),
        ("records", f"{facts.records:,} in {facts.files:,} file{'' if facts.files == 1 else 's'}"),
        ("size", format_bytes(facts.bytes)),
        ("last used", facts.last_used or "-"),
    ]
    if facts.computed:
        rows.append(("computed", " to ".join(time.isoformat(timespec="seconds") for time in facts.computed)))
    call_s = sum(value for part in found.parts for value in part.column("call_s"))
    rows.append(("runner calls", f"{format_duration(call_s)} in all"))
    rows.append(
        ("come about", _sources(TableView([])) if facts.trouble else _sources(TableView(found.parts)))
    )
    if found.quarantined:
        rows.append(("quarantine", ", ".join(found.quarantined)))
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        out.print(f"{name:<{width}}  {escape(value)}", soft_wrap=True)
    out.print("identity")
    out.print(escape(json.dumps(identity.as_json(), indent=2, sort_keys=True)), soft_wrap=True)
    for problem in [facts.trouble] if facts.trouble else []:
        out.print(escape(problem), soft_wrap=True)


def _sources(view: TableView) -> str:
    """Return the kinds of source in words: how many records rest on each, and with which share."""
    counts: Counter[str] = Counter()
    shares: defaultdict[str, float] = defaultdict(float)
    for part in view.parts:
        for text in part.column("sources_json"):
            sources = json.loads(text) or {"unknown": 1.0}
            counts.update(sources.keys())
            for kind, share in sources.items():
                shares[kind] += share
    total = sum(shares.values())
    return ", ".join(
        f"{100 * shares[kind] / total:.1f}% {kind} (in {counts[kind]:,} records)" for kind in sorted(shares)
    ) or "-"  # fmt: skip


def format_bytes(size: int) -> str:
    """Return a size in the unit that suits it."""
    if size < 1024:
        return f"{size} B"
    if size < 1024**2:
        return f"{size / 1024:.0f} KiB"
    return f"{size / 1024**2:,.1f} MiB"
