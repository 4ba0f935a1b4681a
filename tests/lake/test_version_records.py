from __future__ import annotations

from pathlib import Path

import lance
import pyarrow as pa
import pytest

from lancehouse.lake import version_records
from lancehouse.lake.dataset import TableRef

ROWS = pa.table({"id": range(10), "text": ["x" * 100] * 10})


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("timeline") / "t"
    lance.write_dataset(ROWS, place, commit_message="first", transaction_properties={"job": "j"})
    dataset = lance.write_dataset(ROWS, place, mode="append")
    dataset.delete("id = 3")
    dataset.create_scalar_index("id", "BTREE")
    dataset.tags.create("two", 2)
    dataset.create_branch("side", 2)
    return place


def test_versions_with_what_made_them(place: Path) -> None:
    made = version_records.read_versions(TableRef(str(place)), [4, 3, 2, 1])
    assert [(each.version, each.operation, each.rows) for each in made] == [
        (4, "CreateIndex", 18),
        (3, "Delete", 18),
        (2, "Append", 20),
        (1, "Overwrite", 10),
    ]
    assert (made[3].message, made[3].properties, made[2].message) == ("first", {"job": "j"}, None)
    assert made[0].bytes > made[3].bytes > 0
    assert made[0].timestamp_ms >= made[3].timestamp_ms > 1_600_000_000_000


def test_one_that_is_gone_is_left_out(place: Path) -> None:
    assert [each.version for each in version_records.read_versions(TableRef(str(place)), [9, 2])] == [2]


def test_tags_and_branches(place: Path) -> None:
    refs = version_records.read_refs(TableRef(str(place)))
    assert (dict(refs.tags), dict(refs.branches)) == ({"two": (None, 2)}, {"side": (None, 2)})


def test_layout(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = version_records.read_layout(TableRef(str(place)))
    assert [(each.id, each.rows, each.deleted, each.files) for each in told.fragments] == [(0, 9, 1, 1), (1, 9, 1, 1)]
    assert (told.count, told.rows, told.deleted) == (2, 18, 2)
    assert [name for name, _ in told.columns] == ["id", "text"]
    assert all(size > 0 for _, size in told.columns)
    monkeypatch.setattr(version_records, "MAX_LISTED", 1)
    monkeypatch.setattr(version_records, "MAX_MEASURED", 1)
    cut = version_records.read_layout(TableRef(str(place)))
    assert (len(cut.fragments), cut.count, cut.columns) == (1, 2, [])


def test_summary(place: Path) -> None:
    told = version_records.read_summary(TableRef(str(place)))
    assert (told.version, told.rows, told.fragments, told.deleted, told.indices) == (4, 18, 2, 2, 1)
    assert version_records.read_summary(TableRef(str(place), version=1)).rows == 10
