"""What a catalog holds, and what a table was: as DataFrames and views."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

import pyarrow as pa
from lance_namespace import LanceNamespace, ListNamespacesRequest, ListTablesRequest
from lance_namespace.errors import InvalidInputError, TableNotFoundError
from pyspark.sql import DataFrame, SparkSession

from lancehouse.lake import history as lake
from lancehouse.lake.dataset import TableRef
from lancehouse.lake.fragments import place
from lancehouse.lake.scans import Moment, Scan
from lancehouse.schema.outgoing import to_rows
from lancehouse.spark.address import Address, Catalog
from lancehouse.spark.reading import read
from lancehouse.spark.session import struct

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
    client = catalog.namespace()
    children = list(_children(client, namespace))
    try:
        names = list(_names(client, namespace))
    except InvalidInputError:  # a warehouse holds namespaces only
        names = []
    for name in names:
        yield catalog.table([*namespace, name])
    for child in children:
        yield from tables(catalog, [*namespace, child])


def register_views(spark: SparkSession, catalog: Catalog, namespace: Sequence[str]) -> list[str]:
    """Make a temporary view of each table of a namespace, called as the table is; the names.

    A view shows the version that is the latest now. Tables that are only declared have nothing to show.
    """
    made = []
    for name in _names(catalog.namespace(), namespace):
        try:
            rows = read(spark, catalog.table([*namespace, name]), Scan(), Moment())
        except TableNotFoundError:
            continue
        rows.createOrReplaceTempView(f"`{name.replace('`', '``')}`")
        made.append(name)
    return made


def _names(client: LanceNamespace, namespace: Sequence[str]) -> Iterator[str]:
    token = None
    while True:
        page = client.list_tables(ListTablesRequest(id=list(namespace), page_token=token))
        yield from sorted(page.tables)
        token = page.page_token
        if not token:
            return


def _children(client: LanceNamespace, namespace: Sequence[str]) -> Iterator[str]:
    """The last levels of the namespaces below one; some catalogs list whole ids."""
    above, token = ".".join([*namespace, ""]), None
    while True:
        page = client.list_namespaces(ListNamespacesRequest(id=list(namespace), page_token=token))
        yield from (child.removeprefix(above) for child in sorted(page.namespaces))
        token = page.page_token
        if not token:
            return
