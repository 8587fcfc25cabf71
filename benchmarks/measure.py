"""How the benchmarks time: medians of repeated calls, in turn so that a drifting machine is fair to all.

Processor time, not wall time: other programs on the machine then count less."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

ROUND_S = 0.2


def medians_ms(calls: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Return each call's median processor time, ms, over `rounds` rounds after one warm-up.

    A quick call is repeated within a round, so that each round of each call lasts about `ROUND_S`.
    """
    repeats = {name: max(1, round(ROUND_S / max(_time_s(call, 1), 1e-6))) for name, call in calls.items()}
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            times[name].append(1000 * _time_s(call, repeats[name]))
    return {name: statistics.median(values) for name, values in times.items()}


def _time_s(call: Callable[[], object], repeats: int) -> float:
    started = time.process_time()
    for _ in range(repeats):
        call()
    return (time.process_time() - started) / repeats
