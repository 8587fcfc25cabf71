# ruff: noqa: E501 - the table of bad configs reads best a case a line
"""Bad sweep configs: one sentence with the file, the place in it and the reason; nothing is written."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from cache.errors import ConfigError
from pipeline.cells import Cell, expand
from pipeline.config import load_config
from pipeline.yaml_file import load_yaml_mapping
from tests.conftest import Shapecast

BASE = """
name: small
runner: {kind: roofline}
models: Qwen/Qwen3-8B
devices: H100-SXM-80G
parallelism: {tp: 2}
workloads: {input_length: 400, output_length: 64}
engine: {max_batched_tokens: 512}
concurrency: {batch_sizes: 4}
"""


def cells_of(tmp_path: Path, text: str) -> list[Cell]:
    path = tmp_path / "sweep.yaml"
    path.write_text(text, encoding="utf-8")
    return expand(load_config(path))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("400", "0", "workloads.input_length: input should be greater than 0, not 0."),
        ("400", "-3", "workloads.input_length: input should be greater than 0, not -3."),
        ("400", '"400"', "workloads.input_length: input should be a valid integer, not '400'."),
        ("400", "1.5", "workloads.input_length: input should be a valid integer, not 1.5."),
        ("400", "true", "workloads.input_length: input should be a valid integer, not True."),
        ("400", "[100, 0]", "workloads.input_length[1]: input should be greater than 0, not 0."),
        ("64}", "0}", "workloads.output_length: input should be greater than 0"),
        ("64}", "64, prefix_cache_hit_rate: 1.0}", "prefix_cache_hit_rate: input should be less than 1"),
        ("64}", "64, prefix_cache_hit_rate: -0.5}", "prefix_cache_hit_rate: input should be greater than or"),
        ("input_length", "inputlength", "workloads.inputlength: this field is unknown; did you mean input_length?"),
        ("workloads", "workload", "workload: this field is unknown; did you mean workloads? (and 1 more finding)"),
        ("input_length", "inputlength: 1, input_length", "inputlength: this field is unknown; did you mean input_length?"),
        ("400", "1:30:00", "workloads.input_length: input should be a valid integer, not '1:30:00'."),
        ("400", "0100", "workloads.input_length: input should be a valid integer, not '0100'."),
        ("64}", f"64, {'x' * 500}: 1}}", f"workloads.{'x' * 80}...: this field is unknown; remove it."),
        ("512}", f"512, scheduler: {'x' * 500}}}", "xxx... (502 characters); use decode_first_slack"),
        ("Qwen3-8B", "x" * 500, "xxx... (507 characters): "),
        ("name: small\n", "", "name: this field is missing; it is required."),
        ("name: small", "name: a b", "name: use letters, digits"),
        ("batch_sizes: 4", "batch_sizes: []", "concurrency.batch_sizes: give at least one value."),
        ("batch_sizes: 4", "batch_sizes: [4, 4]", "concurrency.batch_sizes: 4 stands twice; name each value once."),
        ("batch_sizes: 4", "batch_sizes: 0", "concurrency.batch_sizes: input should be greater than 0, not 0."),
        ("batch_sizes: 4", f"batch_sizes: {10**10}", "batch_sizes: input should be less than or equal to 2147483647"),
        ("batch_sizes: 4", f"batch_sizes: {10**9}", "steps to plan; it must be at most 2000000: lower batch_size"),
        ("batch_sizes: 4", f"search: bisect, range: [1, {10**9}]", "steps to plan; it must be at most 2000000"),
        ("512}", f"{10**30}}}", "engine.max_batched_tokens: input should be less than or equal to 2147483647"),
        ("512}", "512, serving_cost_ms: 1e300}", "serving_cost_ms: input should be"),
        ("400", f"{10**9}", "1953125 chunks; it must be at most 65536 chunks: raise max_batched_tokens to 15259"),
        ("64}", f"{10**20}}}", "workloads.output_length: input should be less than or equal to 2147483647"),
        ("64}", f"{'x' * 500}}}", "x... (502 characters)."),
        ("512}", "0}", "engine.max_batched_tokens: input should be greater than 0, not 0."),
        ("512}", "512, scheduler: foo}", "engine.scheduler: There is no scheduler 'foo'; use decode_first_slack"),
        ("Qwen/Qwen3-8B", "[Qwen3-8B, ./none]", "sweep.yaml: models[1]: Model config "),
        ("512}", "512, num_mtp_tokens: 1, mtp_acceptance_rate: []}", "mtp_acceptance_rate has 0 rates"),
        ("512}", "512, serving_cost_ms: -1}", "engine.serving_cost_ms: input should be greater than or equal to 0"),
        ("{kind: roofline}", "roofline", "runner: input should be a valid dictionary, not 'roofline'."),
        ("{kind: roofline}", "{}", "runner.kind is missing; name a runner, such as roofline."),
        ("roofline", "rofline", "runner.kind: There is no runner 'rofline'; use roofline."),
        ("roofline}", "roofline, quantization: {weights: fp7}}", "runner.quantization.weights: input should be"),
        ("roofline}", "roofline, speed: 3}", "runner.speed: this field is unknown; remove it."),
        ("Qwen3-8B", "Qwen3-9B", "sweep.yaml: models: Unknown model 'Qwen/Qwen3-9B'"),
        ("Qwen/Qwen3-8B", "[Qwen3-8B, q]", "sweep.yaml: models[1]: Unknown model 'q'"),
        ("H100-SXM-80G", "[H100-SXM-80G, H1]", "sweep.yaml: devices[1]: Unknown device 'H1'"),
        ("{tp: 2}", "[{tp: 2}, {tp: [1, 3]}]", "sweep.yaml: parallelism[1].tp: tp is 3, but Qwen/Qwen3-8B has"),
        ("512}", "512, num_mtp_tokens: 1}", "sweep.yaml: engine.num_mtp_tokens: num_mtp_tokens is 1, but"),
        ("{kind: roofline}", "[{kind: roofline}, {kind: roofline, name: a, reserved_memory_gb: 999}]", "(runner[1] roofline): reserved_memory_gb is 999"),
        ("Qwen3-8B", "Qwen3-9B", "Unknown model 'Qwen/Qwen3-9B': close names are Qwen/Qwen3-8B"),
        ("H100-SXM-80G", "H100", "Unknown device 'H100': close names are H100-SXM-80G"),
        ("Qwen/Qwen3-8B", "./none", "none does not exist; give an existing file or a shipped name."),
        ("tp: 2", "tp: 3", "tp is 3, but Qwen/Qwen3-8B has 32 attention heads; choose a tp that divides them"),
        ("tp: 2", "tp: 0", "parallelism.tp: input should be greater than 0, not 0."),
        ("tp: 2", "tp: 2, ep: 3", "ep * moe_tp * moe_dp is 3 * 1 * 1; it must be tp * dp (2)"),
        ("tp: 2", "tp: 2, ep: 2", "ep is 2, but Qwen/Qwen3-8B has no experts to spread"),
        ("concurrency", "modes: [agg]\nconcurrency", "modes[0]: input should be 'aggregated', 'prefill' or 'decode'"),
        ("concurrency", "limits: {ttft_ms: 0}\nconcurrency", "limits.ttft_ms: input should be greater than 0"),
        ("concurrency", "limits: {tpot_ms: -1}\nconcurrency", "limits.tpot_ms: input should be greater than 0"),
        ("concurrency", "limits: {ttft_ms: .inf}\nconcurrency", "limits.ttft_ms: input should be a finite number"),
        ("concurrency", "name: again\nconcurrency", "the key 'name' stands twice in one mapping"),
        ("{batch_sizes: 4}", "{batch_sizes: [4", "is not valid YAML in line"),
    ],
)  # fmt: skip
def test_a_bad_field_is_named_with_its_place_and_reason(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        cells_of(tmp_path, BASE.replace(old, new, 1))
    assert message in str(caught.value)
    assert str(tmp_path / "sweep.yaml") in str(caught.value)
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith((".", "?", ")."))
    assert not str(caught.value).endswith("?.")


@pytest.mark.parametrize(
    ("text", "value"), [("1_000", 1000), ("0x10", 16), ("0", 0), ("-3", -3), ("0.5", 0.5)]
)
def test_numbers_in_yaml_mean_what_they_say(tmp_path: Path, text: str, value: float) -> None:
    (tmp_path / "one.yaml").write_text(f"one: {text}")
    assert load_yaml_mapping(tmp_path / "one.yaml", "file") == {"one": value}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("# nothing\n", "is empty"),
        ("[1, 2]", "holds a list; expected a mapping"),
        ("\tx: 1", "YAML"),
    ],
)
def test_a_file_that_is_no_config_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        cells_of(tmp_path, text)


def test_a_model_directory_needs_a_config(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    with pytest.raises(ConfigError, match=r"has no config\.json"):
        cells_of(tmp_path, BASE.replace("Qwen/Qwen3-8B", "./model"))
    (tmp_path / "model" / "config.json").write_text('{"architectures": ["MambaForCausalLM"]}')
    with pytest.raises(ConfigError, match="MambaForCausalLM"):
        cells_of(tmp_path, BASE.replace("Qwen/Qwen3-8B", "./model"))


def test_lists_are_dimensions_and_scalars_are_fixed(tmp_path: Path) -> None:
    text = (
        BASE.replace("models: Qwen/Qwen3-8B", "models: [Qwen/Qwen3-8B, Qwen/Qwen3-32B]")
        .replace("{tp: 2}", "[{tp: [1, 2]}, {tp: 2, dp: 2}]")
        .replace("400", "[400, 800]")
        .replace("512", "[256, 512]")
        .replace("concurrency", "modes: [prefill, decode]\nlimits: {ttft_ms: 5, tpot_ms: 6}\nconcurrency")
    )
    cells = cells_of(tmp_path, text)
    assert len(cells) == 2 * 1 * 3 * 2 * 2 * 2
    assert [cell.index for cell in cells] == list(range(len(cells)))
    assert {(cell.mode, cell.ttft_limit_ms, cell.tpot_limit_ms) for cell in cells} == {
        ("prefill", 5.0, None),
        ("decode", None, 6.0),
    }
    assert len({cell.identity.id for cell in cells}) == 2 * 3
    assert len({cell.plan_inputs() for cell in cells}) == 2 * 2 * 2 * 2


def test_models_and_devices_may_be_paths_relative_to_the_config(tmp_path: Path) -> None:
    from configs import DEVICES_DIR, MODELS_DIR

    (tmp_path / "m").mkdir()
    source = MODELS_DIR / "Qwen" / "Qwen3-8B" / "config.json"
    (tmp_path / "m" / "config.json").write_bytes(source.read_bytes())
    (tmp_path / "mine.yaml").write_bytes((DEVICES_DIR / "H100-SXM-80G.yaml").read_bytes())
    named = cells_of(tmp_path, BASE)[0].identity
    moved = cells_of(tmp_path, BASE.replace("Qwen/Qwen3-8B", "m").replace("H100-SXM-80G", "mine.yaml"))[
        0
    ].identity
    assert moved.id == named.id


def test_shipped_configs_expand() -> None:
    from configs import CONFIGS_DIR

    for name in ("quickstart.yaml", "long_context.yaml"):
        path = CONFIGS_DIR / name
        assert expand(load_config(path))
        assert yaml.safe_load(path.read_text())["name"].replace("-", "_") == path.stem


def test_errors_leave_nothing_behind_and_exit_with_1_or_2(shapecast: Shapecast, tmp_path: Path) -> None:
    config = tmp_path / "sweep.yaml"
    config.write_text(BASE.replace("400", "0"))
    failed = shapecast("run", config, expect=1)
    assert failed.stderr.startswith("shapecast: error: ")
    assert failed.stderr.count("\n") == 1
    assert "There is no sweep config at none.yaml" in shapecast("run", "none.yaml", expect=1).stderr
    assert "The argument CONFIG is missing" in shapecast("run", expect=2).stderr
    assert "--jobs" in shapecast("run", config, "--jobs", 0, expect=2).stderr
    for option in ("--out", "--tables"):
        assert (
            f"{option} cannot be used: it is empty; give a path"
            in shapecast("run", config, option, "", expect=2).stderr
        )
    assert "threads" in shapecast("run", config, "--scheduler", "dask", expect=2).stderr
    assert [path.name for path in tmp_path.iterdir()] == ["sweep.yaml"]


def test_an_output_folder_is_not_taken_from_another_run(shapecast: Shapecast, tmp_path: Path) -> None:
    config = tmp_path / "sweep.yaml"
    config.write_text(BASE)
    shapecast("run", config, "--out", "out", "--quiet")
    shapecast("run", config, "--out", "out", "--quiet")
    before = (tmp_path / "out" / "results.parquet").read_bytes()
    config.write_text(BASE.replace("400", "401"))
    refused = shapecast("run", config, "--out", "out", expect=1)
    assert (
        "already holds a different run; choose another with --out, or replace it with --force"
        in refused.stderr
    )
    assert (tmp_path / "out" / "results.parquet").read_bytes() == before
    shapecast("run", config, "--out", "out", "--quiet", "--force")
    assert (tmp_path / "out" / "results.parquet").read_bytes() != before

    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep me")
    assert "is not empty and holds no run" in shapecast("run", config, "--out", "mine", expect=1).stderr
    assert "is a file" in shapecast("run", config, "--out", config, expect=1).stderr
    assert "cannot be written" in shapecast("run", config, "--out", "/proc/none", expect=1).stderr


def test_tables_that_cannot_be_used_are_found_before_any_output(shapecast: Shapecast, tmp_path: Path) -> None:
    config = tmp_path / "sweep.yaml"
    config.write_text(BASE)
    assert "choose another with --tables" in shapecast("run", config, "--tables", config, expect=1).stderr
    identity = cells_of(tmp_path, BASE)[0].identity
    table = tmp_path / "newer" / identity.id
    table.mkdir(parents=True)
    (table / "identity.json").write_text('{"schema_version": 999}')
    refused = shapecast("run", config, "--tables", "newer", expect=1)
    assert "has schema version 999; this shapecast reads up to" in refused.stderr
    assert "upgrade shapecast" in refused.stderr
    assert not (tmp_path / "out").exists()


def test_lists_of_models_and_devices_are_printed(shapecast: Shapecast) -> None:
    assert "DeepSeek-V3" in shapecast("models").stdout
    assert "ATLAS-800-A3-128G" in shapecast("devices").stdout
    assert "There is no runner 'x'" in shapecast("models", "--runner", "x", expect=1).stderr
    assert shapecast("--version").stdout.startswith("shapecast 0.")
