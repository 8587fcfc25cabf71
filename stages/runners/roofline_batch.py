"""From a forward shape to the requests of one replica and of one pipeline micro-batch.

A key's concurrency is that of all data-parallel replicas: one has `ceil(concurrency / dp)` requests, and a
micro-batch `ceil(requests / pp)` of them.
"""

from __future__ import annotations

from typing import NamedTuple

from cache.shapes import ForwardShapeKey
from stages.parallelism import Parallelism

Segments = tuple[tuple[int, int, int], ...]
"""Requests of one length each: (query_len, seq_len, requests)."""


class Batch(NamedTuple):
    """What one micro-batch asks of a replica.

    Parameters
    ----------
    is_decode : bool
        Whether the pass decodes.
    segments : tuple
        The requests by length.
    requests, tokens, context_tokens : int
        Their number, their new tokens and the tokens of their sequences.
    group_requests, group_tokens : int
        Requests and new tokens that meet in one copy of the experts, from all its replicas.
    """

    is_decode: bool
    segments: Segments
    requests: int
    tokens: int
    context_tokens: int
    group_requests: int
    group_tokens: int

    @property
    def logit_tokens(self) -> int:
        """Tokens whose logits are needed: in prefill each request's last, in decode every new one."""
        return self.tokens if self.is_decode else self.requests

    def one_token_each(self) -> Batch:
        """Return the batch with a single new token per request."""
        segments = tuple((1, seq_len, requests) for _, seq_len, requests in self.segments)
        return self._replace(segments=segments, tokens=self.requests, group_tokens=self.group_requests)


def replica_segments(key: ForwardShapeKey, dp: int) -> Segments:
    """Return the requests of the replica that has most: `ceil(requests / dp)` of each length.

    Segments of a key are those of one replica; a key of several has them as often as its concurrency says.
    """
    if key.segments is None:
        return ((key.query_len, key.seq_len, -(-key.model_concurrency // dp)),)
    copies = -(-_replicas(key) // dp)
    return tuple((query_len, seq_len, copies * requests) for query_len, seq_len, requests in key.segments)


def micro_batch(key: ForwardShapeKey, segments: Segments, sizes: Parallelism) -> Batch:
    """Return the largest of the `pp` micro-batches that a replica's `segments` are dealt into.

    Requests are dealt out in turn, those with most new tokens first, so that the first micro-batch gets the
    longest of every round. All replicas meet in the expert layers, but together they never have more
    than the key says.
    """
    if sizes.pp > 1:
        segments = _first_hand(segments, sizes.pp)
    requests = tokens = context_tokens = 0
    for query_len, seq_len, count in segments:
        requests += count
        tokens += count * query_len
        context_tokens += count * seq_len
    all_tokens = key.model_concurrency * key.query_len
    if key.segments is not None:
        all_tokens = _replicas(key) * sum(query_len * count for query_len, _, count in key.segments)
    moe_dp = sizes.moe_dp or 1
    return Batch(
        key.is_decode,
        segments,
        requests,
        tokens,
        context_tokens,
        group_requests=-(-min(key.model_concurrency, requests * sizes.dp) // moe_dp),
        group_tokens=-(-min(all_tokens, tokens * sizes.dp) // moe_dp),
    )


def _first_hand(segments: Segments, pp: int) -> Segments:
    """Return what the first of `pp` hands gets when the requests are dealt, longest first."""
    dealt, hand = 0, []
    for query_len, seq_len, count in reversed(segments):
        share = -(-(dealt + count) // pp) - -(-dealt // pp)
        dealt += count
        if share:
            hand.append((query_len, seq_len, share))
    return tuple(hand)


def _replicas(key: ForwardShapeKey) -> int:
    """Return how often the segments of `key` are in its concurrency."""
    return key.model_concurrency // sum(segment.requests for segment in key.segments or ())
