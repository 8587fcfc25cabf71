"""Question: how long do a cold and a warm quickstart take as whole commands, and how much memory?

The bounds are 20 s cold, 3 s warm with no forward call, and 400 MiB.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from configs import CONFIGS_DIR

ROUNDS = 5


def run(folder: Path) -> tuple[float, str]:
    """Return the wall time, s, and the line on shapes of one run with its tables in `folder`."""
    command = [sys.executable, "-m", "pipeline.cli", "run", str(CONFIGS_DIR / "quickstart.yaml")]
    started = time.perf_counter()
    done = subprocess.run(
        [*command, "--out", str(folder / "out"), "--tables", str(folder / "tables")],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ,
    )
    wall_s = time.perf_counter() - started
    return wall_s, next(line for line in done.stdout.splitlines() if line.startswith("Shapes:"))


def main() -> None:
    print(__doc__)
    cold, warm = [], []
    for _ in range(ROUNDS):
        with tempfile.TemporaryDirectory() as name:
            cold.append(run(Path(name)))
            warm.append(run(Path(name)))
    for label, runs in (("cold", cold), ("warm", warm)):
        print(f"{label}: median {statistics.median(wall_s for wall_s, _ in runs):.2f} s; {runs[-1][1]}")
    ratio = statistics.median(c[0] / w[0] for c, w in zip(cold, warm, strict=True))
    print(f"cold / warm, median of pairs: {ratio:.1f}")
    peak_mib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    print(f"peak memory of any run: {peak_mib:.0f} MiB")


if __name__ == "__main__":
    main()
