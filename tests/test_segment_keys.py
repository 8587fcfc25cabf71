"""Keys of passes with requests of several lengths: canonical, stored, and no change for all other keys."""

import hashlib
import io
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cache.errors import SchemaError
from cache.identity import TableIdentity
from cache.schema import (
    StoredRecord,
    decode_table,
    encode_table,
    identity_file,
    key_of,
    key_values,
    record_digest_text,
    records_of,
    rows_table,
)
from cache.shapes import DeviceMemory, ForwardLatencyRecord, ForwardShapeKey, Segment
from cache.store import ShapeStore
from cache.table import ForwardLatencyTable
from cache.view import Part, TableView

PART_V1 = Path(__file__).parent / "data" / "part_v1.parquet"
"""A part file of schema version 1, written before there were segments."""

IDENTITY = TableIdentity("fake", "1", "m" * 64, "d" * 64, parallelism={"tp": 2, "dp": 1}, label="a label")
UNIFORM = {
    ForwardShapeKey(False, 4, 1024, 2048): ForwardLatencyRecord(
        12.5,
        3.25,
        {"fake": {"memory_bound": 0.5}},
        DeviceMemory(80.0, 40.0, 8.0, 2.0, 10.0),
        {"analytic": 1.0},
    ),
    ForwardShapeKey(True, 8, 1, 1537, 8, 1024, 768): ForwardLatencyRecord(2.0, -0.5),
}
MIXED_KEY = ForwardShapeKey.of_segments(False, [(300, 812, 1), (512, 512, 3)], replicas=2)
MIXED = {MIXED_KEY: ForwardLatencyRecord(7.5, 1.25, {"fake": {"memory_bound": 0.25}})}


def rows(records):
    return [
        StoredRecord(key, record, 1_760_000_000_000_000 + index, 0.5 / (index + 1))
        for index, (key, record) in enumerate(records.items())
    ]


segments = st.lists(
    st.tuples(st.integers(1, 5), st.integers(0, 5), st.integers(1, 3)).map(
        lambda part: (part[0], part[0] + part[1], part[2])
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=60, deadline=None)
@given(segments, st.randoms(use_true_random=False), st.integers(1, 4))
def test_equal_multisets_are_equal_keys_in_any_order_and_grouping(parts, random, replicas):
    single = [(query_len, seq_len, 1) for query_len, seq_len, requests in parts for _ in range(requests)]
    random.shuffle(single)
    one = ForwardShapeKey.of_segments(False, parts, replicas)
    two = ForwardShapeKey.of_segments(False, single, replicas)
    assert one == two
    assert hash(one) == hash(two)
    assert key_of(key_values(one)) == one
    assert one.model_concurrency == len(single) * replicas
    assert one.query_len == max(part[0] for part in parts)
    assert one.seq_len == max(part[1] for part in parts)


def test_requests_of_one_length_have_the_key_without_segments():
    key = ForwardShapeKey.of_segments(False, [(512, 512, 2), (512, 512, 3)], replicas=4)
    assert key == ForwardShapeKey(False, 20, 512, 512)


def test_a_multiset_is_computed_once():
    calls = []

    def forward(key):
        calls.append(key)
        return ForwardLatencyRecord(1.0, 1.0)

    table = ForwardLatencyTable(forward)
    table.prefetch(
        ForwardShapeKey.of_segments(False, order)
        for order in ([(1, 1, 1), (2, 2, 2)], [(2, 2, 1), (1, 1, 1), (2, 2, 1)], [(1, 1, 2), (2, 2, 1)])
    )
    assert len(calls) == 2


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ((False, 2, 2, 2, None, None, None, (Segment(2, 2, 2),)), "two kinds or more"),
        ((False, 2, 2, 2, None, None, None, ()), "two kinds or more"),
        ((False, 2, 2, 2, None, None, None, (Segment(2, 2, 1), Segment(1, 1, 1))), "ascending order"),
        ((False, 2, 2, 2, None, None, None, (Segment(1, 1, 1), Segment(1, 1, 1))), "two kinds or more"),
        ((False, 3, 2, 2, None, None, None, (Segment(1, 1, 1), Segment(2, 2, 1))), "divides the concurrency"),
        ((False, 2, 3, 3, None, None, None, (Segment(1, 1, 1), Segment(2, 2, 1))), "largest lengths"),
        ((False, 2, 2, 3, None, None, None, (Segment(1, 1, 1), Segment(2, 1, 1))), "no less than the tokens"),
        ((False, 2, 2, 2, None, None, None, (Segment(1, 1, 0), Segment(2, 2, 1))), "must be positive"),
    ],
)
def test_segments_out_of_form_are_refused_before_anything_is_computed(fields, message):
    with pytest.raises(ValueError, match=message):
        ForwardShapeKey(*fields)


def test_a_pass_without_segments_is_refused():
    with pytest.raises(ValueError, match="give at least one"):
        ForwardShapeKey.of_segments(False, [])


def test_a_key_says_its_segments():
    assert str(MIXED_KEY) == "prefill of 8 requests of several lengths (1 x 300 at 812, 3 x 512 at 512)"
    many = ForwardShapeKey.of_segments(False, [(length, length, 1) for length in range(1, 10)])
    assert str(many).endswith("1 x 3 at 3, 6 more kinds)")


def test_a_part_file_of_the_first_schema_reads_without_segments():
    table, identity = decode_table(PART_V1.read_bytes(), "part_v1")
    assert identity == IDENTITY
    assert dict(records_of(table)) == UNIFORM


def test_records_without_segments_are_written_byte_for_byte_as_before():
    """The old file is read and written again: the same bytes, but for the name of the Parquet library."""
    old = pq.read_table(PART_V1)
    buffer = io.BytesIO()
    pq.write_table(old, buffer, compression="zstd")
    table, identity = decode_table(PART_V1.read_bytes(), "part_v1")
    assert encode_table(table, identity) == buffer.getvalue()
    assert encode_table(rows_table(rows(UNIFORM), IDENTITY), IDENTITY) == buffer.getvalue()


def test_the_digests_of_identity_and_records_without_segments_are_frozen():
    assert hashlib.sha256(identity_file(IDENTITY)).hexdigest() == (
        "d30afc28b11f355b0f7bb2c2261c8e68428bd9097b4ff4c987b261a2a4f7ca6c"
    )
    digests = [hashlib.sha256(record_digest_text(*item).encode()).hexdigest() for item in UNIFORM.items()]
    assert digests == [
        "05e46e21ea1d11dd62d25e2eb99e5efa7a1ff446f3ca8c5b927044b9b597e7e5",
        "bb4bdfbee54befa258b3b9ce7e2745c087d933c424a451a7ed469baa11405df5",
    ]


def test_segments_have_a_record_digest_of_their_own():
    plain = ForwardShapeKey(False, 8, 512, 812)
    record = MIXED[MIXED_KEY]
    assert record_digest_text(MIXED_KEY, record) != record_digest_text(plain, record)


def test_records_with_segments_say_a_schema_that_an_older_version_refuses():
    data = encode_table(rows_table(rows(UNIFORM | MIXED), IDENTITY), IDENTITY)
    assert pq.read_metadata(io.BytesIO(data)).metadata[b"shapecast.schema_version"] == b"2"
    table, _ = decode_table(data, "part")
    assert dict(records_of(table)) == UNIFORM | MIXED
    newer = pq.read_table(io.BytesIO(data)).replace_schema_metadata(
        {b"shapecast.schema_version": b"3", b"shapecast.identity": b"{}"}
    )
    buffer = io.BytesIO()
    pq.write_table(newer, buffer)
    with pytest.raises(SchemaError, match="reads up to 2"):
        decode_table(buffer.getvalue(), "part")


def test_a_store_keeps_segments_beside_files_of_the_first_schema(tmp_path):
    table = ShapeStore(str(tmp_path)).table(IDENTITY)
    table.append(rows(UNIFORM))
    table.append(rows(MIXED))
    view = ShapeStore(str(tmp_path)).table(IDENTITY).load()
    assert dict(view) == UNIFORM | MIXED
    assert MIXED_KEY in view
    assert ForwardShapeKey(False, 8, 512, 812) not in view


def test_a_view_puts_segments_behind_the_key_without():
    table = rows_table(rows(MIXED | UNIFORM), IDENTITY)
    assert [key for key, _ in records_of(TableView([Part("part", table)]).distinct())] == [
        *sorted((*UNIFORM, MIXED_KEY), key=lambda key: (key.is_decode, key.model_concurrency))
    ]
