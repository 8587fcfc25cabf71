"""A wrong value inside a sound file is found when the file is read, wherever it stands."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cache.checks import check_values
from cache.errors import StoreError
from cache.exchange import encode_file
from cache.schema import SCHEMA, StoredRecord, encode_table, rows_table
from cache.shapes import ForwardLatencyRecord, ForwardShapeKey
from cache.store import StoreWarning, part_name
from tests.conftest import Shapecast
from tests.in_process import command_here
from tests.store_cases import IDENTITY, expected, stored, table_at

SEGMENTED = ForwardShapeKey.of_segments(False, [(300, 812, 1), (512, 512, 3)], replicas=2)

WRONG: list[tuple[str, Any]] = [
    ("latency_ms", math.nan),
    ("latency_ms", math.inf),
    ("latency_ms", -1.0),
    ("latency_ms", None),
    ("memory_left_gb", math.nan),
    ("memory_left_gb", None),
    ("memory_weight_gb", math.nan),
    ("memory_weight_gb", None),
    ("memory_total_gb", None),
    ("breakdowns_json", '{"a":[1]}'),
    ("breakdowns_json", '{"a": {"memory_bound": "1"}}'),
    ("breakdowns_json", '{"a": {"memory_bound": NaN}}'),
    ("breakdowns_json", '{"a": {"memory_bound": 1e999}}'),
    ("breakdowns_json", '{"a": {"memory_bound": true}}'),
    ("breakdowns_json", f'{{"a": {{"memory_bound": 1{"0" * 400}}}}}'),
    ("breakdowns_json", "[" * 100_000),
    ("breakdowns_json", "not JSON"),
    ("breakdowns_json", None),
    ("sources_json", "[]"),
    ("sources_json", '{"measured": null}'),
    ("sources_json", '{"measured": -1}'),
    ("sources_json", '{"measured": 1} '  "x"),
    ("sources_json", None),
    ("is_decode", None),
    ("model_concurrency", 0),
    ("query_len", -5),
    ("seq_len", 1),
    ("seq_len", None),
    ("image_height", 0),
    ("computed_at", None),
    ("computed_at", -1),
    ("computed_at", 2**62),
    ("call_s", math.nan),
    ("runner", None),
    ("segments", "300 812 1"),
    ("segments", "512 512 3, 300 812 1"),
    ("segments", "300 812 1, 300 812 1"),
    ("segments", "300 812 1, 512 512 4"),
    ("segments", "300 299 1, 512 812 3"),
    ("segments", "300 812 01, 512 512 3"),
    ("segments", "300 900 1, 512 512 3"),
    ("segments", "many"),
]  # fmt: skip


def rows_with(name: str, value: Any) -> pa.Table:
    """Return four rows, the last one with one wrong value."""
    key = SEGMENTED if name == "segments" else ForwardShapeKey(False, 3, 100, 200)
    last = StoredRecord(key, stored([1])[0].record, 1, 1.0)
    table = rows_table([*stored(range(3)), last], IDENTITY)
    index = table.schema.get_field_index(name)
    kind = pa.int64() if name == "computed_at" else SCHEMA.field(name).type
    values = [*table[name].cast(kind).to_pylist()[:-1], value]
    return table.set_column(index, SCHEMA.field(name), pa.array(values, kind).cast(SCHEMA.field(name).type))


def put_part(root: Path, rows: pa.Table) -> str:
    """Put a part file with a right name and a right identity in a table."""
    data = encode_table(rows, IDENTITY)
    table_at(root).folder.publish(part_name(data), data)
    return part_name(data)


@pytest.mark.parametrize(("name", "value"), WRONG, ids=[f"{name} {value!s:.30}" for name, value in WRONG])
def test_a_file_with_a_wrong_value_is_named_and_set_aside(tmp_path: Path, name: str, value: Any) -> None:
    table_at(tmp_path).append(stored(range(2)))
    bad = put_part(tmp_path, rows_with(name, value))
    (problem,) = table_at(tmp_path).examine().problems
    assert f"{bad} cannot be used: its row 4 has the {name} " in problem
    with pytest.warns(StoreWarning, match=f"{bad}.* set aside under quarantine/"):
        assert dict(table_at(tmp_path).load()) == expected(range(2))
    assert (tmp_path / IDENTITY.id / "quarantine" / bad).exists()


@pytest.fixture
def shapecast(tmp_path: Path, tables: Path, monkeypatch: pytest.MonkeyPatch) -> Shapecast:
    return command_here(tmp_path, tables, monkeypatch)


def test_verify_reports_a_wrong_value(shapecast: Shapecast, tables: Path) -> None:
    table_at(tables).append(stored(range(2)))
    bad = put_part(tables, rows_with("latency_ms", math.nan))
    text = shapecast("tables", "verify", expect=1).stdout
    assert f"{bad} cannot be used: its row 4 has the latency_ms nan; expected a finite number" in text


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_an_export_with_a_wrong_value_is_not_imported(
    shapecast: Shapecast, tables: Path, tmp_path: Path, suffix: str
) -> None:
    (tmp_path / f"t{suffix}").write_bytes(
        encode_file(rows_with("breakdowns_json", '{"a":[1]}'), IDENTITY, suffix)
    )
    failed = shapecast("tables", "import", f"t{suffix}", expect=1)
    assert f't{suffix} cannot be used: its row 4 has the breakdowns_json {{"a":[1]}};' in failed.stderr
    assert not tables.exists()


def test_whatever_a_runner_may_answer_is_trusted() -> None:
    numbers = [0, 0.0, -0.0, 1e-300, 5e-324, 1e22, 1.7976931348623157e308, 123456.789, 1e-7]
    odd = {'a "quoted" näme\\': {f"bound {number!r}": number for number in numbers}, "": {}}
    record = ForwardLatencyRecord(1.0, -3.0, odd, None, {"ünknown": 1})
    rows = rows_table([StoredRecord(SEGMENTED, record, 1, 0.0)], IDENTITY)
    check_values(rows, "it")
    assert json.loads(rows["breakdowns_json"][0].as_py()) == odd
    check_values(SCHEMA.empty_table(), "it")


def test_texts_that_are_not_utf_8_are_refused(tmp_path: Path) -> None:
    rows = rows_with("latency_ms", 1.0)
    runners = pa.array([b"\xff\xfe"] * 4, pa.binary()).view(pa.string())
    put_part(
        tmp_path, rows.set_column(rows.schema.get_field_index("runner"), SCHEMA.field("runner"), runners)
    )
    with pytest.warns(StoreWarning, match="set aside"):
        assert len(table_at(tmp_path).load()) == 0


def test_a_wrong_value_is_a_store_error() -> None:
    with pytest.raises(
        StoreError, match=r"^it cannot be used: its row 4 has the seq_len 1; expected no less"
    ):
        check_values(rows_with("seq_len", 1), "it")
