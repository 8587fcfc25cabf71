"""`shapecast models` and `shapecast devices`."""

from __future__ import annotations

from rich.markup import escape
from rich.table import Table

from pipeline.terminal import console
from stages.runners.registry import runner_options


def print_models(runner: str) -> None:
    """Print the models that a runner knows by name."""
    _print(runner_options(runner).known_models(), runner, "models")


def print_devices(runner: str) -> None:
    """Print the devices that a runner knows by name."""
    _print(runner_options(runner).known_devices(), runner, "devices")


def _print(rows: list[dict[str, str]], runner: str, what: str) -> None:
    out = console()
    if not rows:
        out.print(f"The runner {escape(runner)} knows no {what} by name; give paths, or names of your own.")
        return
    table = Table()
    first = next(iter(rows[0]))
    for name in rows[0]:
        table.add_column(name, no_wrap=name == first)
    for row in rows:
        table.add_row(*(escape(value) for value in row.values()))
    out.print(table)
