"""Shipped data by name: which text is a name, which a path, and what a misspelt name was meant to be."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from cache.errors import ConfigError, shown

_CLOSE_NAMES = 3


@contextmanager
def concerning(field: str) -> Iterator[None]:
    """Let errors say that they are about `field` of a deployment."""
    try:
        yield
    except ConfigError as error:
        error.field = error.field or field
        raise


def looks_like_path(text: str, suffixes: Sequence[str]) -> bool:
    """Return whether `text` can only be meant as a path, so that a missing file is the error to report."""
    return text.startswith((".", "/", "~", "\\")) or text.lower().endswith(tuple(suffixes))


def match_name(text: str, known: Sequence[str]) -> str | None:
    """Return the known name that `text` stands for, or None.

    Case does not matter, and the owner ("Qwen/") may be left out where the rest is unique.
    """
    wanted = text.lower()
    exact = [name for name in known if name.lower() == wanted]
    if exact:
        return exact[0]
    short = [name for name in known if name.rpartition("/")[2].lower() == wanted]
    return short[0] if len(short) == 1 else None


def unknown_name(kind: str, text: str, known: Sequence[str], path_hint: str) -> ConfigError:
    """Return the error for a name that is no shipped one: what was close, what else may be given.

    Parameters
    ----------
    kind : str
        What the name stands for ("model", "device").
    text : str
        The name that was given.
    known : sequence of str
        All shipped names.
    path_hint : str
        What may be given instead of a name.
    """
    by_lower = {name.lower(): name for name in known}
    by_lower.update({name.rpartition("/")[2].lower(): name for name in known})
    close = difflib.get_close_matches(text.lower(), list(by_lower), n=_CLOSE_NAMES, cutoff=0.5)
    names = list(dict.fromkeys(by_lower[match] for match in close))
    hint = f"close names are {', '.join(names)}" if names else f"known names are {', '.join(known)}"
    return ConfigError(f"Unknown {kind} {shown(text)}: {hint}; or give {path_hint}.", kind)


def read_text(path: Path, kind: str) -> str:
    """Return the text of `path`.

    Raises
    ------
    ConfigError
        When the file cannot be read as UTF-8 text.
    """
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{kind} {path} does not exist; give an existing file or a shipped name.") from None
    except OSError as error:
        raise ConfigError(f"{kind} {path} cannot be read ({error.strerror}); give a readable file.") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{kind} {path} is no UTF-8 text; give a text file.") from None


def first_problem(error: ValidationError) -> str:
    """Return the first problem that pydantic found as "field a.b is 3: reason", without final stop."""
    problem = error.errors(include_url=False)[0]
    field = ".".join(str(part) for part in problem["loc"])
    reason = problem["msg"]
    value: Any = problem["input"]
    if problem["type"] == "missing":
        return f"field {field} is missing: it must be given"
    if problem["type"] == "extra_forbidden":
        return f"field {field} is unknown: remove it or correct its name"
    reason = reason.removeprefix("Value error, ")
    reason = reason[:1].lower() + reason[1:]
    return f"field {field} is {shown(value)}: {reason}" if field else reason
