"""`shapecast report` and `shapecast compare`."""

from __future__ import annotations

import uuid
from pathlib import Path

import typer

from cache.errors import OutputError
from pipeline.saved import read_run

REPORT_NAMES = {"html": "report.html", "md": "report.md", "csv": "report.csv"}


def report_command(out: Path, kind: str, to: Path | None) -> None:
    """Make the report of a run again, and print where it is."""
    run = read_run(out)
    if kind == "html":
        from pipeline.report.page import report_page

        data = report_page(run)
    elif kind == "md":
        from pipeline.report.markdown import report_markdown

        data = report_markdown(run).encode()
    else:
        from pipeline.report.flat import report_csv

        data = report_csv(run).encode()
    target = to if to is not None else out / REPORT_NAMES[kind]
    write_whole(target, data)
    typer.echo(str(target))


def compare_command(out_a: Path, out_b: Path, html: Path | None) -> None:
    """Print what changed between two runs, and write it as a page where that is asked for."""
    from pipeline.report.compare import compare_runs
    from pipeline.report.compare_output import comparison_page, print_comparison
    from pipeline.terminal import console

    comparison = compare_runs(read_run(out_a), read_run(out_b))
    print_comparison(comparison, str(out_a), str(out_b), console())
    if html is not None:
        write_whole(html, comparison_page(comparison), "--html")
        typer.echo(str(html))


def write_whole(path: Path, data: bytes, option: str = "--to") -> None:
    """Write a file so that it appears whole or not at all.

    Raises
    ------
    OutputError
        When it cannot be written.
    """
    temporary = path.parent / f".{path.name}.{uuid.uuid4().hex}.tmp"
    try:
        temporary.write_bytes(data)
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise OutputError(
            f"The file {path} cannot be written ({error.strerror}); choose another with {option}."
        ) from error
