"""The msmodeling runner without msmodeling: what is known from files, the mapping, and every refusal."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from cache.errors import ConfigError, RunnerError
from cache.shapes import DeviceMemory, ForwardShapeKey
from stages.parallelism import Parallelism
from stages.runners.base import Deployment
from stages.runners.msmodeling import record_of, shares_by_source
from stages.runners.msmodeling_source import PATH_VARIABLE
from stages.runners.msmodeling_spec import MsModelingOptions, MsModelingSpec, Pins, package_version
from stages.runners.registry import runner_options
from tests.fake_msmodeling import make_checkout, make_database, make_model

PREFILL = ForwardShapeKey(False, 2, 100, 300)
PINNED = {"torch": "2.13.0", "transformers": "5.13.1"}
HERE = {name: package_version(name) or "missing" for name in PINNED}


@pytest.fixture(autouse=True)
def _no_msmodeling_around(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Hide an msmodeling that this process has imported or that the environment names."""
    monkeypatch.delenv(PATH_VARIABLE, raising=False)
    real = {name: sys.modules.pop(name) for name in list(sys.modules) if name.split(".")[0] == "tensor_cast"}
    yield
    for name in [name for name in sys.modules if name.split(".")[0] == "tensor_cast"]:
        del sys.modules[name]
    sys.modules.update(real)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    return make_checkout(tmp_path / "msmodeling")


Spec = Callable[..., MsModelingSpec]


@pytest.fixture
def spec(checkout: Path) -> Spec:
    """Make a spec with the checkout; options, parts of the deployment and pins by name."""

    def make(**fields: Any) -> MsModelingSpec:
        deployment = Deployment(
            fields.pop("model", "tiny"),
            fields.pop("device", "TEST_DEVICE"),
            fields.pop("parallelism", Parallelism(tp=2)),
            fields.pop("num_mtp_tokens", 0),
            fields.pop("base_dir", checkout.parent),
            fields.pop("draft_kind", None),
            fields.pop("draft_block_size", 0),
        )
        pins = Pins(**{**PINNED, **fields.pop("pins", {})})
        return MsModelingOptions(**{"path": "msmodeling", "pins": pins, **fields}).spec(deployment)

    return make


def metrics(**changes: Any) -> SimpleNamespace:
    fields = {
        "execution_time_s": {"analytic": 0.25},
        "breakdowns": {"analytic_OpBound": {"memory_bound": 0.5, "communication_bound": 0}},
        "total_device_memory_gb": 64.0,
        "model_weight_size_gb": 30.0,
        "kv_cache_size_gb": 20.0,
        "model_activation_size_gb": 5.0,
        "reserved_memory_gb": 10,
        "device_memory_available_gb": -1.0,
    }
    return SimpleNamespace(**{**fields, **changes})


class TestMapping:
    def test_takes_latency_in_ms_memory_in_parts_and_breakdown_in_seconds(self) -> None:
        record = record_of(metrics(), {"analytic": 1.0})
        assert record.latency_ms == 250.0
        assert record.memory == DeviceMemory(64.0, 30.0, 20.0, 5.0, 10.0)
        assert record.memory_left_gb == -1.0
        assert record.out_of_memory
        assert record.breakdowns == {"analytic_OpBound": {"memory_bound": 0.5, "communication_bound": 0.0}}
        assert isinstance(record.breakdowns["analytic_OpBound"]["communication_bound"], float)
        assert record.sources == {"analytic": 1.0}

    @pytest.mark.parametrize("empirical", [0.125, 0.0])
    def test_prefers_the_empirical_latency_even_when_it_is_zero(self, empirical: float) -> None:
        times = {"analytic": 0.25, "empirical": empirical}
        assert record_of(metrics(execution_time_s=times), {}).latency_ms == empirical * 1000

    def test_takes_the_analytic_latency_where_the_empirical_one_is_none(self) -> None:
        times = {"analytic": 0.25, "empirical": None}
        assert record_of(metrics(execution_time_s=times), {}).latency_ms == 250.0

    def test_refuses_metrics_without_a_latency(self) -> None:
        with pytest.raises(RunnerError, match=r"estimators \['roofline'\]; expected analytic or empirical"):
            record_of(metrics(execution_time_s={"roofline": 1.0}), {})

    def test_leaves_out_breakdowns_that_are_not_by_bound_type(self) -> None:
        parts = {"analytic_OpBound": {"memory_bound": 1.0}, "analytic_pipeline_parallel": {"bubble": 2.0}}
        assert list(record_of(metrics(breakdowns=parts), {}).breakdowns) == ["analytic_OpBound"]

    def test_weighs_sources_by_operator_time(self) -> None:
        operators = [(1.0, "MEASURED"), (2.0, "INTERPOLATED"), (3.0, "EXTRAPOLATED"), (1.0, "PARTIAL")]
        assert shares_by_source([*operators, (1.0, None)]) == {
            "analytic": 1 / 8,
            "interpolated": 6 / 8,
            "measured": 1 / 8,
        }

    def test_knows_no_sources_when_no_operator_takes_time(self) -> None:
        assert shares_by_source([(0.0, "MEASURED")]) == {}


class TestIdentity:
    def test_is_the_same_for_a_spec_that_was_pickled(self, spec: Spec) -> None:
        one = spec()
        assert pickle.loads(pickle.dumps(one)).identity() == one.identity()

    def test_does_not_depend_on_places_names_or_newlines(self, spec: Spec, tmp_path: Path) -> None:
        elsewhere = make_checkout(tmp_path / "elsewhere" / "other")
        for file in elsewhere.rglob("*.py"):
            file.write_bytes(file.read_bytes().replace(b"\n", b"\r\n"))
        model = make_model(tmp_path / "renamed")
        (model / "tokenizer.json").write_text("{}", encoding="utf-8")
        (model / "model.safetensors").write_bytes(b"\0" * 100)
        other = spec(path=str(elsewhere), model=str(model))
        assert other.identity() == spec().identity()

    def test_is_frozen(self, spec: Spec) -> None:
        # Digests of records that people keep: a change here orphans them, so it must be meant.
        assert spec(pins={"source": "0" * 64}).identity().id == (
            "0c567c2c91143d06b7dcaa7ff6603c3b978795bf53a2fd5b9fe5397ba2af0b5a"
        )

    @pytest.mark.parametrize(
        "change",
        [
            {"device": "ATLAS_900_64G"},
            {"parallelism": Parallelism(tp=4)},
            {"parallelism": Parallelism(tp=2, ep=2)},
            {"parallelism": Parallelism(tp=2, pp=2)},
            {"num_mtp_tokens": 1},
            {"draft_kind": "dflash", "draft_block_size": 4},
            {"num_draft_layers": 2},
            {"pins": {"source": "0" * 64}},
            {"pins": {"torch": "2.9.1"}},
            {"pins": {"transformers": "5.13.0"}},
            {"quantize_linear_action": "DISABLED"},
            {"quantize_attention_action": "INT8"},
            {"quantize_lmhead": True},
            {"word_embedding_tp": "col"},
            {"o_proj_tp_size": 1},
            {"compile": True},
            {"enable_multistream": True},
            {"reserved_memory_gb": 0.0},
            {"block_size": 64},
        ],
        ids=str,
    )
    def test_changes_with_all_that_can_change_a_latency(self, spec: Spec, change: dict[str, Any]) -> None:
        assert spec(**change).identity() != spec().identity()

    @pytest.mark.parametrize(
        ("name", "text"),
        [
            ("config.json", '{"model_type": "tiny", "num_attention_heads": 8, "num_hidden_layers": 5}'),
            ("modeling_tiny.py", "LAYERS = 5"),
            ("preprocessor_config.json", '{"size": 1}'),
        ],
    )
    def test_changes_with_a_model_file_that_is_read(
        self, spec: Spec, tmp_path: Path, name: str, text: str
    ) -> None:
        model = make_model(tmp_path / "model")
        (model / name).write_text(text, encoding="utf-8")
        assert spec(model=str(model)).identity() != spec().identity()

    def test_changes_with_any_source_of_msmodeling(self, spec: Spec, tmp_path: Path) -> None:
        other = make_checkout(tmp_path / "changed")
        (other / "tensor_cast" / "ops.py").write_text("COST = 2", encoding="utf-8")
        assert spec(path=str(other)).identity() != spec().identity()

    def test_holds_the_measured_operators_and_those_of_communication(
        self, spec: Spec, tmp_path: Path
    ) -> None:
        one = make_database(tmp_path / "one" / "data")
        two = make_database(tmp_path / "two" / "data")
        profiling = {"performance_model": "profiling", "pins": {"scipy": "1.15.0"}}
        first = spec(profiling_database=str(one), **profiling).identity()
        assert first == spec(profiling_database=str(two), **profiling).identity()
        (two.parent / "hccl" / "hcom_allReduce_.csv").write_text("bytes,us\n1,3\n", encoding="utf-8")
        three = tmp_path / "three"
        two.parent.rename(three)
        assert first != spec(profiling_database=str(three / "data"), **profiling).identity()
        assert first.packages["scipy"] == "1.15.0"

    def test_holds_kind_block_and_config_of_a_draft_model(self, spec: Spec, tmp_path: Path) -> None:
        config = tmp_path / "draft.json"
        config.write_text('{"num_hidden_layers": 2}', encoding="utf-8")
        draft = {"draft_kind": "dflash", "draft_block_size": 4}
        plain = spec(**draft).identity()
        own = spec(**draft, draft_model_config_path="draft.json").identity()
        dspark = spec(draft_kind="dspark", draft_block_size=4).identity()
        longer = spec(draft_kind="dflash", draft_block_size=8).identity()
        assert len({plain, own, dspark, longer}) == 4
        config.write_text('{"num_hidden_layers": 3}', encoding="utf-8")
        assert spec(**draft, draft_model_config_path="draft.json").identity() != own

    def test_needs_neither_msmodeling_nor_torch(self, checkout: Path) -> None:
        model = checkout / "tests" / "assets" / "model_config" / "tiny"
        code = f"""
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "transformers"):
            raise ImportError(name)
sys.meta_path.insert(0, Blocker())
from stages.parallelism import Parallelism
from stages.runners.base import Deployment
from stages.runners.msmodeling_spec import MsModelingOptions
pins = {{"torch": "2.13.0", "transformers": "5.13.1"}}
for options in ({{"path": {str(checkout)!r}, "pins": pins}}, {{"pins": {{**pins, "source": "0" * 64}}}}):
    spec = MsModelingOptions(**options).spec(Deployment({str(model)!r}, "TEST_DEVICE", Parallelism()))
    spec.identity()
    spec.build()
assert "tensor_cast" not in sys.modules
"""
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


class TestRefusals:
    """Each with what to do, before any import."""

    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            ({"path": "nowhere"}, r"runner\.path is .*nowhere, which holds no tensor_cast/core/model_runner"),
            ({"device": "ATLAS_900"}, "no device profile 'ATLAS_900'; use ATLAS_900_64G"),
            ({"device": "H100"}, "no device profile 'H100'; use TEST_DEVICE or ATLAS_900_64G"),
            ({"model": "tinny"}, "Unknown model 'tinny': close names are tiny"),
            ({"parallelism": Parallelism(tp=3)}, "tp is 3, which does not divide the 8 attention heads"),
            ({"parallelism": Parallelism(pp=5)}, "pp is 5, but tiny has 4 layers"),
            ({"dcp_size": 4}, r"runner\.dcp_size is 4, which does not divide tp \(2\)"),
            ({"mlp_tp_size": 3}, r"runner\.mlp_tp_size is 3, which does not divide tp \* dp \(2\)"),
            (
                {"draft_kind": "dflash", "draft_block_size": 1},
                r"speculation\.block_size is 1, .* give 2 or more",
            ),
            (
                {"draft_kind": "dspark", "draft_block_size": 8, "draft_model_config_path": "gone.json"},
                r"draft_model_config_path is .*gone\.json, which is no file",
            ),
            ({"performance_model": "profiling"}, r"needs runner\.profiling_database"),
            (
                {"performance_model": "profiling", "profiling_database": "nowhere"},
                "op_mapping.yaml cannot be read",
            ),
        ],
    )
    def test_say_the_value_and_what_to_do(self, spec: Spec, fields: dict[str, Any], message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            spec(**fields)

    def test_include_tables_that_git_lfs_has_not_fetched(self, spec: Spec, tmp_path: Path) -> None:
        database = make_database(tmp_path / "data" / "measured")
        (database / "MatMul.csv").write_text("version https://git-lfs.github.com/spec/v1\n", encoding="utf-8")
        with pytest.raises(ConfigError, match=r"MatMul\.csv is a Git LFS pointer and no table; run `git lfs"):
            spec(performance_model="profiling", profiling_database=str(database))

    def test_name_the_environment_variable_that_is_wrong(
        self, spec: Spec, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setenv(PATH_VARIABLE, str(tmp_path / "gone"))
        with pytest.raises(ConfigError, match=rf"{PATH_VARIABLE} is .*gone, which holds no"):
            spec(path=None)

    def test_say_how_to_get_msmodeling(self, spec: Spec, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
        with pytest.raises(
            ConfigError, match=r"clone https://github.com/Ascend/msmodeling.*\(pip install torch"
        ):
            spec(path=None)
        with pytest.raises(ConfigError, match="pip install torch"):
            MsModelingOptions.known_devices()

    def test_say_which_package_is_missing(self, spec: Spec, monkeypatch: pytest.MonkeyPatch) -> None:
        def missing(name: str) -> str:
            raise metadata.PackageNotFoundError(name)

        monkeypatch.setattr(metadata, "version", missing)
        with pytest.raises(ConfigError, match=r"needs the package torch.*pip install.*runner\.pins\.torch"):
            spec(pins={"torch": None})

    def test_give_msmodelings_own_reason_against_a_model_folder(self, spec: Spec, tmp_path: Path) -> None:
        model = make_model(tmp_path / "model")
        (model / "unsafe").touch()
        with pytest.raises(
            ConfigError, match=r"refuses the model folder .*: Local model path must not contain"
        ):
            spec(model=str(model))

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("{", "is no JSON"),
            ("[]", "has no model_type"),
            ("{}", "has no model_type"),
        ],
    )
    def test_say_what_is_wrong_with_a_model_config(
        self, spec: Spec, tmp_path: Path, text: str, message: str
    ) -> None:
        (tmp_path / "config.json").write_text(text, encoding="utf-8")
        with pytest.raises(ConfigError, match=message):
            spec(model=str(tmp_path))

    def test_include_a_config_of_another_name(self, spec: Spec, tmp_path: Path) -> None:
        (tmp_path / "my.json").write_text("{}", encoding="utf-8")
        with pytest.raises(ConfigError, match=r"reads the config\.json of a folder, not .*my\.json"):
            spec(model=str(tmp_path / "my.json"))

    @pytest.mark.parametrize(
        "fields",
        [
            {"quantize_linear_action": "W9A9"},
            {"reserved_memory_gb": -1.0},
            {"pins": {"source": "1"}},
            {"x": 1},
        ],
        ids=str,
    )
    def test_include_options_that_msmodeling_does_not_have(self, fields: dict[str, Any]) -> None:
        with pytest.raises(ValidationError):
            MsModelingOptions.model_validate(fields)

    def test_spare_a_device_whose_name_the_sources_compute(self, spec: Spec, checkout: Path) -> None:
        own = checkout / "tensor_cast" / "device_profiles" / "mine.py"
        own.write_text(
            "from tensor_cast.device import DeviceProfile\nDeviceProfile(name='A' + 'B')\n", encoding="utf-8"
        )
        assert spec(device="AB").device == "AB"


class TestLists:
    def test_devices_come_from_the_sources(self, checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(PATH_VARIABLE, str(checkout))
        rows = runner_options("msmodeling").known_devices()
        assert rows[0] == {"device": "TEST_DEVICE", "vendor": "ACME", "defined in": "tensor_cast/device.py"}
        assert [row["device"] for row in rows] == ["TEST_DEVICE", "ATLAS_900_64G"]

    def test_models_are_the_shipped_ones_and_those_of_the_checkout(
        self, checkout: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv(PATH_VARIABLE, str(checkout))
        rows = {row["model"]: row for row in runner_options("msmodeling").known_models()}
        assert rows["tiny"] == {
            "model": "tiny",
            "type": "tiny",
            "layers": "4",
            "heads": "8",
            "comes with": "msmodeling",
        }
        assert rows["Qwen/Qwen3-32B"]["comes with"] == "shapecast"


def engine_of(runner: Any) -> Any:
    return runner._engine


class TestRunner:
    """With a checkout that has msmodeling's interface and simple answers."""

    def test_answers_with_the_request_of_the_key(self, spec: Spec) -> None:
        runner = spec(pins=HERE).build()
        assert runner.forward(PREFILL).latency_ms == 200_000.0
        image = ForwardShapeKey(True, 3, 1, 50, image_batch_size=2, image_height=480, image_width=640)
        assert runner.forward(image).latency_ms == 3_000.0
        first, second = (vars(request) for request in engine_of(runner).requests)
        assert first == {
            "query_len": 100, "seq_len": 300, "concurrency": 2, "is_decode": False,
            "image_batch_size": None, "image_height": None, "image_width": None,
        }  # fmt: skip
        assert second == {
            "query_len": 1, "seq_len": 50, "concurrency": 3, "is_decode": True,
            "image_batch_size": 2, "image_height": 480, "image_width": 640,
        }  # fmt: skip

    def test_describes_the_deployment_to_msmodeling(self, spec: Spec) -> None:
        parallelism = Parallelism(tp=2, dp=4, pp=2, ep=4)
        runner = spec(
            parallelism=parallelism, num_mtp_tokens=2, quantize_linear_action="FP8", pins=HERE
        ).build()
        runner.forward(PREFILL)
        got = vars(engine_of(runner).user_input)
        expected = {
            "device": "TEST_DEVICE", "world_size": 16, "tp_size": 2, "dp_size": 4, "pp_size": 2, "ep_size": 4,
            "moe_tp_size": 2, "moe_dp_size": 1, "num_mtp_tokens": 2, "quantize_linear_action": "FP8",
            "quantize_attention_action": "DISABLED", "do_compile": False, "dynamic_shapes": True,
            "reserved_memory_gb": 10.0, "block_size": 128, "profiling_database": None,
        }  # fmt: skip
        assert {name: got[name] for name in expected} == expected
        assert got["model_id"].endswith("tiny")
        assert not {"path", "pins", "kind", "compile"} & set(got)

    def test_counts_the_tokens_of_a_draft_block_as_msmodeling_does(self, spec: Spec) -> None:
        runner = spec(draft_kind="dflash", draft_block_size=8, dspark_markov_rank=0, pins=HERE).build()
        runner.forward(PREFILL)
        got = engine_of(runner).user_input
        assert (got.speculative_method, got.num_speculative_tokens) == ("dflash", 7)
        assert (got.draft_model_config_path, got.dspark_markov_rank) == (None, 0)

    def test_imports_and_builds_once_and_only_for_a_shape(self, spec: Spec) -> None:
        runner = spec(pins=HERE).build()
        assert "tensor_cast" not in sys.modules
        runner.forward(PREFILL)
        runner.forward(PREFILL)
        assert len(sys.modules["tensor_cast.core.model_runner"].BUILT) == 1

    def test_answers_do_not_depend_on_earlier_shapes(self, spec: Spec) -> None:
        runner = spec(pins=HERE).build()
        first, second = runner.forward(PREFILL), runner.forward(PREFILL)
        assert first == second
        assert first.memory is not None
        assert (first.memory.activation_gb, first.memory.weight_gb) == (1.0, 15.0)

    def test_sets_its_compile_switches_before_each_shape(self, spec: Spec) -> None:
        plain = spec(pins=HERE).build()
        fused = spec(enable_matmul_allreduce=True, enable_multistream=True, pins=HERE).build()
        plain.forward(PREFILL)
        fused.forward(PREFILL)
        assert engine_of(fused).flags == ["enable_multistream", "enable_matmul_allreduce"]
        plain.forward(PREFILL)
        assert engine_of(plain).flags == []

    def test_says_how_a_measured_latency_came_about(self, spec: Spec, tmp_path: Path) -> None:
        database = make_database(tmp_path / "data" / "measured")
        options = {"performance_model": "profiling", "profiling_database": str(database)}
        runner = spec(disable_profiling_interpolation=True, pins=HERE, **options).build()
        record = runner.forward(PREFILL)
        assert record.sources == {"measured": 0.5, "interpolated": 0.25, "analytic": 0.25}
        assert list(record.breakdowns) == ["empirical_OpBound"]

    def test_keeps_remarks_off_the_terminal(self, spec: Spec, capfd: pytest.CaptureFixture[str]) -> None:
        spec(pins=HERE).build().forward(PREFILL)
        assert capfd.readouterr() == ("", "")

    def test_gives_the_first_line_of_a_reason_not_to_build(self, spec: Spec) -> None:
        runner = spec(num_hidden_layers_override=3, pins=HERE).build()
        with pytest.raises(
            RunnerError, match=r"cannot build tiny on TEST_DEVICE .*: ValueError: three layers are too few\.$"
        ):
            runner.forward(PREFILL)

    def test_gives_the_place_of_a_failure_without_a_reason(self, spec: Spec) -> None:
        runner = spec(pins=HERE).build()
        with pytest.raises(
            RunnerError, match=r"13 tokens .* AssertionError in model_runner\.py, line \d+\.$"
        ):
            runner.forward(ForwardShapeKey(False, 1, 13, 13))

    def test_refuses_more_devices_than_the_interconnect_joins(self, spec: Spec) -> None:
        runner = spec(parallelism=Parallelism(dp=128), pins=HERE).build()
        with pytest.raises(RunnerError, match=r"needs 128 devices.* joins at most 64"):
            runner.forward(PREFILL)

    @pytest.mark.parametrize(
        ("pins", "named"),
        [({"source": "0" * 64}, "sources is"), ({"torch": "0.1"}, "torch is .* expected 0.1")],
    )
    def test_refuses_to_compute_for_pins_that_differ(
        self, spec: Spec, pins: dict[str, str], named: str
    ) -> None:
        runner = spec(pins={**HERE, **pins}).build()
        with pytest.raises(RunnerError, match=named):
            runner.forward(PREFILL)

    def test_refuses_to_compute_where_msmodeling_is_not(
        self, spec: Spec, checkout: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        model = make_model(checkout.parent / "model")
        monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
        runner = spec(path=None, model=str(model), pins={"source": "0" * 64}).build()
        with pytest.raises(
            RunnerError, match="must be computed, and msmodeling is not on this machine; clone"
        ):
            runner.forward(PREFILL)

    def test_says_which_dependency_is_missing_and_can_try_again(self, spec: Spec, tmp_path: Path) -> None:
        broken = make_checkout(tmp_path / "broken")
        file = broken / "tensor_cast" / "core" / "user_config.py"
        file.write_text("import no_such_dependency", encoding="utf-8")
        with pytest.raises(
            RunnerError, match=r"No module named 'no_such_dependency'; run `pip install torch"
        ):
            spec(path=str(broken), pins=HERE).build().forward(PREFILL)
        assert spec(pins=HERE).build().forward(PREFILL).latency_ms == 200_000.0

    def test_refuses_a_second_msmodeling_in_one_process(self, spec: Spec, tmp_path: Path) -> None:
        spec(pins=HERE).build().forward(PREFILL)
        other = make_checkout(tmp_path / "second")
        with pytest.raises(RunnerError, match="one process can hold one only"):
            spec(path=str(other), pins=HERE).build().forward(PREFILL)
