"""The forward shapes of a candidate's passes."""

from __future__ import annotations

from cache.shapes import ForwardShapeKey
from stages.candidate import Candidate


def prefill_key(candidate: Candidate, count: int, chunk: int) -> ForwardShapeKey:
    """Return the shape in which `count` requests compute prompt chunk `chunk`."""
    chunks = candidate.chunks
    return ForwardShapeKey(False, count, chunks.query_len(chunk), chunks.seq_len(chunk))


def decode_key(candidate: Candidate, count: int) -> ForwardShapeKey:
    """Return the shape in which `count` requests decode, at the middle of their output.

    The context is that of the whole prompt: cached prefix tokens are attended to as well.
    """
    query_len = candidate.engine.decode_query_len
    seq_len = candidate.workload.output_length // 2 + candidate.workload.input_length + query_len
    return ForwardShapeKey(True, count, query_len, seq_len)
