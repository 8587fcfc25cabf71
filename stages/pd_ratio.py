"""Prefill/decode ratio: how many prefill instances one decode instance needs, and how devices are split.

The formulas are those of the design, section 4, with the time that handing over a KV cache takes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from stages.candidate import Candidate
from stages.result import CandidateResult, limit_stop_reason


@dataclass(frozen=True)
class Half:
    """One feasible disaggregated half: what is deployed, and how fast it is.

    Attributes
    ----------
    latency_ms : float
        TTFT of a prefill half, TPOT of a decode half.
    batch_size, concurrency : int
        Requests per replica and over all replicas.
    num_devices : int
        Devices of one instance.
    parallelism, device : str
        For people; ties are broken by the first.
    kv_transfer_ms : float
        How much of a prefill half's latency is handing the KV cache over to decode.
    """

    latency_ms: float
    batch_size: int
    concurrency: int
    num_devices: int
    parallelism: str
    device: str = ""
    kv_transfer_ms: float = 0.0


@dataclass(frozen=True)
class KvTransfer:
    """How a prefill instance hands the KV cache of its prompts to decode, over one link of its own.

    Parameters
    ----------
    bytes_per_token : float
        KV cache of one prompt token over all layers, bytes; 0 leaves only the latency.
    bytes_per_s : float
        Bandwidth of the link; infinity when there is no limit.
    latency_ms : float
        Of one transfer, however large.
    overlapped : bool
        Whether the transfer runs beside the prefill it belongs to, layer by layer, so that only what
        exceeds the prefill adds time. Otherwise the next prefill waits for it.
    """

    bytes_per_token: float = 0.0
    bytes_per_s: float = math.inf
    latency_ms: float = 0.0
    overlapped: bool = False

    def added_ms(self, tokens: int, prefill_ms: float) -> float:
        """Return what handing over `tokens` adds to a prefill that takes `prefill_ms`."""
        transfer_ms = self.latency_ms + 1000 * tokens * self.bytes_per_token / self.bytes_per_s
        return max(transfer_ms - prefill_ms, 0.0) if self.overlapped else transfer_ms

    def handed_over(self, candidate: Candidate, result: CandidateResult) -> CandidateResult:
        """Return a prefill result whose TTFT, and the judgement of it, include the transfer.

        All requests of the candidate are handed over together. Other modes, and prefills out of
        memory, hand nothing over.
        """
        if candidate.mode != "prefill" or result.ttft_ms is None or result.out_of_memory:
            return result
        added_ms = self.added_ms(candidate.input_tokens, result.ttft_ms)
        ttft_ms = result.ttft_ms + added_ms
        reason = limit_stop_reason(ttft_ms, None, candidate.ttft_limit_ms, None)
        return replace(result, ttft_ms=ttft_ms, stop_reason=reason, kv_transfer_ms=added_ms)


@dataclass(frozen=True)
class RatioRow:
    """A prefill and a decode deployment that feed each other.

    Attributes
    ----------
    prefill, decode : Half
        The pair.
    p_qps, d_qps : float
        Requests per second of one instance of each.
    pd_ratio : float
        Prefill instances per decode instance, d_qps / p_qps.
    balanced_qps : float
        The lesser of the two.
    """

    prefill: Half
    decode: Half
    p_qps: float
    d_qps: float
    pd_ratio: float
    balanced_qps: float


def ratio_rows(prefills: Iterable[Half], decodes: Iterable[Half], output_length: int) -> list[RatioRow]:
    """Return all pairs of halves, best first.

    Parameters
    ----------
    prefills, decodes : iterable of Half
        Feasible halves; one that takes no time is left out.
    output_length : int
        Tokens per request.
    """
    p_rows = [(half, half.concurrency / half.latency_ms * 1000) for half in prefills if half.latency_ms > 0]
    later_tokens = max(output_length - 1, 1)
    d_rows = [
        (half, half.concurrency / (half.latency_ms * later_tokens) * 1000)
        for half in decodes
        if half.latency_ms > 0
    ]
    rows = [
        RatioRow(p_half, d_half, p_qps, d_qps, d_qps / p_qps, min(p_qps, d_qps))
        for p_half, p_qps in p_rows
        for d_half, d_qps in d_rows
    ]
    return sorted(rows, key=_rank)


def _rank(row: RatioRow) -> tuple[float | int | str, ...]:
    prefill, decode = row.prefill, row.decode
    return (
        -row.balanced_qps,
        -row.d_qps,
        -row.p_qps,
        prefill.latency_ms,
        decode.latency_ms,
        -decode.batch_size,
        -prefill.batch_size,
        -decode.concurrency,
        -prefill.concurrency,
        prefill.parallelism,
        decode.parallelism,
    )


def instance_counts(
    pd_ratio: float, devices_per_prefill: int, devices_per_decode: int, total_devices: int
) -> tuple[int, int]:
    """Return (prefill instances, decode instances) within `total_devices` nearest to `pd_ratio`.

    (0, 0) when not even one of each fits.
    """
    best = (0, 0)
    least = float("inf")
    decodes = 1
    while devices_per_prefill + decodes * devices_per_decode <= total_devices:
        wanted = decodes * pd_ratio
        prefills = max(1, round(wanted))
        fits = prefills * devices_per_prefill + decodes * devices_per_decode <= total_devices
        if fits and abs(prefills - wanted) < least:
            least = abs(prefills - wanted)
            best = (prefills, decodes)
        decodes += 1
    return best


@dataclass(frozen=True)
class Split:
    """Instances of a pair on some devices, and what they serve together.

    Attributes
    ----------
    prefills, decodes : int
        Instances of each half; 0 when not even one of each fits.
    qps : float
        Requests per second of all of them, bound by the slower half.
    """

    prefills: int
    decodes: int
    qps: float


def nearest_split(row: RatioRow, total_devices: int) -> Split:
    """Return the split whose prefill count is nearest to the ratio, see `instance_counts`."""
    counts = instance_counts(row.pd_ratio, row.prefill.num_devices, row.decode.num_devices, total_devices)
    return _split(row, *counts)


def best_split(row: RatioRow, total_devices: int) -> Split:
    """Return the split within `total_devices` that serves the most requests per second.

    Every count of decode instances is tried, with all prefill instances that still fit. Of equally
    fast splits the one with the fewest devices is returned, then the one with the fewest decodes.
    """
    devices_p, devices_d = row.prefill.num_devices, row.decode.num_devices
    best, least = Split(0, 0, 0.0), 0
    for decodes in range(1, (total_devices - devices_p) // devices_d + 1):
        most = (total_devices - decodes * devices_d) // devices_p
        enough = max(1, math.ceil(decodes * row.pd_ratio))
        split = _split(row, min(most, enough), decodes)
        used = split.prefills * devices_p + decodes * devices_d
        if split.qps > best.qps or (split.qps == best.qps and used < least):
            best, least = split, used
    return best


def _split(row: RatioRow, prefills: int, decodes: int) -> Split:
    return Split(prefills, decodes, min(prefills * row.p_qps, decodes * row.d_qps))
