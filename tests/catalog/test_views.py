"""Views, on a real database and a real disk."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import orjson
import pytest
from lance_namespace.errors import (
    ConcurrentModificationError,
    InvalidInputError,
    NamespaceNotFoundError,
    PermissionDeniedError,
    TableAlreadyExistsError,
)

from lancehouse.catalog.callers import Caller, Grant, Identity, Role
from lancehouse.catalog.catalog import Catalog
from lancehouse.catalog.entries import TableName
from lancehouse.catalog.errors import MetadataNotFoundError, ViewAlreadyExistsError, ViewNotFoundError
from lancehouse.catalog.metadata_loader import LoadResult
from lancehouse.catalog.warehouses import Warehouse

SCHEMA = {"type": "struct", "schema-id": 0, "fields": [{"id": 1, "name": "a", "required": False, "type": "long"}]}
LEVELS = ("db",)


@pytest.fixture(autouse=True)
def db(catalog: Catalog, main: Warehouse, caller: Caller) -> None:
    catalog.namespaces.create(caller, main, LEVELS, {})


def version(sql: str, number: int = 1) -> dict[str, Any]:
    return {
        "version-id": number,
        "timestamp-ms": 1_700_000_000_000,
        "schema-id": 0,
        "summary": {},
        "representations": [{"type": "sql", "sql": sql, "dialect": "spark"}],
        "default-namespace": ["db"],
    }


def create(catalog: Catalog, caller: Caller, name: str = "v", **more: Any) -> LoadResult:
    request = {"name": name, "schema": SCHEMA, "view-version": version("select 1"), "properties": {}, **more}
    return catalog.views.create(caller, catalog.warehouses["main"], LEVELS, request)


def metadata(loaded: LoadResult) -> dict[str, Any]:
    parsed: dict[str, Any] = orjson.loads(loaded.metadata)
    return parsed


def set_property(key: str, value: str = "1") -> dict[str, Any]:
    return {"updates": [{"action": "set-properties", "updates": {key: value}}]}


def test_a_view(catalog: Catalog, main: Warehouse, caller: Caller) -> None:
    made = create(catalog, caller)
    assert made.metadata_location
    assert Path(made.metadata_location).read_bytes() == made.metadata
    assert metadata(made)["location"] == f"{main.location}/db/v"
    assert catalog.views.load(caller, main, LEVELS, "v") == made
    assert catalog.views.list(caller, main, LEVELS, None, None) == (["v"], None)
    assert catalog.tables.list(caller, main, LEVELS, None, None) == ([], None)


def test_names_are_shared_with_tables(catalog: Catalog, main: Warehouse, caller: Caller) -> None:
    create(catalog, caller)
    catalog.tables.create(caller, main, LEVELS, {"name": "t", "schema": SCHEMA})
    with pytest.raises(ViewAlreadyExistsError, match=r"View already exists: db\.v"):
        create(catalog, caller)
    with pytest.raises(TableAlreadyExistsError, match=r"Table with same name already exists: db\.t"):
        create(catalog, caller, "t")
    with pytest.raises(ViewAlreadyExistsError, match=r"View with same name already exists: db\.v"):
        catalog.tables.create(caller, main, LEVELS, {"name": "v", "schema": SCHEMA})
    with pytest.raises(TableAlreadyExistsError, match=r"Cannot rename db\.v to db\.t\. Table already exists"):
        catalog.views.rename(caller, main, TableName(LEVELS, "v"), TableName(LEVELS, "t"))
    with pytest.raises(ViewNotFoundError, match=r"View does not exist: db\.t"):
        catalog.views.load(caller, main, LEVELS, "t")
    with pytest.raises(NamespaceNotFoundError):
        catalog.views.create(caller, main, ("nope",), {"name": "v", "schema": SCHEMA, "view-version": version("x")})


def test_replace(catalog: Catalog, main: Warehouse, caller: Caller) -> None:
    made = create(catalog, caller)
    uuid = metadata(made)["view-uuid"]
    request = {
        "requirements": [{"type": "assert-view-uuid", "uuid": uuid}],
        "updates": [
            {"action": "add-view-version", "view-version": version("select 2", 2)},
            {"action": "set-current-view-version", "view-version-id": -1},
        ],
    }
    now = catalog.views.commit(caller, main, LEVELS, "v", request)
    assert metadata(now)["current-version-id"] == 2
    assert now.metadata_location != made.metadata_location
    with pytest.raises(ConcurrentModificationError):
        other = {"type": "assert-view-uuid", "uuid": "00000000-0000-0000-0000-000000000000"}
        catalog.views.commit(caller, main, LEVELS, "v", {"requirements": [other], "updates": []})
    assert catalog.views.commit(caller, main, LEVELS, "v", {"updates": []}) == now
    with pytest.raises(ViewNotFoundError):
        catalog.views.commit(caller, main, LEVELS, "gone", request)
    with pytest.raises(InvalidInputError):
        moved = {"updates": [{"action": "set-location", "location": "/elsewhere"}]}
        catalog.views.commit(caller, main, LEVELS, "v", moved)
    assert len(list(Path(main.location).rglob("*.json"))) == 2


def test_many_at_once(catalog: Catalog, main: Warehouse, caller: Caller) -> None:
    create(catalog, caller)
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda n: catalog.views.commit(caller, main, LEVELS, "v", set_property(f"p{n}")), range(6)))
    assert set(metadata(catalog.views.load(caller, main, LEVELS, "v"))["properties"]) >= {f"p{n}" for n in range(6)}


def test_register_rename_drop(catalog: Catalog, main: Warehouse, caller: Caller) -> None:
    made = create(catalog, caller)
    catalog.views.rename(caller, main, TableName(LEVELS, "v"), TableName(LEVELS, "w"))
    catalog.views.drop(caller, main, LEVELS, "w")
    with pytest.raises(ViewNotFoundError):
        catalog.views.drop(caller, main, LEVELS, "w")
    request = {"name": "x", "metadata-location": made.metadata_location}
    assert catalog.views.register(caller, main, LEVELS, request) == made
    with pytest.raises(ViewAlreadyExistsError):
        catalog.views.register(caller, main, LEVELS, request)
    with pytest.raises(MetadataNotFoundError):
        catalog.views.register(caller, main, LEVELS, {"name": "y", "metadata-location": f"{main.location}/y.json"})


def test_who_may(catalog: Catalog, main: Warehouse, caller: Caller) -> None:
    create(catalog, caller)
    reader = Caller(Identity("r", (Grant(Role.READER, "main"),)))
    assert catalog.views.load(reader, main, LEVELS, "v")
    for call in (
        lambda: create(catalog, reader, "w"),
        lambda: catalog.views.drop(reader, main, LEVELS, "v"),
        lambda: catalog.views.commit(reader, main, LEVELS, "v", set_property("x")),
        lambda: catalog.views.rename(reader, main, TableName(LEVELS, "v"), TableName(LEVELS, "w")),
    ):
        with pytest.raises(PermissionDeniedError):
            call()
