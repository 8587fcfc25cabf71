"""What can be known of an msmodeling checkout from its files alone: place, digest, devices, models.

Nothing here imports torch or msmodeling: a run that finds every shape in its tables must not need either.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType

import yaml

from cache.errors import ConfigError

PACKAGE = "tensor_cast"
PATH_VARIABLE = "SHAPECAST_MSMODELING"
REPOSITORY = "https://github.com/Ascend/msmodeling"
DEPENDENCIES = ("torch", "transformers>=5.13,<5.14", "optree", "overrides", "diffusers", "aenum")
"""What forward passes import besides shapecast's own dependencies (tried with commit 84fec85)."""

INSTALL_COMMAND = "pip install " + " ".join(f"'{name}'" if "<" in name else name for name in DEPENDENCIES)
HOW_TO_GET = (
    f"clone {REPOSITORY}, install what it needs ({INSTALL_COMMAND}), and name the folder in runner.path or "
    f"in the environment variable {PATH_VARIABLE}"
)

_MARKER = Path(PACKAGE) / "core" / "model_runner.py"
_DATABASES = f"{PACKAGE}/performance_model/profiling_database/data/"
_SOURCE_SUFFIXES = (".py", ".json", ".yaml", ".yml")
_VALIDATOR = Path(PACKAGE) / "core" / "model_source_security.py"
_LFS_POINTER = b"version https://git-lfs"
_MODEL_CONFIGS = Path("tests") / "assets" / "model_config"


def find_checkout(path: str | None, base_dir: Path) -> Path | None:
    """Return the folder that holds `tensor_cast`, or None when msmodeling is nowhere on this machine.

    Parameters
    ----------
    path : str or None
        `runner.path`. Left out, the environment variable `SHAPECAST_MSMODELING` is asked, then whether
        `tensor_cast` is installed.
    base_dir : Path
        What a relative `path` is relative to.

    Raises
    ------
    ConfigError
        When a folder is named that holds no `tensor_cast`.
    """
    if path is not None:
        return _checked(base_dir / Path(path).expanduser(), "runner.path")
    if named := os.environ.get(PATH_VARIABLE):
        return _checked(Path(named).expanduser(), PATH_VARIABLE)
    found = importlib.util.find_spec(PACKAGE)
    if found is None or not found.submodule_search_locations:
        return None
    root = Path(next(iter(found.submodule_search_locations))).parent
    return root.resolve() if (root / _MARKER).is_file() else None


def _checked(root: Path, where: str) -> Path:
    if not (root / _MARKER).is_file():
        raise ConfigError(
            f"{where} is {root}, which holds no {_MARKER.as_posix()}; name the top folder of an msmodeling "
            f"checkout ({REPOSITORY})."
        )
    return root.resolve()


@cache
def source_digest(root: Path) -> str:
    """Return the SHA-256 over the sources of `tensor_cast`: names and contents, in sorted order.

    Every Python, JSON and YAML file of the package counts (operator costs, passes, model and device
    profiles all live there); the shipped measurement databases do not, `database_digest` stands for the one
    that is used. `serving_cast` is msmodeling's own scheduler, which is not called here. Newlines are
    normalised, so that a checkout on another platform gives the same digest. Computed once per process.
    """
    files = (
        file
        for file in _files(root / PACKAGE)
        if file.suffix in _SOURCE_SUFFIXES and not file.relative_to(root).as_posix().startswith(_DATABASES)
    )
    return _digest_files((file.relative_to(root).as_posix(), file) for file in files)


@cache
def database_digest(database: Path) -> str:
    """Return the SHA-256 over a folder of measured operators and the communication folder it refers to.

    Raises
    ------
    ConfigError
        When the folder has no op_mapping.yaml, or Git LFS has not fetched its tables: msmodeling would take
        computed costs for all of them without a word.
    """
    files = [(file.relative_to(database).as_posix(), file) for file in _files(database)]
    other = _communication_folder(database)
    if other is not None:
        files += [(f"communication/{file.relative_to(other).as_posix()}", file) for file in _files(other)]
    for name, file in files:
        if file.suffix == ".csv" and _starts_with(file, _LFS_POINTER):
            raise ConfigError(
                f"runner.profiling_database is {database}, where {name} is a Git LFS pointer and no table; "
                "run `git lfs pull` in the checkout."
            )
    return _digest_files(files)


def _starts_with(file: Path, start: bytes) -> bool:
    with file.open("rb") as opened:
        return opened.read(len(start)) == start


def _communication_folder(database: Path) -> Path | None:
    try:
        mapping = yaml.safe_load((database / "op_mapping.yaml").read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(
            f"runner.profiling_database is {database}, whose op_mapping.yaml cannot be read "
            f"({type(error).__name__}); name a folder with op_mapping.yaml and the measured operators."
        ) from error
    reference = mapping.get("communication_data_ref") if isinstance(mapping, dict) else None
    return (database / reference).resolve() if isinstance(reference, str) else None


def model_digest(folder: Path) -> str:
    """Return the SHA-256 over what msmodeling reads of a model folder.

    That is config.json, the image preprocessor's sizes, and the Python files of a model that brings its own
    code. Weights and tokenizers are not read.
    """
    names = ("config.json", "preprocessor_config.json", "processor_config.json")
    files = [folder / name for name in names if (folder / name).is_file()]
    files += (file for file in _files(folder) if file.suffix == ".py")
    return _digest_files((file.relative_to(folder).as_posix(), file) for file in files)


def _files(folder: Path) -> Iterator[Path]:
    return (file for file in sorted(folder.rglob("*")) if file.is_file() and "__pycache__" not in file.parts)


def _digest_files(files: Iterable[tuple[str, Path]]) -> str:
    digest = hashlib.sha256()
    for name, file in files:
        # Both parts have a fixed end, so no two lists of files read alike.
        digest.update(f"{name}\0{file_digest(file)}\n".encode())
    return digest.hexdigest()


def file_digest(file: Path) -> str:
    """Return the SHA-256 of a text file, newlines normalised."""
    return hashlib.sha256(file.read_bytes().replace(b"\r\n", b"\n")).hexdigest()


@dataclass(frozen=True)
class Devices:
    """The device profiles of a checkout, as far as its text shows them.

    Parameters
    ----------
    rows : tuple of (name, vendor, file)
        Profiles named by a literal, in the order of the sources.
    complete : bool
        Whether every profile is named by a literal, so that a name not listed is surely unknown.
    """

    rows: tuple[tuple[str, str, str], ...]
    complete: bool

    @property
    def names(self) -> tuple[str, ...]:
        """The names alone."""
        return tuple(name for name, _, _ in self.rows)


@cache
def device_profiles(root: Path) -> Devices:
    """Return the device profiles that the sources make, with `DeviceProfile(...)` or `replace(...)`."""
    package = root / PACKAGE
    rows, complete = [], True
    for file in (package / "device.py", *sorted((package / "device_profiles").glob("*.py"))):
        if not file.is_file():
            continue
        try:
            tree = ast.parse(file.read_text(encoding="utf-8"))
        except (SyntaxError, UnicodeDecodeError):
            complete = False
            continue
        for fields in _profile_calls(tree):
            if isinstance(name := fields.get("name"), str):
                rows.append((name, str(fields.get("vendor") or ""), file.relative_to(root).as_posix()))
            else:
                complete = False
    return Devices(tuple(rows), complete)


def _profile_calls(tree: ast.Module) -> Iterator[dict[str, object]]:
    """Yield the literal keyword arguments of each call that makes a device profile."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        keywords = {word.arg: word.value for word in node.keywords if word.arg is not None}
        if called == "DeviceProfile" or (called == "replace" and "name" in keywords):
            yield {arg: value.value for arg, value in keywords.items() if isinstance(value, ast.Constant)}


def model_folders(root: Path) -> dict[str, Path]:
    """Return the model configs that a checkout carries for its own tests: name -> folder."""
    return {file.parent.name: file.parent for file in sorted((root / _MODEL_CONFIGS).glob("*/config.json"))}


def reason_to_reject(root: Path, folder: Path) -> str | None:
    """Return why msmodeling would refuse to load a local model folder, or None.

    Links, foreign owners and files that others may write are refused; the rules are msmodeling's own, read
    from one of its modules that needs only the standard library.
    """
    module = _validator(root)
    validate = getattr(module, "validate_local_model_path", None)
    if validate is None:
        return None
    try:
        validate(folder)
    except (OSError, ValueError) as error:
        return str(error).splitlines()[0].rstrip(".")
    return None


@cache
def _validator(root: Path) -> ModuleType | None:
    file = root / _VALIDATOR
    # A name of our own: `tensor_cast` itself stays out of sys.modules until a shape must be computed.
    name = f"_shapecast_model_source_{hashlib.sha256(str(root).encode()).hexdigest()[:16]}"
    found = importlib.util.spec_from_file_location(name, file) if file.is_file() else None
    if found is None or found.loader is None:
        return None
    module = importlib.util.module_from_spec(found)
    sys.modules[name] = module
    try:
        found.loader.exec_module(module)
    except ImportError:
        # A version whose rules need more than the standard library says why when the model is built.
        del sys.modules[name]
        return None
    return module
