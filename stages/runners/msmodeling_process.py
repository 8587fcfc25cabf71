"""msmodeling in this process: the right one, imported once, and kept quiet."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cache.errors import RunnerError
from stages.runners import msmodeling_source as source
from stages.runners.msmodeling_spec import MsModelingSpec, package_version

_CHATTY_LOGGERS = (source.PACKAGE, "transformers", "diffusers", "torch")
_ENTRY_MODULES = ("device_profiles", "core.model_runner", "core.user_config")


def module(name: str) -> Any:
    """Return a module of the imported msmodeling; its values are of no known type."""
    return importlib.import_module(f"{source.PACKAGE}.{name}")


def check_machine(spec: MsModelingSpec) -> Path:
    """Return the checkout on this machine after checking that it is the one of the identity.

    Raises
    ------
    RunnerError
        When there is none, or sources, model, measurements or package versions differ.
    """
    root = spec.root if spec.root is not None and spec.root.is_dir() else source.find_checkout(None, Path())
    if root is None:
        raise RunnerError(
            f"A shape must be computed, and msmodeling is not on this machine; {source.HOW_TO_GET}."
        )
    here = {"sources": source.source_digest(root), "model": source.model_digest(spec.model_folder)}
    wanted = {"sources": spec.source_digest, "model": spec.model_digest}
    if spec.database is not None and spec.database_digest is not None:
        here["measured operators"] = source.database_digest(spec.database)
        wanted["measured operators"] = spec.database_digest
    if spec.draft_config is not None and spec.draft_digest is not None:
        here["draft model config"] = source.file_digest(spec.draft_config)
        wanted["draft model config"] = spec.draft_digest
    for name, version in spec.packages:
        here[name], wanted[name] = package_version(name) or "missing", version
    for name, value in wanted.items():
        if here[name] != value:
            raise RunnerError(
                "A shape must be computed, and msmodeling on this machine is not that of the known records: "
                f"{name} is {here[name]}, expected {value}; install that, or drop runner.pins to start a "
                "table of its own."
            )
    return root


def import_msmodeling(root: Path) -> None:
    """Import msmodeling from exactly this checkout.

    Raises
    ------
    RunnerError
        When it cannot be imported, or this process holds another one.
    """
    folder = root / source.PACKAGE
    loaded = sys.modules.get(source.PACKAGE)
    if loaded is None:
        _load_package(folder)
    elif Path(str(loaded.__file__)).parent.resolve() != folder:
        raise RunnerError(
            f"msmodeling was imported from {loaded.__file__} before, and one process can hold one only; use "
            f"{root} alone in this run."
        )
    try:
        for name in _ENTRY_MODULES:
            module(name)
    except ImportError as error:
        for name in [name for name in sys.modules if name.partition(".")[0] == source.PACKAGE]:
            del sys.modules[name]
        raise RunnerError(
            f"msmodeling in {root} cannot be imported: {reason(error)}; run `{source.INSTALL_COMMAND}`."
        ) from error


def _load_package(folder: Path) -> None:
    # By its place and not through sys.path, where other folders of the checkout (tests, tools) would
    # come along.
    found = importlib.util.spec_from_file_location(
        source.PACKAGE, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    if found is None or found.loader is None:
        raise RunnerError(f"{folder} is no Python package; name the top folder of an msmodeling checkout.")
    package = importlib.util.module_from_spec(found)
    sys.modules[source.PACKAGE] = package
    found.loader.exec_module(package)


def reason(error: Exception) -> str:
    """Return the kind and first line of a foreign error, without final stop; its place where it has none."""
    lines = str(error).strip().splitlines()
    if lines:
        return f"{type(error).__name__}: {lines[0].rstrip('.')}"
    frames = traceback.extract_tb(error.__traceback__)
    place = f" in {Path(frames[-1].filename).name}, line {frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}{place}"


@contextmanager
def quiet() -> Iterator[None]:
    """Keep remarks of msmodeling and its libraries (a line per operator without a cost) off the terminal."""
    levels = {name: logging.getLogger(name).level for name in _CHATTY_LOGGERS}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            for name in levels:
                logging.getLogger(name).setLevel(logging.CRITICAL)
            yield
        finally:
            for name, level in levels.items():
                # A library that was imported meanwhile has set its own level; that one is to stay.
                if logging.getLogger(name).level == logging.CRITICAL:
                    logging.getLogger(name).setLevel(level)
