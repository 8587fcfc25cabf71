"""What the arguments and answers of aiconfigurator-core 0.12.0 mean, pinned by known values.

These run where the package is installed (`pip install 'shapecast[silicon]'`).
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from pyarrow import parquet

from cache.errors import ConfigError, RunnerError
from cache.shapes import DeviceMemory, ForwardLatencyRecord, ForwardShapeKey
from configs import CONFIGS_DIR
from stages.parallelism import Parallelism
from stages.runners.aiconfigurator_engine import Engine
from stages.runners.aiconfigurator_package import BACKENDS, KNOWN_RELEASES, Package, installed_package
from stages.runners.aiconfigurator_spec import SYSTEM_OF_DEVICE
from stages.runners.base import Deployment, ModelRunner
from tests.aiconfigurator_cases import deployment, options

sdk = pytest.importorskip("aiconfigurator_core.sdk", reason="aiconfigurator-core is not installed")


def _installed() -> Package:
    found = installed_package()
    assert found is not None
    return found


package = _installed()
pytestmark = pytest.mark.skipif(
    package.release not in KNOWN_RELEASES.values(),
    reason=f"known values are those of {', '.join(KNOWN_RELEASES.values())}, not of {package.release}",
)

ROOT = Path(__file__).parents[1]
DENSE, EXPERTS, LATENT = "Qwen/Qwen3-32B", "Qwen/Qwen3-30B-A3B", "deepseek-ai/DeepSeek-V3"


@cache
def runner(
    model: str = DENSE, device: str = "h100_sxm", backend: str = "vllm", num_mtp_tokens: int = 0, **sizes: int
) -> ModelRunner:
    where = deployment(model, device, num_mtp_tokens=num_mtp_tokens, **(sizes or {"tp": 4}))
    return options(backend=backend).spec(where).build()


@cache
def handle() -> Any:
    return sdk.EngineHandle(sdk.compile_engine(DENSE, "h100_sxm", "vllm", "0.24.0", tp_size=4))


def prefill(concurrency: int, query_len: int, seq_len: int, **what: Any) -> ForwardLatencyRecord:
    return runner(**what).forward(ForwardShapeKey(False, concurrency, query_len, seq_len))


def decode(concurrency: int, seq_len: int, query_len: int = 1, **what: Any) -> ForwardLatencyRecord:
    return runner(**what).forward(ForwardShapeKey(True, concurrency, query_len, seq_len))


# --- meaning of the arguments -----------------------------------------------------------------------


def test_isl_is_the_whole_sequence_and_prefix_its_cached_part() -> None:
    # 1024 new tokens cost more behind 1024 cached ones than alone, and less than 2048 new ones.
    alone, behind, whole = (
        handle().predict_prefill_latency(1, isl, prefix)
        for isl, prefix in ((1024, 0), (2048, 1024), (2048, 0))
    )
    assert alone < behind < whole
    with pytest.raises(ValueError, match="isl must be greater than 0 after removing prefix"):
        handle().predict_prefill_latency(1, 1024, 1024)
    assert prefill(1, 1024, 2048).latency_ms == behind


def test_a_decode_step_behind_isl_cached_tokens_attends_to_one_more() -> None:
    engine = handle()
    operators = len(engine.decode_step_per_op(8, 2047, 1))
    rows = engine.evaluate_generation_ops(list(range(operators)), batch_size=8, s=2048)
    assert engine.predict_decode_latency(8, 2047, 2) == pytest.approx(sum(row[1] for row in rows), rel=1e-12)
    assert decode(8, 2048).latency_ms == engine.predict_decode_latency(8, 2047, 2)


def test_operator_latencies_are_milliseconds_of_all_layers() -> None:
    # The QKV projection of 1024 tokens at TP=4 is a measured point: 64 heads and twice 8 KV heads of 128,
    # in each of 64 layers.
    measured = _table("gemm/vllm/0.24.0/gemm_perf", gemm_dtype="bfloat16", m=1024, n=80 // 4 * 128, k=5120)
    rows, _ = handle().run_static_per_op(batch_size=1, isl=1024, osl=1, mode="static_ctx")
    assert _latency(rows, "context_qkv_gemm") == pytest.approx(64 * measured, rel=1e-6)


def test_measurements_of_decode_attention_count_the_new_token() -> None:
    # The table has step cached tokens and one new one; the estimator smooths between points.
    measured = _table(
        "attention/vllm/0.24.0/generation_attention_perf",
        batch_size=8,
        isl=1,
        step=2047,
        num_heads=16,
        num_key_value_heads=2,
        head_dim=128,
        window_size=0,
        kv_cache_dtype="bfloat16",
    )
    rows = handle().decode_step_per_op(8, 2047, 1)
    assert _latency(rows, "generation_attention") == pytest.approx(64 * measured, rel=0.01)


def test_with_speculative_tokens_a_decode_step_works_on_all_tokens_of_a_request() -> None:
    # Twice the requests of one token each cost as much as requests of two, but for the draft layer.
    one_token = decode(16, 2047).latency_ms
    two_tokens = decode(8, 2048, query_len=2, num_mtp_tokens=1).latency_ms
    assert one_token < two_tokens < one_token * 66 / 64
    assert prefill(1, 512, 512, num_mtp_tokens=1).latency_ms == prefill(1, 512, 512).latency_ms


def test_a_batch_is_that_of_one_data_parallel_replica() -> None:
    assert decode(16, 2048, tp=4, dp=2).latency_ms == decode(8, 2048).latency_ms


def test_pipeline_stages_cost_their_transfers_and_share_weights_and_cache() -> None:
    cut, whole = decode(16, 2048, tp=4, pp=2), decode(8, 2048)
    assert whole.latency_ms < cut.latency_ms < whole.latency_ms * 1.01
    assert cut.memory is not None
    assert whole.memory is not None
    assert cut.memory.weight_gb == pytest.approx(whole.memory.weight_gb / 2)
    assert cut.memory.kv_cache_gb == whole.memory.kv_cache_gb  # half the layers of twice the requests


@pytest.mark.parametrize(
    ("model", "device", "sizes"),
    [
        (DENSE, "h100_sxm", {"tp": 4}),
        (EXPERTS, "h100_sxm", {"tp": 4, "ep": 4}),
        (LATENT, "h200_sxm", {"tp": 8, "ep": 8}),
        ("openai/gpt-oss-120b", "h100_sxm", {"tp": 4}),
        ("Qwen/Qwen3.5-35B-A3B", "h100_sxm", {"tp": 4}),
    ],
)
def test_the_parts_of_a_batch_of_several_lengths_are_those_of_one_length(
    model: str, device: str, sizes: dict[str, int]
) -> None:
    engine = Engine(options().spec(deployment(model, device, **sizes)), package)
    one, operators = engine.prefill(((700, 2100, 4),))
    parts, part_operators = engine.prefill(((700, 2100, 1), (700, 2100, 3)))
    assert parts == pytest.approx(one, rel=1e-12)
    assert {part.name: part.bound for part in part_operators} == {op.name: op.bound for op in operators}
    shorter, longer = engine.prefill(((600, 600, 4),))[0], engine.prefill(((800, 4000, 4),))[0]
    assert shorter < engine.prefill(((600, 600, 2), (800, 4000, 2)))[0] < longer


# --- known values -----------------------------------------------------------------------------------

DENSE_PARTS = {"total_gb": 80.0, "weight_gb": 15.2557373046875, "reserved_gb": 3.8828125}


@pytest.mark.parametrize(
    ("record", "latency_ms", "memory_left_gb"),
    [
        (lambda: prefill(1, 1024, 2048), 36.69094935909057, 60.6583251953125),
        (lambda: prefill(4, 1024, 1024), 129.15589693565164, 60.2989501953125),
        (lambda: decode(8, 2048), 8.586315484962388, 59.7930908203125),
        (lambda: decode(256, 8192), 57.548234487065635, -67.2069091796875),
        (lambda: decode(8, 2048, backend="sglang"), 8.400885132992029, 59.06037597823888),
        (lambda: decode(8, 2048, backend="trtllm"), 8.856520423196688, 59.7930908203125),
        (
            lambda: prefill(1, 1024, 2048, model=EXPERTS, device="b200_sxm", tp=4, ep=4),
            11.248704660482217,
            161.9019775390625,
        ),
        (
            lambda: decode(8, 2048, 2, model=LATENT, device="h200_sxm", num_mtp_tokens=1, tp=8, ep=8),
            24.869272318947342,
            51.9058837890625,
        ),
    ],
    ids=[
        "prefill-chunk",
        "prefill-batch",
        "decode",
        "decode-out-of-memory",
        "sglang",
        "trtllm",
        "experts",
        "latent-mtp",
    ],
)
def test_known_values(
    record: Callable[[], ForwardLatencyRecord], latency_ms: float, memory_left_gb: float
) -> None:
    found = record()
    assert found.latency_ms == pytest.approx(latency_ms, rel=1e-9)
    assert found.memory_left_gb == pytest.approx(memory_left_gb, rel=1e-9)


def test_known_memory_parts_bounds_and_sources() -> None:
    found = prefill(1, 1024, 2048)
    assert found.memory == DeviceMemory(kv_cache_gb=0.125, activation_gb=0.078125, **DENSE_PARTS)
    assert found.breakdowns["aiconfigurator"] == pytest.approx(
        {
            "memory_bound": 0.003654982768084463,
            "communication_bound": 0.008364463144540788,
            "compute_bound_mma": 0.02467150344646532,
            "compute_bound_gp": 0.0,
        }
    )
    assert found.sources == pytest.approx({"measured": 0.774844457241508, "interpolated": 0.225155542758492})


def test_sliding_windows_bound_the_cache_of_their_layers() -> None:
    # gpt-oss-120b: 36 layers, every other one sees 128 tokens; 8 KV heads of 64 over TP=4, two bytes.
    found = decode(8, 65536, model="openai/gpt-oss-120b", tp=4)
    assert found.memory is not None
    assert found.memory.kv_cache_gb == 8 * (18 * 65536 + 18 * 128) * 2 * 2 * 64 * 2 / 2**30


def test_a_breakdown_covers_the_latency_or_is_left_out() -> None:
    # Routed and shared experts of a decode step run side by side; the package does not say what bounds them.
    what: dict[str, Any] = {"model": LATENT, "device": "h200_sxm", "tp": 8, "ep": 8}
    whole = prefill(1, 1024, 2048, **what)
    assert sum(whole.breakdowns["aiconfigurator"].values()) == pytest.approx(whole.latency_ms / 1000)
    assert decode(8, 2048, **what).breakdowns == {}


def test_a_config_of_ones_own_gives_the_figures_of_the_shipped_one(tmp_path: Path) -> None:
    for name, text in package.model_files(DENSE).items():
        (tmp_path / name).write_text(text)
    spec = options().spec(deployment("config.json", "h100_sxm", tmp_path, tp=4))
    assert spec.build().forward(ForwardShapeKey(True, 8, 1, 2048)) == decode(8, 2048)


def test_models_whose_config_is_shipped_but_not_listed_are_not_downloaded() -> None:
    assert decode(8, 2048, model="mistralai/Mixtral-8x7B-v0.1").latency_ms > 0


# --- what is read without importing -----------------------------------------------------------------


def test_files_tell_the_versions_that_the_package_tells() -> None:
    from aiconfigurator_core.sdk.perf_database import get_version_slots

    for system in package.systems:
        for backend in BACKENDS:
            slots = get_version_slots(system, backend) or {}
            found = [slots[name] for name in ("current", "next", "previous") if name in slots]
            assert package.versions(system, backend) == found, (system, backend)


def test_files_tell_the_architectures_that_the_package_tells() -> None:
    from aiconfigurator_core.sdk.common import ARCHITECTURE_TO_MODEL_FAMILY

    assert package.architectures == list(ARCHITECTURE_TO_MODEL_FAMILY)


def test_the_devices_with_a_name_of_ours_are_there() -> None:
    assert set(SYSTEM_OF_DEVICE.values()) <= set(package.systems)


# --- refusals ---------------------------------------------------------------------------------------


def test_missing_tables_are_found_when_the_runner_is_built() -> None:
    sentence = (
        r"no figures for openai/gpt-oss-120b on b200_sxm with trtllm .*"
        r"\(perf database error: MoE data missing .*\); choose other parallel sizes"
    )
    with pytest.raises(RunnerError, match=sentence):
        runner("openai/gpt-oss-120b", "b200_sxm", "trtllm", tp=4)


def test_formats_that_the_hardware_lacks_are_refused_before_anything_is_imported() -> None:
    with pytest.raises(ConfigError, match=r"does not run on a100_sxm with vllm 0\.14\.0 \(.*FP8.*\); it"):
        options().spec(deployment("Qwen/Qwen3-32B-FP8", "a100_sxm", tp=4))


def test_settings_of_the_environment_that_change_answers_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AICONFIGURATOR_SYSTEMS_PATH", "/elsewhere/systems")
    with pytest.raises(RunnerError, match=r"AICONFIGURATOR_SYSTEMS_PATH is '/elsewhere/.*; unset it"):
        options().spec(deployment(DENSE, tp=4)).build()


# --- chatter ----------------------------------------------------------------------------------------


def test_a_run_leaves_stdout_empty_and_tells_on_stderr_once_what_concerns_the_model() -> None:
    script = """
import sys
from tests.aiconfigurator_cases import deployment, options
from pyarrow import parquet
from cache.shapes import ForwardShapeKey
for model, sizes in (("Qwen/Qwen3-32B", {"tp": 4}), ("deepseek-ai/DeepSeek-V3", {"tp": 8, "ep": 8})):
    for _ in range(2):
        runner = options().spec(deployment(model, "h200_sxm", **sizes)).build()
        for key in (ForwardShapeKey(False, 1, 1024, 2048), ForwardShapeKey(True, 8, 1, 2048)):
            runner.forward(key)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert len(lines) == len(set(lines)) == 3
    assert all(line.startswith("deepseek-ai/DeepSeek-V3: ") for line in lines)


# --- sweeps -----------------------------------------------------------------------------------------

SWEEP = """
name: small
runner: {kind: aiconfigurator, backend: vllm}
models: [Qwen/Qwen3-32B]
devices: [H100-SXM-80G]
parallelism: [{tp: 4}]
modes: [aggregated]
workloads: [{input_length: 2048, output_length: 64}]
engine: {max_batched_tokens: 1024}
concurrency: {batch_sizes: [1, 4]}
"""


def test_a_warm_run_imports_nothing_of_the_package(tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(SWEEP)
    run = "from pipeline.cli import main; main()"
    blocked = f"import sys; sys.modules['aiconfigurator_core'] = None; {run}"
    for out, tables, program, works in (
        ("cold", "tables", run, True),
        ("warm", "tables", blocked, True),
        ("none", "none", blocked, False),
    ):
        done = subprocess.run(
            [sys.executable, "-c", program, "run", "small.yaml", "--tables", tables, "--out", out, "--quiet"],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
        )
        assert (done.returncode == 0) is works, out
    assert (tmp_path / "cold/best.csv").read_bytes() == (tmp_path / "warm/best.csv").read_bytes()


def test_every_deployment_of_the_shipped_sweep_has_figures() -> None:
    sweep = yaml.safe_load((CONFIGS_DIR / "silicon.yaml").read_text())
    for entry in sweep["runner"]:
        for model in sweep["models"]:
            for device in sweep["devices"]:
                for sizes in sweep["parallelism"]:
                    spec = options(**entry).spec(Deployment(model, device, Parallelism(**sizes)))
                    assert spec.build().forward(ForwardShapeKey(True, 8, 1, 2048)).latency_ms > 0


def _table(name: str, **point: object) -> float:
    """Return the latency that was measured at one point, ms."""
    rows = parquet.read_table(package.root / f"systems/data/h100_sxm/{name}.parquet").to_pylist()
    (row,) = (row for row in rows if all(row[column] == value for column, value in point.items()))
    return float(row["latency"])


def _latency(rows: Iterable[tuple[str, float, float, str]], operator: str) -> float:
    return next(row[1] for row in rows if row[0] == operator)
