"""The one-line question, through the installed command."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

import configs
from cache.errors import UsageError
from pipeline.cli_options import repeat_options
from pipeline.optimize import Question, sweep_config
from tests.conftest import Shapecast

ASK = ["--input-length", 2000, "--output-length", 64, "--num-devices", 2]
H100 = ["--device", "H100-SXM-80G"]
MODEL = "Qwen/Qwen3-8B"


def rows_of(folder: Path) -> pd.DataFrame:
    return pd.read_parquet(folder / "results.parquet")


def digests(folder: Path) -> dict[str, str]:
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.iterdir()
        if path.name != "run.log"
    }


def test_several_devices_are_compared_and_the_emitted_config_gives_the_same_bytes(
    shapecast: Shapecast, tmp_path: Path
) -> None:
    ask = [MODEL, "--device", "H100-SXM-80G", "B200-SXM-180G", *ASK, "--tpot-limits", 30]
    done = shapecast("optimize", *ask, "--emit-config", "asked.yaml", "--out", "asked")
    shapecast("run", "asked.yaml", "--out", "again", "--quiet")
    shapecast("optimize", *ask, "--out", "plain", "--quiet", "--jobs", 1)
    assert digests(tmp_path / "asked") == digests(tmp_path / "again") == digests(tmp_path / "plain")
    assert "best per device, aggregated" in done.stdout
    rows = rows_of(tmp_path / "asked")
    assert set(rows["device"]) == {"H100-SXM-80G", "B200-SXM-180G"}
    assert set(rows["tp"]) == {1, 2}
    assert (rows["num_devices"] == 2).all()
    assert rows[rows["feasible"]]["tpot_ms"].max() <= 30


def test_a_model_given_by_its_path_is_found_from_a_config_in_another_folder(
    shapecast: Shapecast, tmp_path: Path
) -> None:
    shipped = Path(str(configs.__file__)).parent / "models" / MODEL / "config.json"
    shutil.copy(shipped, tmp_path / "mine.json")
    (tmp_path / "sweeps").mkdir()
    shapecast(
        "optimize", "mine.json", *H100, *ASK, "--emit-config", "sweeps/asked.yaml", "--out", "a", "--quiet"
    )
    shapecast("run", "sweeps/asked.yaml", "--out", "b", "--quiet")
    assert digests(tmp_path / "a") == digests(tmp_path / "b")


def test_a_dash_prints_the_config_and_runs_nothing(shapecast: Shapecast, tmp_path: Path) -> None:
    done = shapecast("optimize", MODEL, *H100, *ASK, "--emit-config", "-")
    assert yaml.safe_load(done.stdout)["models"] == [MODEL]
    assert not (tmp_path / "out").exists()


def test_questions_have_folders_of_their_own(shapecast: Shapecast, tmp_path: Path) -> None:
    folders = {
        shapecast("optimize", MODEL, *H100, *ASK, "--tp-sizes", size, "--quiet").stdout for size in (1, 2, 1)
    }
    assert len(folders) == 2
    assert all((tmp_path / folder.strip() / "manifest.json").exists() for folder in folders)


def test_disaggregated_halves_follow_from_their_limits(shapecast: Shapecast, tmp_path: Path) -> None:
    for flags, modes in (
        (["--ttft-limits", 500], {"prefill"}),
        (["--tpot-limits", 20], {"decode"}),
        (["--ttft-limits", 500, "--tpot-limits", 20], {"prefill", "decode"}),
    ):
        shapecast("optimize", MODEL, *H100, *ASK, "--disagg", *flags, "--out", "o", "--force", "--quiet")
        assert set(rows_of(tmp_path / "o")["mode"]) == modes


def test_the_ratio_flags_pair_both_halves_over_all_devices(shapecast: Shapecast, tmp_path: Path) -> None:
    halves = ["--prefill-devices-per-instance", 1, "--decode-devices-per-instance", 2]
    done = shapecast(
        "optimize", MODEL, *H100, *ASK[:4], "--num-devices", 16, "--enable-optimize-prefill-decode-ratio",
        *halves, "--ttft-limits", 2000, "--tpot-limits", 20, "--out", "o",
    )  # fmt: skip
    assert "on 16 x H100-SXM-80G: " in done.stdout
    pairs = pd.read_csv(tmp_path / "o" / "ratio.csv")
    assert set(pairs["prefill_devices"]) == {1}
    assert set(pairs["decode_devices"]) == {2}
    assert (pairs["best_prefill_instances"] + 2 * pairs["best_decode_instances"] <= 16).all()


def test_every_flag_reaches_the_sweep(shapecast: Shapecast, tmp_path: Path) -> None:
    shapecast(
        "optimize", "Qwen/Qwen3-30B-A3B", *H100, "--num-devices", 4, "--input-length", 1000,
        "--output-length", 32, "--max-batched-tokens", 512, 2048, "--tp-sizes", 1, 2, "--ep-sizes", 4,
        "--moe-dp-sizes", 1, "--prefix-cache-hit-rate", 0.5, "--batch-range", 2, 12,
        "--concurrency-search-strategy", "exhaustive-frontier", "--num-mtp-tokens", 0,
        "--mtp-acceptance-rate", 0.8, "--runner", "roofline", "--jobs", 2, "--out", "o", "--quiet",
    )  # fmt: skip
    rows = rows_of(tmp_path / "o")
    assert set(rows["max_batched_tokens"]) == {512, 2048}
    assert set(zip(rows["tp"], rows["dp"], rows["ep"], strict=True)) == {(1, 4, 4), (2, 2, 4)}
    assert set(rows["effective_input_length"]) == {500}
    assert set(rows["batch_size"]) == set(range(2, 13))
    assert set(rows["num_mtp_tokens"]) == {0}


def test_draft_tokens_are_searched_with_their_acceptance(shapecast: Shapecast, tmp_path: Path) -> None:
    shapecast(
        "optimize", "deepseek-ai/DeepSeek-V3", "--device", "B200-SXM-180G", "--num-devices", 8,
        "--input-length", 1000, "--output-length", 32, "--tp-sizes", 8, "--ep-sizes", 8,
        "--num-mtp-tokens", 0, 1, "--mtp-acceptance-rate", 0.7, "--batch-range", 4, "--out", "o", "--quiet",
    )  # fmt: skip
    rows = rows_of(tmp_path / "o")
    assert set(rows["num_mtp_tokens"]) == {0, 1}
    assert {tuple(rates) for rates in rows["mtp_acceptance_rate"]} == {(), (0.7,)}


def test_an_option_takes_all_values_up_to_the_next_and_none_means_auto() -> None:
    assert repeat_options(["--device", "A", "B", "--jobs", "2"]) == [
        "--device", "A", "--device", "B", "--jobs", "2",
    ]  # fmt: skip
    assert repeat_options(["--tp-sizes", "--disagg"]) == ["--tp-sizes", "auto", "--disagg"]
    assert repeat_options(["--tp-sizes", "1", "2", "org/model"]) == [
        "--tp-sizes", "1", "--tp-sizes", "2", "org/model",
    ]  # fmt: skip
    assert repeat_options(["--", "--device", "A"]) == ["--", "--device", "A"]
    assert repeat_options(["--batch-range"]) == ["--batch-range"]


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--disagg"], "--disagg has no limit; give --ttft-limits for prefill"),
        (["--enable-optimize-prefill-decode-ratio"], "--prefill-devices-per-instance is missing"),
        (["--decode-devices-per-instance", 2], "--decode-devices-per-instance belongs to --enable-optimize"),
        (["--batch-range", 8, 2], "--batch-range is 8 2, which is reversed"),
        (
            ["--concurrency-search-strategy", "magic"],
            "search-strategy is magic; use exponential,",
        ),
    ],
)
def test_questions_that_contradict_themselves_end_with_one_line_and_code_2(
    flags: list[object], sentence: str, shapecast: Shapecast, tmp_path: Path
) -> None:
    done = shapecast("optimize", MODEL, *H100, *ASK, *flags, expect=2)
    assert sentence in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


def question(**changes: Any) -> Question:
    fields: dict[str, Any] = {
        "model": MODEL,
        "devices": ["H100-SXM-80G"],
        "num_devices": 2,
        "input_length": 100,
        "output_length": 10,
        "prefix_cache_hit_rate": 0.0,
        "max_batched_tokens": ["auto"],
        "ttft_limit_ms": None,
        "tpot_limit_ms": None,
        "disagg": False,
        "tp_sizes": ["auto"],
        "ep_sizes": ["auto"],
        "moe_dp_sizes": ["1"],
        "num_mtp_tokens": ["0"],
        "mtp_acceptance_rate": None,
        "batch_range": None,
        "strategy": "exponential",
        "ratio": False,
        "prefill_devices": None,
        "decode_devices": None,
        "runner": "roofline",
    }
    return Question(**fields | changes)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"num_devices": None}, "--num-devices is missing"),
        ({"num_devices": 0}, "--num-devices is 0; it must be at least 1"),
        ({"input_length": 0}, "--input-length is 0"),
        ({"output_length": -1}, "--output-length is -1"),
        ({"prefix_cache_hit_rate": 1.0}, "--prefix-cache-hit-rate is 1; it must be at least 0 and below 1"),
        ({"ttft_limit_ms": 0.0}, "--ttft-limits is 0; a limit is a number of milliseconds above 0"),
        ({"tpot_limit_ms": float("nan")}, "--tpot-limits is nan"),
        ({"tp_sizes": ["two"]}, "--tp-sizes is two; give whole numbers of at least 1, or auto alone"),
        ({"ep_sizes": ["0"]}, "--ep-sizes is 0"),
        ({"moe_dp_sizes": ["1", "auto"]}, "--moe-dp-sizes is auto"),
        ({"num_mtp_tokens": ["-1"]}, "--num-mtp-tokens is -1; give whole numbers of at least 0"),
        (
            {"max_batched_tokens": ["0"]},
            "--max-batched-tokens is 0; give whole numbers of at least 1, or",
        ),
        ({"batch_range": ["0", "4"]}, "--batch-range is 0"),
        ({"batch_range": ["1", "2", "3"]}, "--batch-range has 3 values"),
        ({"strategy": "bisect"}, "bisect has no range; add --batch-range A B"),
        ({"mtp_acceptance_rate": ["2"]}, "--mtp-acceptance-rate is 2; give rates between 0 and 1"),
        (
            {"mtp_acceptance_rate": ["0.5"], "num_mtp_tokens": ["0", "2"]},
            "--mtp-acceptance-rate has 1 rates, but --num-mtp-tokens asks for 2",
        ),
        ({"ratio": True, "prefill_devices": 1}, "--decode-devices-per-instance is missing"),
        (
            {"ratio": True, "prefill_devices": 0, "decode_devices": 1},
            "per-instance is 0; it must be",
        ),
    ],
)
def test_a_question_that_makes_no_sense_is_refused_in_one_sentence(
    changes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(UsageError) as refused:
        sweep_config(question(**changes))
    assert sentence in str(refused.value)
    assert str(refused.value).endswith(".")
