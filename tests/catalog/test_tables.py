"""Tables, Lance and Iceberg ones, on a real database and a real disk."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import orjson
import pyarrow as pa
import pytest
from lance_namespace.errors import (
    InvalidInputError,
    NamespaceNotFoundError,
    PermissionDeniedError,
    ServiceUnavailableError,
    TableAlreadyExistsError,
    TableNotFoundError,
)

from lancehouse.catalog import metadata_loader
from lancehouse.catalog.callers import Caller, Grant, Identity, Role
from lancehouse.catalog.catalog import Catalog
from lancehouse.catalog.entries import TableName
from lancehouse.catalog.errors import MetadataNotFoundError
from lancehouse.catalog.metadata_loader import LoadResult
from lancehouse.catalog.warehouses import Warehouse
from lancehouse.errors import CommitStateUnknownError
from tests.from_memory import from_memory

SCHEMA = {"type": "struct", "fields": [{"id": 1, "name": "a", "required": False, "type": "long"}]}
ROWS = pa.table({"a": pa.array([1, 2, 3], pa.int64())})


@pytest.fixture(autouse=True)
def db(catalog: Catalog, main: Warehouse, caller: Caller) -> None:
    catalog.namespaces.create(caller, main, ("db",), {})


def create(
    catalog: Catalog, caller: Caller, name: str = "t", *, lake: bool = True, staged: bool = False, **more: Any
) -> LoadResult:
    properties = {"table_type": "Lance"} if lake else {}
    given = {"name": name, "schema": SCHEMA, "properties": properties | more.pop("properties", {}), **more}
    given |= {"stage-create": True} if staged else {}
    return catalog.tables.create(caller, catalog.warehouses["main"], ("db",), given)


def load(catalog: Catalog, caller: Caller, name: str = "t") -> dict[str, Any]:
    found = catalog.tables.load(caller, catalog.warehouses["main"], ("db",), name)
    metadata: dict[str, Any] = orjson.loads(found.metadata)
    return metadata


def list_tables(catalog: Catalog, caller: Caller) -> list[str]:
    return catalog.tables.list(caller, catalog.warehouses["main"], ("db",), None, None)[0]


@pytest.mark.parametrize("has_data", [False, True])
def test_a_store_that_fails_when_the_entry_is_made(
    catalog: Catalog, main: Warehouse, caller: Caller, monkeypatch: pytest.MonkeyPatch, has_data: bool
) -> None:
    """A 503 would say that nothing was done: the client would ask again, and be told that the name is taken."""
    if has_data:
        lance.write_dataset(ROWS, f"{main.location}/db/t")

    def fail(*_: Any, **__: Any) -> None:
        raise ServiceUnavailableError("no answer")

    monkeypatch.setattr("lancehouse.lake.history.read_history", fail)
    with pytest.raises(CommitStateUnknownError, match="t is created") if has_data else nullcontext():
        create(catalog, caller)
    assert list_tables(catalog, caller) == ["t"]


def test_a_lance_table_is_declared_and_then_written(catalog: Catalog, main: Warehouse, caller: Caller) -> None:
    made = create(catalog, caller)
    metadata = orjson.loads(made.metadata)
    assert made.metadata_location is None
    assert metadata["location"] == f"{main.location}/db/t"
    assert metadata["properties"] == {"table_type": "lance", "managed_by": "storage"}
    assert [field["name"] for field in metadata["schemas"][0]["fields"]] == ["a"]
    assert "current-snapshot-id" not in metadata
    lance.write_dataset(ROWS.append_column("b", pa.array(["x", "y", "z"])), metadata["location"])
    now = load(catalog, caller)
    assert now["current-snapshot-id"] == 1
    assert [field["name"] for field in now["schemas"][0]["fields"]] == ["a", "b"]
    assert (now["schemas"][0]["schema-id"], now["current-schema-id"]) == (1, 1)


@pytest.mark.parametrize("form", ["{}", "file://{}", "file:{}", "{}/"])
def test_a_dataset_that_is_there_is_adopted(catalog: Catalog, main: Warehouse, caller: Caller, form: str) -> None:
    folder = f"{main.location}/elsewhere/d"
    lance.write_dataset(ROWS, folder)
    lance.write_dataset(ROWS, folder, mode="append")
    create(catalog, caller, location=form.format(folder), properties={"managed_by": "impl"})
    now = load(catalog, caller)
    assert now["current-snapshot-id"] == 2
    assert now["location"] == form.format(folder).rstrip("/")


def test_register_takes_the_root_of_a_dataset(catalog: Catalog, main: Warehouse, caller: Caller) -> None:
    folder = f"{main.location}/d"
    lance.write_dataset(ROWS, folder)
    request = {"name": "t", "metadata-location": folder}
    made = catalog.tables.register(caller, main, ("db",), request)
    assert made.metadata_location is None
    assert orjson.loads(made.metadata)["current-snapshot-id"] == 1
    with pytest.raises(TableAlreadyExistsError, match=r"Table already exists: db\.t"):
        catalog.tables.register(caller, main, ("db",), request)
    with pytest.raises(InvalidInputError, match="no Lance dataset"):
        catalog.tables.register(caller, main, ("db",), {"name": "u", "metadata-location": f"{main.location}/nothing"})


@pytest.mark.parametrize("managed_by", ["storage", "impl"])
def test_a_broken_dataset_is_no_table(catalog: Catalog, main: Warehouse, caller: Caller, managed_by: str) -> None:
    folder = f"{main.location}/d"
    lance.write_dataset(ROWS, folder)
    for manifest in Path(folder, "_versions").iterdir():
        manifest.write_bytes(b"junk")
    with pytest.raises(InvalidInputError):
        create(catalog, caller, location=folder, properties={"managed_by": managed_by})
    assert list_tables(catalog, caller) == []


def test_a_lance_table_of_another_catalog_is_registered_by_its_metadata_file(
    catalog: Catalog, main: Warehouse, caller: Caller
) -> None:
    """Other Iceberg catalogs write a metadata file for it, into the dataset."""
    made = create(catalog, caller, "i", lake=False)
    metadata = orjson.loads(made.metadata)
    catalog.tables.drop(caller, main, ("db",), "i")
    lance.write_dataset(ROWS, metadata["location"], mode="append")
    metadata["properties"] = {"table_type": "LANCE", "team": "ml"}
    file = Path(metadata["location"], "metadata", "00001-x.metadata.json")
    file.write_bytes(orjson.dumps(metadata))
    found = catalog.tables.register(caller, main, ("db",), {"name": "t", "metadata-location": str(file)})
    assert found.metadata_location is None
    shown = orjson.loads(found.metadata)
    assert shown["current-snapshot-id"] == 1
    assert shown["properties"] == {"table_type": "lance", "managed_by": "storage", "team": "ml"}


@pytest.mark.parametrize("said", ["storage", "Storage", "IMPL", "impl"])
def test_managed_by_in_any_case(catalog: Catalog, caller: Caller, said: str) -> None:
    create(catalog, caller, properties={"managed_by": said, "table_type": "LANCE"})
    assert load(catalog, caller)["properties"] == {"table_type": "lance", "managed_by": said.lower()}


@pytest.mark.parametrize(("said", "expected"), [({}, "impl"), ({"managed_by": "storage"}, "storage")])
def test_managed_by_as_the_warehouse_has_it(
    catalog: Catalog, main: Warehouse, caller: Caller, said: dict[str, str], expected: str
) -> None:
    request = {"name": "t", "schema": SCHEMA, "properties": {"table_type": "lance", **said}}
    made = catalog.tables.create(caller, replace(main, managed_by="impl"), ("db",), request)
    assert orjson.loads(made.metadata)["properties"] == {"table_type": "lance", "managed_by": expected}


def test_managed_by_something_else(catalog: Catalog, caller: Caller) -> None:
    with pytest.raises(InvalidInputError, match="managed_by is 'me'"):
        create(catalog, caller, properties={"managed_by": "me"})
    assert list_tables(catalog, caller) == []


@pytest.mark.parametrize(
    "location",
    [
        "/elsewhere",
        "{main}/../x",
        "{main}",
        "s3://bucket/x",
        "{main}/.lancehouse/x",
        "{main}/db/u",
        "{main}/db/u/deeper",
    ],
)
@pytest.mark.parametrize("lake", [True, False])
def test_locations_that_are_refused(
    catalog: Catalog, main: Warehouse, caller: Caller, location: str, lake: bool
) -> None:
    create(catalog, caller, "u")
    with pytest.raises(InvalidInputError):
        create(catalog, caller, lake=lake, location=location.format(main=main.location))
    assert list_tables(catalog, caller) == ["u"]


def test_an_iceberg_table(catalog: Catalog, main: Warehouse, caller: Caller) -> None:
    made = create(catalog, caller, lake=False)
    assert made.metadata_location is not None
    assert Path(made.metadata_location).read_bytes() == made.metadata
    found = catalog.tables.load(caller, main, ("db",), "t")
    assert found == made
    assert from_memory(catalog.tables.load, caller, main, ("db",), "t", "all") == made
    Path(made.metadata_location).unlink()
    assert from_memory(catalog.tables.load, caller, main, ("db",), "t", "all") is None
    with pytest.raises(MetadataNotFoundError, match="Failed to open input stream"):
        catalog.tables.load(caller, main, ("db",), "t")


def test_large_metadata_are_not_parsed_on_the_event_loop(
    catalog: Catalog, main: Warehouse, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = create(catalog, caller, lake=False)
    monkeypatch.setattr(metadata_loader, "REDUCED_INLINE", len(made.metadata) - 1)
    assert from_memory(catalog.tables.load, caller, main, ("db",), "t", "refs") is None
    found = catalog.tables.load(caller, main, ("db",), "t", "refs")
    assert from_memory(catalog.tables.load, caller, main, ("db",), "t", "refs") == found


def test_a_staged_table_is_not_there(catalog: Catalog, main: Warehouse, caller: Caller) -> None:
    made = create(catalog, caller, lake=False, staged=True)
    assert made.metadata_location is None
    assert list_tables(catalog, caller) == []
    assert list(Path(main.location).rglob("*.json")) == []
    with pytest.raises(InvalidInputError, match="cannot be staged"):
        create(catalog, caller, staged=True)


def test_names_are_taken_once(catalog: Catalog, main: Warehouse, caller: Caller) -> None:
    create(catalog, caller)
    for lake in (True, False):
        with pytest.raises(TableAlreadyExistsError, match=r"Table already exists: db\.t"):
            create(catalog, caller, lake=lake)
    with pytest.raises(NamespaceNotFoundError, match="Namespace does not exist: nope"):
        catalog.tables.create(caller, main, ("nope",), {"name": "t", "schema": SCHEMA})
    assert len(list(Path(main.location).rglob("*.metadata.json"))) == 0


def test_what_is_not_there(catalog: Catalog, main: Warehouse, caller: Caller) -> None:
    for levels in [("db",), ("nope",)]:
        with pytest.raises(TableNotFoundError, match="Table does not exist"):
            catalog.tables.load(caller, main, levels, "t")
        with pytest.raises(TableNotFoundError):
            catalog.tables.drop(caller, main, levels, "t")
    with pytest.raises(NamespaceNotFoundError):
        catalog.tables.list(caller, main, ("nope",), None, None)


def test_drop_keeps_the_files_and_purge_takes_them(catalog: Catalog, main: Warehouse, caller: Caller) -> None:
    for purge in (False, True):
        create(catalog, caller)
        folder = Path(main.location) / "db" / "t"
        lance.write_dataset(ROWS, str(folder), mode="overwrite")
        (folder / "notes.txt").write_text("mine")
        catalog.tables.drop(caller, replace(main, retention_s=0), ("db",), "t", purge=purge)
        assert list_tables(catalog, caller) == []
        assert (folder / "_versions").exists() is not purge
        assert (folder / "notes.txt").exists()


def test_gc_enabled_false_keeps_the_files(catalog: Catalog, main: Warehouse, caller: Caller) -> None:
    create(catalog, caller, properties={"gc.enabled": "false"})
    with pytest.raises(InvalidInputError, match=r"gc\.enabled is false"):
        catalog.tables.drop(caller, main, ("db",), "t", purge=True)
    catalog.tables.drop(caller, main, ("db",), "t")


def test_rename(catalog: Catalog, main: Warehouse, caller: Caller) -> None:
    catalog.namespaces.create(caller, main, ("db2",), {})
    create(catalog, caller)
    create(catalog, caller, "u")
    source, uuid = TableName(("db",), "t"), load(catalog, caller)["table-uuid"]
    for target, error in [
        (TableName(("db",), "u"), TableAlreadyExistsError),
        (TableName(("nope",), "t"), NamespaceNotFoundError),
        (TableName(("db",), ""), InvalidInputError),
    ]:
        with pytest.raises(error):
            catalog.tables.rename(caller, main, source, target)
    catalog.tables.rename(caller, main, source, TableName(("db2",), "v"))
    assert orjson.loads(catalog.tables.load(caller, main, ("db2",), "v").metadata)["table-uuid"] == uuid
    assert list_tables(catalog, caller) == ["u"]
    again = orjson.loads(create(catalog, caller).metadata)["location"]
    assert again.startswith(f"{main.location}/db/t-")  # the renamed table lies where its old name says
    with pytest.raises(TableNotFoundError):
        catalog.tables.rename(caller, main, TableName(("db",), "gone"), TableName(("db",), "x"))


def test_register_an_iceberg_table_again(catalog: Catalog, main: Warehouse, caller: Caller) -> None:
    made = create(catalog, caller, lake=False)
    catalog.tables.drop(caller, main, ("db",), "t")
    request = {"name": "t", "metadata-location": made.metadata_location}
    assert catalog.tables.register(caller, main, ("db",), request) == made
    with pytest.raises(TableAlreadyExistsError):
        catalog.tables.register(caller, main, ("db",), request)
    assert catalog.tables.register(caller, main, ("db",), {**request, "overwrite": True}) == made
    with pytest.raises(MetadataNotFoundError):
        missing = f"{main.location}/x/metadata/00000-x.metadata.json"
        catalog.tables.register(caller, main, ("db",), {"name": "u", "metadata-location": missing})
    with pytest.raises(InvalidInputError):
        catalog.tables.register(caller, main, ("db",), {"name": "u", "metadata-location": "/etc/x.metadata.json"})


@pytest.mark.parametrize("role", [None, Role.READER])
def test_who_may_change_tables(catalog: Catalog, main: Warehouse, caller: Caller, role: Role | None) -> None:
    create(catalog, caller)
    other = Caller(Identity("x", (Grant(role, "main", ("db",)),) if role else ()))
    for call in (
        lambda: create(catalog, other, "u"),
        lambda: catalog.tables.drop(other, main, ("db",), "t"),
        lambda: catalog.tables.rename(other, main, TableName(("db",), "t"), TableName(("db",), "u")),
        lambda: catalog.tables.register(other, main, ("db",), {"name": "u", "metadata-location": "x"}),
    ):
        with pytest.raises(PermissionDeniedError):
            call()
    if role is None:
        with pytest.raises(PermissionDeniedError):
            load(catalog, other)
    else:
        assert load(catalog, other)["table-uuid"]


# Versions that a client has published


def commit_version(catalog: Catalog, caller: Caller, version: int, staged: str) -> str:
    """Have the catalog accept a version; return the table's uuid."""
    main = catalog.warehouses["main"]
    snapshot = {
        "snapshot-id": version,
        **({"parent-snapshot-id": version - 1} if version > 1 else {}),
        "sequence-number": version,
        "timestamp-ms": 1,
        "manifest-list": f"lance:///t/_versions/{version}.manifest",
        "summary": {"operation": "append", "lance.manifest.staged": staged},
    }
    request = {
        "requirements": [{"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": version - 1 or None}],
        "updates": [
            {"action": "add-snapshot", "snapshot": snapshot},
            {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": version},
        ],
    }
    catalog.commits.commit(caller, main, ("db",), "t", request)
    return catalog.tables.get_entry(caller, main, ("db",), "t").uuid


def published(catalog: Catalog, caller: Caller) -> str | None:
    found = catalog.tables.load(caller, catalog.warehouses["main"], ("db",), "t", "refs")
    return found.config.get("lancehouse.published")


def tell(catalog: Catalog, caller: Caller, told: str) -> None:
    catalog.tables.set_published(caller, catalog.warehouses["main"], ("db",), "t", told)


def test_a_published_version_is_told_until_the_next_one(catalog: Catalog, caller: Caller) -> None:
    create(catalog, caller, properties={"managed_by": "impl"})
    uuid = commit_version(catalog, caller, 1, "_versions/1.manifest-a")
    assert published(catalog, caller) is None
    tell(catalog, caller, f"{uuid}/1/_versions/1.manifest-a")
    assert published(catalog, caller) == "1"
    commit_version(catalog, caller, 2, "_versions/2.manifest-b")
    assert published(catalog, caller) is None
    tell(catalog, caller, f"{uuid}/1/_versions/1.manifest-a")
    assert published(catalog, caller) is None


@pytest.mark.parametrize(
    "told",
    [
        "",
        "/",
        "{uuid}/1",
        "{uuid}/1/",
        "{uuid}/1/_versions/other",
        "other/1/s",
        "{uuid}/2/s",
        "{uuid}/None/s",
        "{uuid}/１/s",
    ],
)
def test_a_client_that_tells_something_else(catalog: Catalog, caller: Caller, told: str) -> None:
    create(catalog, caller, properties={"managed_by": "impl"})
    tell(
        catalog,
        caller,
        "{uuid}/None/s".format(uuid=catalog.tables.get_entry(caller, catalog.warehouses["main"], ("db",), "t").uuid),
    )
    uuid = commit_version(catalog, caller, 1, "s")
    tell(catalog, caller, told.format(uuid=uuid))
    assert published(catalog, caller) is None


def test_a_reader_tells_nothing(catalog: Catalog, caller: Caller) -> None:
    create(catalog, caller, properties={"managed_by": "impl"})
    uuid = commit_version(catalog, caller, 1, "s")
    reader = Caller(Identity("ada", (Grant(Role.READER, "main", ()),)))
    tell(catalog, reader, f"{uuid}/1/s")
    assert published(catalog, caller) is None


def test_a_database_that_cannot_be_written_fails_no_load(
    catalog: Catalog, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(catalog, caller, properties={"managed_by": "impl"})
    uuid = commit_version(catalog, caller, 1, "s")

    def refuse(*_: object) -> None:
        raise ServiceUnavailableError("the disk is full")

    monkeypatch.setattr(catalog.database, "write", refuse)
    tell(catalog, caller, f"{uuid}/1/s")
    assert published(catalog, caller) is None


@pytest.mark.parametrize("lake", [True, False])
@pytest.mark.parametrize("holder", ["table", "namespace"])
def test_what_is_protected_is_neither_dropped_nor_purged(
    catalog: Catalog, main: Warehouse, caller: Caller, lake: bool, holder: str
) -> None:
    create(catalog, caller, lake=lake, properties={"protected": "TRUE"} if holder == "table" else {})
    if holder == "namespace":
        catalog.namespaces.update_properties(caller, main, ("db",), {"protected": "true"}, [])
    for purge in (False, True):
        with pytest.raises(
            PermissionDeniedError, match=rf"Cannot {'purge' if purge else 'drop'} table db\.t: {holder} "
        ):
            catalog.tables.drop(caller, main, ("db",), "t", purge=purge)
    assert list_tables(catalog, caller) == ["t"]
    if holder == "namespace":
        catalog.namespaces.update_properties(caller, main, ("db",), {"protected": "false"}, [])
    else:
        update = {"action": "set-properties", "updates": {"protected": "false"}}
        catalog.commits.commit(caller, main, ("db",), "t", {"requirements": [], "updates": [update]})
    catalog.tables.drop(caller, main, ("db",), "t")


def test_a_table_may_be_free_in_a_protected_namespace(catalog: Catalog, main: Warehouse, caller: Caller) -> None:
    catalog.namespaces.update_properties(caller, main, ("db",), {"protected": "true"}, [])
    create(catalog, caller, properties={"protected": "false"})
    catalog.tables.drop(caller, main, ("db",), "t")
    with pytest.raises(PermissionDeniedError, match=r"Cannot drop namespace db: namespace db has protected=true"):
        catalog.namespaces.drop(caller, main, ("db",))
    catalog.namespaces.create(caller, main, ("db", "below"), {})
    with pytest.raises(PermissionDeniedError, match=r"Cannot drop namespace db\.below: namespace db has"):
        catalog.namespaces.drop(caller, main, ("db", "below"))


def test_a_protected_table_is_not_replaced_by_registering_another(
    catalog: Catalog, main: Warehouse, caller: Caller
) -> None:
    made = create(catalog, caller, lake=False, properties={"protected": "true"})
    request = {"name": "t", "metadata-location": made.metadata_location, "overwrite": True}
    with pytest.raises(PermissionDeniedError, match=r"Cannot overwrite table db\.t"):
        catalog.tables.register(caller, main, ("db",), request)


def test_an_iceberg_table_whose_metadata_are_lost_can_be_dropped(
    catalog: Catalog, main: Warehouse, caller: Caller
) -> None:
    made = create(catalog, caller, lake=False)
    Path(str(made.metadata_location)).unlink()
    catalog.tables.drop(caller, main, ("db",), "t")
    assert list_tables(catalog, caller) == []


@pytest.mark.parametrize("content", [b"", b"{", b'{"format-version": 9}'])
def test_an_iceberg_table_whose_metadata_are_broken_can_be_dropped(
    catalog: Catalog, main: Warehouse, caller: Caller, content: bytes
) -> None:
    made = create(catalog, caller, lake=False)
    Path(str(made.metadata_location)).write_bytes(content)
    restarted = Catalog(catalog.database, [main])
    with pytest.raises(InvalidInputError):
        restarted.tables.drop(caller, main, ("db",), "t", purge=True)
    restarted.tables.drop(caller, main, ("db",), "t")
    assert list_tables(catalog, caller) == []
