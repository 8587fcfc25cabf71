"""Every command and every Python example of README and docs runs as written."""

from __future__ import annotations

import re
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.conftest import Shapecast

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.S | re.M)


def commands(page: Path) -> list[str]:
    """The lines `$ shapecast ...` of a page's console blocks, continued lines joined."""
    text = "\n".join(blocks(page, "console")).replace("\\\n", " ")
    return [line[2:] for line in text.splitlines() if line.startswith("$ ")]


WITH_COMMANDS = [page for page in PAGES if commands(page)]
WITH_PYTHON = [page for page in PAGES if blocks(page, "python")]


# Commands that need more than a plain installation: the package that must be importable.
NEEDS = {"shapecast run configs/silicon.yaml": "aiconfigurator_core"}


def write_files(page: Path, folder: Path) -> None:
    """Write what a reader has when following a page: the checkout's configs, and the files the page shows."""
    shutil.copytree(ROOT / "configs", folder / "configs")
    shown = re.findall(r'^```\w+ title="([\w.]+)"\n(.*?)^```', page.read_text(encoding="utf-8"), re.S | re.M)
    for name, text in shown:
        (folder / name).write_text(text, encoding="utf-8")


@pytest.mark.parametrize("page", WITH_COMMANDS, ids=lambda page: page.name)
def test_the_commands_of_a_page_run_in_order(page: Path, shapecast: Shapecast, tmp_path: Path) -> None:
    write_files(page, tmp_path)
    for command in commands(page):
        if command in NEEDS and find_spec(NEEDS[command]) is None:
            continue
        program, *arguments = command.split()
        assert program == "shapecast", f"{page.name} has a command that is not tested: {command}"
        shapecast(*arguments)


@pytest.mark.parametrize("page", WITH_PYTHON, ids=lambda page: page.name)
def test_the_python_examples_of_a_page_run(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_files(page, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SHAPECAST_TABLES", str(tmp_path / "tables"))
    for block in blocks(page, "python"):
        exec(compile(block, page.name, "exec"), {"__name__": "__main__"})
