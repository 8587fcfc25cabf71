"""Forward latencies of msmodeling: one of its inference runs per shape.

msmodeling and torch are imported when the first shape must be computed, once per process.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from cache.errors import RunnerError
from cache.shapes import BOUND_TYPES, DeviceMemory, ForwardLatencyRecord, ForwardShapeKey
from stages.runners.msmodeling_process import check_machine, import_msmodeling, module, quiet, reason
from stages.runners.msmodeling_spec import MsModelingOptions, MsModelingSpec

_LOCK = threading.RLock()
"""msmodeling keeps settings and registries per process, so one forward pass runs at a time."""

_NOT_PASSED_ON = ("kind", "name", "path", "pins", "compile", "profiling_database", "draft_model_config_path")
_COMPILE_FLAGS = (
    "enable_multistream",
    "enable_sequence_parallel",
    "enable_matmul_allreduce",
    "enable_dispatch_ffn_combine",
)
_RECOMPILE_LIMIT = 10**8
"""Graphs that torch may keep per function. Its default of 8 is too few for the shapes of one sweep, and what
comes after would be estimated without compiling."""

_SOURCE_KINDS = {
    "MEASURED": "measured",
    "INTERPOLATED": "interpolated",
    "EXTRAPOLATED": "interpolated",
    "PARTIAL": "interpolated",
}
"""msmodeling's provenance of one operator -> ours. PARTIAL is an operator with some kernels measured."""


def record_of(metrics: Any, sources: Mapping[str, float]) -> ForwardLatencyRecord:
    """Return the record of one inference run.

    Parameters
    ----------
    metrics : object
        msmodeling's metrics: `execution_time_s` and `breakdowns` by estimator (seconds), and the memory
        parts in GiB.
    sources : mapping
        How the latency came about: kind -> share.

    Notes
    -----
    The empirical estimator wins over the analytic one where it answered, also with 0. Breakdowns by other
    things than bound types (how a pipeline's time is spread) are left out.

    Raises
    ------
    RunnerError
        When no estimator answered.
    """
    times = metrics.execution_time_s
    latency_s = times.get("empirical")
    if latency_s is None:
        latency_s = times.get("analytic")
    if latency_s is None:
        raise RunnerError(
            f"msmodeling answered with the estimators {sorted(times)}; expected analytic or empirical."
        )
    return ForwardLatencyRecord(
        latency_ms=latency_s * 1000,
        memory_left_gb=float(metrics.device_memory_available_gb),
        breakdowns={
            name: {bound: float(seconds) for bound, seconds in parts.items()}
            for name, parts in metrics.breakdowns.items()
            if set(parts) <= set(BOUND_TYPES)
        },
        memory=DeviceMemory(
            total_gb=float(metrics.total_device_memory_gb),
            weight_gb=float(metrics.model_weight_size_gb),
            kv_cache_gb=float(metrics.kv_cache_size_gb),
            activation_gb=float(metrics.model_activation_size_gb),
            reserved_gb=float(metrics.reserved_memory_gb),
        ),
        sources=dict(sources),
    )


def shares_by_source(operators: Iterable[tuple[float, str | None]]) -> dict[str, float]:
    """Return the share of the operator time by kind of source, empty when no operator takes time.

    Parameters
    ----------
    operators : iterable of (seconds, provenance)
        msmodeling's provenance of each operator; None where its cost was computed.
    """
    seconds_by_kind: dict[str, float] = {}
    for seconds, provenance in operators:
        kind = _SOURCE_KINDS.get(provenance or "", "analytic")
        seconds_by_kind[kind] = seconds_by_kind.get(kind, 0.0) + seconds
    total = sum(seconds_by_kind.values())
    return {kind: seconds / total for kind, seconds in sorted(seconds_by_kind.items()) if seconds > 0}


class MsModelingRunner:
    """Answers for one deployment.

    Parameters
    ----------
    spec : MsModelingSpec
        What to model.
    """

    def __init__(self, spec: MsModelingSpec) -> None:
        self._spec = spec
        self._engine: Any = None
        self._weight_gb = 0.0

    def forward(self, key: ForwardShapeKey) -> ForwardLatencyRecord:
        """Return the record of one forward pass.

        Raises
        ------
        RunnerError
            When msmodeling cannot be imported, is not the one of the identity, or fails.
        """
        with _LOCK:
            if self._engine is None:
                with quiet():
                    import_msmodeling(check_machine(self._spec))
                # Libraries set the level of their loggers when they are imported, hence twice.
                with quiet():
                    self._engine = self._build()
                    self._weight_gb = self._engine.model_weight_size_gb
            with quiet():
                try:
                    return self._run(key)
                except RunnerError:
                    raise
                except Exception as error:
                    raise RunnerError(
                        f"msmodeling fails for a {key} of {self._what}: {reason(error)}."
                    ) from error

    @property
    def _what(self) -> str:
        return f"{self._spec.model} on {self._spec.device} with {self._spec.parallelism}"

    def _build(self) -> Any:
        options = self._spec.options
        if options.compile:
            torch = importlib.import_module("torch")
            torch._dynamo.config.recompile_limit = _RECOMPILE_LIMIT
            torch._dynamo.config.accumulated_recompile_limit = _RECOMPILE_LIMIT
            torch.compiler.reset()
        _apply_compile_flags(options)
        try:
            engine = module("core.model_runner").ModelRunner(_user_input(self._spec))
        except Exception as error:
            raise RunnerError(f"msmodeling cannot build {self._what}: {reason(error)}.") from error
        grid, devices = engine.device_profile.comm_grid.grid.nelement(), self._spec.parallelism.num_devices
        if devices > grid:
            raise RunnerError(
                f"{self._what} needs {devices} devices, but the interconnect of that profile joins at most "
                f"{grid}; lower tp * dp * pp."
            )
        return engine

    def _run(self, key: ForwardShapeKey) -> ForwardLatencyRecord:
        generator = module("core.input_generator")
        request = generator.RequestInfo(
            query_len=key.query_len,
            seq_len=key.seq_len,
            concurrency=key.model_concurrency,
            is_decode=key.is_decode,
            image_batch_size=key.image_batch_size,
            image_height=key.image_height,
            image_width=key.image_width,
        )
        _apply_compile_flags(self._spec.options)
        self._forget_earlier_shapes()
        operators: list[tuple[float, str | None]] = []
        metrics = self._engine.run_inference(
            [request],
            generate_inputs_func=generator.generate_inputs,
            runtime_observer=lambda runtime: operators.extend(_empirical_operators(runtime)),
        )
        return record_of(metrics, shares_by_source(operators) if operators else {"analytic": 1.0})

    def _forget_earlier_shapes(self) -> None:
        """Undo what earlier calls leave behind in msmodeling, so that no answer depends on their order.

        - Tensors that repeated layers share are registered by `id` for the life of the process. Ids of dead
          tensors come back for new ones, and activation memory then differs by up to a few tenths of a GiB
          from what a fresh process computes.
        - Without an image, the weights of a vision encoder are subtracted again at each call.
        - The list of measured operators only grows.
        """
        region = module("performance_model.op_invoke_info").Region
        if hasattr(region, "equivalent_tensor_id_manager"):
            region.equivalent_tensor_id_manager = type(region.equivalent_tensor_id_manager)()
        for name in ("root_region_id_to_reference_count", "region_id_to_root_region_id"):
            getattr(region, name, {}).clear()
        self._engine.model_weight_size_gb = self._weight_gb
        for estimator in self._engine.perf_models:
            getattr(estimator, "op_records", []).clear()


def _empirical_operators(runtime: Any) -> Iterator[tuple[float, str | None]]:
    """Yield (seconds, provenance) of each operator that the empirical estimator answered for."""
    for event in runtime.event_list:
        result = event.perf_results.get("empirical")
        if result is not None:
            yield result.execution_time_s, result.statistics.get("source")


def _user_input(spec: MsModelingSpec) -> Any:
    """Return msmodeling's description of a deployment."""
    actions = module("core.quantization.datatypes")
    sizes, options = spec.parallelism, spec.options.model_dump()
    for name, value in options.items():
        if name.startswith("quantize_") and name.endswith("_action"):
            kind = actions.QuantizeAttentionAction if "attention" in name else actions.QuantizeLinearAction
            options[name] = kind(value)
    return module("core.user_config").UserInputConfig(
        model_id=str(spec.model_folder),
        device=spec.device,
        world_size=sizes.num_devices,
        tp_size=sizes.tp,
        dp_size=sizes.dp,
        pp_size=sizes.pp,
        ep_size=sizes.ep,
        moe_tp_size=sizes.moe_tp,
        moe_dp_size=sizes.moe_dp,
        num_mtp_tokens=spec.num_mtp_tokens,
        speculative_method=spec.draft_kind,
        # msmodeling counts the tokens besides the one that a step yields anyway.
        num_speculative_tokens=max(spec.draft_block_size - 1, 0),
        draft_model_config_path=None if spec.draft_config is None else str(spec.draft_config),
        do_compile=spec.options.compile,
        # Sequence parallel passes rewrite graphs of fixed sizes only.
        dynamic_shapes=not spec.options.enable_sequence_parallel,
        profiling_database=None if spec.database is None else str(spec.database),
        **{name: value for name, value in options.items() if name not in _NOT_PASSED_ON},
    )


def _apply_compile_flags(options: MsModelingOptions) -> None:
    """Set the switches that msmodeling keeps per process, which another deployment may have set otherwise."""
    flags = [name for name in _COMPILE_FLAGS if getattr(options, name)]
    module("core.compilation_config").apply_compilation_config(flags)
