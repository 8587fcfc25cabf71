"""The report of a run as one HTML page."""

from __future__ import annotations

import html

import pandas as pd

from pipeline.config import SweepConfig
from pipeline.rows import BEST_COLUMNS, ranked
from pipeline.units import format_cell, heading

_STYLE = """
:root { color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif; }
body { max-width: 75rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; display: block; overflow-x: auto; margin: 1rem 0; }
th, td { padding: .25rem .6rem; text-align: right; border-bottom: 1px solid #8884; white-space: nowrap; }
th { border-bottom-width: 2px; }
td:first-child, th:first-child, td.text { text-align: left; }
"""

_STOPPED_COLUMNS = [
    "mode", "model", "device", "parallelism", "max_batched_tokens", "batch_size", "stop_reason", "stop_shape",
    "ttft_ms", "tpot_ms", "memory_left_gb",
]  # fmt: skip
_SHOWN = [name for name in BEST_COLUMNS if name not in ("identity", "runner", "prefix_cache_hit_rate")]
_MOST_ROWS = 2000


def report_file(config: SweepConfig, frame: pd.DataFrame) -> bytes:
    """Return the bytes of report.html for a run's rows."""
    best = ranked(frame)
    stopped = frame[~frame["feasible"]]
    parts = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>",
        "<meta name='viewport' content='width=device-width, initial-scale=1'>",
        f"<title>{html.escape(config.name)}</title><style>{_STYLE}</style></head><body>",
        f"<h1>{html.escape(config.name)}</h1>",
        f"<p>{len(frame)} candidates, {len(best)} feasible.</p>",
    ]
    for mode, rows in best.groupby("mode", sort=True):
        parts += [f"<h2>Best deployments, {html.escape(str(mode))}</h2>", _table(rows, _SHOWN)]
    if len(stopped):
        parts += ["<h2>What did not fit</h2>", _table(stopped, _STOPPED_COLUMNS)]
    parts.append("</body></html>\n")
    return "\n".join(parts).encode()


def _table(rows: pd.DataFrame, columns: list[str]) -> str:
    head = "".join(f"<th>{html.escape(heading(name))}</th>" for name in columns)
    body = "".join(
        "<tr>" + "".join(_cell(value) for value in values) + "</tr>\n"
        for values in rows[columns].head(_MOST_ROWS).itertuples(index=False)
    )
    more = (
        f"<p>{len(rows) - _MOST_ROWS} more rows are in results.parquet.</p>" if len(rows) > _MOST_ROWS else ""
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


def _cell(value: object) -> str:
    kind = " class='text'" if isinstance(value, str) else ""
    return f"<td{kind}>{html.escape(format_cell(value))}</td>"
