"""Options that take several values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand


def not_empty(value: str | None) -> str | None:
    """Refuse an empty text, which is most often a variable of a script that is not set.

    Raises
    ------
    BadParameter
        When it is empty.
    """
    if value is not None and not value.strip():
        raise typer.BadParameter("it is empty; give a path, or leave the option out.")
    return value


def path_option(value: str) -> Path:
    """Return the path that an option gives.

    Raises
    ------
    BadParameter
        When it is empty; as a path it would be the current folder.
    """
    not_empty(value)
    return Path(value)


SEVERAL = (
    "--device",
    "--tp-sizes",
    "--ep-sizes",
    "--moe-dp-sizes",
    "--num-mtp-tokens",
    "--mtp-acceptance-rate",
    "--max-batched-tokens",
    "--batch-range",
)
"""Options that take all values up to the next option, as in `--device A B C`."""

AUTO_WHEN_EMPTY = ("--tp-sizes", "--ep-sizes", "--moe-dp-sizes", "--num-mtp-tokens")
"""Of these, the ones that may stand alone, which means `auto`."""


class ManyValues(TyperCommand):
    """A command whose options `SEVERAL` take several values each."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Give each value of such an option the option's name, which is what the parser knows."""
        return super().parse_args(ctx, repeat_options(args))


def repeat_options(args: list[str]) -> list[str]:
    """Return `--device A B` as `--device A --device B`."""
    repeated: list[str] = []
    rest = list(args)
    while rest:
        name = rest.pop(0)
        if name == "--":
            return [*repeated, name, *rest]
        if name not in SEVERAL:
            repeated.append(name)
            continue
        values: list[str] = []
        while rest and _is_value(name, rest[0]):
            values.append(rest.pop(0))
        if not values and name in AUTO_WHEN_EMPTY:
            values = ["auto"]
        repeated += [part for value in values for part in (name, value)] or [name]
    return repeated


def _is_value(name: str, text: str) -> bool:
    """Whether a word belongs to an option; behind numbers, the model's name does not."""
    if name == "--device":
        return not text.startswith("-")
    return text in ("auto", "search") or text.lstrip("+-")[:1].isdigit()
