"""How the requests of a key are shared out to replicas, micro-batches and copies of the experts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache.shapes import ForwardShapeKey
from stages.parallelism import Parallelism
from stages.runners.roofline_batch import Batch, micro_batch, replica_segments

SEGMENTS = [(1, 10, 3), (1, 20, 2), (4, 30, 1)]


def batch(key: ForwardShapeKey, **sizes: int) -> Batch:
    parallelism = Parallelism(**sizes)
    return micro_batch(key, replica_segments(key, parallelism.dp), parallelism)


@pytest.mark.parametrize(
    ("concurrency", "dp", "pp", "requests"),
    [(8, 1, 1, 8), (8, 2, 1, 4), (9, 2, 1, 5), (8, 1, 3, 3), (9, 2, 2, 3), (1, 4, 4, 1)],
)
def test_requests_of_one_length_are_shared_out_rounding_up(
    concurrency: int, dp: int, pp: int, requests: int
) -> None:
    one = batch(ForwardShapeKey(False, concurrency, 5, 50), dp=dp, pp=pp)
    assert one.segments == ((5, 50, requests),)
    assert (one.requests, one.tokens, one.context_tokens) == (requests, 5 * requests, 50 * requests)


def test_a_replica_has_the_segments_of_its_key() -> None:
    for replicas, dp in ((1, 1), (4, 4), (1, 4)):
        key = ForwardShapeKey.of_segments(True, SEGMENTS, replicas=replicas)
        assert replica_segments(key, dp) == tuple(SEGMENTS)
    key = ForwardShapeKey.of_segments(True, SEGMENTS, replicas=4)
    assert replica_segments(key, 2) == ((1, 10, 6), (1, 20, 4), (4, 30, 2))


def test_micro_batches_are_dealt_longest_first() -> None:
    # Dealt to two: 4@30, 1@20, 1@20, 1@10, 1@10, 1@10; the first gets every other one.
    one = batch(ForwardShapeKey.of_segments(True, SEGMENTS), pp=2)
    assert one.segments == ((4, 30, 1), (1, 20, 1), (1, 10, 1))
    assert (one.requests, one.tokens, one.context_tokens) == (3, 6, 60)


@given(
    st.dictionaries(st.tuples(st.integers(1, 5), st.integers(5, 9)), st.integers(1, 7), min_size=1),
    st.integers(2, 6),
)
def test_dealing_by_length_is_dealing_one_by_one(counts: dict[tuple[int, int], int], pp: int) -> None:
    key = ForwardShapeKey.of_segments(True, [(*lengths, count) for lengths, count in counts.items()])
    requests = [lengths for lengths, count in sorted(counts.items(), reverse=True) for _ in range(count)]
    dealt = [(query, seq) for query, seq, count in batch(key, pp=pp).segments for _ in range(count)]
    assert dealt == requests[::pp]


def test_logits_are_needed_of_every_new_token_in_decode_and_of_the_last_in_prefill() -> None:
    assert batch(ForwardShapeKey.of_segments(True, SEGMENTS)).logit_tokens == 9
    assert batch(ForwardShapeKey.of_segments(False, SEGMENTS)).logit_tokens == 6


def test_the_experts_meet_the_tokens_of_all_replicas_but_no_more_than_there_are() -> None:
    full = batch(ForwardShapeKey.of_segments(True, SEGMENTS, replicas=4), dp=4, ep=4)
    assert (full.group_requests, full.group_tokens) == (24, 36)
    halves = batch(ForwardShapeKey.of_segments(True, SEGMENTS, replicas=4), dp=4, ep=2, moe_dp=2)
    assert (halves.group_requests, halves.group_tokens) == (12, 18)
    one = batch(ForwardShapeKey.of_segments(True, SEGMENTS), dp=4, ep=4)
    assert (one.group_requests, one.group_tokens) == (6, 9)
    assert batch(ForwardShapeKey(True, 5, 2, 9), dp=4, ep=4).group_tokens == 10
    assert batch(ForwardShapeKey(True, 3, 1, 9), dp=4, ep=2, moe_dp=2).group_tokens == 2


def test_a_batch_of_one_token_each_keeps_its_requests() -> None:
    single = batch(ForwardShapeKey.of_segments(True, SEGMENTS)).one_token_each()
    assert single.segments == ((1, 10, 3), (1, 20, 2), (1, 30, 1))
    assert (single.tokens, single.requests, single.group_tokens) == (6, 6, 6)
