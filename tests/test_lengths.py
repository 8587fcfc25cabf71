"""Prompts of several lengths: recorded figures, the filling of steps, and the command."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache import ForwardLatencyRecord, ForwardLatencyTable, ForwardShapeKey
from stages import Candidate, Engine, Parallelism, Workload, evaluate
from stages.lengths import LengthBin, LengthDistribution, Sample
from stages.plan import plan
from stages.segment_steps import segment_steps
from tests.conftest import Shapecast, load_cases
from tests.formula import formula_forward
from tests.test_golden import check

CASES = load_cases("lengths_cases.json")


def candidate_of(case: Mapping[str, Any]) -> Candidate:
    workload = case["workload"]
    bins = tuple(LengthBin(**one) for one in workload["input_length_bins"])
    return Candidate(
        mode=workload["mode"],
        workload=Workload.of_lengths(
            LengthDistribution(bins), workload["output_length"], workload["prefix_cache_hit_rate"]
        ),
        engine=Engine(
            max_batched_tokens=workload["max_batched_tokens"],
            num_mtp_tokens=case["num_mtp_tokens"],
            mtp_acceptance_rate=tuple(workload["mtp_acceptance_rate"]),
            serving_cost_ms=workload["serving_cost_ms"],
        ),
        parallelism=Parallelism(**case["parallel"]),
        batch_size=workload["batch_size"],
    )


def segments_forward(
    formula: Mapping[str, float], replicas: int
) -> Callable[[ForwardShapeKey], ForwardLatencyRecord]:
    """The closed forms of the cases; a pass without segments is one segment of each replica's requests."""
    decode = formula_forward(formula)

    def forward(key: ForwardShapeKey) -> ForwardLatencyRecord:
        if key.is_decode:
            return decode(key)
        segments = key.segments or ((key.query_len, key.seq_len, key.model_concurrency // replicas),)
        pairs = [(q, s) for q, s, requests in segments for _ in range(requests)]
        latency_ms = formula["prefill_base_ms"] + sum(
            formula["prefill_ms_per_token"] * q + formula["prefill_ms_per_pair"] * q * s for q, s in pairs
        )
        context_tokens = sum(s for _, s in pairs)
        breakdown = {
            "memory_bound": sum(q for q, _ in pairs),
            "communication_bound": 0.5 * len(pairs),
            "compute_bound_mma": 2 * context_tokens,
            "compute_bound_gp": 0.25,
        }
        left_gb = formula["memory_gb"] - formula["gb_per_token"] * context_tokens
        return ForwardLatencyRecord(latency_ms, left_gb, {"formula": breakdown})

    return forward


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_lengths_case_gives_the_recorded_figures_and_computes_each_distinct_step_once(
    case: dict[str, Any],
) -> None:
    candidate, expected = candidate_of(case), case["expected"]
    table = ForwardLatencyTable(segments_forward(case["formula"], candidate.parallelism.dp))

    result = evaluate(candidate, table)

    check(result, expected, candidate.mode)
    assert table.forward_calls == expected["distinct_forward_calls"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_requests_are_apportioned_as_recorded(case: dict[str, Any]) -> None:
    candidate = candidate_of(case)
    workload = candidate.workload
    assert workload.input_lengths is not None
    requests = -(-candidate.concurrency // candidate.parallelism.dp)
    samples = workload.input_lengths.samples(requests, workload.prefix_cache_hit_rate)
    assert [{"num_input_tokens": one.length, "samples": one.requests} for one in samples] == (
        case["expected"]["samples"]
    )


def lengths(*bins: tuple[int, int, float]) -> LengthDistribution:
    return LengthDistribution(tuple(LengthBin(*one) for one in bins))


prompts = st.lists(
    st.tuples(st.integers(1, 40), st.integers(1, 6)).map(lambda one: Sample(*one)), min_size=1, max_size=5
)


@given(prompts, st.integers(1, 30))
def test_steps_are_filled_as_prompt_by_prompt_and_cut_where_they_are_full(
    samples: list[Sample], budget: int
) -> None:
    expected: list[tuple[Counter[tuple[int, int]], int]] = []
    free = 0
    for length, requests in samples:
        for _ in range(requests):
            done = 0
            while done < length:
                if free == 0:
                    expected.append((Counter(), 0))
                    free = budget
                piece = min(length - done, free)
                done, free = done + piece, free - piece
                segments, completed = expected[-1]
                segments[piece, done] += 1
                expected[-1] = segments, completed + (done == length)

    steps = []
    for step in segment_steps(samples, budget):
        segments = Counter[tuple[int, int]]()
        for query_len, seq_len, requests in step.segments:
            segments[query_len, seq_len] += requests
        steps.append((segments, step.completed))
    assert steps == expected
    tokens = [sum(piece * count for (piece, _), count in segments.items()) for segments, _ in steps]
    assert tokens[:-1] == [budget] * (len(steps) - 1)


weights = st.lists(st.integers(1, 100), min_size=1, max_size=6)


@given(weights, st.integers(1, 500))
def test_each_bin_gets_its_share_to_within_one_request(parts: list[int], requests: int) -> None:
    bins = lengths(*((10 * index, 10 * index + 10, weight) for index, weight in enumerate(parts)))
    samples = {sample.length: sample.requests for sample in bins.samples(requests)}
    assert sum(samples.values()) == requests
    for one, weight in zip(bins.bins, parts, strict=True):
        assert abs(samples.get(one.length, 0) - requests * weight / sum(parts)) < 1


def test_a_tie_goes_to_the_longer_prompt() -> None:
    assert lengths((0, 10, 1), (10, 20, 1)).samples(3) == (Sample(5, 1), Sample(15, 2))


def test_a_distribution_of_one_length_shares_every_prefill_record_with_the_uniform_workload() -> None:
    engine, parallelism = Engine(4096), Parallelism(dp=2)
    table = ForwardLatencyTable(lambda key: ForwardLatencyRecord(1.0, 1.0))
    uniform = Candidate("prefill", Workload(1024, 8), engine, parallelism, 6)
    evaluate(uniform, table)
    calls = table.forward_calls
    evaluate(
        Candidate("prefill", Workload.of_lengths(lengths((1024, 1025, 2.0)), 8), engine, parallelism, 6),
        table,
    )
    assert table.forward_calls == calls


def test_decode_alone_has_the_mean_effective_length_as_its_prompt() -> None:
    workload = Workload.of_lengths(lengths((0, 200, 1), (200, 600, 1)), 20, 0.5)
    one = plan(Candidate("decode", workload, Engine(512), Parallelism(), 4))
    assert workload.effective_input_length == (50 + 200) // 2
    assert one.keys == (ForwardShapeKey(True, 4, 1, 10 + 125 + 1),)


def test_steps_that_are_alike_are_planned_as_one_run() -> None:
    workload = Workload.of_lengths(lengths((3, 4, 1), (5, 6, 1)), 2)
    planned = plan(Candidate("prefill", workload, Engine(40), Parallelism(), 20))
    assert planned.schedule.num_steps == 2
    assert len(planned.keys) == 2
    assert planned.keys[0].segments is not None


def test_a_mean_that_is_not_that_of_the_lengths_is_refused() -> None:
    with pytest.raises(ValueError, match="it must be their mean, 5"):
        Workload(6, 8, 0.0, lengths((5, 6, 1)))


SWEEP = """
name: lengths
runner: {kind: roofline, quantization: {weights: fp8, activations: fp8, kv_cache: bf16}}
models: [Qwen/Qwen3-8B]
devices: [H100-SXM-80G]
parallelism: [{tp: 2}, {dp: 2}]
modes: [aggregated, prefill, decode]
workloads:
  - input_length: [2000, {bins: %s}]
    output_length: 64
engine: {max_batched_tokens: 2048}
concurrency: {batch_sizes: [1, 8, 64]}
"""
BINS = (
    "[{min_tokens: 0, max_tokens: 1024, weight: 6}, {min_tokens: 1024, max_tokens: 4096, weight: 3},"
    " {min_tokens: 4096, max_tokens: 16384, weight: 1}]"
)


def test_a_sweep_over_lengths_keeps_its_shapes_and_repeats_exactly(
    shapecast: Shapecast, tmp_path: Path
) -> None:
    (tmp_path / "lengths.yaml").write_text(SWEEP % BINS, encoding="utf-8")
    first = shapecast("run", "lengths.yaml", "--out", "a")
    second = shapecast("run", "lengths.yaml", "--out", "b")

    assert "2,099 (mean of 0-1024: 60%, 1024-4096: 30%, 4096-16384: 10%) input" in first.stdout
    assert " 0 computed;" in second.stdout
    assert (tmp_path / "a/results.parquet").read_bytes() == (tmp_path / "b/results.parquet").read_bytes()
    frame = pd.read_parquet(tmp_path / "a/results.parquet")
    mixed = frame[frame["input_length_bins"].notna()]
    assert len(mixed) == len(frame) / 2
    assert set(mixed["input_length"]) == {2099}
    # 64 requests, of 512, 2560 and 10240 tokens: 38, 19 and 7 of them.
    row = mixed[(mixed["mode"] == "prefill") & (mixed["tp"] == 2) & (mixed["batch_size"] == 64)].iloc[0]
    tokens = 38 * 512 + 19 * 2560 + 7 * 10240
    assert row["prefill_num_chunks"] == -(-tokens // 2048)
    longest_ms = tokens / row["tokens_per_s"] * 1000
    assert 0 < row["ttft_ms"] < longest_ms


@pytest.mark.parametrize(
    ("bins", "message"),
    [
        ("[]", "A length distribution has no bins; give at least one."),
        (
            "[{min_tokens: 0, max_tokens: 9, weight: 1}, {min_tokens: 8, max_tokens: 12, weight: 1}]",
            "The bins from 0 to 9 tokens and from 8 to 12 tokens overlap;",
        ),
        ("[{min_tokens: 9, max_tokens: 9, weight: 1}]", "The bin from 9 to 9 tokens is empty;"),
        (
            "[{min_tokens: 1, max_tokens: 9, weight: 0}]",
            "The bin from 1 to 9 tokens has the weight 0.0; it must be positive and at most 1e+15:",
        ),
        ("[{min_tokens: 1, max_tokens: 9, weight: .inf}]", "has the weight inf;"),
        ("[{min_tokens: -1, max_tokens: 9, weight: 1}]", "min_tokens is -1; it must be"),
        ("[{min_tokens: 1, max_tokens: 9}]", "workloads[0].input_length[1].bins[0].weight: this field is"),
    ],
)
def test_bins_that_cannot_be_are_one_sentence(
    shapecast: Shapecast, tmp_path: Path, bins: str, message: str
) -> None:
    (tmp_path / "lengths.yaml").write_text(SWEEP % bins, encoding="utf-8")
    done = shapecast("run", "lengths.yaml", "--out", "a", expect=1)
    assert message in " ".join(done.stderr.split())
    assert not (tmp_path / "a").exists()


def test_recorded_latencies_without_a_mixed_pass_say_so(shapecast: Shapecast, tmp_path: Path) -> None:
    pd.DataFrame(
        [[False, 1, 512, 512, 1.0, 1.0], [True, 1, 1, 600, 1.0, 1.0]],
        columns=["is_decode", "model_concurrency", "query_len", "seq_len", "latency_ms", "memory_left_gb"],
    ).to_csv(tmp_path / "records.csv", index=False)
    text = (SWEEP % BINS).replace(
        "{kind: roofline, quantization: {weights: fp8, activations: fp8, kv_cache: bf16}}",
        "{kind: recorded, path: records.csv}",
    )
    text = text.replace("[aggregated, prefill, decode]", "prefill").replace("[1, 8, 64]", "8")
    text = text.replace("max_batched_tokens: 2048", "max_batched_tokens: 4096")
    (tmp_path / "lengths.yaml").write_text(text.replace("2000, ", ""), encoding="utf-8")
    done = shapecast("run", "lengths.yaml", "--out", "a", expect=1)
    assert "no record of the shape (prefill of 6 requests of several lengths (5 x 512 at 512" in done.stderr


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
def test_records_of_several_lengths_travel(shapecast: Shapecast, tmp_path: Path, suffix: str) -> None:
    text = (SWEEP % BINS).replace("[{tp: 2}, {dp: 2}]", "[{dp: 2}]").replace("2000, ", "")
    (tmp_path / "lengths.yaml").write_text(text, encoding="utf-8")
    shapecast("run", "lengths.yaml", "--out", "a")
    shapecast("tables", "compact", "--yes")
    (table,) = [path.name for path in (tmp_path / "tables").iterdir() if len(path.name) == 64]
    shapecast("tables", "export", table, f"records{suffix}")
    shapecast("tables", "import", f"records{suffix}", "--tables", "others")
    there = shapecast("run", "lengths.yaml", "--out", "b", "--tables", "others", "--frozen")
    assert " 0 computed;" in there.stdout
    assert (tmp_path / "a/results.parquet").read_bytes() == (tmp_path / "b/results.parquet").read_bytes()
