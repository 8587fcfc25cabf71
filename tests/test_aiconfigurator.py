"""How keys become questions to the estimator and its answers become records; no package needed."""

from __future__ import annotations

import logging

import pytest

from cache.errors import RunnerError
from cache.shapes import BOUND_TYPES, DeviceMemory, ForwardShapeKey
from stages.runners.aiconfigurator import AIConfiguratorRunner, bound_seconds, source_shares
from stages.runners.aiconfigurator_chatter import quiet, relevant_warnings, tell_once
from stages.runners.aiconfigurator_engine import Operator, StepMemory
from stages.runners.roofline_batch import Segments
from tests.aiconfigurator_cases import deployment, options

GIB = 2.0**30


class FakeEstimator:
    """Answers with round numbers and keeps what it was asked."""

    operator_kinds = frozenset({"Gemm"})

    def __init__(self, error: Exception | None = None) -> None:
        self.asked: list[tuple[object, ...]] = []
        self.error = error

    def prefill(self, segments: Segments, /) -> tuple[float, list[Operator]]:
        self.asked.append(("prefill", *segments))
        if self.error is not None:
            raise self.error
        return 10.0, [
            Operator("gemm", 6.0, "silicon", "compute_bound_mma"),
            Operator("reduce", 3.0, "silicon", "communication_bound"),
            Operator("norm", 1.0, "empirical", "memory_bound"),
        ]

    def decode(self, requests: int, cached: int) -> tuple[float, list[Operator]]:
        self.asked.append(("decode", requests, cached))
        return 2.0, [Operator("gemm", 2.0, "silicon", "memory_bound")]

    def step_memory(self, step_tokens: int, /) -> StepMemory:
        self.asked.append(("memory", step_tokens))
        return StepMemory(weights=20 * GIB, activations=step_tokens / 1024 * GIB, overhead=4 * GIB)

    def kv_cache_bytes(self, seq_len: int) -> float:
        return seq_len / 4096 * GIB


def runner(estimator: FakeEstimator, num_mtp_tokens: int = 0, **sizes: int) -> AIConfiguratorRunner:
    fields = {"package_version": "0.0.0+0", "backend_version": "0.24.0", "reserved_memory_gb": 2.5}
    spec = options(**fields).spec(deployment(num_mtp_tokens=num_mtp_tokens, **sizes))
    return AIConfiguratorRunner(spec, estimator, capacity_bytes=80 * GIB)


# --- questions --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "key", "asked"),
    [
        ({}, ForwardShapeKey(False, 3, 1024, 1024), [("prefill", (1024, 1024, 3)), ("memory", 3072)]),
        ({}, ForwardShapeKey(False, 1, 1024, 4096), [("prefill", (1024, 4096, 1)), ("memory", 1024)]),
        ({"dp": 2}, ForwardShapeKey(False, 3, 8, 8), [("prefill", (8, 8, 2)), ("memory", 16)]),
        ({"tp": 2}, ForwardShapeKey(True, 16, 1, 2048), [("decode", 16, 2047), ("memory", 16)]),
        ({"dp": 4}, ForwardShapeKey(True, 17, 1, 2048), [("decode", 5, 2047), ("memory", 5)]),
        ({"dp": 2, "pp": 2}, ForwardShapeKey(True, 16, 1, 9), [("decode", 4, 8), ("memory", 4)]),
        ({"pp": 4}, ForwardShapeKey(False, 1, 8, 16), [("prefill", (8, 16, 1)), ("memory", 8)]),
    ],
)
def test_a_key_is_asked_for_one_micro_batch_of_one_replica(
    sizes: dict[str, int], key: ForwardShapeKey, asked: list[tuple[object, ...]]
) -> None:
    estimator = FakeEstimator()
    runner(estimator, **sizes).forward(key)
    assert estimator.asked == asked


def test_a_prefill_of_several_lengths_is_asked_as_such_and_caches_every_request() -> None:
    estimator = FakeEstimator()
    key = ForwardShapeKey.of_segments(False, [(512, 8192, 1), (1024, 4096, 2)], replicas=2)
    record = runner(estimator, dp=2).forward(key)
    assert estimator.asked == [("prefill", (512, 8192, 1), (1024, 4096, 2)), ("memory", 2560)]
    assert record.memory is not None
    assert record.memory.kv_cache_gb == 2 + 2 * 1


def test_a_decode_step_of_several_lengths_is_refused() -> None:
    with pytest.raises(RunnerError, match="answers for decode of one length, not for decode of 2 requests"):
        runner(FakeEstimator()).forward(ForwardShapeKey.of_segments(True, [(1, 8, 1), (1, 9, 1)]))


def test_a_decode_step_with_speculative_tokens_counts_their_memory() -> None:
    estimator = FakeEstimator()
    runner(estimator, num_mtp_tokens=2).forward(ForwardShapeKey(True, 4, 3, 103))
    assert estimator.asked == [("decode", 4, 100), ("memory", 12)]


def test_a_decode_step_of_another_length_than_the_spec_has_is_refused() -> None:
    with pytest.raises(RunnerError, match=r"decode of 4 x 1 tokens at length 9.* 3 tokens per request"):
        runner(FakeEstimator(), num_mtp_tokens=2).forward(ForwardShapeKey(True, 4, 1, 9))


def test_a_block_of_a_draft_model_is_checked_as_so_many_requests() -> None:
    estimator = FakeEstimator()
    record = runner(estimator).forward(ForwardShapeKey(True, 4, 8, 4096))
    assert estimator.asked == [("decode", 32, 4088), ("memory", 32)]
    assert record.memory is not None
    assert record.memory.kv_cache_gb == 4


def test_images_are_refused() -> None:
    key = ForwardShapeKey(False, 1, 8, 8, image_batch_size=1, image_height=224, image_width=224)
    with pytest.raises(RunnerError, match="answers for text only, not for prefill of 1 x 8 tokens"):
        runner(FakeEstimator()).forward(key)


def test_a_shape_without_figures_is_named_with_the_reason_but_without_paths() -> None:
    error = ValueError("no MLA rows at /somewhere/mla.parquet.\nmore")
    with pytest.raises(RunnerError, match=r"prefill of 1 x 8 tokens at length 8 \(no MLA rows\); leave this"):
        runner(FakeEstimator(error)).forward(ForwardShapeKey(False, 1, 8, 8))


# --- records ----------------------------------------------------------------------------------------


def test_the_memory_parts_add_up_with_overheads_as_reserved() -> None:
    record = runner(FakeEstimator(), dp=2).forward(ForwardShapeKey(False, 4, 2048, 8192))
    assert record.memory == DeviceMemory(
        total_gb=80.0, weight_gb=20.0, kv_cache_gb=4.0, activation_gb=4.0, reserved_gb=6.5
    )
    assert record.memory_left_gb == 80 - 20 - 4 - 4 - 6.5


def test_each_pipeline_stage_holds_its_layers_of_the_kv_cache_of_all_micro_batches() -> None:
    record = runner(FakeEstimator(), pp=4).forward(ForwardShapeKey(True, 16, 1, 8192))
    assert record.memory is not None
    assert record.memory.kv_cache_gb == 16 * 2 / 4


def test_too_much_for_the_device_is_a_record_with_a_negative_rest() -> None:
    record = runner(FakeEstimator()).forward(ForwardShapeKey(True, 100, 1, 8192))
    assert record.out_of_memory
    assert record.latency_ms == 2.0


def test_a_record_tells_latency_bounds_and_sources() -> None:
    record = runner(FakeEstimator()).forward(ForwardShapeKey(False, 1, 8, 8))
    assert record.latency_ms == 10.0
    seconds = dict(zip(BOUND_TYPES, (0.001, 0.003, 0.006, 0.0), strict=True))
    assert record.breakdowns == {"aiconfigurator": seconds}
    assert record.sources == {"measured": 0.9, "interpolated": 0.1}


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ("silicon", "measured"),
        ("empirical", "interpolated"),
        ("estimated", "interpolated"),
        ("mixed", "interpolated"),
        ("sol", "analytic"),
        ("new-in-a-later-version", "interpolated"),
    ],
)
def test_every_source_has_a_kind(source: str, kind: str) -> None:
    assert source_shares([Operator("a", 1.0, source, None)]) == {kind: 1.0}


def test_no_time_has_no_sources() -> None:
    assert source_shares([Operator("p2p", 0.0, "silicon", None)]) == {}


def test_an_operator_of_unknown_bound_leaves_no_breakdown_unless_it_takes_no_time() -> None:
    known = Operator("gemm", 1.0, "silicon", "memory_bound")
    assert bound_seconds([known, Operator("scan", 0.5, "silicon", None)]) == {}
    assert bound_seconds([known, Operator("p2p", 0.0, "silicon", None)]) == {
        **dict.fromkeys(BOUND_TYPES, 0.0),
        "memory_bound": 0.001,
    }


# --- chatter ----------------------------------------------------------------------------------------

LOW_FIDELITY = (
    "Loading low-fidelity fallback rows for {table}_perf.parquet from /x/systems/data/h200_sxm/"
    "mla/trtllm/1.3.0rc20/{table}_perf.parquet. Queries returning these rows are implicit."
)


def test_warnings_of_tables_that_the_model_does_not_read_are_dropped() -> None:
    messages = [LOW_FIDELITY.format(table=table) for table in ("mla_context_module", "dsa_context_module")]
    assert relevant_warnings(messages, ["Gemm", "MlaModuleContext"]) == [
        "mla_context_module figures on h200_sxm may come from low-fidelity rows of trtllm 1.3.0rc20 and "
        "differ from the engine asked for."
    ]
    assert relevant_warnings(messages, ["Gemm", "ContextAttention"]) == []


def test_other_warnings_are_kept_with_our_names_of_options() -> None:
    messages = [
        "fmha_quant_mode=fp8 has no data; set fmha_quant_mode explicitly.",
        "resolve_attention_lane_order: unknown backend 'trtllm' - no framework defaults available",
    ]
    assert relevant_warnings(messages * 2, ["Gemm"]) == [
        "quantization.fmha=fp8 has no data; set quantization.fmha explicitly."
    ]


def test_the_log_of_the_package_is_kept_off_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    package_log = logging.getLogger("aiconfigurator_core.sdk.anything")
    with quiet() as kept:
        package_log.warning("low fidelity of %s", "gemm")
        package_log.info("loaded")
    package_log.warning("outside of a block")
    assert kept == ["low fidelity of gemm"]
    assert capfd.readouterr() == ("", "")


def test_a_warning_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("stages.runners.test")
    tell_once(logger, ["told once"])
    tell_once(logger, ["told once", "another one"])
    assert [record.getMessage() for record in caplog.records] == ["told once", "another one"]
