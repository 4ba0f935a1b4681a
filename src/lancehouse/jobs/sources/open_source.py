"""Open the source of an ingest: data files or an Iceberg table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from types import MappingProxyType
from typing import Any

from lance_namespace.errors import UnsupportedOperationError

from lancehouse.jobs.sources.files import open_files
from lancehouse.jobs.sources.units import IngestSource

ICEBERG = "iceberg"


def open_source(
    source: Any,
    format: str | None = None,
    columns: Sequence[str] | None = None,
    options: Mapping[str, Any] = MappingProxyType({}),
    *,
    parallelism: int = 1,
) -> IngestSource:
    """Open a source and infer its schema, without reading all rows.

    Files of several schemas become one: numbers are widened, and what a file lacks is null. Folders that are called
    `name=value` become columns, if they lie below the given folder or below the first level of a glob that is a
    pattern; names that start with `.` or `_` are left out there. The types of CSV and JSON are inferred from the first
    block of each file.

    Args:
        source: a path, folder, glob or a list of those, on this machine or under `file://`, `s3://`, `gs://` or
            `az://`; for Iceberg a table or a scan of pyiceberg, or `catalog.namespace.table`.
        format: parquet, csv, json, arrow, images or iceberg; by default inferred from the extensions. In folders, only
            files with its extensions are read; files that are named are read whatever they are called.
        columns: columns to read, in that order; all by default.
        options: options of the format, and storage options under Lance's names; for Iceberg the properties of the
            catalog. CSV has delimiter, quote, escape, header, skip_rows, null_values, encoding, types and schema; JSON
            has encoding, types and schema. Storage options that are missing come from the environment.
        parallelism: number of units to make at least, if there is enough to read.

    Raises:
        InvalidInputError: there is nothing to read, the format is not clear, an option is unknown, or a file cannot be
            read.
        TableColumnNotFoundError: a column does not exist; the message lists those that do.
        TableSchemaValidationError: the schemas of files cannot be unified.
    """
    is_iceberg = type(source).__module__.partition(".")[0] == "pyiceberg"
    if format != ICEBERG and not (format is None and is_iceberg):
        return open_files(source, format, columns, options, parallelism)
    if find_spec("pyiceberg") is None:
        raise UnsupportedOperationError("reading Iceberg tables needs pyiceberg: pip install 'pyiceberg[pyarrow]'")
    from lancehouse.jobs.sources.iceberg import open_iceberg

    return open_iceberg(source, columns, options, parallelism)
