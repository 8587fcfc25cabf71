"""What a run's rows say."""

from __future__ import annotations

import pytest

from pipeline.findings import (
    answer,
    nearest_stops,
    pareto_front,
    short_names,
    stops,
    winners,
    with_derived,
    workload_text,
)
from stages.result import STOP_REASONS
from tests.report_runs import frame, row


def point(tpot_ms: float, per_device: float, **values: object) -> dict[str, object]:
    return row(tpot_ms=tpot_ms, tokens_per_s_per_device=per_device, tokens_per_s=per_device, **values)


def test_the_front_holds_what_nothing_beats_in_both_axes() -> None:
    rows = frame(point(10, 50), point(5, 40), point(10, 45), point(20, 90), point(20, 80), point(5, 40))
    assert pareto_front(rows, "aggregated") == [3, 0, 1]


def test_the_front_leaves_out_rows_that_are_not_feasible() -> None:
    rows = frame(point(10, 50), point(10, 99, feasible=False, stop_reason="tpot_limit", tpot_limit_ms=1.0))
    assert pareto_front(rows, "aggregated") == [0]


def test_models_and_workloads_have_fronts_of_their_own() -> None:
    rows = frame(point(10, 50), point(5, 90, model="n"), point(5, 90, output_length=20))
    assert sorted(pareto_front(rows, "aggregated")) == [0, 1, 2]


def test_in_prefill_a_lower_ttft_is_better() -> None:
    def prefill(ttft_ms: float, per_device: float) -> dict[str, object]:
        return row(mode="prefill", ttft_ms=ttft_ms, tpot_ms=None, tokens_per_s_per_device=per_device)

    rows = frame(prefill(10, 50), prefill(20, 90), prefill(30, 80), prefill(5, 10))
    assert pareto_front(rows, "prefill") == [3, 0, 1]


def test_winners_are_the_best_row_of_each_mode_workload_model_and_device() -> None:
    rows = frame(
        point(5, 10, device="slow"),
        point(5, 30, device="fast"),
        point(5, 20, device="fast"),
        point(5, 99, device="fast", feasible=False, stop_reason="ttft_limit", ttft_limit_ms=1.0),
        point(5, 5, device="fast", output_length=20),
        point(5, 7, mode="decode", ttft_ms=None),
    )
    best = winners(rows)
    assert list(zip(best["mode"], best["device"], best["row"], strict=True)) == [
        ("aggregated", "fast", 1),
        ("aggregated", "slow", 0),
        ("aggregated", "fast", 4),
        ("decode", "d", 5),
    ]


def test_the_answer_is_per_model_and_prefers_aggregated() -> None:
    rows = frame(point(5, 10), point(5, 30, mode="decode", ttft_ms=None), point(5, 20, model="n"))
    questions = [question for question, _, _ in answer(winners(rows))]
    assert questions == [
        "Best aggregated deployment of m for 100 input and 10 output tokens",
        "Best aggregated deployment of n for 100 input and 10 output tokens",
    ]


def test_the_answer_names_the_runner_where_there_are_several() -> None:
    rows = frame(point(5, 10), point(5, 20, runner="measured"))
    ((_, deployment, _),) = answer(winners(rows))
    assert deployment.endswith(", by the measured runner")


def test_a_stop_names_the_first_load_that_does_not_fit_and_the_largest_that_does() -> None:
    rows = frame(
        row(batch_size=4, feasible=False, stop_reason="ttft_limit", ttft_limit_ms=8.0),
        row(batch_size=1),
        row(batch_size=2),
        row(batch_size=8, feasible=False, stop_reason="decode_oom", memory_left_gb=-2.5, stop_shape="decode"),
        row(batch_size=1, device="other"),
    )
    found = stops(rows)
    assert list(found["batch_size"]) == [4]
    assert list(found["largest_fit"]) == [2]
    assert list(found["why"]) == ["TTFT is 10.00 ms, over the limit of 8.00 ms"]


def test_a_deployment_that_fits_nothing_has_a_largest_fit_of_zero() -> None:
    found = stops(frame(row(feasible=False, stop_reason="prefill_oom", memory_left_gb=-1.0, stop_shape="s")))
    assert list(found["largest_fit"]) == [0]


@pytest.mark.parametrize("reason", STOP_REASONS)
def test_every_stop_reason_has_words(reason: str) -> None:
    stopped = row(
        feasible=False, stop_reason=reason, stop_shape="decode of 2 x 1 tokens at length 9",
        memory_left_gb=-1.5 if reason.endswith("oom") else 1.0, ttft_limit_ms=2.0, tpot_limit_ms=3.0,
    )  # fmt: skip
    expected = {
        "prefill_oom": "out of memory by 1.50 GiB at the decode of 2 x 1 tokens at length 9",
        "decode_oom": "out of memory by 1.50 GiB at the decode of 2 x 1 tokens at length 9",
        "ttft_limit": "TTFT is 10.00 ms, over the limit of 2.00 ms",
        "tpot_limit": "TPOT is 5.00 ms, over the limit of 3.00 ms",
    }
    assert list(stops(frame(stopped))["why"]) == [expected[reason]]


def test_the_nearest_stop_breaks_a_limit_by_least_and_memory_comes_last() -> None:
    limits = {"feasible": False, "ttft_limit_ms": 1.0}
    rows = frame(
        row(batch_size=1, stop_reason="ttft_limit", ttft_ms=30.0, **limits),
        row(batch_size=2, stop_reason="ttft_limit", ttft_ms=20.0, **limits),
        row(batch_size=3, stop_reason="decode_oom", memory_left_gb=-0.1, stop_shape="s", **limits),
    )
    assert [stopped["batch_size"] for stopped in nearest_stops(rows)] == [2]


def test_names_are_shortened_only_where_they_stay_apart() -> None:
    assert short_names(["Qwen/Qwen3-8B", "models/mine/config.json"]) == {
        "Qwen/Qwen3-8B": "Qwen3-8B",
        "models/mine/config.json": "mine",
    }
    assert short_names(["a/same", "b/same"]) == {"a/same": "a/same", "b/same": "b/same"}


def test_a_workload_in_words_names_the_cached_share() -> None:
    rows = with_derived(frame(row(prefix_cache_hit_rate=0.25, input_length=2000)))
    assert list(rows["workload"]) == ["2,000 input and 10 output tokens, 25% of the prompt cached"]
    assert workload_text(rows.iloc[0].to_dict()) == rows["workload"][0]


def test_deriving_twice_changes_nothing() -> None:
    rows = with_derived(frame(row(), row(batch_size=2)))
    assert with_derived(rows.iloc[1:]) is not None
    assert list(with_derived(rows.iloc[1:])["row"]) == [1]
