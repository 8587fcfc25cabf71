"""Worker processes that only their parent stops: no signal reaches them, and they do not outlive it."""

from __future__ import annotations

import multiprocessing
import multiprocessing.context
import multiprocessing.util
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection

from pipeline.tasks import Watch, close_sessions, start_run

_ENDING = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def process_pool(jobs: int) -> Iterator[tuple[Executor, Callable[[], None]]]:
    """Give a pool of processes, and what makes them stop before their next shape.

    The stop is the end of a pipe: closing it reaches every worker, also one that is still being started, and
    needs no lock that a killed process could hold. A parent that dies closes it too.
    """
    reader, writer = multiprocessing.Pipe(duplex=False)
    pool = ProcessPoolExecutor(jobs, _DeafContext(), initializer=_start_worker, initargs=(reader,))
    try:
        yield pool, writer.close
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        writer.close()
        reader.close()


class _DeafProcess(multiprocessing.context.SpawnProcess):
    """A process whose signals are blocked from its birth until `_start_worker` ignores them."""

    def start(self) -> None:
        if not hasattr(signal, "pthread_sigmask"):  # Windows.
            super().start()
            return
        from multiprocessing import resource_tracker

        resource_tracker.ensure_running()  # Starting it unblocks signals, so it must not happen below.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
        try:
            super().start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _DeafContext(multiprocessing.context.SpawnContext):
    """Spawns, because fork would copy locks that other threads hold."""

    Process = _DeafProcess


def _start_worker(stop: Connection) -> None:
    """In a worker process, leave signals to the parent, and follow it when it says stop or dies."""
    for number in _ENDING:
        signal.signal(number, signal.SIG_IGN)  # This also drops one that came while it was blocked.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # How the pool ends workers when one of them has died.
    if hasattr(signal, "pthread_sigmask"):
        with suppress(OSError):  # A SIGTERM to the whole group must not take away what is not published.
            os.setpgid(0, 0)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)
    watch = Watch()
    if stop.poll():
        watch.stop.set()
    start_run(watch)
    multiprocessing.util.Finalize(None, _end_worker, exitpriority=1)
    threading.Thread(target=_follow_parent, args=(stop, watch), daemon=True).start()


def _follow_parent(stop: Connection, watch: Watch) -> None:
    with suppress(EOFError, OSError):
        stop.recv_bytes()
    watch.stop.set()
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        _end_worker()
        os._exit(1)


def _end_worker() -> None:
    with suppress(Exception):  # A worker that ends has nobody to tell.
        close_sessions()
