"""The house keeps its own rules: one-way imports, pinned public names, documented parameters."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
from pathlib import Path
from types import ModuleType

import pytest

import cache
import stages

ROOT = Path(__file__).parent.parent
LOWER = {"cache": set(), "stages": {"cache", "configs"}, "pipeline": {"stages", "cache", "configs"}}
SOURCES = [path for package in LOWER for path in sorted((ROOT / package).rglob("*.py"))]
OURS = {"cache", "stages", "pipeline", "configs", "tests"}


def imported(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    return names


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_lower_package_never_imports_a_higher_one(path: Path) -> None:
    package = path.relative_to(ROOT).parts[0]
    assert (imported(path) & OURS) - {package} <= LOWER[package]


def test_public_names_are_kept() -> None:
    assert {
        "ForwardShapeKey",
        "ForwardLatencyRecord",
        "ForwardLatencyTable",
        "ShapeStore",
        "TableIdentity",
    } <= set(cache.__all__)
    assert {"Workload", "Engine", "Parallelism", "Candidate", "CandidateResult", "evaluate"} <= set(
        stages.__all__
    )
    for module in (cache, stages):
        assert module.__all__ == sorted(module.__all__)
        assert all(hasattr(module, name) for name in module.__all__)


def modules() -> list[ModuleType]:
    found = []
    for package in (cache, stages):
        for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            found.append(importlib.import_module(info.name))
    return found


def documented(docstring: str) -> list[str]:
    section = re.search(r"Parameters\n-+\n(.*?)(?:\n\n[A-Z][a-z]+\n-+\n|\Z)", docstring, re.S)
    if section is None:
        return []
    heads = re.findall(r"^(\w[\w, ]*) :", section.group(1), re.M)
    return [name.strip() for head in heads for name in head.split(",")]


@pytest.mark.parametrize("module", modules(), ids=lambda module: module.__name__)
def test_documented_parameters_are_those_of_the_signature(module: ModuleType) -> None:
    for name, item in inspect.getmembers(module):
        if name.startswith("_") or getattr(item, "__module__", None) != module.__name__:
            continue
        if not (inspect.isfunction(item) or inspect.isclass(item)):
            continue
        names = documented(inspect.getdoc(item) or "")
        if names and not (inspect.isclass(item) and issubclass(item, BaseException)):
            unknown = set(names) - set(inspect.signature(item).parameters)
            assert not unknown, f"{module.__name__}.{name} documents {sorted(unknown)}"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_modules_can_be_read_in_one_sitting(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) < 500
