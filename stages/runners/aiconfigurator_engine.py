"""aiconfigurator-core behind an interface of our own: the one module that calls it.

What its arguments mean, found in version 0.12.0 and pinned by tests/test_aiconfigurator_engine.py:

- Latencies are milliseconds, memory is bytes; a batch is what one data-parallel replica works on at a time.
- `isl` is the whole sequence and `prefix` the part of it that is in the KV cache already, so a prefill
  of q new tokens up to length s is `predict_prefill_latency(batch, isl=s, prefix=s - q)`.
- `predict_decode_latency(batch, isl, osl=2)` is one decode step of requests that have isl tokens cached;
  its attention reads isl + 1 tokens. A decode step up to length s is isl = s - q, with MTP too: there the
  estimator itself makes nextn + 1 tokens of each request.
- The latency of a model in pipeline stages is that of the batch going through all of them, one after the
  other, with the transfers between them.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
import weakref
from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache
from math import fsum
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from stages.runners.aiconfigurator_package import Package
from stages.runners.roofline_batch import Segments

if TYPE_CHECKING:
    from stages.runners.aiconfigurator_spec import AIConfiguratorSpec

COMMUNICATION = frozenset({"CustomAllReduce", "Nccl", "P2P", "MoeDispatch", "MoeAllToAll"})
"""Kinds of operators that move data between devices."""

_BY_REQUEST = frozenset({"Fallback", "Gdn", "Kda", "Mamba2"})  # besides those with "Context" in their name
_NO_LIMIT_BYTES = 1 << 60  # the memory model answers nothing at all when weights exceed the real capacity
_PROBE_TOKENS = 16
_STEP_SIZES_KEPT = 4096


Row = tuple[str, float, float, str]
"""Operator as the package answers: name, latency in ms, energy in mJ, source."""


class Operator(NamedTuple):
    """One operator in a pass, summed over layers.

    Parameters
    ----------
    name : str
        As the package names it ("context_qkv_gemm").
    latency_ms : float
        Time of all its layers.
    source : str
        Where the package has the time from ("silicon", "empirical", "estimated", "mixed", "sol").
    bound : str or None
        The bound type, None where the package does not tell.
    """

    name: str
    latency_ms: float
    source: str
    bound: str | None


class StepMemory(NamedTuple):
    """What a step needs on one device besides the KV cache, in bytes."""

    weights: float
    activations: float
    overhead: float


class Engine:
    """One compiled deployment.

    Parameters
    ----------
    spec : AIConfiguratorSpec
        The deployment.
    package : Package
        The installation, of the release that the spec names.

    Raises
    ------
    Exception
        Whatever the package raises when it has no figures for the deployment: both phases are tried.
    """

    def __init__(self, spec: AIConfiguratorSpec, package: Package) -> None:
        from aiconfigurator_core.sdk import EngineHandle, compile_engine
        from aiconfigurator_core.sdk.config_builders import apply_nextn, build_model_config
        from aiconfigurator_core.sdk.engine import build_ops_json
        from aiconfigurator_core.sdk.models import get_model

        self._spec = spec
        self._path = self._model_path(package)
        self._sizes: dict[str, Any] = {
            "tp_size": spec.parallelism.tp,
            "pp_size": spec.parallelism.pp,
            "attention_dp_size": spec.parallelism.dp,
            "moe_tp_size": spec.parallelism.moe_tp,
            "moe_ep_size": spec.parallelism.ep,
            **{f"{name}_quant_mode": mode for name, mode in spec.quantization.model_dump().items()},
        }
        self._sizes["fmha_quant_mode"] = self._attention_format(build_model_config(**self._sizes))
        config = build_model_config(**self._sizes)
        apply_nextn(config, spec.num_mtp_tokens)
        self._sizes["nextn"] = spec.num_mtp_tokens
        self._model = get_model(self._path, config, spec.backend)
        self._handle = EngineHandle(
            compile_engine(self._path, spec.system, spec.backend, spec.backend_version, **self._sizes)
        )
        self.step_memory = lru_cache(_STEP_SIZES_KEPT)(self._step_memory)
        """What a step of so many tokens needs besides the KV cache, a `StepMemory`."""
        self._phases = {
            is_decode: _Phase(self._handle, not is_decode, build_ops_json(operators))
            for is_decode, operators in ((False, self._model.context_ops), (True, self._model.generation_ops))
        }
        self._probe()

    @property
    def operator_kinds(self) -> frozenset[str]:
        """Kinds of all operators of the model ("Gemm", "MlaModuleContext")."""
        return frozenset().union(*(phase.all_kinds for phase in self._phases.values()))

    def prefill(self, segments: Segments) -> tuple[float, list[Operator]]:
        """Return the latency of a prefill in ms and its operators.

        The package knows batches of one length. Of a batch of several, operators that go token by token are
        those of all tokens; of attention and its like, each request costs its share of a batch as large as
        this one, all of its own length. For one length that is what the package answers.

        Parameters
        ----------
        segments : tuple of (query_len, seq_len, requests)
            One micro-batch of one data-parallel replica.
        """
        requests = sum(count for _, _, count in segments)
        tokens = sum(query_len * count for query_len, _, count in segments)
        if len(segments) == 1:
            ((query_len, seq_len, _),) = segments
            cached = seq_len - query_len
            latency_ms = self._handle.predict_prefill_latency(requests, seq_len, cached)
            rows, _ = self._handle.run_static_per_op(
                batch_size=requests, isl=seq_len, osl=1, prefix=cached, mode="static_ctx"
            )
        else:
            rows = self._phases[False].rows_of_several_lengths(segments, requests, tokens)
            latency_ms = fsum(row[1] for row in rows)
            cached = sum((seq_len - query_len) * count for query_len, seq_len, count in segments) // requests
        return latency_ms, self._phases[False].operators(rows, requests, -(-tokens // requests), cached)

    def decode(self, requests: int, cached: int) -> tuple[float, list[Operator]]:
        """Return the latency in ms of a decode step, and its operators.

        Parameters
        ----------
        requests : int
            Requests of one micro-batch of one data-parallel replica.
        cached : int
            Tokens per request in the KV cache before the step.
        """
        latency_ms = self._handle.predict_decode_latency(requests, cached, 2)
        rows = self._handle.decode_step_per_op(requests, cached, 1)
        return latency_ms, self._phases[True].operators(rows, requests, cached + 1, 0)

    def kv_cache_bytes(self, seq_len: int) -> float:
        """Return the KV cache of one request on one device, all layers, in bytes."""
        return float(self._model.get_kvcache_bytes_per_sequence(seq_len))

    def _step_memory(self, step_tokens: int) -> StepMemory:
        from aiconfigurator_core.sdk import estimate_kv_cache

        spec = self._spec
        parts = estimate_kv_cache(
            self._path,
            spec.system,
            spec.backend,
            spec.backend_version,
            max_num_tokens=step_tokens,
            max_batch_size=1,
            memory_fraction_kind="of_free" if spec.backend == "trtllm" else "of_total",
            memory_fraction_value=1.0,
            gpu_memory_capacity_bytes_override=_NO_LIMIT_BYTES,
            **self._sizes,
        )["memory_breakdown"]
        return StepMemory(
            parts["weights_bytes"],
            parts["activations_bytes"],
            parts["runtime_overhead_bytes"] + parts["comm_overhead_bytes"],
        )

    def _model_path(self, package: Package) -> str:
        """Return the name, or a folder with the config, that the package reads without asking the network."""
        from aiconfigurator_core.sdk.common import DefaultHFModels

        files = dict(self._spec.model_files)
        if not files and self._spec.model in DefaultHFModels:
            return self._spec.model
        # The package ships a few configs that its own list of names lacks; by name it would download them.
        folder = tempfile.mkdtemp(prefix="shapecast-")
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        for name, text in (files or package.model_files(self._spec.model)).items():
            Path(folder, name).write_text(text, encoding="utf-8")
        return folder

    def _attention_format(self, config: Any) -> str | None:
        """Return the number format of prefill attention: asked for, or one that the tables have.

        Checkpoints with FP8 weights imply FP8 attention, which not every engine has tables of. The package's
        own planner then takes BF16, and so does this.
        """
        from aiconfigurator_core.sdk import perf_database
        from aiconfigurator_core.sdk.models import resolve_context_fmha_by_data

        spec = self._spec
        database = perf_database.get_database(spec.system, spec.backend, spec.backend_version)
        resolve_context_fmha_by_data(config, self._path, database, spec.backend, is_context_role=True)
        return config.fmha_quant_mode.name if config.fmha_quant_mode else None

    def _probe(self) -> None:
        """Ask for one small pass of each phase, so that missing tables are found before any shape."""
        self.prefill(((_PROBE_TOKENS, _PROBE_TOKENS, 1),))
        self.decode(1, _PROBE_TOKENS)
        self.step_memory(_PROBE_TOKENS)


class _Phase:
    """The operators of prefill or of decode, and what bounds them.

    An operator counts whole for what bounds it in the package's own roofline: memory, where that takes at
    least as long as arithmetic. The package does not model vector units apart from memory.
    """

    def __init__(self, handle: Any, is_context: bool, operators_json: str) -> None:
        self._handle = handle
        self._is_context = is_context
        operators: list[dict[str, Any]] = json.loads(operators_json)
        kinds = [next(iter(operator)) for operator in operators]
        names = [fields["name"] for operator in operators for fields in operator.values()]
        self._by_request = [i for i, kind in enumerate(kinds) if "Context" in kind or kind in _BY_REQUEST]
        self._logits = [i for i, name in enumerate(names) if "logits" in name]
        self._by_token = sorted({*range(len(operators))} - {*self._by_request, *self._logits})
        moving = [operator for operator in operators if next(iter(operator)) in COMMUNICATION]
        self._moving = frozenset(fields["name"] for operator in moving for fields in operator.values())
        computing = [operator for operator in operators if operator not in moving]
        self._with_roofline = json.dumps([operator for operator in computing if self._has_roofline(operator)])
        # Blocks nest operators; all of their kinds read tables.
        self.all_kinds = frozenset(re.findall(r'"([A-Z]\w*)"\s*:\s*\{', operators_json))

    def operators(self, rows: Sequence[Row], requests: int, tokens: int, cached: int) -> list[Operator]:
        """Return the rows of a pass with the bound type of each, for requests of so many new tokens."""
        rooflines = self._rooflines(self._with_roofline, requests, tokens, cached)
        bounds = {
            name: "memory_bound" if memory_ms >= arithmetic_ms else "compute_bound_mma"
            for name, _, arithmetic_ms, memory_ms in rooflines
        }
        bounds.update(dict.fromkeys(self._moving, "communication_bound"))
        return [Operator(name, latency_ms, source, bounds.get(name)) for name, latency_ms, _, source in rows]

    def rows_of_several_lengths(self, segments: Segments, requests: int, tokens: int) -> list[Row]:
        """Return the rows of a prefill whose requests differ in length; see `Engine.prefill`."""
        evaluate = self._handle.evaluate_context_ops
        rows: list[Row] = [
            *evaluate(self._by_token, batch_size=1, s=tokens),
            *evaluate(self._logits, batch_size=requests, s=1),
        ]
        shares: defaultdict[str, list[float]] = defaultdict(list)
        for query_len, seq_len, count in segments:
            for name, latency_ms, *_ in evaluate(
                self._by_request, batch_size=requests, s=query_len, prefix=seq_len - query_len
            ):
                shares[name].append(latency_ms * count / requests)
        return rows + [(name, fsum(parts), 0.0, "mixed") for name, parts in shares.items()]

    def _has_roofline(self, operator: dict[str, Any]) -> bool:
        try:
            self._rooflines(json.dumps([operator]), 1, _PROBE_TOKENS, 0)
        except Exception:  # the package raises for kinds whose roofline it does not give
            return False
        return True

    def _rooflines(self, operators: str, requests: int, tokens: int, cached: int) -> Sequence[Any]:
        rooflines: Sequence[Any] = self._handle.evaluate_ops_sol_json(
            operators, is_context=self._is_context, batch_size=requests, s=tokens, prefix=cached
        )
        return rooflines
