"""The recorded runner: answers from a file, and the reference workloads through the command."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from cache.errors import ConfigError, MissingShapeError
from cache.shapes import ForwardShapeKey
from stages.parallelism import Parallelism
from stages.runners.base import Deployment
from stages.runners.recorded_spec import RecordedOptions, RecordedSpec
from tests.conftest import DATA, Shapecast
from tests.test_golden import CASES, IDENTITIES, agrees

COLUMNS = {
    "memory_total_gb": "total_device_memory_gb",
    "memory_weight_gb": "model_weight_size_gb",
    "memory_kv_cache_gb": "kv_cache_size_gb",
    "memory_activation_gb": "model_activation_size_gb",
    "memory_reserved_gb": "reserved_memory_gb",
    "breakdowns_json": "raw_breakdowns",
}
ROWS = [
    {"is_decode": False, "model_concurrency": 1, "query_len": 8, "seq_len": 8, "latency_ms": 2.0,
     "memory_left_gb": 5.0, "device": "a"},
    {"is_decode": False, "model_concurrency": 2, "query_len": 8, "seq_len": 8, "latency_ms": 3.0,
     "memory_left_gb": 4.5, "device": "a"},
    {"is_decode": True, "model_concurrency": 2, "query_len": 1, "seq_len": 9, "latency_ms": 1.0,
     "memory_left_gb": 4.0, "device": "a"},
    {"is_decode": False, "model_concurrency": 1, "query_len": 8, "seq_len": 8, "latency_ms": 4.0,
     "memory_left_gb": 3.0, "device": "b"},
]  # fmt: skip


def spec(
    path: Path, where: dict[str, object] | None = None, device: str = "a", **options: object
) -> RecordedSpec:
    values = {"kind": "recorded", "path": path.name, "where": where or {"device": "{device}"}, **options}
    deployment = Deployment("m", device, Parallelism(), base_dir=path.parent)
    return RecordedOptions.model_validate(values).spec(deployment)


@pytest.fixture(params=["parquet", "csv"])
def records(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / f"records.{request.param}"
    frame = pd.DataFrame(ROWS)
    frame.to_csv(path, index=False) if request.param == "csv" else frame.to_parquet(path)
    return path


def test_a_recorded_shape_is_answered_and_rows_are_chosen_by_deployment(records: Path) -> None:
    key = ForwardShapeKey(False, 1, 8, 8)
    assert spec(records).build().forward(key).latency_ms == 2.0
    assert spec(records, device="b").build().forward(key).latency_ms == 4.0


def test_a_missing_shape_names_itself_and_the_nearest(records: Path) -> None:
    with pytest.raises(MissingShapeError) as caught:
        spec(records).build().forward(ForwardShapeKey(False, 3, 8, 8))
    message = str(caught.value)
    assert "no record of the shape (prefill of 3 x 8 tokens at length 8)" in message
    assert (
        message.index("prefill of 2 x 8")
        < message.index("prefill of 1 x 8")
        < message.index("decode of 2 x 1")
    )


def test_identity_is_the_content_and_the_choice_of_rows(records: Path, tmp_path: Path) -> None:
    one = spec(records).identity()
    assert spec(records, device="b").identity().id != one.id
    assert spec(records, columns={"latency_ms": "ms"}).identity().id != one.id
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    copy = moved / f"other{records.suffix}"
    copy.write_bytes(records.read_bytes())
    assert spec(copy).identity().id == one.id
    changed = records.read_bytes() + b"\n"
    records.write_bytes(changed)
    assert spec(records).identity().id != one.id


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda frame: frame.drop(columns="latency_ms"), "has no column 'latency_ms'; it has is_decode"),
        (lambda frame: frame.drop(columns="device"), "has no column 'device', which runner.where names"),
        (lambda frame: frame.assign(device="z"), r"has no row with \{'device': 'a'\}"),
        (lambda frame: frame.assign(query_len=0), "row 0 is no record: query_len is 0"),
        (lambda frame: frame.assign(latency_ms=-1.0), "row 0 is no record: latency_ms is -1.0"),
        (lambda frame: frame.assign(is_decode="maybe"), "row 0 is no record: is_decode is 'maybe'"),
        (lambda frame: frame.assign(model_concurrency=1.5), "model_concurrency is 1.5; it must be a whole"),
        (lambda frame: frame.assign(device="a"), "two different records of the shape"),
    ],
)
def test_a_file_that_cannot_answer_is_refused(tmp_path: Path, change: object, message: str) -> None:
    path = tmp_path / "records.csv"
    change(pd.DataFrame(ROWS)).to_csv(path, index=False)
    with pytest.raises(ConfigError, match=message):
        spec(path).build()


def test_a_path_that_is_no_records_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="There is no records file at"):
        spec(tmp_path / "none.csv")
    with pytest.raises(ConfigError, match=r"must end in \.parquet or \.csv"):
        spec(tmp_path / "none.txt")
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 not really")
    with pytest.raises(ConfigError, match="cannot be read"):
        spec(tmp_path / "bad.parquet").build()
    with pytest.raises(ConfigError, match=r"only \{model\}, \{device\}"):
        spec(tmp_path / "bad.parquet", {"device": "{host}"})


@pytest.mark.parametrize("name", ["rfc-128k-1k", "8k-prefill", "mtp-decode", "oom-late-chunk", "dp2-agg"])
def test_a_sweep_over_the_reference_records_gives_the_reference_results(
    name: str, shapecast: Shapecast, tmp_path: Path
) -> None:
    case = CASES[name]
    identity, workload = IDENTITIES[case["identity"]], case["workload"]
    (tmp_path / "records.parquet").write_bytes((DATA / "reference_records.parquet").read_bytes())
    tp = identity["tp"]
    limits = {key: workload[f"{key.replace('_ms', '')}_limit_ms"] for key in ("ttft_ms", "tpot_ms")
              if f"{key.replace('_ms', '')}_limit_ms" in workload}  # fmt: skip
    config = {
        "name": "reference",
        "runner": {
            "kind": "recorded",
            "path": "records.parquet",
            "where": {"identity": case["identity"]},
            "columns": COLUMNS,
        },
        "models": identity["model"],
        "devices": identity["device"],
        "parallelism": {"tp": tp, "dp": identity["num_devices"] // tp, "ep": identity.get("ep", 1)},
        "modes": workload["mode"],
        "workloads": {
            "input_length": workload["input_length"],
            "output_length": workload["output_length"],
            "prefix_cache_hit_rate": float(workload.get("prefix_cache_hit_rate", 0.0)),
        },
        "engine": {
            "max_batched_tokens": workload["max_batched_tokens"],
            "num_mtp_tokens": identity.get("num_mtp_tokens", 0),
            "mtp_acceptance_rate": workload.get("mtp_acceptance_rate", []),
        },
        "concurrency": {"batch_sizes": [expected["batch_size"] for expected in case["candidates"]]},
        "limits": limits,
    }
    (tmp_path / "reference.yaml").write_text(json.dumps(config))
    shapecast("run", "reference.yaml", "--out", "out", "--quiet")
    rows = pd.read_parquet(tmp_path / "out" / "results.parquet").to_dict("records")
    for row, expected in zip(rows, case["candidates"], strict=True):
        for ours, theirs in (
            ("ttft_ms", "ttft_ms"),
            ("tpot_ms", "tpot_ms"),
            ("tokens_per_s", "token_s"),
            ("memory_left_gb", "memory_left_gb"),
            ("weight_gb", "weight_GB"),
            ("activation_gb", "activation_GB"),
        ):
            assert agrees(None if pd.isna(row[ours]) else row[ours], expected[theirs])
        assert (row["stop_reason"] or None) == expected["early_stop_reason"] or pd.isna(row["stop_reason"])
        assert row["prefill_num_chunks"] == expected["prefill_num_chunks"]


def test_a_shape_that_was_not_recorded_ends_the_run_with_one_sentence(
    shapecast: Shapecast, tmp_path: Path
) -> None:
    pd.DataFrame(ROWS[:3]).to_csv(tmp_path / "records.csv", index=False)
    (tmp_path / "sweep.yaml").write_text(
        "name: x\nrunner: {kind: recorded, path: records.csv}\nmodels: m\ndevices: a\nmodes: prefill\n"
        "workloads: {input_length: 8, output_length: 2}\nengine: {max_batched_tokens: 64}\n"
        "concurrency: {batch_sizes: [1, 2, 3]}\n"
    )
    failed = shapecast("run", "sweep.yaml", expect=1)
    assert failed.stderr.count("\n") == 1
    assert "has no record of the shape" in failed.stderr
    assert not (tmp_path / "out" / "x" / "results.parquet").exists()
