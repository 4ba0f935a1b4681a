"""All tables of a warehouse, page by page."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import pytest
from lance_namespace.errors import InvalidInputError, PermissionDeniedError

from lancehouse.catalog import listing
from lancehouse.catalog.callers import ANYBODY, Caller, Grant, Identity, Role
from lancehouse.catalog.catalog import Catalog
from lancehouse.catalog.warehouses import Warehouse
from lancehouse.store import repository
from lancehouse.store.database import Database
from lancehouse.store.model import NamespaceRow
from lancehouse.store.statements import Tx

LONG = ("a", "x" * 255, "y" * 255)
"""A path that is too long for an index as it is."""
SPACES: tuple[tuple[str, ...], ...] = (("a",), ("a", "b"), ("a", "b", "c"), ("ab",), ("b",), LONG[:2], LONG)

MANY = [Grant(Role.READER, "main", (f"x{number}",)) for number in range(listing.MOST_PLACES)]

Named = tuple[tuple[str, ...], str]


@pytest.fixture
def filled_catalog(catalog: Catalog, main: Warehouse) -> Catalog:
    """Five Lance tables in each of some namespaces, between entries of other kinds; one in another warehouse."""
    other = catalog.warehouses["other"]

    def insert(tx: Tx, namespace: NamespaceRow | None, name: str, kind: Any) -> None:
        assert namespace
        place = f"/{namespace.id}/{name}"
        values: dict[str, Any] = {"uuid": place, "location": place, "location_key": f"{place}/", "properties": {}}
        assert repository.insert_entry(tx, namespace.id, name=name, kind=kind, now_ms=1, **values)

    def work(tx: Tx) -> None:
        for levels in SPACES:
            namespace = repository.insert_namespace(tx, main.id, levels, {})
            for number in range(5):
                insert(tx, namespace, f"t{number}", "lance")
                insert(tx, namespace, f"t{number} is a view", "view")
            insert(tx, namespace, "iceberg", "iceberg")
        repository.insert_namespace(tx, main.id, ("empty",), {})
        insert(tx, repository.insert_namespace(tx, other.id, ("a",), {}), "elsewhere", "lance")

    catalog.database.write(work)
    return catalog


def pages(catalog: Catalog, warehouse: Warehouse, grants: Sequence[Grant], limit: int) -> list[list[Named]]:
    caller = Caller(Identity("ada", tuple(grants)))
    found, token = [], None
    while True:
        page, token = listing.list_lance_tables(catalog.database, caller, warehouse, token, limit)
        found.append(page)
        if token is None:
            return found


def of(*spaces: tuple[str, ...]) -> set[Named]:
    return {(levels, f"t{number}") for levels in spaces for number in range(5)}


@pytest.mark.parametrize("limit", [1, 3, 5, 7, 35, 100])
@pytest.mark.parametrize(
    ("grants", "seen"),
    [
        ([Grant(Role.READER)], of(*SPACES)),
        ([Grant(Role.WRITER, "main")], of(*SPACES)),
        ([Grant(Role.READER, "main", ("a",))], of(*(space for space in SPACES if space[0] == "a"))),
        ([Grant(Role.READER, "main", ("a", "b"))], of(("a", "b"), ("a", "b", "c"))),
        ([Grant(Role.READER, "main", LONG)], of(LONG)),
        ([Grant(Role.READER, "main", ("b",)), Grant(Role.ADMIN, "main", ("a", "b", "c"))], of(("b",), ("a", "b", "c"))),
        ([*MANY, Grant(Role.READER, "main", ("b",))], of(("b",))),
        ([Grant(Role.READER, "main", ("gone",))], set()),
    ],
)
def test_pages_hold_what_a_caller_may_read(
    filled_catalog: Catalog, main: Warehouse, grants: list[Grant], seen: set[Named], limit: int
) -> None:
    found = pages(filled_catalog, main, grants, limit)
    names = [name for page in found for name in page]
    assert len(names) == len(set(names))
    assert set(names) == seen
    assert all(len(page) == limit for page in found[:-1])
    whole, token = listing.list_lance_tables(
        filled_catalog.database, Caller(Identity("ada", tuple(grants))), main, None, None
    )
    assert (whole, token) == (names, None)


def test_a_page_is_one_read(
    filled_catalog: Catalog, main: Warehouse, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes the rows that it shows, and one more to know whether that is all."""
    reads: list[int] = []
    read = Database.read

    def count_read(database: Database, work: Callable[[Tx], Any]) -> Any:
        found = read(database, work)
        reads.append(len(found))
        return found

    monkeypatch.setattr(Database, "read", count_read)
    _, token = listing.list_lance_tables(filled_catalog.database, caller, main, None, 2)
    assert reads == [3]
    listing.list_lance_tables(filled_catalog.database, caller, main, token, 20)
    assert reads == [3, 21]


def test_a_page_begins_behind_a_table_that_is_gone(filled_catalog: Catalog, main: Warehouse, caller: Caller) -> None:
    first, token = listing.list_lance_tables(filled_catalog.database, caller, main, None, 2)
    assert first == [(("a",), "t0"), (("a",), "t1")]

    def drop(tx: Tx) -> None:
        entry = repository.find_entry(tx, main.id, *first[-1])
        assert entry
        repository.delete_entry(tx, entry)

    filled_catalog.database.write(drop)
    assert listing.list_lance_tables(filled_catalog.database, caller, main, token, 2)[0] == [
        (("a",), "t2"),
        (("a",), "t3"),
    ]


@pytest.mark.parametrize(
    ("token", "limit", "words"), [("!", 1, "page_token"), ("YQ", 1, "page_token"), (None, -1, "limit -1")]
)
def test_what_is_refused(catalog: Catalog, main: Warehouse, token: str | None, limit: int, words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        listing.list_lance_tables(catalog.database, Caller(ANYBODY), main, token, limit)


def test_nothing_for_those_who_may_read_nothing(filled_catalog: Catalog, main: Warehouse) -> None:
    with pytest.raises(PermissionDeniedError, match="ada is no reader of warehouse main"):
        pages(filled_catalog, main, [Grant(Role.ADMIN, "other")], 1)


@pytest.mark.parametrize(
    ("grants", "words"),
    [
        ([Grant(Role.ADMIN)], "t1"),
        ([Grant(Role.ADMIN)], "ab t1"),
        ([Grant(Role.ADMIN)], "a.b.t1"),
        ([Grant(Role.ADMIN)], "main.a.b"),
        ([Grant(Role.ADMIN)], "b. view"),
        ([Grant(Role.ADMIN)], "ain t1 is c"),
        ([Grant(Role.ADMIN)], "elsewhere other"),
        ([Grant(Role.ADMIN)], "yyyy iceberg"),
        ([Grant(Role.ADMIN)], "emp"),
        ([Grant(Role.ADMIN)], "a"),
        ([Grant(Role.READER, "main", ("a", "b"))], "t1"),
        ([Grant(Role.READER, "main", ("a", "b"))], "main"),
        ([Grant(Role.READER, "main", ("b",), "t3")], "t"),
        ([], "t"),
    ],
)
def test_search_finds_what_a_walk_through_all_finds(
    filled_catalog: Catalog, monkeypatch: pytest.MonkeyPatch, grants: Sequence[Grant], words: str
) -> None:
    monkeypatch.setattr(listing, "SEARCH_PAGE", 7)
    caller = Caller(Identity("ada", tuple(grants)))

    def matches(entry: listing.ListedEntry) -> bool:
        return all(word in ".".join((entry[0], *entry[1])) for word in words.split())

    found = [*filter(matches, listing.search_visible(filled_catalog, caller, words.split()))]
    expected = [*filter(matches, walk(filled_catalog, caller))]
    assert sorted(found) == sorted(expected)
    assert bool(found) is bool(grants)


def walk(catalog: Catalog, caller: Caller) -> Iterator[listing.ListedEntry]:
    """All that a caller may see, namespace by namespace."""
    for warehouse in catalog.warehouses.values():
        pending: list[tuple[str, ...]] = [()] if caller.identity.can_see(warehouse.name) else []
        while pending:
            levels = pending.pop()
            with suppress(PermissionDeniedError, InvalidInputError):
                names, _ = (
                    listing.list_entries(catalog.database, caller, warehouse, levels, None, None)
                    if levels
                    else ([], None)
                )
                yield from ((warehouse.name, (*levels, name), kind) for name, kind in names)
            children, _ = catalog.namespaces.list(caller, warehouse, levels, None, None)
            yield from ((warehouse.name, child, listing.NAMESPACE) for child in children)
            pending += children
