"""Whether each value of a part file can be: what a digest cannot tell, because a wrong file has one too.

Whole columns are checked at once, so that a table of 100,000 records still opens in less than a second. What
is refused here is what `ForwardShapeKey` and `ForwardLatencyRecord` refuse, and what no command could use.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cache.errors import StoreError
from cache.schema import PROVENANCE_COLUMNS
from cache.shapes import IMAGE_FIELDS, MEMORY_FIELDS

_REQUIRED = (
    "is_decode", "model_concurrency", "query_len", "seq_len", "latency_ms", "memory_left_gb",
    "breakdowns_json", "sources_json", *PROVENANCE_COLUMNS,
)  # fmt: skip

_NAME = r'"[^"\\\x00-\x1f]*"'
_NUMBER = r"(0|[1-9][0-9]{0,19})(\.[0-9]{1,30})?(e(-[0-9]{1,3}|\+?[0-9]{1,2}))?"
_SHARES = rf"\{{({_NAME}: {_NUMBER}(, {_NAME}: {_NUMBER})*)?\}}"
_PARTS = rf"\{{({_NAME}: {_SHARES}(, {_NAME}: {_SHARES})*)?\}}"
_SEGMENT = r"[1-9][0-9]{0,14} [1-9][0-9]{0,14} [1-9][0-9]{0,14}"
_SEGMENTS = rf"^{_SEGMENT}(, {_SEGMENT})+$"

_LAST_US = 253_402_300_799_000_000
"""The end of the year 9999, where Python's dates end, microseconds since 1970."""

_SHOWN = 60

Problem = tuple[int, str, str]
"""A row, the column in it that is wrong, and what was expected there."""


def check_values(table: pa.Table, source: str) -> None:
    """Refuse rows that hold a value which cannot be.

    Parameters
    ----------
    table : pyarrow.Table
        Rows of `SCHEMA`.
    source : str
        Where they came from, for messages.

    Raises
    ------
    StoreError
        Naming the first such row, its value, and what was expected.
    """
    for row, name, expected in _problems(table):
        value = table[name][row]
        # A time that is out of range is no time in Python.
        text = str((value.cast(pa.int64()) if pa.types.is_timestamp(value.type) else value).as_py())
        shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
        raise StoreError(
            f"{source} cannot be used: its row {row + 1:,} has the {name} {shown}; expected {expected}."
        )


def _problems(table: pa.Table) -> Iterator[Problem]:
    """Yield the first row that breaks each rule."""
    for name, expected, wrong in _rules(table):
        row = pc.index(wrong, True).as_py()
        if row >= 0:
            yield row, name, expected
    for name, fast, right in (
        ("breakdowns_json", _PARTS, _is_breakdowns),
        ("sources_json", _SHARES, _is_sources),
    ):
        yield from _wrong_json(table, name, fast, right)
    yield from _wrong_segments(table)


def _rules(table: pa.Table) -> Iterator[tuple[str, str, Any]]:
    """Yield column, expectation, and for each row whether it is broken; null where it does not apply."""
    for name in _REQUIRED:
        yield name, "a value", table[name].is_null()
    for name in ("model_concurrency", "query_len", *IMAGE_FIELDS):
        yield name, "a positive number", pc.less_equal(table[name], 0)
    yield "seq_len", "no less than query_len", pc.less(table["seq_len"], table["query_len"])
    for name in ("latency_ms", "call_s"):
        right = pc.and_(pc.is_finite(table[name]), pc.greater_equal(table[name], 0))
        yield name, "a finite number that is not negative", pc.invert(right)
    yield "memory_left_gb", "a number", pc.is_nan(table["memory_left_gb"])
    parts = [table[f"memory_{name}"] for name in MEMORY_FIELDS]
    some = reduce(pc.or_, [part.is_valid() for part in parts])
    for name, part in zip(MEMORY_FIELDS, parts, strict=True):
        yield f"memory_{name}", "a number", pc.is_nan(part)
        yield f"memory_{name}", "a value, as others are known", pc.and_(some, part.is_null())
    computed_us = table["computed_at"].cast(pa.int64())
    outside = pc.or_(pc.less(computed_us, 0), pc.greater(computed_us, _LAST_US))
    yield "computed_at", "a time from 1970 to 9999", outside


def _wrong_json(table: pa.Table, name: str, fast: str, right: Callable[[Any], bool]) -> Iterator[Problem]:
    """Yield the first row whose JSON is wrong.

    What looks as shapecast writes it is known to be right by a regular expression, which is many times as
    quick as to parse it; each other text is parsed once.
    """
    column = table[name]
    unlike = pc.invert(pc.match_substring_regex(column, f"^{fast}$"))
    for text in column.filter(unlike).unique().to_pylist():
        try:
            fits = right(json.loads(text))
        except (ValueError, OverflowError, RecursionError):
            fits = False
        if not fits:
            form = "{estimator: {bound: seconds}}" if name == "breakdowns_json" else "{kind: share}"
            yield pc.index(column, text).as_py(), name, f"JSON of the form {form} with finite numbers"
            return


def _is_breakdowns(value: Any) -> bool:
    return isinstance(value, dict) and all(_are_numbers(parts) for parts in value.values())


def _is_sources(value: Any) -> bool:
    return _are_numbers(value) and all(share >= 0 for share in value.values())


def _are_numbers(value: Any) -> bool:
    return isinstance(value, dict) and all(
        isinstance(number, int | float) and not isinstance(number, bool) and math.isfinite(number)
        for number in value.values()
    )


def _wrong_segments(table: pa.Table) -> Iterator[Problem]:
    """Yield the first row whose segments are not in the form that `ForwardShapeKey` describes."""
    expected = "ascending segments that fit query_len, seq_len and model_concurrency"
    column = table["segments"]
    if column.null_count == len(column):
        return
    unlike = pc.index(pc.invert(pc.match_substring_regex(column, _SEGMENTS)), True).as_py()
    if unlike >= 0:
        yield unlike, "segments", expected
        return
    rows = np.flatnonzero(np.array(column.is_valid().to_pylist()))
    texts = column.drop_null().to_pylist()
    numbers = np.fromstring(" ".join(texts).replace(",", ""), np.int64, sep=" ")
    query_len, seq_len, requests = numbers.reshape(-1, 3).T
    counts = np.array([text.count(",") + 1 for text in texts])
    starts = np.cumsum(counts) - counts
    follows = np.ones(len(query_len), bool)
    same = query_len[1:] == query_len[:-1]
    follows[1:] = (query_len[1:] > query_len[:-1]) | same & (seq_len[1:] > seq_len[:-1])
    follows[starts] = True
    right = np.logical_and.reduceat(follows & (query_len <= seq_len), starts)

    def stated(name: str) -> Any:
        return np.array(table[name].to_pylist())[rows]

    right &= np.maximum.reduceat(query_len, starts) == stated("query_len")
    right &= np.maximum.reduceat(seq_len, starts) == stated("seq_len")
    right &= stated("model_concurrency") % np.add.reduceat(requests, starts) == 0
    for index in np.flatnonzero(~right)[:1]:
        yield int(rows[index]), "segments", expected
