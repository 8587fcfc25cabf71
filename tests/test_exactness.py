"""The stages agree with a literal step-by-step simulation, and compute no shape that it does not need."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cache import ForwardLatencyRecord, ForwardLatencyTable, ForwardShapeKey
from stages import Candidate, Engine, Parallelism, Workload, evaluate
from stages.aggregate import aggregate
from stages.dedupe import dedupe
from stages.evaluate import replay_plan
from stages.mixed_steps import ReadyQueue
from stages.plan import plan
from stages.schedule import ScheduleBuilder
from stages.scheduler import DecodeFirstSlack, Scheduler
from stages.scheduler_registry import get_scheduler, register_scheduler
from tests.literal import Literal

FORMULAS = st.fixed_dictionaries(
    {
        "base_ms": st.floats(0.1, 20),
        "per_token_ms": st.floats(0, 0.5),
        "per_pair_ms": st.floats(0, 0.01),
        "memory_gb": st.one_of(st.just(1e9), st.floats(0.001, 5)),
    }
)


def forward_of(formula: dict[str, float]) -> Any:
    def forward(key: ForwardShapeKey) -> ForwardLatencyRecord:
        c, q, s = key.model_concurrency, key.query_len, key.seq_len
        latency_ms = formula["base_ms"] + formula["per_token_ms"] * c * q + formula["per_pair_ms"] * c * s
        return ForwardLatencyRecord(
            latency_ms * (1.3 if key.is_decode else 1), formula["memory_gb"] - 1e-4 * c * s
        )

    return forward


@st.composite
def candidates(draw: st.DrawFn, mode: str | None = None) -> Candidate:
    num_mtp_tokens = draw(st.integers(0, 2))
    return Candidate(
        mode=mode or draw(st.sampled_from(["aggregated", "prefill", "decode"])),
        workload=Workload(
            draw(st.integers(1, 120)), draw(st.integers(1, 24)), draw(st.sampled_from([0.0, 0.3, 0.5, 0.95]))
        ),
        engine=Engine(
            draw(st.integers(1, 40)), num_mtp_tokens, (0.8, 0.5), draw(st.sampled_from([0.0, 7.5]))
        ),
        parallelism=Parallelism(dp=draw(st.integers(1, 3)), pp=draw(st.integers(1, 2))),
        batch_size=draw(st.integers(1, 30)),
    )


def close(value: float | None, expected: float | None) -> bool:
    if value is None or expected is None:
        return value is expected
    return value == expected or math.isclose(value, expected, rel_tol=1e-9)


def check_against_literal(candidate: Candidate, formula: dict[str, float]) -> None:
    forward = forward_of(formula)
    expected = Literal(candidate, forward).run()
    asked: list[ForwardShapeKey] = []

    def counted(key: ForwardShapeKey) -> ForwardLatencyRecord:
        asked.append(key)
        return forward(key)

    result = evaluate(candidate, ForwardLatencyTable(counted))
    assert asked == expected.keys
    assert close(result.ttft_ms, expected.ttft_ms)
    assert close(result.tpot_ms, expected.tpot_ms)
    assert close(result.tokens_per_s, expected.tokens_per_s)
    assert result.stop_reason == expected.stop_reason
    assert result.memory_left_gb == expected.memory_left_gb


ROOMY = {"base_ms": 1.0, "per_token_ms": 0.1, "per_pair_ms": 0.001, "memory_gb": 1e9}


def a_candidate(**changes: Any) -> Candidate:
    values: dict[str, Any] = {
        "length": 50,
        "output": 8,
        "budget": 10,
        "batch": 6,
        "mtp": 0,
        "mode": "aggregated",
    }
    values |= changes
    return Candidate(
        values["mode"],
        Workload(values["length"], values["output"]),
        Engine(values["budget"], values["mtp"]),
        Parallelism(),
        values["batch"],
    )


@given(candidates(), FORMULAS)
def test_every_mode_agrees_with_the_literal_simulation(
    candidate: Candidate, formula: dict[str, float]
) -> None:
    check_against_literal(candidate, formula)


@given(candidates(mode="aggregated"), FORMULAS)
@example(a_candidate(budget=1, batch=1), ROOMY)
@example(a_candidate(budget=2, batch=30, output=12), ROOMY)
@example(a_candidate(budget=3, batch=20, output=40), ROOMY)
@example(a_candidate(output=1), ROOMY)
@example(a_candidate(output=2, batch=30), ROOMY)
@example(a_candidate(mtp=2, batch=1), ROOMY)
@example(a_candidate(length=1000, budget=7, batch=9, output=200), ROOMY)
def test_mixed_steps_agree_with_the_literal_simulation(
    candidate: Candidate, formula: dict[str, float]
) -> None:
    check_against_literal(candidate, formula)


class PrefillFirst(Scheduler):
    """A policy of another kind: a third of the front prefills, decode waits while anything is pending."""

    name = "test_prefill_first"

    def decide(self, ready: int, front: int, query_len: int, budget: int) -> tuple[int, int]:
        prefill = min(front, max(budget // query_len, 1), max(front // 3, 1))
        return (prefill, min(ready, budget // 2)) if front else (0, min(ready, budget))


def literal_events(candidate: Candidate, scheduler: Scheduler) -> list[tuple[int, int, int, int]]:
    """Return (prefill, chunk, decode, finished) of each step, single requests in plain queues."""
    chunks = candidate.chunks
    pending = [0] * candidate.concurrency
    ready: list[int] = []
    steps = []
    while pending or ready:
        front = sum(1 for chunk in pending if chunk == pending[0]) if pending else 0
        query_len = chunks.query_len(pending[0]) if pending else candidate.budget_tokens
        prefill, decode = scheduler.decide(len(ready), front, query_len, candidate.budget_tokens)
        chunk, finished = pending[0] if pending else 0, 0
        moved, pending = pending[:prefill], pending[prefill:]
        for index in moved:
            if index + 1 < chunks.num_chunks:
                pending.append(index + 1)
            elif candidate.workload.output_length > 1:
                ready.append(candidate.workload.output_length - 1)
            else:
                finished += 1
        decoded, ready = ready[:decode], ready[decode:]
        finished += decoded.count(1)
        ready += [left - 1 for left in decoded if left > 1]
        steps.append((prefill, chunk if prefill else 0, decode, finished))
    return steps


@pytest.mark.parametrize("scheduler", [PrefillFirst(), DecodeFirstSlack()], ids=lambda s: s.name)
@given(candidate=candidates(mode="aggregated"))
def test_any_policy_is_planned_as_its_literal_steps(scheduler: Scheduler, candidate: Candidate) -> None:
    register_scheduler(scheduler)
    engine = Engine(candidate.engine.max_batched_tokens, scheduler=scheduler.name)
    candidate = Candidate(
        "aggregated", candidate.workload, engine, candidate.parallelism, candidate.batch_size
    )
    if candidate.chunks.num_chunks == 1:
        return
    schedule = plan(candidate).schedule
    finished = dict.fromkeys(range(schedule.num_steps), 0)
    for end, count in zip(schedule.finish_end.tolist(), schedule.finish_count.tolist(), strict=True):
        finished[end] += count
    steps: list[tuple[int, int, int, int]] = []
    runs = zip(schedule.run_prefill, schedule.run_decode, schedule.run_steps, strict=True)
    for prefill_index, decode_index, count in runs:
        prefill = schedule.keys[prefill_index] if prefill_index >= 0 else None
        decode = schedule.keys[decode_index].model_concurrency if decode_index >= 0 else 0
        chunk = 0 if prefill is None else -(-prefill.seq_len // engine.max_batched_tokens) - 1
        for _ in range(count):
            done = finished[len(steps)]
            steps.append((prefill.model_concurrency if prefill else 0, chunk, decode, done))
    assert steps == literal_events(candidate, scheduler)


@given(candidates(), FORMULAS)
def test_replay_calls_no_runner(candidate: Candidate, formula: dict[str, float]) -> None:
    forward = forward_of(formula)
    planned = plan(candidate)
    table = ForwardLatencyTable(forward)
    table.prefetch(planned.keys)

    def never(key: ForwardShapeKey) -> ForwardLatencyRecord:
        raise AssertionError(f"{key} was computed during replay")

    known = {key: forward(key) for key in planned.keys if key in table}
    warm = ForwardLatencyTable(never, known)
    warm.prefetch(planned.keys)
    expected = evaluate(candidate, ForwardLatencyTable(forward))
    assert evaluate(candidate, warm) == expected
    times = replay_plan(candidate, planned, known)
    assert aggregate(candidate, planned, times, known) == expected


def test_a_plan_at_128k_has_few_runs() -> None:
    candidate = a_candidate(length=131072, output=1024, budget=1024, batch=512)
    schedule = plan(candidate).schedule
    assert schedule.num_steps > 60_000
    assert len(schedule.run_steps) < 2 * (128 + 2 * 512)


def test_a_scheduler_that_makes_no_progress_is_an_error() -> None:
    class Idle(DecodeFirstSlack):
        name = "test_idle"

        def decide(self, ready: int, front: int, query_len: int, budget: int) -> tuple[int, int]:
            return 0, 0

    register_scheduler(Idle())
    candidate = a_candidate()
    idle = Engine(candidate.engine.max_batched_tokens, scheduler="test_idle")
    with pytest.raises(ValueError, match="makes no progress: with 6 prompts of 10 tokens"):
        plan(Candidate("aggregated", candidate.workload, idle, candidate.parallelism, 6))
    with pytest.raises(ValueError, match="no scheduler 'test_idel'; use test_idle"):
        get_scheduler("test_idel")


def test_dedupe_keeps_the_order_of_first_use() -> None:
    one, two, three = (ForwardShapeKey(False, 1, n, n) for n in (1, 2, 3))
    assert dedupe([[one, two], [two, three, one]]) == (one, two, three)


def test_ready_requests_of_one_join_finish_together() -> None:
    builder = ScheduleBuilder()
    ready = ReadyQueue(tokens_after_first=3)
    builder.run(ForwardShapeKey(False, 2, 1, 1), None, 1)
    ready.join(2, 0)
    ready.decode(builder, 0, 1)
    assert ready.equal_steps(2) == 3
