"""Running a sweep's graph: on threads, processes or in line; stopped gently by Ctrl-C."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

import dask.local
import dask.multiprocessing
import dask.threaded
from dask.base import compute as dask_compute
from dask.callbacks import Callback
from dask.delayed import Delayed

from cache.errors import ShapecastError
from pipeline.cluster import SCHEMES, compute_on_cluster
from pipeline.tasks import StoppedError, Watch, close_sessions
from pipeline.workers import process_pool

# The functions themselves: by name, Dask would import `distributed` wherever it is installed.
_GETS = {
    "threads": dask.threaded.get,
    "processes": dask.multiprocessing.get,
    "single-threaded": dask.local.get_sync,
}
SCHEDULERS = tuple(_GETS)

TaskDone = Callable[[str, Any], None]
TaskStarted = Callable[[str], None]


class _Events(Callback):
    """Tells of tasks as Dask's local schedulers start and finish them."""

    def __init__(self, started: TaskStarted, done: TaskDone) -> None:
        self._started = started
        self._done = done
        super().__init__()  # type: ignore[no-untyped-call]

    def _pretask(self, key: Any, *_: Any) -> None:
        self._started(str(key))

    def _posttask(self, key: Any, result: Any, *_: Any) -> None:
        self._done(str(key), result)


def compute(
    wanted: Sequence[tuple[Delayed, Delayed]],
    scheduler: str,
    jobs: int,
    watch: Watch,
    started: TaskStarted,
    done: TaskDone,
) -> Sequence[tuple[Any, Any]]:
    """Return the results of `wanted`.

    Parameters
    ----------
    wanted : sequence of (Delayed, Delayed)
        What to compute.
    scheduler : {"threads", "processes", "single-threaded"}, or the address of a Dask scheduler
        Where tasks run.
    jobs : int
        Threads or processes.
    watch : Watch
        Sees and stops the tasks of this process (see `start_run`); Ctrl-C sets its stop.
    started, done : callable
        Called with each task's name, and with its name and result; on a cluster only for wanted ones.

    Raises
    ------
    StoppedError
        After Ctrl-C, when the running tasks have published their records.
    """
    try:
        with (
            _Events(started, done),
            _executor(scheduler, jobs) as (pool, stop_processes),
            _gentle_interrupt(watch, stop_processes),
        ):
            results: Sequence[tuple[Any, Any]]
            if scheduler.startswith(SCHEMES):
                results = compute_on_cluster(wanted, scheduler, watch, done)
            else:
                results = dask_compute(  # type: ignore[no-untyped-call]
                    *wanted, scheduler=_GETS[scheduler], pool=pool, num_workers=jobs, optimize_graph=False
                )
    except BaseException as error:
        with suppress(ShapecastError):  # The first error says why; this one would only repeat it.
            close_sessions()
        if watch.stop.is_set() and not isinstance(original_error(error), ShapecastError):
            # Whatever a pool says that ends early, it was asked to.
            raise StoppedError(watch.stop_signal) from None
        raise
    close_sessions()
    return results


@contextmanager
def _executor(scheduler: str, jobs: int) -> Iterator[tuple[Executor | None, Callable[[], None]]]:
    """Give the pool that Dask runs on, and what stops its processes.

    At the end, also after an error, wait until its tasks have ended.
    """
    if scheduler == "processes":
        with process_pool(jobs) as (processes, stop):
            yield processes, stop
    elif scheduler == "threads":
        with ThreadPoolExecutor(jobs, "shapecast") as threads:
            try:
                yield threads, lambda: None
            finally:
                threads.shutdown(wait=True, cancel_futures=True)
    else:
        yield None, lambda: None


@contextmanager
def _gentle_interrupt(watch: Watch, stop_processes: Callable[[], None]) -> Iterator[None]:
    """Let the first Ctrl-C (or SIGTERM) stop the tasks before their next shape; a second ends the wait."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        if not watch.stop.is_set():
            watch.stop_signal = number
            watch.stop.set()
            stop_processes()
            return
        handler = before[number]
        if callable(handler):
            handler(number, frame)
        raise KeyboardInterrupt

    before: dict[int, Any] = {}
    try:
        for ending in (signal.SIGINT, signal.SIGTERM):
            before[ending] = signal.signal(ending, interrupt)
    except ValueError:  # Not in the main thread, so signals are the caller's business.
        yield
        return
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def original_error(error: BaseException) -> BaseException:
    """Return the exception that a task raised, without the traceback text that Dask adds in processes."""
    return getattr(error, "exception", error)
