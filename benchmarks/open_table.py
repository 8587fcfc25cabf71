"""How long does it take to open a table of 100,000 records: after compaction, and in 64 files?

Opening means: every file read, its digest, identity and schema checked, every key indexed, one record
decoded. The disk cache is warm; the median of several calls is reported.

    python benchmarks/open_table.py
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

from cache.compact import SCATTERED_PARTS, compact
from cache.identity import TableIdentity
from cache.schema import StoredRecord
from cache.shapes import DeviceMemory, ForwardLatencyRecord, ForwardShapeKey
from cache.store import ShapeStore, StoredTable

RECORDS = 100_000
CALLS = 7


def main() -> None:
    """Write a table, and time opening it."""
    with tempfile.TemporaryDirectory() as folder:
        table = ShapeStore(Path(folder)).table(TableIdentity("bench", "1", "m" * 64, "d" * 64))
        rows = [stored(number) for number in range(RECORDS)]
        step = -(-RECORDS // SCATTERED_PARTS)
        for start in range(0, RECORDS, step):
            table.append(rows[start : start + step])
        report(table)
        started_s = time.perf_counter()
        compact(table)
        print(f"compaction: {time.perf_counter() - started_s:.2f} s")
        report(table)


def stored(number: int) -> StoredRecord:
    """Return a record with all that a roofline record has."""
    key = ForwardShapeKey(number % 2 == 0, number % 512 + 1, 1024, 1024 + number)
    breakdown = {"memory_bound": 0.001 * number, "communication_bound": 0.5, "compute_bound_mma": 0.25}
    memory = DeviceMemory(80.0, 40.0, 8.0, 2.0, 10.0)
    record = ForwardLatencyRecord(number * 0.5, 20.0, {"roofline": breakdown}, memory, {"analytic": 1.0})
    return StoredRecord(key, record, 1_760_000_000_000_000 + number, 2e-5)


def report(table: StoredTable) -> None:
    """Print the median time to open the table."""
    times_s = []
    for _ in range(CALLS):
        started_s = time.perf_counter()
        view = table.load()
        assert len(view) == RECORDS
        assert view[ForwardShapeKey(True, 1, 1024, 1024)].latency_ms == 0.0
        times_s.append(time.perf_counter() - started_s)
    files = len(table.part_names())
    print(f"open {RECORDS:,} records in {files} files: median {statistics.median(times_s):.2f} s of {CALLS}")


if __name__ == "__main__":
    main()
