"""Who may take which place for a table: below their own namespaces, and never in another table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lance
import orjson
import pyarrow as pa
import pytest
from lance_namespace.errors import InvalidInputError, LanceNamespaceError, PermissionDeniedError

from lancehouse.catalog.callers import Caller, Grant, Identity, Role
from lancehouse.catalog.catalog import Catalog
from lancehouse.catalog.warehouses import Warehouse

SCHEMA = {"type": "struct", "schema-id": 0, "fields": [{"id": 1, "name": "a", "required": False, "type": "long"}]}
ROWS = pa.table({"a": pa.array([1, 2, 3], pa.int64())})
WRITER = Caller(Identity("w", (Grant(Role.WRITER, "main", ("a", "b")),)))
LEVELS = ("a", "b")


@pytest.fixture(autouse=True)
def namespaces(catalog: Catalog, main: Warehouse, caller: Caller) -> None:
    for levels in [LEVELS, ("other",)]:
        catalog.namespaces.create(caller, main, levels, {})


def create(
    catalog: Catalog, caller: Caller, name: str, kind: str, levels: tuple[str, ...] = LEVELS, **more: Any
) -> str:
    main = catalog.warehouses["main"]
    if kind == "view":
        version = {"version-id": 1, "timestamp-ms": 1, "schema-id": 0, "summary": {}, "default-namespace": []}
        version |= {"representations": [{"type": "sql", "sql": "select 1", "dialect": "spark"}]}
        request = {"name": name, "schema": SCHEMA, "view-version": version, "properties": {}, **more}
        return str(orjson.loads(catalog.views.create(caller, main, levels, request).metadata)["location"])
    properties = {"table_type": "lance"} if kind == "lance" else {}
    request = {"name": name, "schema": SCHEMA, **more, "properties": properties | more.get("properties", {})}
    return str(orjson.loads(catalog.tables.create(caller, main, levels, request).metadata)["location"])


@pytest.mark.parametrize("kind", ["lance", "iceberg", "view"])
@pytest.mark.parametrize(
    ("below", "allowed"),
    [
        ("a/b/x", True),
        ("a/b/deeper/x", True),
        ("main/a/b/x", True),  # what a Lance client chooses
        ("a/x", False),
        ("a/bc", False),
        ("a/b", False),
        ("other/x", False),
        ("x", False),
    ],
)
def test_a_writer_of_a_namespace_chooses_below_it(
    catalog: Catalog, main: Warehouse, kind: str, below: str, allowed: bool
) -> None:
    location = f"{main.location}/{below}"
    if allowed:
        assert create(catalog, WRITER, "t", kind, location=location) == location
    else:
        with pytest.raises(PermissionDeniedError, match="below the folders of the namespaces"):
            create(catalog, WRITER, "t", kind, location=location)


def test_a_namespace_called_like_the_warehouse_keeps_its_folder(
    catalog: Catalog, main: Warehouse, caller: Caller
) -> None:
    catalog.namespaces.create(caller, main, ("main", "a", "b"), {})
    with pytest.raises(PermissionDeniedError):
        create(catalog, WRITER, "t", "lance", location=f"{main.location}/main/a/b/x")


def test_what_lies_elsewhere_cannot_be_registered(catalog: Catalog, main: Warehouse, caller: Caller) -> None:
    lance.write_dataset(ROWS, f"{main.location}/other/secret")
    create(catalog, caller, "i", "iceberg", ("other",))
    view = create(catalog, caller, "v", "view", ("other",))
    (file,) = Path(main.location, "other", "i", "metadata").iterdir()
    (view_file,) = Path(view, "metadata").iterdir()
    for place in (
        f"{main.location}/other/secret",
        f"{main.location}/other/nothing",
        str(file),
        f"{file}x.metadata.json",
    ):
        with pytest.raises(PermissionDeniedError):
            catalog.tables.register(WRITER, main, LEVELS, {"name": "x", "metadata-location": place})
    with pytest.raises(PermissionDeniedError):
        catalog.views.register(WRITER, main, LEVELS, {"name": "x", "metadata-location": str(view_file)})
    own = Path(main.location, "a", "b", "own.metadata.json")
    own.parent.mkdir(parents=True)
    own.write_bytes(file.read_bytes())  # says that it lies in the other's place
    with pytest.raises(LanceNamespaceError):
        catalog.tables.register(WRITER, main, LEVELS, {"name": "x", "metadata-location": str(own)})


@pytest.mark.parametrize("key", ["write.metadata.path", "write.data.path"])
@pytest.mark.parametrize("path", ["/elsewhere", "{main}/other/i/metadata", "{main}/.lancehouse/x"])
def test_files_beside_the_location(catalog: Catalog, main: Warehouse, caller: Caller, key: str, path: str) -> None:
    create(catalog, caller, "i", "iceberg", ("other",))
    properties = {key: path.format(main=main.location)}
    kinds = ["iceberg", "view"] if key == "write.metadata.path" else ["iceberg"]
    for kind in kinds:
        with pytest.raises(InvalidInputError):
            create(catalog, caller, "x", kind, properties=properties)
    create(catalog, caller, "y", "iceberg")
    with pytest.raises(InvalidInputError):
        update = {"requirements": [], "updates": [{"action": "set-properties", "updates": properties}]}
        catalog.commits.commit(caller, main, LEVELS, "y", update)
    allowed = {key: f"{main.location}/a/b/beside"}
    create(catalog, WRITER, "z", "iceberg", properties=allowed)
    with pytest.raises(PermissionDeniedError):
        create(catalog, WRITER, "q", "iceberg", properties={key: f"{main.location}/free"})


def test_a_view_does_not_lie_in_a_table(catalog: Catalog, caller: Caller) -> None:
    table = create(catalog, caller, "t", "lance")
    for place in (table, f"{table}/x"):
        with pytest.raises(InvalidInputError, match="another table's"):
            create(catalog, caller, "v", "view", location=place)


@pytest.mark.parametrize("kind", ["lance", "iceberg"])
def test_a_namespace_called_like_a_table(catalog: Catalog, main: Warehouse, caller: Caller, kind: str) -> None:
    create(catalog, caller, "t", "lance")
    catalog.namespaces.create(caller, main, (*LEVELS, "t"), {})
    location = create(catalog, caller, "u", kind, (*LEVELS, "t"))
    assert location.startswith(f"{main.location}/a-")
    assert location.endswith("/b/t/u")


def test_errors_name_no_other_table(catalog: Catalog, main: Warehouse, caller: Caller) -> None:
    create(catalog, caller, "secret", "lance", ("other",), location=f"{main.location}/a/b/mine")
    with pytest.raises(InvalidInputError) as raised:
        create(catalog, WRITER, "t", "lance", location=f"{main.location}/a/b/mine")
    assert "secret" not in str(raised.value)


def test_pages_tell_only_what_is_seen(catalog: Catalog, main: Warehouse, caller: Caller) -> None:
    for name in ("aasecret", "zz", "zzz"):
        catalog.namespaces.create(caller, main, (name,), {})
    reader = Caller(Identity("r", (Grant(Role.READER, "main", ("zz",)), Grant(Role.READER, "main", ("zzz",)))))
    first, token = catalog.namespaces.list(reader, main, (), "", 1)
    assert first == [("zz",)]
    assert catalog.namespaces.list(reader, main, (), token, 1) == ([("zzz",)], None)
