"""Expert parallelism: which share of the experts' work one device has, and what is exchanged for it."""

from __future__ import annotations

from dataclasses import dataclass

from stages.parallelism import Parallelism
from stages.runners.architecture import Experts, ModelArchitecture
from stages.runners.quantization import BF16_BYTES, Quantization
from stages.runners.roofline_communication import Fabric, Transfer


def power(base: float, exponent: int) -> float:
    """Return `base` to a whole `exponent` by squaring: the C library's `pow` differs between platforms."""
    result = 1.0
    while exponent:
        if exponent & 1:
            result *= base
        base *= base
        exponent >>= 1
    return result


@dataclass(frozen=True, slots=True)
class ExpertShare:
    """Work of the routed experts on one device, tokens being spread evenly over the experts.

    "Group tokens" are the tokens that the devices sharing one copy of all experts work on together.

    Parameters
    ----------
    experts_per_device : float
        Experts (or slices of them) that a device holds.
    miss_rate : float
        Probability that one token is not sent to a given expert.
    pairs_per_token : float
        (token, expert) pairs that a device computes per group token.
    group_transfers : tuple of Transfer
        Communication per group token, around the experts.
    token_transfers : tuple of Transfer
        Communication per token of the replica, after the experts.
    """

    experts_per_device: float
    miss_rate: float
    pairs_per_token: float
    group_transfers: tuple[Transfer, ...]
    token_transfers: tuple[Transfer, ...]

    def experts_hit(self, group_tokens: int) -> float:
        """Return how many experts of a device at least one token is sent to, as expected.

        With k of E experts chosen at random per token, an expert is missed by all of T tokens with
        probability (1 - k / E) ** T, so E * (1 - (1 - k / E) ** T) of all experts are hit.
        """
        return self.experts_per_device * (1 - power(self.miss_rate, group_tokens))


def expert_share(
    model: ModelArchitecture,
    experts: Experts,
    parallelism: Parallelism,
    quantization: Quantization,
    fabric: Fabric,
) -> ExpertShare:
    """Return the share of one device in the routed experts of a layer.

    Where the experts are only split the way attention is, the devices of a replica hold all its tokens
    and one all-reduce sums their results. Else each device sends its share of the tokens to the devices
    that hold their experts (all-to-all over `ep`, one copy per device however many of its experts are
    wanted, as in DeepSeek-V3, arXiv:2412.19437, section 3.2.2), gathers them among the `moe_tp` slices of
    an expert, and gets the results back the same way; last, the replica restores all of them on each of
    its devices. Shared experts are split over `tp`; their sum joins that last exchange.
    """
    tp, ep, moe_tp = parallelism.tp, parallelism.ep, parallelism.moe_tp or 1
    row_in, row_out = model.hidden_size * quantization.activation_bytes, model.hidden_size * BF16_BYTES
    group, token = [], []
    if ep == 1 and moe_tp == tp:
        token.append(fabric.all_reduce(tp).scaled(row_out))
    else:
        # A token goes to this many of the ep devices: of k choices, some fall on the same one.
        copies = ep * (1 - power(1 - 1 / ep, experts.experts_per_token))
        sent = copies * (ep - 1) / ep / (ep * moe_tp)
        to_experts, slices = fabric.all_to_all(ep, stride=moe_tp), fabric.all_gather(moe_tp)
        group = [
            to_experts.scaled(sent * row_in),
            slices.scaled(copies / ep * row_in),
            slices.scaled(copies / ep * row_out),
            to_experts.scaled(sent * row_out),
        ]
        restore = fabric.all_reduce if experts.shared_intermediate_size else fabric.all_gather
        token.append(restore(tp).scaled(row_out))
    return ExpertShare(
        experts_per_device=experts.num_experts / ep,
        miss_rate=1 - experts.experts_per_token / experts.num_experts,
        pairs_per_token=experts.experts_per_token / ep,
        group_transfers=tuple(transfer for transfer in group if transfer.s_per_byte),
        token_transfers=tuple(transfer for transfer in token if transfer.s_per_byte),
    )
