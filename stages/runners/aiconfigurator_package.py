"""What an installation of aiconfigurator-core holds, read from its files and never from its code.

Importing the package takes a second and loads a compiled library; a run that finds every shape in its
store must not pay that. Its wheel is plain enough to be read from outside: RECORD lists every file with
its SHA-256, `systems/query_versions.yaml` names the maintained engine versions, `model_configs/` holds
the models and `systems/support_matrix/` what can run where (all of version 0.12.0).
"""

from __future__ import annotations

import ast
import csv
import hashlib
import re
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib import metadata
from pathlib import Path
from typing import Any, cast

import yaml

from cache.errors import ConfigError

DISTRIBUTION = "aiconfigurator-core"
INSTALL_COMMAND = "pip install 'shapecast[silicon]'"
BACKENDS = ("vllm", "sglang", "trtllm")

KNOWN_RELEASES = {"0.12.0": "0.12.0+2b8d78e6c46e"}
"""Version -> release of the wheels on the package index, so that a version alone names a release.

The wheels of 0.12.0 for Linux (x86-64, ARM) and macOS agree in every file but the compiled library.
"""

_PACKAGE = "aiconfigurator_core"
_NO_SOURCE = ("__pycache__", ".so", ".pyd", ".dylib")
_INCOMPATIBLE = ("HW_INCOMPATIBLE", "FRAMEWORK_INCOMPATIBLE")
_WORKING = ("PASS", "HYBRID_PASS")
_MODEL_FILE = re.compile(rf"{_PACKAGE}/model_configs/(.+?)_config\.json")
_TABLE_FILE = re.compile(rf"{_PACKAGE}/systems/data/([^/]+)/[^/]+/([^/]+)/([^/]+)/[^/]+\.(?:parquet|csv|txt)")
_DIGEST_DIGITS = 12


@dataclass(frozen=True)
class Package:
    """The files of one installation.

    Parameters
    ----------
    version : str
        Version of the distribution.
    root : Path
        Folder of the import package.
    record : tuple of (str, str)
        Path (relative to the folder that holds the import package) and hash of every installed file.
    """

    version: str
    root: Path
    record: tuple[tuple[str, str], ...] = field(repr=False)

    @cached_property
    def release(self) -> str:
        """Version and digest of all sources and tables, equal on all platforms: "0.12.0+<12 hex digits>"."""
        rows = sorted(
            f"{path},{digest}"
            for path, digest in self.record
            if path.startswith(f"{_PACKAGE}/") and not any(part in path for part in _NO_SOURCE)
        )
        digest = hashlib.sha256("\n".join(rows).encode()).hexdigest()
        return f"{self.version}+{digest[:_DIGEST_DIGITS]}"

    @cached_property
    def _tables(self) -> frozenset[tuple[str, str, str]]:
        """(system, backend, version) of every shipped operator table."""
        matches = (_TABLE_FILE.fullmatch(path) for path, _ in self.record)
        return frozenset(cast(tuple[str, str, str], match.groups()) for match in matches if match)

    @cached_property
    def _slots(self) -> dict[str, Any]:
        return _read_yaml(self.root / "systems" / "query_versions.yaml")

    def versions(self, system: str, backend: str) -> list[str]:
        """Return the engine versions that can be asked for, the default one first.

        The package names a current and a previous version per backend, and takes as next the highest
        version that any system without frozen versions of its own has tables for
        (`sdk/perf_database.py`, get_version_slots).
        """
        if not any(table[:2] == (system, backend) for table in self._tables):
            return []
        overrides = self._slots.get("overrides") or {}
        own = (overrides.get(system) or {}).get(backend)
        entry = own or (self._slots.get("defaults") or {}).get(backend) or {}
        if not entry.get("current"):
            return []
        found = [str(entry["current"])]
        if own is None:
            frozen = {name for name, backends in overrides.items() if (backends or {}).get(backend)}
            shared = [table[2] for table in self._tables if table[1] == backend and table[0] not in frozen]
            newest = max(shared, key=_version_key)
            if _version_key(newest) > _version_key(found[0]):
                found.append(newest)
        if entry.get("previous"):
            found.append(str(entry["previous"]))
        return found

    def backends(self, system: str) -> list[str]:
        """Return the backends that have tables for a system."""
        return [backend for backend in BACKENDS if self.versions(system, backend)]

    @cached_property
    def systems(self) -> list[str]:
        """The systems that have tables, sorted."""
        return [system for system in sorted({table[0] for table in self._tables}) if self.backends(system)]

    def system_profile(self, system: str) -> dict[str, Any]:
        """Return the description of a system: `gpu`, `node` and `misc`, in bytes, FLOPS and seconds."""
        return _read_yaml(self.root / "systems" / f"{system}.yaml")

    @cached_property
    def models(self) -> list[str]:
        """The Hugging Face names of all shipped model configs, sorted."""
        matches = (_MODEL_FILE.fullmatch(path) for path, _ in self.record)
        names = {match.group(1) for match in matches if match}
        return sorted(name.replace("--", "/") for name in names if not name.endswith("_hf_quant"))

    def model_files(self, model: str) -> dict[str, str]:
        """Return the config files of a shipped model: file name -> text."""
        stem = self.root / "model_configs" / model.replace("/", "--")
        paths = {name: Path(f"{stem}_{name}") for name in ("config.json", "hf_quant_config.json")}
        return {name: path.read_text(encoding="utf-8") for name, path in paths.items() if path.is_file()}

    @cached_property
    def architectures(self) -> list[str]:
        """The architectures ("Qwen3ForCausalLM") that a config of one's own may have.

        They stand in a literal of `sdk/common.py`; it is parsed because importing it would load the package.
        """
        for node in ast.parse((self.root / "sdk" / "common.py").read_text(encoding="utf-8")).body:
            names = [getattr(target, "id", "") for target in getattr(node, "targets", [])]
            if names == ["ARCHITECTURE_TO_MODEL_FAMILY"] and isinstance(node, ast.Assign):
                keys = [key for key in cast(ast.Dict, node.value).keys if isinstance(key, ast.Constant)]
                return [key.value for key in keys if isinstance(key.value, str)]
        return []

    def incompatibility(self, model: str, system: str, backend: str, version: str) -> str | None:
        """Return why hardware or engine cannot run a shipped model at all, or None.

        Other failures of the support matrix are no verdict: a model that did not fit the number of
        devices tried there fails it too.
        """
        rows = [
            row
            for row in self._support(system)
            if (row["HuggingFaceID"], row["Backend"], row["Version"]) == (model, backend, version)
        ]
        if not rows or any(row["Status"] not in _INCOMPATIBLE for row in rows):
            return None
        last_line = rows[0]["ErrMsg"].replace("\\n", "\n").strip().rpartition("\n")[2]
        return re.sub(r"^[\w.]+(?:Error|Exception): ", "", last_line)

    def working_systems(self, model: str, backend: str) -> list[str]:
        """Return the systems on which the support matrix says that a shipped model works."""
        return [
            system
            for system in self.systems
            if any(
                row["HuggingFaceID"] == model and row["Backend"] == backend and row["Status"] in _WORKING
                for row in self._support(system)
            )
        ]

    def _support(self, system: str) -> list[dict[str, str]]:
        return _read_csv(self.root / "systems" / "support_matrix" / f"{system}.csv")


@cache
def installed_package() -> Package | None:
    """Return the installation of aiconfigurator-core, or None; nothing of it is imported.

    Raises
    ------
    ConfigError
        When it is installed in a way that leaves no list of files.
    """
    try:
        distribution = metadata.distribution(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return None
    files = distribution.files or []
    record = tuple((path.as_posix(), path.hash.value if path.hash else "") for path in files)
    root = Path(str(distribution.locate_file(_PACKAGE)))
    if not any(path.startswith(f"{_PACKAGE}/systems/") for path, _ in record):
        raise ConfigError(
            f"{DISTRIBUTION} {distribution.version} is installed without a list of its files, so its tables "
            f"cannot be identified; install the wheel: {INSTALL_COMMAND}"
        )
    return Package(distribution.version, root, record)


@cache
def _read_yaml(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    return cast(dict[str, Any], yaml.safe_load(path.read_text(encoding="utf-8")) or {})


@cache
def _read_csv(path: Path) -> list[dict[str, str]]:
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _version_key(version: str) -> tuple[int, ...]:
    """Order "0.5.6.post2" < "0.5.14" and "1.3.0rc20" < "1.3.0rc23" < "1.3.0"."""
    match = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?(?:rc(\d+))?", version)
    if match is None:
        return (0, 0, 0, 0, 0)
    major, minor, patch, candidate = match.groups()
    return (int(major), int(minor), int(patch or 0), candidate is None, int(candidate or 0))
