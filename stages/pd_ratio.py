"""Prefill/decode ratio: how many prefill instances one decode instance needs.

The formulas are those of the design, section 4.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


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
    """

    latency_ms: float
    batch_size: int
    concurrency: int
    num_devices: int
    parallelism: str
    device: str = ""


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
