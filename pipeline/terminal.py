"""What the terminal shows: consoles, warnings and errors as plain sentences."""

from __future__ import annotations

import sys
import warnings

from rich.console import Console

from pipeline.streams import tell


def console(*, stderr: bool = False) -> Console:
    """Return a console; wide when piped, so that tables are not cut for a file."""
    stream = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, highlight=False, width=None if stream.isatty() else 400, soft_wrap=False)


def plain_warnings() -> None:
    """Show each warning once, as a sentence on standard error, without file and line."""

    def show(message: Warning | str, *_: object, **__: object) -> None:
        tell(f"shapecast: warning: {message}")

    warnings.showwarning = show
