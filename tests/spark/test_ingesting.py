from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import patch

import lance
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lance_namespace.errors import (
    InvalidInputError,
    LanceNamespaceError,
    TableAlreadyExistsError,
    TableSchemaValidationError,
)

from lancehouse.lake.progress import Progress
from lancehouse.spark import LanceCatalog
from lancehouse.spark.sources import units


@pytest.fixture
def catalog(spark: Any, tmp_path: Path) -> LanceCatalog:
    return LanceCatalog(spark, "dir", {"root": str(tmp_path / "tables")})


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Four files, each a unit of its own."""
    monkeypatch.setattr(units, "LEAST_BYTES", 64)
    made = tmp_path / "files"
    made.mkdir()
    for number in range(4):
        ids = pa.array(range(number * 100, number * 100 + 100), pa.int64())
        pq.write_table(pa.table({"id": ids, "price": ids.cast(pa.decimal128(21, 2))}), made / f"{number}.parquet")
    (made / "_SUCCESS").touch()
    return made


def ids(tmp_path: Path, name: str = "t") -> list[Any]:
    return sorted(lance.dataset(tmp_path / "tables" / f"{name}.lance").to_table()["id"].to_pylist())


def left_over(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "tables").rglob("_lancehouse/**/*.json"))


def test_a_folder_becomes_a_table(catalog: LanceCatalog, folder: Path, tmp_path: Path) -> None:
    assert catalog.ingest(folder, "t") == 1
    assert ids(tmp_path) == list(range(400))
    assert catalog.ingest(folder / "0.parquet", "t", columns=["id"]) == 2
    assert len(ids(tmp_path)) == 500
    assert catalog.ingest([folder / "1.parquet", folder / "2.parquet"], "t", mode="overwrite") == 3
    assert ids(tmp_path) == list(range(100, 300))
    assert left_over(tmp_path) == []


def test_the_same_files_are_added_again_if_that_is_wanted(catalog: LanceCatalog, folder: Path, tmp_path: Path) -> None:
    file = folder / "0.parquet"
    catalog.ingest(file, "t", run="monday")
    catalog.ingest(file, "t", run="monday")
    assert len(ids(tmp_path)) == 100
    catalog.ingest(file, "t")
    assert len(ids(tmp_path)) == 200


def test_after_a_failure_it_goes_on_where_it_was(catalog: LanceCatalog, folder: Path, tmp_path: Path) -> None:
    """The broken file is mended meanwhile; what was written of the others is not written again."""
    good = (folder / "3.parquet").read_bytes()
    (folder / "3.parquet").write_bytes(good[:4] + bytes(36) + good[40:])
    with pytest.raises(LanceNamespaceError, match=r"3\.parquet"):
        catalog.ingest(folder, "t")
    data = tmp_path / "tables" / "t.lance" / "data"
    noted = len(left_over(tmp_path)) - 1
    done = {path.name: path.stat().st_mtime_ns for path in data.iterdir()}
    (folder / "3.parquet").write_bytes(good)
    catalog.ingest(folder, "t")
    assert ids(tmp_path) == list(range(400))
    now = {path.name: path.stat().st_mtime_ns for path in data.iterdir()}
    assert len(done.items() & now.items()) >= noted > 0
    assert left_over(tmp_path) == []


def test_who_died_after_the_commit_adds_nothing_twice(catalog: LanceCatalog, folder: Path, tmp_path: Path) -> None:
    catalog.ingest(folder / "0.parquet", "t")

    def dies(_: Progress) -> None:
        raise KeyboardInterrupt

    with patch.object(Progress, "clear", dies), pytest.raises(KeyboardInterrupt):
        catalog.ingest(folder / "1.parquet", "t")
    assert catalog.ingest(folder / "1.parquet", "t") == 2
    assert ids(tmp_path) == list(range(200))
    assert left_over(tmp_path) == []


def test_who_died_after_the_commit_and_has_other_files_now(catalog: LanceCatalog, folder: Path, tmp_path: Path) -> None:
    def dies(_: Progress) -> None:
        raise KeyboardInterrupt

    with patch.object(Progress, "clear", dies), pytest.raises(KeyboardInterrupt):
        catalog.ingest(folder, "t")
    (folder / "3.parquet").unlink()
    assert catalog.ingest(folder, "t") == 2
    assert ids(tmp_path) == sorted([*range(400), *range(300)])


def test_a_commit_that_is_refused_leaves_nothing(catalog: LanceCatalog, folder: Path, tmp_path: Path) -> None:
    catalog.ingest(folder / "0.parquet", "t")
    place = tmp_path / "tables" / "t.lance"
    put = Progress.put

    def and_then_somebody_appends(self: Progress, key: str, value: Any) -> None:
        put(self, key, value)
        lance.write_dataset(lance.dataset(place).to_table(limit=1), place, mode="append")

    before = set((place / "data").iterdir())
    with patch.object(Progress, "put", and_then_somebody_appends), pytest.raises(LanceNamespaceError) as refused:
        catalog.ingest(folder / "1.parquet", "t", mode="overwrite")
    assert refused.value.code.value == 14
    assert len(set((place / "data").iterdir()) - before) == 1
    assert len(ids(tmp_path)) == 101


@pytest.mark.parametrize(
    ("ask", "error", "says"),
    [
        (lambda it, at: it.ingest(at, "t", mode="upsert"), InvalidInputError, "upsert"),
        (lambda it, at: it.ingest(at / "nope.parquet", "t"), LanceNamespaceError, "nope"),
        (lambda it, at: it.ingest(at, "t", columns=["nope"]), LanceNamespaceError, "nope"),
        (lambda it, at: it.ingest(at, "there", mode="create"), TableAlreadyExistsError, "exists"),
        (lambda it, at: it.ingest(at, "there"), TableSchemaValidationError, "has no column price"),
    ],
)
def test_what_is_wrong_is_said_at_once(
    catalog: LanceCatalog, folder: Path, tmp_path: Path, ask: Any, error: type[Exception], says: str
) -> None:
    lance.write_dataset(pa.table({"id": [1]}), tmp_path / "tables" / "there.lance")
    with pytest.raises(error, match=says):
        ask(catalog, folder)
    assert not (tmp_path / "tables" / "t.lance").exists()
