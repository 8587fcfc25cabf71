"""Searching sweeps through the installed command."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from cache.errors import ConfigError
from configs import CONFIGS_DIR
from pipeline.cells import expand
from pipeline.config import load_config
from tests.conftest import DATA, Shapecast
from tests.test_golden import CASES, IDENTITIES, agrees

GOLDEN = [case for case in CASES.values() if "search" in case]

SEARCH: dict[str, Any] = {
    "name": "search",
    "runner": {"kind": "roofline", "quantization": {"weights": "fp8", "activations": "fp8"}},
    "models": ["Qwen/Qwen3-8B"],
    "devices": ["H100-SXM-80G"],
    "modes": ["aggregated"],
    "workloads": [{"input_length": 4000, "output_length": 64}],
    "engine": {"max_batched_tokens": 4096},
    "concurrency": {"search": "exponential"},
    "limits": {"ttft_ms": 5000, "tpot_ms": 40},
}


BUDGET = {"kind": "step_time_budget", "step_ms": 25}


def write(tmp_path: Path, **changes: Any) -> Path:
    path = tmp_path / "sweep.yaml"
    path.write_text(json.dumps(SEARCH | changes), encoding="utf-8")
    return path


def run(shapecast: Shapecast, tmp_path: Path, *options: object, **changes: Any) -> pd.DataFrame:
    shapecast("run", write(tmp_path, **changes), "--out", "out", "--quiet", "--force", *options)
    return pd.read_parquet(tmp_path / "out" / "results.parquet")


def golden_sweep(case: dict[str, Any], strategy: str) -> dict[str, Any]:
    workload, identity = case["workload"], IDENTITIES[case["identity"]]
    lengths = ("input_length", "output_length")
    names = {"memory_weight_gb": "model_weight_size_gb", "memory_kv_cache_gb": "kv_cache_size_gb"}
    names |= {"memory_activation_gb": "model_activation_size_gb", "memory_total_gb": "total_device_memory_gb"}
    names |= {"memory_reserved_gb": "reserved_memory_gb"}
    limits = {name: workload.get(f"{name[:4]}_limit_ms") for name in ("ttft_ms", "tpot_ms")}
    return {
        "runner": {
            "kind": "recorded",
            "path": str(DATA / "reference_records.parquet"),
            "where": {"identity": identity["id"]},
            "columns": names,
        },
        "parallelism": {"tp": identity["tp"], "dp": identity["num_devices"] // identity["tp"]},
        "modes": [workload["mode"]],
        "workloads": [{name: workload[name] for name in lengths}],
        "engine": {"max_batched_tokens": workload["max_batched_tokens"]},
        "concurrency": {"search": strategy, "range": case["search"]["batch_range"]},
        "limits": {name: value for name, value in limits.items() if value is not None},
    }


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: case["id"])
def test_a_searched_sweep_shows_the_recorded_rows_in_order(
    case: dict[str, Any], shapecast: Shapecast, tmp_path: Path
) -> None:
    rows = run(shapecast, tmp_path, **golden_sweep(case, "exponential"))
    expected = case["search"]
    feasible = rows[rows["feasible"]]
    assert list(feasible["batch_size"]) == expected["feasible"]
    for row in rows.to_dict("records"):
        assert expected["visited"][row["visit"] - 1] == row["batch_size"]
    hidden = set(expected["visited"]) - set(rows["batch_size"])
    assert hidden <= {1, 512}
    if expected["best"] is not None:
        best = feasible[feasible["batch_size"] == expected["best"]["batch_size"]].iloc[0]
        assert agrees(best["tokens_per_s"], expected["best"]["token/s"])


def test_a_linear_exponential_sweep_ends_on_the_recorded_best(shapecast: Shapecast, tmp_path: Path) -> None:
    case = CASES["rfc-128k-1k"]
    rows = run(shapecast, tmp_path, **golden_sweep(case, "linear_exponential"))
    assert rows[rows["feasible"]]["batch_size"].max() == case["search"]["best"]["batch_size"]
    assert len(rows) < len(case["search"]["visited"]) - 1


def test_searches_give_the_same_bytes_on_every_scheduler_and_compute_nothing_twice(
    shapecast: Shapecast, tmp_path: Path
) -> None:
    config = write(
        tmp_path,
        devices=["H100-SXM-80G", "L40S-48G"],
        parallelism={"search": {"num_devices": 2}},
        modes=["aggregated", "prefill", "decode"],
    )
    written = set()
    for scheduler in ("threads", "processes", "single-threaded", "threads"):
        done = shapecast("run", config, "--out", scheduler, "--scheduler", scheduler)
        assert (scheduler == "threads" and not written) or " 0 computed;" in done.stdout
        written.add((tmp_path / scheduler / "results.parquet").read_bytes())
    assert len(written) == 1


def test_parallel_sizes_are_searched_over_valid_combinations_only(
    shapecast: Shapecast, tmp_path: Path
) -> None:
    search = {"num_devices": 8, "ep_sizes": "auto", "moe_dp_sizes": [1, 2]}
    dense = run(shapecast, tmp_path, parallelism={"search": search})
    assert set(zip(dense["tp"], dense["dp"], strict=True)) == {(1, 8), (2, 4), (4, 2), (8, 1)}
    assert set(dense["ep"]) == set(dense["moe_dp"]) == {1}

    moe = run(shapecast, tmp_path, models=["Qwen/Qwen3-30B-A3B"], parallelism={"search": search})
    assert set(moe["ep"]) == {1, 2, 4, 8}
    assert set(moe["moe_dp"]) == {1, 2}
    assert (moe["tp"] * moe["dp"] == 8).all()
    assert (moe["ep"] * moe["moe_tp"] * moe["moe_dp"] == 8).all()


def test_speculative_tokens_are_searched_where_the_model_can_draft(
    shapecast: Shapecast, tmp_path: Path
) -> None:
    engine = {"max_batched_tokens": 4096, "num_mtp_tokens": "auto", "mtp_acceptance_rate": [0.8, 0.5]}
    sizes = {"concurrency": {"batch_sizes": [1]}, "parallelism": {"tp": 8}}
    assert set(run(shapecast, tmp_path, engine=engine, **sizes)["num_mtp_tokens"]) == {0}
    drafts = run(shapecast, tmp_path, engine=engine, models=["deepseek-ai/DeepSeek-V3"], **sizes)
    assert set(drafts["num_mtp_tokens"]) == {0, 1, 2}


def test_more_than_a_hundred_combinations_are_warned_of_unless_raised(
    shapecast: Shapecast, tmp_path: Path
) -> None:
    search = {"num_devices": 128, "moe_dp_sizes": "auto"}
    changes = {"models": ["Qwen/Qwen3-30B-A3B"], "concurrency": {"batch_sizes": [1]}}
    few = write(tmp_path, parallelism={"search": search | {"ep_sizes": [1], "tp_sizes": [8]}}, **changes)
    assert shapecast("run", few, "--out", "few", "--quiet").stderr == ""
    many = write(tmp_path, parallelism={"search": search}, **changes)
    warned = shapecast("run", many, "--out", "many", "--quiet").stderr
    assert "tries 288 combinations" in warned
    assert "more than max_combinations (100)" in warned
    raised = write(tmp_path, parallelism={"search": search | {"max_combinations": 288}}, **changes)
    assert shapecast("run", raised, "--out", "raised", "--quiet").stderr == ""


def test_an_automatic_budget_starts_with_four_prompts(shapecast: Shapecast, tmp_path: Path) -> None:
    rows = run(shapecast, tmp_path, engine={"max_batched_tokens": "auto"})
    assert set(rows["max_batched_tokens"]) == {16000}


def test_a_search_may_use_a_policy_that_looks_at_latencies(shapecast: Shapecast, tmp_path: Path) -> None:
    rows = run(
        shapecast,
        tmp_path,
        engine={"max_batched_tokens": 1024, "scheduler": ["decode_first_slack", BUDGET]},
        concurrency={"search": "exponential", "range": [1, 64]},
    )
    best = rows[rows["feasible"]].groupby("scheduler")["batch_size"].max()
    assert len(best) == 2


def test_searches_and_automatic_budgets_take_prompts_of_several_lengths(
    shapecast: Shapecast, tmp_path: Path
) -> None:
    bins = [
        {"min_tokens": 100, "max_tokens": 300, "weight": 3},
        {"min_tokens": 1000, "max_tokens": 3000, "weight": 1},
    ]
    rows = run(
        shapecast,
        tmp_path,
        workloads=[{"input_length": {"bins": bins}, "output_length": 64}],
        engine={"max_batched_tokens": "auto"},
    )
    assert set(rows["max_batched_tokens"]) == {4 * 650}
    assert rows["feasible"].any()


def recorded(tmp_path: Path, rows: list[tuple[bool, int, int, int, float]]) -> dict[str, Any]:
    columns = ("is_decode", "model_concurrency", "query_len", "seq_len", "memory_left_gb")
    frame = pd.DataFrame(rows, columns=columns).assign(latency_ms=10.0)
    frame.to_csv(tmp_path / "records.csv", index=False)
    return {"kind": "recorded", "path": "records.csv"}


@pytest.mark.parametrize("search", [{"batch_sizes": [4, 8]}, {"search": "bisect", "range": [4, 8]}])
def test_an_automatic_budget_moves_on_only_when_prefill_runs_out_of_memory(
    search: dict[str, Any], shapecast: Shapecast, tmp_path: Path
) -> None:
    fits_two = [(False, count, 100, 100, 3.0 - count) for count in (1, 2, 4)]
    decodes = [(True, count, 1, 111, 1.0) for count in (4, 5, 6, 7, 8)]
    changes = {
        "runner": recorded(tmp_path, fits_two + decodes),
        "workloads": [{"input_length": 100, "output_length": 20}],
        "engine": {"max_batched_tokens": "auto"},
        "concurrency": search,
    }
    rows = run(shapecast, tmp_path, **changes)
    assert list(rows["max_batched_tokens"].unique()) == [400, 200]
    assert set(rows[rows["max_batched_tokens"] == 400]["stop_reason"]) == {"prefill_oom"}
    assert rows[rows["max_batched_tokens"] == 200]["feasible"].all()

    tight = [(True, count, 1, 111, -1.0) for count in (4, 8)]
    fits_four = [(False, count, 100, 100, 1.0) for count in (1, 2, 4)]
    rows = run(shapecast, tmp_path, **changes | {"runner": recorded(tmp_path, fits_four + tight)})
    assert set(rows["max_batched_tokens"]) == {400}
    assert set(rows["stop_reason"]) == {"decode_oom"}


def test_a_searched_budget_tries_a_grid_up_to_four_prompts_and_beats_the_automatic_one(
    shapecast: Shapecast, tmp_path: Path
) -> None:
    changes = {"modes": ["aggregated", "decode"], "limits": {"ttft_ms": 5000, "tpot_ms": 25}}
    automatic = run(shapecast, tmp_path, engine={"max_batched_tokens": "auto"}, **changes)
    rows = run(shapecast, tmp_path, engine={"max_batched_tokens": "search"}, **changes)
    tried = set(rows[rows["mode"] == "aggregated"]["max_batched_tokens"])
    assert tried == {512, 1024, 2048, 4000, 4096, 8000, 8192, 16000, 16384}
    assert len(set(rows[rows["mode"] == "decode"]["max_batched_tokens"])) == 1
    best = [one[one["feasible"]]["tokens_per_s"].max() for one in (automatic, rows)]
    assert best[1] >= best[0]


def test_an_exhaustive_frontier_says_what_bisection_would_have_missed(
    shapecast: Shapecast, tmp_path: Path
) -> None:
    decodes = [(True, count, 1, 111, 9.0 - count if count != 5 else -1.0) for count in range(1, 9)]
    changes = {
        "runner": recorded(tmp_path, decodes),
        "modes": ["decode"],
        "workloads": [{"input_length": 100, "output_length": 20}],
        "limits": {},
        "concurrency": {"search": "exhaustive_frontier", "range": [1, 8]},
    }
    done = shapecast("run", write(tmp_path, **changes), "--out", "out")
    rows = pd.read_parquet(tmp_path / "out" / "results.parquet")
    assert list(rows["batch_size"]) == list(range(1, 9))
    best = rows[rows["bisection_loss"].notna()]
    assert list(best["batch_size"]) == [8]
    assert list(best["bisection_batch_size"]) == [8]
    assert list(best["bisection_loss"]) == [0.0]
    assert "bisection" not in done.stdout.lower()

    gap = [(True, count, 1, 111, -1.0 if count == 4 else 1.0) for count in range(1, 9)]
    done = shapecast("run", write(tmp_path, **changes | {"runner": recorded(tmp_path, gap)}), "--out", "gap")
    rows = pd.read_parquet(tmp_path / "gap" / "results.parquet")
    best = rows[rows["bisection_loss"].notna()].iloc[0]
    assert (best["batch_size"], best["bisection_batch_size"]) == (8, 3)
    assert best["bisection_loss"] == pytest.approx(5 / 8)
    assert "Bisection would have missed" in done.stdout
    assert "62.50%" in done.stdout


def documented_example() -> tuple[list[tuple[int, float, float]], str]:
    """Batch size, TTFT and throughput of the rows in docs/search.md, and what bisection loses there."""
    page = (DATA.parent.parent / "docs" / "search.md").read_text(encoding="utf-8").replace(",", "")
    rows = re.findall(r"^\| (\d+) \| (\d+) ms \| (\d+) tokens/s \|", page, re.M)
    loss = re.search(r"where bisection ends ([\d.]+)% below", page)
    assert loss is not None
    return [(int(size), float(ttft_ms), float(rate)) for size, ttft_ms, rate in rows], loss[1]


def test_the_shipped_example_shows_what_bisection_misses_as_documented(
    shapecast: Shapecast, tmp_path: Path
) -> None:
    shown, loss = documented_example()
    (best_size, _, _), (next_size, _, _), (reached, _, _) = shown
    done = shapecast("run", CONFIGS_DIR / "bisection_misses.yaml", "--out", "out")
    assert f"Bisection would have missed {loss}% of " in done.stdout
    assert f"batch {best_size} is best, it ended on batch {reached}." in done.stdout

    rows = pd.read_parquet(tmp_path / "out" / "results.parquet").set_index("batch_size")
    best = rows[rows["bisection_loss"].notna()].iloc[0]
    assert (best.name, next_size) == (best_size, best_size + 1)
    assert best["bisection_batch_size"] == reached
    assert best["tokens_per_s"] == rows[rows["feasible"]]["tokens_per_s"].max()
    for size, ttft_ms, tokens_per_s in shown:
        assert rows.loc[size, "ttft_ms"] == pytest.approx(ttft_ms, abs=1)
        assert rows.loc[size, "tokens_per_s"] == pytest.approx(tokens_per_s, abs=1)

    example = yaml.safe_load((CONFIGS_DIR / "bisection_misses.yaml").read_text(encoding="utf-8"))
    path = run(shapecast, tmp_path, **example | {"concurrency": {"search": "exponential"}})
    assert path[path["feasible"]].sort_values("tokens_per_s")["batch_size"].iloc[-1] == reached


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"concurrency": {}}, "concurrency: give either batch_sizes or search"),
        (
            {"concurrency": {"search": "bisect", "batch_sizes": [1]}},
            "give either batch_sizes or search",
        ),
        ({"concurrency": {"batch_sizes": [1], "range": [1, 2]}}, "range belongs to a search"),
        ({"concurrency": {"search": "exponential", "range": [9, 2]}}, "range is [9, 2], which is reversed"),
        ({"concurrency": {"search": "exponential", "range": [0, 2]}}, "range[0]: input should be greater"),
        (
            {"concurrency": {"search": "exponential", "range": [2]}},
            "range is [2]; give the smallest and the largest",
        ),
        ({"concurrency": {"search": "bisect"}}, "the search bisect has no range"),
        ({"concurrency": {"search": "magic"}}, "concurrency.search: input should be 'exponential'"),
        (
            {"engine": {"max_batched_tokens": "most"}},
            "max_batched_tokens: input should be 'auto' or 'search'",
        ),
        ({"engine": {"max_batched_tokens": [0]}}, "max_batched_tokens[0]: input should be greater than 0"),
        ({"modes": ["decode"]}, "limits.ttft_ms is given, but the only mode is decode"),
        ({"modes": ["prefill"]}, "limits.tpot_ms is given, but the only mode is prefill"),
        ({"parallelism": {"tp": 2, "search": {"num_devices": 2}}}, "search finds the sizes itself"),
        ({"parallelism": {"search": {}}}, "parallelism[0].search.num_devices is missing"),
        (
            {"parallelism": {"search": {"num_devices": 8, "tp_sizes": [3]}}},
            "No combination of tp_sizes [3], ep_sizes [1, 2, 4, 8], moe_dp_sizes [1] uses exactly 8 devices",
        ),
        (
            {"parallelism": {"search": {"num_devices": 3, "tp_sizes": [3]}}},
            "tp is 3, but Qwen/Qwen3-8B has 32 attention heads",
        ),
    ],
)
def test_searches_that_make_no_sense_are_refused_in_one_sentence(
    changes: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as refused:
        expand(load_config(write(tmp_path, **changes)))
    message = str(refused.value)
    assert sentence in message
    assert message.startswith(str(tmp_path / "sweep.yaml"))
    assert message.endswith(".")


def test_a_refused_search_ends_the_command_with_one_line_and_code_1(
    shapecast: Shapecast, tmp_path: Path
) -> None:
    config = write(tmp_path, concurrency={"search": "exponential", "range": [9, 2]})
    message = shapecast("run", config, "--out", "out", expect=1).stderr
    assert message.count("\n") == 1
    assert "reversed" in message
