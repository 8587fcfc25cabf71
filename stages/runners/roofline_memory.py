"""How the memory of one device is used: weights, KV cache, activations, reserve."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import fsum

from cache.shapes import DeviceMemory
from stages.runners.architecture import LayerKind, ModelArchitecture
from stages.runners.quantization import BF16_BYTES
from stages.runners.roofline_batch import Segments
from stages.runners.roofline_operators import FP32_BYTES, OperatorBuilder
from stages.runners.roofline_work import LayerOperators

BYTES_PER_GIB = 2.0**30

LATENT_WORKSPACE_TOKENS = 65536
"""Tokens whose latent is expanded at a time in prefill: engines work through a long context in pieces
(vLLM, chunked prefill of multi-head latent attention, workspace of 64 * 1024 tokens)."""


@dataclass(frozen=True)
class Stage:
    """The layers of one pipeline stage.

    Parameters
    ----------
    layers : mapping
        Kind of layer -> how many.
    is_first, is_last : bool
        Whether the stage has the embedding, and the LM head with the multi-token prediction modules.
    """

    layers: Counter[LayerKind]
    is_first: bool
    is_last: bool


def distinct_stages(stages: list[Stage]) -> list[Stage]:
    """Return `stages` without repetitions: equal stages take equal time and memory."""
    return [stage for index, stage in enumerate(stages) if stage not in stages[:index]]


def split_stages(layers: tuple[LayerKind, ...], pp: int) -> list[Stage]:
    """Return `pp` stages of consecutive layers, as even as possible, the longer ones first."""
    shorter, longer = divmod(len(layers), pp)
    stages, begin = [], 0
    for index in range(pp):
        end = begin + shorter + (index < longer)
        stages.append(Stage(Counter(layers[begin:end]), index == 0, index == pp - 1))
        begin = end
    return stages


class MemoryPlan:
    """Memory of the devices of each pipeline stage.

    Parameters
    ----------
    builder : OperatorBuilder
        Gives the operators, whose weights are the weights.
    stages : list of Stage
        Pipeline stages.
    ep : int
        Expert parallel size.
    block_size_tokens : int
        Tokens per block of the KV cache; each request takes whole blocks.
    memory_gb, reserved_gb : float
        Memory of a device, and what is kept free of it, GiB.
    num_mtp_modules : int
        Multi-token prediction modules that are loaded.
    """

    def __init__(
        self,
        builder: OperatorBuilder,
        stages: list[Stage],
        *,
        ep: int,
        block_size_tokens: int,
        memory_gb: float,
        reserved_gb: float,
        num_mtp_modules: int,
    ) -> None:
        self._builder, self._stages, self._block = builder, stages, block_size_tokens
        self._memory_gb, self._reserved_gb = memory_gb, reserved_gb
        self._model = builder.model
        self._mtp_kinds = [self._model.mtp_layer_kind] * num_mtp_modules
        self._weights = [self._stage_weight_bytes(stage, ep) for stage in stages]
        self._cached = [self._cached_layers(stage) for stage in stages]
        self._token_bytes, self._pair_bytes = self._activation_bytes()

    def weight_bytes(self, stage: int = 0) -> float:
        """Return the bytes of weights on a device of `stage`."""
        return self._weights[stage]

    def kv_cache_bytes(self, segments: Segments, stage: int = 0) -> float:
        """Return the bytes of KV cache of a replica's requests on a device of `stage`, in whole blocks.

        Layers with a sliding window keep what their new tokens can still see.
        """
        (full, sliding), total = self._cached[stage], 0.0
        for query_len, seq_len, requests in segments:
            window = self._model.sliding_window_tokens or seq_len
            per_request = full * self._blocks(seq_len)
            per_request += sliding * self._blocks(min(seq_len, window + query_len - 1))
            total += requests * per_request
        return total

    def activation_bytes(
        self, tokens: int, logit_tokens: int, expert_pairs: float, expanded_tokens: int = 0
    ) -> float:
        """Return the bytes of activations of a pass: an estimate of the peak.

        Hidden state and residual, the inner tensors of the widest operator of a layer (all other ones
        reuse their memory), the FP32 logits, and the expanded keys and values of latent attention.
        """
        hidden = 2 * self._model.hidden_size * BF16_BYTES
        widest = max(tokens * self._token_bytes, expert_pairs * self._pair_bytes)
        logits = logit_tokens * self._builder.vocab * FP32_BYTES
        latent, expanded = self._model.latent, 0.0
        if latent is not None:
            size = self._builder.heads * (latent.qk_head_dim + latent.v_head_dim)
            expanded = min(expanded_tokens, LATENT_WORKSPACE_TOKENS) * size * BF16_BYTES
        return tokens * hidden + widest + logits + expanded

    def usage(self, segments: Segments, activation_bytes: float) -> tuple[DeviceMemory, float]:
        """Return the memory of the stage that has the least left, and what it has left, GiB."""
        kv = [self.kv_cache_bytes(segments, stage) for stage in range(len(self._stages))]
        worst = max(range(len(kv)), key=lambda stage: self._weights[stage] + kv[stage])
        memory = DeviceMemory(
            total_gb=self._memory_gb,
            weight_gb=self._weights[worst] / BYTES_PER_GIB,
            kv_cache_gb=kv[worst] / BYTES_PER_GIB,
            activation_gb=activation_bytes / BYTES_PER_GIB,
            reserved_gb=self._reserved_gb,
        )
        used = memory.weight_gb + memory.kv_cache_gb + memory.activation_gb + memory.reserved_gb
        return memory, memory.total_gb - used

    def _blocks(self, tokens: int) -> float:
        """Return the tokens that `tokens` tokens take in whole blocks."""
        return -(-tokens // self._block) * float(self._block)

    def _stage_weight_bytes(self, stage: Stage, ep: int) -> float:
        model, builder = self._model, self._builder
        total = fsum(count * self._layer_bytes(kind, ep) for kind, count in stage.layers.items())
        table = builder.vocab * model.hidden_size * BF16_BYTES
        if stage.is_first:
            total += table
        if stage.is_last:
            # Tied tables are one on a device that has both ends of the model.
            total += 0.0 if model.tied_embeddings and stage.is_first else table
            total += model.hidden_size * BF16_BYTES
            for kind in self._mtp_kinds:
                total += self._layer_bytes(kind, ep) + 3 * model.hidden_size * BF16_BYTES
                total += fsum(operator.weight_bytes for operator in builder.mtp_input())
        return total

    def _layer_bytes(self, kind: LayerKind, ep: int) -> float:
        return layer_weight_bytes(self._model, self._builder.layer(kind), ep)

    def _cached_layers(self, stage: Stage) -> tuple[float, float]:
        """Return the bytes per cached token of all layers with full context, and of sliding ones."""
        model, builder = self._model, self._builder
        if model.latent is not None:
            numbers = float(model.latent.cached_size)
        else:
            numbers = 2.0 * builder.kv_heads * model.head_dim
        entry = numbers * builder.quantization.kv_cache_bytes
        sliding = sum(count for kind, count in stage.layers.items() if kind.is_sliding)
        full = stage.layers.total() - sliding + (len(self._mtp_kinds) if stage.is_last else 0)
        return full * entry, sliding * entry

    def _activation_bytes(self) -> tuple[float, float]:
        """Return the bytes of the widest operator per token, and of experts per (token, expert) pair."""
        model, builder = self._model, self._builder
        query = builder.heads * model.head_dim
        attention = 2 * query + 2 * builder.kv_heads * model.head_dim
        inner = model.intermediate_size
        pair = 0.0
        if model.experts is not None:
            inner = max(inner, model.experts.shared_intermediate_size)
            pair = (2 * model.hidden_size + 3 * model.experts.intermediate_size / builder.moe_tp) * BF16_BYTES
        return max(attention, 3 * inner / builder.tp) * BF16_BYTES, pair


def layer_weight_bytes(model: ModelArchitecture, layer: LayerOperators, ep: int) -> float:
    """Return the bytes of weights of one layer on one device."""
    experts = model.experts.num_experts / ep if model.experts is not None else 0.0
    total = fsum(operator.weight_bytes for operator in (*layer.token, *layer.decode))
    return total + experts * fsum(operator.weight_bytes for operator in layer.experts) + layer.vector_bytes
