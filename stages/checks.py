"""Checks that the parts of a candidate share."""

from __future__ import annotations

from cache.errors import InvalidValueError, shown
from cache.shapes import LARGEST_COUNT


def require_int(name: str, value: object, least: int) -> None:
    """Refuse anything but an int from `least` to `LARGEST_COUNT`.

    Raises
    ------
    ValueError
        Naming the field, the value and the expectation.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InvalidValueError(f"{name} is {shown(value)}; it must be a whole number of at least {least}.")
    if value > LARGEST_COUNT:
        raise InvalidValueError(f"{name} is {shown(value)}; it must be at most {LARGEST_COUNT}.")
