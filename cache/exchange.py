"""One file for a whole table, with its identity and a digest inside: to be mailed, or kept beside a report.

A Parquet file holds them in its metadata; a CSV file in comment lines before the header, which
`pandas.read_csv(path, comment="#")` skips.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from cache.checks import check_values
from cache.errors import StoreError, UsageError
from cache.identity import TableIdentity
from cache.schema import COLUMNS, SCHEMA, check_schema_version, decode_table, encode_table, written_form
from cache.store import is_part_name, part_name


class _CellError(ValueError):
    """A cell of a CSV file that holds no value of its column."""


_CSV_ERRORS = (
    ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError, pa.ArrowException,
)  # fmt: skip
_CSV_HEAD_LINES = 6

SUFFIXES = (".parquet", ".csv")

_DIGEST_KEY = b"shapecast.content_sha256"
_PARQUET_MAGIC = b"PAR1"
_CSV_TITLE = "# shapecast table"


def encode_file(table: pa.Table, identity: TableIdentity, suffix: str) -> bytes:
    """Return the bytes of an exchange file.

    Parameters
    ----------
    table : pyarrow.Table
        Rows of `SCHEMA`, each key once.
    identity : TableIdentity
        Whose they are.
    suffix : {".parquet", ".csv"}
        The format.

    Raises
    ------
    UsageError
        When the suffix is another.
    """
    if suffix == ".parquet":
        return encode_table(table, identity, {_DIGEST_KEY: content_sha256(table, identity).encode()})
    if suffix == ".csv":
        return _encode_csv(table, identity)
    raise UsageError(
        f"A table is exported to a file that ends in .parquet or .csv, not in {suffix or 'nothing'}."
    )


def decode_file(path: Path) -> tuple[pa.Table, TableIdentity]:
    """Return the rows and the identity of an exchange file, or of a part file under its own name.

    Raises
    ------
    SchemaError
        When a newer shapecast wrote it.
    StoreError
        When it cannot be read, is no table, its content does not have the digest that it names, or a
        value in it cannot be.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise StoreError(f"The file {path} cannot be read ({error.strerror}); check the path.") from error
    if data.startswith(_CSV_TITLE.encode()):
        table, identity, digest = _decode_csv(data, str(path))
    elif not data.startswith(_PARQUET_MAGIC) and not is_part_name(path.name):
        raise StoreError(
            f"{path} is no exported table: it begins neither like a Parquet file nor with the line "
            f"{_CSV_TITLE!r}; give a file that `shapecast tables export` wrote."
        )
    else:
        table, identity = decode_table(data, str(path))
        digest = (pq.read_metadata(pa.BufferReader(data)).metadata or {}).get(_DIGEST_KEY, b"").decode()
    if is_part_name(path.name) and not digest:
        if path.name != part_name(data):
            raise StoreError(f"{path} is not named by the digest of its content; get an unchanged copy.")
    elif digest != content_sha256(table, identity):
        _refuse_cut(data, str(path))
        raise StoreError(
            f"The content of {path} does not have the digest that it names ({digest[:12] or 'none'}); it was "
            "changed or damaged on its way: get an unchanged copy."
        )
    check_values(table, str(path))
    return table, identity


def content_sha256(table: pa.Table, identity: TableIdentity) -> str:
    """Return the SHA-256 of an identity and its rows, provenance included, whatever file they stand in."""
    digest = hashlib.sha256(f"{identity.canonical}\n".encode())
    for values in zip(*(_plain_column(table, name) for name in COLUMNS), strict=True):
        digest.update(json.dumps(values).encode())
        digest.update(b"\n")
    return digest.hexdigest()


def _plain_column(table: pa.Table, name: str) -> list[Any]:
    column = table[name]
    return list((column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column).to_pylist())


def _encode_csv(table: pa.Table, identity: TableIdentity) -> bytes:
    version, written = written_form(table)
    text = io.StringIO()
    for line in (
        _CSV_TITLE,
        f"# schema_version: {version}",
        f"# identity: {identity.canonical}",
        f"# label: {json.dumps(identity.label)}",
        f"# content_sha256: {content_sha256(table, identity)}",
    ):
        text.write(line + "\n")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(written.column_names)
    for row in zip(*(written[name].to_pylist() for name in written.column_names), strict=True):
        writer.writerow(["" if value is None else _csv_text(value) for value in row])
    return text.getvalue().encode()


def _csv_text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return value.isoformat() if isinstance(value, datetime) else str(value)


def _decode_csv(data: bytes, source: str) -> tuple[pa.Table, TableIdentity, str]:
    try:
        lines = data.decode().splitlines(keepends=True)
        names = dict(line[2:].rstrip("\r\n").split(": ", 1) for line in lines[1:5])
        check_schema_version(names["schema_version"], source)
        identity = TableIdentity.from_json(json.loads(names["identity"]), json.loads(names["label"]))
        _ = identity.id  # Made now, for what is no identity has none.
        rows = list(csv.DictReader(lines[5:]))
        columns = [pa.array(_csv_column(rows, name), SCHEMA.field(name).type) for name in COLUMNS]
        return pa.Table.from_arrays(columns, schema=SCHEMA), identity, names["content_sha256"]
    except _CSV_ERRORS as error:
        _refuse_cut(data, source)
        reason = (
            str(error) if isinstance(error, _CellError) else "its head or its columns are of another kind"
        )
        raise StoreError(f"{source} is not a table that shapecast exported: {reason}.") from error


def _refuse_cut(data: bytes, source: str) -> None:
    if data.startswith(_CSV_TITLE.encode()) and not data.endswith(b"\n"):
        raise StoreError(f"{source} ends in the middle of a line, so it was cut short; get a whole copy.")


def _csv_column(rows: Sequence[Mapping[str, Any]], name: str) -> list[Any]:
    values = []
    for number, row in enumerate(rows, start=_CSV_HEAD_LINES + 1):
        try:
            values.append(_csv_value(row.get(name), name))
        except (ValueError, KeyError):
            raise _CellError(f"line {number} has the {name} {row.get(name)!r}") from None
    return values


def _csv_value(text: str | None, name: str) -> Any:
    kind = SCHEMA.field(name).type
    if not text:
        return None
    if pa.types.is_boolean(kind):
        return {"true": True, "false": False}[text]
    if pa.types.is_integer(kind):
        return int(text)
    if pa.types.is_floating(kind):
        return float(text)
    return datetime.fromisoformat(text).astimezone(UTC) if pa.types.is_timestamp(kind) else text
