"""Draft speculation: what a step computes, what it yields, and where it shows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from cache import ForwardLatencyRecord, ForwardLatencyTable, ForwardShapeKey
from stages import Candidate, Engine, Parallelism, Workload, evaluate
from stages.plan import plan
from stages.runners.base import Deployment
from stages.runners.recorded_spec import RecordedOptions
from stages.runners.roofline_spec import RooflineOptions
from stages.speculation import DRAFT_KINDS, DraftKind, Speculation
from tests.conftest import Shapecast


@pytest.mark.parametrize(
    ("kind", "accepted_length", "tokens"),
    [
        ("dflash", 3.2, 4.2),
        ("dflash", 7.0, 8.0),
        ("dflash", 7.5, 8.0),
        ("dflash", 100, 8.0),
        ("dflash", -1.0, 1.0),
        ("dspark", 3.2, 4.2),
        ("dspark", 7.5, 8.5),
        ("dspark", 8.0, 9.0),
        ("dspark", 8.1, 9.0),
        ("dspark", -0.5, 1.0),
    ],
)
def test_a_step_yields_the_accepted_tokens_clamped_to_the_block_and_one_more(
    kind: DraftKind, accepted_length: float, tokens: float
) -> None:
    engine = Engine(512, speculation=Speculation(kind, 8, accepted_length))
    assert engine.tokens_per_decode_step == tokens
    assert engine.fold_decode_ms(84.0) == 84.0 / tokens


@pytest.mark.parametrize("kind", DRAFT_KINDS)
def test_a_decode_step_computes_the_whole_block(kind: DraftKind) -> None:
    engine = Engine(512, speculation=Speculation(kind, 8, 3.2))
    candidate = Candidate("decode", Workload(1000, 100), engine, Parallelism(), 4)
    assert plan(candidate).keys == (ForwardShapeKey(True, 4, 8, 50 + 1000 + 8),)


@pytest.mark.parametrize("input_length", [400, 2000])
def test_only_decode_is_folded(input_length: int) -> None:
    plain = Engine(512, serving_cost_ms=0.0)
    drafted = replace(plain, speculation=Speculation("dflash", 4, 2.0))

    def forward(key: ForwardShapeKey) -> ForwardLatencyRecord:
        return ForwardLatencyRecord(30.0 if key.is_decode else 7.0, 1.0)

    workload = Workload(input_length, 1)
    slow, fast = (
        evaluate(Candidate("aggregated", workload, engine, Parallelism(), 1), ForwardLatencyTable(forward))
        for engine in (plain, drafted)
    )
    assert slow.ttft_ms == fast.ttft_ms == 7.0 * -(-input_length // 512)
    decode = [
        evaluate(Candidate("decode", workload, engine, Parallelism(), 1), ForwardLatencyTable(forward))
        for engine in (plain, drafted)
    ]
    assert [one.tpot_ms for one in decode] == [30.0, 10.0]


@pytest.mark.parametrize("kind", DRAFT_KINDS)
def test_multi_token_prediction_and_a_draft_model_do_not_combine(kind: DraftKind) -> None:
    with pytest.raises(ValueError, match=f"num_mtp_tokens is 2 together with {kind} speculation"):
        Engine(512, num_mtp_tokens=2, speculation=Speculation(kind, 8, 3.2))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (("medusa", 8, 1.0), "kind is 'medusa'; it must be one of dflash, dspark"),
        (("dflash", 0, 1.0), "block_size is 0; it must be a whole number of at least 1"),
        (("dflash", True, 1.0), "block_size is True"),
        (("dflash", 8, float("nan")), "accepted_length is nan; it must be a finite number"),
    ],
)
def test_speculation_that_cannot_be_is_refused(fields: tuple[object, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Speculation(*fields)  # type: ignore[arg-type]


def test_the_roofline_has_one_table_for_the_target_model_whatever_drafts() -> None:
    deployment = Deployment("Qwen/Qwen3-8B", "H100-SXM-80G", Parallelism())
    options = RooflineOptions(kind="roofline")
    drafted = replace(deployment, draft_kind="dflash", draft_block_size=8)
    assert options.spec(deployment).identity() == options.spec(drafted).identity()


def test_recorded_passes_with_a_draft_model_have_a_table_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "records.csv").write_text("draft\n", encoding="utf-8")
    deployment = Deployment("m", "d", Parallelism(), base_dir=tmp_path)
    options = RecordedOptions(path="records.csv", where={"draft": "{draft_kind}-{draft_block_size}"})
    found = [
        options.spec(replace(deployment, draft_kind=kind, draft_block_size=size)).identity()
        for kind, size in ((None, 0), ("dflash", 8), ("dspark", 8), ("dflash", 4))
    ]
    assert len({identity.id for identity in found}) == 4


SWEEP = """
name: drafts
runner: {kind: roofline, quantization: {weights: fp8, activations: fp8, kv_cache: bf16}}
models: [Qwen/Qwen3-8B]
devices: [H100-SXM-80G]
modes: [aggregated, prefill, decode]
workloads: [{input_length: 2000, output_length: 64}]
engine:
  max_batched_tokens: [512, 4096]
  num_mtp_tokens: %s
  speculation: %s
concurrency: {batch_sizes: [1, 8]}
"""
DRAFTS = (
    "[null, {kind: dflash, block_size: 8, accepted_length: 3},"
    " {kind: dspark, block_size: 8, accepted_length: 3}]"
)


def test_a_sweep_compares_drafts(shapecast: Shapecast, tmp_path: Path) -> None:
    (tmp_path / "drafts.yaml").write_text(SWEEP % (0, DRAFTS), encoding="utf-8")
    shapecast("run", "drafts.yaml", "--out", "a")
    frame = pd.read_parquet(tmp_path / "a/results.parquet")
    assert set(frame["speculation"].dropna()) == {"dflash", "dspark"}
    assert any("DFLASH=8 (3 accepted)" in label for label in frame["parallelism"])
    decode = frame[(frame["mode"] == "decode") & (frame["batch_size"] == 8)]
    decode = decode.drop_duplicates("parallelism").set_index("speculation")
    # A block of 8 reads the same weights as one token: the step is little longer and yields 4 tokens.
    plain, dflash, dspark = (decode.loc[kind, "tpot_ms"] for kind in (None, "dflash", "dspark"))
    assert plain / 4 < dflash < plain / 2
    assert dflash == dspark


def test_speculation_with_multi_token_prediction_is_one_sentence(
    shapecast: Shapecast, tmp_path: Path
) -> None:
    draft = "{kind: dflash, block_size: 8, accepted_length: 3}"
    (tmp_path / "drafts.yaml").write_text(SWEEP % (2, draft), encoding="utf-8")
    done = shapecast("run", "drafts.yaml", "--out", "a", expect=1)
    assert "drafts.yaml: engine: num_mtp_tokens is 2 together with dflash speculation;" in done.stderr


def test_an_unknown_draft_is_one_sentence(shapecast: Shapecast, tmp_path: Path) -> None:
    draft = "{kind: medusa, block_size: 8, accepted_length: 3}"
    (tmp_path / "drafts.yaml").write_text(SWEEP % (0, draft), encoding="utf-8")
    done = shapecast("run", "drafts.yaml", "--out", "a", expect=1)
    assert "engine.speculation.kind: input should be 'dflash' or 'dspark', not 'medusa'" in done.stderr


def test_an_acceptance_list_shorter_than_the_tokens_is_one_sentence(
    shapecast: Shapecast, tmp_path: Path
) -> None:
    (tmp_path / "drafts.yaml").write_text(SWEEP % (5, "null"), encoding="utf-8")
    done = shapecast("run", "drafts.yaml", "--out", "a", expect=1)
    assert "engine.mtp_acceptance_rate has 4 rates" in done.stderr
