"""Does the msmodeling runner give the figures of the reference, and what does a cold shape cost?

Computes every record of tests/data/reference_records.parquet again and compares: latency and breakdown,
relative; memory parts in GiB. Then evaluates the workloads of reference_cases.json with the records it
computed. Activation memory is reported and does not count: the recorded figures depend on which shapes the
recording process had computed before (docs/runners.md). Needs msmodeling (SHAPECAST_MSMODELING names its
folder); about three minutes on two idle cores.

    python benchmarks/reproduce_reference_records.py [identity ...]
"""

from __future__ import annotations

import functools
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from cache import ForwardLatencyRecord, ForwardLatencyTable, ForwardShapeKey
from cache.errors import ShapecastError
from stages import evaluate
from tests.reference_records import (
    memory_differences_gb,
    reference_identities,
    reference_key,
    reference_rows,
    reference_spec,
    relative_error,
)
from tests.test_golden import CASES, check, reference_candidate

TOLERANCE = 1e-9
MEMORY_TOLERANCE_GB = 0.01
HEADER = (
    "identity | records | worst relative error of latency and breakdown | worst difference of total, weight, "
    "KV and reserved, GiB | activation: worst difference GiB, within 0.01 | out of memory alike | "
    "seconds per shape: first, median, max"
)

Forward = Callable[[ForwardShapeKey], ForwardLatencyRecord]


def compare_records(identity: dict[str, Any], forward: Forward) -> bool:
    """Print a row for an identity; return whether all but activation memory agrees."""
    rows = reference_rows(identity["id"])
    errors, fixed, activation, alike, seconds = [], [], [], 0, []
    for row in rows:
        started = time.perf_counter()
        record = forward(reference_key(row))
        seconds.append(time.perf_counter() - started)
        errors.append(relative_error(record, row))
        differences = memory_differences_gb(record, row)
        activation.append(differences.pop("activation"))
        alike += record.out_of_memory == (row["memory_left_gb"] < 0)
        fixed.append(max(differences.values()))
    within = sum(difference <= MEMORY_TOLERANCE_GB for difference in activation)
    print(
        f"{identity['id']} | {len(rows)} | {max(errors):.1e} | {max(fixed):.1e} | {max(activation):.4f}, "
        f"{within} of {len(rows)} | {alike} of {len(rows)} | "
        f"{seconds[0]:.2f}, {statistics.median(seconds):.2f}, {max(seconds):.2f}",
        flush=True,
    )
    return max(errors) <= TOLERANCE and max(fixed) <= TOLERANCE


def compare_workloads(forwards: dict[str, Forward]) -> None:
    """Print the candidates that differ in more than memory, and how many there are."""
    candidates = alike = 0
    for case in CASES.values():
        if case["identity"] not in forwards:
            continue
        for expected in case["candidates"]:
            candidate = reference_candidate(case, expected["batch_size"])
            result = evaluate(candidate, ForwardLatencyTable(forwards[case["identity"]]))
            candidates += 1
            try:
                check(result, {**expected, "memory_left_gb": result.memory_left_gb}, candidate.mode)
                alike += 1
            except AssertionError:
                print(
                    f"{case['id']}, batch size {candidate.batch_size}: {result.memory_left_gb:.2f} GiB left, "
                    f"recorded {expected['memory_left_gb']:.2f}; {result.stop_reason}, recorded "
                    f"{expected['early_stop_reason']}; TTFT {result.ttft_ms} ms, recorded "
                    f"{expected['ttft_ms']}"
                )
    print(f"workloads: {alike} of {candidates} candidates give the recorded results, memory aside")


def main(wanted: list[str]) -> int:
    """Print both comparisons; return 1 when latencies, breakdowns or fixed memory parts of records differ."""
    print(HEADER)
    forwards: dict[str, Forward] = {}
    agree = True
    for identity in reference_identities():
        if not wanted or identity["id"] in wanted:
            forwards[identity["id"]] = functools.cache(reference_spec(identity).build().forward)
            agree &= compare_records(identity, forwards[identity["id"]])
    compare_workloads(forwards)
    return int(not agree)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except ShapecastError as error:
        sys.exit(f"error: {error}")
