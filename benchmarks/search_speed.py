"""Question: how long do searches take when every shape is known, as whole commands and inside one process?

Two of them: 8 parallelisms x 3 devices x 2 modes on the roofline runner, bound 2 s; and a frontier over 512
batch sizes of 128k-token prompts in chunks of 1k, bound 5 s. In one process the frontier is the worst one, in
which every batch size fits, and stands beside `exponential`. CPU time is shown because wall time depends on
who else uses the machine.
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from cache import ForwardLatencyRecord, ForwardLatencyTable, ForwardShapeKey
from configs import CONFIGS_DIR
from stages import Candidate, CandidateResult, Engine, Parallelism, Workload, evaluate
from stages.search import BatchRange, Strategy, search

ROUNDS = 5

GRID = """
name: grid
runner: {kind: roofline, quantization: {weights: fp8, activations: fp8, kv_cache: bf16}}
models: [Qwen/Qwen3-30B-A3B]
devices: [H100-SXM-80G, H200-SXM-141G, B200-SXM-180G]
parallelism: {search: {num_devices: 8, tp_sizes: auto, ep_sizes: [1, 8]}}
modes: [prefill, decode]
workloads: [{input_length: 8192, output_length: 512}]
engine: {max_batched_tokens: 8192}
concurrency: {search: exponential}
limits: {ttft_ms: 5000, tpot_ms: 50}
"""

FRONTIER = """
name: frontier
runner: {kind: roofline, quantization: {weights: fp8, activations: fp8}, reserved_memory_gb: 0}
models: [meta-llama/Llama-3.1-8B]
devices: [B200-SXM-180G]
parallelism: {tp: 8}
modes: [aggregated]
workloads: [{input_length: 131072, output_length: 1024}]
engine: {max_batched_tokens: 1024}
concurrency: {search: exhaustive_frontier, range: [1, 512]}
"""


def command_s(folder: Path, config: Path) -> tuple[float, float, str]:
    """Return the wall and the CPU time, s, of one run as a command, and its line on shapes."""
    command = [sys.executable, "-m", "pipeline.cli", "run", str(config), "--tables", str(folder / "tables")]
    started, used_s = time.perf_counter(), children_cpu_s()
    done = subprocess.run(
        [*command, "--out", str(folder / config.stem)], capture_output=True, text=True, check=True
    )
    line = next(line for line in done.stdout.splitlines() if line.startswith("Shapes:"))
    return time.perf_counter() - started, children_cpu_s() - used_s, line


def children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def commands() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        configs = [CONFIGS_DIR / "bisection_misses.yaml"]
        for label, text in (("grid", GRID), ("frontier", FRONTIER)):
            configs.append(folder / f"{label}.yaml")
            configs[-1].write_text(text, encoding="utf-8")
        for config in configs:
            command_s(folder, config)
            warm = [command_s(folder, config) for _ in range(ROUNDS)]
            walls, cpus, lines = zip(*warm, strict=True)
            print(
                f"{config.stem}, every shape known: median {statistics.median(walls):.2f} s wall "
                f"({min(walls):.2f} to {max(walls):.2f}), {statistics.median(cpus):.2f} s CPU; {lines[-1]}"
            )


def never_full(key: ForwardShapeKey) -> ForwardLatencyRecord:
    """Answer for any shape, with a breakdown, in memory that is never full."""
    tokens = key.model_concurrency * key.query_len
    parts = {"memory_bound": 1.0, "compute_bound_mma": 2.0}
    return ForwardLatencyRecord(1 + 1e-3 * tokens + 1e-6 * key.seq_len, 1.0, {"analytic": parts})


def loops() -> None:
    table = ForwardLatencyTable(never_full)

    def judged(batch_size: int) -> CandidateResult:
        workload, engine = Workload(131072, 1024), Engine(1024)
        return evaluate(Candidate("aggregated", workload, engine, Parallelism(tp=8), batch_size), table)

    def timed(strategy: Strategy) -> tuple[float, int]:
        started = time.process_time()
        found = search(strategy, judged, BatchRange(1, 512))
        return time.process_time() - started, len(found.visited)

    timed("exhaustive_frontier")
    for _ in range(ROUNDS):
        frontier_s, frontier = timed("exhaustive_frontier")
        path_s, path = timed("exponential")
        print(
            f"in one process, CPU: frontier {frontier_s:.2f} s ({frontier} visits, {table.forward_calls} "
            f"shapes), exponential {path_s:.3f} s ({path} visits), ratio {frontier_s / path_s:.0f}"
        )


def main() -> None:
    print(__doc__)
    commands()
    loops()


if __name__ == "__main__":
    main()
