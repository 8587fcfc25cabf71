"""All rows of a run as CSV, for a spreadsheet."""

from __future__ import annotations

from typing import Any

from pipeline.saved import SavedRun

_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


def report_csv(run: SavedRun) -> str:
    """Return every row with every column; text that a spreadsheet would run gets an apostrophe first."""
    frame = run.frame.copy()
    for name in frame.columns:
        if frame[name].dtype == object or str(frame[name].dtype) in ("str", "string"):
            frame[name] = [_cell(value) for value in frame[name]]
    text: str = frame.to_csv(index=False, lineterminator="\n")
    return text


def _cell(value: Any) -> Any:
    if isinstance(value, str):
        return f"'{value}" if value.startswith(_FORMULA_STARTS) else value
    if hasattr(value, "tolist"):  # A list column, such as acceptance rates.
        return " ".join(str(item) for item in value.tolist())
    return value
