"""Splitting devices between prefill and decode, and handing over KV caches."""

from __future__ import annotations

import itertools
import math
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache.errors import ConfigError
from configs import CONFIGS_DIR
from pipeline.cells import expand
from pipeline.config import load_config
from stages.pd_ratio import Half, KvTransfer, RatioRow, best_split, nearest_split
from tests.conftest import DATA, Shapecast
from tests.test_search_sweeps import SEARCH, write

RATIO: dict[str, Any] = {
    "parallelism": {"search": {}},
    "modes": ["prefill", "decode"],
    "ratio": {"prefill_devices": 1, "decode_devices": 2, "total_devices": 24},
}


def pair(p_qps: float, d_qps: float, p_devices: int, d_devices: int) -> RatioRow:
    halves = (Half(1.0, 1, 1, devices, "TP=1") for devices in (p_devices, d_devices))
    return RatioRow(*halves, p_qps, d_qps, d_qps / p_qps, min(p_qps, d_qps))


@given(st.floats(0.1, 100), st.floats(0.1, 100), st.integers(1, 8), st.integers(1, 8), st.integers(1, 60))
def test_the_best_split_serves_as_much_as_the_best_of_all_splits(
    p_qps: float, d_qps: float, p_devices: int, d_devices: int, total: int
) -> None:
    row = pair(p_qps, d_qps, p_devices, d_devices)
    fits = [
        (prefills, decodes)
        for prefills, decodes in itertools.product(range(1, total + 1), repeat=2)
        if prefills * p_devices + decodes * d_devices <= total
    ]
    split = best_split(row, total)
    if not fits:
        assert (split.prefills, split.decodes, split.qps) == (0, 0, 0)
        return
    assert (split.prefills, split.decodes) in fits
    most = max(min(prefills * p_qps, decodes * d_qps) for prefills, decodes in fits)
    assert math.isclose(split.qps, most, rel_tol=1e-12)
    assert split.qps >= nearest_split(row, total).qps


def test_the_split_nearest_to_the_ratio_can_leave_most_devices_idle() -> None:
    row = pair(1.0, 1.0, 2, 4)
    assert (nearest_split(row, 48).prefills, nearest_split(row, 48).decodes) == (1, 1)
    assert best_split(row, 48).qps == 8


def test_handing_over_takes_bytes_over_bandwidth_and_latency_unless_it_overlaps() -> None:
    link = {"bytes_per_token": 1e6, "bytes_per_s": 1e9, "latency_ms": 5.0}
    assert KvTransfer(**link).added_ms(100, 40.0) == 105
    assert KvTransfer(**link, overlapped=True).added_ms(100, 40.0) == 65
    assert KvTransfer(**link, overlapped=True).added_ms(100, 500.0) == 0
    assert KvTransfer().added_ms(1 << 40, 40.0) == 0


def ratio_run(shapecast: Shapecast, tmp_path: Path, **ratio: Any) -> tuple[str, pd.DataFrame]:
    config = write(tmp_path, **RATIO | {"ratio": RATIO["ratio"] | ratio})
    done = shapecast("run", config, "--out", "out", "--force")
    return done.stdout, pd.read_csv(tmp_path / "out" / "ratio.csv")


def test_a_ratio_sweep_gives_each_half_its_own_devices_and_splits_the_total(
    shapecast: Shapecast, tmp_path: Path
) -> None:
    text, pairs = ratio_run(shapecast, tmp_path)
    rows = pd.read_parquet(tmp_path / "out" / "results.parquet")
    assert set(rows[rows["mode"] == "prefill"]["num_devices"]) == {1}
    assert set(rows[rows["mode"] == "decode"]["num_devices"]) == {2}
    assert set(rows[rows["mode"] == "prefill"]["tpot_limit_ms"].isna()) == {True}
    assert set(rows[rows["mode"] == "decode"]["tpot_limit_ms"]) == {40}

    assert list(pairs["rank"]) == list(range(1, len(pairs) + 1))
    assert not pairs["balanced_qps"].diff().gt(0).any()
    used = pairs["best_prefill_instances"] + 2 * pairs["best_decode_instances"]
    assert (used <= 24).all()
    assert (pairs["best_total_qps"] >= pairs["nearest_total_qps"]).all()
    first = pairs.iloc[0]
    assert f"{first['best_prefill_instances']} prefill + {first['best_decode_instances']} decode" in text
    if first["nearest_total_qps"] < first["best_total_qps"]:
        assert "nearest to the ratio are" in text

    shapecast("run", write(tmp_path), "--out", "out", "--force")
    assert not (tmp_path / "out" / "ratio.csv").exists()


def test_handing_over_is_counted_in_the_pairs_and_against_the_limit(
    shapecast: Shapecast, tmp_path: Path
) -> None:
    _, free = ratio_run(shapecast, tmp_path)
    link = {"bandwidth_gb_per_s": 10, "bytes_per_token": 147456, "latency_ms": 1.0}
    _, slow = ratio_run(shapecast, tmp_path, kv_transfer=link)
    _, overlapped = ratio_run(shapecast, tmp_path, kv_transfer=link | {"overlapped": True})
    assert set(free["kv_transfer_ms"]) == {0}
    row = slow.iloc[0]
    bytes_handed = row["prefill_concurrency"] * 4000 * 147456
    assert row["kv_transfer_ms"] == pytest.approx(1 + 1000 * bytes_handed / 10e9)
    assert row["p_qps"] == pytest.approx(1000 * row["prefill_concurrency"] / row["ttft_ms"])
    assert slow["ttft_ms"].max() <= 5000
    assert slow["prefill_batch_size"].max() < free["prefill_batch_size"].max()
    assert overlapped["kv_transfer_ms"].max() < slow["kv_transfer_ms"].max()
    assert overlapped["p_qps"].max() >= slow["p_qps"].max()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"ratio": {"prefill_devices": 2}}, "ratio.decode_devices: this field is missing"),
        ({"ratio": {"decode_devices": 2}}, "ratio.prefill_devices: this field is missing"),
        ({"modes": ["prefill"], "limits": {}}, "ratio pairs prefill with decode; set modes to"),
        ({"parallelism": {"tp": 2}}, "ratio.prefill_devices is 1, but no parallelism uses 1 devices"),
        (
            {"ratio": RATIO["ratio"] | {"kv_transfer": {"bandwidth_gb_per_s": 5}}},
            "bandwidth_gb_per_s and bytes_per_token belong together",
        ),
        (
            {"ratio": RATIO["ratio"] | {"kv_transfer": {"bandwidth_gb_per_s": 0, "bytes_per_token": 1}}},
            "ratio.kv_transfer.bandwidth_gb_per_s: input should be greater than 0",
        ),
        ({"ratio": RATIO["ratio"] | {"total_devices": 0}}, "ratio.total_devices: input should be greater"),
    ],
)
def test_ratios_that_make_no_sense_are_refused_in_one_sentence(
    changes: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as refused:
        expand(load_config(write(tmp_path, **RATIO | changes)))
    assert sentence in str(refused.value)


def test_a_total_too_small_for_one_of_each_half_says_so(shapecast: Shapecast, tmp_path: Path) -> None:
    text, pairs = ratio_run(shapecast, tmp_path, total_devices=2)
    assert "not even one instance of each half fits" in text
    assert set(pairs["best_total_qps"]) == {0}
    assert SEARCH["name"] in (tmp_path / "out" / "manifest.json").read_text()


def test_the_shipped_example_shows_both_splits_as_documented(shapecast: Shapecast) -> None:
    page = (DATA.parent.parent / "docs" / "search.md").read_text(encoding="utf-8")
    figures = re.search(
        r"starts (\d+) prefill and (\d+) decode instance of the 48 H100\s+"
        r"\(([\d.]+) requests/s\), the best one (\d+) and (\d+) \(([\d.]+) requests/s\)",
        page,
    )
    assert figures is not None
    near_p, near_d, near_qps, best_p, best_d, best_qps = figures.groups()
    text = shapecast("run", CONFIGS_DIR / "disaggregated.yaml", "--out", "out").stdout
    line = next(line for line in text.splitlines() if line.startswith("Qwen/Qwen3-32B on 48 x H100"))
    assert f"fastest are {best_p} prefill + {best_d} decode instances ({best_qps} req/s)" in line
    assert f"nearest to the ratio are {near_p} prefill + {near_d} decode instances ({near_qps} req/s)" in line
