"""Which model runners there are, by name; a runner's options are imported only when it is named."""

from __future__ import annotations

import difflib
import importlib
from importlib.metadata import EntryPoint, entry_points

from cache.errors import ConfigError, shown
from stages.runners.base import RunnerOptions

ENTRY_POINT_GROUP = "shapecast.runners"

_BUILT_IN = {
    "aiconfigurator": "stages.runners.aiconfigurator_spec:AIConfiguratorOptions",
    "msmodeling": "stages.runners.msmodeling_spec:MsModelingOptions",
    "recorded": "stages.runners.recorded_spec:RecordedOptions",
    "roofline": "stages.runners.roofline_spec:RooflineOptions",
}


def runner_names() -> list[str]:
    """Return the kinds that `runner_options` takes, plug-ins included."""
    return sorted({*_BUILT_IN, *_plug_ins()})


def runner_options(kind: str) -> type[RunnerOptions]:
    """Return the options class of a runner.

    Raises
    ------
    ConfigError
        When there is no such runner, or its plug-in cannot be imported.
    """
    if kind in _BUILT_IN:
        module, _, name = _BUILT_IN[kind].partition(":")
        options: type[RunnerOptions] = getattr(importlib.import_module(module), name)
        return options
    plug_ins = _plug_ins()
    if kind not in plug_ins:
        close = difflib.get_close_matches(kind, runner_names()) or runner_names()
        raise ConfigError(f"There is no runner {shown(kind)}; use {' or '.join(close)}.")
    try:
        loaded = plug_ins[kind].load()
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"The runner {kind!r} is registered as {plug_ins[kind].value}, which cannot be imported "
            f"({error}); reinstall its package."
        ) from error
    if not (isinstance(loaded, type) and issubclass(loaded, RunnerOptions)):
        raise ConfigError(
            f"The runner {kind!r} is registered as {plug_ins[kind].value}, which is no RunnerOptions class."
        )
    return loaded


def _plug_ins() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}
