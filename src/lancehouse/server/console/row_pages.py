"""Read a page of rows, or a single value, for display, with values shortened and in bounded memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import lance
import pyarrow as pa
from lance_namespace.errors import InvalidInputError, TableColumnNotFoundError

from lancehouse.lake.blobs import ROW_ADDRESS, BlobReader
from lancehouse.lake.chunked_scan import count_rows
from lancehouse.lake.dataset import TableRef
from lancehouse.schema.display import WHOLE, Cell, format_cell, format_cells, value_kind

MAX_DEFAULT_COLUMNS = 40
"""Number of columns shown if none are chosen."""
BATCH_ROWS = 16
"""Rows read at once."""
BYTES_ROWS = 4
"""Rows read at once if values may have megabytes."""
READ_AHEAD = 8 << 20
"""Bytes that a scan reads ahead."""
ROW_ID = "_rowid"
DISTANCE = "_distance"


@dataclass(frozen=True, slots=True)
class RowPage:
    """A page of rows."""

    version: int
    columns: Sequence[str]
    ids: Sequence[int]
    """Row ids in this version, in the order of `rows`."""
    rows: Sequence[Sequence[Cell]]
    has_more: bool


def read_page(
    table: TableRef, *, columns: Sequence[str] = (), filter: str | None = None, offset: int = 0, limit: int
) -> RowPage:
    """Read rows in their stored order, of those that match a filter in Lance's SQL.

    Raises:
        InvalidInputError: the filter cannot be parsed.
        TableColumnNotFoundError: the table lacks a column that is asked for or that the filter names.
    """
    with table.dataset() as dataset:
        names = choose_columns(table, dataset.schema, columns)
        scanner = dataset.scanner(
            columns=names,
            filter=filter or None,
            limit=limit + 1,
            offset=offset or None,
            scan_in_order=True,
            late_materialization=True if filter else None,
            **scanner_options(dataset.schema, names),
        )
        kinds = [value_kind(dataset.schema.field(name)) for name in names]
        ids, rows = collect_cells(scanner, kinds)
        return RowPage(dataset.version, names, ids[:limit], rows[:limit], len(rows) > limit)


def count_matching_rows(table: TableRef, filter: str | None) -> int:
    """Count the rows that match a filter; all rows without one."""
    with table.dataset() as dataset:
        return count_rows(dataset, filter) if filter else int(dataset.count_rows())


def read_value(table: TableRef, column: str, row: int) -> Cell:
    """Read one value, in full unless it is very long."""
    with table.dataset() as dataset:
        (name,) = choose_columns(table, dataset.schema, [column])
        if value_kind(dataset.schema.field(name)) == "blob":
            described = _read_blob_description(table, dataset, name, row)
            size = BlobReader(table, dataset).blob_sizes(described)[0]
            return {"kind": "blob", "size": size} if described.column(name)[0].is_valid else None
        return format_cell(take_value(table, dataset, name, row)[0], WHOLE)


def read_content(table: TableRef, column: str, row: int, most: int) -> bytes | None:
    """Return the bytes of one value, None for null; a blob with more than `most` bytes is not read.

    Raises:
        InvalidInputError: the value has more than `most` bytes, or the column holds no bytes.
    """
    with table.dataset() as dataset:
        (name,) = choose_columns(table, dataset.schema, [column])
        kind = value_kind(dataset.schema.field(name))
        if kind not in ("blob", "bytes"):
            raise InvalidInputError(f"{table}: column {column} holds {kind}, no bytes")
        if kind == "blob":
            described, reader = _read_blob_description(table, dataset, name, row), BlobReader(table, dataset)
            _require_small(reader.blob_sizes(described)[0], most)
            data: bytes | None = reader.fill_blobs(described).column(name)[0].as_py()
            return data
        scalar = take_value(table, dataset, name, row)[0]
        if not scalar.is_valid:
            return None
        _require_small(scalar.as_buffer().size, most)
        return bytes(scalar.as_buffer())


def take_value(table: TableRef, dataset: lance.LanceDataset, column: str, row: int) -> Any:
    """Return the value of a row, as an array of one.

    Raises:
        InvalidInputError: there is no such row.
    """
    rows = dataset.scanner(columns=[column], filter=f"{ROW_ID} = {int(row)}", with_row_id=True).to_table()
    if not rows.num_rows:
        raise _row_not_found(table, row)
    return rows.column(column).combine_chunks()


def choose_columns(table: TableRef, schema: pa.Schema, columns: Sequence[str]) -> list[str]:
    """Return the named columns without duplicates; without names, the first `MAX_DEFAULT_COLUMNS` columns.

    Raises:
        TableColumnNotFoundError: the table has no such column.
    """
    if missing := [name for name in columns if name not in schema.names]:
        raise TableColumnNotFoundError(f"{table} has no column {', '.join(missing)}")
    return list(dict.fromkeys(columns)) or schema.names[:MAX_DEFAULT_COLUMNS]


def scanner_options(schema: pa.Schema, names: Sequence[str]) -> dict[str, Any]:
    """Return arguments of a scanner that bound its memory."""
    has_bytes = any(value_kind(schema.field(name)) == "bytes" for name in names)
    return {
        "batch_size": BYTES_ROWS if has_bytes else BATCH_ROWS,
        "batch_readahead": 1,
        "fragment_readahead": 1,
        "io_buffer_size": READ_AHEAD,
        "blob_handling": "blobs_descriptions",
        "with_row_id": True,
    }


def collect_cells(scanner: lance.LanceScanner, kinds: Sequence[str]) -> tuple[list[int], list[list[Cell]]]:
    """Return the ids of a scan's rows and their formatted cells; each batch is freed before the next is read."""
    ids: list[int] = []
    rows: list[list[Cell]] = []
    for batch in scanner.to_batches():
        ids += batch.column(ROW_ID).to_pylist()
        columns = [format_cells(batch.column(place), kind) for place, kind in enumerate(kinds)]
        rows += map(list, zip(*columns, strict=True)) if columns else [[] for _ in range(batch.num_rows)]
    return ids, rows


def _read_blob_description(table: TableRef, dataset: lance.LanceDataset, column: str, row: int) -> pa.RecordBatch:
    """Read the description of a blob and the address of its row."""
    more = {"with_row_id": True, "with_row_address": True, "blob_handling": "blobs_descriptions"}
    scanner = dataset.scanner(columns=[column], filter=f"{ROW_ID} = {int(row)}", **more)
    for batch in scanner.to_batches():
        if batch.num_rows:
            described: pa.RecordBatch = batch.select([column, ROW_ADDRESS])
            return described
    raise _row_not_found(table, row)


def _row_not_found(table: TableRef, row: int) -> InvalidInputError:
    return InvalidInputError(f"{table} has no row with the id {row}")


def _require_small(size: int, most: int) -> None:
    if size > most:
        raise InvalidInputError(f"the value has {size} bytes, and at most {most} are shown")
