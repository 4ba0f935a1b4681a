"""What a catalog holds, and what a table was: as DataFrames and views."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

import pyarrow as pa
from lance_namespace import LanceNamespace, ListNamespacesRequest, ListTablesRequest
from lance_namespace.errors import TableNotFoundError
from pyspark.sql import DataFrame, SparkSession

from lancehouse.lake import history as lake
from lancehouse.lake.dataset import TableRef
from lancehouse.lake.fragments import place
from lancehouse.lake.scans import Moment, Scan
from lancehouse.schema.outgoing import to_rows
from lancehouse.spark.address import Address, Catalog
from lancehouse.spark.reading import read
from lancehouse.spark.session import struct
from lancehouse.trees import Id, all_tables

_COLUMNS: dict[str, pa.DataType] = {
    "version": pa.int64(),
    "timestamp": pa.timestamp("us", "UTC"),
    "operation": pa.string(),
    "rows": pa.int64(),
    "files": pa.int64(),
    "bytes": pa.int64(),
    "tags": pa.list_(pa.string()),
}
HISTORY = pa.schema(_COLUMNS)


def history(spark: SparkSession, address: Address) -> DataFrame:
    """The versions of a table, the latest first.

    Raises:
        TableNotFoundError: there is no such table, or it has no version yet.
    """
    at = place(address.ref())
    found = lake.read(TableRef(at.location, at.storage_options))
    if found is None:
        raise TableNotFoundError(f"{address} has no version yet")
    tags: dict[int, list[str]] = {}
    for tag, snapshot in sorted(found.tags.items()):
        tags.setdefault(snapshot, []).append(tag)
    rows = [
        {
            "version": each.version,
            "timestamp": datetime.fromtimestamp(each.timestamp_ms / 1000, UTC),
            "operation": each.operation,
            "rows": each.rows,
            "files": each.files,
            "bytes": each.bytes,
            "tags": tags.get(each.version, []),
        }
        for each in reversed(found.on_main)
    ]
    return spark.createDataFrame(pa.Table.from_pylist(rows, HISTORY), struct(to_rows(HISTORY).struct))


def tables(catalog: Catalog, namespace: Sequence[str]) -> Iterator[Address]:
    """The tables in a namespace and below it."""
    for table in all_tables(_Lists(catalog.namespace()), tuple(namespace)):
        yield catalog.table(table)


def register_views(spark: SparkSession, catalog: Catalog, namespace: Sequence[str]) -> list[str]:
    """Make a temporary view of each table of a namespace, called as the table is; the names.

    A view shows the version that is the latest now. Tables that are only declared have nothing to show.
    """
    made = []
    for table in _Lists(catalog.namespace()).tables(namespace):
        try:
            rows = read(spark, catalog.table(table), Scan(), Moment())
        except TableNotFoundError:
            continue
        name = table[-1]
        rows.createOrReplaceTempView(f"`{name.replace('`', '``')}`")
        made.append(name)
    return made


class _Lists:
    """What a client lists, page by page."""

    def __init__(self, client: LanceNamespace) -> None:
        self._client = client

    def tables(self, id: Sequence[str]) -> list[Id]:
        names, token = list[str](), None
        while True:
            page = self._client.list_tables(ListTablesRequest(id=list(id), page_token=token))
            names += page.tables
            if not (token := page.page_token):
                return [(*id, name) for name in sorted(names)]

    def namespaces(self, id: Sequence[str]) -> list[Id]:
        """The namespaces below one; some catalogs list whole ids."""
        above, names, token = ".".join([*id, ""]), list[str](), None
        while True:
            page = self._client.list_namespaces(ListNamespacesRequest(id=list(id), page_token=token))
            names += page.namespaces
            if not (token := page.page_token):
                return [(*id, name.removeprefix(above)) for name in sorted(names)]
