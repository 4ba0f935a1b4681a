from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier
from typing import Any

import psycopg
import pytest
from lance_namespace.errors import InvalidInputError, NamespaceNotFoundError, TableNotFoundError

from lancehouse.store import dropped, repository
from lancehouse.store.model import CommitRow, DroppedRow, EntryRow, RefRow, SnapshotRow
from lancehouse.store.statements import Tx
from tests.store.rows import NOW, StoredNamespace, insert

SCHEMA = {"type": "struct", "schema-id": 1, "fields": [{"id": 1, "name": "größe", "required": False, "type": "long"}]}


def advance(place: StoredNamespace, entry: EntryRow, **changes: Any) -> bool:
    return place.database.write(
        lambda tx: repository.advance_entry(tx, entry.id, entry.revision, now_ms=NOW + 5, **changes)
    )


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"kind": "view", "metadata_location": "s3://b/metadata/1.json"},
        {"kind": "iceberg", "properties": {"a": "b", "emoji": "😀"}},
        {"schema": SCHEMA, "version": 2**63 - 1},
    ],
)
def test_insert_and_find(place: StoredNamespace, values: dict[str, Any]) -> None:
    made = place.create("t", **values)
    assert made.revision == 1
    assert made.created_ms == made.updated_ms == NOW
    for name, value in values.items():
        assert getattr(made, name) == value
    assert place.find("t") == made
    assert place.find("T") is None
    assert place.insert("t", kind="iceberg", location="/elsewhere") is None


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"name": "x" * 2001}, "longer than 2000 bytes"),
        ({"name": "nul\x00"}, "NUL"),
        ({"name": "t", "location": "/" + "x" * 2000}, "location is longer"),
        ({"name": "t", "properties": {"a": "\ud800"}}, "no JSON"),
        ({"name": "t", "version": 2**63}, "cannot hold"),
        ({"name": "\ud800"}, "cannot hold"),
    ],
)
def test_values_that_cannot_be(place: StoredNamespace, values: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        place.insert(**values)
    assert place.insert("still works") is not None


def test_insert_into_a_namespace_that_is_gone(place: StoredNamespace) -> None:
    with pytest.raises(NamespaceNotFoundError):
        place.insert("t", namespace_id=place.namespace_id + 100)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"properties": {"new": "1"}},
        {"schema": SCHEMA},
        {"schema": None, "version": 7},
        {"version": None},
        {"metadata_location": "s3://b/2.json", "uuid": "another"},
        {"location": "/moved", "location_key": "/moved/"},
    ],
)
def test_advance(place: StoredNamespace, changes: dict[str, Any]) -> None:
    before = place.create("t", version=1, schema={"old": True})
    assert advance(place, before, **changes)
    visible = {name: value for name, value in changes.items() if name != "location_key"}
    after = replace(before, revision=2, updated_ms=NOW + 5, **visible)
    assert place.find("t") == after
    assert not advance(place, before, **changes), "the revision is no longer the one expected"
    assert place.find("t") == after
    if "location" in changes:
        found = place.database.read(lambda tx: repository.find_overlapping_table(tx, "/moved/below/"))
        assert found == (("a",), "t")


@pytest.mark.parametrize("changes", [{"name": "x"}, {"location": "/x"}, {"location_key": "/x/"}, {"revision": 7}])
def test_advance_refuses(place: StoredNamespace, changes: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        advance(place, place.create("t"), **changes)


def test_an_id_is_never_given_out_again(place: StoredNamespace) -> None:
    gone = place.create("t")
    place.database.write(lambda tx: repository.delete_entry(tx, gone))
    again = place.create("t")
    assert again.id != gone.id
    assert not advance(place, gone, version=1)


def test_one_of_many_advances(place: StoredNamespace) -> None:
    entry = place.create("t")
    ready = Barrier(8)

    def attempt(number: int) -> bool:
        ready.wait()
        return advance(place, entry, version=number)

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(attempt, range(8))) == 1
    found = place.find("t")
    assert found is not None
    assert found.revision == 2


def test_list(place: StoredNamespace) -> None:
    kinds = {"B": "lance", "a": "iceberg", "b": "view", "ä": "lance", "😀": "view", "\uffee": "iceberg"}
    for name, kind in kinds.items():
        place.create(name, kind=kind)
    listing = repository.list_entries

    def list_names(*arguments: Any) -> list[str]:
        return place.database.read(lambda tx: listing(tx, place.namespace_id, *arguments))

    assert list_names(("lance", "iceberg")) == ["B", "a", "ä", "\uffee"]
    assert list_names({"view"}) == ["b", "😀"]
    assert list_names(("lance", "iceberg", "view"), "a", 3) == ["b", "ä", "\uffee"]
    assert list_names(()) == []


def test_rename(place: StoredNamespace) -> None:
    entry, _other = place.create("t"), place.create("other", kind="view")
    target = place.database.write(lambda tx: repository.insert_namespace(tx, place.warehouse_id, ("n",), {}))
    assert target is not None

    def rename(entry: EntryRow, namespace_id: int, name: str) -> bool:
        return place.database.write(lambda tx: repository.rename_entry(tx, entry, namespace_id, name, NOW + 1))

    assert not rename(entry, place.namespace_id, "other")
    assert rename(entry, target.id, "other")
    found = place.database.read(lambda tx: repository.find_entry(tx, place.warehouse_id, ("n",), "other"))
    assert found == replace(entry, namespace_id=target.id, name="other", updated_ms=NOW + 1)
    assert place.find("t") is None
    assert found is not None
    with pytest.raises(NamespaceNotFoundError):
        rename(found, target.id + 100, "x")
    with pytest.raises(TableNotFoundError):
        rename(replace(found, id=entry.id + 100), target.id, "x")


def test_what_was_renamed_meanwhile_stays(place: StoredNamespace) -> None:
    before = place.create("t")
    place.database.write(lambda tx: repository.rename_entry(tx, before, place.namespace_id, "u", NOW + 1))
    with pytest.raises(TableNotFoundError, match="before it could be renamed to v"):
        place.database.write(lambda tx: repository.rename_entry(tx, before, place.namespace_id, "v", NOW + 2))
    assert not place.database.write(lambda tx: repository.delete_entry(tx, before))
    row = DroppedRow(before.id, place.warehouse_id, ("a",), "t", NOW, NOW, "me", purge=True)
    assert not place.database.write(lambda tx: dropped.insert_dropped(tx, row, before))
    assert place.find("u") == replace(before, name="u", updated_ms=NOW + 1)


def test_what_was_dropped_meanwhile_is_not_renamed(place: StoredNamespace) -> None:
    entry = place.create("t")
    row = DroppedRow(entry.id, place.warehouse_id, ("a",), "t", NOW, NOW, "me", purge=True)
    assert place.database.write(lambda tx: dropped.insert_dropped(tx, row, entry))
    with pytest.raises(TableNotFoundError):
        place.database.write(lambda tx: repository.rename_entry(tx, entry, place.namespace_id, "u", NOW))
    assert place.find("u") is None


def test_restore_into_a_namespace_that_is_gone(place: StoredNamespace) -> None:
    entry = place.create("t")
    row = DroppedRow(entry.id, place.warehouse_id, ("a",), "t", NOW, NOW, "me", purge=True)
    assert place.database.write(lambda tx: dropped.insert_dropped(tx, row, entry))
    with pytest.raises(NamespaceNotFoundError):
        place.database.write(lambda tx: dropped.restore_entry(tx, entry.id, place.namespace_id + 100, "t", NOW))
    assert place.database.write(lambda tx: dropped.restore_entry(tx, entry.id, place.namespace_id, "t", NOW))


def test_refused_rename_leaves_its_transaction_alone(place: StoredNamespace) -> None:
    entry, _other = place.create("t"), place.create("other")

    def work(tx: Tx) -> None:
        assert not repository.rename_entry(tx, entry, place.namespace_id, "other", NOW)
        assert insert(tx, place.namespace_id, "third") is not None

    place.database.write(work)
    assert place.find("third") is not None


@pytest.mark.parametrize(
    ("key", "overlaps"),
    [
        ("s3://b/a/t/", True),
        ("s3://b/a/t/below/", True),
        ("s3://b/a/t/x/y/z/a/b/c/d/e/f/g/h/i/j/k/l/m/n/o/p/q/r/s/", True),
        ("s3://b/a/", True),
        ("s3://b/", True),
        ("s3://b/a/t2/", False),
        ("s3://b/a/t-/", False),
        ("s3://b/a/t0/", False),
        ("s3://b/a/s/", False),
        ("s3://b/a/T/", False),
        ("s3://b/a/ta/below/", False),
        ("s3://c/a/t/", False),
        ("s3://b/a/v/", False),
        ("/a/t/", False),
    ],
)
def test_overlapping(place: StoredNamespace, key: str, overlaps: bool) -> None:
    entry = place.create("t", location="s3://b/a/t")
    place.create("v", kind="view", location="s3://b/a/v")
    found = place.database.write(lambda tx: repository.find_overlapping_table(tx, key))
    assert found == ((("a",), "t") if overlaps else None)
    assert place.database.read(lambda tx: repository.find_overlapping_table(tx, key)) == found
    assert place.database.read(lambda tx: repository.find_overlapping_table(tx, key, entry.id)) is None


def test_of_overlapping_locations_one_is_claimed(place: StoredNamespace) -> None:
    """Tables that would lie in each other are made at once: each finds the one that came first."""

    def claim(round_: int, depth: int) -> bool:
        location = f"/data/{round_}" + "/x" * depth

        def work(tx: Tx) -> bool:
            if repository.find_overlapping_table(tx, f"{location}/") is not None:
                return False
            return insert(tx, place.namespace_id, f"{round_} {depth}", location=location) is not None

        return place.database.write(work)

    with ThreadPoolExecutor(6) as pool:
        for round_ in range(10):
            claimed = [pool.submit(claim, round_, depth) for depth in (0, 3, 1, 2, 5, 4)]
            assert sum(future.result() for future in claimed) == 1


def test_snapshots_refs_and_commits(place: StoredNamespace) -> None:
    entry, other = place.create("t"), place.create("other")
    snapshots = [
        SnapshotRow(number, number - 1 or None, number, NOW + number, f"lance:///{number}", {"operation": "append"})
        for number in (3, 1, 2)
    ]
    commits = [CommitRow(NOW, "me", "pyiceberg/0.12", f"id {n}", n, n if n > 1 else None, "append") for n in (1, 2, 3)]

    def work(tx: Tx) -> None:
        repository.insert_snapshots(tx, entry.id, snapshots)
        repository.insert_snapshots(tx, other.id, snapshots[:1])
        repository.insert_snapshots(tx, entry.id, [])
        repository.put_ref(tx, entry.id, RefRow("v1", "tag", 1))
        repository.put_ref(tx, entry.id, RefRow("dev", "branch", 2))
        repository.put_ref(tx, entry.id, RefRow("v1", "tag", 3))
        for row in commits:
            repository.insert_commit(tx, entry.id, row)

    place.database.write(work)
    read = place.database.read
    assert read(lambda tx: repository.list_snapshots(tx, entry.id)) == sorted(snapshots, key=lambda row: row.sequence)
    assert read(lambda tx: repository.list_refs(tx, entry.id)) == [RefRow("dev", "branch", 2), RefRow("v1", "tag", 3)]
    assert read(lambda tx: repository.list_commits(tx, entry.id)) == commits[::-1]
    assert read(lambda tx: repository.list_commits(tx, entry.id, 1)) == commits[2:]
    assert read(lambda tx: repository.list_commits_between(tx, entry.id, 2, 2)) == commits[1:2]
    assert read(lambda tx: repository.list_commits_between(tx, entry.id, 0, 9)) == commits[:0:-1]
    assert read(lambda tx: repository.list_commits_between(tx, other.id, 0, 9)) == []

    def less(tx: Tx) -> None:
        repository.delete_snapshots(tx, entry.id, [1, 3, 99])
        repository.delete_ref(tx, entry.id, "dev")

    place.database.write(less)
    assert [row.snapshot_id for row in read(lambda tx: repository.list_snapshots(tx, entry.id))] == [2]
    assert [row.name for row in read(lambda tx: repository.list_refs(tx, entry.id))] == ["v1"]
    assert place.database.write(lambda tx: repository.delete_entry(tx, entry))
    assert not place.database.write(lambda tx: repository.delete_entry(tx, entry))
    assert read(lambda tx: repository.list_snapshots(tx, entry.id)) == []
    assert read(lambda tx: repository.list_refs(tx, entry.id)) == []
    assert read(lambda tx: repository.list_commits(tx, entry.id)) == []
    assert len(read(lambda tx: repository.list_snapshots(tx, other.id))) == 1


def test_entries_of_all_namespaces_in_the_order_of_the_index(place: StoredNamespace) -> None:
    def work(tx: Tx) -> None:
        for levels in (("a", "b"), ("ab",), ("c",)):
            namespace = repository.insert_namespace(tx, place.warehouse_id, levels, {})
            assert namespace
            for name in ("t", "u"):
                assert insert(tx, namespace.id, name, location=f"/{'/'.join(levels)}/{name}")

    place.create("t")
    place.create("v", kind="view", metadata_location="m")
    place.database.write(work)

    def list_names(*args: Any, **more: Any) -> list[str]:
        found = place.database.read(
            lambda tx: repository.list_entries_in_warehouse(tx, place.warehouse_id, "lance", *args, **more)
        )
        return ["/".join([*levels, name]) for levels, name in found]

    every = ["a/t", "a/b/t", "a/b/u", "ab/t", "ab/u", "c/t", "c/u"]
    assert list_names() == every
    assert list_names((("a",), "t")) == every[1:]
    assert list_names((("a", "b"), "t"), 2) == every[2:4]
    assert list_names((("a", "b"), "u"), 0) == []
    assert list_names((("gone",), "x")) == []
    assert list_names(below=[("a",)]) == every[:3]
    assert list_names(below=[("a", "b"), ("c",)]) == [*every[1:3], *every[5:]]
    assert list_names((("a", "b"), "t"), 1, [("c",), ("a",)]) == ["a/b/u"]


def test_entries_with_a_property(place: StoredNamespace) -> None:
    place.create("a", properties={"x": "1", "of": "main.db.t_1"})
    place.create("b", properties={"of": 'main.db."50%"/ü'})
    place.create("c", properties={"of": "main.db.tX1"})
    place.create("d", kind="view", metadata_location="m", properties={"of": "main.db.t_1"})

    def list_names(value: str, limit: int = 9) -> list[str]:
        arguments = (place.warehouse_id, "lance", "of", value, limit)
        found = place.database.read(lambda tx: repository.list_entries_with_property(tx, *arguments))  # type: ignore[arg-type]
        return [name for _, name in found]

    assert list_names("main.db.t_1") == ["a"]
    assert list_names('main.db."50%"/ü') == ["b"]
    assert list_names("main.db.t") == []
    assert list_names("%") == []
    assert list_names("main.db.t_1", 0) == []


def test_a_version_that_is_published(place: StoredNamespace) -> None:
    entry = place.create("t", version=3)
    assert not place.database.write(lambda tx: repository.set_published(tx, entry.id, 2))
    assert place.find("t") == entry
    assert place.database.write(lambda tx: repository.set_published(tx, entry.id, 3))
    assert place.find("t") == replace(entry, published=3)
    assert advance(place, entry, properties={"a": "b"})
    found = place.find("t")
    assert found is not None
    assert found.published == 3
    assert advance(place, found, version=4)
    found = place.find("t")
    assert found is not None
    assert found.published is None


def test_a_schema_that_is_filled_in(place: StoredNamespace) -> None:
    entry = place.create("t", version=3)
    assert not place.database.write(lambda tx: repository.set_schema(tx, entry.id, entry.revision + 1, SCHEMA))
    assert place.database.write(lambda tx: repository.set_schema(tx, entry.id, entry.revision, SCHEMA))
    assert place.find("t") == replace(entry, schema=SCHEMA)


NAMES = ["docs", "Docs 2", "old_docs", "oldXdocs", "100%", "a/b", "größe", "GRÖSSE", "x.y"]


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["docs"], ["docs", "Docs 2", "old_docs", "oldXdocs"]),
        (["old_docs"], ["old_docs"]),
        (["docs", "2"], ["Docs 2"]),
        (["%"], ["100%"]),
        (["/"], ["a/b"]),
        (["gr", "ö"], ["größe", "GRÖSSE"]),
        (["gröss"], ["GRÖSSE"]),
        (["none"], []),
        ([], NAMES),
        (["d", "o", "c", "s", "docs 2"], ["Docs 2"]),
    ],
)
def test_search_of_names(place: StoredNamespace, words: list[str], found: list[str]) -> None:
    for name in NAMES:
        place.create(name)
    place.create("view of docs", kind="view")
    expected = [*found, *(["view of docs"] if words in ([], ["docs"]) else [])]

    def search(namespaces: list[int], after: int = 0, limit: int = 100) -> list[tuple[int, int, str, str]]:
        return [
            *place.database.read(
                lambda tx: repository.search_entries(tx, place.warehouse_id, words, namespaces, after, limit)
            )
        ]

    for namespaces in ([place.namespace_id], [*range(place.namespace_id, 99)]):
        rows = search(namespaces)
        assert [row[2] for row in rows] == expected
        if rows:
            assert [*search(namespaces, limit=1), *search(namespaces, after=rows[0][0])] == rows
    assert search([place.namespace_id + 1]) == []


def test_postgres_finds_words_by_an_index(place: StoredNamespace, kind: str) -> None:
    if kind != "postgres":
        pytest.skip("SQLite reads all names")
    statement = repository._search_statement(1, False).postgres
    values = {"warehouse": place.warehouse_id, "after": 0, "size": 10, "word_0": "%docs%"}
    names = "SELECT %s, 'table ' || i, 'lance', i, i, i, '{}', 1, 1, 1 FROM generate_series(1, 5000) AS i"
    columns = "namespace_id, name, kind, uuid, location, location_key, properties, revision, created_ms, updated_ms"
    with psycopg.connect(place.database.url) as connection:
        connection.execute(f"INSERT INTO entries ({columns}) {names}".encode(), (place.namespace_id,))
        connection.execute("SELECT gin_clean_pending_list('ix_entries_name_words')")
        connection.execute("ANALYZE entries")
        connection.execute("SET enable_seqscan = off")
        plan = connection.execute(f"EXPLAIN {statement}".encode(), values).fetchall()
    assert "ix_entries_name_words" in str(plan)
