"""A run as results.parquet keeps it: the rows, and in the file's metadata the facts behind them.

Everything that a report shows comes from here, so it can be made again from this one file.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from cache.errors import OutputError
from cache.identity import canonical_json
from pipeline.findings import winners
from pipeline.rows import SCHEMA
from stages.result import CandidateResult

RESULTS_NAME = "results.parquet"

FACTS_KEY = b"shapecast"
FACTS_VERSION = 1
MOST_TRACES = 32

_NEEDED_COLUMNS = (
    "mode", "runner", "model", "device", "parallelism", "num_devices", "input_length",
    "output_length", "prefix_cache_hit_rate",
    "max_batched_tokens", "batch_size", "concurrency", "ttft_limit_ms", "tpot_limit_ms", "feasible",
    "stop_reason", "stop_shape", "ttft_ms", "tpot_ms", "tokens_per_s", "tokens_per_s_per_device",
    "memory_left_gb",
)  # fmt: skip
"""Without these there is no report; any other column may be missing and counts as empty."""


@dataclass(frozen=True)
class RunFacts:
    """What a run is, besides its rows. Nothing in it depends on time, place or job count.

    Attributes
    ----------
    run : str
        Digest of config and identities.
    config : mapping
        The sweep config, defaults filled in.
    versions : mapping
        Package name -> version.
    tables : list of dict
        Per identity: id, label, the identity in full, how many records were used, and their digest.
    traces : list of dict
        Where the time of the best candidates goes: `row`, and the fields of `stages.trace.Trace`.
    """

    run: str
    config: Mapping[str, Any]
    versions: Mapping[str, str]
    tables: list[dict[str, Any]]
    traces: list[dict[str, Any]]


@dataclass(frozen=True, eq=False)
class SavedRun:
    """The rows of a run and the facts behind them."""

    frame: pd.DataFrame
    facts: RunFacts


def best_traces(frame: pd.DataFrame, results: Sequence[CandidateResult]) -> list[dict[str, Any]]:
    """Return the traces of the best candidates, at most `MOST_TRACES`, in the order of `winners`.

    Parameters
    ----------
    frame : DataFrame
        Result rows.
    results : sequence of CandidateResult
        The result of each row.
    """
    traces = []
    for row in winners(frame)["row"]:
        found = results[row].trace
        if found is not None:
            traces.append({"row": int(row), **found.as_json()})
    return traces[:MOST_TRACES]


def results_file(table: pa.Table, facts: RunFacts) -> bytes:
    """Return the bytes of results.parquet."""
    text = canonical_json({"facts_version": FACTS_VERSION, **asdict(facts)})
    buffer = io.BytesIO()
    pq.write_table(table.replace_schema_metadata({FACTS_KEY: text}), buffer, compression="zstd")
    return buffer.getvalue()


def read_run(out: Path) -> SavedRun:
    """Return the run that a folder holds.

    Raises
    ------
    OutputError
        When the folder is no run, its results are missing or damaged, or a newer version wrote them.
    """
    path = out / RESULTS_NAME
    if not out.is_dir():
        raise OutputError(f"The folder {out} does not exist; give the output folder of a run.")
    if not path.is_file():
        raise OutputError(
            f"The folder {out} holds no {RESULTS_NAME}, so it is no run; give the output folder of a run."
        )
    try:
        table = pq.read_table(pa.BufferReader(path.read_bytes()))
    except (OSError, pa.ArrowException) as error:
        raise OutputError(
            f"The file {path} is damaged or cannot be read ({_first_line(error)}); "
            "run the sweep again with --force."
        ) from error
    facts = _facts(path, table.schema)
    for field in SCHEMA:
        if field.name in table.column_names:
            continue
        if field.name in _NEEDED_COLUMNS:
            raise OutputError(
                f"The file {path} lacks the column {field.name}, so it holds no results of a sweep; "
                "run the sweep again with --force."
            )
        table = table.append_column(field, pa.nulls(table.num_rows, field.type))
    return SavedRun(table.to_pandas(), facts)


def _facts(path: Path, schema: pa.Schema) -> RunFacts:
    text = (schema.metadata or {}).get(FACTS_KEY)
    if text is None:
        raise OutputError(
            f"The file {path} does not say which run it belongs to; "
            "it comes from another program or a version before 0.1, so run the sweep again with --force."
        )
    try:
        content = json.loads(text)
        version = int(content.pop("facts_version"))
        if version > FACTS_VERSION:
            raise OutputError(
                f"The file {path} was written by a newer shapecast (format {version}, this one reads up to "
                f"{FACTS_VERSION}); upgrade shapecast to read it."
            )
        return RunFacts(**{field.name: content[field.name] for field in fields(RunFacts)})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise OutputError(
            f"The file {path} is damaged: its run facts cannot be read; run the sweep again with --force."
        ) from error


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
