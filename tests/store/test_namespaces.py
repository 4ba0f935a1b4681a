from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from lance_namespace.errors import InvalidInputError, NamespaceNotFoundError

from lancehouse.store import repository
from lancehouse.store.database import Database
from lancehouse.store.model import NamespaceRow
from lancehouse.store.statements import Tx
from tests.store.rows import StoredNamespace, insert

DEEP = tuple(f"level {number}" for number in range(400))
"""Longer than an index entry of Postgres can be."""


def make(place: StoredNamespace, *levels: str, **properties: str) -> NamespaceRow | None:
    return place.database.write(lambda tx: repository.insert_namespace(tx, place.warehouse_id, levels, properties))


def find(place: StoredNamespace, *levels: str) -> NamespaceRow | None:
    return place.database.read(lambda tx: repository.find_namespace(tx, place.warehouse_id, levels))


def test_insert_and_find(place: StoredNamespace) -> None:
    made = make(place, "a", "b", color="blue", größe="1\n2")
    assert made is not None
    assert made.properties == {"color": "blue", "größe": "1\n2"}
    assert find(place, "a", "b") == made
    assert find(place, "a", "c") is None
    assert find(place, "b") is None
    assert make(place, "a", "b") is None


def test_depth_has_no_limit(place: StoredNamespace) -> None:
    for depth in range(1, len(DEEP) + 1):
        assert make(place, *DEEP[:depth]) is not None
    found = find(place, *DEEP)
    assert found is not None
    assert found.levels == DEEP
    assert make(place, *DEEP) is None
    assert find(place, *DEEP[:-1], "another") is None


def test_parent_must_be_there(place: StoredNamespace) -> None:
    with pytest.raises(NamespaceNotFoundError, match=r"^Namespace does not exist: x\.y$"):
        make(place, "x", "y", "z")


@pytest.mark.parametrize(
    ("levels", "words"),
    [
        ((), "have names"),
        (("",), "have names"),
        (("a\x1fb",), "separator"),
        (("nul\x00",), "NUL"),
        (("é" * 1001,), "longer than 2000 bytes"),
        (("\ud800",), "cannot hold"),
    ],
)
def test_names_that_cannot_be(place: StoredNamespace, levels: tuple[str, ...], words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        make(place, *levels)
    assert make(place, "still works") is not None


def test_list_is_ordered_by_code_point(place: StoredNamespace) -> None:
    names = ["B", "Z", "_", "a", "b", "z", "ä", "é", "中", "😀", "\uffee"]
    for name in names[::-1]:
        make(place, name)
        make(place, "a", name)
    make(place, "a", "b", "deeper")
    expected = sorted(names, key=lambda name: [ord(character) for character in name])

    def list_names(parent: tuple[str, ...], after: str | None = None, limit: int | None = None) -> list[str]:
        return place.database.read(lambda tx: repository.list_namespaces(tx, place.warehouse_id, parent, after, limit))

    assert list_names(()) == expected
    assert list_names(("a",)) == expected
    assert list_names(("a",), after="a", limit=3) == expected[4:7]
    assert list_names(("a",), after="😀") == []
    assert list_names(("nowhere",)) == []


def test_warehouses_do_not_meet(place: StoredNamespace) -> None:
    other = place.database.write(lambda tx: repository.insert_warehouse(tx, "other", "/other"))
    assert other is not None
    made = place.database.write(lambda tx: repository.insert_namespace(tx, other.id, ("a",), {"of": "other"}))
    assert made is not None
    assert place.database.read(lambda tx: repository.find_namespace(tx, other.id, ("a",))) == made
    found = find(place, "a")
    assert found is not None
    assert found.id != made.id


def test_update(place: StoredNamespace) -> None:
    update = repository.update_namespace
    assert place.database.write(lambda tx: update(tx, place.namespace_id, {"x": "1"}))
    found = find(place, "a")
    assert found is not None
    assert found.properties == {"x": "1"}
    assert not place.database.write(lambda tx: update(tx, place.namespace_id + 100, {}))


def test_locked_properties_are_not_lost(place: StoredNamespace) -> None:
    """Each of many adds a key to what it read."""

    def add(number: int) -> None:
        def work(tx: Tx) -> None:
            row = repository.find_namespace(tx, place.warehouse_id, ("a",), lock=True)
            assert row is not None
            repository.update_namespace(tx, row.id, {**row.properties, str(number): ""})

        place.database.write(work)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(add, range(40)))
    found = find(place, "a")
    assert found is not None
    assert len(found.properties) == 40


def test_delete(place: StoredNamespace) -> None:
    child = make(place, "a", "b")
    assert child is not None
    delete = repository.delete_namespace
    assert not place.database.write(lambda tx: delete(tx, place.namespace_id))
    assert place.database.write(lambda tx: delete(tx, child.id))
    entry = place.create("t")
    assert not place.database.write(lambda tx: delete(tx, place.namespace_id))
    place.database.write(lambda tx: repository.delete_entry(tx, entry))
    assert place.database.write(lambda tx: delete(tx, place.namespace_id))
    assert find(place, "a") is None


def test_refused_delete_leaves_its_transaction_alone(place: StoredNamespace) -> None:
    place.create("t")

    def work(tx: Tx) -> None:
        assert not repository.delete_namespace(tx, place.namespace_id)
        assert repository.insert_namespace(tx, place.warehouse_id, ("made after it",), {}) is not None

    place.database.write(work)
    assert find(place, "made after it") is not None


@pytest.mark.parametrize("what", ["entry", "namespace"])
def test_delete_against_insert(place: StoredNamespace, what: str) -> None:
    """Whatever comes first, nothing is ever in a namespace that is gone."""
    database = place.database

    def fill(number: int) -> str:
        def work(tx: Tx) -> object:
            if what == "namespace":
                return repository.insert_namespace(tx, place.warehouse_id, (f"n{number}", "child"), {})
            row = repository.find_namespace(tx, place.warehouse_id, (f"n{number}",))
            if row is None:
                raise NamespaceNotFoundError("gone")
            return insert(tx, row.id, "t")

        try:
            return "filled" if database.write(work) is not None else "taken"
        except NamespaceNotFoundError:
            return "gone"

    def drop(id: int) -> str:
        return "dropped" if database.write(lambda tx: repository.delete_namespace(tx, id)) else "full"

    outcomes = set()
    with ThreadPoolExecutor(2) as pool:
        for number in range(30):
            made = make(place, f"n{number}")
            assert made is not None
            one, other = pool.submit(fill, number), pool.submit(drop, made.id)
            outcomes.add((one.result(), other.result()))
    assert outcomes <= {("filled", "full"), ("gone", "dropped")}


def test_one_of_many_makes_it(database: Database, place: StoredNamespace) -> None:
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: make(place, "wanted by all"), range(16)))
    assert sum(row is not None for row in made) == 1


def test_warehouses(database: Database) -> None:
    first = database.write(lambda tx: repository.insert_warehouse(tx, "b", "/b"))
    second = database.write(lambda tx: repository.insert_warehouse(tx, "a", "/a"))
    assert first is not None
    assert second is not None
    assert database.write(lambda tx: repository.insert_warehouse(tx, "a", "/elsewhere")) is None
    assert database.read(repository.list_warehouses) == [first, second]
    database.write(lambda tx: repository.move_warehouse(tx, first.id, "/moved"))
    assert [row.location for row in database.read(repository.list_warehouses)] == ["/moved", "/a"]
    assert database.read(lambda tx: repository.is_warehouse_empty(tx, first.id))
    database.write(lambda tx: repository.insert_namespace(tx, first.id, ("n",), {}))
    assert not database.read(lambda tx: repository.is_warehouse_empty(tx, first.id))
    assert database.read(lambda tx: repository.is_warehouse_empty(tx, second.id))
