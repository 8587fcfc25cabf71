"""Images of a workload are part of every shape."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from cache import ForwardLatencyRecord, ForwardLatencyTable, ForwardShapeKey
from cache.shapes import IMAGE_FIELDS
from stages import Candidate, Engine, Parallelism, Workload, evaluate
from stages.candidate import MODES, Mode
from stages.lengths import LengthBin, LengthDistribution
from stages.plan import plan
from stages.workload import Image
from tests.conftest import Shapecast

ENGINE = Engine(512)


def image_fields(key: ForwardShapeKey) -> tuple[int | None, ...]:
    return tuple(getattr(key, name) for name in IMAGE_FIELDS)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("input_length", [100, 2000])
@pytest.mark.parametrize(("batch_size", "images"), [(None, 6), (3, 3)])
def test_images_reach_every_key_and_the_candidates_batch_size_stands_in(
    mode: Mode, input_length: int, batch_size: int | None, images: int
) -> None:
    workload = Workload(input_length, 8, image=Image(1080, 1920, batch_size))
    keys = plan(Candidate(mode, workload, ENGINE, Parallelism(dp=2), 6)).keys
    assert {image_fields(key) for key in keys} == {(images, 1080, 1920)}


def test_images_reach_passes_with_requests_of_several_lengths() -> None:
    lengths = LengthDistribution((LengthBin(10, 11, 1), LengthBin(20, 21, 1)))
    workload = Workload.of_lengths(lengths, 8, image=Image(64, 64))
    keys = plan(Candidate("aggregated", workload, ENGINE, Parallelism(), 6)).keys
    assert keys[0].segments is not None
    assert {image_fields(key) for key in keys} == {(6, 64, 64)}


@pytest.mark.parametrize("mode", MODES)
def test_a_record_of_text_is_never_reused_for_images_nor_one_of_other_images(mode: Mode) -> None:
    table = ForwardLatencyTable(lambda key: ForwardLatencyRecord(1.0, 1.0))
    images = (None, Image(64, 64), Image(64, 64, 2), Image(64, 128), Image(128, 64))
    calls = []
    for image in images:
        before = table.forward_calls
        evaluate(Candidate(mode, Workload(2000, 8, image=image), ENGINE, Parallelism(), 4), table)
        calls.append(table.forward_calls - before)
    assert calls[0] > 0
    assert set(calls) == {calls[0]}


@pytest.mark.parametrize(
    ("fields", "message"),
    [((0, 1), "image.height is 0"), ((1, -1), "image.width is -1"), ((1, 1, 0), "image.batch_size is 0")],
)
def test_images_without_extent_are_refused(fields: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Image(*fields)


SWEEP = """
name: images
runner: {kind: recorded, path: records.csv}
models: [any]
devices: [any]
modes: [decode]
workloads: [{input_length: 100, output_length: 10, image: %s}]
engine: {max_batched_tokens: 512}
concurrency: {batch_sizes: [4]}
"""
RECORDS = pd.DataFrame(
    [
        [True, 4, 1, 106, None, None, None, 5.0, 1.0],
        [True, 4, 1, 106, 4, 64, 32, 7.0, 1.0],
        [True, 4, 1, 106, 2, 64, 32, 6.0, 1.0],
    ],
    columns=[
        *("is_decode", "model_concurrency", "query_len", "seq_len"),
        *(*IMAGE_FIELDS, "latency_ms", "memory_left_gb"),
    ],
)


def test_a_sweep_over_images_has_its_own_records(shapecast: Shapecast, tmp_path: Path) -> None:
    RECORDS.to_csv(tmp_path / "records.csv", index=False)
    images = "[null, {height: 64, width: 32}, {height: 64, width: 32, batch_size: 2}]"
    (tmp_path / "images.yaml").write_text(SWEEP % images, encoding="utf-8")
    first = shapecast("run", "images.yaml", "--out", "a")
    assert "Shapes: 3 needed, 0 reused, 3 computed" in first.stdout
    assert "100 input and 10 output tokens, images of 64 x 32" in first.stdout
    frame = pd.read_parquet(tmp_path / "a/results.parquet")
    assert list(frame["tpot_ms"]) == [5.0, 7.0, 6.0]
    assert list(frame["image_batch_size"].isna()) == [True, True, False]
    assert list(frame["image_height"].dropna()) == [64, 64]


def test_a_runner_that_knows_text_only_says_so(shapecast: Shapecast, tmp_path: Path) -> None:
    text = (SWEEP % "{height: 64, width: 32}").replace(
        "{kind: recorded, path: records.csv}", "{kind: roofline}"
    )
    text = text.replace("models: [any]", "models: [Qwen/Qwen3-8B]").replace("[any]", "[H100-SXM-80G]")
    (tmp_path / "images.yaml").write_text(text, encoding="utf-8")
    done = shapecast("run", "images.yaml", "--out", "a", expect=1)
    assert "with 4 images of 64 x 32, because it knows text only;" in done.stderr


def test_an_image_without_height_is_one_sentence(shapecast: Shapecast, tmp_path: Path) -> None:
    (tmp_path / "images.yaml").write_text(SWEEP % "{width: 32}", encoding="utf-8")
    done = shapecast("run", "images.yaml", "--out", "a", expect=1)
    assert "workloads[0].image.height: this field is missing; it is required" in done.stderr
