"""Work and memory of the roofline against hand-computed cases."""

from __future__ import annotations

import pytest

from stages.parallelism import Parallelism
from stages.runners.architecture import Experts, LatentAttention, LayerKind
from stages.runners.model_config import known_model_names
from stages.runners.quantization import Quantization
from stages.runners.roofline_memory import MemoryPlan, layer_weight_bytes, split_stages
from stages.runners.roofline_operators import OperatorBuilder
from stages.runners.roofline_work import AttentionWork, LayerOperators, Operator
from tests.roofline_cases import DENSE, small_model, spec

EXPERT_LAYER = LayerKind(has_experts=True, is_sliding=False)


def builder(model=None, quantization=None, **parallelism) -> OperatorBuilder:
    return OperatorBuilder(model or small_model(), Parallelism(**parallelism), quantization or Quantization())


def by_name(layer: LayerOperators) -> dict[str, Operator]:
    operators = (*layer.token, *layer.prefill_context, *layer.decode, *layer.experts)
    return {operator.name: operator for operator in operators}


def plan(build: OperatorBuilder, *, pp=1, ep=1, block=16, modules=0) -> MemoryPlan:
    return MemoryPlan(
        build,
        split_stages(build.model.layers, pp),
        ep=ep,
        block_size_tokens=block,
        memory_gb=80.0,
        reserved_gb=10.0,
        num_mtp_modules=modules,
    )


def test_a_dense_layer_has_the_flops_and_bytes_computed_by_hand() -> None:
    # 64 hidden; 4 query and 2 key/value heads of 16; 128 inner. Two bytes a number, two FLOPs a multiply-add.
    operators = by_name(builder().layer(DENSE))
    assert operators["qkv"] == Operator(
        "qkv", flops=2 * 64 * (64 + 2 * 32), weight_bytes=64 * 128 * 2, bytes_per_token=(64 + 128) * 2
    )
    assert operators["attention_output"] == Operator(
        "attention_output", flops=2 * 64 * 64, weight_bytes=64 * 64 * 2, bytes_per_token=(64 + 64) * 2
    )
    assert operators["mlp_up"] == Operator(
        "mlp_up", flops=2 * 64 * 256, weight_bytes=64 * 256 * 2, bytes_per_token=(64 + 256) * 2
    )
    assert operators["mlp_activation"] == Operator(
        "mlp_activation", vector_flops=5 * 128, bytes_per_token=3 * 128 * 2
    )
    assert operators["mlp_down"] == Operator(
        "mlp_down", flops=2 * 128 * 64, weight_bytes=128 * 64 * 2, bytes_per_token=(128 + 64) * 2
    )
    assert operators["attention_norm"] == Operator(
        "attention_norm", vector_flops=5 * 64, bytes_per_token=4 * 64 * 2
    )
    assert operators["rope"] == Operator(
        "rope", vector_flops=3 * (64 + 32), bytes_per_token=2 * (64 + 32) * 2
    )
    assert len(operators) == 8


def test_llama_8b_does_two_flops_per_layer_weight_and_token() -> None:
    layer = builder(spec("Llama-3.1-8B").architecture).layer(DENSE)
    # 4096 * (4096 + 2 * 1024 + 4096) + 3 * 4096 * 14336 weights.
    assert sum(operator.flops for operator in layer.token) == 2 * 218_103_808
    assert sum(operator.weight_bytes for operator in layer.token) == 2 * 218_103_808


def test_attention_of_a_chunk_has_the_flops_of_the_causal_formula() -> None:
    attention = builder().layer(DENSE).prefill_attention
    q, s, heads, head_dim = 7, 30, 4, 16
    flops = attention.pairs(q, s) * attention.flops_per_pair
    assert flops == 4 * q * (s - q + (q + 1) / 2) * head_dim * heads
    # Keys and values of 30 tokens read; queries, results and 7 new entries of the cache moved.
    assert attention.context_tokens(q, s) == 30
    assert attention.bytes_per_context_token == 2 * 2 * 16 * 2
    assert attention.bytes_per_new_token == 2 * 64 * 2 + 2 * 2 * 16 * 2


@pytest.mark.parametrize("window", [1, 3, 8, 29, 30, 100])
@pytest.mark.parametrize(("q", "s"), [(1, 1), (1, 30), (7, 30), (30, 30), (8, 8), (5, 9)])
def test_pairs_are_those_counted_one_by_one(window: int, q: int, s: int) -> None:
    full, sliding = (AttentionWork(0.0, 0.0, 0.0, 0.0, w) for w in (None, window))
    positions = range(s - q + 1, s + 1)
    assert full.pairs(q, s) == sum(positions)
    assert sliding.pairs(q, s) == sum(min(position, window) for position in positions)
    seen = {token for position in positions for token in range(max(position - window, 0), position)}
    assert sliding.context_tokens(q, s) == len(seen)


def test_only_sliding_layers_have_a_window() -> None:
    build = builder(small_model(sliding_window_tokens=32))
    assert build.layer(LayerKind(False, True)).prefill_attention.window_tokens == 32
    assert build.layer(DENSE).prefill_attention.window_tokens is None


def test_tensor_parallelism_splits_heads_and_inner_sizes_and_keeps_norms() -> None:
    whole, half = by_name(builder().layer(DENSE)), by_name(builder(tp=2).layer(DENSE))
    for name in ("qkv", "attention_output", "mlp_up", "mlp_down"):
        assert half[name].flops == whole[name].flops / 2
        assert half[name].weight_bytes == whole[name].weight_bytes / 2
    assert half["attention_norm"] == whole["attention_norm"]


def test_key_value_heads_are_replicated_beyond_their_number() -> None:
    # 4 devices share 2 heads: each keeps one whole head beside its query head.
    operators = by_name(builder(tp=4).layer(DENSE))
    assert operators["qkv"].flops == 2 * 64 * (16 + 2 * 16)
    assert builder(tp=4).layer(DENSE).decode_attention.bytes_per_context_token == 2 * 16 * 2


@pytest.mark.parametrize(
    ("formats", "weight_bytes", "input_bytes", "compute"),
    [
        ({}, 2, 2, "bf16"),
        ({"weights": "fp8", "activations": "fp8"}, 1, 1, "fp8"),
        ({"weights": "int8", "activations": "int8"}, 1, 1, "int8"),
        ({"weights": "fp8"}, 1, 2, "bf16"),
        ({"weights": "int4"}, 0.5 + 2 / 128, 2, "bf16"),
    ],
)
def test_number_formats_set_the_bytes_and_the_peak_of_linear_layers(
    formats, weight_bytes, input_bytes, compute
) -> None:
    build = builder(quantization=Quantization(**formats))
    up = by_name(build.layer(DENSE))["mlp_up"]
    assert up.weight_bytes == 64 * 256 * weight_bytes
    assert up.bytes_per_token == 64 * input_bytes + 256 * 2
    assert up.compute_format == compute
    assert build.head()[1].weight_bytes == 64 * 1000 * 2
    assert build.head()[1].compute_format == "bf16"


def test_an_fp8_cache_halves_what_decode_reads() -> None:
    plain = builder().layer(DENSE).decode_attention
    small = builder(quantization=Quantization(kv_cache="fp8")).layer(DENSE).decode_attention
    assert small.bytes_per_context_token == plain.bytes_per_context_token / 2


def test_an_expert_layer_has_router_and_experts_computed_by_hand() -> None:
    experts = Experts(num_experts=8, experts_per_token=2, intermediate_size=32, shared_intermediate_size=64)
    model = small_model(layers=(EXPERT_LAYER,), experts=experts)
    layer = builder(model).layer(EXPERT_LAYER)
    operators = by_name(layer)
    assert operators["router"].flops == 2 * 64 * 8
    assert operators["expert_up"].weight_bytes == 64 * 64 * 2
    assert operators["expert_down"].flops == 2 * 32 * 64
    assert operators["shared_expert_up"].flops == 2 * 64 * 128
    assert operators["expert_sum"].bytes_per_token == (2 + 1) * 64 * 2
    assert [operator.name for operator in layer.experts] == ["expert_up", "expert_activation", "expert_down"]
    assert "mlp_up" not in operators


def test_latent_attention_has_the_flops_of_both_of_its_forms() -> None:
    latent = LatentAttention(
        q_lora_rank=24, kv_lora_rank=32, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=12
    )
    layer = builder(small_model(latent=latent, head_dim=24)).layer(DENSE)
    operators = by_name(layer)
    assert operators["qkv_down"].flops == 2 * 64 * (24 + 32 + 8)
    assert operators["q_up"].flops == 2 * 24 * 4 * (16 + 8)
    assert operators["attention_output"].flops == 2 * 4 * 12 * 64
    # Expanded: scores over 24, values over 12 numbers a head. Absorbed: over 40 and 32.
    assert layer.prefill_attention.flops_per_pair == 2 * 4 * (24 + 12)
    assert layer.decode_attention.flops_per_pair == 2 * 4 * (40 + 32)
    assert layer.decode_attention.bytes_per_context_token == 40 * 2
    expand, absorb = layer.prefill_context[0], layer.decode[0]
    assert expand.flops == absorb.flops == 2 * 32 * 4 * (16 + 12)
    assert expand.bytes_per_token == 40 * 2 + 4 * 28 * 2
    assert absorb.bytes_per_token == (4 * 16 + 4 * 32 + 4 * 32 + 4 * 12) * 2


def test_queries_without_a_low_rank_are_projected_directly() -> None:
    latent = LatentAttention(None, 32, 16, 8, 12)
    operators = by_name(builder(small_model(latent=latent)).layer(DENSE))
    assert operators["q"].flops == 2 * 64 * 4 * 24
    assert operators["kv_down"].flops == 2 * 64 * 40


@pytest.mark.parametrize("name", known_model_names())
def test_weights_on_one_device_are_two_bytes_per_parameter(name: str) -> None:
    model = spec(name, "B200-SXM-180G").architecture
    memory = plan(builder(model), modules=model.num_mtp_layers)
    parameters = model.num_parameters + model.num_mtp_layers * model.mtp_parameters
    assert memory.weight_bytes() == pytest.approx(2 * parameters, rel=1e-6)


def test_tied_tables_are_held_once_on_one_stage_and_by_both_ends_of_several() -> None:
    tied, untied = small_model(tied_embeddings=True), small_model()
    table = 1000 * 64 * 2
    assert plan(builder(untied)).weight_bytes() - plan(builder(tied)).weight_bytes() == table
    two_tied, two_untied = plan(builder(tied), pp=2), plan(builder(untied), pp=2)
    for stage in range(2):
        assert two_tied.weight_bytes(stage) == two_untied.weight_bytes(stage)


def test_experts_are_spread_over_expert_parallel_devices() -> None:
    model = small_model(layers=(EXPERT_LAYER,), experts=Experts(8, 2, 32))
    layer = builder(model).layer(EXPERT_LAYER)
    expert = 3 * 64 * 32 * 2
    assert layer_weight_bytes(model, layer, 1) - layer_weight_bytes(model, layer, 4) == 6 * expert


def test_layers_are_split_evenly_over_stages_in_order() -> None:
    kinds = (DENSE,) * 3 + (EXPERT_LAYER,) * 4
    stages = split_stages(kinds, 3)
    assert [dict(stage.layers) for stage in stages] == [{DENSE: 3}, {EXPERT_LAYER: 2}, {EXPERT_LAYER: 2}]
    assert [stage.is_first for stage in stages] == [True, False, False]
    assert [stage.is_last for stage in stages] == [False, False, True]


def test_each_request_takes_whole_blocks_of_the_cache() -> None:
    memory = plan(builder(), block=16)
    entry = 2 * 2 * 16 * 2  # keys and values, two heads of 16, two bytes
    assert memory.kv_cache_bytes(((1, 17, 3),)) == 3 * 2 * 32 * entry
    assert memory.kv_cache_bytes(((1, 16, 3),)) == 3 * 2 * 16 * entry


def test_sliding_layers_keep_their_window_and_the_new_tokens() -> None:
    model = small_model(layers=(DENSE, LayerKind(False, True)), sliding_window_tokens=32)
    memory = plan(builder(model), block=1)
    entry = 2 * 2 * 16 * 2
    assert memory.kv_cache_bytes(((4, 100, 1),)) == (100 + 35) * entry
    assert memory.kv_cache_bytes(((4, 20, 1),)) == (20 + 20) * entry


def test_prediction_modules_have_weights_and_cache_on_the_last_stage() -> None:
    model = spec("DeepSeek-V3", "B200-SXM-180G").architecture
    build = builder(model)
    without, one = plan(build, pp=2), plan(build, pp=2, modules=1)
    assert one.weight_bytes(0) == without.weight_bytes(0)
    assert one.weight_bytes(1) - without.weight_bytes(1) == pytest.approx(2 * model.mtp_parameters, rel=1e-6)
    cached = one.kv_cache_bytes(((1, 16, 1),), 1) - without.kv_cache_bytes(((1, 16, 1),), 1)
    assert cached == 16 * 576 * 2


def test_activations_are_those_of_the_widest_operator_and_the_logits() -> None:
    memory = plan(builder())
    # Hidden state and residual, gate, up and their product, and FP32 logits of two tokens.
    assert memory.activation_bytes(tokens=10, logit_tokens=2, expert_pairs=0) == (
        10 * 2 * 64 * 2 + 10 * 3 * 128 * 2 + 2 * 1000 * 4
    )


def test_the_expanded_latent_takes_memory_up_to_the_workspace() -> None:
    model = spec("DeepSeek-V3", "B200-SXM-180G").architecture
    memory = plan(builder(model, tp=8))
    base = memory.activation_bytes(1, 1, 0, expanded_tokens=0)
    assert memory.activation_bytes(1, 1, 0, expanded_tokens=100) - base == 100 * 16 * 320 * 2
    assert memory.activation_bytes(1, 1, 0, 10**6) == memory.activation_bytes(1, 1, 0, 65536)


def test_the_stage_with_the_least_left_is_reported() -> None:
    memory = plan(builder(small_model(vocab_size=10**7)), pp=2)
    usage, left_gb = memory.usage(((1, 1, 1),), activation_bytes=2.0**30)
    assert usage.weight_gb == max(memory.weight_bytes(0), memory.weight_bytes(1)) / 2**30
    assert (usage.total_gb, usage.reserved_gb, usage.activation_gb) == (80.0, 10.0, 1.0)
    assert left_gb == pytest.approx(80 - 10 - 1 - usage.weight_gb - usage.kv_cache_gb, abs=1e-12)
