"""`shapecast tables`: see into the shape tables, check them, move them, tidy them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipeline.cli_options import not_empty

tables_app = typer.Typer(
    name="tables",
    help="See into the shape tables, check them, move them, tidy them.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Tables = Annotated[
    str | None,
    typer.Option(
        "--tables",
        callback=not_empty,
        help="Path or URL of the shape tables. [default: $SHAPECAST_TABLES, else the user cache]",
        show_default=False,
    ),
]
TableId = Annotated[str, typer.Argument(help="Id of a table, or its beginning.")]
TableIds = Annotated[
    list[str] | None,
    typer.Argument(help="Ids of tables, or their beginnings. [default: all]", show_default=False),
]
Yes = Annotated[bool, typer.Option("--yes", help="Do it; without, only say what would be done.")]


@tables_app.command("ls")
def list_tables(tables: Tables = None) -> None:
    """List the tables."""
    from pipeline.tables.find import open_store
    from pipeline.tables.listing import print_tables
    from pipeline.terminal import console

    print_tables(open_store(tables), console())


@tables_app.command()
def show(table: TableId, tables: Tables = None) -> None:
    """Show a table's identity in full, and where its records come from."""
    from pipeline.tables.find import find_table, open_store
    from pipeline.tables.listing import print_table
    from pipeline.terminal import console

    print_table(find_table(open_store(tables), table), console())


@tables_app.command()
def verify(
    ids: TableIds = None,
    recompute: Annotated[
        int,
        typer.Option("--recompute", min=0, help="Compute so many shapes of each table again, and compare."),
    ] = 0,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config", help="A sweep config that tells how to compute. [default: each table's own note]"
        ),
    ] = None,
    tables: Tables = None,
) -> None:
    """Check every file, digest, key and record. Changes nothing."""
    from cache.errors import StoreError
    from cache.store import EmptyTableError, short_id
    from pipeline.tables.find import find_table, open_store
    from pipeline.tables.listing import no_tables
    from pipeline.tables.verify import specs_of, verify_table

    store, specs = open_store(tables), specs_of(config)
    wrong = checked = 0
    names = [find_table(store, text).identity.id for text in ids] if ids else store.ids()
    for name in names:
        try:
            facts, problems = verify_table(store.open(name), recompute, specs)
        except EmptyTableError:
            continue
        except StoreError as error:
            facts, problems = "cannot be opened", [str(error)]
        checked += 1
        wrong += bool(problems)
        typer.echo(f"{short_id(name)}: {facts}; {'all right' if not problems else f'{len(problems)} wrong'}.")
        for problem in problems:
            typer.echo(f"  {problem}")
    if not checked:
        typer.echo(no_tables(store))
    if wrong:
        raise StoreError(f"{wrong:,} of {checked:,} tables are not all right; see above.")


@tables_app.command()
def compact(ids: TableIds = None, yes: Yes = False, tables: Tables = None) -> None:
    """Make one file of the many files of a table."""
    from pipeline.tables.change import compact_tables
    from pipeline.tables.find import find_tables, open_store

    compact_tables(find_tables(open_store(tables), ids or []), typer.echo, yes=yes)


@tables_app.command()
def diff(
    first: Annotated[str, typer.Argument(help="Id of a table, its beginning, or an exported file.")],
    second: Annotated[str, typer.Argument(help="The other one.")],
    tables: Tables = None,
) -> None:
    """Compare two tables, shape by shape."""
    from pipeline.tables.diff import print_difference
    from pipeline.tables.find import open_store
    from pipeline.terminal import console

    print_difference(open_store(tables), first, second, console())


@tables_app.command()
def merge(
    sources: Annotated[list[str], typer.Argument(help="Paths or URLs of other stores.")],
    tables: Tables = None,
) -> None:
    """Take in the records of other stores; records that differ are refused."""
    from pipeline.tables.change import merge_stores
    from pipeline.tables.find import open_store

    merge_stores(open_store(tables, to_write=True), sources, typer.echo)


@tables_app.command("export")
def export_(
    table: TableId,
    file: Annotated[Path, typer.Argument(help="A file that ends in .parquet or .csv.")],
    force: Annotated[bool, typer.Option("--force", help="Replace the file.")] = False,
    tables: Tables = None,
) -> None:
    """Write a table as one file, with its identity and a digest inside."""
    from pipeline.tables.change import export_table
    from pipeline.tables.find import find_table, open_store

    count = export_table(find_table(open_store(tables), table), file, force=force)
    typer.echo(f"Wrote {count:,} records to {file}.")


@tables_app.command("import")
def import_(
    file: Annotated[Path, typer.Argument(help="A file that `shapecast tables export` wrote.")],
    tables: Tables = None,
) -> None:
    """Take in the records of an exported file; records that differ are refused."""
    from pipeline.tables.change import import_table
    from pipeline.tables.find import open_store

    import_table(open_store(tables, to_write=True), file, typer.echo)


@tables_app.command()
def rm(
    ids: Annotated[list[str], typer.Argument(help="Ids of tables, or their beginnings.")],
    yes: Yes = False,
    tables: Tables = None,
) -> None:
    """Delete tables."""
    from pipeline.tables.change import remove_tables
    from pipeline.tables.find import find_tables, open_store

    remove_tables(find_tables(open_store(tables), ids), typer.echo, yes=yes)


@tables_app.command()
def prune(
    older_than: Annotated[
        str | None, typer.Option("--older-than", help="Whose newest record is older: 90d, 12w, or a date.")
    ] = None,
    unused_since: Annotated[
        str | None, typer.Option("--unused-since", help="That no run has used since: 90d, 12w, or a date.")
    ] = None,
    yes: Yes = False,
    tables: Tables = None,
) -> None:
    """Delete the tables that are old, or not used any more; given both options, that are both."""
    from datetime import UTC, datetime

    from cache.errors import UsageError
    from pipeline.tables.change import parse_time, prunable, remove_tables
    from pipeline.tables.find import empty_folders, find_tables, open_store

    if older_than is None and unused_since is None:
        raise UsageError("Which tables are to go is not said; give --older-than or --unused-since, or both.")
    now = datetime.now(UTC)
    times = parse_time(older_than, "--older-than", now), parse_time(unused_since, "--unused-since", now)
    store = open_store(tables)
    chosen, empty = prunable(find_tables(store, []), *times), empty_folders(store)
    remove_tables(chosen, typer.echo, yes=yes, empty=empty)
    if not chosen and not empty:
        typer.echo("No table is that old or unused.")
