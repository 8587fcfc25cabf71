"""The report of a run as Markdown, for a wiki or a pull request."""

from __future__ import annotations

import re
from typing import Any

from pipeline.findings import answer, winners, with_derived
from pipeline.report import tables, words
from pipeline.report.tables import ReportTable
from pipeline.saved import RESULTS_NAME, SavedRun
from pipeline.units import format_cell
from stages.candidate import MODES

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>|#!~$&])")


def report_markdown(run: SavedRun) -> str:
    """Return the report as GitHub-flavoured Markdown."""
    frame = with_derived(run.frame)
    best = winners(frame)
    parts = [f"# {plain(words.config_name(run))}", "## What was asked"]
    parts.append("\n".join(f"- {term}: {plain(text)}" for term, text in words.asked(run)))
    parts.append("## The answer")
    for question, deployment, figures in answer(best):
        parts.append(f"{plain(question)}:\n\n**{plain(deployment)}**\n\n{plain(figures)}")
    if not frame["feasible"].any():
        parts.append("No candidate is feasible. What stopped the nearest of each deployment:")
        parts.append("\n".join(f"- {plain(text)}" for text in words.nothing_feasible(frame)))
    parts.append("\n".join(f"- {plain(text)}" for text in words.notes(run)))
    parts += [_table(tables.answer_table(frame, best, mode)) for mode in MODES if mode in set(frame["mode"])]
    parts.append(_table(tables.ratio_table(frame)))
    parts += ["## Why", _table(tables.memory_table(frame, best)), _table(tables.bounds_table(frame, best))]
    parts += ["## What did not fit, and why", _table(tables.stops_table(frame))]
    parts += [
        "## How far to trust it",
        words.same_sources(frame) or _table(tables.provenance_table(frame, best)),
    ]
    parts.append(_table(tables.identities_table(run)))
    made = ", ".join(f"{name} {version}" for name, version in sorted(run.facts.versions.items()))
    parts.append(f"Made with {plain(made)}.")
    parts.append(f"Run `{run.facts.run}`; all rows are in {RESULTS_NAME}. The command and config behind it:")
    parts.append(_indented(words.reproduce_command(run)))
    parts.append(_indented(words.config_yaml(run)))
    return "\n\n".join(part for part in parts if part) + "\n"


def plain(text: Any) -> str:
    """Return text that Markdown shows as it is, on one line."""
    return _SPECIAL.sub(r"\\\1", " ".join(str(text).split()))


def _table(table: ReportTable) -> str:
    if not table.rows:
        return ""
    numeric = [
        any(isinstance(row[place], int | float) for row in table.rows) for place in range(len(table.headings))
    ]
    lines = [
        _line(plain(text) for text in table.headings),
        _line("--:" if one else ":--" for one in numeric),
        *(_line(plain(format_cell(value)) for value in row) for row in table.rows),
    ]
    return f"**{plain(table.caption)}**\n\n" + "\n".join(lines)


def _line(cells: Any) -> str:
    return "| " + " | ".join(cells) + " |"


def _indented(text: str) -> str:
    """Return a code block that nothing in the text can end."""
    return "\n".join(f"    {line}" for line in text.splitlines())
