"""What several test modules use."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

DATA = Path(__file__).parent / "data"

settings.register_profile("bounded", max_examples=100, deadline=None, derandomize=True)
settings.load_profile("bounded")

Shapecast = Callable[..., subprocess.CompletedProcess[str]]


def load_cases(name: str) -> Any:
    return json.loads((DATA / name).read_text(encoding="utf-8"))


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    return tmp_path / "tables"


def own_places(folder: Path, tables: Path) -> dict[str, str]:
    """Return the environment that keeps a command away from the tables and the cache of the user."""
    return {"SHAPECAST_TABLES": str(tables), "XDG_CACHE_HOME": str(folder / "user-cache")}


@pytest.fixture
def shapecast(tmp_path: Path, tables: Path) -> Shapecast:
    """Run the installed command in an empty folder, with tables of its own."""

    def run(*arguments: object, expect: int = 0, **environment: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "pipeline.cli", *(str(argument) for argument in arguments)]
        done = subprocess.run(
            command,
            cwd=tmp_path,
            env={**os.environ, **own_places(tmp_path, tables), **environment},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == expect, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done

    return run
