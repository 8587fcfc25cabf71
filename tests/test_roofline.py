"""The roofline runner: what its latencies and memory must be like, whatever the figures."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cache.errors import RunnerError
from cache.shapes import BOUND_TYPES, ForwardLatencyRecord, ForwardShapeKey
from stages.parallelism import Parallelism
from stages.runners.base import ModelRunner
from stages.runners.device import known_device_names
from stages.runners.model_config import known_model_names
from tests.roofline_cases import spec, with_device, with_model, without_overhead

DENSE_MODELS = ["Llama-3.1-8B", "Llama-3.1-70B", "Qwen3-8B", "Qwen3-32B"]


def decode(concurrency: int = 1, seq_len: int = 1024, query_len: int = 1) -> ForwardShapeKey:
    return ForwardShapeKey(True, concurrency, query_len, seq_len)


def prefill(concurrency: int = 1, query_len: int = 1024, seq_len: int | None = None) -> ForwardShapeKey:
    return ForwardShapeKey(False, concurrency, query_len, seq_len or query_len)


def seconds(record: ForwardLatencyRecord) -> dict[str, float]:
    return dict(record.breakdowns["roofline"])


DEPLOYMENTS = {
    "dense": spec("Qwen3-32B", parallelism=Parallelism(tp=4, dp=2)),
    "pipeline": spec("Llama-3.1-8B", parallelism=Parallelism(tp=2, pp=3)),
    "experts": spec("Qwen3-30B-A3B", parallelism=Parallelism(tp=2, dp=4, ep=8)),
    "experts_split": spec("Qwen3-30B-A3B", parallelism=Parallelism(tp=2, dp=4, ep=2, moe_dp=2)),
    "sliding": spec("gpt-oss-120b", "B200-SXM-180G", Parallelism(tp=2)),
    "latent": spec(
        "DeepSeek-V3",
        "H200-SXM-141G",
        Parallelism(tp=4, dp=4, ep=16),
        num_mtp_tokens=2,
        quantization={"weights": "fp8", "activations": "fp8"},
    ),
}
RUNNERS: dict[str, ModelRunner] = {name: deployment.build() for name, deployment in DEPLOYMENTS.items()}


@pytest.mark.parametrize("device", known_device_names())
@pytest.mark.parametrize("model", DENSE_MODELS)
def test_decode_of_one_request_takes_the_time_to_read_weights_and_cache(model: str, device: str) -> None:
    # The 70B model does not fit one device; its latency is computed all the same.
    deployment = without_overhead(spec(model, device))
    record = deployment.build().forward(decode(seq_len=8192))
    profile = deployment.device
    assert record.memory is not None
    read = (record.memory.weight_gb + record.memory.kv_cache_gb) * 2**30
    expected_s = read / (profile.memory_bandwidth_gb_per_s * 1e9 * profile.efficiency.memory)
    assert record.latency_ms / 1e3 == pytest.approx(expected_s, rel=0.1)
    assert seconds(record)["memory_bound"] == pytest.approx(record.latency_ms / 1e3)


def test_a_long_prefill_takes_the_time_of_its_flops() -> None:
    deployment = without_overhead(spec("Llama-3.1-8B"))
    record = deployment.build().forward(prefill(query_len=8192))
    weights = 32 * 218_103_808
    flops = 2 * weights * 8192 + 32 * 4 * (8192 * 8193 / 2) * 4096 + 2 * 128256 * 4096
    expected_s = flops / (989.4e12 * deployment.device.efficiency.compute)
    assert seconds(record)["compute_bound_mma"] == pytest.approx(expected_s, rel=1e-3)
    assert record.latency_ms / 1e3 == pytest.approx(expected_s, rel=0.2)


def test_the_breakdown_is_the_latency_and_the_memory_adds_up() -> None:
    for runner in RUNNERS.values():
        for key in (decode(64, 4096), prefill(4)):
            record = runner.forward(key)
            assert list(seconds(record)) == list(BOUND_TYPES)
            assert math.fsum(seconds(record).values()) * 1e3 == record.latency_ms
            memory = record.memory
            assert memory is not None
            parts = memory.weight_gb + memory.kv_cache_gb + memory.activation_gb + memory.reserved_gb
            assert record.memory_left_gb == memory.total_gb - parts
            assert record.sources == {"analytic": 1.0}


@pytest.mark.parametrize("key", [decode(16, 2048), prefill(2)], ids=["decode", "prefill"])
@pytest.mark.parametrize("device", ["A100-SXM-80G", "L40S-48G"])
def test_latency_and_cache_grow_linearly_in_layers(key: ForwardShapeKey, device: str) -> None:
    base = spec("Qwen3-8B", device, Parallelism(tp=2))
    kinds = base.architecture.layers
    records = [with_model(base, layers=kinds[:1] * count).build().forward(key) for count in (10, 20, 30)]
    low, middle, high = (record.latency_ms for record in records)
    assert high - middle == pytest.approx(middle - low, rel=1e-9)
    assert middle - low > 0
    for part in ("weight_gb", "kv_cache_gb"):
        low, middle, high = (getattr(record.memory, part) for record in records)
        assert high - middle == pytest.approx(middle - low, rel=1e-9)


shapes = st.tuples(
    st.sampled_from(sorted(RUNNERS)),
    st.booleans(),
    st.integers(1, 2000),
    st.integers(1, 4096),
    st.integers(0, 10**5),
)


@given(shape=shapes, more=st.tuples(st.integers(0, 500), st.integers(0, 2048), st.integers(0, 10**5)))
@settings(max_examples=300, deadline=None)
def test_more_requests_tokens_or_context_never_take_less_time_or_memory(
    shape: tuple[str, bool, int, int, int], more: tuple[int, int, int]
) -> None:
    name, is_decode, concurrency, query_len, cached = shape
    base = ForwardShapeKey(is_decode, concurrency, query_len, cached + query_len)
    larger = ForwardShapeKey(
        is_decode, concurrency + more[0], query_len + more[1], cached + more[2] + query_len + more[1]
    )
    small, large = RUNNERS[name].forward(base), RUNNERS[name].forward(larger)
    assert large.latency_ms >= small.latency_ms * (1 - 1e-12)
    assert large.memory_left_gb <= small.memory_left_gb + 1e-9


@given(shape=shapes)
@settings(max_examples=100, deadline=None)
def test_every_answer_is_finite_and_repeats_exactly(shape: tuple[str, bool, int, int, int]) -> None:
    name, is_decode, concurrency, query_len, cached = shape
    key = ForwardShapeKey(is_decode, concurrency, query_len, cached + query_len)
    first, again = RUNNERS[name].forward(key), DEPLOYMENTS[name].build().forward(key)
    assert first.as_json() == again.as_json()
    assert 0 < first.latency_ms < math.inf
    assert all(value >= 0 for value in seconds(first).values())


def test_concurrency_is_split_over_replicas_rounding_up() -> None:
    one, two = (spec("Qwen3-8B", parallelism=Parallelism(dp=dp)).build() for dp in (1, 2))
    assert two.forward(decode(16)).latency_ms == one.forward(decode(8)).latency_ms
    assert two.forward(decode(15)).as_json() == two.forward(decode(16)).as_json()


def test_a_pipeline_takes_as_many_micro_batches_as_stages() -> None:
    base = without_overhead(spec("Llama-3.1-8B", parallelism=Parallelism(pp=4)))
    links = base.device.interconnect.model_copy(update={"devices_per_node": 1})
    runner = with_device(base, interconnect=links.model_dump()).build()
    record = runner.forward(decode(8))
    # The last stage has 8 of 32 layers and the LM head; a quarter of the requests passes at a time.
    alone = without_overhead(with_model(spec("Llama-3.1-8B"), layers=base.architecture.layers[:8]))
    share = base.device.efficiency
    embedding_s = 2 * 4096 * 2 * 2 / (3350e9 * share.memory)
    stage_s = alone.build().forward(decode(2)).latency_ms / 1e3 - embedding_s
    sends_s = 3 * (2.7e-6 + 2 * 4096 * 2 / (50e9 * share.communication))
    assert record.latency_ms / 1e3 == pytest.approx(4 * stage_s + sends_s, rel=1e-9)
    assert seconds(record)["communication_bound"] == pytest.approx(sends_s, rel=1e-9)


def test_a_pipeline_step_lasts_no_less_with_fewer_requests_than_stages() -> None:
    runner = spec("Llama-3.1-8B", parallelism=Parallelism(pp=4)).build()
    assert runner.forward(decode(1)).latency_ms == runner.forward(decode(4)).latency_ms


def test_prefill_computes_logits_of_the_last_token_only_and_decode_of_every_new_one() -> None:
    base = without_overhead(spec("Llama-3.1-8B"))
    one_layer = with_model(base, layers=base.architecture.layers[:1])
    double = with_model(one_layer, vocab_size=2 * 128256)

    def head_s(key: ForwardShapeKey) -> float:
        return (double.build().forward(key).latency_ms - one_layer.build().forward(key).latency_ms) / 1e3

    rate = 989.4e12 * base.device.efficiency.compute
    assert head_s(prefill(query_len=2048)) < 0.001
    assert head_s(decode(query_len=2048, seq_len=2048)) > 2 * 128256 * 4096 * 2048 / rate


def test_sliding_layers_make_long_contexts_cheaper() -> None:
    sliding = spec("gpt-oss-120b", "B200-SXM-180G")
    kinds = tuple(kind._replace(is_sliding=False) for kind in sliding.architecture.layers)
    full = with_model(sliding, layers=kinds)
    key = decode(64, 65536)
    assert sliding.build().forward(key).latency_ms < full.build().forward(key).latency_ms
    ratio = sliding.build().forward(key).memory.kv_cache_gb / full.build().forward(key).memory.kv_cache_gb
    assert ratio == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize(
    "formats",
    [
        {"weights": "fp8", "activations": "fp8"},
        {"weights": "int8", "activations": "int8"},
        {"weights": "int4"},
        {"weights": "fp8"},
        {"kv_cache": "fp8"},
    ],
)
def test_smaller_formats_make_decode_faster_and_leave_more_memory(formats: dict[str, str]) -> None:
    key, two = decode(8, 8192), Parallelism(tp=2)
    plain = spec("Qwen3-32B", parallelism=two).build().forward(key)
    small = spec("Qwen3-32B", parallelism=two, quantization=formats).build().forward(key)
    assert small.latency_ms < plain.latency_ms
    assert small.memory_left_gb > plain.memory_left_gb


def test_decode_of_one_request_reads_only_the_experts_of_its_token() -> None:
    deployment = without_overhead(spec("Qwen3-30B-A3B"))
    record = deployment.build().forward(decode(seq_len=128))
    active = deployment.architecture.num_active_parameters - deployment.architecture.embedding_parameters
    expected_s = active * 2 / (3350e9 * deployment.device.efficiency.memory)
    assert record.latency_ms / 1e3 == pytest.approx(expected_s, rel=0.1)


def test_speculative_tokens_add_passes_of_the_prediction_module() -> None:
    times = [
        spec("DeepSeek-V3", "H200-SXM-141G", Parallelism(tp=8, dp=2, ep=16), num_mtp_tokens=count)
        .build()
        .forward(decode(64, 4096, query_len=4))
        .latency_ms
        for count in (0, 1, 2, 3)
    ]
    assert times[0] < times[1] < times[2] < times[3]
    # Passes after the first are alike.
    assert times[3] - times[2] == pytest.approx(times[2] - times[1], rel=1e-9)


def test_a_draft_pass_reads_the_prediction_module_and_the_lm_head() -> None:
    without, one = (
        without_overhead(spec("DeepSeek-V3", "H200-SXM-141G", num_mtp_tokens=count)) for count in (0, 1)
    )
    model, experts = one.architecture, one.architecture.experts
    assert experts is not None
    idle = (experts.num_experts - experts.experts_per_token) * model.expert_parameters
    read = (model.mtp_parameters - idle + model.embedding_parameters) * 2
    gain_ms = one.build().forward(decode()).latency_ms - without.build().forward(decode()).latency_ms
    assert gain_ms / 1e3 == pytest.approx(read / (4800e9 * one.device.efficiency.memory), rel=0.01)


def test_latent_attention_expands_the_whole_sequence_in_prefill_and_nothing_in_decode() -> None:
    base = without_overhead(spec("DeepSeek-V3", "H200-SXM-141G"))
    rate = 989.4e12 * base.device.efficiency.compute
    one, two = (with_model(base, layers=base.architecture.layers[:1] * count).build() for count in (1, 2))
    q, s, heads = 2048, 65536, 128

    def layer_s(key: ForwardShapeKey, bound: str) -> float:
        return seconds(two.forward(key))[bound] - seconds(one.forward(key))[bound]

    projections = 7168 * (1536 + 576) + 1536 * heads * 192 + heads * 128 * 7168 + 3 * 7168 * 18432
    flops = 2 * projections * q + 2 * 512 * heads * 256 * s + 2 * heads * 320 * q * (s - q + (q + 1) / 2)
    chunk, step = prefill(query_len=q, seq_len=s), decode(seq_len=s)
    assert layer_s(chunk, "compute_bound_mma") == pytest.approx(flops / rate, rel=1e-9)
    # In decode 128 heads on one latent are bound by compute, all else by reading the weights once.
    absorbed_flops = 2 * heads * (576 + 512) * s
    assert layer_s(step, "compute_bound_mma") == pytest.approx(absorbed_flops / rate, rel=1e-9)
    read = 2 * (projections + 512 * heads * 256)
    expected_s = read / (4800e9 * base.device.efficiency.memory)
    assert layer_s(step, "memory_bound") == pytest.approx(expected_s, rel=0.01)


def test_replicas_without_a_request_send_nothing_to_the_experts() -> None:
    runner = without_overhead(spec("Qwen3-30B-A3B", parallelism=Parallelism(dp=4, ep=4))).build()
    # One request a replica either way, but four tokens hit more experts than one.
    assert runner.forward(decode(1)).latency_ms < 0.8 * runner.forward(decode(4)).latency_ms


def test_requests_of_several_lengths_take_the_time_and_memory_of_each() -> None:
    runner = without_overhead(spec("Llama-3.1-8B")).build()
    mixed = ForwardShapeKey.of_segments(True, [(1, 1000, 3), (1, 9000, 5)])
    short, long, record = (runner.forward(key) for key in (decode(8, 1000), decode(8, 9000), mixed))
    assert record.latency_ms == pytest.approx((3 * short.latency_ms + 5 * long.latency_ms) / 8, rel=1e-12)
    cache = [one.memory.kv_cache_gb for one in (short, long, record) if one.memory is not None]
    assert cache[2] == pytest.approx((3 * cache[0] + 5 * cache[1]) / 8, rel=1e-12)


def test_replicas_of_several_lengths_are_alike() -> None:
    segments = [(1, 1000, 3), (1, 9000, 5)]
    one = spec("Qwen3-8B").build().forward(ForwardShapeKey.of_segments(True, segments))
    two = spec("Qwen3-8B", parallelism=Parallelism(dp=2)).build()
    assert two.forward(ForwardShapeKey.of_segments(True, segments, replicas=2)).as_json() == one.as_json()


@given(shape=shapes, more=st.integers(1, 5000), requests=st.integers(1, 64))
@settings(max_examples=100, deadline=None)
def test_a_pass_of_several_lengths_lies_between_those_of_its_shortest_and_longest(
    shape: tuple[str, bool, int, int, int], more: int, requests: int
) -> None:
    name, is_decode, count, query_len, cached = shape
    dp = DEPLOYMENTS[name].parallelism.dp
    short, long = query_len + cached, query_len + cached + more
    mixed = ForwardShapeKey.of_segments(
        is_decode, [(query_len, short, count), (query_len, long, requests)], replicas=dp
    )
    low, middle, high = (
        RUNNERS[name].forward(key)
        for key in (
            ForwardShapeKey(is_decode, dp * (count + requests), query_len, short),
            mixed,
            ForwardShapeKey(is_decode, dp * (count + requests), query_len, long),
        )
    )
    assert low.latency_ms * (1 - 1e-12) <= middle.latency_ms <= high.latency_ms * (1 + 1e-12)
    assert low.memory_left_gb + 1e-9 >= middle.memory_left_gb >= high.memory_left_gb - 1e-9


@pytest.mark.parametrize("name", known_model_names())
def test_every_shipped_model_runs_on_every_shipped_device(name: str) -> None:
    for device in known_device_names():
        runner = spec(name, device, Parallelism(tp=8)).build()
        for key in (decode(32, 4096), prefill(2)):
            assert runner.forward(key).latency_ms > 0


@pytest.mark.parametrize("image", [{"image_batch_size": 1}, {"image_height": 448}, {"image_width": 448}])
def test_images_are_refused(image: dict[str, int]) -> None:
    with pytest.raises(RunnerError, match=r"cannot answer for prefill of 1 x 8 .* knows text only; use"):
        RUNNERS["dense"].forward(ForwardShapeKey(False, 1, 8, 8, **image))


def test_a_pass_that_does_not_fit_has_negative_memory_left() -> None:
    record = spec("Llama-3.1-70B").build().forward(decode())
    assert record.out_of_memory
    cache_gb = 80 * 1024 * 2 * 8 * 128 * 2 / 2**30
    assert record.memory_left_gb == pytest.approx(79.65 - 10 - 70.554e9 * 2 / 2**30 - cache_gb, abs=0.01)


def test_reserved_memory_and_block_size_act_on_memory_alone() -> None:
    base = spec("Qwen3-8B").build().forward(decode(seq_len=1000))
    reserved = spec("Qwen3-8B", reserved_memory_gb=12).build().forward(decode(seq_len=1000))
    blocks = spec("Qwen3-8B", block_size=16).build().forward(decode(seq_len=1000))
    assert reserved.latency_ms == blocks.latency_ms == base.latency_ms
    assert base.memory_left_gb - reserved.memory_left_gb == pytest.approx(2)
    entry_gb = 36 * 2 * 8 * 128 * 2 / 2**30
    assert blocks.memory_left_gb - base.memory_left_gb == pytest.approx((1024 - 1008) * entry_gb)


def test_overhead_is_paid_once_per_operator() -> None:
    # Llama: 8 operators and attention a layer, embedding, and 3 of the head.
    base = spec("Llama-3.1-8B")
    gain = base.build().forward(decode()).latency_ms
    gain -= without_overhead(base).build().forward(decode()).latency_ms
    assert gain * 1e-3 == pytest.approx((32 * 9 + 1 + 3) * base.device.operator_overhead_us * 1e-6, rel=1e-9)


def test_a_share_of_its_own_slows_the_matrix_products_of_experts_alone() -> None:
    base = spec("Qwen3-30B-A3B")
    shares = base.device.efficiency.model_dump()
    even, slow = (
        with_device(base, efficiency=shares | {"experts": share}) for share in (shares["compute"], 0.01)
    )
    absent = with_device(base, efficiency={k: v for k, v in shares.items() if k != "experts"})
    key = ForwardShapeKey(False, 1, 8192, 8192)
    times = [
        deployment.build().forward(key).breakdowns["roofline"]["compute_bound_mma"]
        for deployment in (even, slow)
    ]
    # 48 layers, 8 of the experts per token, three products of 2048 x 768 each.
    flops = 48 * 8192 * 8 * 3 * 2 * 2048 * 768
    added_s = flops / 989.4e12 * (1 / 0.01 - 1 / shares["compute"])
    assert times[1] - times[0] == pytest.approx(added_s, rel=1e-3)
    assert absent.build().forward(key) == even.build().forward(key)
    assert slow.build().forward(decode()) == even.build().forward(decode())  # bound by memory


def test_a_device_without_latency_and_overhead_still_pays_for_bytes() -> None:
    base = without_overhead(spec("Qwen3-32B", parallelism=Parallelism(tp=4)))
    links = base.device.interconnect.model_dump()
    links["intra_node"]["latency_us"] = 0.0
    record = replace(with_device(base, interconnect=links)).build().forward(prefill())
    assert seconds(record)["communication_bound"] > 0
