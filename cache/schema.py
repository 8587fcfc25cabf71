"""How records stand in a Parquet file: columns, file metadata, and both ways between them and records.

A part file is self-describing: its metadata holds the schema version and the whole table identity, so a
file can be mailed, and a file in the wrong table is noticed.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from cache.errors import SchemaError, StoreError
from cache.identity import TableIdentity, canonical_json
from cache.shapes import MEMORY_FIELDS, DeviceMemory, ForwardLatencyRecord, ForwardShapeKey, Segment

SCHEMA_VERSION = 2
"""The newest schema that is read. A file is written in the oldest that can hold it, so that what needs
nothing new stays the same byte for byte: 1 is without the column `segments`, 2 with it."""

IDENTITY_FILE_VERSION = 1
"""Version of `identity.json`, whose content has not changed since."""

_KEY_FIELDS = [
    ("is_decode", pa.bool_()),
    ("model_concurrency", pa.int64()),
    ("query_len", pa.int64()),
    ("seq_len", pa.int64()),
    ("image_batch_size", pa.int64()),
    ("image_height", pa.int64()),
    ("image_width", pa.int64()),
    ("segments", pa.string()),
]
_RECORD_FIELDS = [
    ("latency_ms", pa.float64()),
    ("memory_left_gb", pa.float64()),
    *((f"memory_{name}", pa.float64()) for name in MEMORY_FIELDS),
    ("breakdowns_json", pa.string()),
    ("sources_json", pa.string()),
]
_PROVENANCE_FIELDS = [
    ("runner", pa.string()),
    ("runner_version", pa.string()),
    ("computed_at", pa.timestamp("us", tz="UTC")),
    ("call_s", pa.float64()),
]

KEY_COLUMNS = [name for name, _ in _KEY_FIELDS]
VALUE_COLUMNS = [name for name, _ in _RECORD_FIELDS]
PROVENANCE_COLUMNS = [name for name, _ in _PROVENANCE_FIELDS]
COLUMNS = KEY_COLUMNS + VALUE_COLUMNS + PROVENANCE_COLUMNS

SCHEMA = pa.schema(_KEY_FIELDS + _RECORD_FIELDS + _PROVENANCE_FIELDS)

_VERSION_KEY = b"shapecast.schema_version"
_IDENTITY_KEY = b"shapecast.identity"
_LABEL_KEY = b"shapecast.label"


KeyRow = tuple[Any, ...]
"""A key as it stands in a row: the values of `KEY_COLUMNS`."""


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """A record with its key and its provenance.

    Attributes
    ----------
    key, record
        What was asked and answered.
    computed_at_us : int
        When, microseconds since 1970 UTC.
    call_s : float
        How long the call of the model runner took, s.
    """

    key: ForwardShapeKey
    record: ForwardLatencyRecord
    computed_at_us: int
    call_s: float


def rows_table(rows: Sequence[StoredRecord], identity: TableIdentity) -> pa.Table:
    """Return records as an Arrow table of `SCHEMA`, without file metadata."""
    columns: dict[str, list[Any]] = {name: [] for name in COLUMNS}
    for row in rows:
        for name, value in zip(KEY_COLUMNS, key_values(row.key), strict=True):
            columns[name].append(value)
        record = row.record.as_json()
        columns["latency_ms"].append(record["latency_ms"])
        columns["memory_left_gb"].append(record["memory_left_gb"])
        for name in MEMORY_FIELDS:
            columns[f"memory_{name}"].append(None if record["memory"] is None else record["memory"][name])
        # Estimators keep their order, which says who speaks for the record; so no sorting here.
        columns["breakdowns_json"].append(json.dumps(record["breakdowns"]))
        columns["sources_json"].append(json.dumps(record["sources"]))
        columns["runner"].append(identity.runner)
        columns["runner_version"].append(identity.runner_version)
        columns["computed_at"].append(row.computed_at_us)
        columns["call_s"].append(row.call_s)
    return pa.table({name: pa.array(columns[name], SCHEMA.field(name).type) for name in COLUMNS}, SCHEMA)


def written_form(table: pa.Table) -> tuple[int, pa.Table]:
    """Return the oldest schema version that can hold `table`, and the table with that version's columns."""
    if table["segments"].null_count == table.num_rows:
        return 1, table.drop_columns(["segments"])
    return SCHEMA_VERSION, table


def encode_table(
    table: pa.Table, identity: TableIdentity, more_metadata: Mapping[bytes, bytes] | None = None
) -> bytes:
    """Return a part file's bytes for `table`, with schema version and identity in its metadata."""
    version, table = written_form(table)
    metadata = {
        **(more_metadata or {}),
        _VERSION_KEY: str(version).encode(),
        _IDENTITY_KEY: identity.canonical.encode(),
        _LABEL_KEY: identity.label.encode(),
    }
    buffer = io.BytesIO()
    pq.write_table(table.replace_schema_metadata(metadata), buffer, compression="zstd")
    return buffer.getvalue()


def decode_table(data: bytes, source: str) -> tuple[pa.Table, TableIdentity]:
    """Return the table and identity of a part file's bytes.

    Parameters
    ----------
    data : bytes
        The file.
    source : str
        Its name, for messages.

    Raises
    ------
    SchemaError
        When a newer shapecast wrote the file.
    StoreError
        When it is no part file.
    """
    try:
        # Not read_table: its import alone costs more than most tables, and so do threads for small files.
        table = pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise StoreError(f"{source} is not a readable Parquet file ({_first_line(error)}).") from error
    metadata = table.schema.metadata or {}
    if _VERSION_KEY not in metadata or _IDENTITY_KEY not in metadata:
        raise StoreError(f"{source} is a Parquet file, but not one of shapecast's: it names no identity.")
    check_schema_version(metadata[_VERSION_KEY].decode(errors="replace"), source)
    try:
        fields = json.loads(metadata[_IDENTITY_KEY])
        identity = TableIdentity.from_json(fields, metadata.get(_LABEL_KEY, b"").decode())
        _ = identity.id  # Made now, for what is no identity has none.
        if metadata[_VERSION_KEY] == b"1":
            table = table.append_column("segments", pa.nulls(table.num_rows, pa.string()))
        # Not pa.table, which imports pandas to see whether it was given a data frame.
        columns = [table[name].cast(SCHEMA.field(name).type) for name in COLUMNS]
        table = pa.Table.from_arrays(columns, schema=SCHEMA)
        table.validate(full=True)  # Texts may not be UTF-8.
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, pa.ArrowException) as error:
        raise StoreError(f"{source} does not have shapecast's columns ({_first_line(error)}).") from error
    return table, identity


def check_schema_version(version: str, source: str) -> None:
    """Refuse a file of a newer schema.

    Raises
    ------
    SchemaError
        When `version` is newer than this shapecast reads.
    StoreError
        When it is no version.
    """
    if not version.isdecimal():
        raise StoreError(f"{source} has the schema version {version!r}; expected a whole number.")
    if int(version) > SCHEMA_VERSION:
        raise SchemaError(
            f"{source} has schema version {version}; this shapecast reads up to {SCHEMA_VERSION}: "
            "upgrade shapecast, or use another table folder."
        )


def records_of(table: pa.Table) -> Iterable[tuple[ForwardShapeKey, ForwardLatencyRecord]]:
    """Yield the records of an Arrow table of `SCHEMA`."""
    for row in table.to_pylist():
        yield key_of([row[name] for name in KEY_COLUMNS]), record_of(row)


def key_values(key: ForwardShapeKey) -> KeyRow:
    """Return a key as the values of `KEY_COLUMNS`; segments are text, `query_len seq_len requests, ...`."""
    values = [getattr(key, name) for name in KEY_COLUMNS]
    if key.segments is not None:
        values[-1] = ", ".join(" ".join(str(number) for number in segment) for segment in key.segments)
    return tuple(values)


def key_of(values: Sequence[Any]) -> ForwardShapeKey:
    """Return the key that `key_values` gave."""
    *plain, text = values
    segments = None
    if text is not None:
        segments = tuple(Segment(*map(int, part.split())) for part in text.split(", "))
    return ForwardShapeKey(*(*plain, segments))


def record_of(row: dict[str, Any]) -> ForwardLatencyRecord:
    """Return the record of one row of `VALUE_COLUMNS`."""
    parts = [row[f"memory_{name}"] for name in MEMORY_FIELDS]
    memory = None if parts[0] is None else DeviceMemory(*parts)
    return ForwardLatencyRecord(
        latency_ms=row["latency_ms"],
        memory_left_gb=row["memory_left_gb"],
        breakdowns=json.loads(row["breakdowns_json"]),
        memory=memory,
        sources=json.loads(row["sources_json"]),
    )


def identity_file(identity: TableIdentity) -> bytes:
    """Return the text of `identity.json`: the identity, readable, with its digest and label."""
    content = {
        "schema_version": IDENTITY_FILE_VERSION,
        "id": identity.id,
        "label": identity.label,
        "identity": identity.as_json(),
    }
    return (json.dumps(content, indent=2, sort_keys=True) + "\n").encode()


def parse_identity_file(data: bytes, source: str) -> TableIdentity:
    """Return the identity that `identity_file` wrote.

    Raises
    ------
    SchemaError
        When a newer shapecast wrote it.
    StoreError
        When it is no identity file, or its digest is not that of its content.
    """
    unlike = f"{source} is not an identity file as shapecast writes it."
    try:
        content = json.loads(data)
        version = str(content["schema_version"])
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise StoreError(unlike) from error
    check_schema_version(version, source)
    try:
        identity = TableIdentity.from_json(content["identity"], str(content["label"]))
        claimed, digest = content["id"], identity.id
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise StoreError(unlike) from error
    if digest != claimed:
        raise StoreError(
            f"{source} was edited: it says its id is {str(claimed)[:12]}, but its content has the digest "
            f"{digest[:12]}."
        )
    return identity


def record_digest_text(key: ForwardShapeKey, record: ForwardLatencyRecord) -> str:
    """Return the canonical text of a record with its key, which record digests are made of.

    Breakdowns stand as a list, because their order says which estimator speaks for the record.
    """
    values = key_values(key)
    content = record.as_json()
    content["breakdowns"] = list(content["breakdowns"].items())
    return canonical_json([values if key.segments is not None else values[:-1], content])


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
