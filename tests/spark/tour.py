"""All that a `LanceCatalog` does, on whatever session; drivers import this."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import yaml
from lance_namespace.errors import (
    InvalidInputError,
    TableAlreadyExistsError,
    TableColumnNotFoundError,
    TableNotFoundError,
    TableSchemaValidationError,
)
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from lancehouse.identifiers import format_levels
from lancehouse.pipelines import load
from lancehouse.spark import LanceCatalog

MANY = 4000
STARTS = 6
"""How often a streaming query is started at most."""
START_S = 10
"""How long Spark waits for a process of Python that a streaming query needs."""
TOO_BUSY = "Spark gives a process of Python 10 s to start, and this machine is too busy for that"
ROWS = ("id", "concat('n', id) AS name", "id % 7 AS kind", "transform(sequence(1, 8), i -> float(sin(id * i))) AS emb")


def tour(spark: SparkSession, properties: dict[str, str], levels: list[str], folder: str, is_full: bool) -> bool:
    """Read, write and maintain tables of a catalog, and at full size stream them; what each gives is looked at.

    False: the machine is too busy for streams, all else was as it should be.
    """
    cat = LanceCatalog(spark, "iceberg", properties)
    docs, trips, copy = [*levels, "docs"], [*levels, "trips"], [*levels, "copy"]
    _write(cat, spark, docs)
    _change(cat, spark, docs)
    _maintain(cat, docs)
    _query(cat, spark, docs)
    _ingest(cat, trips, Path(folder))
    _run_pipeline(spark, cat, [*levels, "piped"], properties, Path(folder))
    _run_statements(cat, levels)
    _refer_to_blobs(spark, cat, levels)
    _check_refusals(spark, cat, docs)
    assert sorted(cat.register_views(levels)) == ["docs", "piped", "trips"]
    [[count]] = spark.sql("SELECT count(*) FROM docs JOIN trips USING (id)").collect()
    assert count == 496  # all trips but those of two rows that were deleted
    if is_full:  # Spark starts new processes for each `format("lance")`, which takes its time on few cores
        _use_format(spark, cat, copy, {"impl": "iceberg", "table": format_levels(copy), **properties})
        return _stream(spark, cat, docs, copy, properties, folder)
    return True


def _write(cat: LanceCatalog, spark: SparkSession, docs: list[str]) -> None:
    rows = spark.range(0, MANY, 1, 4).selectExpr(*ROWS)
    assert cat.create(rows, docs, vector_columns={"emb": 8}) == 1
    assert cat.count(docs) == MANY
    assert cat.overwrite(rows, docs) == 2
    assert cat.append(spark.range(MANY, MANY + 100, 1, 2).selectExpr(*ROWS), docs, run="once") == 3
    assert cat.append(spark.range(MANY, MANY + 100, 1, 2).selectExpr(*ROWS), docs, run="once") == 3
    read = cat.read(docs, columns=["id", "name"], filter="id >= 3998", limit=50)
    assert read.where("id >= 3998").count() == 50
    assert read.count() == 50
    small = cat.aggregate(docs, "kind", sum="id", count="*").collect()
    cat.driver_bytes = 0  # from here on, tasks answer
    groups = cat.aggregate(docs, "kind", sum="id", count="*").collect()
    assert sorted(map(repr, groups)) == sorted(map(repr, small))
    assert sum(group["count"] for group in groups) == cat.count(docs) == MANY + 100
    assert sum(group.id_sum for group in groups) == sum(range(MANY + 100))


def _change(cat: LanceCatalog, spark: SparkSession, docs: list[str]) -> None:
    source = spark.range(3000, 4200, 1, 2).selectExpr("id", "'merged' AS name", *ROWS[2:])
    merged = cat.merge(source, docs, on="id")
    assert (merged.inserted, merged.updated, merged.deleted) == (100, 1100, 0)
    assert cat.delete(docs, "id >= 4100 OR id IN (7, 8)").deleted == 102
    assert cat.update(docs, {"name": "upper(name)"}, "name = 'merged' AND id < 3010").updated == 10
    cat.add_columns(docs, {"twice": "id * 2"})
    cat.add_columns(
        docs, {"length": lambda batch: pc.call_function("utf8_length", [batch["name"]])}, read_columns=["name"]
    )
    [row] = cat.read(docs, filter="id = 3001").collect()
    assert (row.name, row.twice, row.length, len(row.emb)) == ("MERGED", 6002, 6, 8)
    assert cat.count(docs, "name = 'merged'") == 1090
    assert cat.count(docs) == MANY + 98
    assert [row.operation for row in cat.history(docs).collect()][-1] == "Overwrite"


def _maintain(cat: LanceCatalog, docs: list[str]) -> None:
    assert cat.create_index(docs, "id", "BTREE").segments == 2
    assert cat.create_index(docs, "emb", "IVF_PQ", num_partitions=4, num_sub_vectors=2, max_iters=4).segments == 2
    assert cat.compact(docs).fragments_removed > 0
    [vector] = cat.read(docs, columns=["emb"], filter="id = 711").collect()
    found = cat.search(docs, vector.emb, k=30, columns=["id"], filter="id < 2000").collect()
    assert 711 in {row.id for row in found}
    assert [row._distance for row in found] == sorted(row._distance for row in found)
    rows = cat.read(docs, columns=["id", "emb"], filter="id IN (711, 712)")
    queries = rows.selectExpr("id AS query_id", "emb AS vector")
    near = cat.search(docs, queries, k=2, columns=["id"], filter="id < 2000").collect()
    assert sorted((row.query_id, row["rank"]) for row in near) == [(711, 1), (711, 2), (712, 1), (712, 2)]
    assert all(row._distance == 0 for row in near if row["rank"] == 1)
    cat.optimize_indices(docs)
    assert cat.count(docs, "id BETWEEN 10 AND 19") == 10
    assert cat.cleanup(docs, dry_run=True).versions == 0
    assert cat.remove_orphans(docs, dry_run=True).files == 0


def _query(cat: LanceCatalog, spark: SparkSession, docs: list[str]) -> None:
    spark.range(3000, 3003).createOrReplaceTempView("wanted")
    cat.use(docs[:-1])
    text = "SELECT d.name, '{}' AS braces FROM docs d JOIN wanted USING (id) WHERE d.id > :least"
    frame, counted = cat.sql(text, {"least": 3000}), cat.sql("SELECT count(*), max(kind) FROM docs VERSION AS OF 1")
    named = cat.sql(f"SELECT name FROM {format_levels(docs)} WHERE id = ?", [3001])
    assert sorted(map(tuple, frame.collect())) == [("MERGED", "{}"), ("MERGED", "{}")]
    assert [tuple(row) for row in counted.collect()] == [(MANY, 6)]
    assert [tuple(row) for row in named.collect()] == [("MERGED",)]
    assert "id_idx" in cat.explain("SELECT name FROM docs WHERE id = 5")
    spark.catalog.dropTempView("wanted")  # on Spark Connect a result looks for its views when it is read


def _ingest(cat: LanceCatalog, trips: list[str], folder: Path) -> None:
    source = folder / "source"
    source.mkdir()
    for number in range(4):
        ids = pa.array(range(number * 100, number * 100 + 100), pa.int64())
        pq.write_table(pa.table({"id": ids, "fare": ids.cast(pa.decimal128(21, 2))}), source / f"{number}.parquet")
    assert cat.ingest(str(source), trips) == 1
    assert cat.ingest(str(source / "0.parquet"), trips, mode="append") == 2
    assert cat.count(trips) == 500


def _use_format(spark: SparkSession, cat: LanceCatalog, copy: list[str], options: Mapping[str, str]) -> None:
    rows = spark.range(0, 100, 1, 2).selectExpr(*ROWS)
    for mode in ("append", "overwrite"):
        rows.write.format("lance").options(**options, vectorColumns="emb:8").mode(mode).save()
    assert cat.count(copy) == 100
    read = spark.read.format("lance").options(**options, columns="id", filter="id < 10").load()
    assert sorted(row.id for row in read.union(read).where("id < 5").collect()) == sorted([*range(5)] * 2)


def finish_stream(start: Callable[[], Any]) -> bool:
    """Run a streaming query to its end, and start it again if Spark has not waited for its Python.

    Spark waits ten seconds for each process of Python that such a query needs, and a busy machine takes longer.

    Returns:
        Whether it ran. If it never did, though the same process starts quickly without Spark, that is an error.
    """
    for left in reversed(range(STARTS)):
        try:
            query = start()
            assert query.awaitTermination(240)
        except PySparkException as error:
            if "failed to connect back" not in str(error) or (not left and time_start_s() < START_S / 3):
                raise
        else:
            assert query.exception() is None
            return True
    return False


def time_start_s() -> float:
    """How long a process takes to import what Spark's streaming queries run in Python."""
    begun = time.monotonic()
    subprocess.run([sys.executable, "-c", "import pyspark.sql.streaming.python_streaming_source_runner"], check=True)
    return time.monotonic() - begun


def _stream(
    spark: SparkSession,
    cat: LanceCatalog,
    docs: list[str],
    copy: list[str],
    properties: Mapping[str, str],
    folder: str,
) -> bool:
    """What comes to one table goes to another, each row once; False: the machine is too busy for streams."""
    named = {"impl": "iceberg", **properties}
    source = spark.readStream.format("lance").options(
        **named, table=format_levels(docs), columns="id,name,kind,emb", filter="id < 50", startingVersion="1"
    )
    for _ in range(2):
        sink = (
            source.load()
            .writeStream.format("lance")
            .options(**named, table=format_levels(copy), checkpointLocation=f"{folder}/checkpoint")
        )
        if not finish_stream(sink.trigger(availableNow=True).start):
            return False
        assert cat.count(copy) == 200  # created with 50 such rows, and overwritten with them
    return True


def _run_pipeline(
    spark: SparkSession, cat: LanceCatalog, piped: list[str], properties: dict[str, str], folder: Path
) -> None:
    """A pipeline whose function lies beside its file; in Arrow alone, and through Spark's SQL."""
    (folder / "doubling.py").write_text("import pyarrow.compute as pc\ndef twice(ids):\n    return pc.add(ids, ids)\n")
    steps = [{"embed": {"function": "doubling:twice", "from": "id", "into": "twice"}}]
    document = {
        "name": "piped",
        "catalog": {"impl": "iceberg", "properties": properties},
        "source": {"files": "source/*.parquet"},
        "steps": steps,
        "sink": {"table": format_levels(piped), "mode": "merge", "on": "id"},
        "indices": [{"column": "id", "kind": "BTREE"}],
        "expect": {"rows": 400, "unique": ["id"], "where": ["twice = id * 2"]},
        "publish": {"tag": "checked"},
    }
    for number, more in enumerate(([], [{"sql": "SELECT * FROM input WHERE id < 50"}])):
        file = folder / f"piped{number}.yml"
        file.write_text(yaml.safe_dump({**document, "steps": [*steps, *more]}))
        report = load(file).run(spark, run=f"piped{number}")
        assert report.has_passed, report.failures
    assert cat.count(piped, "twice = id * 2") == 400
    assert cat.read(piped, tag="checked").count() == 400


def _refer_to_blobs(spark: SparkSession, cat: LanceCatalog, levels: list[str]) -> None:
    """Blobs that stay where they are while their references are joined, until tasks read or write them."""
    images, copy = [*levels, "images"], [*levels, "image_copy"]
    cat.use(levels)
    cat.sql("CREATE TABLE images (id BIGINT, image BINARY) TBLPROPERTIES ('image.lance.encoding' = 'blob')")
    cat.append(spark.range(20).selectExpr("id", "encode(repeat(id, 50000), 'UTF-8') AS image"), images)
    joined = spark.range(5, 30).join(cat.read(images, blobs="reference"), "id")
    assert joined.selectExpr("sum(image.size)").first()[0] == 50000 * 5 + 100000 * 10
    read = {row.id: bytes(row.image) for row in cat.read_blobs(joined, "image").collect()}
    assert read == {number: str(number).encode() * 50000 for number in range(5, 20)}
    cat.create(joined, copy)
    assert {row.id: bytes(row.image) for row in cat.read(copy).collect()} == read
    cat.drop(images)
    cat.drop(copy)


def _run_statements(cat: LanceCatalog, levels: list[str]) -> None:
    """Changes in SQL, whose expressions Spark evaluates."""
    cat.use(levels)
    cat.sql("CREATE TABLE stated (id BIGINT, name STRING, emb ARRAY<FLOAT>)")
    assert cat.sql("INSERT INTO stated SELECT id, 'a', NULL FROM range(?)", [6]).first()[0] == 6
    done = cat.sql(
        "UPDATE stated SET name = concat(name, id) WHERE id IN (SELECT kind FROM docs WHERE id < :n)", {"n": 3}
    )
    assert done.first()[0] == 3
    merged = cat.sql(
        "MERGE INTO stated t USING (SELECT id + 4 AS id FROM docs WHERE id < 3) s ON t.id = s.id "
        "WHEN MATCHED AND s.id > 4 THEN DELETE WHEN MATCHED THEN UPDATE SET name = 'm' "
        "WHEN NOT MATCHED THEN INSERT (id, name) VALUES (id, 'new') WHEN NOT MATCHED BY SOURCE AND id = 0 THEN DELETE"
    )
    assert list(merged.first()) == [4, 1, 2, 1]
    with pytest.raises(InvalidInputError, match="nothing"):
        cat.sql("DELETE FROM stated WHERE nothing > 1")
    assert cat.sql("DELETE FROM stated WHERE length(name) = 3").first()[0] == 1
    rows = [tuple(row) for row in cat.sql("SELECT id, name FROM stated ORDER BY id").collect()]
    assert rows == [(1, "a1"), (2, "a2"), (3, "a"), (4, "m")]
    assert "stated" in [row.tableName for row in cat.sql("SHOW TABLES").collect()]
    cat.sql("DROP TABLE stated")


def _check_refusals(spark: SparkSession, cat: LanceCatalog, docs: list[str]) -> None:
    """One sentence, of the right kind, whether the driver finds out or a task."""
    rows = spark.range(2).selectExpr(*ROWS)
    with pytest.raises(TableAlreadyExistsError):
        cat.create(rows, docs)
    with pytest.raises(TableNotFoundError):
        cat.append(rows, [*docs[:-1], "nope"])
    with pytest.raises(TableColumnNotFoundError, match="nope"):
        cat.read(docs, columns=["nope"])
    with pytest.raises(TableSchemaValidationError, match="more"):
        cat.append(rows.selectExpr("*", "1 AS more"), docs)
    with pytest.raises(InvalidInputError, match="emb"):
        cat.append(rows.selectExpr("id", "name", "kind", "slice(emb, 1, 3) AS emb", "id AS twice", "1 AS length"), docs)
    with pytest.raises(InvalidInputError, match="the same key"):
        cat.merge(rows.union(rows).selectExpr("*", "id AS twice", "1 AS length"), docs, on="id")


def executors(spark: SparkSession) -> int:
    """How many executors have work at the same time."""

    def parents(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            pass
        time.sleep(1)
        yield pa.record_batch({"pid": pa.array([os.getppid()], pa.int64())})

    found: Any = spark.range(0, 2, 1, 2).mapInArrow(parents, "pid long").distinct().count()
    return int(found)


def is_remote(spark: SparkSession) -> bool:
    """Whether the session is one of Spark Connect."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def app(spark: SparkSession) -> str:
    """What the cluster calls the session."""
    return str(spark.sparkContext.applicationId)
