"""Write what the quickstart prints into README.md: python docs/tools/refresh.py."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

README = Path(__file__).parent.parent.parent / "README.md"
BLOCK = re.compile(r"(## One question, answered\n.*?```text\n)(.*?)(```)", re.S)


def answer(printed: str) -> str:
    """Return the lines on Qwen3-32B: the best deployment, and the table of devices."""
    lines = printed.splitlines()
    first = next(place for place, line in enumerate(lines) if "deployment of Qwen/Qwen3-32B" in line)
    table = next(place for place, line in enumerate(lines) if line.startswith("best per device, aggregated"))
    kept = [*lines[first : first + 3], "", *lines[table : table + 4]]
    rows = lines[table + 4 :]
    for place, line in enumerate(rows):
        if not line.strip():
            break
        if line.startswith(" Qwen3-32B"):
            kept += rows[place : place + 3]
    return "\n".join(line.rstrip() for line in kept) + "\n"


def main() -> None:
    """Run the quickstart and replace the block."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pipeline.cli", "run", "configs/quickstart.yaml", "--out", folder]
        done = subprocess.run(
            [*command, "--force"], cwd=README.parent, capture_output=True, text=True, check=True
        )
    text = README.read_text(encoding="utf-8")
    README.write_text(
        BLOCK.sub(lambda found: found[1] + answer(done.stdout) + found[3], text), encoding="utf-8"
    )


if __name__ == "__main__":
    main()
