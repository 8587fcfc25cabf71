"""What aiconfigurator-core says while it works: kept off the terminal, and passed on once where it matters.

The package writes through `logging`, and without a handler Python prints every warning to stderr. Nothing
comes from its compiled part: over the 3,053 models, systems and engine versions of the support matrix of
0.12.0, file descriptors 1 and 2 stayed empty once this logger had a handler.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

_PACKAGE_LOGGER = logging.getLogger("aiconfigurator_core")
_LOW_FIDELITY = re.compile(
    r"Loading low-fidelity fallback rows for (?P<table>\w+)_perf\.parquet"
    r" from \S+/data/(?P<system>[^/]+)/[^/]+/(?P<backend>[^/]+)/(?P<version>[^/]+)/"
)
# TensorRT-LLM has one attention kernel per shape, so there is no choice to have a default for.
_NOISE = ("resolve_attention_lane_order: unknown backend",)

_told: set[str] = set()
_telling = threading.Lock()


class _Keeper(logging.Handler):
    """Keeps the warnings of each thread that listens, and drops those of others."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.local = threading.local()

    def emit(self, record: logging.LogRecord) -> None:
        kept: list[str] | None = getattr(self.local, "kept", None)
        if kept is not None:
            kept.append(record.getMessage())


_keeper = _Keeper()


@contextmanager
def quiet() -> Iterator[list[str]]:
    """Keep the package's log off the terminal, from now on, and yield the warnings of this block."""
    if _keeper not in _PACKAGE_LOGGER.handlers:
        _PACKAGE_LOGGER.addHandler(_keeper)
        _PACKAGE_LOGGER.propagate = False
    kept: list[str] = []
    _keeper.local.kept = kept
    try:
        yield kept
    finally:
        _keeper.local.kept = None


def relevant_warnings(messages: Iterable[str], operators: Iterable[str]) -> list[str]:
    """Return the warnings that concern a model, in words that name no files.

    Parameters
    ----------
    messages : iterable of str
        What the package warned of while its tables were loaded and the model was built.
    operators : iterable of str
        Kinds of the model's operators ("Gemm", "MlaModuleContext"); the package warns of the tables of all.
    """
    kinds = [operator.lower() for operator in operators]
    found: dict[str, None] = {}
    for message in messages:
        match = _LOW_FIDELITY.match(message)
        if match is None:
            if not message.startswith(_NOISE):
                found[re.sub(r"\b(\w+)_quant_mode\b", r"quantization.\1", message)] = None
        elif any(kind.startswith(match["table"].partition("_")[0]) for kind in kinds):
            found[
                f"{match['table']} figures on {match['system']} may come from low-fidelity rows of "
                f"{match['backend']} {match['version']} and differ from the engine asked for."
            ] = None
    return list(found)


def tell_once(logger: logging.Logger, warnings: Iterable[str]) -> None:
    """Log each warning that this process has not logged yet."""
    with _telling:
        new = [warning for warning in warnings if warning not in _told]
        _told.update(new)
    for warning in new:
        logger.warning("%s", warning)
