"""How long devices take to exchange data: linear in the bytes, `fixed_s + bytes * s_per_byte`.

Devices are numbered with tensor parallelism innermost, then data, then pipeline parallelism; in expert
layers tensor parallelism of experts is innermost, then expert parallelism. A group whose members are
`stride` devices apart therefore has `devices_per_node // stride` members in a node.
"""

from __future__ import annotations

from typing import NamedTuple

from stages.runners.device import DeviceProfile

_BYTES_PER_GB = 1e9
_US = 1e-6


class Transfer(NamedTuple):
    """Time of a communication operator: a fixed part and one per byte."""

    fixed_s: float
    s_per_byte: float

    def scaled(self, bytes_per_unit: float) -> Transfer:
        """Return the transfer with its variable part per unit of `bytes_per_unit` bytes."""
        return Transfer(self.fixed_s, self.s_per_byte * bytes_per_unit)


class Fabric:
    """Collective operations over the links of a device.

    Parameters
    ----------
    device : DeviceProfile
        Gives links, communication efficiency and overhead per operator.
    """

    def __init__(self, device: DeviceProfile) -> None:
        links, share = device.interconnect, device.efficiency.communication
        self.devices_per_node = links.devices_per_node
        self._overhead_s = device.operator_overhead_us * _US
        self._intra_s_per_byte = 1 / (links.intra_node.bandwidth_gb_per_s * _BYTES_PER_GB * share)
        self._inter_s_per_byte = 1 / (links.inter_node.bandwidth_gb_per_s * _BYTES_PER_GB * share)
        self._intra_latency_s = links.intra_node.latency_us * _US
        self._inter_latency_s = links.inter_node.latency_us * _US

    def _split(self, size: int, stride: int) -> tuple[int, int]:
        """Return the members of a group that share a node, and the nodes it spans."""
        local = min(size, max(self.devices_per_node // stride, 1))
        return local, -(-size // local)

    def all_gather(self, size: int, stride: int = 1) -> Transfer:
        """Return a ring all-gather (or reduce-scatter) over `size` devices, per byte of the whole tensor.

        A ring of n moves (n - 1) / n of the tensor in n - 1 steps (Thakur, Rabenseifner and Gropp,
        "Optimization of Collective Communication Operations in MPICH", 2005, section 4.1). Over several
        nodes one ring runs between the nodes on the share of each local member, one inside them.
        """
        if size == 1:
            return Transfer(0.0, 0.0)
        local, nodes = self._split(size, stride)
        fixed = (local - 1) * self._intra_latency_s + (nodes - 1) * self._inter_latency_s
        per_byte = (local - 1) / local * self._intra_s_per_byte
        per_byte += (nodes - 1) / nodes / local * self._inter_s_per_byte
        return Transfer(fixed + self._overhead_s, per_byte)

    def all_reduce(self, size: int, stride: int = 1) -> Transfer:
        """Return a ring all-reduce over `size` devices: a reduce-scatter and an all-gather, one operator."""
        if size == 1:
            return Transfer(0.0, 0.0)
        half = self.all_gather(size, stride)
        return Transfer(2 * half.fixed_s - self._overhead_s, 2 * half.s_per_byte)

    def all_to_all(self, size: int, stride: int = 1) -> Transfer:
        """Return an all-to-all over `size` devices, per byte that a device sends to the others.

        Messages go to all peers at once, in equal parts; those inside and outside the node take
        different links at the same time.
        """
        if size == 1:
            return Transfer(0.0, 0.0)
        local, nodes = self._split(size, stride)
        inside = (local - 1) / (size - 1) * self._intra_s_per_byte
        outside = (size - local) / (size - 1) * self._inter_s_per_byte
        latency = self._intra_latency_s if nodes == 1 else self._inter_latency_s
        return Transfer(latency + self._overhead_s, max(inside, outside))

    def send(self, span: int) -> Transfer:
        """Return a message to the next pipeline stage, per byte, in a deployment of `span` devices.

        Where the deployment spans several nodes some neighbours may still share one, but the slowest
        hop paces the pipeline.
        """
        if span <= self.devices_per_node:
            return Transfer(self._intra_latency_s + self._overhead_s, self._intra_s_per_byte)
        return Transfer(self._inter_latency_s + self._overhead_s, self._inter_s_per_byte)
