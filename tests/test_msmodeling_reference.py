"""The msmodeling runner with msmodeling: the recorded figures, and that no answer depends on the others."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest

from cache.errors import ConfigError, RunnerError
from cache.shapes import ForwardLatencyRecord, ForwardShapeKey
from stages.parallelism import Parallelism
from stages.runners.base import Deployment
from stages.runners.msmodeling_process import module
from stages.runners.msmodeling_source import INSTALL_COMMAND, PATH_VARIABLE, device_profiles, find_checkout
from stages.runners.msmodeling_spec import AttentionAction, LinearAction, MsModelingOptions
from tests.fake_msmodeling import make_model
from tests.reference_records import (
    memory_differences_gb,
    reference_identities,
    reference_key,
    reference_rows,
    reference_spec,
    relative_error,
)

SMALL = "qwen3-0.6b.TEST_DEVICE.tp1"
IDENTITIES = {identity["id"]: identity for identity in reference_identities()}


def why_not() -> str | None:
    """Return why these tests cannot run here, or None."""
    try:
        root = find_checkout(None, Path())
    except ConfigError as error:
        return str(error)
    if root is None:
        return f"msmodeling is not on this machine; {PATH_VARIABLE} may name a checkout"
    needed = ("torch", "transformers", "optree", "overrides", "diffusers", "aenum")
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    return f"msmodeling needs {', '.join(missing)}; run `{INSTALL_COMMAND}`" if missing else None


REASON = why_not()
pytestmark = pytest.mark.skipif(REASON is not None, reason=str(REASON))


def forward(key: ForwardShapeKey, model: str = "qwen3_dense_0_6b", **options: Any) -> ForwardLatencyRecord:
    parallelism = options.pop("parallelism", Parallelism())
    device = options.pop("device", "TEST_DEVICE")
    return MsModelingOptions(**options).spec(Deployment(model, device, parallelism)).build().forward(key)


def a_few(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the first and last rows, and the first out of memory and the first decode between them."""
    wanted = [rows[0], rows[-1]]
    wanted += [row for row in rows if row["memory_left_gb"] < 0][:1]
    wanted += [row for row in rows if row["is_decode"]][:1]
    return [row for row in rows if any(row is one for one in wanted)]


@pytest.mark.parametrize("name", IDENTITIES)
def test_reproduces_the_recorded_figures(name: str) -> None:
    runner = reference_spec(IDENTITIES[name]).build()
    for row in a_few(reference_rows(name)):
        record = runner.forward(reference_key(row))
        differences = memory_differences_gb(record, row)
        # Recorded activation memory depends on what the recording process had computed before.
        differences.pop("activation")
        assert relative_error(record, row) <= 1e-9
        assert max(differences.values()) <= 1e-9


def test_activation_memory_of_a_first_shape_is_the_recorded_one() -> None:
    row = reference_rows(SMALL)[0]
    record = reference_spec(IDENTITIES[SMALL]).build().forward(reference_key(row))
    assert record.memory is not None
    assert record.memory.activation_gb == pytest.approx(row["model_activation_size_gb"], rel=1e-9)


def test_answers_are_those_of_a_fresh_process_whatever_came_before() -> None:
    keys = [ForwardShapeKey(False, c, 1000, 1000) for c in (1, 6, 2, 8)] + [ForwardShapeKey(True, 9, 1, 1033)]
    runner = reference_spec(IDENTITIES[SMALL]).build()
    there = [runner.forward(key) for key in keys]
    back = [runner.forward(key) for key in reversed(keys)]
    assert there == back[::-1]
    code = f"""
from cache.shapes import ForwardShapeKey
from tests.reference_records import reference_identities, reference_spec
(identity,) = (one for one in reference_identities() if one["id"] == {SMALL!r})
print(repr(reference_spec(identity).build().forward({keys[1]!r})))
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parent.parent,
        env=dict(os.environ),
    )
    assert done.stderr == ""
    assert done.stdout.strip() == repr(there[1])


def test_weights_of_a_vision_model_do_not_shrink_from_call_to_call() -> None:
    runner = MsModelingOptions().spec(Deployment("qwen3_vl_tiny", "TEST_DEVICE", Parallelism())).build()
    key = ForwardShapeKey(False, 1, 16, 16)
    assert runner.forward(key) == runner.forward(key)


@pytest.mark.skipif(importlib.util.find_spec("torchvision") is None, reason="images need torchvision")
def test_images_take_time_and_leave_no_trace() -> None:
    runner = MsModelingOptions().spec(Deployment("qwen3_vl_tiny", "TEST_DEVICE", Parallelism())).build()
    text = ForwardShapeKey(False, 1, 16, 16)
    image = ForwardShapeKey(False, 1, 16, 16, image_batch_size=1, image_height=64, image_width=64)
    before = runner.forward(text)
    assert runner.forward(image).latency_ms > before.latency_ms
    assert runner.forward(text) == before


def test_compiled_graphs_are_faster_and_do_not_depend_on_order() -> None:
    keys = [ForwardShapeKey(False, 1, 16, 16), ForwardShapeKey(False, 2, 16, 16)]
    spec = MsModelingOptions(compile=True).spec(Deployment("qwen3_dense_0_6b", "TEST_DEVICE", Parallelism()))
    runner = spec.build()
    there = [runner.forward(key) for key in keys]
    assert [runner.forward(key) for key in reversed(keys)] == there[::-1]
    assert there[0].latency_ms < forward(keys[0]).latency_ms


@pytest.mark.parametrize("kind", ["dflash", "dspark"])
def test_a_draft_model_adds_to_weights_and_latency(kind: str) -> None:
    model, key = "qwen3_dense_32b", ForwardShapeKey(True, 4, 8, 1000)
    deployment = Deployment(
        model, "TEST_DEVICE", Parallelism(tp=8), draft_kind=kind, draft_block_size=key.query_len
    )
    drafted = MsModelingOptions().spec(deployment).build().forward(key)
    plain = forward(key, model=model, parallelism=Parallelism(tp=8))
    assert drafted.latency_ms > plain.latency_ms
    assert drafted.memory is not None
    assert plain.memory is not None
    assert drafted.memory.weight_gb > plain.memory.weight_gb


def test_pipeline_stages_answer_with_bound_types_alone() -> None:
    record = forward(ForwardShapeKey(False, 1, 16, 16), parallelism=Parallelism(pp=2))
    assert list(record.breakdowns) == ["analytic_OpBound"]
    assert record.sources == {"analytic": 1.0}


def test_measured_operators_answer_with_their_share(tmp_path: Path) -> None:
    (tmp_path / "op_mapping.yaml").write_text(
        "operator_mappings:\n"
        "  tensor_cast.all_reduce.default: {kernel_type: hcom_allReduce_, category: communication}\n",
        encoding="utf-8",
    )
    # An all-reduce takes half a second for any size, so it is nearly all of the latency.
    (tmp_path / "hcom_allReduce_.csv").write_text(
        "message_bytes,num_devices,Average Duration(us)\n1,2,500000\n1000000000000,2,500000\n",
        encoding="utf-8",
    )
    record = forward(
        ForwardShapeKey(False, 1, 16, 16),
        parallelism=Parallelism(tp=2),
        performance_model="profiling",
        profiling_database=str(tmp_path),
    )
    reductions = 2 * 28
    assert record.latency_ms == pytest.approx(reductions * 500, rel=1e-3)
    assert list(record.breakdowns) == ["empirical_OpBound"]
    assert set(record.sources) == {"analytic", "interpolated"}
    assert record.sources["interpolated"] == pytest.approx(1.0, rel=1e-3)


def test_devices_and_options_are_all_that_msmodeling_has() -> None:
    forward(ForwardShapeKey(False, 1, 4, 4))
    root = find_checkout(None, Path())
    assert root is not None
    profiles = device_profiles(root)
    assert profiles.complete
    assert set(profiles.names) == set(module("device").DeviceProfile.all_device_profiles)
    actions = module("core.quantization.datatypes")
    assert set(get_args(LinearAction)) == {action.value for action in actions.QuantizeLinearAction}
    assert set(get_args(AttentionAction)) == {action.value for action in actions.QuantizeAttentionAction}


def test_a_model_that_msmodeling_cannot_build_is_refused_with_its_reason(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    model = make_model(tmp_path / "model", model_type="no-such-model")
    model.chmod(0o755)
    (model / "config.json").chmod(0o644)
    with pytest.raises(RunnerError, match=r"msmodeling cannot build .*no-such-model"):
        forward(ForwardShapeKey(False, 1, 4, 4), model=str(model))


def test_a_model_folder_that_others_may_write_is_refused_before_any_import(tmp_path: Path) -> None:
    model = make_model(tmp_path / "model")
    model.chmod(0o777)
    with pytest.raises(ConfigError, match=r"refuses the model folder .*: .*writable"):
        forward(ForwardShapeKey(False, 1, 4, 4), model=str(model))
