"""Prefill steps of prompts of several lengths: each step holds pieces of as many prompts as fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from cache.shapes import Segment
from stages.candidate import Candidate
from stages.lengths import Sample, effective_length
from stages.schedule import ScheduleBuilder
from stages.shape_keys import ShapeKeys


@dataclass
class SegmentStep:
    """One prefill step of a replica.

    Attributes
    ----------
    segments : list of Segment
        The pieces of prompts that it computes.
    completed : int
        Prompts whose last piece is among them.
    """

    segments: list[Segment] = field(default_factory=list)
    completed: int = 0


def add_segment_steps(builder: ScheduleBuilder, candidate: Candidate) -> None:
    """Run the prompts of a candidate, each replica its share, in steps of `max_batched_tokens`."""
    workload = candidate.workload
    assert workload.input_lengths is not None
    hit_rate = workload.prefix_cache_hit_rate
    replicas = candidate.parallelism.dp
    samples = workload.input_lengths.samples(-(-candidate.concurrency // replicas), hit_rate)
    keys = ShapeKeys(candidate)
    prompts = [Sample(effective_length(length, hit_rate), requests) for length, requests in samples]
    for step in segment_steps(prompts, candidate.engine.max_batched_tokens):
        if step.completed:
            builder.first_tokens(builder.steps, step.completed * replicas)
        builder.run(keys.segments(step.segments), None, 1)


def segment_steps(prompts: list[Sample], budget: int) -> Iterator[SegmentStep]:
    """Yield the steps that fill `budget` tokens each with prompts in order.

    A prompt is cut where the step is full; the next step begins with its rest.
    """
    step, free = SegmentStep(), budget
    for length, requests in prompts:
        waiting, done = requests, 0
        while waiting:
            if free == 0:
                yield step
                step, free = SegmentStep(), budget
            # Whole prompts of one length that fit are one segment.
            whole = min(waiting, free // length) if done == 0 else 0
            if whole:
                step.segments.append(Segment(length, length, whole))
                step.completed += whole
                waiting -= whole
                free -= whole * length
                continue
            piece = min(length - done, free)
            done += piece
            free -= piece
            step.segments.append(Segment(piece, done, 1))
            if done == length:
                step.completed += 1
                waiting -= 1
                done = 0
    if step.segments:
        yield step
