"""Which files a source means, and what their names say."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lance_namespace.errors import InvalidInputError

from lancehouse.jobs.sources.ingest_source import open_source
from tests.jobs.sources.reading import rows


def put(folder: Path, *names: str) -> None:
    """CSV files, each with its own name as its only value."""
    for name in names:
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f'name\n"{name}"\n')


def names(source: Any, **arguments: Any) -> list[str]:
    return [row["name"] for row in rows(source, **arguments)]


TREE = ["a.csv", "b.csv", "x/c.csv", "x/y/d.csv", ".hidden.csv", "_not.csv", "x/_tmp/e.csv", ".git/f.csv"]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("", ["a.csv", "b.csv", "x/c.csv", "x/y/d.csv"]),
        ("x", ["x/c.csv", "x/y/d.csv"]),
        ("x/", ["x/c.csv", "x/y/d.csv"]),
        ("a.csv", ["a.csv"]),
        ("_not.csv", ["_not.csv"]),
        ("x/_tmp", ["x/_tmp/e.csv"]),
        ("*.csv", ["a.csv", "b.csv"]),
        ("[!a].csv", ["b.csv"]),
        ("?.csv", ["a.csv", "b.csv"]),
        ("_*.csv", ["_not.csv"]),
        ("*/*.csv", ["x/c.csv"]),
        ("x/*", ["x/c.csv", "x/y/d.csv"]),
        ("**/*.csv", ["a.csv", "b.csv", "x/c.csv", "x/y/d.csv"]),
        ("**/d.csv", ["x/y/d.csv"]),
        ("x/**", ["x/c.csv", "x/y/d.csv"]),
        ("x/*/d.csv", ["x/y/d.csv"]),
        (["a.csv", "x/y"], ["a.csv", "x/y/d.csv"]),
        (["a.csv", "*.csv", "a.csv"], ["a.csv", "b.csv"]),
    ],
)
@pytest.mark.parametrize("scheme", ["", "file://"])
def test_what_is_meant(tmp_path: Path, source: str | list[str], expected: list[str], scheme: str) -> None:
    put(tmp_path, *TREE)
    sources = [source] if isinstance(source, str) else source
    assert names([f"{scheme}{tmp_path}/{each}" for each in sources]) == expected


def test_paths_of_every_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, "a.csv")
    monkeypatch.chdir(tmp_path)
    assert names("a.csv") == names(tmp_path / "a.csv") == names((tmp_path,)) == ["a.csv"]
    source = open_source("a.csv")
    monkeypatch.chdir("/")  # a task has another working directory
    assert [batch.num_rows for batch in source.units[0].batches(source.schema)] == [1]


ODD = ["a b.csv", "ü🙂.csv", "50%20 off.csv", "x#1?.csv", "[a-z]*.csv", "{x}.csv", "it's.csv"]


@pytest.mark.parametrize("name", ODD)
def test_odd_names(tmp_path: Path, name: str) -> None:
    put(tmp_path, *ODD)
    assert names(tmp_path / name) == names((tmp_path / name).as_uri()) == [name]


def test_links_that_lead_back(tmp_path: Path) -> None:
    put(tmp_path, "a.csv", "x/b.csv")
    put(tmp_path.parent / f"{tmp_path.name} other", "c.csv")
    (tmp_path / "loop").symlink_to(".")
    (tmp_path / "x" / "up").symlink_to("..")
    (tmp_path / "linked").symlink_to(tmp_path.parent / f"{tmp_path.name} other")
    assert names(tmp_path) == names(f"{tmp_path}/**") == ["a.csv", "c.csv", "x/b.csv"]


def test_odd_names_of_folders(tmp_path: Path) -> None:
    folder = tmp_path / "100 % [of] *?"
    put(folder, *ODD)
    assert sorted(names(folder)) == sorted(names(f"{folder}/*")) == sorted(ODD)


@pytest.mark.parametrize(
    ("source", "format", "message"),
    [
        ("nothing", None, "there is no file at {}/nothing$"),
        ("nothing/*.csv", None, r"there is no file at {}/nothing/\*.csv"),
        ("folder [1]/nothing.csv", None, r"there is no file at {}/folder \[1\]/nothing.csv"),
        ("empty folder", None, "there is no file at {}/empty folder"),
        ("mixed", None, "{}/mixed/a.csv is csv but {}/mixed/b.parquet is parquet: say with format="),
        ("odd", None, "the format of {}/odd/README.md cannot be told from its extension"),
        ("odd", "orc", "there is no format 'orc': formats are parquet, csv, json, arrow, images, iceberg"),
        ("odd", "parquet", r"there is no file of format parquet \(.parquet, .pq\) beside {}/odd/README.md"),
        ("empty.csv", None, "{}/empty.csv is empty"),
        ("bad.parquet", None, "{}/bad.parquet cannot be read: .*[Pp]arquet"),
        ("bad.arrow", None, "{}/bad.arrow cannot be read"),
        ("bad.csv", None, "{}/bad.csv cannot be read: .*[Ee]mpty"),
        ("bad.json", None, "{}/bad.json cannot be read: .*JSON"),
        ("array.json", None, "{}/array.json is an array of JSON"),
        ("bad.csv.gz", None, "{}/bad.csv.gz cannot be read"),
        ([], None, "empty list"),
        (123, None, "a source is a file, a folder or a glob, not 123"),
        (None, None, "a source is a file, a folder or a glob, not None"),
        ([""], None, "a source is a file, a folder or a glob, not ''"),
        ("ftp://host/x.csv", None, "no place that can be read"),
        ("s3://", None, "no place that can be read"),
    ],
)
def test_what_cannot_be_read(tmp_path: Path, source: Any, format: str | None, message: str) -> None:
    put(tmp_path, "mixed/a.csv", "mixed/b.parquet", "odd/README.md")
    (tmp_path / "empty folder" / "_hidden").mkdir(parents=True)
    (tmp_path / "folder [1]").mkdir()
    bad = {"empty.csv": b"", "bad.csv": b"\n", "bad.json": b'{"a": 1}{', "array.json": b' [{"a": 1}]'}
    for name, content in {**bad, "bad.parquet": b"PAR1", "bad.arrow": b"ARROW1..", "bad.csv.gz": b"no gzip"}.items():
        (tmp_path / name).write_bytes(content)
    place = f"{tmp_path}/{source}" if isinstance(source, str) and "://" not in source else source
    with pytest.raises(InvalidInputError, match=message.replace("{}", str(tmp_path))):
        open_source(place, format)


def test_a_format_that_is_said(tmp_path: Path) -> None:
    """In a folder it chooses, what is named is read as told."""
    put(tmp_path, "a.csv", "b.json", "README.md", "part-0000", "c.CSV")
    assert names(tmp_path, format="csv") == ["a.csv", "c.CSV"]
    assert names(tmp_path / "README.md", format="csv") == ["README.md"]
    assert names(f"{tmp_path}/p*", format="csv") == ["part-0000"]


# Folders that tell columns


def test_hive_folders(tmp_path: Path) -> None:
    put(tmp_path, "year=2024/day=2024-02-29/a.csv", "year=-1/day=2024-03-01/x/b.csv", "c.csv")
    source = open_source(tmp_path)
    assert source.schema.field("year").type == pa.int64()
    assert source.schema.field("day").type == pa.date32()
    assert rows(tmp_path) == [
        {"name": "c.csv", "year": None, "day": None},
        {"name": "year=-1/day=2024-03-01/x/b.csv", "year": -1, "day": date(2024, 3, 1)},
        {"name": "year=2024/day=2024-02-29/a.csv", "year": 2024, "day": date(2024, 2, 29)},
    ]
    assert rows(tmp_path, columns=["year"]) == [{"year": None}, {"year": -1}, {"year": 2024}]


@pytest.mark.parametrize(
    ("folders", "values"),
    [
        (["k=1", "k=two"], ["1", "two"]),
        (["k=007"], ["007"]),
        (["k=a%2Fb%20c=d"], ["a/b c=d"]),
        (["k=__HIVE_DEFAULT_PARTITION__", "k=5"], [5, None]),
        (["k=__HIVE_DEFAULT_PARTITION__"], [None]),
        (["k="], [""]),
        ([f"k={2**63}"], [str(2**63)]),
        (["k=2024-02-30"], ["2024-02-30"]),
    ],
)
def test_values_of_hive_folders(tmp_path: Path, folders: list[str], values: list[Any]) -> None:
    put(tmp_path, *[f"{folder}/a.csv" for folder in folders])
    assert [row["k"] for row in rows(tmp_path)] == values


def test_only_folders_below_the_given_one_tell_columns(tmp_path: Path) -> None:
    put(tmp_path, "a=1/b=2/x.csv")
    assert [list(row) for row in rows(tmp_path / "a=1")] == [["name", "b"]]
    assert [list(row) for row in rows(f"{tmp_path}/*/b=2")] == [["name", "a", "b"]]
    assert [list(row) for row in rows(f"{tmp_path}/a=1/*/*.csv")] == [["name", "b"]]
    assert [list(row) for row in rows(tmp_path / "a=1/b=2/x.csv")] == [["name"]]


def test_a_column_that_files_have_too(tmp_path: Path) -> None:
    """What the file says counts; its folder speaks for files that do not, in the type of the others."""
    for number, table in enumerate([pa.table({"k": pa.array([7], pa.int16())}), pa.table({"x": [1]})]):
        (tmp_path / f"k={number}").mkdir()
        pq.write_table(table, tmp_path / f"k={number}" / "a.parquet")
    assert open_source(tmp_path).schema == pa.schema([("k", pa.int16()), ("x", pa.int64())])
    assert rows(tmp_path) == [{"k": 7, "x": None}, {"k": 1, "x": 1}]
