"""The roofline's answers for passes with requests of several lengths."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache.shapes import ForwardShapeKey
from stages.parallelism import Parallelism
from tests.roofline_cases import spec, without_overhead
from tests.test_roofline import RUNNERS, seconds

segments = st.lists(
    st.tuples(st.integers(1, 600), st.integers(0, 2000), st.integers(1, 4)).map(
        lambda part: (part[0], part[0] + part[1], part[2])
    ),
    min_size=2,
    max_size=5,
)


def mixed(parts: list[tuple[int, int, int]], replicas: int = 1) -> ForwardShapeKey:
    return ForwardShapeKey.of_segments(False, parts, replicas)


@given(st.sampled_from(sorted(RUNNERS)), segments)
def test_a_mixed_pass_lies_between_its_shortest_and_its_longest_prompts(
    name: str, parts: list[tuple[int, int, int]]
) -> None:
    replicas = {"dense": 2, "experts": 4, "experts_split": 4, "latent": 4}.get(name, 1)
    forward = RUNNERS[name].forward
    requests = sum(part[2] for part in parts)
    least = (min(part[0] for part in parts), min(part[1] for part in parts), requests)
    most = (max(part[0] for part in parts), max(part[1] for part in parts), requests)
    low, middle, high = (forward(mixed(kinds, replicas)) for kinds in ([least], parts, [most]))
    assert low.latency_ms * (1 - 1e-12) <= middle.latency_ms <= high.latency_ms * (1 + 1e-12)
    assert low.memory_left_gb + 1e-9 >= middle.memory_left_gb >= high.memory_left_gb - 1e-9


def test_linear_work_is_shared_and_attention_is_the_sum_of_the_segments() -> None:
    """Without overheads, a dense model whose every operator is bound by compute is linear in its parts."""
    runner = without_overhead(spec("Llama-3.1-8B")).build()
    one, two, both = (
        seconds(runner.forward(mixed(parts)))["compute_bound_mma"]
        for parts in (
            [(4096, 4096, 1)],
            [(8192, 16384, 1)],
            [(4096, 4096, 1), (8192, 16384, 1)],
        )
    )
    assert both == pytest.approx(one + two, rel=1e-3)
    weights = seconds(runner.forward(mixed([(1, 1, 1), (2, 2, 1)])))["memory_bound"]
    alone = [seconds(runner.forward(mixed([part])))["memory_bound"] for part in ((1, 1, 1), (2, 2, 1))]
    assert weights == pytest.approx(max(alone), rel=1e-2)
    assert weights < 0.6 * sum(alone)


def test_the_kv_cache_of_a_mixed_pass_is_that_of_its_segments_in_whole_blocks() -> None:
    runner = spec("Llama-3.1-8B", block_size=128).build()
    parts = [(100, 100, 1), (300, 1000, 2)]
    caches = [runner.forward(mixed([part])).memory for part in parts]
    both = runner.forward(mixed(parts)).memory
    assert both is not None
    assert None not in caches
    assert both.kv_cache_gb == pytest.approx(sum(one.kv_cache_gb for one in caches if one is not None))


def test_replicas_are_alike() -> None:
    one, two = (spec("Qwen3-8B", parallelism=Parallelism(dp=dp)).build() for dp in (1, 2))
    parts = [(100, 100, 3), (200, 700, 1)]
    assert two.forward(mixed(parts, 2)).as_json() == one.forward(mixed(parts)).as_json()
