"""`shapecast run`."""

from __future__ import annotations

from pathlib import Path

import typer

from cache.errors import UsageError
from pipeline.config import LoadedConfig, load_config
from pipeline.run import RunOptions, run_sweep
from pipeline.streams import print_error
from pipeline.summary import print_summary
from pipeline.tasks import StoppedError
from pipeline.terminal import console


def run_command(
    config: Path,
    out: Path | None,
    tables: str | None,
    scheduler: str,
    jobs: int | None,
    *,
    quiet: bool,
    as_json: bool,
    force: bool,
    frozen: bool,
) -> None:
    """Run a sweep, and print its summary, for people or as JSON, or, when quiet, its folder.

    Raises
    ------
    UsageError
        When both JSON and quiet are asked for.
    """
    if quiet and as_json:
        raise UsageError("--quiet and --json were both given; they print different things, so choose one.")
    loaded = load_config(config)
    options = RunOptions(
        out=out if out is not None else Path("out") / loaded.config.name,
        tables=tables,
        scheduler=scheduler,
        jobs=jobs,
        quiet=quiet,
        force=force,
        frozen=frozen,
    )
    run_and_print(loaded, options, as_json=as_json)


def run_and_print(loaded: LoadedConfig, options: RunOptions, *, as_json: bool = False) -> None:
    """Run a sweep, and print its summary, as JSON if asked, or, when quiet, its folder."""
    try:
        run = run_sweep(loaded, options, console(stderr=True))
    except StoppedError as stopped:
        print_error(stopped)
        raise typer.Exit(stopped.exit_code) from None
    if options.quiet:
        typer.echo(str(run.out))
    elif as_json:
        from pipeline.summary_json import summary_json

        typer.echo(summary_json(run))
    else:
        print_summary(run, console())
