"""Workload, engine, parallelism and candidate: what they compute, and what they refuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache import ForwardLatencyRecord, ForwardLatencyTable, ForwardShapeKey
from cache.errors import InvalidShapeError
from cache.shapes import LARGEST_COUNT
from stages import Candidate, Engine, Parallelism, Workload, evaluate
from stages.breakdown import bound_shares, breakdown_text, mean_breakdown_text
from stages.plan import plan, require_plannable
from stages.result import STOP_REASONS, limit_stop_reason
from stages.workload import MOST_CHUNKS, ChunkPlan


@given(st.integers(1, 10_000), st.integers(1, 500))
def test_chunks_cover_the_prompt_and_only_the_last_is_short(length: int, chunk_length: int) -> None:
    chunks = ChunkPlan(length, chunk_length)
    query_lens = [chunks.query_len(i) for i in range(chunks.num_chunks)]
    assert sum(query_lens) == length
    assert all(q == chunk_length for q in query_lens[:-1])
    assert [chunks.seq_len(i) for i in range(chunks.num_chunks)] == [
        sum(query_lens[: i + 1]) for i in range(chunks.num_chunks)
    ]


@pytest.mark.parametrize(
    ("length", "hit_rate", "effective"),
    [(1000, 0.0, 1000), (1000, 0.25, 750), (3, 0.5, 2), (2, 0.99, 1), (1, 0.9, 1)],
)
def test_effective_length_is_what_the_prefix_cache_leaves(
    length: int, hit_rate: float, effective: int
) -> None:
    assert Workload(length, 1, hit_rate).effective_input_length == effective


def test_mtp_lengthens_the_query_and_folds_the_latency() -> None:
    engine = Engine(100, num_mtp_tokens=2, mtp_acceptance_rate=(0.5, 0.25, 0.1))
    assert engine.decode_query_len == 3
    assert engine.fold_decode_ms(17.5) == 10.0


def test_expert_sizes_follow_from_the_devices() -> None:
    assert Parallelism(tp=4, dp=2, ep=8).as_json() == {
        "tp": 4, "dp": 2, "pp": 1, "ep": 8, "moe_tp": 1, "moe_dp": 1,
    }  # fmt: skip
    assert Parallelism(tp=4, dp=2, ep=2).moe_tp == 4
    assert Parallelism(tp=4, dp=2, moe_tp=2, ep=2).moe_dp == 2
    assert Parallelism(tp=4, dp=2, pp=3).num_devices == 24


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Workload(0, 1), "input_length is 0; it must be a whole number of at least 1"),
        (lambda: Workload(1, -3), "output_length is -3"),
        (lambda: Workload(1.5, 1), "input_length is 1.5"),
        (lambda: Workload(True, 1), "input_length is True"),
        (lambda: Workload(1, 1, 1.0), "prefix_cache_hit_rate is 1.0; it must be at least 0 and below 1"),
        (lambda: Workload(1, 1, -0.1), "prefix_cache_hit_rate is -0.1"),
        (lambda: Workload(1, 1, float("nan")), "prefix_cache_hit_rate is nan"),
        (lambda: Engine(0), "max_batched_tokens is 0"),
        (lambda: Engine(1, -1), "num_mtp_tokens is -1"),
        (lambda: Engine(1, 3, (0.9,)), "mtp_acceptance_rate has 1 rates; num_mtp_tokens is 3"),
        (lambda: Engine(1, 1, (1.5,)), "each rate must be between 0 and 1"),
        (lambda: Engine(1, serving_cost_ms=-1.0), "serving_cost_ms is -1.0"),
        (lambda: Engine(1, serving_cost_ms=float("inf")), "serving_cost_ms is inf"),
        (lambda: Parallelism(tp=0), "tp is 0; a parallel size must be positive"),
        (lambda: Parallelism(tp=4, ep=3), r"is 3 \* 1 \* 1; it must be tp \* dp \(4\)"),
        (lambda: candidate(mode="mixed"), "mode is 'mixed'; it must be one of aggregated, prefill, decode"),
        (lambda: candidate(batch_size=0), "batch_size is 0"),
        (lambda: candidate(ttft_limit_ms=0.0), "ttft_limit_ms is 0.0; a limit must be positive"),
        (lambda: candidate(tpot_limit_ms=float("nan")), "tpot_limit_ms is nan"),
    ],
)  # fmt: skip
def test_what_cannot_be_served_is_refused_in_a_sentence(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def candidate(**changes: Any) -> Candidate:
    values: dict[str, Any] = {
        "mode": "aggregated", "workload": Workload(100, 10), "engine": Engine(40),
        "parallelism": Parallelism(), "batch_size": 2,
    }  # fmt: skip
    return Candidate(**(values | changes))


def test_concurrency_and_budget_count_all_replicas() -> None:
    wide = candidate(parallelism=Parallelism(tp=2, dp=3, pp=2))
    assert wide.concurrency == 12
    assert wide.budget_tokens == 120


def roomy(_: object) -> ForwardLatencyRecord:
    return ForwardLatencyRecord(10.0, 1.0)


@pytest.mark.parametrize("reason", STOP_REASONS)
def test_every_stop_reason_is_reached(reason: str) -> None:
    limits = {"ttft_limit": {"ttft_limit_ms": 1.0}, "tpot_limit": {"tpot_limit_ms": 1.0}}.get(reason, {})

    def forward(key: Any) -> ForwardLatencyRecord:
        out_of_memory = reason == ("decode_oom" if key.is_decode else "prefill_oom")
        return ForwardLatencyRecord(10.0, -1.0 if out_of_memory else 1.0)

    result = evaluate(candidate(**limits), ForwardLatencyTable(forward))
    assert result.stop_reason == reason
    assert not result.feasible
    assert result.out_of_memory == (result.stop_shape is not None) == reason.endswith("oom")


def test_the_tpot_limit_is_named_before_the_ttft_limit() -> None:
    assert limit_stop_reason(2.0, 2.0, 1.0, 1.0) == "tpot_limit"
    assert limit_stop_reason(1.0, 1.0, 1.0, 1.0) is None
    assert limit_stop_reason(None, None, 1.0, 1.0) is None


def breakdown(**seconds: float) -> ForwardLatencyRecord:
    return ForwardLatencyRecord(1.0, 1.0, {"x": seconds})


def test_each_bound_type_stands_under_its_own_name_beside_integer_zeros() -> None:
    record = breakdown(memory_bound=0.5, communication_bound=0, compute_bound_mma=1.5, compute_bound_gp=0)
    assert breakdown_text(bound_shares(record)) == "Mem 25.00 | Comm 0.00 | Cube 75.00 | Vec 0.00"


def test_no_time_gives_zeros_and_is_left_out_of_means() -> None:
    idle = breakdown(memory_bound=0, communication_bound=0, compute_bound_mma=0, compute_bound_gp=0)
    busy = breakdown(memory_bound=1.0)
    assert breakdown_text(bound_shares(idle)) == "Mem 0.00 | Comm 0.00 | Cube 0.00 | Vec 0.00"
    assert mean_breakdown_text([(3, bound_shares(idle)), (1, bound_shares(busy))]) == (
        "Mem 100.00 | Comm 0.00 | Cube 0.00 | Vec 0.00"
    )
    assert mean_breakdown_text([(3, bound_shares(idle))]) is None


def test_shares_of_time_by_source_are_weighted_by_the_pass_that_sets_the_step() -> None:
    def forward(key: Any) -> ForwardLatencyRecord:
        kind = "measured" if key.is_decode else "analytic"
        return ForwardLatencyRecord(30.0 if key.is_decode else 10.0, 1.0, sources={kind: 1.0})

    result = evaluate(candidate(workload=Workload(40, 1), batch_size=1), ForwardLatencyTable(forward))
    assert result.source_shares == {"analytic": 0.25, "measured": 0.75}
    assert evaluate(candidate(), ForwardLatencyTable(roomy)).source_shares == {"unknown": 1.0}


HUGE = 10**30


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Workload(HUGE, 1), "input_length is 10+; it must be at most 2147483647"),
        (lambda: Workload(1, HUGE), "output_length is 10+; it must be at most"),
        (lambda: Engine(HUGE), "max_batched_tokens is 10+; it must be at most"),
        (lambda: Parallelism(tp=HUGE), "tp is 10+; it must be at most"),
        (lambda: Parallelism(tp=2**20, dp=2**20), r"tp \* dp \* pp is 1099511627776; it must be at most"),
        (lambda: candidate(batch_size=HUGE), "batch_size is 10+; it must be at most"),
        (lambda: candidate(batch_size=2**30, parallelism=Parallelism(dp=4)), "4294967296 requests in flight"),
        (lambda: candidate(workload=Workload(2**30, 2**30)), "come to 2147483649 tokens; they must"),
        (lambda: candidate(workload=Workload(131072, 1), engine=Engine(1)), "131072 chunks.* to 2 or more"),
        (lambda: require_plannable(candidate(batch_size=10**9)), "lower batch_size, or raise max_b"),
        (lambda: Workload("x" * 5000, 1), r"input_length is 'x{59}\.\.\. \(5,002 characters\); it must be"),
        (lambda: Workload(-(10**5000), 1), "input_length is a number of thousands of digits; it must be"),
    ],
)  # fmt: skip
def test_numbers_beyond_any_serving_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_the_most_chunks_that_are_allowed_are_planned() -> None:
    widest = candidate(workload=Workload(MOST_CHUNKS, 2), engine=Engine(1), batch_size=1)
    assert len(plan(widest).keys) == MOST_CHUNKS + 1
    disaggregated = candidate(mode="decode", workload=Workload(MOST_CHUNKS + 1, 2), engine=Engine(1))
    assert len(plan(disaggregated).keys) == 1


@pytest.mark.parametrize("wrong", [1.5, True, "2", None, 2**31, HUGE])
@pytest.mark.parametrize("place", [1, 2, 3, 4])
def test_a_shape_is_made_of_whole_numbers(wrong: Any, place: int) -> None:
    values: list[Any] = [False, 2, 2, LARGEST_COUNT, 2, 2, 2]
    values[place] = wrong
    if wrong is None and place == 4:  # No images.
        return
    with pytest.raises(InvalidShapeError, match=r"it must be (a whole number|positive and|at )"):
        ForwardShapeKey(*values)


def test_numpy_whole_numbers_make_the_same_shape_and_nothing_else_is_a_flag() -> None:
    plain = ForwardShapeKey(True, 2, 1, 8, 1, 2, 3)
    made = ForwardShapeKey(np.bool_(True), *(np.int32(value) for value in (2, 1, 8, 1, 2, 3)))
    assert made == plain
    assert [type(value) for value in (made.is_decode, made.query_len, made.image_height)] == [bool, int, int]
    pieces = ForwardShapeKey.of_segments(False, [(np.int64(1), np.int64(4), np.int64(1)), (2, 4, 1)])
    assert type(pieces.model_concurrency) is type((pieces.segments or ())[0].seq_len) is int
    with pytest.raises(InvalidShapeError, match="is_decode is 1; it must be True or False"):
        ForwardShapeKey(1, 1, 1, 1)  # type: ignore[arg-type]
