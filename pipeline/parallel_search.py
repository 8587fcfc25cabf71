"""Which ways of spreading a model over a number of devices a search tries."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from cache.errors import InvalidValueError
from pipeline.search_config import ParallelismSearchSection
from stages.parallelism import Parallelism


def searched_parallelisms(section: ParallelismSearchSection, num_devices: int) -> list[Parallelism]:
    """Return the combinations of the section's sizes that use exactly `num_devices`.

    `auto` stands for the powers of two up to the number of devices; dp is what tp leaves.

    Raises
    ------
    InvalidValueError
        When no combination does.
    """
    named = {
        name: _sizes(getattr(section, name), num_devices) for name in ("tp_sizes", "ep_sizes", "moe_dp_sizes")
    }
    found = [
        Parallelism(tp=tp, dp=num_devices // tp, ep=ep, moe_dp=moe_dp)
        for tp, ep, moe_dp in itertools.product(*named.values())
        if num_devices % tp == 0 and num_devices % (ep * moe_dp) == 0
    ]
    if not found:
        tried = ", ".join(f"{name} {list(sizes)}" for name, sizes in named.items())
        raise InvalidValueError(
            f"No combination of {tried} uses exactly {num_devices} devices; tp must divide them, and so must "
            "ep * moe_dp."
        )
    return list(dict.fromkeys(found))


def _sizes(sizes: str | Sequence[int], num_devices: int) -> Sequence[int]:
    if isinstance(sizes, str):
        return [1 << power for power in range(num_devices.bit_length())]
    return sizes
