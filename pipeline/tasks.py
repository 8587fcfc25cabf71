"""What one task of the graph does: a stage function over all candidates of a cell.

Tasks may run in any thread, process or machine. They take and give small picklable values; what a process
holds on to (open tables, built runners) is kept here and is only ever a shortcut.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from cache.errors import StoreError
from cache.identity import TableIdentity
from cache.memo import Memo, digest_texts, source_digest
from cache.session import TableSession
from cache.shapes import ForwardLatencyRecord, ForwardShapeKey
from cache.spool import spool_of, upload
from cache.store import ShapeStore
from cache.table import ForwardLatencyTable
from stages.aggregate import aggregate
from stages.candidate import Candidate
from stages.dedupe import dedupe
from stages.evaluate import replay_plan
from stages.plan import Plan, plan, planned_steps
from stages.prefetch import prefetch
from stages.replay import Replay
from stages.result import CandidateResult, best_index
from stages.runners.base import ModelRunner, RunnerSpec
from stages.scheduler_registry import get_scheduler, is_built_in
from stages.trace import trace

Records = dict[ForwardShapeKey, ForwardLatencyRecord]

MEMOIZE_FROM_STEPS = 20_000
"""A cell whose plans take about so many literal steps costs more to plan than to load."""

MEMOIZE_FROM_RUNS = 100_000
"""A cell with so many runs costs more to replay than to load."""


@dataclass(frozen=True)
class Places:
    """Where a run keeps what lasts.

    Attributes
    ----------
    tables : str
        Root of the shape store, a path or URL.
    memo : Path or None
        Folder of memoized stage results; never one that others can write to.
    """

    tables: str
    memo: Path | None


@dataclass(frozen=True)
class Prefetched:
    """What the prefetch of one cell gave.

    Attributes
    ----------
    records : mapping
        Records of all shapes that its candidates reach.
    digests : frozenset of bytes
        A digest of each of these records with its key.
    computed : int
        Shapes computed for this cell.
    stopped : int
        Candidates stopped by an out-of-memory record.
    """

    records: Records
    digests: frozenset[bytes]
    computed: int
    stopped: int


@dataclass
class Watch:
    """How a run sees and stops the tasks in its own process.

    Attributes
    ----------
    computed : callable
        Called after each forward call, with the cell's index.
    stop : threading.Event
        When set, no further shape is started.
    stop_signal : int
        The signal that set it.
    """

    computed: Callable[[int], None] = lambda _: None
    stop: threading.Event = field(default_factory=threading.Event)
    stop_signal: int = signal.SIGINT


class StoppedError(Exception):
    """The run was interrupted; what was computed is published.

    Parameters
    ----------
    number : int
        The signal that did it.
    """

    def __init__(self, number: int = signal.SIGINT) -> None:
        super().__init__(number)
        self.exit_code = 128 + number

    def __str__(self) -> str:
        return "interrupted; computed records are kept, so the same command continues."


_watch = Watch()


def check_stop() -> None:
    """End the task when the run has been stopped.

    Raises
    ------
    StoppedError
        When it has.
    """
    if _watch.stop.is_set():
        raise StoppedError


def start_run(watch: Watch) -> None:
    """Let `watch` see the tasks of this process, and forget what earlier runs held on to."""
    global _watch
    _watch = watch
    _sessions.clear()
    _runners.clear()


def close_sessions() -> None:
    """At the end of a run, publish what this process has not published yet, or what has vanished since."""
    for session in _sessions.values():
        session.close()


def plan_task(candidates: Sequence[Candidate], places: Places) -> list[Plan]:
    """Return the plan of each candidate, from the memo where that is quicker."""
    check_stop()
    steps = sum(planned_steps(candidate) for candidate in candidates)
    if steps < MEMOIZE_FROM_STEPS or not _memoizable(candidates):
        return _plan_all(candidates)
    check = _list_check(Plan, len(candidates))
    return _memo(places.memo).call(_plan_all, tuple(candidates), check=check)


def dedupe_task(plans: Sequence[Plan]) -> tuple[ForwardShapeKey, ...]:
    """Return the distinct shapes of a cell."""
    return dedupe(one.keys for one in plans)


def prefetch_task(
    cell_index: int,
    spec: RunnerSpec,
    identity: TableIdentity,
    plans: Sequence[Plan],
    keys: Sequence[ForwardShapeKey],
    _after: object,
    places: Places,
) -> Prefetched:
    """Make the records of a cell known; new ones are published before this returns.

    `_after` is the prefetch of the same identity that came before: one writer at a time.
    """
    check_stop()
    session = open_session(places.tables, identity)
    table = cell_table(cell_index, spec, identity, session)
    with session.writing():
        records = prefetch(table, (one.keys for one in plans))
    stopped = sum(
        1 for one in plans if any(key in records and records[key].out_of_memory for key in one.keys)
    )
    digests = frozenset(session.digest(key) for key in records)
    return Prefetched(records, digests, table.forward_calls, stopped)


def cell_table(
    cell_index: int, spec: RunnerSpec, identity: TableIdentity, session: TableSession
) -> ForwardLatencyTable:
    """Return a table that computes what `session` lacks and adds it there."""
    runner: ModelRunner | None = None

    def forward(key: ForwardShapeKey) -> ForwardLatencyRecord:
        nonlocal runner
        check_stop()
        if runner is None:  # A cell whose shapes are all known imports no runner.
            runner = _runner(spec, identity)
        return runner.forward(key)

    def computed(key: ForwardShapeKey, record: ForwardLatencyRecord, call_s: float) -> None:
        session.add(key, record, call_s)
        _watch.computed(cell_index)

    return ForwardLatencyTable(forward, _Known(session), computed)


class _Known(Mapping[ForwardShapeKey, ForwardLatencyRecord]):
    """The records of a session, which at the first missing one makes sure that no other run computes it."""

    def __init__(self, session: TableSession) -> None:
        self._session = session

    def get(self, key: ForwardShapeKey, default: Any = None) -> Any:
        record = self._session.get_or_lock(key, check_stop)
        return default if record is None else record

    def __getitem__(self, key: ForwardShapeKey) -> ForwardLatencyRecord:
        return self._session[key]

    def __iter__(self) -> Iterator[ForwardShapeKey]:
        return iter(self._session)

    def __len__(self) -> int:
        return len(self._session)


def replay_task(
    candidates: Sequence[Candidate], plans: Sequence[Plan], prefetched: Prefetched, places: Places
) -> list[Replay]:
    """Return the times of each candidate's plan, from the memo where that is quicker."""
    check_stop()
    runs = sum(len(one.schedule.run_steps) for one in plans)
    if runs < MEMOIZE_FROM_RUNS or not _memoizable(candidates):
        return _replay_all(candidates, plans, prefetched.records)
    check = _list_check(Replay, len(candidates))
    # Plans follow from the candidates and the records, so these alone identify the result.
    return _memo(places.memo).call(
        _replay_identified,
        tuple(candidates),
        _digest_of(prefetched.records),
        plans,
        prefetched.records,
        ignore=("plans", "records"),
        check=check,
    )


def aggregate_task(
    candidates: Sequence[Candidate], plans: Sequence[Plan], times: Sequence[Replay], prefetched: Prefetched
) -> list[CandidateResult]:
    """Return the result of each candidate; the best of them with its trace."""
    results = [
        aggregate(candidate, one, time, prefetched.records)
        for candidate, one, time in zip(candidates, plans, times, strict=True)
    ]
    best = best_index(results)
    if best is not None:
        results[best] = replace(results[best], trace=trace(plans[best], times[best], prefetched.records))
    return results


@dataclass(frozen=True)
class PrefetchCounts:
    """What the run's summary needs of a prefetch; small enough to travel."""

    digests: frozenset[bytes]
    computed: int
    stopped: int


def done_task(prefetched: Prefetched) -> PrefetchCounts:
    """Return the counts of a prefetch, which the next prefetch of the identity waits for."""
    return PrefetchCounts(prefetched.digests, prefetched.computed, prefetched.stopped)


def open_session(tables: str, identity: TableIdentity) -> TableSession:
    """Return this process's session on a table, up to date."""
    session = _session(tables, identity)
    session.refresh()
    return session


def _plan_all(candidates: Sequence[Candidate]) -> list[Plan]:
    return [plan(candidate) for candidate in candidates]


def _replay_all(candidates: Sequence[Candidate], plans: Sequence[Plan], records: Records) -> list[Replay]:
    return [replay_plan(candidate, one, records) for candidate, one in zip(candidates, plans, strict=True)]


def _list_check(kind: type, count: int) -> Callable[[Any], bool]:
    """Return what tells a list of `count` objects of one type from anything else."""
    return lambda found: (
        isinstance(found, list) and len(found) == count and all(isinstance(one, kind) for one in found)
    )


def _replay_identified(
    candidates: Sequence[Candidate], _digest: str, plans: Sequence[Plan], records: Records
) -> list[Replay]:
    return _replay_all(candidates, plans, records)


def _digest_of(records: Records) -> str:
    """Return a digest of all that replay reads of records."""
    return digest_texts(
        sorted(f"{key!r} {one.latency_ms!r} {one.memory_left_gb!r}".encode() for key, one in records.items())
    )


def _memoizable(candidates: Sequence[Candidate]) -> bool:
    """Whether the memo knows all code behind a result; it does not know that of a plug-in's scheduler."""
    return all(is_built_in(get_scheduler(candidate.engine.scheduler)) for candidate in candidates)


_sessions: dict[tuple[str, str], TableSession] = {}
_sessions_lock = threading.Lock()


def _session(tables: str, identity: TableIdentity) -> TableSession:
    name = (tables, identity.id)
    with _sessions_lock:
        if name not in _sessions:
            store = ShapeStore(tables)
            spool = spool_of(store)
            unsent = None if spool is None else spool.table(identity)
            if unsent is not None:
                with suppress(StoreError):  # A worker elsewhere has a spool of its own.
                    upload(store)
            _sessions[name] = TableSession(store.table(identity), unsent)
        return _sessions[name]


_runners: dict[str, ModelRunner] = {}


def _runner(spec: RunnerSpec, identity: TableIdentity) -> ModelRunner:
    if identity.id not in _runners:
        _runners[identity.id] = spec.build()
    return _runners[identity.id]


@lru_cache(maxsize=8)
def _memo(folder: Path | None) -> Memo:
    import stages

    sources = sorted(Path(str(stages.__file__)).parent.glob("*.py"))
    return Memo(folder, source_digest(*sources))
