"""Register the tables of a namespace as temporary views, and return a table's history as a DataFrame."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any

import pyarrow as pa
from lance_namespace.errors import InvalidInputError, TableNotFoundError
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from lancehouse.connection import Connection
from lancehouse.identifiers import quote_name
from lancehouse.jobs.address import TableAddress, get_client
from lancehouse.lake import version_records
from lancehouse.lake.commits import locate_table
from lancehouse.lake.dataset import TableRef, VersionSelector
from lancehouse.lake.foreign_tables import ClientCalls
from lancehouse.lake.scans import Scan
from lancehouse.lake.versions import list_manifests
from lancehouse.schema.spark_rows import to_spark_rows
from lancehouse.spark.session import name_normalizer, to_struct
from lancehouse.spark.table_reader import read_table

_COLUMNS: dict[str, pa.DataType] = {
    "version": pa.int64(),
    "timestamp": pa.timestamp("us", "UTC"),
    "operation": pa.string(),
    "rows": pa.int64(),
    "files": pa.int64(),
    "bytes": pa.int64(),
    "tags": pa.list_(pa.string()),
    "message": pa.string(),
}
HISTORY = pa.schema(_COLUMNS)


def history(spark: SparkSession, address: TableAddress) -> DataFrame:
    """Return the versions of a table's main branch, the latest first.

    Raises:
        TableNotFoundError: there is no such table, or it has no version yet.
    """
    at = locate_table(address.to_ref())
    table = TableRef(at.location, at.storage_options)
    if not (manifests := list_manifests(table)):
        raise TableNotFoundError(f"{address} has no version yet")
    tags: dict[int, list[str]] = {}
    for tag, (branch, version) in version_records.read_refs(table).tags.items():
        if branch is None:
            tags.setdefault(version, []).append(tag)
    rows = [
        {
            "version": record.version,
            "timestamp": datetime.fromtimestamp(record.timestamp_ms / 1000, UTC),
            "operation": record.operation,
            "rows": record.rows,
            "files": record.files,
            "bytes": record.bytes,
            "tags": tags.get(record.version, []),
            "message": record.message,
        }
        for record in version_records.read_versions(table, sorted(manifests, reverse=True))
    ]
    return spark.createDataFrame(pa.Table.from_pylist(rows, HISTORY), to_struct(to_spark_rows(HISTORY).struct))


def register_views(
    spark: SparkSession, connection: Connection, namespace: Sequence[str], prefix: str = "", *, replace: bool = False
) -> list[str]:
    """Create a temporary view of each table of a namespace, called `prefix` plus the table's name; return the names.

    Each query of a view reads the latest version at that time; its columns are those of now. Tables that are only
    declared are skipped. Views that this created before of the same tables are replaced.

    Args:
        spark: the session.
        connection: catalog of the tables.
        namespace: levels of the namespace.
        prefix: prefix of the names.
        replace: also replace other views, and hide tables of the session of the same name.

    Raises:
        InvalidInputError: something else has one of the names, or two tables would get the same; no view was created.
    """
    frames: dict[str, tuple[TableAddress, DataFrame]] = {}
    for table in ClientCalls(get_client(connection)).tables(namespace):
        address = TableAddress.parse(connection, table)
        try:
            frame = read_table(spark, address, Scan(), VersionSelector(), follows=True)
        except TableNotFoundError:
            continue
        frames[f"{prefix}{table[-1]}"] = address, frame
    views = _ViewRegistry(spark)
    _require_distinct(views, frames)
    if not replace and (taken := [name for name, (address, _) in frames.items() if views.is_taken(name, address)]):
        raise InvalidInputError(
            f"the session has {', '.join(taken)} already, and not as a view of these tables: give a prefix for the "
            "names, or replace=True to take them"
        )
    for name, (address, frame) in frames.items():
        views.create(name, address, frame)
    return list(frames)


def _require_distinct(views: _ViewRegistry, names: Iterable[str]) -> None:
    by_key: dict[str, list[str]] = {}
    for name in names:
        by_key.setdefault(views.normalize_name(name), []).append(name)
    if alike := next((group for group in by_key.values() if len(group) > 1), None):
        raise InvalidInputError(f"{' and '.join(alike)} are one name to Spark, unless spark.sql.caseSensitive is true")


class _ViewRegistry:
    """The temporary views that were created for tables, stored in a setting of the session.

    A view is recognized by its name, its table and its plan: a view that somebody has created since under the same name
    has another plan.
    """

    SETTING = "spark.lancehouse.views"

    def __init__(self, spark: SparkSession) -> None:
        self._spark, self._fold = spark, name_normalizer(spark)
        self._registered: dict[str, list[Any]] = json.loads(spark.conf.get(self.SETTING, "{}") or "{}")

    def normalize_name(self, name: str) -> str:
        """Return the name in the form in which Spark compares names."""
        return self._fold(name)

    def is_taken(self, name: str, address: TableAddress) -> bool:
        """Return whether a view or table that was not created for this table has the name."""
        quoted = quote_name(name)
        if not self._spark.catalog.tableExists(quoted):
            return False
        try:
            plan = self._spark.table(quoted).semanticHash()
        except AnalysisException:  # a view of something that is gone still has an owner
            return True
        return self._registered.get(self.normalize_name(name)) != [_table_digest(address), plan]

    def create(self, name: str, address: TableAddress, frame: DataFrame) -> None:
        """Create a view, and remember it."""
        quoted = quote_name(name)
        frame.createOrReplaceTempView(quoted)
        self._registered[self.normalize_name(name)] = [_table_digest(address), self._spark.table(quoted).semanticHash()]
        self._spark.conf.set(self.SETTING, json.dumps(self._registered))


def _table_digest(address: TableAddress) -> str:
    """Return a digest that identifies a table among all catalogs; it hides the properties, which may be secret."""
    assert isinstance(address.connection, Connection)
    described = json.dumps([address.connection.impl, address.connection.properties, address.id])
    return blake2b(described.encode(), digest_size=16).hexdigest()
