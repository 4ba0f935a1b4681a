"""A catalog on a database of its own, with two warehouses on local disk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lancehouse.catalog.bootstrap import open_database, record_warehouses
from lancehouse.catalog.callers import ANYBODY, Caller
from lancehouse.catalog.catalog import Catalog
from lancehouse.catalog.warehouses import Warehouse


@pytest.fixture
def caller() -> Caller:
    """Anybody, who may do everything."""
    return Caller(ANYBODY, "tests/1", "request-1")


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    """An empty catalog on SQLite."""
    with_folders = [Warehouse(0, name, str(tmp_path / name)) for name in ("main", "other")]
    for warehouse in with_folders:
        Path(warehouse.location).mkdir()
    database = open_database(f"sqlite:///{tmp_path / 'catalog.db'}")
    yield Catalog(database, record_warehouses(database, with_folders, with_folders[0]))
    database.close()


@pytest.fixture
def main(catalog: Catalog) -> Warehouse:
    """The first warehouse."""
    return catalog.warehouses["main"]
