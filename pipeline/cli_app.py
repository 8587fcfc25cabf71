"""The command line: a thin root; each larger command has a module of its own, imported when it is used."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from cache.errors import ShapecastError
from pipeline.cli_optimize import optimize
from pipeline.cli_options import ManyValues, path_option
from pipeline.cli_tables import Tables, tables_app
from pipeline.cli_usage import exceptions, usage_sentence
from pipeline.streams import print_error
from pipeline.terminal import plain_warnings

app = typer.Typer(
    name="shapecast",
    help="Exact, cached capacity planning for LLM serving.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


app.add_typer(tables_app)


SCHEDULERS = ("threads", "processes", "single-threaded")


def _scheduler(value: str) -> str:
    if value in SCHEDULERS or value.startswith(("tcp://", "tls://")):
        return value
    raise typer.BadParameter(
        f"{value!r} is none of {', '.join(SCHEDULERS)}, nor the address of a Dask scheduler (tcp://HOST:PORT)."
    )


class ReportFormat(StrEnum):
    """What a report is written as."""

    HTML = "html"
    MD = "md"
    CSV = "csv"


def _version(value: bool) -> None:
    if value:
        from importlib.metadata import version

        typer.echo(f"shapecast {version('shapecast')}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Exact, cached capacity planning for LLM serving."""


@app.command()
def run(
    config: Annotated[Path, typer.Argument(help="A sweep config, YAML.")],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", parser=path_option, metavar="PATH", help="Folder of the run's files. [default: out/NAME]"
        ),
    ] = None,
    tables: Tables = None,
    scheduler: Annotated[
        str,
        typer.Option(
            "--scheduler",
            callback=_scheduler,
            help="Where tasks run: threads, processes, single-threaded, or a Dask cluster's tcp://HOST:PORT.",
        ),
    ] = "threads",
    jobs: Annotated[
        int | None, typer.Option("--jobs", min=1, help="Threads or processes. [default: cores]")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print only the output folder.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the summary as one JSON document, for scripts.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a different run in the folder.")] = False,
    frozen: Annotated[
        bool, typer.Option("--frozen", help="Compute nothing; fail when a shape has no record.")
    ] = False,
) -> None:
    """Run a sweep and write its results."""
    from pipeline.cli_run import run_command

    run_command(
        config, out, tables, scheduler, jobs, quiet=quiet, as_json=as_json, force=force, frozen=frozen
    )


app.command(cls=ManyValues)(optimize)


@app.command()
def plan(
    config: Annotated[Path, typer.Argument(help="A sweep config, YAML.")],
    tables: Tables = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what a run would compute, without running it."""
    from pipeline.cli_plan import plan_command

    plan_command(config, tables, as_json=as_json)


@app.command()
def report(
    out: Annotated[Path, typer.Argument(help="The output folder of a run.")],
    kind: Annotated[
        ReportFormat, typer.Option("--format", help="A page, Markdown, or all rows as CSV.")
    ] = ReportFormat.HTML,
    to: Annotated[
        Path | None,
        typer.Option(
            "--to", parser=path_option, metavar="PATH", help="The file to write. [default: OUT/report.FORMAT]"
        ),
    ] = None,
) -> None:
    """Make the report of a run again, from its results.parquet alone."""
    from pipeline.cli_report import report_command

    report_command(out, str(kind), to)


@app.command()
def compare(
    out_a: Annotated[Path, typer.Argument(help="The output folder of one run.")],
    out_b: Annotated[Path, typer.Argument(help="The output folder of another.")],
    html: Annotated[
        Path | None,
        typer.Option(
            "--html", parser=path_option, metavar="PATH", help="Also write the comparison as a page."
        ),
    ] = None,
) -> None:
    """Show what changed between two runs: config, tables, records, best deployments, candidates."""
    from pipeline.cli_report import compare_command

    compare_command(out_a, out_b, html)


@app.command()
def models(
    runner: Annotated[str, typer.Option("--runner", help="Whose models.")] = "roofline",
) -> None:
    """List the models that a runner knows by name."""
    from pipeline.cli_lists import print_models

    print_models(runner)


@app.command()
def devices(
    runner: Annotated[str, typer.Option("--runner", help="Whose devices.")] = "roofline",
) -> None:
    """List the devices that a runner knows by name."""
    from pipeline.cli_lists import print_devices

    print_devices(runner)


def run_app() -> int:
    """Run the command that the command line asks for, and return its exit code; errors are one sentence."""
    plain_warnings()
    try:
        code = app(prog_name="shapecast", standalone_mode=False)
    except ShapecastError as error:
        print_error(error)
        return error.exit_code
    except exceptions.ClickException as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # Its message is the help.
            error.show()
        elif isinstance(error, exceptions.UsageError):
            print_error(usage_sentence(error, sys.argv[1:]))
        else:
            print_error(error.format_message())
        return int(error.exit_code)
    except typer.Abort:
        print_error("aborted.")
        return 1
    return code if isinstance(code, int) else 0
