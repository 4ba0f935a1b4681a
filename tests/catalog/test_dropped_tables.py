from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import lance
import orjson
import pyarrow as pa
import pytest
from lance_namespace.errors import (
    InvalidInputError,
    LanceNamespaceError,
    NamespaceNotFoundError,
    PermissionDeniedError,
    TableAlreadyExistsError,
    TableNotFoundError,
)
from sqlalchemy import Boolean, column, select, table

from lancehouse.catalog import dropped_tables, entries, location_access
from lancehouse.catalog.bootstrap import open_database, record_warehouses
from lancehouse.catalog.callers import ANYBODY, Caller, Grant, Identity, Role
from lancehouse.catalog.catalog import Catalog
from lancehouse.catalog.entries import TableName
from lancehouse.catalog.warehouses import Warehouse
from lancehouse.lake import dataset_files
from lancehouse.store import dropped, repository
from lancehouse.store.statements import Statement, Tx
from tests.servers.postgres import new_database

SCHEMA = {"type": "struct", "fields": [{"id": 1, "name": "a", "required": False, "type": "long"}]}
VIEW = {
    "name": "t",
    "schema": SCHEMA,
    "view-version": {
        "version-id": 1,
        "schema-id": 0,
        "timestamp-ms": 1,
        "summary": {},
        "default-namespace": ["db"],
        "representations": [{"type": "sql", "sql": "select 1", "dialect": "spark"}],
    },
}
T = TableName(("db",), "t")
WAITING = Statement(select(column("pid")).select_from(table("pg_locks")).where(~column("granted", Boolean)))
ROWS = pa.table({"a": [1, 2]})


@pytest.fixture(params=["sqlite", "postgres"])
def catalog(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Catalog]:
    postgres = request.param == "postgres"
    url = new_database(request.getfixturevalue("postgres")) if postgres else f"sqlite:///{tmp_path / 'catalog.db'}"
    database = open_database(url)
    main = Warehouse(0, "main", str(tmp_path / "main"))
    made = Catalog(database, record_warehouses(database, [main], main))
    made.namespaces.create(Caller(ANYBODY), made.warehouses["main"], ("db",), {})
    yield made
    database.close()


@pytest.fixture
def main(catalog: Catalog) -> Warehouse:
    return catalog.warehouses["main"]


def create(catalog: Catalog, caller: Caller, name: str = "t", kind: str = "lance", **request: Any) -> str:
    properties = {"table_type": "lance"} if kind == "lance" else {}
    request = {"name": name, "schema": SCHEMA, "properties": properties, **request}
    made = catalog.tables.create(caller, catalog.warehouses["main"], ("db",), request)
    location = str(orjson.loads(made.metadata)["location"])
    if kind == "lance":
        lance.write_dataset(ROWS, location, mode="append" if (Path(location) / "_versions").exists() else "create")
    return location


def fail(*_: Any, **__: Any) -> None:
    raise OSError("the store is down")


def drop(catalog: Catalog, caller: Caller, *, purge: bool = True) -> None:
    catalog.tables.drop(caller, catalog.warehouses["main"], T.levels, T.name, purge=purge)


def load(catalog: Catalog, caller: Caller, name: TableName = T) -> dict[str, Any]:
    loaded = catalog.tables.load(caller, catalog.warehouses["main"], name.levels, name.name)
    return dict(orjson.loads(loaded.metadata))


def expire(catalog: Catalog, caller: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    now = entries.now_ms()
    monkeypatch.setattr(dropped_tables, "now_ms", lambda: now + 8 * 86400 * 1000)
    catalog.delete_expired_tables()


@pytest.mark.parametrize("kind", ["lance", "iceberg"])
def test_a_dropped_table_is_restored_with_its_history(
    catalog: Catalog, main: Warehouse, caller: Caller, kind: str
) -> None:
    create(catalog, caller, kind=kind)
    before = load(catalog, caller)
    drop(catalog, caller)
    with pytest.raises(TableNotFoundError):
        load(catalog, caller)
    [row] = catalog.dropped_tables.list(caller, main)
    assert (row.levels, row.name, row.principal, row.purge) == (("db",), "t", "anonymous", True)
    assert row.expires_ms - row.dropped_ms == main.retention_s * 1000
    catalog.dropped_tables.restore(caller, main, T)
    after = load(catalog, caller)
    assert (after["table-uuid"], after["location"]) == (before["table-uuid"], before["location"])
    assert catalog.dropped_tables.list(caller, main) == []
    with pytest.raises(TableNotFoundError, match="there is no dropped table"):
        catalog.dropped_tables.restore(caller, main, T)


def test_the_name_is_free_at_once_and_the_location_is_not(catalog: Catalog, main: Warehouse, caller: Caller) -> None:
    first = create(catalog, caller)
    drop(catalog, caller)
    with pytest.raises(InvalidInputError, match="kept for a dropped table"):
        create(catalog, caller, location=first)
    with pytest.raises(InvalidInputError, match="kept for a dropped table"):
        create(catalog, caller, location=f"{first}/inside")
    second = create(catalog, caller)
    assert second != first
    with pytest.raises(TableAlreadyExistsError):
        catalog.dropped_tables.restore(caller, main, T)
    catalog.dropped_tables.restore(caller, main, T, TableName(("db",), "u"))
    assert load(catalog, caller, TableName(("db",), "u"))["location"] == first


def test_a_name_that_is_taken_at_the_same_moment(
    catalog: Catalog, main: Warehouse, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check of the name has found it free, as it does on Postgres if another transaction has just not ended."""
    create(catalog, caller)
    drop(catalog, caller)
    create(catalog, caller)

    def find_namespace(tx: Tx, *_: Any) -> Any:
        return repository.find_namespace(tx, main.id, T.levels)

    monkeypatch.setattr(dropped_tables, "require_name_free", find_namespace)
    with pytest.raises(TableAlreadyExistsError):
        catalog.dropped_tables.restore(caller, main, T)
    assert len(catalog.dropped_tables.list(caller, main)) == 1


@pytest.mark.parametrize("retention_s", [0, 7 * 86400])
@pytest.mark.parametrize("kind", ["lance", "iceberg", "view"])
def test_what_is_renamed_at_the_same_moment_is_not_dropped(
    catalog: Catalog, main: Warehouse, caller: Caller, monkeypatch: pytest.MonkeyPatch, kind: str, retention_s: int
) -> None:
    """Who may drop `t` may not be allowed to drop what it is called now."""
    operations: Any = catalog.views if kind == "view" else catalog.tables
    if kind == "view":
        catalog.views.create(caller, main, T.levels, VIEW)
    else:
        create(catalog, caller, kind=kind)
    renamed, get_entry = TableName(("db",), "u"), operations.get_entry

    def get_entry_before_rename(*args: Any, **options: Any) -> Any:
        entry = get_entry(*args, **options)
        operations.rename(caller, main, T, renamed)
        return entry

    monkeypatch.setattr(operations, "get_entry", get_entry_before_rename)
    with pytest.raises(TableNotFoundError):
        operations.drop(caller, replace(main, retention_s=retention_s), T.levels, T.name)
    monkeypatch.undo()
    assert operations.get_entry(caller, main, renamed.levels, renamed.name).name == "u"
    assert catalog.dropped_tables.list(caller, main) == []


def test_of_tables_with_one_name_the_last_is_restored(catalog: Catalog, main: Warehouse, caller: Caller) -> None:
    places = []
    for _ in range(2):
        places.append(create(catalog, caller))
        drop(catalog, caller)
    rows = catalog.dropped_tables.list(caller, main)
    catalog.dropped_tables.restore(caller, main, T)
    assert load(catalog, caller)["location"] == places[1]
    catalog.dropped_tables.restore(caller, main, T, TableName(("db",), "old"), rows[-1].dropped_ms)
    assert load(catalog, caller, TableName(("db",), "old"))["location"] == places[0]


@pytest.mark.parametrize("kind", ["lance", "iceberg"])
@pytest.mark.parametrize("purge", [False, True])
def test_when_its_time_is_over(
    catalog: Catalog, main: Warehouse, caller: Caller, monkeypatch: pytest.MonkeyPatch, kind: str, purge: bool
) -> None:
    location = Path(create(catalog, caller, kind=kind))
    drop(catalog, caller, purge=purge)
    catalog.delete_expired_tables()
    assert len(catalog.dropped_tables.list(caller, main)) == 1
    with monkeypatch.context() as patch:
        expire(catalog, caller, patch)
        with pytest.raises(TableNotFoundError):
            catalog.dropped_tables.restore(caller, main, T)
    assert catalog.dropped_tables.list(caller, main) == []
    assert any(file.is_file() for file in location.rglob("*")) is not purge
    assert create(catalog, caller, kind=kind) == str(location), "the location is free again"


def test_files_that_cannot_be_deleted_are_tried_again(
    catalog: Catalog, main: Warehouse, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    location = create(catalog, caller)
    drop(catalog, caller)

    with monkeypatch.context() as patch:
        patch.setattr(dataset_files, "remove_dataset", fail)
        expire(catalog, caller, patch)
        with pytest.raises(LanceNamespaceError, match="will try again"):
            catalog.dropped_tables.purge(caller, main, T)
    with pytest.raises(TableNotFoundError, match="is over"):
        catalog.dropped_tables.restore(caller, main, T)
    catalog.delete_expired_tables()
    assert not Path(location, "_versions").exists()
    assert catalog.dropped_tables.list(caller, main) == []


def test_purge_now(catalog: Catalog, main: Warehouse, caller: Caller) -> None:
    location = create(catalog, caller)
    drop(catalog, caller, purge=False)
    writer = replace(caller, identity=Identity("ada", (Grant(Role.WRITER, "main"),)))
    with pytest.raises(PermissionDeniedError, match="ada is no admin"):
        catalog.dropped_tables.purge(writer, main, T)
    catalog.dropped_tables.purge(caller, main, T)
    assert not Path(location, "_versions").exists()
    with pytest.raises(TableNotFoundError):
        catalog.dropped_tables.purge(caller, main, T)


@pytest.mark.parametrize("kind", ["lance", "iceberg"])
def test_of_two_that_create_a_table_the_second_is_told_that_it_exists(
    catalog: Catalog, main: Warehouse, caller: Caller, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Both have found the name free; the first then has the location too."""
    if catalog.database.is_local:
        pytest.skip("SQLite has one transaction that writes at a time")

    def create_first(*args: Any) -> str:
        monkeypatch.undo()
        with ThreadPoolExecutor() as pool:
            pool.submit(create, catalog, caller, kind=kind).result()
        return location_access.require_location_free(*args)

    monkeypatch.setattr(entries, "require_location_free", create_first)
    with pytest.raises(TableAlreadyExistsError):
        create(catalog, caller, kind=kind)


def test_what_is_being_purged_is_not_restored(
    catalog: Catalog, main: Warehouse, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restore that has found the table before the purge begins, and goes on while its files are deleted."""
    if catalog.database.is_local:
        pytest.skip("SQLite has one transaction that writes at a time")
    create(catalog, caller)
    drop(catalog, caller)
    is_found, is_purging = Event(), Event()

    def wait_for_purge(*args: Any, **options: Any) -> Any:
        is_found.set()
        assert is_purging.wait(60)
        return entries.require_name_free(*args, **options)

    def delete_after_restore(*args: Any) -> None:
        is_purging.set()
        with pytest.raises(TableNotFoundError, match="is over"):
            restored.result(60)
        delete_files(*args)

    delete_files = dropped_tables.delete_files
    monkeypatch.setattr(dropped_tables, "require_name_free", wait_for_purge)
    monkeypatch.setattr(dropped_tables, "delete_files", delete_after_restore)
    with ThreadPoolExecutor() as pool:
        restored = pool.submit(catalog.dropped_tables.restore, caller, main, T)
        assert is_found.wait(60)
        catalog.dropped_tables.purge(caller, main, T)
    assert catalog.tables.list(caller, main, T.levels, None, None) == ([], None)


def test_of_two_that_purge_a_table_both_have_done_so(
    catalog: Catalog, main: Warehouse, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    location = create(catalog, caller)
    drop(catalog, caller)
    delete_files = dropped_tables.delete_files

    def delete_after_other(*args: Any) -> None:
        monkeypatch.undo()
        catalog.dropped_tables.purge(caller, main, T)
        delete_files(*args)

    monkeypatch.setattr(dropped_tables, "delete_files", delete_after_other)
    catalog.dropped_tables.purge(caller, main, T)
    assert not Path(location).exists()
    assert catalog.dropped_tables.list(caller, main) == []


def test_what_is_being_restored_is_not_purged(
    catalog: Catalog, main: Warehouse, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    if catalog.database.is_local:
        pytest.skip("SQLite has one transaction that writes at a time")
    create(catalog, caller)
    drop(catalog, caller, purge=False)

    def restore_first(*_: Any) -> None:
        with ThreadPoolExecutor() as pool:
            pool.submit(catalog.dropped_tables.restore, caller, main, T).result()

    monkeypatch.setattr(dropped_tables, "require_purge_allowed", restore_first)
    with pytest.raises(TableNotFoundError, match="restored or deleted"):
        catalog.dropped_tables.purge(caller, main, T)
    assert lance.dataset(load(catalog, caller)["location"]).count_rows() == 2


def test_files_that_are_being_purged_become_no_other_table(
    catalog: Catalog, main: Warehouse, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    if catalog.database.is_local:
        pytest.skip("SQLite has one transaction that writes at a time")
    location = create(catalog, caller)
    drop(catalog, caller, purge=False)
    is_locked = Event()

    def purge(tx: Tx) -> None:
        [row] = dropped.list_dropped(tx, main.id, 10)
        dropped.expire(tx, row.entry_id, 0)
        is_locked.set()
        # Not before the other transaction waits for this one, or is over.
        while not registered.done() and not tx.fetch_all(WAITING, {}):
            pass

    with ThreadPoolExecutor() as pool:
        request = {"name": "u", "metadata-location": location}

        def register() -> Any:
            assert is_locked.wait(60)
            return catalog.tables.register(caller, main, T.levels, request)

        registered = pool.submit(register)
        catalog.database.write(purge)
        with pytest.raises(InvalidInputError, match="kept for a dropped table"):
            registered.result(60)


def test_gc_enabled_false_keeps_the_files(catalog: Catalog, main: Warehouse, caller: Caller) -> None:
    create(catalog, caller, properties={"table_type": "lance", "gc.enabled": "false"})
    with pytest.raises(InvalidInputError, match=r"gc\.enabled"):
        drop(catalog, caller)
    drop(catalog, caller, purge=False)
    with pytest.raises(InvalidInputError, match=r"gc\.enabled"):
        catalog.dropped_tables.purge(caller, main, T)


def test_files_that_stay_may_be_registered_again(catalog: Catalog, main: Warehouse, caller: Caller) -> None:
    location = create(catalog, caller)
    drop(catalog, caller, purge=False)
    catalog.tables.register(caller, main, ("db",), {"name": "again", "metadata-location": location})
    assert catalog.dropped_tables.list(caller, main) == []
    assert load(catalog, caller, TableName(("db",), "again"))["location"] == location


def test_files_that_go_may_not_be_registered(catalog: Catalog, main: Warehouse, caller: Caller) -> None:
    location = create(catalog, caller)
    drop(catalog, caller)
    with pytest.raises(InvalidInputError, match="kept for a dropped table"):
        catalog.tables.register(caller, main, ("db",), {"name": "again", "metadata-location": location})


def test_who_may(catalog: Catalog, main: Warehouse, caller: Caller) -> None:
    create(catalog, caller)
    drop(catalog, caller)
    reader, stranger = (
        replace(caller, identity=Identity(name, (Grant(Role.READER, "main", levels),)))
        for name, levels in (("ada", ("db",)), ("bob", ("other",)))
    )
    assert len(catalog.dropped_tables.list(reader, main)) == 1
    assert catalog.dropped_tables.list(stranger, main) == []
    for who in (reader, stranger):
        with pytest.raises(PermissionDeniedError):
            catalog.dropped_tables.restore(who, main, T)


def test_the_namespace_may_be_dropped_and_made_again(catalog: Catalog, main: Warehouse, caller: Caller) -> None:
    create(catalog, caller)
    drop(catalog, caller)
    catalog.namespaces.drop(caller, main, ("db",))
    with pytest.raises(NamespaceNotFoundError):
        catalog.dropped_tables.restore(caller, main, T)
    assert not catalog.database.read(lambda tx: repository.is_warehouse_empty(tx, main.id))
    catalog.namespaces.create(caller, main, ("db",), {})
    catalog.dropped_tables.restore(caller, main, T)
    assert load(catalog, caller)


def test_without_retention_a_purge_takes_no_files_of_the_next_table(
    catalog: Catalog, main: Warehouse, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody creates a table of the name while the files of the first are being deleted."""

    def delete_after_create(*args: Any) -> None:
        create(catalog, caller)
        delete_files(*args)

    delete_files = dropped_tables.delete_files
    monkeypatch.setattr(dropped_tables, "delete_files", delete_after_create)
    first = create(catalog, caller)
    catalog.tables.drop(caller, replace(main, retention_s=0), ("db",), "t", purge=True)
    assert not Path(first, "_versions").exists()
    assert lance.dataset(load(catalog, caller)["location"]).count_rows() == 2


def test_without_retention_files_that_are_left_are_deleted_later(
    catalog: Catalog, main: Warehouse, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    location = create(catalog, caller)
    with monkeypatch.context() as patch:
        patch.setattr(dataset_files, "remove_dataset", fail)
        catalog.tables.drop(caller, replace(main, retention_s=0), ("db",), "t", purge=True)
    assert Path(location, "_versions").exists()
    with pytest.raises(TableNotFoundError, match="is over"):
        catalog.dropped_tables.restore(caller, main, T)
    expire(catalog, caller, monkeypatch)
    assert not Path(location, "_versions").exists()
    assert catalog.dropped_tables.list(caller, main) == []


def test_without_retention_a_drop_is_final(catalog: Catalog, main: Warehouse, caller: Caller) -> None:
    location = create(catalog, caller)
    catalog.tables.drop(caller, replace(main, retention_s=0), ("db",), "t", purge=True)
    assert not Path(location, "_versions").exists()
    assert catalog.dropped_tables.list(caller, main) == []
