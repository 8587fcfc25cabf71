"""The documentation: it builds without a warning, and what it takes from the code is complete."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import typer.main

from pipeline.cli import app
from tests.conftest import Shapecast
from tests.test_execution import cluster  # noqa: F401

ROOT = Path(__file__).parent.parent
TOOLS = ROOT / "docs" / "tools"


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    sys.path.insert(0, str(TOOLS))
    try:
        spec = importlib.util.spec_from_file_location("docs_reference", TOOLS / "reference.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(TOOLS))
    return module


def test_every_config_field_has_a_meaning(reference: ModuleType) -> None:
    missing = reference.fields_without_meaning()
    assert missing == [], f"say in docs/tools/meanings.py what {', '.join(missing)} mean"


def test_the_config_reference_names_every_section_and_runner(reference: ModuleType) -> None:
    text = reference.pages()["reference/config.md"]
    for heading in (
        "### WorkloadSection",
        "### EngineSection",
        "### runner: roofline",
        "### runner: recorded",
    ):
        assert heading in text
    assert "| `ttft_ms` | Time to first token. | number > 0, or none | `null` |" in text


def test_the_command_reference_names_every_command(reference: ModuleType) -> None:
    text = reference.pages()["reference/cli.md"]
    for name in typer.main.get_command(app).commands:  # type: ignore[attr-defined]
        assert f"## shapecast {name}\n" in text


def test_the_json_reference_names_every_field(reference: ModuleType) -> None:
    from pipeline.summary_json import CandidateSummary, RunSummary

    text = reference.pages()["reference/summary-json.md"]
    for name in (*RunSummary.model_fields, *CandidateSummary.model_fields):
        assert f"| `{name}` |" in text


def test_the_readme_shows_what_the_quickstart_prints(shapecast: Shapecast) -> None:
    spec = importlib.util.spec_from_file_location("docs_refresh", TOOLS / "refresh.py")
    assert spec is not None
    assert spec.loader is not None
    refresh = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(refresh)
    printed = shapecast("run", ROOT / "configs" / "quickstart.yaml", "--out", "out").stdout
    shown = refresh.BLOCK.search((ROOT / "README.md").read_text(encoding="utf-8"))
    assert shown is not None
    assert shown[2] == refresh.answer(printed), "run python docs/tools/refresh.py"


def test_the_cluster_command_runs_as_written(
    shapecast: Shapecast,
    tmp_path: Path,
    cluster: str,  # noqa: F811
) -> None:
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    page = (ROOT / "docs" / "guides" / "machines.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"^shapecast (run .* tcp://.*)$", page, re.M)
    shapecast(*command.replace("tcp://scheduler:8786", cluster).split())
    assert (tmp_path / "out" / "cluster" / "report.html").exists()


def test_messages_under_troubleshooting_are_in_the_code() -> None:
    code = "\n".join(
        path.read_text(encoding="utf-8")
        for package in ("cache", "stages", "pipeline")
        for path in sorted((ROOT / package).rglob("*.py"))
    )
    code = re.sub(r'"\s*\n\s*f?"', "", code)  # Messages are written over several lines.
    page = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    messages = re.findall(r"\*\*`(.+?)`", page)
    assert len(messages) > 15
    for message in messages:
        for part in message.split("..."):
            assert part.strip() in code, f"no error says {part.strip()!r}"


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="needs the extra docs")
    pytest.importorskip("material", reason="needs the extra docs")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "site" / "reference" / "config" / "index.html").read_text(encoding="utf-8")
    assert "max_batched_tokens" in page
    index = (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
    assert "fonts.googleapis" not in index
