"""Aggregate: a candidate's TTFT, TPOT, throughput, memory and stop reason from its replay.

The formulas are those of the design, section 4. Sums are `math.fsum`, exactly rounded: a dot product would
round as the processor's vector units please, and outputs must be the same on every machine.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from cache.shapes import BOUND_TYPES, ForwardLatencyRecord, ForwardShapeKey
from stages.breakdown import bound_shares, breakdown_text, mean_breakdown_text
from stages.candidate import Candidate
from stages.plan import Plan, Rule
from stages.replay import Replay
from stages.result import CandidateResult, StopReason, limit_stop_reason
from stages.schedule import NO_PASS

Records = Mapping[ForwardShapeKey, ForwardLatencyRecord]

UNKNOWN_SOURCE = "unknown"
_UNKNOWN = {UNKNOWN_SOURCE: 1.0}


class _Times(NamedTuple):
    ttft_ms: float | None
    tpot_ms: float | None
    tokens_per_s: float


def aggregate(candidate: Candidate, plan: Plan, times: Replay, records: Records) -> CandidateResult:
    """Return the result of one candidate."""
    ttft_ms, tpot_ms, tokens_per_s = _TIMES[plan.rule](candidate, plan, times, records)
    used = [records[key] for key in times.used]
    tightest = min(used, key=lambda record: record.memory_left_gb)
    memory = tightest.memory
    return CandidateResult(
        ttft_ms=ttft_ms,
        tpot_ms=tpot_ms,
        tokens_per_s=tokens_per_s,
        tokens_per_s_per_device=tokens_per_s / candidate.parallelism.num_devices,
        memory_left_gb=tightest.memory_left_gb,
        concurrency=candidate.concurrency,
        effective_input_length=candidate.workload.effective_input_length,
        prefill_num_chunks=_prefill_num_chunks(candidate, plan),
        stop_reason=_stop_reason(candidate, times, ttft_ms, tpot_ms),
        prefill_breakdown=_prefill_text(plan, times, records),
        decode_breakdown=_first_text(times, records, is_decode=True),
        memory_total_gb=None if memory is None else memory.total_gb,
        weight_gb=None if memory is None else memory.weight_gb,
        kv_cache_gb=None if memory is None else memory.kv_cache_gb,
        activation_gb=None if memory is None else memory.activation_gb,
        reserved_gb=None if memory is None else memory.reserved_gb,
        forward_shape_count=len(plan.keys),
        stop_shape=None if times.oom_key is None else str(times.oom_key),
        source_shares=_source_shares(times, used),
        bound_shares=_bound_time_shares(times, used),
    )


def _decode_times(candidate: Candidate, plan: Plan, times: Replay, records: Records) -> _Times:
    engine = candidate.engine
    latency_ms = records[plan.schedule.keys[0]].latency_ms
    tpot_ms = engine.fold_decode_ms(latency_ms + engine.serving_cost_ms)
    return _Times(None, tpot_ms, _per_s(candidate.concurrency, tpot_ms))


def _prefill_times(candidate: Candidate, plan: Plan, times: Replay, records: Records) -> _Times:
    ttft_ms = times.end_ms
    if times.oom_key is None:
        ttft_ms = _mean_first_token_ms(candidate, plan, times)
    tokens = candidate.input_tokens
    return _Times(ttft_ms, None, _per_s(tokens, times.end_ms))


def _prefill_then_decode_times(candidate: Candidate, plan: Plan, times: Replay, records: Records) -> _Times:
    if times.oom_key is not None and not times.oom_key.is_decode:
        return _Times(math.inf, math.inf, 0.0)
    # Decode is the last pass: when it is the one out of memory, the times it would give are known.
    ttft_ms = _mean_first_token_ms(candidate, plan, times)
    output_tokens = candidate.workload.output_length
    end_to_end_ms = ttft_ms + float(times.step_ms[-1]) * output_tokens
    tokens = output_tokens * candidate.concurrency
    return _Times(ttft_ms, end_to_end_ms / output_tokens, _per_s(tokens, end_to_end_ms))


def _mixed_steps_times(candidate: Candidate, plan: Plan, times: Replay, records: Records) -> _Times:
    if times.oom_key is not None:
        return _Times(times.end_ms, math.inf, 0.0)
    schedule = plan.schedule
    output_tokens = candidate.workload.output_length
    ttft_ms = _mean_first_token_ms(candidate, plan, times)
    tpot_ms = 0.0
    if output_tokens > 1:
        decoding_ms = times.after_step_ms(schedule.finish_end) - times.after_step_ms(schedule.finish_start)
        total_ms = math.fsum((schedule.finish_count * decoding_ms).tolist())
        tpot_ms = total_ms / candidate.concurrency / (output_tokens - 1)
    return _Times(ttft_ms, tpot_ms, _per_s(output_tokens * candidate.concurrency, times.end_ms))


_TIMES = {
    Rule.DECODE: _decode_times,
    Rule.PREFILL_FORWARD: _prefill_times,
    Rule.PREFILL_WAVES: _prefill_times,
    Rule.PREFILL_THEN_DECODE: _prefill_then_decode_times,
    Rule.SEGMENTS_THEN_DECODE: _prefill_then_decode_times,
    Rule.MIXED_STEPS: _mixed_steps_times,
}


def _per_s(tokens: int, time_ms: float) -> float:
    """Return a throughput; a runner that answers 0 ms has no finite one."""
    return 1000 * tokens / time_ms if time_ms else math.inf


def _mean_first_token_ms(candidate: Candidate, plan: Plan, times: Replay) -> float:
    ends_ms = times.after_step_ms(plan.schedule.first_step)
    return math.fsum((plan.schedule.first_count * ends_ms).tolist()) / candidate.concurrency


def _stop_reason(
    candidate: Candidate, times: Replay, ttft_ms: float | None, tpot_ms: float | None
) -> StopReason | None:
    if times.oom_key is not None:
        return "decode_oom" if times.oom_key.is_decode else "prefill_oom"
    return limit_stop_reason(ttft_ms, tpot_ms, candidate.ttft_limit_ms, candidate.tpot_limit_ms)


def _prefill_num_chunks(candidate: Candidate, plan: Plan) -> int:
    """Return the chunks per prompt; with prompts of several lengths, the steps that all of them take."""
    if candidate.mode == "decode":
        return 0
    if candidate.workload.input_lengths is None:
        return candidate.chunks.num_chunks
    schedule = plan.schedule
    return int(schedule.run_steps[schedule.run_prefill != NO_PASS].sum())


def _prefill_text(plan: Plan, times: Replay, records: Records) -> str | None:
    if plan.rule is Rule.SEGMENTS_THEN_DECODE:
        return mean_breakdown_text(
            (float(time_ms), bound_shares(records[key]))
            for key, time_ms in zip(times.used, times.key_ms, strict=True)
            if not key.is_decode
        )
    if plan.rule is not Rule.PREFILL_WAVES:
        return _first_text(times, records, is_decode=False)
    waves: dict[int, int] = {}
    runs = zip(plan.schedule.run_prefill[: times.run_count], plan.schedule.run_steps, strict=False)
    for key_index, steps in runs:
        waves[int(key_index)] = waves.get(int(key_index), 0) + int(steps)
    return mean_breakdown_text(
        (count, bound_shares(records[plan.schedule.keys[key_index]])) for key_index, count in waves.items()
    )


def _first_text(times: Replay, records: Records, *, is_decode: bool) -> str | None:
    for key in times.used:
        if key.is_decode == is_decode:
            record = records[key]
            return breakdown_text(bound_shares(record)) if record.breakdowns else None
    return None


def _source_shares(times: Replay, used: list[ForwardLatencyRecord]) -> dict[str, float]:
    key_ms = times.key_ms.tolist()
    total_ms = math.fsum(key_ms)
    kinds_ms: dict[str, list[float]] = {}
    for time_ms, record in zip(key_ms, used, strict=True):
        for kind, share in (record.sources or _UNKNOWN).items():
            kinds_ms.setdefault(kind, []).append(time_ms * share)
    return {kind: math.fsum(kinds_ms[kind]) / total_ms if total_ms else 0.0 for kind in sorted(kinds_ms)}


def _bound_time_shares(times: Replay, used: list[ForwardLatencyRecord]) -> dict[str, float]:
    totals = [0.0] * len(BOUND_TYPES)
    for time_ms, record in zip(times.key_ms.tolist(), used, strict=True):
        shares = bound_shares(record)
        if shares is not None:
            for index, share in enumerate(shares):
                totals[index] += time_ms * share
    total = math.fsum(totals)
    return {name: value / total for name, value in zip(BOUND_TYPES, totals, strict=True)} if total else {}
