"""Standard input, output and error, also when they are closed, full, or nobody reads them."""

from __future__ import annotations

import errno
import os
import sys
from contextlib import suppress


def open_closed_streams() -> None:
    """Give a closed standard stream a place, so that no file of the run gets its number.

    Output that nobody can see is then an error where it is written, as on a full disk; messages that nobody
    can see are dropped.
    """
    for number, name, flags in (
        (0, "stdin", os.O_RDONLY),
        (1, "stdout", os.O_RDONLY),
        (2, "stderr", os.O_WRONLY),
    ):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, flags), True)
            mode = "w" if number else "r"
            stream = os.fdopen(number, mode, encoding="utf-8", closefd=False)
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)


def tell(text: str) -> None:
    """Print a line on standard error, if that can be."""
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:
        _forget(2)


def print_error(error: BaseException | str) -> None:
    """Print an error as one sentence on standard error."""
    tell(f"shapecast: error: {error}")


def output_problem(*, suspected: bool = False) -> OSError | None:
    """Write out what is still to be written on standard output; return why that failed, if it did.

    Parameters
    ----------
    suspected : bool
        An error came up that may be of standard output. What it could not take may be lost, so that there is
        nothing left to write: an end of line shows whether it takes anything.
    """
    try:
        sys.stdout.flush()
        if suspected and sys.stdout is sys.__stdout__:
            os.write(1, b"\n")
    except OSError as error:
        _forget(1)
        return error
    return None


def told(problem: OSError) -> int:
    """Say why standard output could not be written, unless its reader just left; return the exit code."""
    if problem.errno == errno.EPIPE:
        return 141
    print_error(f"Standard output cannot be written ({problem.strerror}); send it elsewhere.")
    return 1


def _forget(number: int) -> None:
    """Drop what a stream still holds, which would fail once more when Python ends."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), number)
