"""The operators of a decoder: what each computes and moves on one device.

Results of an operator are BF16, partial sums never leave the chip.
"""

from __future__ import annotations

from dataclasses import replace

from stages.parallelism import Parallelism
from stages.runners.architecture import Experts, LatentAttention, LayerKind, ModelArchitecture
from stages.runners.quantization import BF16_BYTES, Quantization
from stages.runners.roofline_work import AttentionWork, LayerOperators, Operator

RMS_NORM_FLOPS = 5
"""Per element: residual add, square, sum, two scales (RMSNorm, arXiv:1910.07467, with fused residual)."""

ROPE_FLOPS = 3
"""Per element: two multiplications and an addition (RoPE, arXiv:2104.09864, eq. 34)."""

SWIGLU_FLOPS = 5
"""Per element: exponential, addition, division, two multiplications (SwiGLU, arXiv:2002.05202, eq. 6)."""

SOFTMAX_FLOPS = 5
"""Per score: scale, maximum, subtraction, exponential, sum (FlashAttention, arXiv:2205.14135, alg. 1)."""

FP32_BYTES = 4.0


class OperatorBuilder:
    """Derives the operators of a model from its architecture, parallelism and number formats.

    Parameters
    ----------
    model : ModelArchitecture
        The model.
    parallelism : Parallelism
        How it is spread; must divide the model (see `roofline_spec`).
    quantization : Quantization
        Number formats.
    """

    def __init__(
        self, model: ModelArchitecture, parallelism: Parallelism, quantization: Quantization
    ) -> None:
        self.model = model
        self.tp = parallelism.tp
        self.moe_tp = parallelism.moe_tp or 1
        self.quantization = quantization
        self.heads = model.num_heads // self.tp
        # With more devices than KV heads each head is kept by several devices.
        self.kv_heads = max(model.num_kv_heads // self.tp, 1)
        self.vocab = -(-model.vocab_size // self.tp)

    def linear(self, name: str, inputs: float, outputs: float, *, plain: bool = False) -> Operator:
        """Return a matrix product with weights of `inputs` x `outputs`, in BF16 when `plain`."""
        formats = Quantization() if plain else self.quantization
        return Operator(
            name,
            flops=2.0 * inputs * outputs,
            weight_bytes=inputs * outputs * formats.weight_bytes,
            bytes_per_token=inputs * formats.activation_bytes + outputs * BF16_BYTES,
            compute_format=formats.activations,
        )

    def _elementwise(self, name: str, flops: float, size: float, reads: int) -> Operator:
        """Return an operator with `flops` per element of `size`, reading `reads` tensors, writing one."""
        return Operator(name, vector_flops=flops * size, bytes_per_token=(reads + 1) * size * BF16_BYTES)

    def norm(self, name: str) -> Operator:
        """Return a norm with fused residual: reads and writes the hidden state and the residual."""
        size = self.model.hidden_size
        return Operator(name, vector_flops=RMS_NORM_FLOPS * size, bytes_per_token=4 * size * BF16_BYTES)

    def layer(self, kind: LayerKind) -> LayerOperators:
        """Return the operators of one layer of `kind`."""
        model = self.model
        if kind.has_experts and model.experts is not None:
            mlp, experts = self._expert_layer(model.experts), self._routed_experts(model.experts)
        else:
            mlp, experts = self._gated_mlp("mlp", model.intermediate_size / self.tp), ()
        if model.latent is None:
            return self._grouped_query_layer(kind, mlp, experts)
        return self._latent_layer(model.latent, kind, mlp, experts)

    def _grouped_query_layer(
        self, kind: LayerKind, mlp: tuple[Operator, ...], experts: tuple[Operator, ...]
    ) -> LayerOperators:
        """Grouped-query attention (arXiv:2305.13245): several query heads share a key and a value head."""
        model, size = self.model, self.model.head_dim
        query, key = self.heads * size, self.kv_heads * size
        rotate = ROPE_FLOPS + (RMS_NORM_FLOPS if model.qk_norm else 0)
        token = (
            self.norm("attention_norm"),
            self.linear("qkv", model.hidden_size, query + 2 * key),
            self._elementwise("rope", rotate, query + key, reads=1),
            self.linear("attention_output", query, model.hidden_size),
            self.norm("mlp_norm"),
            *mlp,
        )
        cache_entry = 2 * key * self.quantization.kv_cache_bytes
        attention = AttentionWork(
            flops_per_pair=4.0 * size * self.heads,
            vector_flops_per_pair=SOFTMAX_FLOPS * self.heads,
            bytes_per_context_token=cache_entry,
            bytes_per_new_token=2 * query * BF16_BYTES + cache_entry,
            window_tokens=model.sliding_window_tokens if kind.is_sliding else None,
        )
        return LayerOperators(token, attention, attention, (), (), experts, self._vector_bytes(kind))

    def _latent_layer(
        self,
        latent: LatentAttention,
        kind: LayerKind,
        mlp: tuple[Operator, ...],
        experts: tuple[Operator, ...],
    ) -> LayerOperators:
        """Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434, section 2.1).

        Prefill expands the latent of every token of the sequence to keys and values and attends with
        them; decode absorbs the expansion into queries and results and attends to the latent itself
        (the two equal forms of section 2.1.2). Each is the cheaper one in its phase, and what serving
        engines run. The latent is cached whole on every device of a tensor-parallel group.
        """
        hidden, heads = self.model.hidden_size, self.heads
        rotated = (heads + 1) * latent.qk_rope_head_dim
        token = (
            self.norm("attention_norm"),
            *self._latent_projections(latent),
            self._elementwise("rope", ROPE_FLOPS, rotated, reads=1),
            self.linear("attention_output", heads * latent.v_head_dim, hidden),
            self.norm("mlp_norm"),
            *mlp,
        )
        expanded = heads * (latent.qk_nope_head_dim + latent.v_head_dim)
        up = self.linear("kv_up", latent.kv_lora_rank, expanded)
        entry = latent.cached_size * self.quantization.kv_cache_bytes
        # Absorbed, the same weights work on query and result: read and write both sides of each.
        absorbed = expanded + 2 * heads * latent.kv_lora_rank
        return LayerOperators(
            token=token,
            prefill_attention=self._latent_attention(latent.qk_head_dim, latent.v_head_dim, entry),
            decode_attention=self._latent_attention(
                latent.cached_size, latent.kv_lora_rank, entry, shared=True
            ),
            prefill_context=(replace(up, bytes_per_token=entry + expanded * BF16_BYTES),),
            decode=(replace(up, bytes_per_token=absorbed * BF16_BYTES),),
            experts=experts,
            vector_bytes=self._vector_bytes(kind),
        )

    def _latent_projections(self, latent: LatentAttention) -> tuple[Operator, ...]:
        """Return what makes queries, and the latent, which every device computes whole."""
        hidden, query = self.model.hidden_size, self.heads * latent.qk_head_dim
        if latent.q_lora_rank is None:
            return self.linear("q", hidden, query), self.linear("kv_down", hidden, latent.cached_size)
        return (
            self.linear("qkv_down", hidden, latent.q_lora_rank + latent.cached_size),
            self.linear("q_up", latent.q_lora_rank, query),
        )

    def _latent_attention(
        self, key_size: int, value_size: int, cache_entry: float, *, shared: bool = False
    ) -> AttentionWork:
        """Return attention with keys and values of these sizes; `shared`: all heads read the latent."""
        size = self.heads * (key_size + value_size)
        return AttentionWork(
            flops_per_pair=2.0 * size,
            vector_flops_per_pair=SOFTMAX_FLOPS * self.heads,
            bytes_per_context_token=cache_entry if shared else size * BF16_BYTES,
            bytes_per_new_token=size * BF16_BYTES + cache_entry,
        )

    def _gated_mlp(self, name: str, inner: float) -> tuple[Operator, ...]:
        """Return a gated MLP of inner size `inner` on this device (SwiGLU, arXiv:2002.05202)."""
        return (
            self.linear(f"{name}_up", self.model.hidden_size, 2 * inner),
            self._elementwise(f"{name}_activation", SWIGLU_FLOPS, inner, reads=2),
            self.linear(f"{name}_down", inner, self.model.hidden_size),
        )

    def _expert_layer(self, experts: Experts) -> tuple[Operator, ...]:
        """Return router, shared experts and the weighted sum of results, on the tokens of the replica."""
        hidden, fan_out = self.model.hidden_size, experts.experts_per_token
        shared: tuple[Operator, ...] = ()
        if experts.shared_intermediate_size:
            shared = self._gated_mlp("shared_expert", experts.shared_intermediate_size / self.tp)
        scores = experts.num_experts
        return (
            self.linear("router", hidden, scores, plain=True),
            Operator("routing", vector_flops=SOFTMAX_FLOPS * scores, bytes_per_token=scores * BF16_BYTES),
            *shared,
            # The devices of a replica share this sum: each weighs the results it holds.
            Operator(
                "expert_sum",
                vector_flops=2 * fan_out * hidden / self.tp,
                bytes_per_token=(fan_out + 1) * hidden * BF16_BYTES / self.tp,
            ),
        )

    def _routed_experts(self, experts: Experts) -> tuple[Operator, ...]:
        return self._gated_mlp("expert", experts.intermediate_size / self.moe_tp)

    def _vector_bytes(self, kind: LayerKind) -> float:
        """Return the bytes of norms and biases of a layer, counted whole on every device: they are tiny."""
        model = self.model
        count = 2 * model.hidden_size + self._attention_vectors()
        if not kind.has_experts:
            count += (2 * model.intermediate_size + model.hidden_size) * model.mlp_bias
        elif model.experts is not None:
            experts = model.experts
            count += experts.num_experts * experts.router_bias
            inner = 2 * experts.intermediate_size + model.hidden_size
            count += experts.num_experts * inner * experts.expert_bias
        return count * BF16_BYTES

    def _attention_vectors(self) -> int:
        model = self.model
        if model.latent is not None:
            return (model.latent.q_lora_rank or 0) + model.latent.kv_lora_rank
        outputs = (model.num_heads + 2 * model.num_kv_heads) * model.head_dim
        count = outputs * model.qkv_bias + model.hidden_size * model.output_bias
        return count + 2 * model.head_dim * model.qk_norm + model.num_heads * model.attention_sinks

    def embedding(self) -> Operator:
        """Return the token embedding: a row is read and written per token; its weights are memory only."""
        return Operator("embedding", bytes_per_token=2 * self.model.hidden_size * BF16_BYTES)

    def head(self) -> tuple[Operator, ...]:
        """Return final norm, LM head and sampling, on the tokens that need logits."""
        vocab = self.model.vocab_size
        return (
            self.norm("final_norm"),
            self.linear("lm_head", self.model.hidden_size, self.vocab, plain=True),
            Operator("sampling", vector_flops=SOFTMAX_FLOPS * vocab, bytes_per_token=vocab * FP32_BYTES),
        )

    def mtp_input(self) -> tuple[Operator, ...]:
        """Return what precedes the layer of a multi-token prediction module (DeepSeek-V3, section 2.2)."""
        hidden = self.model.hidden_size
        return (
            self.norm("mtp_hidden_norm"),
            self.norm("mtp_embedding_norm"),
            Operator(
                "mtp_projection",
                flops=4.0 * hidden * hidden,
                weight_bytes=2 * hidden * hidden * BF16_BYTES,
                bytes_per_token=3 * hidden * BF16_BYTES,
            ),
        )
