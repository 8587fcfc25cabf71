"""The recorded figures of the reference: tests/data/README.md says where they come from."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import pandas as pd
import pytest

from cache import DeviceMemory, ForwardLatencyRecord, ForwardLatencyTable, ForwardShapeKey
from stages import Candidate, CandidateResult, Engine, Parallelism, Workload, evaluate
from stages.pd_ratio import Half, instance_counts, ratio_rows
from tests.conftest import DATA, load_cases
from tests.formula import formula_forward

FORMULA_CASES = load_cases("formula_cases.json")
REFERENCE = load_cases("reference_cases.json")
IDENTITIES = {identity["id"]: identity for identity in REFERENCE["identities"]}
CASES = {case["id"]: case for case in REFERENCE["cases"]}

# The reference computes a shape anew that a one-forward prefill has computed before; here it is known.
NEW_CALLS_SAVED = {("single-chunk-prefill-waves", 9): 2}


def agrees(value: float | None, expected: float | str | None) -> bool:
    if expected is None or value is None:
        return value is None and expected is None
    if expected == "inf":
        return value == math.inf
    return math.isclose(value, float(expected), rel_tol=1e-9)


def check(result: CandidateResult, expected: Mapping[str, Any], mode: str) -> None:
    assert agrees(result.memory_left_gb, expected["memory_left_gb"])
    assert agrees(result.ttft_ms, expected["ttft_ms"])
    assert agrees(result.tpot_ms, expected["tpot_ms"])
    assert agrees(result.tokens_per_s, expected["token_s"])
    assert agrees(result.tokens_per_s_per_device, expected["token_s_device"])
    assert result.stop_reason == expected["early_stop_reason"]
    assert result.concurrency == expected["concurrency"]
    assert result.prefill_num_chunks == expected["prefill_num_chunks"]
    assert result.effective_input_length == expected["effective_input_length"]
    texts = {"(p)": result.prefill_breakdown, "(d)": result.decode_breakdown}
    if mode != "aggregated":
        texts = {"": result.prefill_breakdown if mode == "prefill" else result.decode_breakdown}
    for suffix, text in texts.items():
        assert (text or "") == expected[f"percentage_breakdowns{suffix}"]


def formula_candidate(case: Mapping[str, Any]) -> Candidate:
    workload = case["workload"]
    return Candidate(
        mode=workload["mode"],
        workload=Workload(
            workload["input_length"], workload["output_length"], workload["prefix_cache_hit_rate"]
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


@pytest.mark.parametrize("case", FORMULA_CASES, ids=lambda case: case["id"])
def test_formula_case_gives_the_recorded_figures_shapes_and_calls(case: dict[str, Any]) -> None:
    asked: list[ForwardShapeKey] = []
    forward = formula_forward(case["formula"])

    def counted(key: ForwardShapeKey) -> ForwardLatencyRecord:
        asked.append(key)
        return forward(key)

    table = ForwardLatencyTable(counted)
    expected = case["expected"]
    result = evaluate(formula_candidate(case), table)

    check(result, expected, case["workload"]["mode"])
    assert table.forward_calls == len(asked) == expected["forward_calls"]
    for key, shape in ((asked[0], expected["first_key"]), (asked[-1], expected["last_key"])):
        assert [key.is_decode, key.model_concurrency, key.query_len, key.seq_len] == shape


def reference_records() -> dict[str, dict[ForwardShapeKey, ForwardLatencyRecord]]:
    records: dict[str, dict[ForwardShapeKey, ForwardLatencyRecord]] = {}
    for row in pd.read_parquet(DATA / "reference_records.parquet").to_dict("records"):
        key = ForwardShapeKey(
            bool(row["is_decode"]), row["model_concurrency"], row["query_len"], row["seq_len"]
        )
        memory = DeviceMemory(
            row["total_device_memory_gb"],
            row["model_weight_size_gb"],
            row["kv_cache_size_gb"],
            row["model_activation_size_gb"],
            row["reserved_memory_gb"],
        )
        records.setdefault(row["identity"], {})[key] = ForwardLatencyRecord(
            row["latency_ms"], row["memory_left_gb"], json.loads(row["raw_breakdowns"]), memory
        )
    return records


RECORDS = reference_records()


def reference_parallelism(case: Mapping[str, Any]) -> Parallelism:
    identity = IDENTITIES[case["identity"]]
    return Parallelism(
        tp=identity["tp"], dp=identity["num_devices"] // identity["tp"], ep=identity.get("ep", 1)
    )


def reference_candidate(case: Mapping[str, Any], batch_size: int) -> Candidate:
    workload = case["workload"]
    return Candidate(
        mode=workload["mode"],
        workload=Workload(
            workload["input_length"], workload["output_length"], workload.get("prefix_cache_hit_rate", 0.0)
        ),
        engine=Engine(
            max_batched_tokens=workload["max_batched_tokens"],
            num_mtp_tokens=IDENTITIES[case["identity"]].get("num_mtp_tokens", 0),
            mtp_acceptance_rate=tuple(workload.get("mtp_acceptance_rate", ())),
            serving_cost_ms=workload.get("serving_cost_ms", 0.0),
        ),
        parallelism=reference_parallelism(case),
        batch_size=batch_size,
        ttft_limit_ms=workload.get("ttft_limit_ms"),
        tpot_limit_ms=workload.get("tpot_limit_ms"),
    )


@pytest.mark.parametrize("case", CASES.values(), ids=lambda case: case["id"])
def test_reference_case_gives_the_recorded_figures_and_computes_each_shape_once(case: dict[str, Any]) -> None:
    forward = RECORDS[case["identity"]].__getitem__
    shared = ForwardLatencyTable(forward)
    for expected in case["candidates"]:
        candidate = reference_candidate(case, expected["batch_size"])
        before = shared.forward_calls
        result = evaluate(candidate, shared)
        alone = ForwardLatencyTable(forward)
        evaluate(candidate, alone)

        check(result, expected, candidate.mode)
        assert agrees(result.weight_gb, expected["weight_GB"])
        assert agrees(result.kv_cache_gb, expected["kv_cache_GB"])
        assert agrees(result.activation_gb, expected["activation_GB"])
        assert candidate.deployment_label == expected["parallel"]
        saved = NEW_CALLS_SAVED.get((case["id"], candidate.batch_size), 0)
        assert shared.forward_calls - before == expected["new_forward_calls"] - saved
        assert alone.forward_calls == expected["forward_calls_alone"]


def halves(case: Mapping[str, Any]) -> list[Half]:
    table = ForwardLatencyTable(RECORDS[case["identity"]].__getitem__)
    found = []
    for expected in case["candidates"]:
        candidate = reference_candidate(case, expected["batch_size"])
        result = evaluate(candidate, table)
        latency_ms = result.ttft_ms if candidate.mode == "prefill" else result.tpot_ms
        if result.feasible and latency_ms is not None:
            found.append(
                Half(
                    latency_ms,
                    candidate.batch_size,
                    result.concurrency,
                    candidate.parallelism.num_devices,
                    candidate.deployment_label,
                )
            )
    return found


@pytest.mark.parametrize("pairing", REFERENCE["pd_ratio"], ids=lambda p: p["prefill_case"])
def test_ratio_rows_and_instance_counts_are_the_recorded_ones(pairing: dict[str, Any]) -> None:
    rows = ratio_rows(
        halves(CASES[pairing["prefill_case"]]),
        halves(CASES[pairing["decode_case"]]),
        pairing["output_length"],
    )
    assert len(rows) == len(pairing["ranked"])
    for row, expected in zip(rows, pairing["ranked"], strict=True):
        for name in ("pd_ratio", "p_qps", "d_qps", "balanced_qps"):
            assert agrees(getattr(row, name), expected[name])
        for half, suffix, latency in ((row.prefill, "p", "ttft_p"), (row.decode, "d", "tpot_d")):
            assert agrees(half.latency_ms, expected[latency])
            assert half.batch_size == expected[f"batch_size_{suffix}"]
            assert half.concurrency == expected[f"concurrency_{suffix}"]
            assert half.num_devices == expected[f"num_devices_{suffix}"]
            assert half.parallelism == expected[f"parallel_{suffix}"]
        counts = instance_counts(
            row.pd_ratio, row.prefill.num_devices, row.decode.num_devices, pairing["total_devices"]
        )
        assert counts == (expected["p_instances"], expected["d_instances"])
