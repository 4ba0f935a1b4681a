from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lance_namespace.errors import InvalidInputError

from lancehouse.catalog.bootstrap import open_database, record_warehouses
from lancehouse.catalog.warehouses import Warehouse
from lancehouse.store import repository
from lancehouse.store.database import Database


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    database = open_database(f"sqlite:///{tmp_path / 'new' / 'c.db'}")
    yield database
    database.close()


def at(name: str, location: object, **more: Any) -> Warehouse:
    return Warehouse(0, name, str(location), **more)


def places(warehouses: list[Warehouse]) -> dict[str, str]:
    return {warehouse.name: warehouse.location for warehouse in warehouses}


def test_warehouses_are_remembered(database: Database, tmp_path: Path) -> None:
    default, one, two = at("main", tmp_path / "0"), at("one", tmp_path / "1"), at("two", tmp_path / "2")
    (first, second) = record_warehouses(database, [one, two], default)
    assert (tmp_path / "1").is_dir()
    assert first.id != second.id
    (tmp_path / "1").rmdir()
    assert record_warehouses(database, [], default) == [first, second]
    assert (tmp_path / "1").is_dir()
    database.write(lambda tx: repository.insert_namespace(tx, second.id, ("n",), {}))
    with pytest.raises(InvalidInputError, match=f"warehouse two is at {tmp_path}/2 and has tables there"):
        record_warehouses(database, [at("two", tmp_path / "3")], default)
    (moved,) = record_warehouses(database, [at("one", tmp_path / "3")], default)  # an empty one may move
    assert (moved.id, moved.location) == (first.id, f"{tmp_path}/3")
    assert places(record_warehouses(database, [], default)) == {"one": f"{tmp_path}/3", "two": f"{tmp_path}/2"}


def test_what_is_new_is_said(tmp_path: Path) -> None:
    said: list[str] = []
    url = f"sqlite:///{tmp_path / 'c.db'}"
    one, two = at("one", tmp_path / "1"), at("two", tmp_path / "2")
    for wanted, news in [
        ([one], [f"new database {url}", f"new warehouse one={tmp_path}/1"]),
        ([one, two], [f"new warehouse two={tmp_path}/2"]),
        ([], []),
    ]:
        said.clear()
        database = open_database(url, said.append)
        record_warehouses(database, wanted, one, say=said.append)
        database.close()
        assert said == news


@pytest.mark.parametrize(
    ("location", "words"),
    [
        ("{0}/a", "warehouse new: location .*/a is the location of warehouse old at .*/a: give it a place of its own"),
        ("file://{0}/a/", "is the location of warehouse old"),
        ("{0}/link", "is the location of warehouse old"),
        ("{0}/a/b", "lies in warehouse old"),
        ("{0}", "holds warehouse old"),
        ("s3://bucket/x/y", "lies in warehouse far at s3://bucket/x"),
        ("{0}/ab", None),
        ("s3://bucket/xy", None),
    ],
)
def test_warehouses_lie_apart(database: Database, tmp_path: Path, location: str, words: str | None) -> None:
    (tmp_path / "link").symlink_to("a")
    known = record_warehouses(database, [at("old", tmp_path / "a"), at("far", "s3://bucket/x")], at("main", ""))
    record_warehouses(database, [at("moves", tmp_path / "m")], at("main", ""))
    place = location.format(tmp_path)
    if words is None:
        record_warehouses(database, [at("new", place)], at("main", ""))
        return
    with pytest.raises(InvalidInputError, match=words):
        record_warehouses(database, [at("new", place)], at("main", ""))
    with pytest.raises(InvalidInputError, match=words.replace("new", "moves")):
        record_warehouses(database, [at("moves", place)], at("main", ""))
    assert database.read(repository.list_warehouses)[2].location == f"{tmp_path}/m"
    assert record_warehouses(database, [at("old", tmp_path / "a"), at("far", "s3://bucket/x")], at("main", "")) == known


def test_warehouses_of_before_stay_where_they_are(database: Database, tmp_path: Path) -> None:
    database.write(lambda tx: repository.insert_warehouse(tx, "outer", f"{tmp_path}/a"))
    database.write(lambda tx: repository.insert_warehouse(tx, "inner", f"{tmp_path}/a/b"))
    assert places(record_warehouses(database, [], at("main", ""))) == {
        "outer": f"{tmp_path}/a",
        "inner": f"{tmp_path}/a/b",
    }


def test_without_any_the_default_is_served(database: Database, tmp_path: Path) -> None:
    assert places(record_warehouses(database, [], at("main", tmp_path / "w"))) == {"main": f"{tmp_path}/w"}


def test_roots_join_those_that_a_warehouse_has(database: Database, tmp_path: Path) -> None:
    default = at("main", tmp_path / "w", roots=(str(tmp_path / "a"),))
    (made,) = record_warehouses(database, [], default, {"main": [f"{tmp_path}/b/", "s3://bucket/x", f"{tmp_path}/a"]})
    assert made.roots == (f"{tmp_path}/a", f"{tmp_path}/b", "s3://bucket/x")
    (known,) = record_warehouses(database, [], default, {"main": ["s3://bucket/y"]})  # one that the database knows
    assert known.roots == ("s3://bucket/y",)
    with pytest.raises(InvalidInputError, match="--root names warehouse mian, which is not served; there are main"):
        record_warehouses(database, [], default, {"mian": ["/x"]})


def test_a_relative_location_counts_from_here(
    database: Database, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    (made,) = record_warehouses(database, [at("w", "x/y", cache="../cache")], at("main", ""))
    assert (made.location, made.cache) == (f"{tmp_path}/x/y", f"{tmp_path.parent}/cache")


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (at("w", "/"), "warehouse w: location '/' is not allowed: a warehouse is not the whole disk"),
        (at("w", "ftp://x/y"), "warehouse w: .*the schemes are file, s3"),
        (at("w", "s3a://bucket/x"), "warehouse w: .*no lance table can lie there"),
        (at("w", "s3://bucket/a%20b"), "disagree on what % means"),
        (at("w", "s3://bucket/x", roots=("s3://bucket/../x",)), "it goes over"),
        (at("w", "s3://bucket/x", cache="gcs://bucket"), "no lance table can lie there"),
        (at("w", "s3://bucket/x", vend="sts"), "warehouse w: STS needs the role to assume"),
        (at("w", "s3://bucket/x", vend="static"), "warehouse w: to vend static credentials"),
    ],
)
def test_where_nothing_can_be_kept(database: Database, wanted: Warehouse, words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        record_warehouses(database, [wanted], at("main", ""))
    assert database.read(repository.list_warehouses) == []
