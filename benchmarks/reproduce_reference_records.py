"""Does the msmodeling runner give the figures of the reference, and what does a cold shape cost?

Computes every record of tests/data/reference_records.parquet again and compares: latency and breakdown,
relative; memory parts in GiB. Activation memory is reported and does not count: the recorded figures depend
on which shapes the recording process had computed before (docs/runners.md). Needs msmodeling
(SHAPECAST_MSMODELING names its folder); about three minutes on two cores.

    python benchmarks/reproduce_reference_records.py [identity ...]
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.reference_records import (
    memory_differences_gb,
    reference_identities,
    reference_key,
    reference_rows,
    reference_spec,
    relative_error,
)

TOLERANCE = 1e-9
MEMORY_TOLERANCE_GB = 0.01


HEADER = (
    "identity | records | worst relative error of latency and breakdown | worst difference of total, weight, "
    "KV and reserved, GiB | activation: worst difference GiB, within 0.01 | out of memory alike | "
    "seconds per shape: first, median, max"
)


def main(wanted: list[str]) -> int:
    """Print a row per identity; return 1 when latencies, breakdowns or fixed memory parts differ."""
    print(HEADER)
    failed = False
    for identity in reference_identities():
        if wanted and identity["id"] not in wanted:
            continue
        runner = reference_spec(identity).build()
        rows = reference_rows(identity["id"])
        errors, fixed, activation, alike, seconds = [], [], [], 0, []
        for row in rows:
            started = time.perf_counter()
            record = runner.forward(reference_key(row))
            seconds.append(time.perf_counter() - started)
            errors.append(relative_error(record, row))
            differences = memory_differences_gb(record, row)
            activation.append(differences.pop("activation"))
            alike += record.out_of_memory == (row["memory_left_gb"] < 0)
            fixed.append(max(differences.values()))
        failed |= max(errors) > TOLERANCE or max(fixed) > TOLERANCE
        within = sum(difference <= MEMORY_TOLERANCE_GB for difference in activation)
        print(
            f"{identity['id']} | {len(rows)} | {max(errors):.1e} | {max(fixed):.1e} | {max(activation):.4f}, "
            f"{within} of {len(rows)} | {alike} of {len(rows)} | "
            f"{seconds[0]:.2f}, {statistics.median(seconds):.2f}, {max(seconds):.2f}",
            flush=True,
        )
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
