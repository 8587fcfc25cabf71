"""Where a candidate's time goes, against the literal schedule."""

from __future__ import annotations

import numpy as np
import pytest

from cache import ForwardLatencyRecord, ForwardLatencyTable, ForwardShapeKey
from stages import Candidate, Engine, Parallelism, Workload
from stages.aggregate import aggregate
from stages.evaluate import replay_plan
from stages.lengths import LengthBin, LengthDistribution
from stages.plan import plan
from stages.prefetch import prefetch
from stages.result import best_index
from stages.trace import MOST_CHUNKS, MOST_SEGMENTS, Trace, trace


def forward(key: ForwardShapeKey) -> ForwardLatencyRecord:
    seconds = 1e-3 * key.model_concurrency
    return ForwardLatencyRecord(
        latency_ms=1.0 + 0.001 * key.seq_len + 0.01 * key.model_concurrency,
        memory_left_gb=10.0,
        breakdowns={"analytic": {"memory_bound": seconds, "compute_bound_mma": 3 * seconds}},
    )


def traced(**changes: object) -> tuple[Trace, Candidate, float]:
    fields: dict[str, object] = {
        "mode": "aggregated", "workload": Workload(1000, 20), "engine": Engine(max_batched_tokens=100),
        "parallelism": Parallelism(), "batch_size": 5,
    }  # fmt: skip
    candidate = Candidate(**(fields | changes))  # type: ignore[arg-type]
    planned = plan(candidate)
    records = prefetch(ForwardLatencyTable(forward), [planned.keys])
    times = replay_plan(candidate, planned, records)
    return trace(planned, times, records), candidate, times.end_ms


@pytest.mark.parametrize("mode", ["aggregated", "prefill", "decode"])
def test_segments_cover_the_schedule_without_gap(mode: str) -> None:
    found, _, end_ms = traced(mode=mode)
    starts, ends = found.segments["start_ms"], found.segments["end_ms"]
    assert starts[0] == 0.0
    assert starts[1:] == ends[:-1]
    assert ends[-1] == pytest.approx(end_ms, rel=1e-5)


def test_segments_hold_every_prefilled_and_decoded_token() -> None:
    found, candidate, _ = traced()
    steps = np.array(found.segments["steps"])
    prefilled = np.dot(steps, found.segments["prefill_requests"])
    decoded = np.dot(steps, found.segments["decode_requests"])
    assert prefilled == pytest.approx(candidate.concurrency * candidate.chunks.num_chunks)
    assert decoded == pytest.approx(candidate.concurrency * (candidate.workload.output_length - 1))


def test_chunks_have_the_latencies_of_their_records() -> None:
    found, _, _ = traced()
    assert found.chunks["seq_len"] == list(range(100, 1001, 100))
    assert found.chunks["query_len"] == [100] * 10
    expected = [
        1.0 + 0.001 * seq_len + 0.01 * requests
        for seq_len, requests in zip(found.chunks["seq_len"], found.chunks["requests"], strict=True)
    ]
    assert found.chunks["latency_ms"] == pytest.approx(expected, rel=1e-5)
    assert found.chunks["memory_bound_ms"] == pytest.approx([value / 4 for value in expected], rel=1e-5)
    assert "communication_bound_ms" not in found.chunks


def test_long_schedules_are_thinned_but_keep_their_ends_and_totals() -> None:
    found, candidate, end_ms = traced(workload=Workload(40_000, 2000), batch_size=600)
    assert candidate.chunks.num_chunks == 400
    assert len(found.chunks["seq_len"]) == MOST_CHUNKS
    assert found.chunks["seq_len"][0] == 100
    assert found.chunks["seq_len"][-1] == 40_000
    assert found.runs_per_segment > 1
    assert len(found.segments["steps"]) <= MOST_SEGMENTS
    assert found.segments["end_ms"][-1] == pytest.approx(end_ms, rel=1e-5)
    steps = np.array(found.segments["steps"])
    decoded = np.dot(steps, found.segments["decode_requests"])
    assert decoded == pytest.approx(600 * 1999, rel=1e-4)


def test_steps_that_mix_lengths_have_a_schedule_but_no_chunks() -> None:
    bins = LengthDistribution((LengthBin(100, 200, 1.0), LengthBin(400, 600, 1.0)))
    found, _, end_ms = traced(workload=Workload.of_lengths(bins, output_length=20))
    assert found.chunks["seq_len"] == []
    assert found.segments["end_ms"][-1] == pytest.approx(end_ms, rel=1e-5)


def test_an_out_of_memory_schedule_is_traced_up_to_it() -> None:
    def small(key: ForwardShapeKey) -> ForwardLatencyRecord:
        return ForwardLatencyRecord(1.0, 1.0 if key.seq_len < 500 else -1.0)

    candidate = Candidate("prefill", Workload(1000, 20), Engine(100), Parallelism(), 2)
    planned = plan(candidate)
    records = prefetch(ForwardLatencyTable(small), [planned.keys])
    times = replay_plan(candidate, planned, records)
    found = trace(planned, times, records)
    assert found.chunks["seq_len"] == [100, 200, 300, 400, 500]
    assert sum(found.segments["steps"]) == 8
    assert list(found.chunks) == ["seq_len", "query_len", "requests", "latency_ms"]


def test_the_best_of_a_cell_is_the_feasible_one_with_most_throughput_per_device() -> None:
    results = []
    for batch_size, limit_ms in ((1, None), (8, None), (64, 0.001)):
        candidate = Candidate(
            "decode", Workload(100, 20), Engine(100), Parallelism(), batch_size, tpot_limit_ms=limit_ms
        )
        planned = plan(candidate)
        records = prefetch(ForwardLatencyTable(forward), [planned.keys])
        results.append(aggregate(candidate, planned, replay_plan(candidate, planned, records), records))
    assert best_index(results) == 1
    assert best_index(results[2:]) is None
