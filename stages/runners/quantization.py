"""Number formats of weights, activations and KV cache, and how many bytes they take."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, model_validator

INT4_GROUP_SIZE = 128
"""Weights that share one BF16 scale: the usual group of GPTQ (arXiv:2210.17323), AWQ (arXiv:2306.00978)."""

BF16_BYTES = 2.0

BYTES_PER_NUMBER = {"bf16": BF16_BYTES, "fp8": 1.0, "int8": 1.0, "int4": 0.5 + BF16_BYTES / INT4_GROUP_SIZE}
"""Bytes per number. Scales of FP8 and INT8 (per channel, or per block of 128 x 128) are too few to count."""


class Quantization(BaseModel):
    """Number formats of a deployment.

    Linear layers of attention, MLPs and experts take `weights` and `activations`; embedding, router,
    norms and LM head stay BF16, as in published FP8 checkpoints (DeepSeek-V3, arXiv:2412.19437, section
    3.3.1). Weights in a format other than the activations' are converted on the way to the matrix units:
    they are read in their own format and multiplied in the activations'.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    weights: Literal["bf16", "fp8", "int8", "int4"] = "bf16"
    activations: Literal["bf16", "fp8", "int8"] = "bf16"
    kv_cache: Literal["bf16", "fp8"] = "bf16"

    @model_validator(mode="after")
    def _formats_fit(self) -> Quantization:
        if self.activations != "bf16" and self.weights != self.activations:
            raise ValueError(
                f"activations {self.activations} need weights {self.activations}, not {self.weights}; "
                f"set weights to {self.activations} or activations to bf16"
            )
        return self

    @property
    def weight_bytes(self) -> float:
        """Bytes per weight of a linear layer."""
        return BYTES_PER_NUMBER[self.weights]

    @property
    def activation_bytes(self) -> float:
        """Bytes per number that goes into a linear layer."""
        return BYTES_PER_NUMBER[self.activations]

    @property
    def kv_cache_bytes(self) -> float:
        """Bytes per number in the KV cache."""
        return BYTES_PER_NUMBER[self.kv_cache]

    def __str__(self) -> str:
        return f"W {self.weights} | A {self.activations} | KV {self.kv_cache}"
