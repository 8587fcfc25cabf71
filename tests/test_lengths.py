"""Prompts of several lengths: recorded figures, the filling of steps, and the command."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from cache import ForwardLatencyRecord, ForwardLatencyTable, ForwardShapeKey
from stages import Candidate, Engine, Parallelism, Workload, evaluate
from stages.lengths import LengthBin, LengthDistribution
from tests.conftest import load_cases
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


def segments_forward(formula: Mapping[str, float], replicas: int):
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
