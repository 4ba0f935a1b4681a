"""Columns that evolve with the rows of DataFrames, sources and streams; the verbs that Spark's own types concern."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lance
import pytest
from lance_namespace.errors import TableSchemaValidationError

from lancehouse.spark import LanceCatalog


@pytest.fixture
def catalog(spark: Any, tmp_path: Path) -> LanceCatalog:
    return LanceCatalog(spark, "dir", {"root": str(tmp_path)})


def rows_of(catalog: LanceCatalog) -> list[dict[str, Any]]:
    return [row.asDict(recursive=True) for row in catalog.read("t").orderBy("id").collect()]


OLD = "CAST(1 AS int) AS id, 'a' AS word, named_struct('x', CAST(1 AS int)) AS s, array(1f, 2f) AS emb"
NEW = "CAST(2 AS bigint) AS id, named_struct('x', 2L, 'y', 'new') AS s, array(1d, 2d) AS emb, array(3f) AS v, 7 AS n"


def test_dataframes(catalog: LanceCatalog, spark: Any) -> None:
    catalog.create(spark.sql(f"SELECT {OLD}"), "t", vector_columns={"emb": 2})
    new = spark.sql(f"SELECT {NEW}")
    with pytest.raises(TableSchemaValidationError, match="column n is not in the table"):
        catalog.append(new, "t")
    assert catalog.append(new, "t", schema_mode="evolve", vector_columns={"v": 1}, run="r") == 4
    assert catalog.append(new, "t", schema_mode="evolve", vector_columns={"v": 1}, run="r") == 4
    more = "3L AS id, 'c' AS word, named_struct('x', 3L, 'y', 'c') AS s, array(0f, 0f) AS emb, array(1f) AS v, 9L AS n"
    catalog.merge(spark.sql(f"SELECT {more}, 1 AS late"), "t", on="id", latest_by="late", schema_mode="evolve")
    assert rows_of(catalog) == [
        {"id": 1, "word": "a", "s": {"x": 1, "y": None}, "emb": [1.0, 2.0], "v": None, "n": None},
        {"id": 2, "word": None, "s": {"x": 2, "y": "new"}, "emb": [1.0, 2.0], "v": [3.0], "n": 7},
        {"id": 3, "word": "c", "s": {"x": 3, "y": "c"}, "emb": [0.0, 0.0], "v": [1.0], "n": 9},
    ]
    struct = "struct<id:bigint,word:string,s:struct<x:bigint,y:string>,emb:array<float>,v:array<float>,n:bigint>"
    assert catalog.schema("t").simpleString() == struct, "vectors of floats stay"
    version = catalog.history("t").first()["version"]
    for wrong, says in [
        ("'text' AS id, 1 AS other", "column id is int64 and cannot hold string"),
        ("1 AS ID", "column ID differs from id by case alone"),
        ("4L AS id, NULL AS other", "column other has the type null"),
        ("array(4L) AS id, 1 AS other", "column id is array<bigint> and cannot become int64"),
    ]:
        with pytest.raises(TableSchemaValidationError, match=says):
            catalog.append(spark.sql(f"SELECT {wrong}"), "t", schema_mode="evolve")
    assert catalog.history("t").first()["version"] == version, "nothing was changed"


def test_the_data_source_and_its_streams(catalog: LanceCatalog, spark: Any, tmp_path: Path) -> None:
    catalog.create(spark.sql("SELECT 1 AS id"), "t")
    into = {"impl": "dir", "root": str(tmp_path), "table": "t"}
    frame = spark.sql("SELECT 2L AS id, 2 AS n").write.format("lance").options(**into, mergeSchema="true")
    frame.mode("append").save()
    spark.sql("SELECT 3L AS id, 3 AS n, 'x' AS w").write.mode("append").json(str(tmp_path / "in"))
    stream = spark.readStream.schema("id bigint, n int, w string").json(str(tmp_path / "in"))
    sink = stream.writeStream.format("lance").options(**into, mergeSchema="true")
    sink.option("checkpointLocation", str(tmp_path / "check")).trigger(availableNow=True).start().awaitTermination()
    assert rows_of(catalog) == [
        {"id": 1, "n": None, "w": None},
        {"id": 2, "n": 2, "w": None},
        {"id": 3, "n": 3, "w": "x"},
    ]


def test_a_catalog_by_its_name(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "catalogs.yaml"
    file.write_text(f"catalogs: {{prod: {{impl: dir, parent: db, root: {tmp_path / 'root'}}}}}\n")
    monkeypatch.setenv("LANCEHOUSE_CONFIG", str(file))
    LanceCatalog(spark, "dir", {"root": str(tmp_path / "root")}).create_namespace("db")
    catalog = LanceCatalog.named(spark, "prod")
    struct = spark.sql("SELECT 1L AS id, 'a' AS word").schema
    catalog.create_table("docs", struct)
    catalog.append(spark.sql("SELECT 1L AS id, 'a' AS word"), "docs")
    assert catalog.tables() == ["docs"]
    assert catalog.schema("docs").names == ["id", "word"]
    assert catalog.register_views("", prefix="named_") == ["named_docs"]
    assert spark.sql("SELECT word FROM named_docs").collect() == [("a",)]
    spark.catalog.dropTempView("named_docs")
    assert len(lance.dataset(str(next((tmp_path / "root").glob("*db$docs*")))).schema) == 2
