"""Question: how long does one call of the roofline runner take? The bound is 100 microseconds."""

from __future__ import annotations

from measure import medians_ms

from cache import ForwardShapeKey
from stages.parallelism import Parallelism
from stages.runners.base import Deployment, ModelRunner
from stages.runners.roofline_spec import RooflineOptions

CALLS = 200
DEPLOYMENTS = {
    "Qwen3-32B TP=8": Deployment("Qwen/Qwen3-32B", "H100-SXM-80G", Parallelism(tp=8)),
    "Llama-3.1-70B TP=4 PP=2": Deployment("meta-llama/Llama-3.1-70B", "H200-SXM-141G", Parallelism(4, 1, 2)),
    "Qwen3-235B-A22B TP=4 DP=2 EP=8": Deployment(
        "Qwen/Qwen3-235B-A22B", "B200-SXM-180G", Parallelism(4, 2, 1, 8)
    ),
    "DeepSeek-V3 DP=8 EP=8": Deployment("deepseek-ai/DeepSeek-V3", "B200-SXM-180G", Parallelism(1, 8, 1, 8)),
    "gpt-oss-120b TP=2": Deployment("openai/gpt-oss-120b", "H100-SXM-80G", Parallelism(tp=2)),
}  # fmt: skip


def call_many(runner: ModelRunner, is_decode: bool) -> None:
    for i in range(CALLS):
        query_len = 1 if is_decode else 1024
        runner.forward(ForwardShapeKey(is_decode, 16, query_len, 1024 * (i + 1)))


def main() -> None:
    print(__doc__)
    print(f"{'deployment':<32} {'phase':<8} {'microseconds':>12}")
    for name, deployment in DEPLOYMENTS.items():
        runner = RooflineOptions(kind="roofline").spec(deployment).build()
        calls = {
            "prefill": lambda r=runner: call_many(r, False),
            "decode": lambda r=runner: call_many(r, True),
        }
        for phase, median_ms in medians_ms(calls, rounds=7).items():
            print(f"{name:<32} {phase:<8} {1000 * median_ms / CALLS:>12.1f}")


if __name__ == "__main__":
    main()
