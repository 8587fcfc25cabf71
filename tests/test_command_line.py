"""What the command says and returns when it is asked wrongly, cannot print, or is ended early."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Shapecast
from tests.in_process import command_here


@pytest.fixture
def here(tmp_path: Path, tables: Path, monkeypatch: pytest.MonkeyPatch) -> Shapecast:
    return command_here(tmp_path, tables, monkeypatch)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("run", "The argument CONFIG is missing; see shapecast run --help."),
        ("run x --jobs 0", "--jobs 0 cannot be used, it should be greater than or equal to 1; see "),
        ("run x --jobs=many", "--jobs many cannot be used, it should be a valid integer; see shapecast run "),
        (
            "tables verify --recompute -1",
            "--recompute -1 cannot be used, it should be greater than or equal to",
        ),
        ("run x --scheduler q", "--scheduler q cannot be used: 'q' is none of threads, processes, "),
        (
            "report x --format pdf",
            "--format pdf cannot be used: 'pdf' is not one of 'html', 'md', 'csv'; ",
        ),
        ("run x --forc", "There is no option --forc; did you mean --force; see shapecast run --help."),
        ("run x --jobs", "Option '--jobs' requires an argument; see shapecast "),
        ("optimize m", "The option --device is missing; see shapecast optimize --help."),
        ("rum", "No such command 'rum'"),
    ],
)
def test_a_command_line_that_cannot_be_used_is_one_sentence(
    here: Shapecast, arguments: str, sentence: str
) -> None:
    told = here(*arguments.split(), expect=2)
    assert told.stdout == ""
    assert told.stderr.startswith(f"shapecast: error: {sentence}")
    assert told.stderr.endswith(" --help.\n")
    assert told.stderr.count("\n") == 1


def test_no_arguments_print_the_help(here: Shapecast) -> None:
    assert "Run a sweep and write its results." in here(expect=2).stderr
    assert here("--help").stdout.startswith("Usage: shapecast ")


posix = pytest.mark.skipif(sys.platform == "win32", reason="needs a POSIX shell and signals")


def shell(redirected: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the list of devices as a shell does, with its streams redirected."""
    command = f'"{sys.executable}" -m pipeline.cli devices {redirected}'
    return subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command}"], cwd=folder, capture_output=True, text=True, timeout=60
    )


@posix
@pytest.mark.parametrize(
    ("redirected", "why"), [(">&-", "Bad file descriptor"), ("> /dev/full", "No space left on device")]
)
def test_output_that_cannot_be_written_is_one_sentence(tmp_path: Path, redirected: str, why: str) -> None:
    done = shell(redirected, tmp_path)
    assert done.returncode == 1
    assert done.stderr == f"shapecast: error: Standard output cannot be written ({why}); send it elsewhere.\n"


@posix
def test_a_reader_that_leaves_is_no_error_to_speak_of(tmp_path: Path) -> None:
    done = shell("| true", tmp_path)
    assert done.stderr == ""
    assert done.returncode in (1, 141)


@posix
@pytest.mark.parametrize("redirected", ["2>&-", "2> /dev/full", "<&-", "<&- 2>&-"])
def test_a_command_works_without_its_other_streams(tmp_path: Path, redirected: str) -> None:
    done = shell(redirected, tmp_path)
    assert done.returncode == 0
    assert done.stdout == shell("", tmp_path).stdout
    assert done.stderr == ""


@posix
def test_an_error_that_nobody_can_read_has_its_exit_code(tmp_path: Path) -> None:
    for redirected in ("2>&-", "2> /dev/full"):
        assert shell(f"--runner nobody {redirected}", tmp_path).returncode == 1


@posix
@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
@pytest.mark.parametrize("module", ["typer", "pyarrow", "rich"])
def test_a_signal_while_modules_are_imported_is_one_sentence(
    tmp_path: Path, module: str, name: str, code: int
) -> None:
    (tmp_path / f"{module}.py").write_text(f"import os, signal\nos.kill(os.getpid(), signal.{name})\n")
    path = os.pathsep.join([str(tmp_path), *sys.path])
    done = subprocess.run(
        [sys.executable, "-m", "pipeline.cli", "devices"],
        env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == code
    assert done.stderr == "shapecast: error: interrupted; records that were published are kept.\n"
