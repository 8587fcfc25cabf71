"""`shapecast plan`."""

from __future__ import annotations

import json
from pathlib import Path

import typer
from rich.markup import escape
from rich.table import Table

from pipeline.cells import expand
from pipeline.config import load_config
from pipeline.places import places_for
from pipeline.survey import Survey, survey
from pipeline.terminal import console
from pipeline.units import format_duration


def plan_command(config: Path, tables: str | None, *, as_json: bool) -> None:
    """Print what a run would do."""
    found = survey(expand(load_config(config)), places_for(tables))
    if as_json:
        typer.echo(json.dumps(found.as_json(), indent=2))
        return
    _print(found)


def _print(found: Survey) -> None:
    out = console()
    table = Table()
    table.add_column("table")
    table.add_column("deployment")
    for name in ("cells", "shapes needed", "known", "to compute, at most", "estimated time"):
        table.add_column(name, justify="right")
    for one in found.tables:
        table.add_row(
            one.identity.id[:12],
            escape(one.identity.label),
            f"{one.cells:,}",
            f"{one.needed:,}",
            f"{one.known:,}",
            f"{len(one.missing):,}",
            format_duration(one.compute_s),
        )
    out.print(table)
    out.print(
        f"A run has {found.cells:,} cells with {found.candidates:,} listed candidates. They need "
        f"{found.needed:,} shapes: {found.known:,} known, {found.missing:,} to compute at most"
        f"{_time(found)}.",
        soft_wrap=True,
    )
    if found.open_cells:
        out.print(
            "Of the cells that decide what they need while they run (searches, schedulers that look at "
            f"latencies), {found.open_cells:,} meet a shape that has no record; what they need behind it "
            "depends on it and is not counted.",
            soft_wrap=True,
        )


def _time(found: Survey) -> str:
    if not found.missing:
        return ""
    if found.compute_s is None:
        return ", which takes a time unknown before the first call is recorded"
    return f", about {format_duration(found.compute_s)} of runner calls"
