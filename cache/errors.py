"""The exception tree of shapecast.

Every message is one full sentence: the value, what was expected, what to do.
The command line prints it without a traceback.
"""

_LONGEST_SHOWN = 80


def shown(value: object) -> str:
    """Return how a message shows a value that someone gave: its repr, cut when it is long."""
    try:
        text = repr(value)
    except ValueError:  # Python refuses to print whole numbers of thousands of digits.
        return "a number of thousands of digits"
    if len(text) <= _LONGEST_SHOWN:
        return text
    return f"{text[: _LONGEST_SHOWN - 20]}... ({len(text):,} characters)"


class ShapecastError(Exception):
    """Base of every error that shapecast raises on purpose (exit code 1)."""

    exit_code = 1


class UsageError(ShapecastError):
    """The command line asks for something that cannot be asked (exit code 2)."""

    exit_code = 2


class InvalidShapeError(ShapecastError, ValueError):
    """A forward shape key that describes no forward pass."""


class InvalidValueError(ShapecastError, ValueError):
    """A workload, engine, parallelism or candidate outside what serving allows."""


class ConfigError(ShapecastError):
    """A sweep config, model config or device profile that cannot be used.

    Parameters
    ----------
    message : str
        The sentence.
    field : str or None
        What of a deployment it is about, where that is known: "model", "device", or a parallel size.
    """

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class RunnerError(ShapecastError):
    """A model runner that cannot be built, or cannot answer for a shape."""


class MissingShapeError(RunnerError):
    """A shape is needed that no record answers and that may not be computed."""


class StoreError(ShapecastError):
    """A shape store that cannot be read or written."""


class ConflictError(StoreError):
    """Two records of one key and identity differ."""


class SchemaError(StoreError):
    """A file was written by a newer shapecast."""


class OutputError(ShapecastError):
    """An output folder that cannot take or give a run."""
