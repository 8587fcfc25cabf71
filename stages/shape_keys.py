"""The forward shapes of a candidate's passes."""

from __future__ import annotations

from collections.abc import Iterable

from cache.shapes import ForwardShapeKey
from stages.candidate import Candidate

Images = tuple[int | None, int | None, int | None]


def prefill_key(candidate: Candidate, count: int, chunk: int) -> ForwardShapeKey:
    """Return the shape in which `count` requests compute prompt chunk `chunk`."""
    chunks = candidate.chunks
    return ForwardShapeKey(
        False, count, chunks.query_len(chunk), chunks.seq_len(chunk), *image_fields(candidate)
    )


def segments_key(candidate: Candidate, segments: Iterable[tuple[int, int, int]]) -> ForwardShapeKey:
    """Return the shape in which each replica computes these (query_len, seq_len, requests)."""
    return ForwardShapeKey.of_segments(False, segments, candidate.parallelism.dp, image_fields(candidate))


def decode_key(candidate: Candidate, count: int) -> ForwardShapeKey:
    """Return the shape in which `count` requests decode, at the middle of their output.

    The context is that of the whole prompt: cached prefix tokens are attended to as well. With prompts of
    several lengths it is the mean effective length, as the recorded figures have it.
    """
    workload, query_len = candidate.workload, candidate.engine.decode_query_len
    prompt = workload.input_length if workload.input_lengths is None else workload.effective_input_length
    seq_len = workload.output_length // 2 + prompt + query_len
    return ForwardShapeKey(True, count, query_len, seq_len, *image_fields(candidate))


def image_fields(candidate: Candidate) -> Images:
    """Return the image fields of all keys of a candidate, prefill and decode: the prompt holds the images.

    Where the workload does not say how many images a pass has, it is the candidate's batch size.
    """
    image = candidate.workload.image
    if image is None:
        return None, None, None
    return image.batch_size or candidate.batch_size, image.height, image.width
