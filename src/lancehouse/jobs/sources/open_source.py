"""Opening a source."""

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
    """Look at a source, without reading its rows.

    Files of several schemas become one: numbers are widened, and what a file lacks is null. Folders below the given
    one, or below the first level of a glob that is a pattern, become columns where they are called `name=value`; what
    is called `.…` or `_…` there is left out. The types of CSV and JSON are those of the first block of each file.

    Args:
        source: a path, folder, glob or a list of those, on this machine or under `file://`, `s3://`, `gs://` or
            `az://`; for Iceberg a table or a scan of pyiceberg, or `catalog.namespace.table`.
        format: parquet, csv, json, arrow, images or iceberg; by default what the extensions say. In folders, only
            files with its extensions are read; files that are named are read whatever they are called.
        columns: which to read, in that order; all by default.
        options: those of the format, and storage options in Lance's names; for Iceberg the properties of the catalog.
            CSV has delimiter, quote, escape, header, skip_rows, null_values, encoding, types and schema; JSON has
            encoding, types and schema. What is not said of storage comes from the environment.
        parallelism: how many units there should be at least, if there is enough to read.

    Raises:
        InvalidInputError: nothing to read, a format that cannot be told, an option that it has not, or a file that
            cannot be read.
        TableColumnNotFoundError: a column that is not there; says what is.
        TableSchemaValidationError: files whose schemas do not go together.
    """
    is_iceberg = type(source).__module__.partition(".")[0] == "pyiceberg"
    if format != ICEBERG and not (format is None and is_iceberg):
        return open_files(source, format, columns, options, parallelism)
    if find_spec("pyiceberg") is None:
        raise UnsupportedOperationError("reading Iceberg tables needs pyiceberg: pip install 'pyiceberg[pyarrow]'")
    from lancehouse.jobs.sources.iceberg import open_iceberg

    return open_iceberg(source, columns, options, parallelism)
