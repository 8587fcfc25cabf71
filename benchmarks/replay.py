"""Question: how much less does planning and replaying one candidate of 131072 input and 1024 output tokens in
1024-token chunks take than stepping through it, all records known; and how does it grow with concurrency?
"""

from __future__ import annotations

import math

from measure import medians_ms
from tight_stepper import as_shape, step_through

from cache import ForwardLatencyRecord, ForwardLatencyTable, ForwardShapeKey
from stages import Candidate, Engine, Parallelism, Workload, evaluate
from stages.plan import plan


def latency(key: ForwardShapeKey) -> ForwardLatencyRecord:
    """A closed form, so that nothing but the schedule costs time."""
    tokens = key.model_concurrency * key.query_len
    context = key.model_concurrency * key.seq_len
    return ForwardLatencyRecord(8 + 0.03 * tokens + 1e-5 * context, 10.0)


def candidate(concurrency: int) -> Candidate:
    return Candidate("aggregated", Workload(131072, 1024), Engine(1024), Parallelism(), concurrency)


def main() -> None:
    print(__doc__)
    print(f"{'concurrency':>11} {'steps':>9} {'runs':>6} {'stepper ms':>11} {'ours ms':>9} {'ratio':>7}")
    ours: dict[int, float] = {}
    for concurrency in (128, 512, 2048):
        one = candidate(concurrency)
        planned = plan(one)
        known = {key: latency(key) for key in planned.keys}
        latencies_ms = {as_shape(key): record.latency_ms for key, record in known.items()}

        def fast(one: Candidate = one, known: dict = known) -> object:
            return evaluate(one, ForwardLatencyTable(known.__getitem__, known))

        def slow(one: Candidate = one, latencies_ms: dict = latencies_ms) -> object:
            return step_through(one, latencies_ms)

        result, (ttft_ms, tpot_ms, tokens_per_s) = fast(), slow()
        assert math.isclose(result.ttft_ms, ttft_ms, rel_tol=1e-9)
        assert math.isclose(result.tpot_ms, tpot_ms, rel_tol=1e-9)
        assert math.isclose(result.tokens_per_s, tokens_per_s, rel_tol=1e-9)
        medians = medians_ms({"ours": fast, "stepper": slow}, rounds=7)
        ours[concurrency] = medians["ours"]
        print(
            f"{concurrency:>11} {planned.schedule.num_steps:>9} {len(planned.schedule.run_steps):>6} "
            f"{medians['stepper']:>11.1f} {medians['ours']:>9.2f} "
            f"{medians['stepper'] / medians['ours']:>7.0f}"
        )
    print("\nours, growth for 4 x the concurrency (linear in chunks + concurrency would be below 4):")
    for low, high in ((128, 512), (512, 2048)):
        expected = (128 + high) / (128 + low)
        print(f"  {low} -> {high}: {ours[high] / ours[low]:.1f} x (chunks + concurrency: {expected:.1f} x)")


if __name__ == "__main__":
    main()
