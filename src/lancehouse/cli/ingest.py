"""`lancehouse ingest`: load files or an Iceberg table into a Lance table, in this process or on Spark."""

from __future__ import annotations

import click

from lancehouse.cli.local_spark import JobWork, with_work
from lancehouse.cli.options import parse_required_id, with_columns, with_pairs

FORMATS = ("parquet", "csv", "json", "arrow", "images", "iceberg")
MODES = ("append", "overwrite", "create")
SCHEMA_MODES = ("fixed", "evolve")
ICEBERG = "iceberg"


@click.command()
@click.argument("sources", metavar="SOURCE…", nargs=-1, required=True)
@click.option(
    "--table",
    required=True,
    metavar="ID",
    callback=parse_required_id,
    help="Target table; it is created if it does not exist.",
)
@click.option("--format", type=click.Choice(FORMATS), help="Format; default: by the file extension.")
@click.option(
    "--mode", type=click.Choice(MODES), default="append", show_default=True, help="What to do with existing rows."
)
@click.option(
    "--schema-mode",
    type=click.Choice(SCHEMA_MODES),
    default=SCHEMA_MODES[0],
    show_default=True,
    help="Whether appended rows may add columns and widen types.",
)
@with_columns
@with_pairs("--option", "format_options", help="Option of the format: delimiter=';', encoding=latin-1, … Repeatable.")
@with_pairs(
    "--type",
    "types",
    metavar="COLUMN=TYPE",
    help="Type of a CSV or JSON column, as in Spark SQL: zip=string. Repeatable.",
)
@with_pairs("--source-option", "options", help="Option of the source's storage, or of Iceberg's catalog. Repeatable.")
@click.option("--run", metavar="TEXT", help="Id of the run: repeating a completed run adds nothing.")
@with_work
def ingest(
    sources: tuple[str, ...],
    table: tuple[str, ...],
    format: str | None,
    mode: str,
    schema_mode: str,
    columns: tuple[str, ...],
    format_options: dict[str, str],
    types: dict[str, str],
    options: dict[str, str],
    run: str | None,
    work: JobWork,
) -> None:
    """Load files or an Iceberg table into a Lance table.

    SOURCE is a file, a folder or a glob, on this machine or in an object store (s3://, gs://,
    az://); with --format iceberg, the name of a table, catalog.namespace.table. After a failure,
    the same command continues.
    """
    from lancehouse.lake.dataset import TableRef

    if format == ICEBERG and len(sources) > 1:
        raise click.UsageError("one Iceberg table at a time")
    check_inputs(work, table, () if format == ICEBERG else sources)
    with work.start_jobs(
        f"ingesting into {work.format_id(table)}", lambda: measure_sources(sources, format, options)
    ) as catalog:
        version = catalog.ingest(
            sources[0] if format == ICEBERG else list(sources),
            table,
            format=format,
            mode=mode,
            columns=columns or None,
            options={**options, **format_options, **({"types": types} if types else {})},
            run=run,
            schema_mode=schema_mode,
        )
    rows = TableRef.in_namespace(work.connect_client(), table, version=version).open().count_rows()
    work.app.output.record({"table": work.format_id(table), "version": version, "rows": rows})


def check_inputs(work: JobWork, table: tuple[str, ...], sources: tuple[str, ...]) -> None:
    """Check that the catalog responds and that local files exist, before the work begins.

    Raises:
        LanceNamespaceError: the catalog does not respond, or a file does not exist.
    """
    from lancehouse.jobs.sources.file_listing import list_files
    from lancehouse.lake.dataset import TableRef

    TableRef.in_namespace(work.connect_client(), table).exists()
    if local_sources := [source for source in sources if "://" not in source]:
        list_files(local_sources, {})


def measure_sources(sources: tuple[str, ...], format: str | None, options: dict[str, str]) -> int:
    """Return the size of the sources in bytes, as it is stored."""
    from lancehouse.jobs.sources.file_listing import list_files
    from lancehouse.jobs.sources.ingest_source import open_source

    if format == ICEBERG:
        return open_source(sources[0], format, options=options).bytes
    return sum(file.size for file in list_files(list(sources), options))
