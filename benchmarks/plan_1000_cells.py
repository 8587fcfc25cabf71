"""How long does `shapecast plan` take for 1,000 cells whose plans are memoized?

The sweep has 10 models x 5 layouts x 4 devices x 5 workloads in one mode = 1,000 cells, 5,000 candidates and
200 tables, each table filled by a run. The whole command is timed in a fresh process, start and imports
included; medians of several calls are reported, of wall time and of CPU time (which other work on the
machine does not lengthen).

    python benchmarks/plan_1000_cells.py
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from configs import MODELS_DIR

CALLS = 7

SWEEP = """
name: thousand
runner: {{kind: roofline, quantization: {{weights: fp8, activations: bf16, kv_cache: bf16}}}}
models: [{models}]
devices: [H100-SXM-80G, H200-SXM-141G, B200-SXM-180G, MI300X-192G]
parallelism: [{{tp: 8}}, {{tp: 4, dp: 2}}, {{tp: 2, dp: 4}}, {{tp: 4}}, {{tp: 4, pp: 2}}]
workloads:
  - {{input_length: [32768, 65536, 98304, 114688, 131072], output_length: 1024}}
engine: {{max_batched_tokens: 1024}}
concurrency: {{batch_sizes: [1, 2, 4, 8, 16]}}
"""


def main() -> None:
    """Run the sweep once, then time the plan of the same sweep."""
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        os.environ["XDG_CACHE_HOME"] = str(base / "user-cache")  # No plans of earlier times.
        config = base / "thousand.yaml"
        config.write_text(SWEEP.format(models=", ".join(ten_models(base))))
        command = [sys.executable, "-m", "pipeline.cli"]
        tables = ["--tables", str(base / "tables")]
        started_s = time.perf_counter()
        subprocess.run([*command, "run", config, "--out", base / "out", "--quiet", *tables], check=True)
        print(f"run: {time.perf_counter() - started_s:.1f} s")
        times_s, cpu_s = [], []
        for _ in range(CALLS):
            started_s, cpu_before_s = time.perf_counter(), children_cpu_s()
            done = subprocess.run(
                [*command, "plan", config, "--json", *tables], check=True, capture_output=True, text=True
            )
            times_s.append(time.perf_counter() - started_s)
            cpu_s.append(children_cpu_s() - cpu_before_s)
        found = json.loads(done.stdout)
        print(
            f"plan: median {statistics.median(times_s):.2f} s of {CALLS} ({min(times_s):.2f} to "
            f"{max(times_s):.2f}), CPU {statistics.median(cpu_s):.2f} s; {found['cells']} cells, "
            f"{len(found['tables'])} tables, {found['shapes_known']} shapes known, "
            f"{found['shapes_to_compute_at_most']} to compute"
        )
        assert found["cells"] == 1000
        assert found["shapes_to_compute_at_most"] == 0


def children_cpu_s() -> float:
    """Return the CPU time of all child processes that have ended, s."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def ten_models(base: Path) -> list[str]:
    """Return ten model configs: Llama-3.1-8B with ten numbers of layers."""
    content = json.loads((MODELS_DIR / "meta-llama/Llama-3.1-8B/config.json").read_text())
    names = []
    for layers in range(20, 40, 2):
        path = base / f"layers{layers}.json"
        path.write_text(json.dumps(content | {"num_hidden_layers": layers}))
        names.append(path.name)
    return names


if __name__ == "__main__":
    os.environ.setdefault("PYTHONPATH", str(Path(__file__).parents[1]))
    main()
