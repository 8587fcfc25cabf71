"""Live progress of a run, on a terminal only."""

from __future__ import annotations

import threading
import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from pipeline.tasks import PrefetchCounts


class RunProgress:
    """Counts what a run does, and shows it while it runs.

    Parameters
    ----------
    cells : sequence of str
        Each cell in words.
    console : Console
        Where to show; nothing is shown unless it is a terminal.
    quiet : bool
        Show nothing.
    """

    def __init__(self, cells: list[str], console: Console, *, quiet: bool) -> None:
        self._cells = cells
        self._lock = threading.Lock()
        self._live = 0
        self.computed = 0
        self.reused = 0
        self.stopped = 0
        self._shown_s = 0.0
        self._bar = Progress(
            TextColumn("{task.completed:.0f}/{task.total:.0f} cells"),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[shapes]}"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[cell]}"),
            console=console,
            disable=quiet or not console.is_terminal,
            transient=True,
        )
        self._task = self._bar.add_task("", total=len(cells), shapes="", cell="")

    def __enter__(self) -> RunProgress:
        self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.stop()

    def shape_computed(self, cell_index: int) -> None:
        """Take note of one forward call in this process."""
        with self._lock:
            self._live += 1
            now_s = time.monotonic()
            if now_s - self._shown_s > 0.1:
                self._shown_s = now_s
                self._show(cell_index)

    def task_started(self, stage: str, cell_index: int | None) -> None:
        """Take note of a task that starts."""
        if cell_index is not None and stage in ("prefetch", "search"):
            self._show(cell_index)

    def task_done(self, stage: str, cell_index: int | None, result: Any) -> None:
        """Take note of a task that is done."""
        if cell_index is not None and isinstance(result, PrefetchCounts):
            with self._lock:
                self.computed += result.computed
                self.reused += len(result.digests) - result.computed
                self.stopped += result.stopped
                self._live = max(self._live, self.computed)
            self._show(cell_index)
        if stage in ("aggregate", "search"):
            self._bar.advance(self._task)

    def _show(self, cell_index: int) -> None:
        shapes = f"{self._live} shapes computed, {self.reused} reused"
        self._bar.update(self._task, shapes=shapes, cell=self._cells[cell_index])
