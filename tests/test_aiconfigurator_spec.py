"""What a config asks of measured silicon is checked from files; the package itself never runs."""

from __future__ import annotations

import importlib.metadata
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from cache.errors import ConfigError, RunnerError
from stages.runners.aiconfigurator_package import KNOWN_RELEASES, installed_package
from stages.runners.aiconfigurator_spec import AIConfiguratorOptions
from stages.runners.registry import runner_options
from tests.aiconfigurator_cases import DENSE, deployment, install, options, package_files

ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def _forget_installation() -> Iterator[None]:
    installed_package.cache_clear()
    yield
    installed_package.cache_clear()


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install a miniature of the package in front of any real one."""
    folder = tmp_path / "site-packages"
    install(folder, package_files())
    monkeypatch.syspath_prepend(str(folder))
    return folder


@pytest.fixture
def not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", missing)


def reinstalled(folder: Path, path: str, text: str) -> str:
    """Return the release after one file of the installation changed."""
    install(folder, {**package_files(), path: text})
    installed_package.cache_clear()
    package = installed_package()
    assert package is not None
    return package.release


def refused(fields: dict[str, Any], **what: Any) -> str:
    with pytest.raises(ConfigError) as error:
        options(**fields).spec(deployment(**what))
    return str(error.value)


# --- what is available ------------------------------------------------------------------------------


@pytest.mark.usefixtures("installed")
def test_the_runner_is_known_by_its_kind() -> None:
    assert runner_options("aiconfigurator") is AIConfiguratorOptions


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("system", "backend", "versions"),
    [
        ("h100_sxm", "vllm", ["0.24.0", "0.27.0"]),  # the next version has tables on another system only
        ("h100_sxm", "sglang", ["0.5.14", "0.5.6.post2"]),  # the previous one is listed, and no newer one
        ("a100_sxm", "vllm", ["0.14.0"]),  # a system with versions of its own gets no next one
        ("a100_sxm", "sglang", []),
        ("h100_sxm", "trtllm", []),
    ],
)
def test_versions_are_current_next_previous(system: str, backend: str, versions: list[str]) -> None:
    package = installed_package()
    assert package is not None
    assert package.versions(system, backend) == versions


@pytest.mark.usefixtures("installed")
def test_models_and_devices_are_listed_with_what_they_are_for() -> None:
    models = AIConfiguratorOptions.known_models()
    assert models[0] == {"model": "Acme/Dense", "architecture": "Qwen3ForCausalLM"}
    assert [row["model"] for row in models] == [
        "Acme/Dense",
        "Acme/Dense-FP4",
        "Acme/Experts",
        "meta-llama/Meta-Llama-3.1-8B",
    ]
    assert AIConfiguratorOptions.known_devices()[2] == {
        "device": "h100_sxm",
        "device profile": "H100-SXM-80G",
        "memory (GiB)": "80",
        "vllm": "0.24.0, 0.27.0",
        "sglang": "0.5.14, 0.5.6.post2",
        "trtllm": "",
    }


# --- specs and identities ---------------------------------------------------------------------------


@pytest.mark.usefixtures("installed")
def test_the_backend_version_is_explicit_in_the_identity() -> None:
    implicit = options().spec(deployment()).identity()
    assert implicit.settings == {"backend": "vllm", "backend_version": "0.24.0"}
    assert implicit.id == options(backend_version="0.24.0").spec(deployment()).identity().id


@pytest.mark.usefixtures("installed")
def test_everything_that_can_change_a_latency_changes_the_identity(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(DENSE))
    own: dict[str, Any] = {"base_dir": tmp_path, "model": "config.json"}
    specs = [
        options().spec(deployment()),
        options(backend="sglang").spec(deployment()),
        options(backend_version="0.27.0").spec(deployment()),
        options(quantization={"kvcache": "fp8"}).spec(deployment()),
        options(reserved_memory_gb=1).spec(deployment()),
        options().spec(deployment(model="Acme/Experts")),
        options().spec(deployment(device="b200_sxm")),
        options().spec(deployment(tp=2)),
        options().spec(deployment(tp=2, ep=2)),
        options().spec(deployment(num_mtp_tokens=1)),
        options().spec(deployment(**own)),
    ]
    (tmp_path / "hf_quant_config.json").write_text("{}")
    specs.append(options().spec(deployment(**own)))
    assert len({spec.identity().id for spec in specs}) == len(specs)


@pytest.mark.usefixtures("installed")
def test_the_names_of_device_profiles_and_renamed_models_mean_the_same_table() -> None:
    own = options().spec(deployment("meta-llama/Llama-3.1-8B", "H100-SXM-80G"))
    package = options().spec(deployment("meta-llama/Meta-Llama-3.1-8B", "h100_sxm"))
    assert own.identity().id == package.identity().id


@pytest.mark.usefixtures("installed")
def test_a_config_of_ones_own_counts_by_content_and_travels_with_the_spec(tmp_path: Path) -> None:
    identities = set()
    for name, text in (("a", json.dumps(DENSE)), ("b", json.dumps(DENSE, indent=2))):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(text)
        for model in (name, f"{name}/config.json"):
            spec = options().spec(deployment(model, base_dir=tmp_path))
            assert pickle.loads(pickle.dumps(spec)) == spec
            assert dict(spec.model_files)["config.json"] == text
            identities.add(spec.identity().id)
    assert len(identities) == 1


@pytest.mark.parametrize("path", ["systems/data/h100_sxm/gemm/vllm/0.24.0/some_perf.parquet", "sdk/a.py"])
def test_a_changed_table_or_source_is_another_release(installed: Path, path: str) -> None:
    package = installed_package()
    assert package is not None
    assert reinstalled(installed, f"aiconfigurator_core/{path}", "changed") != package.release


@pytest.mark.parametrize("path", ["_engine.abi3.so", "__pycache__/common.pyc"])
def test_compiled_files_of_another_platform_are_the_same_release(installed: Path, path: str) -> None:
    package = installed_package()
    assert package is not None
    assert reinstalled(installed, f"aiconfigurator_core/{path}", "another platform") == package.release


# --- refusals ---------------------------------------------------------------------------------------


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("fields", "what", "sentence"),
    [
        ({}, {"device": "h1000_sxm"}, "Unknown device 'h1000_sxm': close names are h100_sxm, a100_sxm,"),
        (
            {"backend": "trtllm"},
            {},
            "has no figures of trtllm on h100_sxm; there are figures of vllm, sglang.",
        ),
        ({"backend_version": "0.19.0"}, {}, "has no vllm 0.19.0 on h100_sxm; available are 0.24.0, 0.27.0."),
        ({}, {"model": "Acme/Dens"}, "Unknown model 'Acme/Dens': close names are Acme/Dense"),
        (
            {},
            {"model": "./nowhere"},
            "nowhere is no model config; give an existing config.json, or its folder.",
        ),
        ({}, {"tp": 16}, "tp is 16, which does not divide the 24 attention heads of Acme/Dense;"),
        ({}, {"tp": 3}, "tp is 3; the memory model of aiconfigurator-core knows tp 1, 2, 4, 8 and above."),
        ({}, {"model": "Acme/Experts", "tp": 8, "ep": 8}, "ep is 8, which does not divide the 12 experts"),
        ({}, {"tp": 4, "moe_tp": 2, "moe_dp": 2}, "moe_dp is 2; the aiconfigurator runner spreads experts"),
        (
            {},
            {"model": "Acme/Dense-FP4"},
            "does not run on h100_sxm with vllm 0.24.0 (h100_sxm lacks FP4); it runs on b200_sxm.",
        ),
        ({"package_version": "0.11.0"}, {}, "runner.package_version is '0.11.0', which is not installed"),
    ],
)
def test_what_cannot_be_asked_is_refused_with_what_can(
    fields: dict[str, Any], what: dict[str, Any], sentence: str
) -> None:
    assert sentence in refused(fields, **what)


@pytest.mark.usefixtures("installed")
def test_formats_of_ones_own_are_not_held_to_the_verdict_on_the_checkpoint() -> None:
    spec = options(quantization={"gemm": "bfloat16"}).spec(deployment("Acme/Dense-FP4"))
    assert spec.quantization.gemm == "bfloat16"


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "is no JSON"),
        ("[]", "holds a list"),
        ('{"architectures": ["OtherForCausalLM"]}', "has the architecture OtherForCausalLM, which"),
        ("{}", "has the architecture none, which"),
    ],
)
def test_a_config_that_the_package_cannot_take_is_refused(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "config.json").write_text(text)
    assert sentence in refused({}, model="config.json", base_dir=tmp_path)


@pytest.mark.parametrize(
    "fields",
    [
        {"backend": "tgi"},
        {"quantization": {"gemm": "fp7"}},
        {"quantization": {"weights": "fp8"}},
        {"reserved_memory_gb": -1},
        {"block_size": 16},
    ],
)
def test_unknown_fields_and_values_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        options(**fields)


# --- without the package ----------------------------------------------------------------------------


@pytest.mark.usefixtures("not_installed")
def test_a_missing_package_names_the_command_that_installs_it() -> None:
    command = r"pip install 'shapecast\[silicon\]'$"
    with pytest.raises(ConfigError, match=command):
        options().spec(deployment())
    with pytest.raises(ConfigError, match=command):
        options(package_version="0.12.0").spec(deployment())
    with pytest.raises(ConfigError, match=command):
        AIConfiguratorOptions.known_models()
    spec = options(package_version="0.12.0", backend_version="0.24.0").spec(deployment())
    with pytest.raises(RunnerError, match=command):
        spec.build()


@pytest.mark.usefixtures("not_installed")
@pytest.mark.parametrize("wanted", ["0.12.0", KNOWN_RELEASES["0.12.0"]])
def test_a_named_version_gives_the_identity_of_the_records_made_with_it(wanted: str) -> None:
    spec = options(package_version=wanted, backend_version="0.24.0").spec(deployment("Qwen/Qwen3-32B"))
    assert spec.identity().packages == {"aiconfigurator-core": KNOWN_RELEASES["0.12.0"]}


def test_an_uninstalled_package_leads_to_the_same_identity_as_an_installed_one(
    installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = options().spec(deployment("Acme/Dense", "H100-SXM-80G", tp=2)).identity()
    monkeypatch.undo()  # takes the installation off the path
    installed_package.cache_clear()
    fields = {"package_version": here.packages["aiconfigurator-core"], "backend_version": "0.24.0"}
    there = options(**fields).spec(deployment("Acme/Dense", "H100-SXM-80G", tp=2)).identity()
    assert there.id == here.id
    assert installed.is_dir()


@pytest.mark.usefixtures("installed")
def test_another_installed_release_than_the_config_names_computes_nothing() -> None:
    spec = options(package_version="0.12.0", backend_version="0.24.0").spec(deployment())
    with pytest.raises(RunnerError, match=r"is installed, but the config asks for 0\.12\.0\+.*; take runner"):
        spec.build()


@pytest.mark.usefixtures("installed")
def test_a_package_that_cannot_be_imported_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aiconfigurator_core.sdk", None)
    with pytest.raises(RunnerError, match=r"0\.12\.7 is installed but cannot be imported .*; reinstall it"):
        options().spec(deployment()).build()


def test_specs_and_identities_import_neither_the_package_nor_the_runner(installed: Path) -> None:
    script = """
import sys
from tests.aiconfigurator_cases import deployment, options
print(options().spec(deployment()).identity().id)
print(sorted(name for name in sys.modules if "aiconfigurator" in name and "cases" not in name))
"""
    environment = {**os.environ, "PYTHONPATH": f"{installed}{os.pathsep}{ROOT}"}
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    identity, modules = done.stdout.splitlines()
    assert identity == options().spec(deployment()).identity().id
    assert modules == str([f"stages.runners.aiconfigurator_{name}" for name in ("model", "package", "spec")])
