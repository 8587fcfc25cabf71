"""The in-memory table: each shape once, and the stop at the first out-of-memory record."""

from __future__ import annotations

import pytest

from cache import ForwardLatencyRecord, ForwardLatencyTable, ForwardShapeKey, ShapecastError
from cache.errors import MissingShapeError


def key(size: int) -> ForwardShapeKey:
    return ForwardShapeKey(False, size, 1, 1)


def forward(asked: ForwardShapeKey) -> ForwardLatencyRecord:
    """Out of memory from concurrency 3."""
    return ForwardLatencyRecord(asked.model_concurrency, 2.5 - asked.model_concurrency)


def test_prefetch_computes_each_missing_key_once_in_order() -> None:
    asked = []
    table = ForwardLatencyTable(lambda k: (asked.append(k), forward(k))[1])
    table.prefetch([key(2), key(1), key(2)])
    table.prefetch([key(1)])
    assert asked == [key(2), key(1)]
    assert table.forward_calls == 2
    assert table.get(key(1)).latency_ms == 1
    assert table.memory_exceeded_key is None


def test_prefetch_stops_after_the_first_out_of_memory_record_and_keeps_it() -> None:
    table = ForwardLatencyTable(forward)
    table.prefetch([key(1), key(4), key(2)])
    assert table.memory_exceeded_key == key(4)
    assert table.get(key(4)).memory_left_gb == -1.5
    table.prefetch([key(2)])
    assert table.forward_calls == 2
    assert key(2) not in table


def test_a_known_out_of_memory_record_stops_as_well() -> None:
    table = ForwardLatencyTable(forward, {key(3): forward(key(3))})
    table.prefetch([key(3), key(1)])
    assert table.memory_exceeded_key == key(3)
    assert table.forward_calls == 0


def test_get_computes_a_missing_key_until_the_table_has_stopped() -> None:
    table = ForwardLatencyTable(forward)
    assert table.get(key(1)).latency_ms == 1
    table.get(key(5))
    assert table.memory_exceeded_key == key(5)
    with pytest.raises(MissingShapeError, match=r"prefill of 5 x 1.*prefill of 2 x 1"):
        table.get(key(2))
    assert table.get(key(1)).latency_ms == 1
    assert table.forward_calls == 2


def test_a_new_candidate_begins_without_the_stop_but_with_the_records() -> None:
    table = ForwardLatencyTable(forward)
    table.prefetch([key(4)])
    table.new_candidate()
    table.prefetch([key(1), key(4), key(2)])
    assert table.forward_calls == 2
    assert table.memory_exceeded_key == key(4)


def test_a_failing_runner_leaves_no_record() -> None:
    def fail(_: ForwardShapeKey) -> ForwardLatencyRecord:
        raise RuntimeError("no device")

    table = ForwardLatencyTable(fail)
    with pytest.raises(RuntimeError, match="no device"):
        table.prefetch([key(1)])
    assert key(1) not in table
    assert table.forward_calls == 0


def test_what_is_computed_is_handed_on_with_its_call_time() -> None:
    kept = []
    table = ForwardLatencyTable(forward, computed=lambda *what: kept.append(what))
    table.prefetch([key(1), key(4)])
    assert [(k, record) for k, record, _ in kept] == [(key(1), forward(key(1))), (key(4), forward(key(4)))]
    assert all(call_s >= 0 for _, _, call_s in kept)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ((False, 0, 1, 1), "model_concurrency is 0"),
        ((False, -1, 1, 1), "model_concurrency is -1"),
        ((True, 1, 0, 1), "query_len is 0"),
        ((True, 1, 2, 1), "seq_len is 1; it must be at least query_len"),
        ((True, 1, 1, 1, 0), "image_batch_size is 0"),
        ((True, 1, 1, 1, 1, -5), "image_height is -5"),
        ((True, 1, 1, 1, 1, 5, 0), "image_width is 0"),
    ],
)
def test_a_key_that_is_no_forward_pass_is_refused(fields: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        ForwardShapeKey(*fields)
    assert isinstance(caught.value, ShapecastError)


@pytest.mark.parametrize("latency_ms", [float("nan"), float("inf"), -1.0])
def test_a_latency_that_is_no_time_is_refused(latency_ms: float) -> None:
    with pytest.raises(ValueError, match="finite, non-negative latency"):
        ForwardLatencyRecord(latency_ms, 1.0)


def test_memory_left_must_be_a_number() -> None:
    with pytest.raises(ValueError, match="memory_left_gb is NaN"):
        ForwardLatencyRecord(1.0, float("nan"))
