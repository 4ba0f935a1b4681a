"""A table for tests of changes: at a path, in a folder of tables, or managed by `lancehouse serve`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance_namespace import DescribeTableRequest

from lancehouse.connection import Connection
from lancehouse.jobs.address import TableAddress
from lancehouse.lake.dataset import TableRef
from lancehouse.locations import local_folder
from tests.clients.managed import files_in, managed_by_lancehouse

KINDS = ("path", "dir", "managed")


@dataclass(frozen=True)
class JobTable:
    """Where one table is."""

    address: TableAddress

    def write(self, rows: pa.Table, **how: Any) -> None:
        """Create the table, or append to it."""
        table = self.address.to_ref()
        how = {"mode": "append" if table.exists() else "create", **how}
        if table.location is not None:
            lance.write_dataset(rows, table.location, **how)
        else:
            lance.write_dataset(rows, namespace_client=table.namespace, table_id=list(table.id), **how)

    def open(self) -> lance.LanceDataset:
        """The latest version."""
        return self.address.to_ref().open()

    def rows(self, *columns: str) -> list[tuple[Any, ...]]:
        """All rows, in an order of their own."""
        found = self.open().to_table(list(columns) or None).to_pylist()
        return sorted((tuple(row.values()) for row in found), key=repr)

    def files(self) -> set[str]:
        """What lies there."""
        return files_in(self.folder())

    def folder(self) -> Path:
        """Where it lies."""
        table = self.address.to_ref()
        location = table.location or _location(table)
        found = local_folder(location)
        assert found is not None
        return found


def _location(table: TableRef) -> str:
    assert table.namespace is not None
    found = table.namespace.describe_table(DescribeTableRequest(id=list(table.id))).location
    assert found is not None
    return found


def home_of(request: pytest.FixtureRequest, kind: str) -> JobTable:
    """A place for a table that is not there yet."""
    folder: Path = request.getfixturevalue("tmp_path")
    if kind == "path":
        return JobTable(TableAddress(path=str(folder / "a table")))
    if kind == "dir":
        return JobTable(TableAddress.parse(Connection("dir", {"root": str(folder)}), ["t"]))
    catalog = managed_by_lancehouse(request.getfixturevalue("lancehouse_server"))
    return JobTable(TableAddress.parse(Connection(catalog.impl, catalog.properties), catalog.id("t")))
