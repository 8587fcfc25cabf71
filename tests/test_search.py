"""Searching batch sizes: golden paths, and what holds for any deployment."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache import ForwardLatencyRecord, ForwardLatencyTable, ForwardShapeKey
from cache.errors import InvalidValueError
from stages import CandidateResult, evaluate
from stages.result import limit_stop_reason
from stages.search import (
    STRATEGIES,
    BatchRange,
    Found,
    Strategy,
    best_batch_size,
    listed,
    search,
)
from stages.search_estimate import LatencyLimits, LinearEstimate
from tests.test_golden import CASES, RECORDS, agrees, reference_candidate

GOLDEN = [case for case in CASES.values() if "search" in case]


def golden_search(case: dict[str, Any], strategy: Strategy) -> Found:
    table = ForwardLatencyTable(RECORDS[case["identity"]].__getitem__)
    workload, given_range = case["workload"], case["search"]["batch_range"]
    return search(
        strategy,
        lambda size: evaluate(reference_candidate(case, size), table),
        BatchRange(*given_range) if given_range else BatchRange(),
        LatencyLimits(workload.get("ttft_limit_ms"), workload.get("tpot_limit_ms")),
        memory_grows=workload["mode"] != "prefill",
    )


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: case["id"])
def test_exponential_visits_and_keeps_the_recorded_batch_sizes_in_order(case: dict[str, Any]) -> None:
    expected = case["search"]
    found = golden_search(case, "exponential")
    assert list(found.visited) == expected["visited"]
    assert list(found.kept) == expected["feasible"]
    if expected["best"] is None:
        assert found.best is None
        return
    assert found.best == expected["best"]["batch_size"]
    result = found.results[found.best]
    for value, name in (
        (result.concurrency, "concurrency"),
        (result.ttft_ms, "ttft"),
        (result.tpot_ms, "tpot"),
        (result.tokens_per_s, "token/s"),
        (result.tokens_per_s_per_device, "token/s/device"),
    ):
        assert agrees(value, expected["best"][name])


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: case["id"])
def test_linear_exponential_ends_on_the_recorded_best_row_and_visits_no_more(case: dict[str, Any]) -> None:
    found = golden_search(case, "linear_exponential")
    expected = case["search"]
    assert found.best == (expected["best"] and expected["best"]["batch_size"])
    assert set(found.visited) <= set(expected["visited"])


def test_linear_exponential_saves_most_visits_where_memory_decides() -> None:
    case = CASES["rfc-128k-1k"]
    assert golden_search(case, "linear_exponential").visited == (1, 8, 12, 13)


def result(
    tokens_per_s: float = 1.0,
    memory_left_gb: float = 1.0,
    ttft_ms: float | None = None,
    kv_cache_gb: float | None = None,
    limit_ms: float | None = None,
) -> CandidateResult:
    stop = "decode_oom" if memory_left_gb < 0 else limit_stop_reason(ttft_ms, None, limit_ms, None)
    return CandidateResult(
        ttft_ms=ttft_ms,
        tpot_ms=None,
        tokens_per_s=tokens_per_s,
        tokens_per_s_per_device=tokens_per_s,
        memory_left_gb=memory_left_gb,
        concurrency=1,
        effective_input_length=1,
        prefill_num_chunks=1,
        stop_reason=stop,
        prefill_breakdown=None,
        decode_breakdown=None,
        kv_cache_gb=kv_cache_gb,
    )


def fits_up_to(most: int) -> Callable[[int], CandidateResult]:
    return lambda size: result(tokens_per_s=size, memory_left_gb=float(most - size))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_no_strategy_finds_anything_when_the_smallest_batch_does_not_fit(strategy: Strategy) -> None:
    found = search(strategy, fits_up_to(0), BatchRange(1, 40))
    assert found.kept == ()
    assert found.best is None
    assert found.rows == found.visited


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("most", [1, 2, 17, 39, 40, 400])
def test_every_strategy_finds_the_largest_batch_that_fits_in_a_range(strategy: Strategy, most: int) -> None:
    assert search(strategy, fits_up_to(most), BatchRange(1, 40)).best == min(most, 40)


@pytest.mark.parametrize("strategy", ["exponential", "linear_exponential"])
@pytest.mark.parametrize("most", [1, 511, 512, 513, 1023, 1024, 5000])
def test_an_open_search_doubles_until_it_stops(strategy: Strategy, most: int) -> None:
    assert search(strategy, fits_up_to(most), BatchRange()).best == most


def test_an_open_search_probes_ten_times_at_most() -> None:
    found = search("exponential", fits_up_to(1 << 62), BatchRange())
    assert found.visited[:11] == (1, *(512 << doublings for doublings in range(10)))
    assert found.best == 512 << 10


def test_bounds_that_were_only_probed_are_no_rows_and_stopped_visits_are() -> None:
    found = search("exponential", fits_up_to(600), BatchRange())
    assert found.visited[:3] == (1, 512, 1024)
    assert 1 not in found.rows
    assert 1024 in found.rows


@given(
    limit_ms=st.floats(1, 1e4),
    base_ms=st.floats(0.01, 100),
    slope=st.floats(1e-3, 50),
    bend=st.floats(0.3, 2.5),
    right=st.one_of(st.none(), st.integers(1, 3000)),
)
def test_linear_exponential_ends_on_the_bound_of_exponential_however_latency_bends(
    limit_ms: float, base_ms: float, slope: float, bend: float, right: int | None
) -> None:
    def judged(size: int) -> CandidateResult:
        return result(size, ttft_ms=base_ms + slope * size**bend, limit_ms=limit_ms)

    bounds, limits = BatchRange(1, right), LatencyLimits(limit_ms)
    exact = search("exponential", judged, bounds, limits)
    quick = search("linear_exponential", judged, bounds, limits)
    assert quick.best == exact.best


@given(
    most=st.integers(1, 2000),
    grows_until=st.integers(1, 2000),
    has_parts=st.booleans(),
    right=st.one_of(st.none(), st.integers(1, 3000)),
)
def test_linear_exponential_ends_on_the_bound_of_exponential_when_memory_stops_growing(
    most: int, grows_until: int, has_parts: bool, right: int | None
) -> None:
    def judged(size: int) -> CandidateResult:
        left_gb = float(min(most, grows_until + 5) - min(size, grows_until))
        kv_cache_gb = float(min(size, grows_until)) if has_parts else None
        return result(size, memory_left_gb=left_gb, kv_cache_gb=kv_cache_gb)

    bounds = BatchRange(1, right)
    assert search("linear_exponential", judged, bounds).best == search("exponential", judged, bounds).best


def test_estimates_stretch_latencies_by_one_and_a_half_and_memory_not_at_all() -> None:
    known = {1: result(ttft_ms=10.0, memory_left_gb=20.0), 11: result(ttft_ms=110.0, memory_left_gb=10.0)}
    assert LinearEstimate(LatencyLimits(210.0), memory_grows=False).most(known) == 11 + 1.5 * 10
    assert LinearEstimate(LatencyLimits(), memory_grows=True).most(known) == 11 + 10
    parts = {4: result(memory_left_gb=6.0, kv_cache_gb=8.0)}
    assert LinearEstimate(LatencyLimits(), memory_grows=True).most(parts) == 4 + 3
    assert LinearEstimate(LatencyLimits(1.0), memory_grows=True).most({}) == math.inf


@given(st.lists(st.floats(1, 100), min_size=1, max_size=60), st.integers(0, 60))
def test_exhaustive_frontier_finds_the_true_maximum_and_what_bisection_misses(
    throughputs: list[float], stopped: int
) -> None:
    def judged(size: int) -> CandidateResult:
        return result(throughputs[size - 1], memory_left_gb=-1.0 if size == stopped else 1.0)

    bounds = BatchRange(1, len(throughputs))
    found = search("exhaustive_frontier", judged, bounds)
    path = search("bisect", judged, bounds)
    feasible = [value for size, value in enumerate(throughputs, start=1) if size != stopped]
    if not feasible:
        assert found.best is None
        return
    assert found.best is not None
    assert found.bisection is not None
    assert math.isclose(found.results[found.best].tokens_per_s, max(feasible), rel_tol=1e-9)
    assert found.bisection.best == path.best
    got = 0.0 if path.best is None else throughputs[path.best - 1]
    assert math.isclose(found.bisection.loss, 1 - got / max(feasible), abs_tol=1e-8)


def test_equal_throughputs_count_as_no_loss_and_the_larger_batch_as_best() -> None:
    noise = {1: 10.0, 2: 10.0 * (1 + 1e-15), 3: 10.0 * (1 - 1e-15)}
    found = search("exhaustive_frontier", lambda size: result(noise[size]), BatchRange(1, 3))
    assert found.best == 3
    assert found.bisection is not None
    assert found.bisection.loss == 0
    assert best_batch_size(found.results, []) is None


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_an_out_of_memory_candidate_computes_nothing_behind_its_first_negative_record(
    strategy: Strategy,
) -> None:
    case = CASES["rfc-128k-1k"]
    asked: list[ForwardShapeKey] = []

    def forward(key: ForwardShapeKey) -> ForwardLatencyRecord:
        asked.append(key)
        too_long = key.seq_len * key.model_concurrency > 50_000
        return ForwardLatencyRecord(1.0, -1.0 if too_long else 1.0)

    table = ForwardLatencyTable(forward)
    found = search(strategy, lambda size: evaluate(reference_candidate(case, size), table), BatchRange(1, 64))
    assert all(found.results[size].out_of_memory for size in found.visited)
    assert [key for key in asked if key.seq_len > 51_200] == []
    assert len(asked) == len(set(asked)) == 49


def test_listed_sizes_keep_their_order_and_the_stopped_ones() -> None:
    found = listed(fits_up_to(5), [4, 9, 2])
    assert found.visited == found.rows == (4, 9, 2)
    assert found.kept == (4, 2)


def test_ranges_and_strategies_that_make_no_sense_are_refused() -> None:
    with pytest.raises(InvalidValueError, match=r"range \[8, 2\] is reversed"):
        BatchRange(8, 2)
    with pytest.raises(InvalidValueError, match="begins at 0"):
        BatchRange(0, 2)
    with pytest.raises(InvalidValueError, match="bisect has no range"):
        search("bisect", fits_up_to(5), BatchRange())
    with pytest.raises(InvalidValueError, match="no search 'magic'"):
        search("magic", fits_up_to(5), BatchRange())  # type: ignore[arg-type]
