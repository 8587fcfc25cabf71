"""Running a sweep's graph: on threads, processes or in line; stopped gently by Ctrl-C."""

from __future__ import annotations

import multiprocessing.util
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
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
from pipeline.tasks import Watch, close_sessions, start_run

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
        with _Events(started, done), _executor(scheduler, jobs) as pool, _gentle_interrupt(watch, pool):
            results: Sequence[tuple[Any, Any]]
            if scheduler.startswith(SCHEMES):
                results = compute_on_cluster(wanted, scheduler, watch, done)
            else:
                results = dask_compute(  # type: ignore[no-untyped-call]
                    *wanted, scheduler=_GETS[scheduler], pool=pool, num_workers=jobs, optimize_graph=False
                )
    except BaseException:
        with suppress(ShapecastError):  # The first error says why; this one would only repeat it.
            close_sessions()
        raise
    close_sessions()
    return results


@contextmanager
def _executor(scheduler: str, jobs: int) -> Iterator[Executor | None]:
    """Give the pool that Dask runs on; at the end, also after an error, wait until its tasks have ended."""
    if scheduler not in ("threads", "processes"):
        yield None
        return
    pool: Executor
    if scheduler == "threads":
        pool = ThreadPoolExecutor(jobs, "shapecast")
    else:
        # Fork would copy locks that other threads hold.
        context = multiprocessing.get_context("spawn")
        pool = ProcessPoolExecutor(jobs, context, initializer=_start_worker)
    try:
        yield pool
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _start_worker() -> None:
    """In a worker process, let Ctrl-C stop before the next shape, and end when the parent has died."""
    watch = Watch()
    signal.signal(signal.SIGINT, lambda *_: watch.stop.set())
    start_run(watch)
    multiprocessing.util.Finalize(None, _end_worker, exitpriority=1)


def _end_worker() -> None:
    with suppress(Exception):  # A worker that ends has nobody to tell.
        close_sessions()


@contextmanager
def _gentle_interrupt(watch: Watch, pool: Executor | None) -> Iterator[None]:
    """Let the first Ctrl-C (or SIGTERM) stop the tasks before their next shape; the second is immediate."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        if watch.stop.is_set():
            raise KeyboardInterrupt
        watch.stop.set()
        for process in getattr(pool, "_processes", None) or ():
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGINT)

    try:
        before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
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
