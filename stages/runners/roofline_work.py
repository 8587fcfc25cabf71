"""What operators compute and move: the quantities that the roofline turns into time.

An operator is linear in its tokens: `flops * tokens` and `weight_bytes + bytes_per_token * tokens`. Only
attention is not (its work grows with pairs of tokens) and has `AttentionWork`. A multiply-add is two FLOPs.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator on one device.

    Parameters
    ----------
    name : str
        For people and tests.
    flops : float
        FLOPs of the matrix units per token.
    vector_flops : float
        FLOPs of the general-purpose units per token.
    weight_bytes : float
        Bytes of weights, read once however many tokens there are (per expert, for experts).
    bytes_per_token : float
        Bytes read and written per token besides.
    compute_format : str
        Number format of the matrix units.
    """

    name: str
    flops: float = 0.0
    vector_flops: float = 0.0
    weight_bytes: float = 0.0
    bytes_per_token: float = 0.0
    compute_format: str = "bf16"


@dataclass(frozen=True, slots=True)
class AttentionWork:
    """Attention of one layer on one device, after the projections, for one request.

    Every new token meets every earlier one and itself: with q new tokens in a sequence of s that is
    `q * (s - q + (q + 1) / 2)` pairs, and `4 * head_dim` FLOPs per pair and query head (FlashAttention,
    arXiv:2205.14135: two products). In a sliding-window layer a token meets at most `window` ones.
    Keys and values of the sequence are read once: for long chunks kernels read them several times, but
    are then bound by compute.

    Parameters
    ----------
    flops_per_pair, vector_flops_per_pair : float
        FLOPs per (query token, key token) pair, of all query heads of the device.
    bytes_per_context_token, bytes_per_new_token : float
        Bytes moved per token of the sequence (keys and values) and per new token (queries, results,
        and the new entry of the KV cache).
    window_tokens : int or None
        Context of a sliding-window layer.
    """

    flops_per_pair: float
    vector_flops_per_pair: float
    bytes_per_context_token: float
    bytes_per_new_token: float
    window_tokens: int | None = None

    def pairs(self, query_len: int, seq_len: int) -> float:
        """Return the (query token, key token) pairs of one request."""
        window = self.window_tokens
        cached = seq_len - query_len
        if window is None or seq_len <= window:
            return query_len * cached + query_len * (query_len + 1) / 2
        # Positions up to the window still see all before them, later ones exactly `window` tokens.
        growing = max(window - cached, 0)
        return growing * cached + growing * (growing + 1) / 2 + (query_len - growing) * float(window)

    def context_tokens(self, query_len: int, seq_len: int) -> int:
        """Return the tokens whose keys and values one request reads."""
        if self.window_tokens is None:
            return seq_len
        return min(seq_len, self.window_tokens + query_len - 1)


@dataclass(frozen=True, slots=True)
class LayerOperators:
    """All work of one layer on one device.

    `token` operators run on the new tokens of the replica. `prefill_context` ones run in prefill on all
    tokens of the sequences, `decode` ones in decode on the new tokens (both only for latent attention).
    `experts` run on (token, expert) pairs, their weights once per expert that is hit. `vector_bytes`
    are the norms and biases, too small to be an operator's traffic but part of the weights.
    """

    token: tuple[Operator, ...]
    prefill_attention: AttentionWork
    decode_attention: AttentionWork
    prefill_context: tuple[Operator, ...]
    decode: tuple[Operator, ...]
    experts: tuple[Operator, ...]
    vector_bytes: float
