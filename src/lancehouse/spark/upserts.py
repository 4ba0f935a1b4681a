"""MERGE of few rows that are written as they are: the driver matches them in Arrow, without a query of Spark."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lancehouse.jobs.address import PinnedVersion
from lancehouse.lake.chunked_scan import has_blobs
from lancehouse.lake.row_changes import ADDRESS, ROW
from lancehouse.lake.scans import FragmentRange, Scan, estimate_bytes
from lancehouse.schema.definitions import definitions
from lancehouse.schema.spark import to_ddl, to_spark
from lancehouse.spark.statement_parser import MATCHED, NOT_MATCHED, Clause
from lancehouse.spark.table_reader import SMALL_ROWS

PLACE = "place"
"""Column with the places of rows in the source."""


def is_upsert(clauses: Sequence[Clause]) -> bool:
    """Return whether clauses do no more than UPDATE SET * and INSERT *, each at most once and without a condition."""
    kinds = [(clause.rows, clause.action) for clause in clauses]
    is_plain = all(clause.condition is None and clause.assignments is None for clause in clauses)
    return is_plain and len(set(kinds)) == len(kinds) and {*kinds} <= {(MATCHED, "update"), (NOT_MATCHED, "insert")}


def to_table_columns(rows: pa.Table, schema: pa.Schema, fold: Callable[[str], str]) -> pa.Table | None:
    """Return rows of Spark in the columns of a table; None unless all are there, once, in the table's types.

    Args:
        rows: the rows.
        schema: of the table.
        fold: returns a name in the form in which Spark compares names.
    """
    names = {fold(name): place for place, name in enumerate(rows.schema.names)}
    if len(names) < rows.num_columns or definitions(schema) or any(map(has_blobs, schema)):
        return None
    places = [names.get(fold(name), -1) for name in schema.names]
    if -1 in places:
        return None
    table_rows = rows.select(places).rename_columns(schema.names)
    types = [
        [field["type"] for field in struct["fields"]] for struct in (to_spark(table_rows.schema), to_spark(schema))
    ]
    return table_rows if [*map(to_ddl, types[0])] == [*map(to_ddl, types[1])] else None


def match_upsert(
    pinned: PinnedVersion,
    rows: pa.Table,
    values: pa.Table,
    links: Sequence[tuple[str, str]],
    clauses: Sequence[Clause],
    filter: str,
    most_bytes: int,
) -> pa.Table | None:
    """Return the changes of an upsert: the number of the clause, address and id of the row of the table, and values.

    Args:
        pinned: the version of the table.
        rows: the source.
        values: the same rows in the columns of the table.
        links: columns of the table that are equal to columns of the source where rows match.
        clauses: those of the statement.
        filter: valid condition in Lance's SQL that is true of all rows of the table that match.
        most_bytes: how much of the table may be read in this process.

    Returns:
        None if more would be read, rows of the source have the same key, or many rows match.
    """
    table, dataset = pinned.open()
    columns = tuple(dict.fromkeys(column for column, _ in links))
    if estimate_bytes(dataset, [*columns, ROW, ADDRESS], filter) > most_bytes:
        return None
    scan = Scan(columns, filter, with_row_id=True, with_row_address=True, is_checked=True)
    parts = [FragmentRange(fragment.fragment_id) for fragment in dataset.get_fragments()]
    target_rows = pa.Table.from_batches(scan.batches(table, dataset, parts), scan.schema(table, dataset))
    names = [f"k{number}" for number in range(len(links))]
    source = _with_keys(names, rows, [other for _, other in links], {PLACE: pa.array(np.arange(len(rows)))})
    target = _with_keys(
        names, target_rows, [column for column, _ in links], {name: target_rows.column(name) for name in (ADDRESS, ROW)}
    )
    keys = source.drop_null().group_by(names).aggregate([(PLACE, "count")])
    if len(keys) < len(source.drop_null()):
        return None  # Spark finds out whether they match the same row of the table
    matches = source.join(target, names, join_type="left outer")
    if len(matches) > SMALL_ROWS:
        return None
    return pa.concat_tables([_clause_rows(number, clause, matches, values) for number, clause in enumerate(clauses, 1)])


def _with_keys(names: Sequence[str], rows: pa.Table, columns: Sequence[str], more: Mapping[str, Any]) -> pa.Table:
    """Return columns by which rows are joined: whole numbers of one type, or texts."""
    keys = [rows.column(column) for column in columns]
    comparable = [key.cast(pa.int64() if pa.types.is_integer(key.type) else pa.string()) for key in keys]
    return pa.table({**dict(zip(names, comparable, strict=True)), **more})


def _clause_rows(number: int, clause: Clause, matches: pa.Table, values: pa.Table) -> pa.Table:
    is_matched = pc.is_valid(matches.column(ADDRESS))
    rows_of_clause = matches.filter(is_matched if clause.rows == MATCHED else pc.invert(is_matched))
    places = [rows_of_clause.column(name).combine_chunks().view(pa.int64()) for name in (ADDRESS, ROW)]
    rows = values.take(rows_of_clause.column(PLACE))
    arrays = [pa.array(np.full(len(rows_of_clause), number, np.int32)), *places, *rows.columns]
    return pa.table(arrays, names=["clause", ADDRESS, ROW, *rows.schema.names])
