"""The points at which the roofline is held against measured silicon, and the silicon latencies at them."""

from __future__ import annotations

import json
import logging
import math
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from cache.errors import ShapecastError
from cache.shapes import ForwardShapeKey
from stages.parallelism import Parallelism
from stages.runners.aiconfigurator_package import installed_package
from stages.runners.aiconfigurator_spec import AIConfiguratorOptions
from stages.runners.base import Deployment
from stages.runners.model_config import known_model_names

DEVICES = ("A100-SXM-80G", "H100-SXM-80G", "H200-SXM-141G", "B200-SXM-180G", "L40S-48G")

PREFILL = [
    ForwardShapeKey(False, *shape)
    for shape in (
        (1, 256, 256),
        (1, 1024, 1024),
        (1, 1024, 8192),
        (1, 1024, 32768),
        (1, 4096, 4096),
        (1, 4096, 16384),
        (1, 8192, 8192),
        (1, 8192, 32768),
        (4, 1024, 1024),
        (4, 512, 4096),
        (16, 128, 128),
        (1, 2048, 65536),
    )
]
DECODE = [
    ForwardShapeKey(True, batch, 1, length) for batch in (1, 4, 16, 64, 256) for length in (1024, 8192, 32768)
]

FITTED, SEEN, BLIND = "fitted", "not fitted", "blind"
"""What a model is for: it chose the factors, it judged forms of the fit, or it was looked at once, last."""


class Formats(NamedTuple):
    """Number formats of a model, for both runners."""

    silicon: dict[str, str]
    roofline: dict[str, str]


BF16 = Formats(dict.fromkeys(("gemm", "moe", "kvcache", "fmha"), "bfloat16"), {})
FP8 = Formats(
    {"gemm": "fp8_block", "moe": "fp8_block", "kvcache": "bfloat16", "fmha": "bfloat16"},
    {"weights": "fp8", "activations": "fp8"},
)
# The tables have gpt-oss with the experts of its checkpoint only; INT4 is the roofline's nearest format.
MXFP4 = Formats({"gemm": "bfloat16", "kvcache": "bfloat16", "fmha": "bfloat16"}, {"weights": "int4"})


class Model(NamedTuple):
    """A model with its kind, what it is for, its formats, and how it is spread."""

    name: str
    kind: str
    use: str
    formats: Formats
    sizes: tuple[dict[str, int], ...]


MODELS = (
    Model("meta-llama/Llama-3.1-8B", "dense", FITTED, BF16, ({"tp": 1},)),
    Model("Qwen/Qwen3-32B", "dense", FITTED, BF16, ({"tp": 2}, {"tp": 4})),
    Model("Qwen/Qwen3-30B-A3B", "experts", FITTED, BF16, ({"tp": 1}, {"tp": 2}, {"tp": 4, "ep": 4})),
    Model("Qwen/Qwen3-8B", "dense", SEEN, BF16, ({"tp": 1}, {"tp": 2})),
    Model("meta-llama/Llama-3.1-70B", "dense", SEEN, BF16, ({"tp": 4}, {"tp": 8})),
    Model("Qwen/Qwen3-235B-A22B", "experts", SEEN, BF16, ({"tp": 4}, {"tp": 8, "ep": 8})),
    Model("mistralai/Mixtral-8x7B-v0.1", "experts", SEEN, BF16, ({"tp": 2}, {"tp": 4, "ep": 4})),
    Model("openai/gpt-oss-120b", "experts", SEEN, MXFP4, ({"tp": 2}, {"tp": 4})),
    Model("deepseek-ai/DeepSeek-V3", "experts, MLA", SEEN, FP8, ({"tp": 8}, {"tp": 8, "ep": 8})),
    Model("Qwen/Qwen3-1.7B", "dense", BLIND, BF16, ({"tp": 1},)),
    Model("meta-llama/Llama-3.1-405B", "dense", BLIND, BF16, ({"tp": 8},)),
    Model("Qwen/Qwen3-Coder-480B-A35B-Instruct", "experts", BLIND, BF16, ({"tp": 8}, {"tp": 8, "ep": 8})),
    Model("moonshotai/Kimi-K2-Instruct", "experts, MLA", BLIND, FP8, ({"tp": 8, "ep": 8},)),
)

COLUMNS = (
    "model",
    "kind",
    "use",
    "device",
    "sizes",
    "phase",
    "key",
    "silicon_ms",
    "silicon_communication_ms",
)


def deployments(
    models: Sequence[Model] = MODELS, devices: Sequence[str] = DEVICES
) -> Iterator[tuple[Model, Deployment, str]]:
    """Yield every model on every device, each way it is spread, and that way as text."""
    for model in models:
        for device in devices:
            for sizes in model.sizes:
                deployment = Deployment(_config_of(model.name), device, Parallelism(**sizes))
                yield model, deployment, json.dumps(sizes)


def _config_of(model: str) -> str:
    """Return the name of a model that shapecast ships, or a folder with the package's config."""
    package = installed_package()
    if package is None or model in known_model_names():
        return model
    name = model.replace("meta-llama/Llama-3.1", "meta-llama/Meta-Llama-3.1")
    folder = Path(tempfile.gettempdir(), "shapecast-accuracy", model.replace("/", "--"))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(package.model_files(name)["config.json"], encoding="utf-8")
    return str(folder)


def load_points(path: Path | None) -> pd.DataFrame:
    """Return the silicon latencies (ms), measured anew or kept in a Parquet file from an earlier run."""
    if path is not None and path.is_file():
        return pd.read_parquet(path)
    logging.disable(logging.WARNING)
    points = measure()
    if path is not None:
        points.to_parquet(path)
    return points


def measure(models: Sequence[Model] = MODELS, devices: Sequence[str] = DEVICES) -> pd.DataFrame:
    """Return the silicon latency of every point for which the package has figures, ms."""
    rows: list[dict[str, Any]] = []
    for model, deployment, sizes in deployments(models, devices):
        options = AIConfiguratorOptions.model_validate(
            {"kind": "aiconfigurator", "backend": "vllm", "quantization": model.formats.silicon}
        )
        try:
            runner = options.spec(deployment).build()
        except ShapecastError as error:
            print(f"left out: {model.name} on {deployment.device}, {deployment.parallelism}: {error}")
            continue
        for key in (*PREFILL, *DECODE):
            record = runner.forward(key)
            seconds = record.breakdowns.get("aiconfigurator")
            shape = json.dumps([key.is_decode, key.model_concurrency, key.query_len, key.seq_len])
            rows.append(
                dict(
                    zip(
                        COLUMNS,
                        (
                            model.name,
                            model.kind,
                            model.use,
                            deployment.device,
                            sizes,
                            "decode" if key.is_decode else "prefill",
                            shape,
                            record.latency_ms,
                            1000 * seconds["communication_bound"] if seconds else math.nan,
                        ),
                        strict=True,
                    )
                )
            )
    return pd.DataFrame(rows)
