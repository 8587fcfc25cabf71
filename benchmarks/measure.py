"""How the benchmarks time: medians of repeated calls, in turn so that a drifting machine is fair to all.

Processor time, not wall time: other programs on the machine then count less."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping


def medians_ms(calls: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Return each call's median processor time, ms, over `rounds` rounds after one warm-up."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for round_index in range(rounds + 1):
        for name, call in calls.items():
            started = time.process_time()
            call()
            if round_index:
                times[name].append(1000 * (time.process_time() - started))
    return {name: statistics.median(values) for name, values in times.items()}
