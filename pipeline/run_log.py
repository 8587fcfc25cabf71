"""The log of a run: written while it goes on, and never in its way."""

from __future__ import annotations

import logging
import sys
import warnings
from contextlib import suppress
from pathlib import Path

_log = logging.getLogger("shapecast")


class RunLog:
    """Append the run's log lines, with their times, to a file while the run goes on.

    A log that cannot be written disturbs nothing: a run that succeeds all the same warns of it once, at its
    end, and one that fails tells only why it failed.

    Parameters
    ----------
    path : Path
        The file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._handler: _QuietHandler | None = None
        self._problem: OSError | None = None

    def __enter__(self) -> None:
        self._level = _log.level
        _log.setLevel(logging.INFO)
        _log.propagate = False
        try:
            self._handler = _QuietHandler(self._path, encoding="utf-8")
        except OSError as error:
            self._problem = error
            return
        self._handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        _log.addHandler(self._handler)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        _log.setLevel(self._level)
        if self._handler is not None:
            _log.removeHandler(self._handler)
            self._handler.close()
            self._problem = self._handler.problem
        if self._problem is not None and kind is None:
            warnings.warn(
                f"The log {self._path} cannot be written ({self._problem.strerror}); the results are whole.",
                stacklevel=2,
            )


class _QuietHandler(logging.FileHandler):
    """Remembers that its file cannot be written, where the base class prints and raises."""

    problem: OSError | None = None

    def emit(self, record: logging.LogRecord) -> None:
        if self.problem is None:  # What failed stays in the buffer; more would only pile up.
            super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 (the name is logging's)
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)
            return
        self.problem = error

    def close(self) -> None:
        with suppress(OSError):  # It tries again to write what could not be written.
            super().close()
