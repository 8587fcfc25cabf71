"""The files of a run: written whole, byte for byte the same for the same config, versions and records."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import platform
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pandas as pd

from cache.errors import OutputError
from cache.identity import content_digest
from pipeline.rows import BEST_COLUMNS, ranked
from pipeline.saved import RESULTS_NAME, RunFacts

try:
    import fcntl
except ImportError:  # Windows; two different runs that end at the same moment may both pass there.
    fcntl = None  # type: ignore[assignment]

BEST_NAME = "best.csv"
RATIO_NAME = "ratio.csv"
REPORT_NAME = "report.html"
MANIFEST_NAME = "manifest.json"
LOG_NAME = "run.log"
RUN_FILES = (RESULTS_NAME, BEST_NAME, RATIO_NAME, REPORT_NAME, MANIFEST_NAME, LOG_NAME)

MANIFEST_VERSION = 1

_PACKAGES = ("shapecast", "dask", "joblib", "numpy", "pandas", "pyarrow", "pydantic")


class OutputFolder:
    """Where a run's files go.

    Parameters
    ----------
    path : Path
        The folder; made when it does not exist.
    run_digest : str
        Digest of what the run is, see `run_digest`.
    force : bool
        Whether the files of a different run may be replaced.

    Raises
    ------
    OutputError
        When the folder cannot be written, or holds something else and `force` is not given.
    """

    def __init__(self, path: Path, run_digest: str, *, force: bool) -> None:
        self.path = path
        self._run_digest = run_digest
        self._force = force
        if not force:
            self._refuse_other_content()
        try:
            path.mkdir(parents=True, exist_ok=True)
            probe = path / f".{uuid.uuid4().hex}.tmp"
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise OutputError(
                f"The output folder {path} cannot be written ({error.strerror}); choose another with --out."
            ) from error

    def _refuse_other_content(self) -> None:
        if self.path.exists() and not self.path.is_dir():
            raise OutputError(f"The output folder {self.path} is a file; choose another with --out.")
        if (self.path / MANIFEST_NAME).exists():
            self._refuse_other_run()
        elif self.path.is_dir() and not all(_left_by_a_run(entry.name) for entry in self.path.iterdir()):
            raise OutputError(
                f"The folder {self.path} is not empty and holds no run; "
                "choose another with --out, or write into it with --force."
            )

    def _refuse_other_run(self) -> None:
        manifest = self.path / MANIFEST_NAME
        if manifest.exists() and _read_run_digest(manifest) != self._run_digest:
            raise OutputError(
                f"The output folder {self.path} already holds a different run; "
                "choose another with --out, or replace it with --force."
            )

    def write(self, files: Mapping[str, bytes]) -> None:
        """Write the run's files; each appears whole, and the manifest last.

        Raises
        ------
        OutputError
            When they cannot be written, or a different run has come into the folder since this one began,
            and `force` was not given.
        """
        order = sorted(files, key=lambda name: (name == MANIFEST_NAME, name))
        temporary = {name: self.path / f".{name}.{uuid.uuid4().hex}.tmp" for name in order}
        try:
            for name in order:
                with temporary[name].open("wb") as file:
                    file.write(files[name])
                    file.flush()
                    os.fsync(file.fileno())
            with _locked(self.path):
                if not self._force:
                    self._refuse_other_run()
                for name in order:
                    temporary[name].replace(self.path / name)
                if RATIO_NAME not in files:  # A replaced run may have left one.
                    (self.path / RATIO_NAME).unlink(missing_ok=True)
        except OSError as error:
            raise OutputError(
                f"The outputs cannot be written to {self.path} ({error.strerror}); the records are kept: "
                f"{_advice(error)}, or choose another with --out, and run again."
            ) from error
        finally:
            for path in temporary.values():
                with suppress(OSError):  # The folder may be gone, or be a file by now.
                    path.unlink(missing_ok=True)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Let runs that publish into one folder do so one after the other, where the system can."""
    if fcntl is None:
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # Some file systems have no locks.
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _advice(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return "make room in the folder"
    return "see that it is a folder that can be written and stays"


def _left_by_a_run(name: str) -> bool:
    """Whether a run that was killed can have left a file of this name."""
    return name == LOG_NAME or (name.startswith(".") and name.endswith(".tmp"))


def _read_run_digest(manifest: Path) -> str | None:
    try:
        content = json.loads(manifest.read_bytes())
        return str(content["run"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def run_digest(config: Mapping[str, Any], identities: list[str]) -> str:
    """Return the digest of what a run is: its config, and the identities of its tables."""
    return content_digest({"config": dict(config), "identities": sorted(identities)})


def best_file(frame: pd.DataFrame) -> bytes:
    """Return the bytes of best.csv: the ranked feasible rows."""
    text: str = ranked(frame)[BEST_COLUMNS].to_csv(index=False, lineterminator="\n")
    return text.encode()


def versions() -> dict[str, str]:
    """Return the versions of what makes a run's files."""
    return {
        **{name: version(name) for name in _PACKAGES},
        "python": ".".join(platform.python_version_tuple()[:2]),
    }


def manifest_file(facts: RunFacts, counts: Mapping[str, int], files: Mapping[str, bytes]) -> bytes:
    """Return the bytes of manifest.json.

    Parameters
    ----------
    facts : RunFacts
        What the run is.
    counts : mapping
        Cells, candidates, shapes and outcomes.
    files : mapping
        The other files, whose digests the manifest names.
    """
    content = {
        "manifest_version": MANIFEST_VERSION,
        "run": facts.run,
        "config": facts.config,
        "versions": facts.versions,
        "tables": facts.tables,
        "counts": counts,
        "files": {name: hashlib.sha256(data).hexdigest() for name, data in files.items()},
    }
    return (json.dumps(content, indent=2, sort_keys=True) + "\n").encode()
