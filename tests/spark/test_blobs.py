"""Blobs as references: through joins, files and caches, read by tasks, and written to other tables."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance_namespace.errors import (
    InvalidInputError,
    TableColumnNotFoundError,
    TableSchemaValidationError,
    TableVersionNotFoundError,
)

from lancehouse.lake import scans
from lancehouse.spark import LanceCatalog
from lancehouse.spark.engine import translate_task_errors

BLOBS = [b"first", None, b"", b"x" * 100_000, b"y" * 300_000, b"deleted", b"last"]
"""Kept in the data file, packed with others; null, empty, and of a row that is deleted."""
OLD: pa.Field[Any] = pa.field("image", pa.large_binary(), metadata={"lance-encoding:blob": "true"})


def write(path: Path, blobs: list[bytes | None], **how: Any) -> lance.LanceDataset:
    rows = pa.table({"id": range(len(blobs)), "image": pa.array(blobs, pa.large_binary())})
    schema = pa.schema([pa.field("id", pa.int64()), OLD])
    dataset = lance.write_dataset(rows.cast(schema), path, max_rows_per_file=3, enable_stable_row_ids=True, **how)
    dataset.delete("id = 5")
    return lance.dataset(path)


@pytest.fixture
def catalog(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LanceCatalog:
    monkeypatch.setattr(scans, "MIN_TASK_ROWS", 1)
    return LanceCatalog(spark, "dir", {"root": str(tmp_path)})


@pytest.fixture
def table(tmp_path: Path) -> lance.LanceDataset:
    return write(tmp_path / "t.lance", BLOBS)


EXPECTED = {number: blob for number, blob in enumerate(BLOBS) if number != 5}


def contents(frame: Any, column: str = "image") -> dict[int, bytes | None]:
    return {row["id"]: None if row[column] is None else bytes(row[column]) for row in frame.collect()}


def test_references_pass_through_joins_and_files(
    catalog: LanceCatalog, table: lance.LanceDataset, tmp_path: Path
) -> None:
    frame = catalog.read("t", blobs="reference")
    assert contents(catalog.read("t")) == contents(catalog.read("t", blobs="bytes")) == EXPECTED
    found = {row.id: row.image for row in frame.collect()}
    assert found[1] is None
    sizes = {number: value.size for number, value in found.items() if value}
    assert sizes == {number: len(blob) for number, blob in EXPECTED.items() if blob is not None}
    assert (found[3].table, found[3].branch, found[3].version) == ("t", None, table.version)

    twice = catalog.spark.range(7).selectExpr("id", "id % 2 AS kind").join(frame, "id").repartition(3, "kind")
    twice.write.parquet(str(tmp_path / "files"))
    again = catalog.spark.read.parquet(str(tmp_path / "files"))
    assert contents(catalog.read_blobs(again, "image")) == EXPECTED
    both = catalog.read_blobs(again.withColumn("copy", again.image), ["copy", "image"])
    assert both.columns == ["id", "kind", "image", "copy"]
    assert contents(both, "copy") == contents(both) == EXPECTED


def test_files_in_a_function_of_the_user(catalog: LanceCatalog, table: lance.LanceDataset) -> None:
    blobs = catalog.blob_reader()

    def head(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            files = [blobs.open(each) for each in batch.column(1)]
            heads = [None if file is None else file.read_range(0, min(2, file.size())) for file in files]
            yield pa.RecordBatch.from_arrays([batch.column(0), pa.array(heads, pa.binary())], names=["id", "image"])

    frame = catalog.read("t", columns=["id", "image"], blobs="reference")
    found = contents(frame.mapInArrow(head, "id long, image binary"))
    assert found == {number: None if blob is None else blob[:2] for number, blob in EXPECTED.items()}
    file = blobs.open(frame.where("id = 4").first().image)
    assert file is not None
    file.seek(-3, 2)
    assert file.read() == b"yyy"


def test_writes_store_the_bytes(catalog: LanceCatalog, table: lance.LanceDataset, tmp_path: Path) -> None:
    frame = catalog.read("t", blobs="reference")
    write(tmp_path / "old.lance", [b"own"], data_storage_version="2.1")
    write(tmp_path / "new.lance", [b"own"])
    shifted = frame.selectExpr("id + 10 AS id", "image")
    expected = {0: b"own"} | {number + 10: blob for number, blob in EXPECTED.items()}
    for name in ("old", "new"):
        catalog.append(shifted, name)
        assert contents(catalog.read(name)) == expected
    catalog.merge(frame.selectExpr("id + 11 AS id", "image"), "new", on="id")
    merged = {number + 11: blob for number, blob in EXPECTED.items()}
    assert contents(catalog.read("new")) == expected | merged
    assert catalog.create(frame, "made") == 1
    assert contents(catalog.read("made")) == EXPECTED
    assert lance.dataset(tmp_path / "made.lance").schema.field("image").type.extension_name == "lance.blob.v2"
    catalog.overwrite(frame.where("id < 3"), "old")
    assert contents(catalog.read("old")) == {0: b"first", 1: None, 2: b""}
    frame.where("id = 6").write.format("lance").mode("append").options(
        impl="dir", root=str(tmp_path), table="made"
    ).save()
    assert contents(catalog.read("made", filter="id = 6")) == {6: b"last"}
    assert catalog.read("made").count() == 7

    frame.write.parquet(str(tmp_path / "files"))
    catalog.ingest(str(tmp_path / "files/*.parquet"), "new", mode="overwrite")
    assert contents(catalog.read("new")) == EXPECTED
    with pytest.raises(TableSchemaValidationError, match="id is struct<table:string"):
        catalog.append(frame.selectExpr("image AS id"), "made")


def test_the_data_source_and_sql(catalog: LanceCatalog, table: lance.LanceDataset, tmp_path: Path) -> None:
    options = {"impl": "dir", "root": str(tmp_path), "table": "t"}
    frame = catalog.spark.read.format("lance").options(**options, blobs="reference").load()
    assert contents(catalog.read_blobs(frame, "image")) == EXPECTED
    with pytest.raises(Exception, match="the option blobs, 'files', is not what it has to be: bytes or reference"):
        catalog.spark.read.format("lance").options(**options, blobs="files").load()
    with pytest.raises(Exception, match="is named by its location"):
        catalog.spark.read.format("lance").option("blobs", "reference").load(str(tmp_path / "t.lance"))
    rows = catalog.sql("SELECT id, image, image.size AS n FROM t WHERE id > 2", blobs="reference")
    assert {row.id: row.n for row in rows.collect()} == {3: 100_000, 4: 300_000, 6: 4}
    assert contents(catalog.read_blobs(rows, "image")) == {3: BLOBS[3], 4: BLOBS[4], 6: BLOBS[6]}
    catalog.sql("CREATE TABLE made AS SELECT * FROM t", blobs="reference")
    catalog.sql("INSERT INTO made SELECT id + 10, image FROM t WHERE id = 3", blobs="reference")
    catalog.sql(
        "MERGE INTO made USING t ON made.id = t.id + 1 WHEN MATCHED THEN UPDATE SET image = t.image",
        blobs="reference",
    )
    made = {0: b"first", 1: b"first", 2: None, 3: b"", 4: BLOBS[3], 6: b"last", 13: BLOBS[3]}
    assert contents(catalog.read("made")) == made


def test_versions_and_tables_that_are_gone(catalog: LanceCatalog, table: lance.LanceDataset, tmp_path: Path) -> None:
    frame = catalog.read("t", blobs="reference").cache()
    assert frame.count() == 6
    table.delete("id = 4")
    assert contents(catalog.read_blobs(frame, "image")) == EXPECTED
    table.insert(pa.table({"id": [9], "image": [None]}, schema=table.schema), mode="overwrite")
    lance.dataset(table.uri).cleanup_old_versions(retain_versions=1)
    with pytest.raises(TableVersionNotFoundError, match="a tag keeps a version"), translate_task_errors():
        catalog.read_blobs(frame, "image").collect()
    with pytest.raises(TableVersionNotFoundError, match="a tag keeps a version"):
        catalog.append(frame, "t")
    assert len(catalog.read("t").collect()) == 1
    frame.unpersist()


def test_columns_that_have_none(catalog: LanceCatalog, table: lance.LanceDataset) -> None:
    frame = catalog.read("t", blobs="reference")
    with pytest.raises(InvalidInputError, match="column id is bigint, and has no references to blobs"):
        catalog.read_blobs(frame, "id")
    with pytest.raises(TableColumnNotFoundError, match="the DataFrame has no column gone; it has id, image"):
        catalog.read_blobs(frame, "gone")
    with pytest.raises(InvalidInputError, match="this is no reference to a blob"):
        catalog.blob_reader().open({"table": "t"})
    assert "image" not in catalog.read("t", columns="id", blobs="reference").columns
