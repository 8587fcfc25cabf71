"""The sweep: config, graph, execution, outputs, report and command line.

For notebooks: `from pipeline import load_run`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipeline.load import LoadedRun, load_run

__all__ = ["LoadedRun", "load_run"]


def __getattr__(name: str) -> Any:
    """Import what notebooks use when it is asked for, so that the command line stays quick."""
    if name in __all__:
        from pipeline import load

        return getattr(load, name)
    raise AttributeError(f"module 'pipeline' has no attribute {name!r}")
