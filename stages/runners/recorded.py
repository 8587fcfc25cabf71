"""A model runner that answers from a file of recorded forward passes."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from cache.errors import ConfigError, MissingShapeError, ShapecastError
from cache.shapes import IMAGE_FIELDS, MEMORY_FIELDS, DeviceMemory, ForwardLatencyRecord, ForwardShapeKey

_REQUIRED = ("is_decode", "model_concurrency", "query_len", "seq_len", "latency_ms", "memory_left_gb")
_MEMORY_COLUMNS = tuple(f"memory_{name}" for name in MEMORY_FIELDS)
_NEAREST = 3


class RecordedRunner:
    """Answers from a Parquet or CSV file; see `RecordedOptions` for its columns.

    Parameters
    ----------
    path : Path
        The file.
    where : mapping
        Column -> value that a row must have.
    columns : mapping
        Our column name -> the file's.

    Raises
    ------
    ConfigError
        When the file lacks a column, has no matching row, or two rows of one shape differ.
    """

    def __init__(self, path: Path, where: Mapping[str, str | int | bool], columns: Mapping[str, str]) -> None:
        self._path = path
        frame = _read(path)
        for column, value in where.items():
            if column not in frame:
                raise ConfigError(
                    f"{path} has no column {column!r}, which runner.where names; it has {_list(frame)}."
                )
            frame = frame[frame[column] == value]
        if frame.empty:
            raise ConfigError(f"{path} has no row with {dict(where)}; check runner.where.")
        frame = frame.rename(columns={theirs: ours for ours, theirs in columns.items()})
        missing = [name for name in _REQUIRED if name not in frame]
        if missing:
            raise ConfigError(
                f"{path} has no column {missing[0]!r}; it has {_list(frame)}. Name the column under "
                "runner.columns, or add it."
            )
        self._records: dict[ForwardShapeKey, ForwardLatencyRecord] = {}
        for number, row in enumerate(frame.to_dict("records")):
            self._take(number, {str(name): value for name, value in row.items()})

    def forward(self, key: ForwardShapeKey) -> ForwardLatencyRecord:
        """Return the recorded pass.

        Raises
        ------
        MissingShapeError
            Naming the shape and the nearest recorded ones.
        """
        record = self._records.get(key)
        if record is None:
            nearest = sorted(self._records, key=lambda known: _distance(key, known))[:_NEAREST]
            raise MissingShapeError(
                f"{self._path} has no record of the shape ({key}); the nearest recorded are "
                f"{', '.join(f'({known})' for known in nearest)}: record it, or change the workload."
            )
        return record

    def _take(self, number: int, row: Mapping[str, Any]) -> None:
        try:
            key, record = _key(row), _record(row)
        except (ShapecastError, ValueError, TypeError) as error:
            raise ConfigError(f"{self._path}: row {number} is no record: {error}") from error
        known = self._records.setdefault(key, record)
        if known != record:
            raise ConfigError(
                f"{self._path} has two different records of the shape ({key}): {known.latency_ms} ms and "
                f"{record.latency_ms} ms; keep one, or tell them apart with runner.where."
            )


def _read(path: Path) -> pd.DataFrame:
    try:
        return pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path)
    except (OSError, ValueError) as error:  # pyarrow's errors and pandas' parser errors are ValueErrors
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ConfigError(f"The records file {path} cannot be read: {reason}") from error


def _list(frame: pd.DataFrame) -> str:
    return ", ".join(str(name) for name in frame.columns)


def _key(row: Mapping[str, Any]) -> ForwardShapeKey:
    concurrency, query_len, seq_len = (_whole(row[name], name) for name in _REQUIRED[1:4])
    images = (_whole(row[name], name) if _given(row, name) else None for name in IMAGE_FIELDS)
    batch_size, height, width = images
    return ForwardShapeKey(
        _flag(row["is_decode"]), concurrency, query_len, seq_len, batch_size, height, width
    )


def _record(row: Mapping[str, Any]) -> ForwardLatencyRecord:
    memory = None
    if all(_given(row, name) for name in _MEMORY_COLUMNS):
        memory = DeviceMemory(*(float(row[name]) for name in _MEMORY_COLUMNS))
    return ForwardLatencyRecord(
        float(row["latency_ms"]),
        float(row["memory_left_gb"]),
        json.loads(row["breakdowns_json"]) if _given(row, "breakdowns_json") else {},
        memory,
        json.loads(row["sources_json"]) if _given(row, "sources_json") else {},
    )


def _given(row: Mapping[str, Any], name: str) -> bool:
    value = row.get(name)
    return value is not None and not (isinstance(value, float) and math.isnan(value))


def _flag(value: Any) -> bool:
    if str(value).lower() not in ("true", "false", "0", "1"):
        raise ValueError(f"is_decode is {value!r}; it must be true or false.")
    return str(value).lower() in ("true", "1")


def _whole(value: Any, name: str) -> int:
    if float(value) != int(value):
        raise ValueError(f"{name} is {value!r}; it must be a whole number.")
    return int(value)


def _distance(wanted: ForwardShapeKey, known: ForwardShapeKey) -> tuple[bool, float]:
    """Order known shapes by phase, then by how many times larger or smaller each size is."""
    sizes = ("model_concurrency", "query_len", "seq_len")
    return wanted.is_decode != known.is_decode, sum(
        abs(math.log(getattr(wanted, name) / getattr(known, name))) for name in sizes
    )
