"""What a decoder-only language model is made of: sizes, layer kinds and parameter counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple


class LayerKind(NamedTuple):
    """What tells two layers of one model apart."""

    has_experts: bool
    is_sliding: bool


@dataclass(frozen=True)
class LatentAttention:
    """Multi-head latent attention: keys and values of a token are kept as one low-rank latent.

    Sizes as in DeepSeek-V2 (arXiv:2405.04434), section 2.1 and appendix A.

    Parameters
    ----------
    q_lora_rank : int or None
        Rank of the query down-projection; None where queries are projected directly.
    kv_lora_rank : int
        Size of the cached latent of keys and values.
    qk_nope_head_dim, qk_rope_head_dim : int
        Query and key size per head without and with rotary position; the latter is cached beside the
        latent, once for all heads.
    v_head_dim : int
        Value size per head.
    """

    q_lora_rank: int | None
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int

    @property
    def qk_head_dim(self) -> int:
        """Size of one query or key head."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    @property
    def cached_size(self) -> int:
        """Numbers cached per token and layer."""
        return self.kv_lora_rank + self.qk_rope_head_dim


@dataclass(frozen=True)
class Experts:
    """Mixture of experts in the layers that have one.

    Parameters
    ----------
    num_experts, experts_per_token : int
        Routed experts of a layer, and how many of them one token is sent to.
    intermediate_size : int
        Inner size of one routed expert.
    shared_intermediate_size : int
        Inner size of all shared experts of a layer together; 0 without any.
    router_bias, expert_bias : bool
        Whether the router (or the load-balancing correction) and the experts have biases.
    """

    num_experts: int
    experts_per_token: int
    intermediate_size: int
    shared_intermediate_size: int = 0
    router_bias: bool = False
    expert_bias: bool = False


@dataclass(frozen=True)
class ModelArchitecture:
    """A decoder-only language model, as far as its work and memory depend on it.

    Parameters
    ----------
    architecture : str
        Class name of the model in its config ("Qwen3ForCausalLM").
    digest : str
        Digest of the content of the whole config: what the table identity takes.
    hidden_size, num_heads, num_kv_heads, head_dim, intermediate_size, vocab_size : int
        Sizes; `intermediate_size` is that of dense layers, 0 where there is none. With latent
        attention `head_dim` is the size of a query head.
    layers : tuple of LayerKind
        One per decoder layer, in order.
    tied_embeddings : bool
        Whether the LM head shares the weights of the embedding.
    qkv_bias, output_bias, mlp_bias, qk_norm, attention_sinks : bool
        Small vectors an architecture may have.
    sliding_window_tokens : int or None
        Context of sliding-window layers.
    latent : LatentAttention or None
        Set for multi-head latent attention; else attention is grouped-query.
    experts : Experts or None
        Set where a layer has experts.
    num_mtp_layers : int
        Multi-token prediction modules after the last layer (DeepSeek-V3, arXiv:2412.19437, section 2.2).
    """

    architecture: str
    digest: str
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    layers: tuple[LayerKind, ...]
    tied_embeddings: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    attention_sinks: bool = False
    sliding_window_tokens: int | None = None
    latent: LatentAttention | None = None
    experts: Experts | None = None
    num_mtp_layers: int = 0

    @property
    def num_layers(self) -> int:
        """Decoder layers, multi-token prediction modules not counted."""
        return len(self.layers)

    @property
    def attention_kind(self) -> Literal["gqa", "mla"]:
        """Grouped-query or multi-head latent attention."""
        return "gqa" if self.latent is None else "mla"

    @property
    def attention_parameters(self) -> int:
        """Parameters of the attention of one layer, biases and inner norms included."""
        if self.latent is not None:
            return self._latent_parameters(self.latent)
        query, keys_values = self.num_heads * self.head_dim, 2 * self.num_kv_heads * self.head_dim
        count = self.hidden_size * (query + keys_values) + query * self.hidden_size
        count += (query + keys_values) * self.qkv_bias + self.hidden_size * self.output_bias
        return count + 2 * self.head_dim * self.qk_norm + self.num_heads * self.attention_sinks

    def _latent_parameters(self, latent: LatentAttention) -> int:
        query = self.num_heads * latent.qk_head_dim
        if latent.q_lora_rank is None:
            count = self.hidden_size * query
        else:
            count = latent.q_lora_rank * (self.hidden_size + 1 + query)
        count += self.hidden_size * latent.cached_size + latent.kv_lora_rank
        count += latent.kv_lora_rank * self.num_heads * (latent.qk_nope_head_dim + latent.v_head_dim)
        return count + self.num_heads * latent.v_head_dim * self.hidden_size

    @property
    def dense_mlp_parameters(self) -> int:
        """Parameters of the gated MLP of one dense layer."""
        bias = (2 * self.intermediate_size + self.hidden_size) * self.mlp_bias
        return 3 * self.hidden_size * self.intermediate_size + bias

    @property
    def expert_parameters(self) -> int:
        """Parameters of one routed expert; 0 in a dense model."""
        if self.experts is None:
            return 0
        inner = self.experts.intermediate_size
        return 3 * self.hidden_size * inner + (2 * inner + self.hidden_size) * self.experts.expert_bias

    @property
    def expert_layer_parameters(self) -> int:
        """Parameters of router, routed and shared experts of one layer; 0 in a dense model."""
        if self.experts is None:
            return 0
        experts = self.experts
        router = experts.num_experts * (self.hidden_size + experts.router_bias)
        shared = 3 * self.hidden_size * experts.shared_intermediate_size
        return router + shared + experts.num_experts * self.expert_parameters

    def layer_parameters(self, kind: LayerKind) -> int:
        """Return the parameters of one decoder layer, its two norms included."""
        mlp = self.expert_layer_parameters if kind.has_experts else self.dense_mlp_parameters
        return self.attention_parameters + mlp + 2 * self.hidden_size

    @property
    def embedding_parameters(self) -> int:
        """Parameters of the token embedding."""
        return self.vocab_size * self.hidden_size

    @property
    def num_parameters(self) -> int:
        """Parameters of the model without its multi-token prediction modules."""
        tables = self.embedding_parameters * (1 if self.tied_embeddings else 2)
        return tables + sum(map(self.layer_parameters, self.layers)) + self.hidden_size

    @property
    def num_active_parameters(self) -> int:
        """Parameters that one token uses: unlike `num_parameters`, only the experts it is sent to."""
        if self.experts is None:
            return self.num_parameters
        idle = (self.experts.num_experts - self.experts.experts_per_token) * self.expert_parameters
        return self.num_parameters - idle * sum(kind.has_experts for kind in self.layers)

    @property
    def mtp_layer_kind(self) -> LayerKind:
        """Kind of the decoder layer inside a multi-token prediction module: like the last layer."""
        return LayerKind(has_experts=self.layers[-1].has_experts, is_sliding=False)

    @property
    def mtp_parameters(self) -> int:
        """Parameters of one multi-token prediction module, whose embedding and LM head are the model's own.

        A projection from two hidden states to one, norms of both and of the output, and a decoder layer
        (DeepSeek-V3, section 2.2).
        """
        own = 2 * self.hidden_size * self.hidden_size + 3 * self.hidden_size
        return own + self.layer_parameters(self.mtp_layer_kind) if self.num_mtp_layers else 0
