"""The command in the process of the tests, which is much faster than to start one."""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from pipeline.cli import main
from tests.conftest import Shapecast, own_places


def command_here(folder: Path, tables: Path, monkeypatch: pytest.MonkeyPatch) -> Shapecast:
    """Return what runs the command in a folder, with tables of its own."""
    monkeypatch.chdir(folder)

    def run(*arguments: object, expect: int = 0, **environment: str) -> subprocess.CompletedProcess[str]:
        command = ["shapecast", *(str(argument) for argument in arguments)]
        with (
            pytest.MonkeyPatch.context() as patch,
            warnings.catch_warnings(),
            contextlib.redirect_stdout(io.StringIO()) as out,
            contextlib.redirect_stderr(io.StringIO()) as err,
        ):
            warnings.simplefilter("default")
            patch.setattr(sys, "argv", command)
            for name, value in {**own_places(folder, tables), **environment}.items():
                patch.setenv(name, value)
            try:
                main()
                code = 0
            except SystemExit as stopped:
                code = int(stopped.code or 0)
        assert code == expect, out.getvalue() + err.getvalue()
        return subprocess.CompletedProcess(command, code, out.getvalue(), err.getvalue())

    return run
