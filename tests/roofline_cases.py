"""What the roofline tests share: deployments of shipped and of small made-up models."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from stages.parallelism import Parallelism
from stages.runners.architecture import LayerKind, ModelArchitecture
from stages.runners.base import Deployment
from stages.runners.device import DeviceProfile
from stages.runners.roofline_spec import RooflineOptions, RooflineSpec

DENSE = LayerKind(has_experts=False, is_sliding=False)


def spec(
    model: str = "Llama-3.1-8B",
    device: str = "H100-SXM-80G",
    parallelism: Parallelism | None = None,
    num_mtp_tokens: int = 0,
    **options: Any,
) -> RooflineSpec:
    deployment = Deployment(model, device, parallelism or Parallelism(), num_mtp_tokens)
    return RooflineOptions.model_validate({"kind": "roofline", **options}).spec(deployment)


def with_device(base: RooflineSpec, **changes: Any) -> RooflineSpec:
    return replace(base, device=DeviceProfile.model_validate(base.device.model_dump() | changes))


def without_overhead(base: RooflineSpec) -> RooflineSpec:
    return with_device(base, operator_overhead_us=0.0)


def with_model(base: RooflineSpec, **changes: Any) -> RooflineSpec:
    return replace(base, architecture=replace(base.architecture, **changes))


def small_model(**changes: Any) -> ModelArchitecture:
    """Return a model whose work can be computed by hand."""
    model = ModelArchitecture(
        architecture="LlamaForCausalLM",
        digest="small",
        hidden_size=64,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        intermediate_size=128,
        vocab_size=1000,
        layers=(DENSE,) * 2,
    )
    return replace(model, **changes)
