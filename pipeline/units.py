"""How columns are headed and numbers written for people, with their units."""

from __future__ import annotations

import math

_HEADINGS = {
    "rank": "#",
    "tp": "TP",
    "dp": "DP",
    "pp": "PP",
    "ep": "EP",
    "num_devices": "devices",
    "ttft_ms": "TTFT ms",
    "tpot_ms": "TPOT ms",
    "tokens_per_s": "tokens/s",
    "tokens_per_s_per_device": "tokens/s/device",
    "prefill_num_chunks": "prefill chunks",
    "forward_shape_count": "forward shapes",
    "batch_size": "batch",
    "max_batched_tokens": "max batched tokens",
}


def heading(name: str) -> str:
    """Return a column's heading, with its unit."""
    if name in _HEADINGS:
        return _HEADINGS[name]
    if name.endswith("_gb"):
        return f"{name[:-3].replace('_', ' ')} GiB"
    if name.endswith("_ms"):
        return f"{name[:-3].replace('_', ' ')} ms"
    return name.replace("_", " ")


def format_cell(value: object) -> str:
    """Return one value as people read it; a dash where there is none."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "-"
    if isinstance(value, float):
        return format_number(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return str(value)


def format_number(value: float) -> str:
    """Return a number with about four digits and thousands set apart."""
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    magnitude = abs(value)
    digits = 0 if magnitude >= 1000 else 1 if magnitude >= 100 else 2
    return f"{value:,.{digits}f}"


def format_duration(seconds: float | None) -> str:
    """Return a time in the unit that suits it; a dash where it is unknown."""
    if seconds is None:
        return "-"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
