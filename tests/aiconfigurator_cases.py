"""A miniature installation of aiconfigurator-core, and deployments, for tests that need no package."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

from stages.parallelism import Parallelism
from stages.runners.aiconfigurator_spec import AIConfiguratorOptions
from stages.runners.base import Deployment

VERSION = "0.12.7"

DENSE = {"architectures": ["Qwen3ForCausalLM"], "num_attention_heads": 24, "num_hidden_layers": 4}
EXPERTS = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "text_config": {"num_attention_heads": 32, "num_experts": 12, "num_hidden_layers": 4},
}

_NEVER_RUN = 'raise ImportError("read, never run")\n'

_VERSIONS = """
defaults:
  vllm: {current: "0.24.0", previous: null}
  sglang: {current: "0.5.14", previous: "0.5.6.post2"}
overrides:
  a100_sxm:
    vllm: {current: "0.14.0", previous: null}
"""

_SUPPORT = """HuggingFaceID,Architecture,System,Backend,Version,Mode,Status,ErrMsg,Command,Source
Acme/Dense-FP4,Qwen3,{system},vllm,0.24.0,agg,{status},"Traceback\\nx.SomeError: {system} lacks FP4",,
"""

_TABLES = {
    "a100_sxm/gemm/vllm/0.14.0": "",
    "b200_sxm/gemm/vllm/0.24.0": "",
    "b200_sxm/kda/vllm/0.27.0": "",  # one operator's tables of a newer version
    "h100_sxm/gemm/vllm/0.24.0": "",
    "h100_sxm/gemm/sglang/0.5.14": "",
    "h100_sxm/moe/sglang/0.5.6.post2": "",
}


def package_files() -> dict[str, str]:
    """Return the files of the installation: path -> text."""
    files = {
        "sdk/common.py": _NEVER_RUN
        + 'ARCHITECTURE_TO_MODEL_FAMILY = {"Qwen3ForCausalLM": "LLAMA", "Qwen3MoeForCausalLM": "MOE"}\n',
        "__init__.py": _NEVER_RUN,
        "systems/query_versions.yaml": _VERSIONS,
        "systems/support_matrix/h100_sxm.csv": _SUPPORT.format(system="h100_sxm", status="HW_INCOMPATIBLE"),
        "systems/support_matrix/b200_sxm.csv": _SUPPORT.format(system="b200_sxm", status="PASS"),
        "model_configs/Acme--Dense_config.json": json.dumps(DENSE),
        "model_configs/Acme--Dense-FP4_config.json": json.dumps(DENSE),
        "model_configs/Acme--Dense-FP4_hf_quant_config.json": "{}",
        "model_configs/Acme--Experts_config.json": json.dumps(EXPERTS),
        "model_configs/meta-llama--Meta-Llama-3.1-8B_config.json": json.dumps(DENSE),
    }
    for system in {name.partition("/")[0] for name in _TABLES}:
        files[f"systems/{system}.yaml"] = "gpu: {mem_capacity: 85899345920}\n"
    files.update({f"systems/data/{folder}/some_perf.parquet": text for folder, text in _TABLES.items()})
    return {f"aiconfigurator_core/{name}": text for name, text in files.items()}


def install(folder: Path, files: dict[str, str], version: str = VERSION) -> None:
    """Write a distribution with a RECORD, as an installer does."""
    info = f"aiconfigurator_core-{version}.dist-info"
    metadata = f"Metadata-Version: 2.4\nName: aiconfigurator-core\nVersion: {version}\n"
    all_files = {**files, f"{info}/METADATA": metadata}
    for name, text in all_files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    rows = [
        f"{name},sha256={sha256(text.encode()).hexdigest()},{len(text)}" for name, text in all_files.items()
    ]
    (folder / info / "RECORD").write_text("\n".join([*rows, f"{info}/RECORD,,"]), encoding="utf-8")


def options(**fields: Any) -> AIConfiguratorOptions:
    """Return options as a sweep config gives them."""
    return AIConfiguratorOptions.model_validate({"kind": "aiconfigurator", **fields})


def deployment(
    model: str = "Acme/Dense",
    device: str = "h100_sxm",
    base_dir: Path = Path(),
    num_mtp_tokens: int = 0,
    **sizes: int,
) -> Deployment:
    """Return a deployment with the given parallel sizes."""
    return Deployment(model, device, Parallelism(**sizes), num_mtp_tokens, base_dir)
