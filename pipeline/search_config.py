"""The sections of a sweep config that ask for a search."""

from __future__ import annotations

from pydantic import model_validator

from pipeline.config_fields import Count, Milliseconds, OneOrMore, PositiveFigure, Section, Sizes
from stages.pd_ratio import KvTransfer
from stages.search import Strategy


class ParallelismSearchSection(Section):
    """Which parallel sizes are tried on a number of devices; dp follows from them."""

    num_devices: OneOrMore[Count] | None = None
    tp_sizes: Sizes = "auto"
    ep_sizes: Sizes = "auto"
    moe_dp_sizes: Sizes = [1]
    max_combinations: Count = 100


class ConcurrencySection(Section):
    """Which loads are tried, in requests per replica: a list, or a search."""

    batch_sizes: OneOrMore[Count] | None = None
    search: Strategy | None = None
    range: list[Count] | None = None

    @model_validator(mode="after")
    def _list_or_search(self) -> ConcurrencySection:
        if (self.batch_sizes is None) == (self.search is None):
            raise ValueError("give either batch_sizes or search")
        if self.range is not None and self.search is None:
            raise ValueError("range belongs to a search; leave it out, or name a search")
        if self.range is not None and len(self.range) != 2:
            raise ValueError(f"range is {self.range}; give the smallest and the largest batch size")
        if self.range is not None and self.range[0] > self.range[1]:
            raise ValueError(f"range is {self.range}, which is reversed; give the smaller size first")
        if self.search == "bisect" and self.range is None:
            raise ValueError("the search bisect has no range; give one, such as [1, 256]")
        return self


class KvTransferSection(Section):
    """The link over which a prefill instance hands the KV cache of its prompts to decode.

    Without a bandwidth and a latency the transfer takes no time.
    """

    bandwidth_gb_per_s: PositiveFigure | None = None
    latency_ms: Milliseconds = 0.0
    bytes_per_token: PositiveFigure | None = None
    overlapped: bool = False

    @model_validator(mode="after")
    def _bytes_have_a_link(self) -> KvTransferSection:
        if (self.bandwidth_gb_per_s is None) != (self.bytes_per_token is None):
            raise ValueError("bandwidth_gb_per_s and bytes_per_token belong together; give both, or neither")
        return self

    def transfer(self) -> KvTransfer:
        """Return the transfer that the section describes; 1 GB/s is 10**9 bytes per second."""
        if self.bandwidth_gb_per_s is None or self.bytes_per_token is None:
            return KvTransfer(latency_ms=self.latency_ms, overlapped=self.overlapped)
        return KvTransfer(
            self.bytes_per_token, self.bandwidth_gb_per_s * 1e9, self.latency_ms, self.overlapped
        )


class RatioSection(Section):
    """Prefill and decode instances of their own sizes, and how many of each share the devices."""

    prefill_devices: Count
    decode_devices: Count
    total_devices: Count | None = None
    kv_transfer: KvTransferSection = KvTransferSection()
