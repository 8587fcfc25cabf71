"""Records and tables that several tests of the store use."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from cache.identity import TableIdentity
from cache.schema import StoredRecord
from cache.shapes import DeviceMemory, ForwardLatencyRecord, ForwardShapeKey
from cache.store import ShapeStore, StoredTable

IDENTITY = TableIdentity("fake", "1", "m" * 64, "d" * 64, parallelism={"tp": 2}, label="a model on a device")
MEMORY = DeviceMemory(80.0, 40.0, 8.0, 2.0, 10.0)


def shape(number: int) -> ForwardShapeKey:
    return ForwardShapeKey(number % 5 == 0, number % 7 + 1, number + 1, 2 * number + 1)


def record(number: int, latency_ms: float | None = None) -> ForwardLatencyRecord:
    return ForwardLatencyRecord(
        number + 0.1 if latency_ms is None else latency_ms,
        20.0,
        {"fake": {"memory_bound": 0.001 * number}},
        MEMORY,
        {"analytic": 0.75, "measured": 0.25},
    )


def stored(numbers: Iterable[int], *, computed_at_us: int = 1_760_000_000_000_000) -> list[StoredRecord]:
    return [StoredRecord(shape(n), record(n), computed_at_us + n, 0.25 + n) for n in numbers]


def expected(numbers: Iterable[int]) -> dict[ForwardShapeKey, ForwardLatencyRecord]:
    return {shape(number): record(number) for number in numbers}


def table_at(root: Path | str, identity: TableIdentity = IDENTITY) -> StoredTable:
    return ShapeStore(root).table(identity)


def part_paths(root: Path, identity: TableIdentity = IDENTITY) -> list[Path]:
    return sorted((root / identity.id).glob("part-*.parquet"))


Tamper = Callable[[Path], None]
