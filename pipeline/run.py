"""A sweep from config to files."""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console

from cache.errors import ShapecastError
from cache.identity import TableIdentity
from cache.store import ShapeStore
from pipeline.cells import Cell, expand
from pipeline.config import LoadedConfig
from pipeline.evaluated import Evaluated, evaluated_rows
from pipeline.execute import compute, original_error
from pipeline.frozen import FrozenSpec
from pipeline.graph import build_graph, stage_and_cell
from pipeline.output_names import OutputNames
from pipeline.outputs import (
    BEST_NAME,
    LOG_NAME,
    MANIFEST_NAME,
    RATIO_NAME,
    REPORT_NAME,
    OutputFolder,
    best_file,
    manifest_file,
    run_digest,
    versions,
)
from pipeline.places import note_use, places_for, require_sent, send_unsent
from pipeline.progress import RunProgress
from pipeline.ratio_mode import ratio_file
from pipeline.report.page import report_page
from pipeline.rows import result_rows
from pipeline.run_log import RunLog
from pipeline.saved import RESULTS_NAME, RunFacts, SavedRun, best_traces, results_file
from pipeline.survey import refuse_missing, survey
from pipeline.tasks import Places, PrefetchCounts, Watch, open_session, start_run
from stages.result import CandidateResult

_log = logging.getLogger("shapecast")


@dataclass(frozen=True)
class RunOptions:
    """How a sweep is run; nothing here changes its results.

    Attributes
    ----------
    out : Path
        Folder of the run's files.
    tables : str or None
        Path or URL of the shape store; None for the default.
    scheduler : {"threads", "processes", "single-threaded"}, or the address of a Dask scheduler
        Where tasks run.
    jobs : int or None
        Threads or processes; None for the number of cores.
    quiet : bool
        Show no progress.
    force : bool
        Replace a different run in `out`.
    frozen : bool
        Compute nothing; fail before any output when a shape has no record.
    """

    out: Path
    tables: str | None = None
    scheduler: str = "threads"
    jobs: int | None = None
    quiet: bool = False
    force: bool = False
    frozen: bool = False


@dataclass(frozen=True)
class RunCounts:
    """What a run took, for its closing line.

    Attributes
    ----------
    needed : int
        Distinct shapes that the candidates reach, over all tables.
    computed : int
        Forward calls of this run.
    stopped : int
        Candidates stopped by an out-of-memory record.
    """

    needed: int
    computed: int
    stopped: int

    @property
    def reused(self) -> int:
        """Shapes that had a record before the run."""
        return max(self.needed - self.computed, 0)


@dataclass(frozen=True)
class SweepRun:
    """A finished run: its rows as written, its counts, and the devices that its pairs share."""

    out: Path
    frame: pd.DataFrame
    counts: RunCounts
    total_devices: int | None = None


def run_sweep(loaded: LoadedConfig, options: RunOptions, console: Console) -> SweepRun:
    """Run a sweep and write its files.

    Raises
    ------
    ShapecastError
        When the config cannot be deployed, a shape cannot be computed, or a file cannot be written.
    StoppedError
        After Ctrl-C; records that were computed are kept.
    """
    cells = expand(loaded)
    places = places_for(options.tables)
    if options.frozen:
        refuse_missing(survey(cells, places))
        cells = [replace(cell, spec=FrozenSpec(cell.spec)) for cell in cells]
    config = OutputNames.of(loaded).config(loaded)
    run = run_digest(config, sorted({cell.identity.id for cell in cells}))
    watch = Watch()
    start_run(watch)
    if not options.frozen:
        send_unsent(places)
    _open_tables(cells, places)
    folder = OutputFolder(options.out, run, force=options.force)
    with RunLog(options.out / LOG_NAME):
        evaluated, counts = _execute(cells, options, places, watch, console)
        ratio = loaded.config.ratio
        table = result_rows(cells, evaluated)
        frame = table.to_pandas()
        traces = best_traces(frame, [one.result for rows in evaluated for one in rows])
        facts = RunFacts(run, config, versions(), _tables(cells, counts), traces)
        files = {RESULTS_NAME: results_file(table, facts), BEST_NAME: best_file(frame)}
        if ratio is not None:
            files[RATIO_NAME] = ratio_file(frame, ratio.total_devices)
        files[REPORT_NAME] = report_page(SavedRun(frame, facts))
        summary = _counts(facts.tables, counts)
        files[MANIFEST_NAME] = manifest_file(facts, _manifest_counts(cells, frame, summary), files)
        folder.write(files)
        _log.info(
            "%d shapes needed, %d reused, %d computed; %d candidates stopped out of memory",
            summary.needed, summary.reused, summary.computed, summary.stopped,
        )  # fmt: skip
        note_use(cells, loaded, places)
        if not options.frozen:
            require_sent(places)
    return SweepRun(options.out, frame, summary, None if ratio is None else ratio.total_devices)


def _open_tables(cells: Sequence[Cell], places: Places) -> None:
    """Read every table that the run needs, so that one that cannot be used is known before any output."""
    for identity in {cell.identity.id: cell.identity for cell in cells}.values():
        open_session(places.tables, identity)


def _execute(
    cells: Sequence[Cell], options: RunOptions, places: Places, watch: Watch, console: Console
) -> tuple[list[tuple[Evaluated, ...]], list[PrefetchCounts]]:
    jobs = options.jobs or os.cpu_count() or 1
    _log.info(
        "run on %s: %s, %d jobs, tables %s",
        platform.node(),
        options.scheduler,
        jobs,
        ShapeStore(places.tables).root,
    )
    started_s = time.monotonic()
    progress = RunProgress([str(cell) for cell in cells], console, quiet=options.quiet)
    watch.computed = progress.shape_computed

    def started(name: str) -> None:
        progress.task_started(*stage_and_cell(name))

    def done(name: str, result: Any) -> None:
        stage, index = stage_and_cell(name)
        progress.task_done(stage, index, result)
        if index is not None and stage in ("aggregate", "search"):
            cell = cells[index]
            _log_cell(cell, [one.result for one in evaluated_rows(cell, result)])

    try:
        with progress:
            pairs = compute(build_graph(cells, places), options.scheduler, jobs, watch, started, done)
    except Exception as error:
        original = original_error(error)
        _log.info("ended after %.1f s: %s", time.monotonic() - started_s, original)
        if isinstance(original, ShapecastError):
            raise original from None
        raise
    _log.info("%d cells in %.2f s", len(cells), time.monotonic() - started_s)
    evaluated = [evaluated_rows(cell, found) for cell, (found, _) in zip(cells, pairs, strict=True)]
    return evaluated, [counts for _, counts in pairs]


def _log_cell(cell: Cell, results: Sequence[CandidateResult]) -> None:
    chunks = {result.prefill_num_chunks for result in results}
    shapes = sum(result.forward_shape_count for result in results)
    if cell.mode == "decode":
        _log.info("cell %d (%s): latency table used, %d forward shapes", cell.index, cell, shapes)
        return
    _log.info(
        "cell %d (%s): latency table used, %s prefill chunks, %d forward shapes, stops on negative memory",
        cell.index, cell, "/".join(str(count) for count in sorted(chunks)), shapes,
    )  # fmt: skip


def _tables(cells: Sequence[Cell], counts: Sequence[PrefetchCounts]) -> list[dict[str, Any]]:
    """Return, per identity, its fields and the digest of the records that the run used."""
    digests: dict[str, set[bytes]] = defaultdict(set)
    identities: dict[str, TableIdentity] = {}
    for cell, cell_counts in zip(cells, counts, strict=True):
        digests[cell.identity.id] |= cell_counts.digests
        identities.setdefault(cell.identity.id, cell.identity)
    return [
        {
            "id": table_id,
            "label": identity.label,
            "identity": identity.as_json(),
            "records": len(digests[table_id]),
            "records_sha256": hashlib.sha256(b"".join(sorted(digests[table_id]))).hexdigest(),
        }
        for table_id, identity in sorted(identities.items())
    ]


def _counts(tables: Sequence[Mapping[str, Any]], counts: Sequence[PrefetchCounts]) -> RunCounts:
    return RunCounts(
        needed=sum(table["records"] for table in tables),
        computed=sum(one.computed for one in counts),
        stopped=sum(one.stopped for one in counts),
    )


def _manifest_counts(cells: Sequence[Cell], frame: pd.DataFrame, counts: RunCounts) -> dict[str, int]:
    return {
        "cells": len(cells),
        "candidates": len(frame),
        "feasible": int(frame["feasible"].sum()),
        "out_of_memory": int(frame["stop_reason"].isin(["prefill_oom", "decode_oom"]).sum()),
        "shapes": counts.needed,
    }
