"""A literal simulator, written straight from the design, section 4: every step is taken one by one.

It shares no code with the stages, asks for a record whenever a step needs one, and is as slow as that is.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from cache import ForwardLatencyRecord, ForwardShapeKey
from stages import Candidate

Forward = Callable[[ForwardShapeKey], ForwardLatencyRecord]


@dataclass
class Outcome:
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    tokens_per_s: float = 0.0
    stop_reason: str | None = None
    keys: list[ForwardShapeKey] = field(default_factory=list)
    memory_left_gb: float = math.inf


class OutOfMemoryError(Exception):
    def __init__(self, key: ForwardShapeKey, latency_ms: float) -> None:
        self.key = key
        self.latency_ms = latency_ms


class Literal:
    def __init__(self, candidate: Candidate, forward: Forward) -> None:
        self.candidate = candidate
        self.forward = forward
        self.out = Outcome()
        workload, engine = candidate.workload, candidate.engine
        self.length = max(
            workload.input_length - math.floor(workload.input_length * workload.prefix_cache_hit_rate), 1
        )
        self.concurrency = candidate.batch_size * candidate.parallelism.dp * candidate.parallelism.pp
        self.budget = engine.max_batched_tokens * candidate.parallelism.dp
        self.fold = 1 + sum(engine.mtp_acceptance_rate[: engine.num_mtp_tokens])
        self.chunks: list[tuple[int, int]] = []
        done = 0
        while done < self.length:
            query_len = min(engine.max_batched_tokens, self.length - done)
            done += query_len
            self.chunks.append((query_len, done))

    def latency_ms(self, key: ForwardShapeKey) -> float:
        record = self.forward(key)
        if key not in self.out.keys:
            self.out.keys.append(key)
        self.out.memory_left_gb = min(self.out.memory_left_gb, record.memory_left_gb)
        latency_ms = record.latency_ms / self.fold if key.is_decode else record.latency_ms
        if record.memory_left_gb < 0:
            self.out.stop_reason = "decode_oom" if key.is_decode else "prefill_oom"
            raise OutOfMemoryError(key, latency_ms)
        return latency_ms

    def prefill_ms(self, count: int, chunk: int) -> float:
        return self.latency_ms(ForwardShapeKey(False, count, *self.chunks[chunk]))

    def decode_ms(self, count: int) -> float:
        workload = self.candidate.workload
        query_len = self.candidate.engine.num_mtp_tokens + 1
        seq_len = workload.output_length // 2 + workload.input_length + query_len
        return self.latency_ms(ForwardShapeKey(True, count, query_len, seq_len))

    def run(self) -> Outcome:
        if self.candidate.mode == "decode":
            self.decode_only()
        elif self.candidate.mode == "prefill":
            self.prefill_only()
        elif len(self.chunks) == 1:
            self.waves_then_decode()
        else:
            self.mixed_steps()
        return self.out

    def decode_only(self) -> None:
        cost_ms = self.candidate.engine.serving_cost_ms / self.fold
        try:
            self.out.tpot_ms = self.decode_ms(self.concurrency) + cost_ms
        except OutOfMemoryError as stop:
            self.out.tpot_ms = stop.latency_ms + cost_ms
        self.out.tokens_per_s = 1000 * self.concurrency / self.out.tpot_ms

    def prefill_only(self) -> None:
        time_ms = self.candidate.engine.serving_cost_ms
        weighted_ms = 0.0
        one_forward = len(self.chunks) == 1 and self.concurrency * self.chunks[0][0] <= self.budget
        try:
            for chunk, (query_len, _) in enumerate(self.chunks):
                wave = self.concurrency if one_forward else max(self.budget // query_len, 1)
                left = self.concurrency
                while left:
                    count = min(wave, left)
                    left -= count
                    time_ms += self.prefill_ms(count, chunk)
                    if chunk == len(self.chunks) - 1:
                        weighted_ms += count * time_ms
            self.out.ttft_ms = weighted_ms / self.concurrency
        except OutOfMemoryError as stop:
            time_ms += stop.latency_ms
            self.out.ttft_ms = time_ms
        tokens = self.concurrency * self.candidate.workload.input_length
        self.out.tokens_per_s = 1000 * tokens / time_ms

    def waves_then_decode(self) -> None:
        per_wave = self.budget // self.length
        full, rest = divmod(self.concurrency, per_wave)
        output = self.candidate.workload.output_length
        try:
            full_ms = self.prefill_ms(per_wave, 0) if full else 0.0
            rest_ms = self.prefill_ms(rest, 0) if rest else 0.0
        except OutOfMemoryError:
            self.out.ttft_ms = self.out.tpot_ms = math.inf
            return
        try:
            decode_ms = self.decode_ms(self.concurrency)
        except OutOfMemoryError as stop:
            decode_ms = stop.latency_ms
        ttft_ms = (
            per_wave * full_ms * (1 + full) * full / 2 + (full * full_ms + rest_ms) * rest
        ) / self.concurrency
        end_ms = ttft_ms + decode_ms * output
        self.out.ttft_ms, self.out.tpot_ms = ttft_ms, end_ms / output
        self.out.tokens_per_s = 1000 * output * self.concurrency / end_ms

    def decide(self, ready: int, front: int, query_len: int, chunk: int) -> tuple[int, int]:
        """Decode first with slack."""
        decode = min(ready, self.budget)
        slack = math.floor(1.15 * self.budget) - decode
        return max(0, min(front, slack // query_len)), decode

    def mixed_steps(self) -> None:
        """Step by step; requests are single entries, not groups."""
        output = self.candidate.workload.output_length
        pending: deque[int] = deque([0] * self.concurrency)
        ready: deque[tuple[int, float]] = deque()
        first_ms: list[float] = []
        decoding_ms: list[float] = []
        time_ms = 0.0
        try:
            while pending or ready:
                front = 0
                while front < len(pending) and pending[front] == pending[0]:
                    front += 1
                query_len = self.chunks[pending[0]][0] if pending else self.budget
                prefill, decode = self.decide(len(ready), front, query_len, pending[0] if pending else 0)
                assert prefill or decode
                prefill_ms = self.prefill_ms(prefill, pending[0]) if prefill else 0.0
                decode_ms = self.decode_ms(decode) if decode else 0.0
                time_ms += max(prefill_ms, decode_ms)
                for _ in range(prefill):
                    chunk = pending.popleft() + 1
                    if chunk < len(self.chunks):
                        pending.append(chunk)
                        continue
                    first_ms.append(time_ms)
                    if output > 1:
                        ready.append((output - 1, time_ms))
                for _ in range(decode):
                    left, started_ms = ready.popleft()
                    if left > 1:
                        ready.append((left - 1, started_ms))
                    else:
                        decoding_ms.append((time_ms - started_ms) / (output - 1))
        except OutOfMemoryError as stop:
            self.out.ttft_ms, self.out.tpot_ms = time_ms + stop.latency_ms, math.inf
            return
        self.out.ttft_ms = sum(first_ms) / self.concurrency
        self.out.tpot_ms = sum(decoding_ms) / self.concurrency if output > 1 else 0.0
        self.out.tokens_per_s = 1000 * output * self.concurrency / time_ms
