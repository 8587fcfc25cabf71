"""The forward shapes of a candidate's passes."""

from __future__ import annotations

from collections.abc import Iterable

from cache.shapes import ForwardShapeKey
from stages.candidate import Candidate

Images = tuple[int | None, int | None, int | None]


class ShapeKeys:
    """Makes the keys of one candidate; what all of them share is worked out once.

    Parameters
    ----------
    candidate : Candidate
        Whose passes.
    """

    def __init__(self, candidate: Candidate) -> None:
        workload = candidate.workload
        self.chunks = candidate.chunks
        self._replicas = candidate.parallelism.dp
        self._images = _image_fields(candidate)
        # The context of decode is that of the whole prompt: cached prefix tokens are attended to as well.
        # With prompts of several lengths it is the mean effective length, as the recorded figures have it.
        prompt = workload.input_length if workload.input_lengths is None else workload.effective_input_length
        self._decode_query_len = candidate.engine.decode_query_len
        self._decode_seq_len = workload.output_length // 2 + prompt + self._decode_query_len

    def prefill(self, count: int, chunk: int) -> ForwardShapeKey:
        """Return the shape in which `count` requests compute prompt chunk `chunk`."""
        chunks = self.chunks
        return ForwardShapeKey(False, count, chunks.query_len(chunk), chunks.seq_len(chunk), *self._images)

    def segments(self, segments: Iterable[tuple[int, int, int]]) -> ForwardShapeKey:
        """Return the shape in which each replica computes these (query_len, seq_len, requests)."""
        return ForwardShapeKey.of_segments(False, segments, self._replicas, self._images)

    def decode(self, count: int) -> ForwardShapeKey:
        """Return the shape in which `count` requests decode, at the middle of their output."""
        return ForwardShapeKey(True, count, self._decode_query_len, self._decode_seq_len, *self._images)


def _image_fields(candidate: Candidate) -> Images:
    """Return the image fields of all keys of a candidate, prefill and decode: the prompt holds the images.

    Where the workload does not say how many images a pass has, it is the candidate's batch size.
    """
    image = candidate.workload.image
    if image is None:
        return None, None, None
    return image.batch_size or candidate.batch_size, image.height, image.width
