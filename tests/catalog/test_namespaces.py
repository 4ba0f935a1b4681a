"""Namespaces, on a real database."""

from __future__ import annotations

from dataclasses import replace

import pytest
from lance_namespace.errors import (
    InvalidInputError,
    NamespaceAlreadyExistsError,
    NamespaceNotEmptyError,
    NamespaceNotFoundError,
    PermissionDeniedError,
)

from lancehouse.catalog.audit import AuditFilter
from lancehouse.catalog.callers import Caller, Grant, IdempotencyKey, Identity, Role
from lancehouse.catalog.catalog import Catalog
from lancehouse.catalog.errors import AlreadyDoneError, UnprocessableError, WarehouseNotFoundError
from lancehouse.catalog.warehouses import Warehouse

Levels = tuple[str, ...]


def names(catalog: Catalog, caller: Caller, warehouse: Warehouse, *parent: str) -> list[Levels]:
    return catalog.namespaces.list(caller, warehouse, parent, None, None)[0]


def test_any_depth(catalog: Catalog, main: Warehouse, caller: Caller) -> None:
    for levels in [("a",), ("a", "b"), ("a", "b", "c"), ("z",)]:
        catalog.namespaces.create(caller, main, levels, {"depth": str(len(levels))})
    assert names(catalog, caller, main) == [("a",), ("z",)]
    assert names(catalog, caller, main, "a") == [("a", "b")]
    assert names(catalog, caller, main, "a", "b", "c") == []
    assert catalog.namespaces.load(caller, main, ("a", "b", "c")).properties == {"depth": "3"}


def test_parents_that_are_missing_are_made(catalog: Catalog, main: Warehouse, caller: Caller) -> None:
    catalog.namespaces.create(caller, main, ("a", "b", "c"), {"x": "1"})
    assert names(catalog, caller, main, "a") == [("a", "b")]
    assert catalog.namespaces.load(caller, main, ("a", "b")).properties == {}
    changes, _ = catalog.audit.list(caller, AuditFilter(), None, 10)
    assert [(change.action, change.levels) for change in changes] == [
        ("namespace.create", levels) for levels in [("a", "b", "c"), ("a", "b"), ("a",)]
    ]


@pytest.mark.parametrize(
    ("grant", "message"),
    [
        (Grant(Role.ADMIN, "main", ("a", "b", "c")), "neither admin of namespace a of"),
        (Grant(Role.WRITER, "main", ("a", "b")), "neither admin of namespace a of"),
        (Grant(Role.WRITER, "main", ("a",)), "neither admin of namespace a of"),
        (Grant(Role.ADMIN, "main", ("a",)), None),
        (Grant(Role.WRITER, "main"), None),
    ],
)
def test_who_may_make_parents_that_are_missing(
    catalog: Catalog, main: Warehouse, caller: Caller, grant: Grant, message: str | None
) -> None:
    """A grant stays when its namespace is dropped; the namespaces above it are not its holder's."""
    holder = replace(caller, identity=Identity("me", (grant,)))
    if message is None:
        catalog.namespaces.create(holder, main, ("a", "b", "c"), {})
        return
    with pytest.raises(PermissionDeniedError, match=message):
        catalog.namespaces.create(holder, main, ("a", "b", "c"), {})
    assert names(catalog, caller, main) == []
    catalog.namespaces.create(caller, main, ("a", "b"), {})
    catalog.namespaces.create(holder, main, ("a", "b", "c"), {})


@pytest.mark.parametrize("odd", ["a b", "a.b", "a/b", "%2e", "..", ".", "ä", "日本", "a\\b", "'", '"', "x" * 255, "A"])
def test_names(catalog: Catalog, main: Warehouse, caller: Caller, odd: str) -> None:
    catalog.namespaces.create(caller, main, (odd,), {})
    assert names(catalog, caller, main) == [(odd,)]
    catalog.namespaces.drop(caller, main, (odd,))
    assert names(catalog, caller, main) == []


@pytest.mark.parametrize(
    "levels", [(), ("",), ("a", ""), ("a\x1fb",), ("\x00",), ("x" * 256,), ("ä" * 128,), ("a",) * 33]
)
def test_names_that_are_none(catalog: Catalog, main: Warehouse, caller: Caller, levels: Levels) -> None:
    with pytest.raises(InvalidInputError):
        catalog.namespaces.create(caller, main, levels, {})
    assert names(catalog, caller, main) == []


def test_warehouses_share_nothing(catalog: Catalog, main: Warehouse, caller: Caller) -> None:
    catalog.namespaces.create(caller, main, ("a",), {})
    assert names(catalog, caller, catalog.warehouses["other"]) == []
    assert catalog.warehouses[None] is main
    with pytest.raises(WarehouseNotFoundError, match="Warehouse does not exist: nope"):
        catalog.warehouses["nope"]


def test_what_is_not_there(catalog: Catalog, main: Warehouse, caller: Caller) -> None:
    for call in (catalog.namespaces.load, catalog.namespaces.drop):
        with pytest.raises(NamespaceNotFoundError, match=r"Namespace does not exist: a\.b"):
            call(caller, main, ("a", "b"))
    with pytest.raises(NamespaceNotFoundError):
        names(catalog, caller, main, "a")
    with pytest.raises(NamespaceNotFoundError):
        catalog.namespaces.update_properties(caller, main, ("a",), {"x": "1"}, [])


def test_what_is_there_already(catalog: Catalog, main: Warehouse, caller: Caller) -> None:
    catalog.namespaces.create(caller, main, ("a", "b"), {"x": "1"})
    with pytest.raises(NamespaceAlreadyExistsError, match=r"Namespace already exists: a\.b"):
        catalog.namespaces.create(caller, main, ("a", "b"), {})
    with pytest.raises(NamespaceNotEmptyError, match="Namespace a is not empty"):
        catalog.namespaces.drop(caller, main, ("a",))
    assert catalog.namespaces.load(caller, main, ("a", "b")).properties == {"x": "1"}


def test_properties(catalog: Catalog, main: Warehouse, caller: Caller) -> None:
    catalog.namespaces.create(caller, main, ("a",), {"x": "1", "y": "2"})
    changed = catalog.namespaces.update_properties(caller, main, ("a",), {"x": "3", "z": "4"}, ["y", "gone", "y"])
    assert changed == {"updated": ["x", "z"], "removed": ["y"], "missing": ["gone"]}
    assert catalog.namespaces.load(caller, main, ("a",)).properties == {"x": "3", "z": "4"}
    with pytest.raises(UnprocessableError, match="cannot simultaneously set and remove"):
        catalog.namespaces.update_properties(caller, main, ("a",), {"x": "5"}, ["x"])


def test_pages(catalog: Catalog, main: Warehouse, caller: Caller) -> None:
    for name in "edcba":
        catalog.namespaces.create(caller, main, (name,), {})
    seen, token = [], ""
    while True:
        page, next_token = catalog.namespaces.list(caller, main, (), token, 2)
        seen.append([name for (name,) in page])
        if next_token is None:
            break
        token = next_token
    assert seen == [["a", "b"], ["c", "d"], ["e"]]
    assert len(catalog.namespaces.list(caller, main, (), None, 2)[0]) == 5  # without a token: all
    with pytest.raises(InvalidInputError, match="was not given out"):
        catalog.namespaces.list(caller, main, (), "?", 2)


def test_an_idempotency_key_works_once(catalog: Catalog, main: Warehouse, caller: Caller) -> None:
    keyed = replace(caller, key=IdempotencyKey("0190-1", "digest"))
    catalog.namespaces.create(keyed, main, ("a",), {})
    with pytest.raises(AlreadyDoneError):
        catalog.namespaces.create(keyed, main, ("a",), {})
    failing = replace(caller, key=IdempotencyKey("0190-2", "digest"))
    with pytest.raises(NamespaceAlreadyExistsError):
        catalog.namespaces.create(failing, main, ("a",), {})
    catalog.namespaces.create(failing, main, ("b",), {})  # what failed took no key


WRITER_OF_AB = Caller(Identity("w", (Grant(Role.WRITER, "main", ("a", "b")),)))
ADMIN_OF_AB = Caller(Identity("a", (Grant(Role.ADMIN, "main", ("a", "b")),)))
READER = Caller(Identity("r", (Grant(Role.READER, "main"),)))


def test_who_sees_what(catalog: Catalog, main: Warehouse, caller: Caller) -> None:
    for levels in [("a", "b", "c"), ("a", "d"), ("e",)]:
        catalog.namespaces.create(caller, main, levels, {})
    assert names(catalog, WRITER_OF_AB, main) == [("a",)]
    assert names(catalog, WRITER_OF_AB, main, "a") == [("a", "b")]
    assert names(catalog, READER, main) == [("a",), ("e",)]
    with pytest.raises(PermissionDeniedError):
        names(catalog, WRITER_OF_AB, main, "e")
    with pytest.raises(PermissionDeniedError):
        names(catalog, WRITER_OF_AB, catalog.warehouses["other"], "e")


def test_who_may_change_what(catalog: Catalog, main: Warehouse, caller: Caller) -> None:
    catalog.namespaces.create(caller, main, ("a", "b"), {})
    catalog.namespaces.create(WRITER_OF_AB, main, ("a", "b", "c"), {})
    catalog.namespaces.update_properties(WRITER_OF_AB, main, ("a", "b", "c"), {"x": "1"}, [])
    for refused in (WRITER_OF_AB, READER):
        with pytest.raises(PermissionDeniedError):
            catalog.namespaces.create(refused, main, ("x",), {})
        with pytest.raises(PermissionDeniedError):
            catalog.namespaces.update_properties(refused, main, ("a", "b"), {"x": "1"}, [])
    catalog.namespaces.drop(WRITER_OF_AB, main, ("a", "b", "c"))
    with pytest.raises(PermissionDeniedError):
        catalog.namespaces.drop(WRITER_OF_AB, main, ("a", "b"))
    catalog.namespaces.drop(ADMIN_OF_AB, main, ("a", "b"))
    assert names(catalog, caller, main, "a") == []
