"""What is wrong with a command line, in one sentence."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import typer

exceptions: Any = sys.modules[typer.BadParameter.__module__]
"""Click's exceptions: of the click that typer carries with it, or of the one beside it, by its version."""


def usage_sentence(error: Any, arguments: Sequence[str]) -> str:
    """Return what was given, what was expected, and where to read on.

    Parameters
    ----------
    error : click.UsageError
        What the parser found.
    arguments : sequence of str
        The words of the command line.
    """
    command = error.ctx.command_path if error.ctx is not None else "shapecast"
    return f"{_problem(error, arguments)}; see {command} --help."


def _problem(error: Any, arguments: Sequence[str]) -> str:
    if isinstance(error, exceptions.MissingParameter):
        param = error.param
        kind = "argument" if param is not None and param.param_type_name == "argument" else "option"
        return f"The {kind} {_name(error)} is missing"
    if isinstance(error, exceptions.NoSuchOption):
        near = f"; did you mean {' or '.join(error.possibilities)}" if error.possibilities else ""
        return f"There is no option {error.option_name}{near}"
    message = " ".join(error.message.split()).rstrip(".").removeprefix("Value error, ")
    if not isinstance(error, exceptions.BadParameter):
        return message
    value = _value(error, arguments)
    given = _name(error) if not (value or "").strip() else f"{_name(error)} {value}"
    expected = message.partition(", unable to")[0].removeprefix("Input ")
    if expected.startswith("should be "):
        return f"{given} cannot be used, it {expected}"
    return f"{given} cannot be used: {message}"


def _name(error: Any) -> str:
    if error.param is None:
        return str(error.param_hint or "a value")
    options = [name for name in error.param.opts if name.startswith("-")]
    return options[0] if options else str(error.param.name).upper()


def _value(error: Any, arguments: Sequence[str]) -> str | None:
    """Return what the command line gives for an option that has one value."""
    names = error.param.opts if error.param is not None and not error.param.multiple else ()
    found = None
    for word, after in zip(arguments, [*arguments[1:], None], strict=True):
        name, equals, value = word.partition("=")
        if name.startswith("--") and name in names:
            found = value if equals else after
    return found
