"""Breakdowns of forward time by bound type, as shares and as text.

Sums are `math.fsum`: the built-in `sum` of floats rounds differently from Python 3.12 on, and outputs
must not depend on the Python version.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from cache.shapes import BOUND_TYPES, ForwardLatencyRecord

_LABELS = ("Mem", "Comm", "Cube", "Vec")

Shares = tuple[float, float, float, float]


def bound_shares(record: ForwardLatencyRecord) -> Shares | None:
    """Return the share of each bound type (`BOUND_TYPES`), summing to 1; None where there is no time.

    The first estimator with any time speaks for the record.
    """
    for parts in record.breakdowns.values():
        seconds = [float(parts.get(name, 0.0)) for name in BOUND_TYPES]
        total = math.fsum(seconds)
        if total:
            first, second, third, fourth = (value / total for value in seconds)
            return first, second, third, fourth
    return None


def breakdown_text(shares: Sequence[float] | None) -> str:
    """Return e.g. `Mem 70.00 | Comm 10.00 | Cube 20.00 | Vec 0.00`, in percent; zeros for None."""
    return " | ".join(
        f"{label} {100 * share:.2f}" for label, share in zip(_LABELS, shares or (0.0,) * 4, strict=True)
    )


def mean_breakdown_text(weighted: Iterable[tuple[float, Shares | None]]) -> str | None:
    """Return the weighted mean of (weight, shares) as text; those without shares are left out."""
    kept = [(weight, shares) for weight, shares in weighted if shares is not None and weight > 0]
    total = math.fsum(weight for weight, _ in kept)
    if not total:
        return None
    return breakdown_text(
        [math.fsum(weight * shares[i] for weight, shares in kept) / total for i in range(4)]
    )
