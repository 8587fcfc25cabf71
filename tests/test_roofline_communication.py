"""Collectives and expert exchange of the roofline against hand-computed cases."""

from __future__ import annotations

import pytest

from stages.parallelism import Parallelism
from stages.runners.quantization import Quantization
from stages.runners.roofline_communication import Fabric
from stages.runners.roofline_experts import ExpertShare, expert_share
from tests.roofline_cases import spec, with_device


def fabric(**links: float) -> Fabric:
    device = spec().device
    node = {"bandwidth_gb_per_s": 100.0, "latency_us": 1.0}, {"bandwidth_gb_per_s": 10.0, "latency_us": 5.0}
    return Fabric(
        with_device(
            spec(),
            operator_overhead_us=links.pop("overhead", 0.0),
            efficiency=device.efficiency.model_dump() | {"communication": 0.5},
            interconnect={"devices_per_node": 4, "intra_node": node[0], "inter_node": node[1]},
        ).device
    )


def test_collectives_take_the_time_of_their_ring() -> None:
    links = fabric()
    # 50 GB/s inside a node after efficiency, 5 GB/s between.
    assert links.all_reduce(4).fixed_s == pytest.approx(6e-6)
    assert links.all_reduce(4).s_per_byte == pytest.approx(2 * 3 / 4 / 50e9)
    assert links.all_gather(4) == pytest.approx((3e-6, 3 / 4 / 50e9))
    assert links.all_reduce(8).fixed_s == pytest.approx(2 * (3e-6 + 5e-6))
    assert links.all_reduce(8).s_per_byte == pytest.approx(2 * (3 / 4 / 50e9 + 1 / 2 / 4 / 5e9))


def test_an_all_to_all_is_paced_by_its_slower_links() -> None:
    links = fabric()
    assert links.all_to_all(4) == pytest.approx((1e-6, 1 / 50e9))
    assert links.all_to_all(8) == pytest.approx((5e-6, 4 / 7 / 5e9))
    # Members two devices apart: two of them share a node.
    assert links.all_to_all(4, stride=2) == pytest.approx((5e-6, 2 / 3 / 5e9))


def test_a_group_of_one_exchanges_nothing() -> None:
    links = fabric(overhead=3.0)
    for collective in (links.all_reduce, links.all_gather, links.all_to_all):
        assert collective(1) == (0.0, 0.0)


def test_a_collective_has_the_overhead_of_one_operator() -> None:
    bare, loaded = fabric(), fabric(overhead=3.0)
    for name in ("all_reduce", "all_gather", "all_to_all"):
        assert getattr(loaded, name)(8).fixed_s - getattr(bare, name)(8).fixed_s == pytest.approx(3e-6)


def share_of(name: str = "Qwen3-30B-A3B", **sizes: int) -> ExpertShare:
    model = spec(name).architecture
    assert model.experts is not None
    return expert_share(model, model.experts, Parallelism(**sizes), Quantization(), fabric())


def test_experts_hit_are_those_of_random_choices() -> None:
    share = share_of(dp=8, ep=8)
    assert share.experts_per_device == 16
    assert share.experts_hit(1) == pytest.approx(16 * 8 / 128)
    assert share.experts_hit(2) == pytest.approx(16 * (1 - (120 / 128) ** 2))
    assert share.experts_hit(10_000) == pytest.approx(16)
    assert share.pairs_per_token == 1


def test_split_experts_of_one_replica_need_an_all_reduce_and_spread_ones_an_exchange() -> None:
    def transfers(**sizes: int) -> tuple[int, int]:
        share = share_of(**sizes)
        return len(share.group_transfers), len(share.token_transfers)

    assert transfers() == (0, 0)
    assert transfers(tp=4) == (0, 1)
    assert transfers(tp=4, dp=2, moe_dp=2) == (0, 1)
    assert transfers(dp=4, moe_dp=4) == (0, 0)
    assert transfers(dp=4, ep=4) == (2, 0)
    assert transfers(tp=2, dp=2, ep=4) == (2, 1)
    assert transfers(tp=2, dp=4, ep=4) == (4, 1)
    assert transfers(tp=2, dp=2) == (2, 1)


def test_a_token_is_sent_once_to_each_device_that_has_one_of_its_experts() -> None:
    dispatch, combine = share_of(dp=4, ep=4).group_transfers
    # 8 choices among 4 devices reach 4 * (1 - (3/4)**8) of them, a quarter of which is the sender itself;
    # each device sends a quarter of the tokens, rows of 2048 BF16 numbers.
    remote = 4 * (1 - (3 / 4) ** 8) * 3 / 4 / 4
    assert dispatch.s_per_byte == pytest.approx(remote * 2048 * 2 / 50e9)
    assert combine == dispatch


def test_shared_experts_make_the_last_exchange_a_sum() -> None:
    row = {"Qwen3-30B-A3B": 2048 * 2, "DeepSeek-V3": 7168 * 2}
    (gather,), (reduce,) = (share_of(name, tp=2, dp=2, ep=4).token_transfers for name in row)
    assert gather.s_per_byte / row["Qwen3-30B-A3B"] == pytest.approx(1 / 2 / 50e9)
    assert reduce.s_per_byte / row["DeepSeek-V3"] == pytest.approx(2 * 1 / 2 / 50e9)
