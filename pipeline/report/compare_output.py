"""A comparison of two runs in the terminal and as a page."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from pipeline.report.compare import Comparison
from pipeline.report.page import asset, environment, script_hash
from pipeline.report.tables import ReportTable
from pipeline.units import format_cell

MOST_LINES = 10
MOST_ROWS = 2000
_WIDTH = 80


def print_comparison(comparison: Comparison, a: str, b: str, console: Console) -> None:
    """Print what changed, the largest changes first where there are many."""
    console.print(f"[bold]A[/bold] {escape(a)} ({escape(comparison.names[0])})", soft_wrap=True)
    console.print(f"[bold]B[/bold] {escape(b)} ({escape(comparison.names[1])})", soft_wrap=True)
    for sentence in comparison.sentences:
        console.print(escape(sentence))
    for table in comparison.tables:
        console.print(_terminal_table(table))
        if len(table.rows) > MOST_LINES:
            console.print(f"{len(table.rows) - MOST_LINES:,} more rows; --html FILE shows them.")


def _terminal_table(table: ReportTable) -> Table:
    shown = Table(
        title=table.caption, title_justify="left", box=box.SIMPLE_HEAD, width=_WIDTH, pad_edge=False,
        collapse_padding=True,
    )  # fmt: skip
    folded = _folded(table)
    kept = [place for place in range(len(table.headings)) if place not in folded]
    for place in kept:
        numeric = _is_numeric(table, place)
        shown.add_column(
            table.headings[place],
            justify="right" if numeric else "left",
            overflow="fold",
            ratio=None if numeric else 2 if place == 0 else 1,
        )
    for row in table.rows[:MOST_LINES]:
        lines = [f"{table.headings[place]}: {row[place]}" for place in folded if row[place] is not None]
        first = "\n".join([str(row[0]), *lines])
        shown.add_row(escape(first), *(escape(format_cell(row[place])) for place in kept[1:]))
    return shown


def _folded(table: ReportTable) -> list[int]:
    """Return the text columns that stand as lines in the first one, so that a table of numbers fits."""
    texts = [place for place in range(1, len(table.headings)) if not _is_numeric(table, place)]
    return texts if len(texts) < len(table.headings) - 1 else []


def _is_numeric(table: ReportTable, place: int) -> bool:
    return any(isinstance(row[place], float | int) for row in table.rows)


def comparison_page(comparison: Comparison) -> bytes:
    """Return the comparison as one HTML page."""
    script = asset("tables.js") + "\nsortableTables();\n"
    text: str = (
        environment()
        .get_template("compare.html.j2")
        .render(
            names=comparison.names,
            sentences=comparison.sentences,
            tables=[
                ReportTable(one.name, one.caption, one.headings, one.rows[:MOST_ROWS])
                for one in comparison.tables
            ],
            left_out=sum(max(len(one.rows) - MOST_ROWS, 0) for one in comparison.tables),
            style=asset("page.css"),
            script=script,
            script_hash=script_hash(script),
        )
    )
    return text.encode()
