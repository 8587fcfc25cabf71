"""A literal stepper, written tightly: groups of equal requests, plain loops, a dict of latencies.

It is what the run-compressed plan and replay are compared with: aggregated mode, several chunks.
"""

from __future__ import annotations

from collections import deque

from cache import ForwardShapeKey
from stages import Candidate

Shape = tuple[bool, int, int, int]


def step_through(candidate: Candidate, latencies_ms: dict[Shape, float]) -> tuple[float, float, float]:
    """Return TTFT ms, TPOT ms and tokens/s of an aggregated candidate of several chunks, step by step."""
    chunks, output = candidate.chunks, candidate.workload.output_length
    budget, concurrency = candidate.budget_tokens, candidate.concurrency
    shapes = [(chunks.query_len(i), chunks.seq_len(i)) for i in range(chunks.num_chunks)]
    decode_query = candidate.engine.decode_query_len
    decode_seq = output // 2 + candidate.workload.input_length + decode_query
    fold = candidate.engine.tokens_per_decode_step
    limit = int(1.15 * budget)
    pending: deque[tuple[int, int]] = deque([(concurrency, 0)])
    ready: deque[tuple[int, int, float]] = deque()
    ready_count = 0
    time_ms = first_sum = decoding_sum = 0.0
    while pending or ready:
        chunk = front = 0
        query_len = budget
        if pending:
            front, chunk = pending[0]
            if len(pending) > 1 and pending[1][1] == chunk:
                front = sum(count for count, index in pending if index == chunk)
            query_len = shapes[chunk][0]
        decode = min(ready_count, budget)
        prefill = max(0, min(front, (limit - decode) // query_len))
        step_ms = 0.0
        if prefill:
            step_ms = latencies_ms[False, prefill, *shapes[chunk]]
        if decode:
            step_ms = max(step_ms, latencies_ms[True, decode, decode_query, decode_seq] / fold)
        time_ms += step_ms
        left = prefill
        while left:
            count, _ = pending.popleft()
            taken = min(count, left)
            left -= taken
            if taken < count:
                pending.appendleft((count - taken, chunk))
        if prefill:
            if chunk + 1 < len(shapes):
                if pending and pending[-1][1] == chunk + 1:
                    pending[-1] = (pending[-1][0] + prefill, chunk + 1)
                else:
                    pending.append((prefill, chunk + 1))
            else:
                first_sum += prefill * time_ms
                if output > 1:
                    ready.append((prefill, output - 1, time_ms))
                    ready_count += prefill
        left = decode
        while left:
            count, tokens, started = ready.popleft()
            taken = min(count, left)
            left -= taken
            if taken < count:
                ready.appendleft((count - taken, tokens, started))
            if tokens > 1:
                ready.append((taken, tokens - 1, started))
            else:
                decoding_sum += taken * (time_ms - started)
                ready_count -= taken
    tpot_ms = decoding_sum / concurrency / (output - 1) if output > 1 else 0.0
    return first_sum / concurrency, tpot_ms, 1000 * output * concurrency / time_ms


def as_shape(key: ForwardShapeKey) -> Shape:
    """Return a key as the stepper's dict has it."""
    return key.is_decode, key.model_concurrency, key.query_len, key.seq_len
