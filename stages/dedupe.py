"""Dedupe: the distinct shapes of several candidates, in order of first use."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cache.shapes import ForwardShapeKey


def dedupe(key_lists: Iterable[Sequence[ForwardShapeKey]]) -> tuple[ForwardShapeKey, ...]:
    """Return each distinct key once, in order of first use over all lists."""
    return tuple(dict.fromkeys(key for keys in key_lists for key in keys))
