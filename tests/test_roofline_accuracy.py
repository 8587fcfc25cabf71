"""The roofline meets measured silicon where its factors were fitted; docs/accuracy.md says so."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from stages.runners.device import find_device_profile, load_device

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

pytest.importorskip("aiconfigurator_core", reason="aiconfigurator-core is not installed")
accuracy = pytest.importorskip("roofline_accuracy")
fit = pytest.importorskip("roofline_fit")
silicon = pytest.importorskip("silicon_points")

LLAMA = tuple(model for model in silicon.MODELS if model.name == "meta-llama/Llama-3.1-8B")


@pytest.fixture(scope="module")
def points(request: pytest.FixtureRequest) -> object:
    return silicon.measure(LLAMA, ("H100-SXM-80G",))


def test_a_fitted_dense_model_is_met_within_a_tenth(points: object) -> None:
    answers = accuracy.roofline(points, accuracy.specs(points))
    errors = (answers.ms / points.silicon_ms - 1).abs()  # type: ignore[attr-defined]
    assert len(errors) == len(silicon.PREFILL) + len(silicon.DECODE)
    assert errors.median() < 0.1


def test_the_tables_hold_every_model_and_a_dash_where_there_are_no_points(points: object) -> None:
    tables = accuracy.tables(points)
    assert "27 points: 1 models on 1 devices." in tables
    rows = [line for line in tables.splitlines() if line.startswith("| meta-llama/Llama-3.1-8B |")]
    assert len(rows) == 2
    assert all(row.count(" - ") == len(silicon.DEVICES) - 1 for row in rows)
    assert "nan" not in tables


def test_a_fit_beats_the_factors_it_starts_from(points: object) -> None:
    factors, _ = fit.fit(points)
    before, after = (
        (accuracy.roofline(points, accuracy.specs(points), f).ms / points.silicon_ms)  # type: ignore[attr-defined]
        for f in (accuracy.UNFITTED, factors)
    )
    assert (after - 1).abs().mean() < (before - 1).abs().mean()
    assert all(0 < factors[share] < 1 for share in fit.SHARES)


@pytest.mark.parametrize("name", silicon.DEVICES)
def test_the_page_has_the_factors_of_the_profiles(name: str) -> None:
    device = load_device(find_device_profile(name)[1])
    share = device.efficiency
    cells = [name, *(f"{value:.2f}" for value in (share.compute, share.memory, share.communication))]
    cells.append("as compute" if share.experts is None else f"{share.experts:.2f}")
    cells.append(str(device.operator_overhead_us))
    assert f"| {' | '.join(cells)} |" in (ROOT / "docs" / "accuracy.md").read_text(encoding="utf-8")
