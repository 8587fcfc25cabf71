"""The `aiconfigurator` runner: forward records from measured operator tables.

Only `AIConfiguratorSpec.build` imports this module; the package itself is called in
`stages.runners.aiconfigurator_engine`, which says what its arguments mean.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from collections import defaultdict
from collections.abc import Iterable
from math import fsum
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from cache.errors import RunnerError
from cache.shapes import BOUND_TYPES, DeviceMemory, ForwardLatencyRecord, ForwardShapeKey
from stages.runners.aiconfigurator_chatter import quiet, relevant_warnings, tell_once
from stages.runners.aiconfigurator_engine import Engine, Operator, StepMemory
from stages.runners.aiconfigurator_package import DISTRIBUTION, INSTALL_COMMAND, Package, installed_package
from stages.runners.roofline_batch import Batch, Segments, micro_batch, replica_segments

if TYPE_CHECKING:
    from stages.runners.aiconfigurator_spec import AIConfiguratorSpec

ESTIMATOR = "aiconfigurator"
"""Name of the breakdown in a record."""

SOURCES = {
    "silicon": "measured",  # read from a table of measurements, or from between its points
    "empirical": "interpolated",  # a roofline times a utilization that was measured elsewhere
    "estimated": "interpolated",  # put together from measured parts
    "mixed": "interpolated",  # a sum of several of these
    "sol": "analytic",  # a roofline alone
}
"""Source of an operator's latency in the package (`sdk/performance_result.py`) -> kind in a record."""

_log = logging.getLogger(__name__)
_building = threading.Lock()  # the package fills its process-wide caches of tables without one
_table_warnings: defaultdict[tuple[str, str, str], list[str]] = defaultdict(list)

_GIB = float(1 << 30)
# Each changes the package's answers, and none is part of a record's identity.
_ENVIRONMENT = (
    "AICONFIGURATOR_SYSTEMS_PATH",
    "AICONFIGURATOR_MODEL_CONFIGS_PATH",
    "AIC_STRICT_PROVENANCE",
    "AIC_DSV4_TOPK_CORRECTION",
    "AIC_FPM_FAKE_FALLBACK_RAW",
)


class Estimator(Protocol):
    """What the runner asks of `stages.runners.aiconfigurator_engine.Engine`."""

    def prefill(self, segments: Segments, /) -> tuple[float, list[Operator]]:
        """Return the latency of a prefill in ms and its operators."""
        ...

    def decode(self, requests: int, cached: int) -> tuple[float, list[Operator]]:
        """Return the latency of a decode step in ms and its operators."""
        ...

    def step_memory(self, step_tokens: int, /) -> StepMemory:
        """Return what a step needs besides the KV cache."""
        ...

    def kv_cache_bytes(self, seq_len: int) -> float:
        """Return the KV cache of one request over all layers."""
        ...

    @property
    def operator_kinds(self) -> frozenset[str]:
        """Kinds of all operators of the model."""
        ...


class AIConfiguratorRunner:
    """Answers forward shapes of one deployment.

    A key's concurrency is that of all data-parallel replicas; the fullest, with ceil(concurrency / dp)
    requests, sets the latency. Over pp pipeline stages these run as pp micro-batches of ceil(requests / pp),
    one in each stage at a time, so that all get through in the time that one micro-batch takes for all
    stages, which is what the package answers.

    Parameters
    ----------
    spec : AIConfiguratorSpec
        The deployment.
    estimator : Estimator
        What answers for one data-parallel rank of it.
    capacity_bytes : float
        Memory of one device.
    """

    def __init__(self, spec: AIConfiguratorSpec, estimator: Estimator, capacity_bytes: float) -> None:
        self._spec = spec
        self._estimator = estimator
        self._capacity_bytes = capacity_bytes

    def forward(self, key: ForwardShapeKey) -> ForwardLatencyRecord:
        """Return the record of one forward pass.

        Raises
        ------
        RunnerError
            For images, a decode step of another number of tokens, or a shape without figures.
        """
        self._check(key)
        segments = replica_segments(key, self._spec.parallelism.dp)
        batch = micro_batch(key, segments, self._spec.parallelism)
        with quiet() as messages:
            try:
                if key.is_decode:
                    cached = key.seq_len - key.query_len
                    latency_ms, operators = self._estimator.decode(self._decoding(key, batch), cached)
                else:
                    latency_ms, operators = self._estimator.prefill(batch.segments)
                memory = self._memory(segments, batch.tokens)
            except Exception as error:
                raise RunnerError(
                    f"{DISTRIBUTION} {self._spec.release} cannot answer for {self._spec.model} on "
                    f"{self._spec.system}, {key} ({_reason(error)}); leave this shape out of the sweep."
                ) from error
        tell_once(_log, relevant_warnings(messages, self._estimator.operator_kinds))
        seconds = bound_seconds(operators)
        return ForwardLatencyRecord(
            latency_ms=latency_ms,
            memory_left_gb=memory.total_gb
            - (memory.weight_gb + memory.kv_cache_gb + memory.activation_gb + memory.reserved_gb),
            breakdowns={ESTIMATOR: seconds} if seconds else {},
            memory=memory,
            sources=source_shares(operators),
        )

    def _check(self, key: ForwardShapeKey) -> None:
        if key.image_batch_size is not None or key.image_height is not None or key.image_width is not None:
            raise RunnerError(f"The aiconfigurator runner answers for text only, not for {key}.")
        if key.is_decode and key.segments is not None:
            raise RunnerError(f"The aiconfigurator runner answers for decode of one length, not for {key}.")
        step_tokens = self._spec.num_mtp_tokens + 1
        if key.is_decode and self._spec.num_mtp_tokens and key.query_len != step_tokens:
            raise RunnerError(
                f"A {key} was asked of a runner whose decode steps have {step_tokens} tokens per request "
                "(num_mtp_tokens + 1); build one with the num_mtp_tokens of the workload."
            )

    def _decoding(self, key: ForwardShapeKey, batch: Batch) -> int:
        """Return how many requests of one token each a decode step is, as the package counts.

        With multi-token prediction the package itself multiplies the requests. A block of a draft model is
        not part of its deployment, so here the target model checks it the same way: as that many requests.
        """
        return batch.requests * (1 if self._spec.num_mtp_tokens else key.query_len)

    def _memory(self, segments: Segments, step_tokens: int) -> DeviceMemory:
        """Return the memory parts of one device.

        The package's overheads of runtime and communication library count as reserved. Its KV bytes are those
        of all layers, of which each pipeline stage holds its share.
        """
        step = self._estimator.step_memory(step_tokens)
        kv_bytes = fsum(count * self._estimator.kv_cache_bytes(seq_len) for _, seq_len, count in segments)
        kv_bytes /= self._spec.parallelism.pp
        return DeviceMemory(
            total_gb=self._capacity_bytes / _GIB,
            weight_gb=step.weights / _GIB,
            kv_cache_gb=kv_bytes / _GIB,
            activation_gb=step.activations / _GIB,
            reserved_gb=self._spec.reserved_memory_gb + step.overhead / _GIB,
        )


def build_runner(spec: AIConfiguratorSpec) -> AIConfiguratorRunner:
    """Import the package, compile the deployment and try a small pass of each phase.

    Raises
    ------
    RunnerError
        When the release of the spec is not installed, or has no figures for the deployment.
    """
    package = _installed_release(spec)
    tables = (spec.system, spec.backend, spec.backend_version)
    with _building, quiet() as messages:
        try:
            engine = Engine(spec, package)
        except ImportError as error:
            raise RunnerError(
                f"{DISTRIBUTION} {package.version} is installed but cannot be imported "
                f"({_reason(error)}); reinstall it: {INSTALL_COMMAND}"
            ) from error
        except Exception as error:
            raise _no_figures(spec, package, error) from error
        finally:
            # Tables are loaded, and warned of, once per process, whatever model comes first.
            _table_warnings[tables].extend(messages)
    warnings = relevant_warnings(_table_warnings[tables], engine.operator_kinds)
    tell_once(_log, (f"{spec.model}: {text}" for text in warnings))
    capacity_bytes = float(package.system_profile(spec.system)["gpu"]["mem_capacity"])
    return AIConfiguratorRunner(spec, engine, capacity_bytes)


def source_shares(operators: Iterable[Operator]) -> dict[str, float]:
    """Return the share of the latency per kind of source.

    A source that this runner has not heard of counts as interpolated: neither measured as it is nor a
    pure roofline.
    """
    sums_ms: defaultdict[str, float] = defaultdict(float)
    for operator in operators:
        if operator.latency_ms > 0:
            sums_ms[SOURCES.get(operator.source, "interpolated")] += operator.latency_ms
    total_ms = fsum(sums_ms.values())
    return {kind: sums_ms[kind] / total_ms for kind in sorted(sums_ms)}


def bound_seconds(operators: Iterable[Operator]) -> dict[str, float]:
    """Return seconds per bound type, or nothing when some operator takes time and its bound is not known."""
    seconds = dict.fromkeys(BOUND_TYPES, 0.0)
    for operator in operators:
        if operator.bound is not None:
            seconds[operator.bound] += operator.latency_ms / 1000
        elif operator.latency_ms > 0:
            return {}
    return seconds


def _installed_release(spec: AIConfiguratorSpec) -> Package:
    """Return the installation, which must be the one whose figures the identity names."""
    package = installed_package()
    if package is None:
        raise RunnerError(
            f"{DISTRIBUTION} is not installed, so no new shape can be computed; run: {INSTALL_COMMAND}"
        )
    if package.release != spec.release:
        wanted = spec.release.partition("+")[0]
        raise RunnerError(
            f"{DISTRIBUTION} {package.release} is installed, but the config asks for {spec.release}; take "
            f"runner.package_version out, or run: pip install '{DISTRIBUTION}=={wanted}'"
        )
    for name in _ENVIRONMENT:
        value = os.environ.get(name)
        # The package sets the first two to its own folders when parts of it are imported.
        if value and not Path(value).is_relative_to(package.root):
            raise RunnerError(
                f"{name} is {value!r}, which changes the answers of {DISTRIBUTION} but not the "
                "identity of the records; unset it."
            )
    return package


def _no_figures(spec: AIConfiguratorSpec, package: Package, error: Exception) -> RunnerError:
    working = package.working_systems(spec.model, spec.backend)
    elsewhere = ", ".join(system for system in working if system != spec.system)
    also = f", or a system for which it reports the model to work ({elsewhere})" if elsewhere else ""
    return RunnerError(
        f"{DISTRIBUTION} {package.version} has no figures for {spec.model} on {spec.system} with "
        f"{spec.backend} {spec.backend_version}, {spec.parallelism} ({_reason(error)}); choose other "
        f"parallel sizes, another backend, other formats under runner.quantization{also}."
    )


def _reason(error: Exception) -> str:
    """Return what the package says of a failure: one line, without paths of files."""
    line = next(iter(str(error).splitlines()), "") or type(error).__name__
    return re.sub(r"\s+at /\S+", "", line).strip().rstrip(".")
