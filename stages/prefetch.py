"""Prefetch: make the records of planned shapes known, candidate by candidate."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from cache.shapes import ForwardLatencyRecord, ForwardShapeKey
from cache.table import ForwardLatencyTable

Records = Mapping[ForwardShapeKey, ForwardLatencyRecord]


def prefetch(
    table: ForwardLatencyTable, key_lists: Iterable[Sequence[ForwardShapeKey]]
) -> dict[ForwardShapeKey, ForwardLatencyRecord]:
    """Return the records that candidates with these key lists use.

    Each list is one candidate's shapes in step order. An out-of-memory record stops its candidate, so
    the shapes behind it have no record unless another candidate needs them.
    """
    records: dict[ForwardShapeKey, ForwardLatencyRecord] = {}
    for keys in key_lists:
        table.new_candidate()
        for key in keys:
            record = records[key] = table.get(key)
            if record.out_of_memory:
                break
    return records
