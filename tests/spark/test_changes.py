"""Changes of rows, version by version: what was inserted, updated and deleted, as a stream and at once."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance_namespace.errors import InvalidInputError, TableVersionNotFoundError, UnsupportedOperationError

from lancehouse.connection import Connection
from lancehouse.jobs import LocalEngine, TableJobs
from lancehouse.spark import LanceCatalog
from lancehouse.spark.data_source import LanceSource

Change = tuple[str, int, int, str]
"""Type, version, key, value."""


@pytest.fixture
def docs(tmp_path: Path) -> str:
    """Rows 0 to 5 in version 1."""
    rows = pa.table({"id": pa.array(range(6)), "v": ["a"] * 6})
    lance.write_dataset(rows, tmp_path / "docs.lance", max_rows_per_file=3, enable_stable_row_ids=True)
    return str(tmp_path / "docs.lance")


def jobs(docs: str) -> TableJobs:
    return TableJobs(Connection("dir", {"root": str(Path(docs).parent)}), LocalEngine(threads=1))


def change_history(docs: str) -> None:
    """Versions 2 to 9."""
    table = lance.dataset(docs)
    table.update({"v": "'b'"}, where="id IN (1, 4)")
    table.delete("id = 2 OR id = 4")
    lance.write_dataset(pa.table({"id": [6, 7], "v": ["a", "a"]}), docs, mode="append")
    jobs(docs).merge(pa.table({"id": [0, 6, 8], "v": ["c", "c", "c"]}), "docs", "id")
    jobs(docs).define_columns("docs", {"n": "length(v)"})
    jobs(docs).backfill("docs")
    lance.dataset(docs).optimize.compact_files()


EXPECTED: list[Change] = [
    ("update_postimage", 2, 1, "b"),
    ("update_postimage", 2, 4, "b"),
    ("delete", 3, 2, "a"),
    ("delete", 3, 4, "b"),
    ("insert", 4, 6, "a"),
    ("insert", 4, 7, "a"),
    ("update_postimage", 5, 0, "c"),
    ("update_postimage", 5, 6, "c"),
    ("insert", 5, 8, "c"),
]


class ChangeStream:
    """A streaming query over the changes of a table, without Spark."""

    def __init__(self, docs: str, **options: Any) -> None:
        given = {key: str(value) for key, value in options.items()}
        source = LanceSource({"path": docs, "readChanges": "true", **given})
        source.schema()
        self.reader = source.streamReader(None)
        self.at: dict[str, Any] = {"version": 0}

    def next(self) -> list[Change]:
        limit = self.reader.getDefaultReadLimit()
        end = self.reader.latestOffset(self.at, limit)
        parts = self.reader.partitions(self.at, end)
        assert [part.value for part in parts] == [part.value for part in self.reader.partitions(self.at, end)]
        self.at = end
        found = [row for part in parts for batch in self.reader.read(part) for row in batch.to_pylist()]
        return [(row["_change_type"], row["_commit_version"], row["id"], row["v"]) for row in found]


def test_each_version_tells_what_it_changed(docs: str) -> None:
    stream = ChangeStream(docs, columns="id,v")
    assert sorted(stream.next()) == [("insert", 1, number, "a") for number in range(6)], "all rows of the start"
    change_history(docs)
    assert sorted(stream.next(), key=lambda each: each[1:]) == sorted(EXPECTED, key=lambda each: each[1:])
    assert stream.next() == []
    lance.write_dataset(pa.table({"id": [9], "v": ["z"]}), docs, mode="overwrite")
    changes = stream.next()
    assert sorted(key for change, _, key, _ in changes if change == "delete") == [0, 1, 3, 5, 6, 7, 8]
    assert [each[2:] for each in changes if each[0] == "insert"] == [(9, "z")]


def test_limits_and_starts(docs: str) -> None:
    change_history(docs)
    stream = ChangeStream(docs, columns="id,v", startingVersion=3, maxVersionsPerTrigger=1)
    assert [sorted({each[1] for each in stream.next()}) for _ in range(4)] == [[3], [4], [5], []]
    assert sorted(ChangeStream(docs, columns="id,v", startingVersion=3, filter="id < 3 -- first").next()) == [
        ("delete", 3, 2, "a"),
        ("update_postimage", 5, 0, "c"),
    ]


@pytest.mark.parametrize("seed", range(3))
def test_changes_make_the_next_version_of_any_history(docs: str, seed: int) -> None:
    chance = random.Random(seed)
    stream = ChangeStream(docs, columns="id,v")
    state: dict[int, str] = {}
    new = iter(range(100, 200))
    for step in range(14):
        value, ids = f"s{step}", [chance.randrange(8), next(new)]
        match chance.randrange(7):
            case 0 | 1:
                lance.write_dataset(pa.table({"id": [next(new), next(new)], "v": [value] * 2}), docs, mode="append")
            case 2:
                lance.dataset(docs).update({"v": f"'{value}'"}, where=f"id % 3 = {chance.randrange(3)}")
            case 3:
                lance.dataset(docs).delete(f"id % 5 = {chance.randrange(5)}")
            case 4:
                jobs(docs).merge(pa.table({"id": ids, "v": [value] * 2}), "docs", "id")
            case 5:
                rows = pa.table({"id": ids, "v": [value] * 2})
                lance.dataset(docs).merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(
                    rows
                )
            case 6:
                lance.dataset(docs).optimize.compact_files()
        if chance.random() < 0.5:
            continue
        for change, _, key, text in stream.next():
            if change == "delete":
                assert state.pop(key) is not None
            else:
                assert (key in state) == (change == "update_postimage")
                state[key] = text
        table = lance.dataset(docs).to_table(["id", "v"]).to_pylist()
        assert state == {row["id"]: row["v"] for row in table}


def test_what_cannot_be_told(docs: str, tmp_path: Path) -> None:
    lance.write_dataset(pa.table({"id": [1]}), tmp_path / "plain.lance", enable_stable_row_ids=False)
    with pytest.raises(InvalidInputError, match="has no stable row ids, so that nobody can tell which rows changed"):
        ChangeStream(str(tmp_path / "plain.lance"))
    with pytest.raises(InvalidInputError, match="leave out withVersion"):
        ChangeStream(docs, withVersion="true")
    lance.write_dataset(pa.table({"_change_type": [1]}), tmp_path / "taken.lance", enable_stable_row_ids=True)
    with pytest.raises(InvalidInputError, match="has a column _change_type, as changes have"):
        ChangeStream(str(tmp_path / "taken.lance"))
    stream = ChangeStream(docs, columns="id,v")
    stream.next()
    lance.dataset(docs).delete("id = 1")
    lance.dataset(docs, version=1).restore()
    with pytest.raises(UnsupportedOperationError, match=r"version 3 of .* restored an older one; start again"):
        stream.next()


def test_at_once_in_tasks(spark: Any, docs: str) -> None:
    change_history(docs)
    catalog = LanceCatalog(spark, "dir", {"root": str(Path(docs).parent)})
    frame = catalog.read_changes("docs", 1, columns=["id", "v"])
    rows = [(row["_change_type"], row["_commit_version"], row["id"], row["v"]) for row in frame.collect()]
    assert sorted(rows) == sorted(EXPECTED)
    times = [row[0] for row in frame.select("_commit_timestamp").distinct().collect()]
    assert all(abs(each.astimezone(UTC) - datetime.now(UTC)) < timedelta(hours=1) for each in times)
    assert len(times) == 4
    lance.dataset(docs).tags.create("here", 4)
    assert catalog.read_changes("docs", from_tag="here", to_version=5, filter="v = 'c'").count() == 3
    assert catalog.read_changes("docs", 0, 1).count() == 6
    assert catalog.read_changes("docs", 5).count() == 0
    with pytest.raises(InvalidInputError, match="say after which version"):
        catalog.read_changes("docs")
    with pytest.raises(InvalidInputError, match="are none: swap them"):
        catalog.read_changes("docs", 5, 2)
    lance.dataset(docs).tags.delete("here")
    lance.dataset(docs).cleanup_old_versions(timedelta(0))
    with pytest.raises(TableVersionNotFoundError):
        catalog.read_changes("docs", 1)
