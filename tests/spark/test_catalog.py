"""`LanceCatalog` on a folder of tables, by the built-in namespace `dir`."""

from __future__ import annotations

import json
import math
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from shutil import rmtree
from typing import Any
from unittest.mock import patch

import lance
import numpy as np
import pyarrow as pa
import pytest
from lance_namespace.errors import (
    ConcurrentModificationError,
    InvalidInputError,
    LanceNamespaceError,
    TableAlreadyExistsError,
    TableColumnNotFoundError,
    TableNotFoundError,
    TableSchemaValidationError,
    TableVersionNotFoundError,
)
from pyspark.errors import PySparkException
from pyspark.sql import functions

from bench.recall import RecallCase
from lancehouse.jobs import fingerprints
from lancehouse.jobs.address import TableAddress
from lancehouse.jobs.job import undo_declaration
from lancehouse.lake import commits, scans
from lancehouse.spark import LanceCatalog, engine, table_writer
from lancehouse.spark.engine import collect_results
from tests.spark.conftest import failing

ROWS = 1000


@pytest.fixture
def catalog(spark: Any, tmp_path: Path) -> LanceCatalog:
    """Asks tasks, though the driver could answer small questions."""
    catalog = LanceCatalog(spark, "dir", {"root": str(tmp_path)})
    catalog.driver_bytes = 0
    return catalog


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> lance.LanceDataset:
    """Several fragments, some rows deleted, read by several tasks though there are few rows."""
    monkeypatch.setattr(scans, "MIN_TASK_ROWS", 1)
    numbers = np.random.default_rng(7).normal(size=ROWS * 4).astype("f4")
    rows = pa.table(
        {
            "id": pa.array(range(ROWS), pa.int64()),
            "kind": pa.array([f"k{number % 3}" for number in range(ROWS)]).dictionary_encode(),
            "price": pa.array([None if number % 10 == 0 else number / 2 for number in range(ROWS)]),
            "emb": pa.FixedSizeListArray.from_arrays(pa.array(numbers), 4),
        }
    )
    dataset = lance.write_dataset(rows, tmp_path / "t.lance", max_rows_per_file=300)
    dataset.delete("id < 10")
    return lance.dataset(tmp_path / "t.lance")


def ids(frame: Any) -> list[int]:
    return sorted(row.id for row in frame.select("id").collect())


# Reading


def test_all_rows(catalog: LanceCatalog, table: lance.LanceDataset) -> None:
    frame = catalog.read("t")
    found = frame.toArrow().sort_by("id")
    assert frame.columns == ["id", "kind", "price", "emb"]
    expected = table.to_table().sort_by("id")
    assert [found.column(name).to_pylist() for name in frame.columns] == [
        expected.column(name).to_pylist() for name in frame.columns
    ]


def test_columns_filter_limit_and_row_id(catalog: LanceCatalog, table: lance.LanceDataset) -> None:
    frame = catalog.read("t", columns=["price", "id"], filter="id >= 298 AND id < 305", with_row_id=True)
    assert frame.columns == ["price", "id", "_rowid"]
    assert ids(frame) == list(range(298, 305))
    assert catalog.read("t", limit=7).count() == 7


def test_a_frame_keeps_its_version(catalog: LanceCatalog, table: lance.LanceDataset) -> None:
    frame = catalog.read("t", columns=["id"])
    lance.write_dataset(table.to_table(limit=5), table.uri, mode="append")
    assert frame.count() == ROWS - 10
    assert catalog.read("t").count() == ROWS - 5


def test_a_frame_used_twice(catalog: LanceCatalog, table: lance.LanceDataset) -> None:
    frame = catalog.read("t", columns=["id"])
    assert frame.where("id < 100").count() == 90
    assert frame.count() == ROWS - 10
    assert frame.where("id < 20").union(frame.where("id >= 900")).count() == 110
    left, right = frame.alias("l"), frame.alias("r")
    assert left.join(right, functions.col("l.id") == functions.col("r.id")).count() == ROWS - 10


def test_versions_tags_and_times(catalog: LanceCatalog, table: lance.LanceDataset) -> None:
    table.tags.create("whole", 1)
    first = table.versions()[0]["timestamp"].astimezone(UTC)
    for moment in ({"version": 1}, {"tag": "whole"}, {"as_of": first}):
        assert catalog.count("t", **moment) == ROWS
        assert catalog.read("t", columns=["id"], **moment).count() == ROWS


def test_each_time_of_the_history_reads_its_version(catalog: LanceCatalog, table: lance.LanceDataset) -> None:
    """As a datetime and as text: the time that `history` shows is the one that `as_of` takes."""
    for version in range(3, 8):
        lance.dataset(table.uri).delete(f"id = {version * 20}")
    seen = catalog.history("t").collect()
    texts = catalog.history("t").selectExpr("version", "to_json(named_struct('at', timestamp)) AS at").collect()
    assert len(seen) == 7
    for row, text in zip(seen, texts, strict=True):
        for moment in (row.timestamp, json.loads(text["at"])["at"]):
            found = catalog.count("t", as_of=moment)
            assert found == catalog.count("t", version=row.version), (row.version, moment)


def test_counting(catalog: LanceCatalog, table: lance.LanceDataset) -> None:
    assert catalog.count("t") == ROWS - 10
    assert catalog.count("t", "kind = 'k1'") == table.count_rows("kind = 'k1'")
    assert catalog.count("t", "id < 0") == 0


def test_aggregates(catalog: LanceCatalog, table: lance.LanceDataset) -> None:
    found = catalog.aggregate(
        "t", "kind", sum=["price", "id"], min="price", max="id", mean="price", count=["*", "price"]
    ).collect()
    rows = table.to_table(columns=["id", "kind", "price"]).to_pylist()
    assert len(found) == 3
    for group in found:
        same = [row for row in rows if row["kind"] == group.kind]
        prices = [row["price"] for row in same if row["price"] is not None]
        assert group["count"] == len(same)
        assert group.price_count == len(prices)
        assert group.id_sum == sum(row["id"] for row in same)
        assert group.id_max == max(row["id"] for row in same)
        assert group.price_min == min(prices)
        assert math.isclose(group.price_sum, sum(prices))
        assert math.isclose(group.price_mean, sum(prices) / len(prices))


def test_aggregates_of_all_rows_and_of_none(catalog: LanceCatalog, table: lance.LanceDataset) -> None:
    [all_rows] = catalog.aggregate("t", sum="id", count="*").collect()
    assert (all_rows.id_sum, all_rows["count"]) == (sum(range(10, ROWS)), ROWS - 10)
    [none] = catalog.aggregate("t", filter="id < 0", sum="id", count="*").collect()
    assert (none.id_sum, none["count"]) == (None, 0)
    assert sorted(row.kind for row in catalog.aggregate("t", "kind").collect()) == ["k0", "k1", "k2"]


@pytest.mark.parametrize("indexed", [False, True])
def test_search(catalog: LanceCatalog, table: lance.LanceDataset, indexed: bool) -> None:
    if indexed:
        table.create_index("emb", "IVF_FLAT", num_partitions=1)
    vector = [0.1, 0.2, 0.3, 0.4]
    query: dict[str, Any] = {"column": "emb", "q": vector, "k": 5, "use_index": False}
    expected = table.scanner(columns=["id", "_distance"], nearest=query, filter="id > 20", prefilter=True).to_table()
    found = catalog.search("t", vector, 5, filter="id > 20", columns=["id"]).collect()
    assert [row.id for row in found] == expected.column("id").to_pylist()
    assert [row._distance for row in found] == pytest.approx(expected.column("_distance").to_pylist(), rel=1e-4)


def test_recall_of_a_search(catalog: LanceCatalog, tmp_path: Path) -> None:
    case = RecallCase(rows=10_000, clusters=20, queries=8)
    case.write(str(tmp_path / "t.lance"))

    def recall(**effort: Any) -> float:
        return case.recall(
            lambda query: [row.id for row in catalog.search("t", query, columns=["id"], **effort).collect()]
        )

    usual = recall()
    assert usual >= 0.9
    assert recall(nprobes=1, refine_factor=1) < usual - 0.1  # the index is trained on rows that are chosen at random


def test_history(catalog: LanceCatalog, table: lance.LanceDataset) -> None:
    table.tags.create("whole", 1)
    second, first = catalog.history("t").collect()
    assert (first.version, first.operation, first.rows, first.tags) == (1, "Overwrite", ROWS, ["whole"])
    assert (second.version, second.operation, second.rows, second.tags) == (2, "Delete", ROWS - 10, [])
    assert abs(second.timestamp - datetime.now()) < timedelta(days=2)


@pytest.fixture
def views(spark: Any, tmp_path: Path) -> LanceCatalog:
    """The catalog in a session of its own, which has no views yet."""
    return LanceCatalog(spark.newSession(), "dir", {"root": str(tmp_path)})


def test_views(views: LanceCatalog, table: lance.LanceDataset) -> None:
    assert views.register_views("") == ["t"]
    count = "SELECT count(*) AS n FROM t WHERE kind = 'k0'"
    assert views.spark.sql(count).first().n == table.count_rows("kind = 'k0'")
    lance.write_dataset(table.to_table(limit=5, filter="kind = 'k0'"), table.uri, mode="append")
    assert views.spark.sql(count).first().n == table.count_rows("kind = 'k0'") + 5
    assert views.register_views("") == ["t"], "its own views are made anew"


def test_views_of_others_are_not_replaced(views: LanceCatalog, table: lance.LanceDataset, tmp_path: Path) -> None:
    spark = views.spark
    spark.range(3).createOrReplaceTempView("T")
    lance.write_dataset(pa.table({"x": [1]}), tmp_path / "other.lance")
    with pytest.raises(InvalidInputError, match=r"the session has t already, .*: give a prefix .* or replace=True"):
        views.register_views("")
    assert spark.table("t").count() == 3
    assert not spark.catalog.tableExists("other"), "some views were made, though one was refused"
    assert views.register_views("", prefix="lake_") == ["lake_other", "lake_t"]
    assert views.register_views("", replace=True) == ["other", "t"]
    assert spark.table("t").count() == ROWS - 10
    spark.table("t").where("id < 100").createOrReplaceTempView("t")
    with pytest.raises(InvalidInputError, match="the session has t already"):
        views.register_views("")


def test_views_of_two_namespaces(views: LanceCatalog, table: lance.LanceDataset, tmp_path: Path) -> None:
    other = LanceCatalog(views.spark, "dir", {"root": str(tmp_path / "other")})
    lance.write_dataset(pa.table({"x": [1]}), tmp_path / "other" / "t.lance")
    assert views.register_views("") == ["t"]
    with pytest.raises(InvalidInputError, match="the session has t already"):
        other.register_views("")
    assert views.spark.table("t").columns == ["id", "kind", "price", "emb"]
    assert other.register_views("", prefix="other_") == ["other_t"]


def test_views_with_names_that_spark_takes_for_one(views: LanceCatalog, tmp_path: Path) -> None:
    for name in ("Docs", "docs"):
        lance.write_dataset(pa.table({"x": [1]}), tmp_path / f"{name}.lance")
    with pytest.raises(InvalidInputError, match="Docs and docs are one name to Spark"):
        views.register_views("")
    views.spark.conf.set("spark.sql.caseSensitive", "true")
    assert views.register_views("") == ["Docs", "docs"]


def test_a_table_of_the_session_is_not_hidden(views: LanceCatalog, table: lance.LanceDataset) -> None:
    spark = views.spark
    spark.sql("CREATE DATABASE hidden")
    try:
        spark.sql("USE hidden")
        spark.sql("CREATE TABLE t (x INT) USING parquet")
        with pytest.raises(InvalidInputError, match="the session has t already"):
            views.register_views("")
    finally:
        spark.sql("USE default")
        spark.sql("DROP DATABASE hidden CASCADE")


@pytest.mark.parametrize(
    ("ask", "error", "says"),
    [
        (lambda it: it.read("nope"), TableNotFoundError, "nope"),
        (lambda it: it.read("t", columns=["nope"]), TableColumnNotFoundError, "it has id, kind, price, emb"),
        (lambda it: it.read("t", filter="nope = 1"), TableColumnNotFoundError, "nope"),
        (lambda it: it.read("t", filter="id ="), InvalidInputError, "id ="),
        (lambda it: it.read("t", version=9), TableVersionNotFoundError, "9"),
        (lambda it: it.read("t", version=1, tag="x"), InvalidInputError, "give one of them"),
        (lambda it: it.count("t", "nope = 1"), TableColumnNotFoundError, "nope"),
        (lambda it: it.aggregate("t"), InvalidInputError, "needs group_by"),
        (lambda it: it.aggregate("t", sum="kind"), InvalidInputError, "sum"),
        (lambda it: it.aggregate("t", max="*"), InvalidInputError, "only count goes with"),
        (lambda it: it.search("t", [1.0], 3), InvalidInputError, "vectors of 4 numbers, the one given has 1"),
        (lambda it: it.history("nope"), TableNotFoundError, "nope"),
        (lambda it: it.compact(), InvalidInputError, "name a table, or a namespace"),
        (lambda it: it.read(""), InvalidInputError, "at least one level"),
        (lambda it: it.read("t", columns="nope"), TableColumnNotFoundError, "has no column nope;"),
        (lambda it: it.read("t", version=-1), InvalidInputError, "a version is a number, not -1"),
        (lambda it: it.read("t", version=2**70), InvalidInputError, "a version is a number, not 118"),
        (lambda it: it.read("t", version="1"), InvalidInputError, "a version is a number, not '1'"),
        (lambda it: it.read("t", limit=2**40), InvalidInputError, "Spark counts to 2,147,483,647"),
        (lambda it: it.search("t", [math.nan] * 4), InvalidInputError, "finite numbers only"),
        (lambda it: it.search("t", "text"), InvalidInputError, "vector must be a list of numbers"),
        (
            lambda it: it.search("t", [1.0] * 4, nprobes=0),
            InvalidInputError,
            "nprobes is 0, and has to be a whole number",
        ),
        (lambda it: it.search("t", [1.0] * 4, refine_factor="x"), InvalidInputError, "refine_factor is 'x'"),
        (lambda it: it.search("t", [1.0] * 4, ef=-1), InvalidInputError, "ef is -1"),
        (lambda it: it.search("t", None), InvalidInputError, "a search needs a vector"),
        (lambda it: it.cleanup("t", older_than=14), InvalidInputError, "older_than is an age"),
        (lambda it: it.remove_orphans("t", older_than="7d"), InvalidInputError, "older_than is an age"),
        (lambda it: it.optimize_indices("t", names="a_idx"), LanceNamespaceError, "no index a_idx"),
        (lambda it: it.compact("t", num_threads="lots"), InvalidInputError, "num_threads of a compaction, 'lots'"),
    ],
)
def test_what_is_wrong_is_said_at_once(
    catalog: LanceCatalog, table: lance.LanceDataset, ask: Any, error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        ask(catalog)


def test_who_is_no_session_or_no_catalog(spark: Any, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="a SparkSession is needed, not str"):
        LanceCatalog("local", "dir", {"root": str(tmp_path)})
    with pytest.raises(InvalidInputError, match="cannot connect to 'nope\\.Nope'"):
        LanceCatalog(spark, "nope.Nope")

    class Old:
        version = "3.5.9"

    with pytest.raises(InvalidInputError, match=r"Spark 3\.5\.9 is too old: 4\.2 or newer"):
        LanceCatalog(Old(), "dir", {"root": str(tmp_path)})


def test_properties_stay_secret(spark: Any, tmp_path: Path) -> None:
    catalog = LanceCatalog(spark, "dir", {"root": str(tmp_path), "storage.secret": "hunter2"})
    assert "hunter2" not in repr(catalog) + repr(vars(catalog)) + repr(TableAddress.parse(catalog._connection, "t"))


# Writing


def test_create_append_and_overwrite(catalog: LanceCatalog, tmp_path: Path) -> None:
    frame = catalog.spark.range(10).selectExpr("id", "array(cast(id as float), cast(0 as float)) AS emb")
    assert catalog.create(frame, "new", vector_columns={"emb": 2}) == 1
    assert lance.dataset(tmp_path / "new.lance").schema.field("emb").type == pa.list_(pa.float32(), 2)
    assert catalog.append(frame.select("emb", "id"), "new") == 2
    assert catalog.count("new") == 20
    assert catalog.overwrite(frame.limit(3), "new") == 3
    assert catalog.count("new") == 3
    assert lance.dataset(tmp_path / "new.lance").schema.field("emb").type == pa.list_(pa.float32(), 2)
    assert catalog.overwrite(frame, ["other"], vector_columns={"emb": 2}) == 1


def test_a_round_trip_keeps_the_types(catalog: LanceCatalog, table: lance.LanceDataset, tmp_path: Path) -> None:
    catalog.create(catalog.read("t"), "copy")
    copy = lance.dataset(tmp_path / "copy.lance")
    assert copy.schema == table.schema
    assert copy.to_table().sort_by("id").to_pylist() == table.to_table().sort_by("id").to_pylist()


def test_an_empty_frame_makes_an_empty_table(catalog: LanceCatalog) -> None:
    catalog.create(catalog.spark.range(0), "empty")
    assert catalog.count("empty") == 0
    assert catalog.read("empty").collect() == []


def test_the_same_run_adds_nothing_twice(catalog: LanceCatalog) -> None:
    frame = catalog.spark.range(5)
    assert catalog.create(frame, "new", run="monday") == 1
    assert catalog.create(frame, "new", run="monday") == 1
    assert catalog.append(frame, "new", run="tuesday") == 2
    assert catalog.append(frame, "new", run="tuesday") == 2
    assert catalog.count("new") == 10


def test_the_same_run_at_the_same_time_adds_once(catalog: LanceCatalog) -> None:
    frame, append = catalog.spark.range(5), commits.append
    catalog.create(frame, "new")
    others = [1]

    def other_is_faster(*arguments: Any) -> int:
        if others:
            others.pop()
            assert catalog.append(frame, "new", run="monday") == 2
        return append(*arguments)

    with patch.object(commits, "append", other_is_faster):
        assert catalog.append(frame, "new", run="monday") == 2
    assert catalog.count("new") == 10


def test_names_of_every_kind(spark: Any, tmp_path: Path) -> None:
    session = spark.newSession()
    session.conf.set("spark.sql.caseSensitive", "true")
    catalog = LanceCatalog(session, "dir", {"root": str(tmp_path)})
    names = ["a b", "x", "X", "\u00fc", "'q'"]
    frame = session.range(3).select(*("id" for _ in names)).toDF(*names)
    catalog.create(frame, "new")
    catalog.append(frame, "new")
    assert catalog.read("new").columns == names
    assert sorted(catalog.read("new").collect()) == sorted([(number,) * len(names) for number in (0, 1, 2)] * 2)


def test_what_a_version_of_files_holds_is_asked_of_that_version(catalog: LanceCatalog) -> None:
    """Maps are new in 2.2."""
    frame = catalog.spark.sql("select map('a', 1) m")
    with pytest.raises(LanceNamespaceError, match=r"2\.2|[Mm]ap"):
        catalog.create(frame, "new", data_storage_version="2.0")
    catalog.create(frame, "new", data_storage_version="2.2")
    assert catalog.read("new").collect() == [({"a": 1},)]


def test_a_vector_becomes_something_else(catalog: LanceCatalog, tmp_path: Path) -> None:
    spark = catalog.spark
    first = spark.sql("select array(1f, 2f) emb, named_struct('e', array(1f, 2f), 'n', 1) s, array(1f) v")
    catalog.create(first, "new", vector_columns={"emb": 2, "s.e": 2, "v": 1})
    second = spark.sql("select 'x' emb, named_struct('e', array(3f, 4f), 'n', 1) s, array('x') v")
    catalog.overwrite(second, "new")
    schema = lance.dataset(tmp_path / "new.lance").schema
    assert schema.field("emb").type == pa.string()
    assert schema.field("s").type.field("e").type == pa.list_(pa.float32(), 2)
    assert isinstance(schema.field("v").type, pa.ListType)


def test_a_value_that_its_column_cannot_hold(catalog: LanceCatalog, tmp_path: Path) -> None:
    lance.write_dataset(pa.table({"id": [1], "x": pa.array([1.5], pa.float32())}), tmp_path / "f.lance")
    with pytest.raises(InvalidInputError, match="column x: a value does not fit float"):
        catalog.update("f", {"x": "1e300"})
    catalog.update("f", {"x": "2.5"})
    assert catalog.read("f").collect()[0].x == 2.5


def test_a_table_that_was_made_anew(catalog: LanceCatalog, table: lance.LanceDataset, tmp_path: Path) -> None:
    frame = catalog.read("t")
    rows = table.to_table(limit=5)
    rmtree(tmp_path / "t.lance")
    lance.write_dataset(rows, tmp_path / "t.lance").delete("id = 1")
    with pytest.raises(PySparkException, match="made anew meanwhile; read it again"):
        frame.collect()


@pytest.mark.parametrize("how", ["append", "overwrite"])
def test_rows_for_a_table_that_was_made_anew(catalog: LanceCatalog, tmp_path: Path, how: str) -> None:
    frame, write = catalog.spark.range(5), table_writer.write_frame
    catalog.create(frame, "new")

    def and_then_made_anew(*arguments: Any) -> Any:
        done = write(*arguments)
        rmtree(tmp_path / "new.lance")
        lance.write_dataset(pa.table({"id": [7]}), tmp_path / "new.lance")
        return done

    with (
        patch.object(table_writer, "write_frame", and_then_made_anew),
        pytest.raises(ConcurrentModificationError, match="made anew"),
    ):
        getattr(catalog, how)(frame, "new")
    assert ids(catalog.read("new")) == [7]


def test_who_fails_takes_nothing_of_others_along(catalog: LanceCatalog, tmp_path: Path) -> None:
    """Two make the same table; the first, which declared it, fails when the second has written and not committed."""
    create, failed = commits.create, list[str]()
    (tmp_path / "x.csv").write_text("id\n1\n")

    def while_the_other_fails(*arguments: Any) -> int:
        undo_declaration(TableAddress.parse(catalog._connection, "new").to_ref())
        failed.append("the other")
        return create(*arguments)

    with patch.object(commits, "create", while_the_other_fails):
        catalog.ingest(tmp_path / "x.csv", "new")
    assert failed == ["the other"]
    assert ids(catalog.read("new")) == [1]


@pytest.mark.parametrize(
    ("write", "error", "says"),
    [
        (lambda it, df: it.create(df, "t"), TableAlreadyExistsError, "table t exists"),
        (lambda it, df: it.append(df, "nope"), TableNotFoundError, "nope"),
        (lambda it, df: it.append(df.selectExpr("id", "1 AS nope"), "t"), TableSchemaValidationError, "nope"),
        (lambda it, df: it.create(df, "new", vector_columns={"id": 3}), LanceNamespaceError, "id"),
        (
            lambda it, df: it.create(df.toDF("a.b"), "new"),
            TableSchemaValidationError,
            r"with a dot or a backquote.* a\.b",
        ),
        (lambda it, df: it.create(df, "new", max_rows_per_file=0), InvalidInputError, "max_rows_per_file must be 1"),
        (lambda it, df: it.create(df, "new", data_storage_version="9.9"), InvalidInputError, "data_storage_version"),
    ],
)
def test_what_cannot_be_written_is_said_at_once(
    catalog: LanceCatalog, table: lance.LanceDataset, tmp_path: Path, write: Any, error: type[Exception], says: str
) -> None:
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(error, match=says):
        write(catalog, catalog.spark.range(3))
    assert sorted(path for path in tmp_path.rglob("*") if "__manifest" not in path.parts) == [
        path for path in before if "__manifest" not in path.parts
    ]


def test_a_job_that_fails_leaves_nothing(catalog: LanceCatalog, table: lance.LanceDataset, tmp_path: Path) -> None:
    """Neither files of the task that failed, nor of those that had finished, nor an entry."""
    rows = failing(catalog.spark, tmp_path)
    fitting = rows.selectExpr("id", "'k' AS kind", "0D AS price", "array(0F, 0F, 0F, 0F) AS emb")

    def files() -> list[Path]:
        found = tmp_path.rglob("*")
        return sorted(path for path in found if path.is_file() and "__manifest" not in path.parts)

    before = files()
    for write in (catalog.append, catalog.overwrite):
        with pytest.raises(LanceNamespaceError, match="too much"):
            write(fitting, "t")
    with pytest.raises(LanceNamespaceError, match="too much"):
        catalog.create(rows, "new")
    assert files() == before
    with pytest.raises(TableNotFoundError):
        catalog.count("new")


def test_columns_are_added(catalog: LanceCatalog, table: lance.LanceDataset) -> None:
    def norm(batch: pa.RecordBatch) -> Any:
        values: Any = batch.column("emb")
        return pa.array(np.linalg.norm(np.asarray(values.flatten()).reshape(-1, 4), axis=1), pa.float32())

    catalog.add_columns("t", {"twice": "id * 2"})
    catalog.add_columns("t", {"norm": norm}, read_columns=["emb"])
    rows = lance.dataset(table.uri).to_table(columns=["id", "twice", "norm", "emb"]).to_pylist()
    assert all(row["twice"] == 2 * row["id"] for row in rows)
    assert rows[0]["norm"] == pytest.approx(np.linalg.norm(rows[0]["emb"]))
    assert not (Path(table.uri) / "_lancehouse").exists()


HELPER = """
def score(ids):
    if ids[0] >= 900 and {fails}:
        raise ValueError("not yet")
    return [{factor}] * len(ids)
"""


def test_adding_columns_by_other_code_starts_over(
    catalog: LanceCatalog, table: lance.LanceDataset, tmp_path: Path, monkeypatch: Any, caplog: Any
) -> None:
    """A module that the function imports has changed since: no value of before is taken over, and a warning says so."""
    place = str(tmp_path / "modules")
    Path(place).mkdir()
    monkeypatch.syspath_prepend(place)
    # What the function imports here is forgotten at the end: its source is gone then, which other tests would meet.
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setitem(sys.modules, "own_scores", None)
    monkeypatch.delitem(sys.modules, "own_scores")

    def score(batch: pa.RecordBatch) -> Any:
        import sys

        sys.path.insert(0, place)
        sys.modules.pop("own_scores", None)  # workers are used again
        import own_scores  # type: ignore[import-not-found]

        return pa.array(own_scores.score(batch.column("id").to_pylist()), pa.int64())

    monkeypatch.setattr(fingerprints, "_first_digests", {})
    (tmp_path / "modules" / "own_scores.py").write_text(HELPER.format(fails=True, factor=1))
    with pytest.raises(LanceNamespaceError, match="not yet"):
        catalog.add_columns("t", {"score": score})
    assert any((tmp_path / "t.lance" / "_lancehouse" / "jobs").rglob("*.json"))
    (tmp_path / "modules" / "own_scores.py").write_text(HELPER.format(fails=False, factor=22))
    monkeypatch.setattr(fingerprints, "_first_digests", {})  # as in a new session
    with caplog.at_level("WARNING"):
        catalog.add_columns("t", {"score": score})
    assert set(lance.dataset(table.uri).to_table(columns=["score"]).column(0).to_pylist()) == {22}
    assert "add_columns starts over" in caplog.text
    assert "changed since: module own_scores" in caplog.text
    assert not (tmp_path / "t.lance" / "_lancehouse").exists()


def test_adding_columns_goes_on_where_it_was(catalog: LanceCatalog, table: lance.LanceDataset, tmp_path: Path) -> None:
    seen, records = tmp_path / "seen", Path(table.uri) / "_lancehouse" / "jobs"
    seen.mkdir()

    def try_batch(batch: pa.RecordBatch) -> Any:
        from time import monotonic, sleep
        from uuid import uuid4

        first = batch.column("id")[0].as_py()
        (seen / f"{first // 300}-{uuid4().hex}").touch()
        if first >= 900 and not (tmp_path / "mended").exists():
            deadline = monotonic() + 60
            while len(list(records.glob("*/*"))) < 2 and monotonic() < deadline:  # of other fragments
                sleep(0.05)
            raise ValueError("not yet")
        return batch.column("id")

    with pytest.raises(LanceNamespaceError, match="not yet"):
        catalog.add_columns("t", {"same": try_batch})
    done = {path.name.split("-")[0] for path in seen.iterdir()}
    (tmp_path / "mended").touch()
    for path in seen.iterdir():
        path.unlink()
    catalog.add_columns("t", {"same": try_batch})
    again = {path.name.split("-")[0] for path in seen.iterdir()}
    assert "3" in again
    assert len(again) < len(done | {"3"})
    rows = lance.dataset(table.uri).to_table(columns=["id", "same"])
    assert rows.column("id") == rows.column("same")


# Upkeep


def test_compaction(catalog: LanceCatalog, table: lance.LanceDataset) -> None:
    done = catalog.compact("t")
    assert (done.fragments_removed, done.fragments_added) == (4, 1)
    assert catalog.count("t") == ROWS - 10
    assert catalog.compact("t").version == done.version


def test_indices(catalog: LanceCatalog, table: lance.LanceDataset) -> None:
    assert catalog.create_index("t", "id", "BTREE").name == "id_idx"
    assert catalog.create_index("t", "emb", "IVF_FLAT", num_partitions=2).name == "emb_idx"
    lance.write_dataset(table.to_table(limit=5), table.uri, mode="append")
    catalog.optimize_indices("t")
    now = lance.dataset(table.uri)
    assert {index.name for index in now.describe_indices()} == {"id_idx", "emb_idx"}
    assert now.index_statistics("id_idx")["num_unindexed_rows"] == 0
    with pytest.raises(InvalidInputError, match="NOPE"):
        catalog.create_index("t", "id", "NOPE")


def test_an_index_that_fails_leaves_no_model(catalog: LanceCatalog, table: lance.LanceDataset) -> None:
    only_training = patch.object(engine, "collect_results", _only_training(collect_results))
    with only_training, pytest.raises(InvalidInputError, match="no more"):
        catalog.create_index("t", "emb", "IVF_FLAT", num_partitions=2, rows_per_task=1)
    assert not list(Path(table.uri).rglob("_staging/**/*.*"))
    assert table.describe_indices() == []


def _only_training(run: Any) -> Any:
    """The first job of an index is done, the second is not."""
    done: list[str] = []

    def once(spark: Any, pieces: Any, work: Any, *more: Any) -> list[str]:
        if done:
            assert done[0].startswith("_staging/")
            raise InvalidInputError("no more")
        done.extend(run(spark, pieces, work, *more))
        return done

    return once


def test_cleaning_up(catalog: LanceCatalog, table: lance.LanceDataset) -> None:
    now = timedelta(0)
    assert catalog.cleanup("t", older_than=now, dry_run=True).versions == 1
    assert len(table.versions()) == 2
    assert catalog.cleanup("t", older_than=now).versions == 1
    assert len(table.versions()) == 1
    orphan = Path(table.uri) / "data" / f"{'0' * 50}.lance"
    orphan.write_bytes(b"x")
    told = catalog.remove_orphans("t", older_than=now, no_writers=True, dry_run=True)
    assert (told.files, orphan.exists()) == (1, True)
    assert catalog.remove_orphans("t", older_than=now, no_writers=True).files == 1
    assert not orphan.exists()
    assert catalog.count("t") == ROWS - 10


def test_maintenance_of_a_whole_catalog(catalog: LanceCatalog, table: lance.LanceDataset, tmp_path: Path) -> None:
    catalog.create(catalog.spark.range(0, 10, 1, 2), "other")
    (tmp_path / "broken.lance" / "_versions").mkdir(parents=True)
    (tmp_path / "broken.lance" / "_versions" / "1.manifest").write_bytes(b"no manifest")
    done = catalog.compact(namespace="")
    assert done["t"].fragments_removed == 4
    assert done["other"].fragments_removed == 2
    assert isinstance(done["broken"], LanceNamespaceError)


def test_columns_of_a_frame_may_be_null(catalog: LanceCatalog, spark: Any, tmp_path: Path) -> None:
    """Spark knows that a range has no nulls, which says nothing of the rows that come later."""
    rows = spark.range(3).selectExpr("id", "named_struct('x', id) AS s", "array(id) AS l", "map('k', id) AS m")
    catalog.create(rows, "new")
    schema = lance.dataset(tmp_path / "new.lance").schema
    assert all(field.nullable for field in schema)
    assert schema.field("s").type.field("x").nullable
    assert schema.field("l").type.value_field.nullable
    catalog.append(spark.sql("SELECT cast(NULL AS bigint) AS id"), "new")
    catalog.overwrite(spark.range(3), "new")
    assert lance.dataset(tmp_path / "new.lance").schema.field("id").nullable
    catalog.add_columns("new", {"one": "1", "twice": "id * 2"})
    assert all(field.nullable for field in lance.dataset(tmp_path / "new.lance").schema)
    assert catalog.read("new").toArrow().sort_by("id").to_pylist() == [
        {"id": each, "one": 1, "twice": 2 * each} for each in range(3)
    ]


def test_columns_that_may_not_be_null(catalog: LanceCatalog, spark: Any, tmp_path: Path) -> None:
    catalog.create(spark.range(3), "strict", nullable=False)
    assert not lance.dataset(tmp_path / "strict.lance").schema.field("id").nullable
    said = "column id: a null, which the table does not allow there; to allow it: ALTER TABLE … ALTER COLUMN id DROP"
    with pytest.raises(InvalidInputError, match=said):
        catalog.append(spark.sql("SELECT cast(NULL AS bigint) AS id"), "strict")
    lance.dataset(tmp_path / "strict.lance").alter_columns({"path": "id", "nullable": True})  # as it says
    catalog.append(spark.sql("SELECT cast(NULL AS bigint) AS id"), "strict")
    catalog.add_columns("strict", {"w": "1"})
    assert catalog.count("strict", "id IS NULL AND w = 1") == 1


@pytest.mark.parametrize(
    "query", ["SELECT 1 AS id, NULL AS odd", "SELECT array() AS odd", "SELECT struct(NULL AS x) AS odd"]
)
def test_a_column_without_a_type(catalog: LanceCatalog, spark: Any, tmp_path: Path, query: str) -> None:
    for write in (catalog.create, catalog.overwrite):
        with pytest.raises(TableSchemaValidationError, match=r"column odd has the type .*cast\(NULL AS string\)"):
            write(spark.sql(query), "new")
    assert not (tmp_path / "new.lance").exists()


@pytest.mark.parametrize("value", ["NULL", lambda batch: pa.array([None] * batch.num_rows)], ids=["sql", "function"])
def test_adding_a_column_without_a_type(catalog: LanceCatalog, table: lance.LanceDataset, value: Any) -> None:
    with pytest.raises(TableSchemaValidationError, match=r"column odd has the type null, .*pa\.array"):
        catalog.add_columns("t", {"odd": value})
    assert "odd" not in lance.dataset(table.uri).schema.names
