"""The way into the command line; it imports little, so that Ctrl-C is answered from the first moment on."""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from pipeline.cli_app import app

__all__ = ["app", "main"]


def __getattr__(name: str) -> Any:
    """Import the commands when they are asked for."""
    if name == "app":
        from pipeline import cli_app

        return cli_app.app
    raise AttributeError(f"module 'pipeline.cli' has no attribute {name!r}")


_DEFAULTS = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}


class _EndedError(BaseException):
    """A signal asked the command to end; no `except Exception` on the way keeps it."""


def main() -> NoReturn:
    """Run the command line; errors are one sentence and an exit code."""
    received: list[int] = []

    def end(number: int, _frame: object) -> None:
        if received:  # Asked twice.
            os._exit(128 + number)
        received.append(number)
        raise _EndedError

    before: dict[int, Any] = {}
    try:
        if threading.current_thread() is threading.main_thread():
            for ending, default in _DEFAULTS.items():
                if signal.getsignal(ending) == default:  # A shell's background job ignores Ctrl-C, and shall.
                    before[ending] = signal.signal(ending, end)
        code = _run()
    except BaseException:
        if not received:
            raise
        from pipeline.streams import print_error

        print_error("interrupted; records that were published are kept.")
        code = 128 + received[0]
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    sys.exit(code)


def _run() -> int:
    from pipeline.streams import open_closed_streams, output_problem, told

    open_closed_streams()
    from pipeline.cli_app import run_app

    try:
        code = run_app()
    except OSError:
        problem = output_problem(suspected=True)
        if problem is None:
            raise
        return told(problem)
    problem = output_problem()
    return code if problem is None else told(problem)


if __name__ == "__main__":
    main()
