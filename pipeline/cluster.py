"""Running a sweep's graph on a Dask cluster that is already there.

The workers need shapecast, and tables that they reach under the same path or URL.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

from dask.delayed import Delayed

from cache.errors import RunnerError
from pipeline.tasks import StoppedError, Watch

SCHEMES = ("tcp://", "tls://")

_CONNECT_S = 10
_LOOK_UP_S = 0.5


def compute_on_cluster(
    wanted: Sequence[tuple[Delayed, Delayed]], address: str, watch: Watch, done: Callable[[str, Any], None]
) -> list[tuple[Any, Any]]:
    """Return the results of `wanted`.

    Parameters
    ----------
    wanted : sequence of (Delayed, Delayed)
        What to compute; the tasks' names must be of this run alone, because a cluster keeps results by name.
    address : str
        The cluster's scheduler, e.g. "tcp://host:8786".
    watch : Watch
        When its stop is set, what has not started is cancelled.
    done : callable
        Called with the name and result of each wanted task.

    Raises
    ------
    RunnerError
        When `distributed` is not installed, or nobody answers at the address.
    StoppedError
        When the run was interrupted.
    """
    try:
        distributed: Any = importlib.import_module("distributed")
    except ImportError as error:
        raise RunnerError(
            f"A cluster ({address}) needs the package distributed: pip install 'shapecast[cluster]'."
        ) from error
    flat = [task for pair in wanted for task in pair]
    try:
        client = distributed.Client(address, timeout=_CONNECT_S)
    except (OSError, ValueError) as error:
        raise RunnerError(
            f"No Dask scheduler answers at {address} within {_CONNECT_S} s; start one with `dask scheduler`, "
            "or choose threads or processes."
        ) from error
    with client:
        futures = client.compute(flat, optimize_graph=False)
        names = {future: str(task.key) for future, task in zip(futures, flat, strict=True)}
        pending = set(futures)
        while pending:
            if watch.stop.is_set():
                client.cancel(list(pending))
                raise StoppedError
            try:
                finished, pending = distributed.wait(
                    pending, timeout=_LOOK_UP_S, return_when="FIRST_COMPLETED"
                )
            except TimeoutError:
                continue
            for future in finished:
                done(names[future], future.result())
        results = client.gather(futures)
    return list(zip(results[::2], results[1::2], strict=True))
