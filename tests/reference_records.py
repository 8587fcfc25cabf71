"""The reference's real forward records as specs, keys and errors of the msmodeling runner."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from cache.shapes import ForwardLatencyRecord, ForwardShapeKey
from stages.parallelism import Parallelism
from stages.runners.base import Deployment
from stages.runners.msmodeling_spec import MsModelingOptions, MsModelingSpec

DATA = Path(__file__).parent / "data"


def reference_identities() -> list[dict[str, Any]]:
    """Return the identities of reference_cases.json."""
    content = json.loads((DATA / "reference_cases.json").read_text(encoding="utf-8"))
    return list(content["identities"])


def reference_rows(identity: str) -> list[dict[str, Any]]:
    """Return the recorded rows of an identity, in the order they were recorded."""
    records = pd.read_parquet(DATA / "reference_records.parquet")
    return [dict(row) for row in records[records["identity"] == identity].to_dict("records")]


def reference_spec(identity: dict[str, Any]) -> MsModelingSpec:
    """Return the spec of an identity of reference_cases.json."""
    options = MsModelingOptions(quantize_linear_action=identity.get("quantize_linear", "W8A8_DYNAMIC"))
    parallelism = Parallelism(
        tp=identity["tp"], dp=identity["num_devices"] // identity["tp"], ep=identity.get("ep", 1)
    )
    return options.spec(
        Deployment(identity["model"], identity["device"], parallelism, identity.get("num_mtp_tokens", 0))
    )


def reference_key(row: dict[str, Any]) -> ForwardShapeKey:
    """Return the shape of a row of reference_records.parquet."""
    return ForwardShapeKey(
        bool(row["is_decode"]), int(row["model_concurrency"]), int(row["query_len"]), int(row["seq_len"])
    )


def relative_error(record: ForwardLatencyRecord, row: dict[str, Any]) -> float:
    """Return the worst relative error of latency and breakdown; infinite where a part is missing."""
    expected, got = _flat(json.loads(row["raw_breakdowns"])), _flat(record.breakdowns)
    if expected.keys() != got.keys():
        return float("inf")
    pairs = [(record.latency_ms, row["latency_ms"]), *((got[part], expected[part]) for part in expected)]
    return max(abs(a - b) / max(abs(b), sys.float_info.min) if a != b else 0.0 for a, b in pairs)


def _flat(breakdowns: Mapping[str, Mapping[str, float]]) -> dict[tuple[str, str], float]:
    return {(name, bound): seconds for name, parts in breakdowns.items() for bound, seconds in parts.items()}


def memory_differences_gb(record: ForwardLatencyRecord, row: dict[str, Any]) -> dict[str, float]:
    """Return how far each memory part is from the row's, GiB; what is left is activation's complement."""
    memory = record.memory
    assert memory is not None
    return {
        "total": abs(memory.total_gb - row["total_device_memory_gb"]),
        "weight": abs(memory.weight_gb - row["model_weight_size_gb"]),
        "kv_cache": abs(memory.kv_cache_gb - row["kv_cache_size_gb"]),
        "reserved": abs(memory.reserved_gb - row["reserved_memory_gb"]),
        "activation": abs(memory.activation_gb - row["model_activation_size_gb"]),
        "left and activation": abs(
            record.memory_left_gb
            + memory.activation_gb
            - row["memory_left_gb"]
            - row["model_activation_size_gb"]
        ),
    }
