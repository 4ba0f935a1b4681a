"""`format("lance")` without a stream: in Spark, and each of its calls as Spark makes them."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from shutil import rmtree
from typing import Any
from unittest.mock import patch
from uuid import uuid4

import lance
import pyarrow as pa
import pytest
from lance_namespace import TableExistsRequest, connect
from lance_namespace.errors import (
    ConcurrentModificationError,
    InvalidInputError,
    TableNotFoundError,
    TableSchemaValidationError,
    UnsupportedOperationError,
)
from pyspark.errors import PySparkException
from pyspark.sql import functions
from pyspark.sql.types import StructType

from lancehouse.connection import Connection
from lancehouse.errors import CommitStateUnknownError
from lancehouse.jobs import address as addresses
from lancehouse.jobs.address import TableAddress
from lancehouse.lake import commits, scans
from lancehouse.spark import table_reader
from lancehouse.spark.data_source import LanceSource
from lancehouse.spark.data_source_options import SourceOptions, TableUse
from tests.clients.managed import managed_by_lancehouse
from tests.spark.conftest import failing

Place = dict[str, str]

IDS = StructType().add("id", "long", nullable=False)


@pytest.fixture(params=["path", "dir", "managed"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Options of a table that is not there yet: by its path, in a folder, and in a catalog that manages versions."""
    if request.param == "path":
        return {"path": str(tmp_path / "t")}
    if request.param == "dir":
        return {"impl": "dir", "root": str(tmp_path), "table": "t"}
    catalog = managed_by_lancehouse(request.getfixturevalue("lancehouse_server"))
    return {"impl": "iceberg", **catalog.properties, "table": ".".join(catalog.id("t"))}


@pytest.fixture
def here(tmp_path: Path) -> Place:
    """A table by its path, with the rows 0 to 9 in two fragments."""
    lance.write_dataset(rows(*range(10)), tmp_path / "t", max_rows_per_file=5)
    return {"path": str(tmp_path / "t")}


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": ids}, pa.schema([pa.field("id", pa.int64(), nullable=False)]))


def source(place: Place, **options: object) -> LanceSource:
    return LanceSource({**place, **{name: str(value) for name, value in options.items()}})


def ids(place: Place, **options: object) -> list[int]:
    """Read as Spark does: what it makes is sent from process to process."""
    found = source(place, **options)
    found.schema()
    return read_by(send(send(found).reader(IDS)))


def read_by(reader: Any) -> list[int]:
    batches = [batch for part in reader.partitions() for batch in reader.read(send(part))]
    return sorted(value for batch in batches for value in batch.column("id").to_pylist())


def send(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


def files(place: Place) -> set[Path]:
    """Everything below a table but what tells of its versions."""
    root = Path(str(SourceOptions(place, *TableUse).address().to_ref().open().uri))
    below = {path.relative_to(root) for path in root.rglob("*") if path.is_file()}
    return {path for path in below if path.parts[0] not in ("_versions", "_transactions")}


# Spark


def test_tables_are_made_appended_to_and_overwritten(spark: Any, place: Place) -> None:
    numbers = spark.range(0, 10, 1, 2)

    def read() -> Any:
        return spark.read.format("lance").options(**place).load()

    numbers.write.format("lance").options(**place).mode("append").save()
    before = read()
    numbers.selectExpr("id + 10 AS id").write.format("lance").options(**place).mode("append").save()
    assert sorted(row.id for row in read().collect()) == list(range(20))
    assert before.count() == 20
    numbers.where("id < 3").write.format("lance").options(**place).mode("overwrite").save()
    assert sorted(row.id for row in read().collect()) == [0, 1, 2]
    assert spark.read.format("lance").options(**place, version="2", filter="id > 17").load().count() == 2


def test_a_frame_is_used_more_than_once(spark: Any, tmp_path: Path) -> None:
    lance.write_dataset(rows(*range(1000)), tmp_path / "t", max_rows_per_file=300)
    frame = spark.read.format("lance").load(str(tmp_path / "t"))
    assert frame.where("id < 100").count() == 100
    assert frame.count() == 1000
    assert frame.where("id < 10").union(frame.where("id >= 900")).count() == 110
    assert frame.alias("l").join(frame.alias("r"), functions.expr("l.id = r.id + 1")).count() == 999
    kept = frame.where("id < 500").cache()
    assert (kept.where("id < 7").count(), kept.count(), frame.count()) == (7, 500, 1000)
    kept.unpersist()


@pytest.fixture
def view(spark: Any) -> Iterator[str]:
    """A name for a view, which is dropped afterwards."""
    name = f"lance_{uuid4().hex}"
    yield name
    spark.catalog.dropTempView(name)


def test_a_view_shows_the_current_version(spark: Any, here: Place, view: str) -> None:
    spark.sql(f"CREATE TEMP VIEW {view} USING lance OPTIONS (path '{here['path']}')")

    def count(query: str) -> int:
        return int(spark.sql(f"SELECT count(*) FROM {query}").first()[0])

    assert count(view) == 10
    spark.sql(f"INSERT INTO {view} SELECT -1L")
    assert count(view) == 11
    lance.dataset(here["path"]).delete("id = 3")
    assert count(f"{view} a JOIN {view} b USING (id)") == 10
    spark.sql(f"INSERT INTO {view} SELECT id - 100 FROM {view}")
    assert count(view) == 20
    lance.write_dataset(rows(7), here["path"], mode="overwrite")
    assert spark.table(view).toArrow().to_pylist() == [{"id": 7}]


def test_a_view_of_a_version_keeps_it(spark: Any, here: Place, view: str) -> None:
    spark.sql(f"CREATE TEMP VIEW {view} USING lance OPTIONS (path '{here['path']}', version '1')")
    lance.write_dataset(rows(-1), here["path"], mode="append")
    assert spark.sql(f"SELECT count(*) FROM {view}").first()[0] == 10


def test_all_of_a_query_sees_one_version(spark: Any, here: Place, view: str) -> None:
    """Rows are added after the first scan of a query has begun and before the second."""
    spark.sql(f"CREATE TEMP VIEW {view} USING lance OPTIONS (path '{here['path']}')")
    place = here["path"]

    def add(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            lance.write_dataset(rows(*range(100, 110)), place, mode="append")
            yield batch

    first = spark.table(view).coalesce(1).mapInArrow(add, "id long")
    found = first.union(spark.table(view)).coalesce(1).collect()  # one task, one scan after the other
    assert sorted(row.id for row in found) == sorted([*range(10)] * 2)
    assert spark.table(view).count() == lance.dataset(place).count_rows() > 10


@pytest.mark.parametrize(
    ("columns", "then"),
    [
        ("", None),
        ("(id BIGINT)", "SELECT * FROM {}"),
        ("(id BIGINT)", "INSERT INTO {} SELECT 1L"),
    ],
)
def test_a_table_of_sparks_own_catalog_is_refused(
    spark: Any, here: Place, view: str, columns: str, then: str | None
) -> None:
    """Spark tells the source nothing of a table whose columns are given, until somebody reads or writes it."""
    with pytest.raises(PySparkException, match=r"CREATE TEMPORARY VIEW … USING lance OPTIONS \(…\) works"):
        try:
            spark.sql(f"CREATE TABLE {view}_t {columns} USING lance OPTIONS (path '{here['path']}')")
            spark.sql((then or "SELECT 1").format(f"{view}_t")).collect()
        finally:
            spark.sql(f"DROP TABLE IF EXISTS {view}_t")
    assert ids(here) == [*range(10)]


def test_values_come_back_as_they_were(spark: Any, tmp_path: Path) -> None:
    frame = spark.sql(
        "SELECT CAST(id AS INT) id, TIMESTAMP '2026-01-02 03:04:05.678' + make_interval(0, 0, 0, id) at, "
        "TIMESTAMP_NTZ '2026-01-02 03:04:05.678' naive, CAST(id AS DECIMAL(20, 3)) money, DATE '2026-02-03' day, "
        "map('a', id, 'b', NULL) m, named_struct('x', array(1.5D, NULL), 'y', CAST(NULL AS STRING)) nested, "
        "array(CAST(id AS FLOAT), 2.0F) emb, CAST('bytes' AS BINARY) b, id % 2 = 0 AS flag FROM range(0, 6, 1, 2)"
    )
    table = str(tmp_path / "t")
    frame.write.format("lance").option("vectorColumns", "emb:2").mode("append").save(table)
    frame.write.format("lance").mode("append").save(table)
    assert lance.dataset(table).schema.field("emb").type == pa.list_(pa.float32(), 2)
    found = spark.read.format("lance").load(table)
    assert sorted(map(str, found.collect())) == sorted(map(str, frame.collect() * 2))


@pytest.mark.parametrize("kind", ["path", "dir"])
def test_a_job_that_fails_leaves_nothing(spark: Any, tmp_path: Path, kind: str) -> None:
    place = (
        {"path": str(tmp_path / "t.lance")} if kind == "path" else {"impl": "dir", "root": str(tmp_path), "table": "t"}
    )
    with pytest.raises(Exception, match="too much"):
        failing(spark, tmp_path).write.format("lance").options(**place).mode("append").save()
    assert not TableAddress(path=str(tmp_path / "t.lance")).to_ref().exists()
    assert not list(tmp_path.glob("t.lance/**/*.*"))
    if kind == "dir":
        with pytest.raises(TableNotFoundError):
            connect("dir", {"root": str(tmp_path)}).table_exists(TableExistsRequest(id=["t"]))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({}, "InvalidInputError: a Lance table is named by the option path, or by impl and table"),
        ({"path": "{path}", "columns": "nope"}, "TableColumnNotFoundError: .* has no column nope; it has id"),
        ({"path": "{path}", "version": "7"}, "TableVersionNotFoundError: "),
    ],
    ids=["nothing", "column", "version"],
)
def test_spark_says_what_is_wrong(spark: Any, here: Place, options: dict[str, str], sentence: str) -> None:
    given = {name: value.format(**here) for name, value in options.items()}
    with pytest.raises(Exception, match=sentence):
        spark.read.format("lance").options(**given).load()


def test_a_plan_does_not_show_secrets(spark: Any, here: Place) -> None:
    options = {**here, "secret.storage.account_key": "hidden"}
    given = ", ".join(f"`{name}` '{value}'" for name, value in options.items())
    text = spark.sql(f"EXPLAIN EXTENDED CREATE TEMP VIEW v USING lance OPTIONS ({given})").first()[0]
    assert here["path"] in text
    assert "hidden" not in text


# Reading, call by call


def test_columns_filter_limit_and_tasks(here: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scans, "MIN_TASK_ROWS", 1)
    assert ids(here, filter="id % 2 = 0", columns="id", tasks=4) == [0, 2, 4, 6, 8]
    assert len(ids(here, limit=7)) == 7
    assert len(ids(here, limit=2, filter="id > 3")) == 2
    found = source(here, tasks=4, withRowId="true")
    assert found.schema().names == ["id", "_rowid"]
    assert len(found.reader(IDS).partitions()) == 4


def test_a_version_that_is_named_is_chosen_with_the_schema(here: Place) -> None:
    lance.dataset(here["path"]).tags.create("first", 1)
    for moment in ({"version": 1}, {"tag": "first"}):
        found = source(here, **moment)
        found.schema()
        lance.write_dataset(rows(10), here["path"], mode="append")
        reader = found.reader(IDS)
        assert (reader.pinned.version, reader.follows) == (1, False)
    assert ids(here) == [*range(10), 10, 10]


@pytest.fixture
def began(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Make tasks belong to a query that began at a time, in seconds since 1970."""

    def begin(at: float) -> None:
        table_reader._resolve_at.cache_clear()
        monkeypatch.setattr(table_reader, "query_start_ms", lambda: int(at * 1000))

    return begin


def test_a_query_reads_what_was_there_when_it_began(here: Place, began: Callable[[float], None]) -> None:
    found = source(here)
    found.schema()
    reader = send(found.reader(IDS))
    lance.write_dataset(rows(10), here["path"], mode="append")
    between = time.time()
    time.sleep(0.05)
    lance.write_dataset(rows(11), here["path"], mode="append")
    lance.dataset(here["path"]).delete("id = 0")
    began(between)
    assert read_by(reader) == [*range(11)]
    began(time.time())
    assert read_by(reader) == [*range(1, 12)]
    began(0)  # a driver whose clock is behind: never less than what was there when the view was made
    assert read_by(reader) == [*range(10)]


def test_what_was_there_first_may_be_gone(here: Place, began: Callable[[float], None]) -> None:
    cleaned, anew = source(here), source(here)
    cleaned.schema()
    lance.write_dataset(rows(500), here["path"], mode="overwrite").cleanup_old_versions(timedelta(0))
    addresses._opened.clear()
    began(time.time())
    assert read_by(send(cleaned).reader(IDS)) == [500]
    anew.schema()
    rmtree(here["path"])
    lance.write_dataset(rows(600), here["path"])
    addresses._opened.clear()
    began(time.time())
    assert read_by(send(anew).reader(IDS)) == [600]
    began(0)
    with pytest.raises(ConcurrentModificationError, match="was dropped and made anew meanwhile; run the query again"):
        read_by(send(anew).reader(IDS))


def test_columns_of_a_view_stay(tmp_path: Path, began: Callable[[float], None]) -> None:
    table = pa.table({"id": [1, 2], "gone": ["a", "b"]})
    dataset = lance.write_dataset(table, tmp_path / "t")
    found = source({"path": str(tmp_path / "t")})
    found.schema()
    reader = send(found.reader(IDS))
    dataset.drop_columns(["gone"])
    dataset.add_columns({"new": "id + 1"})
    began(time.time())
    [batch] = [batch for part in reader.partitions() for batch in reader.read(part)]
    assert batch.to_pylist() == [{"id": 1, "gone": None}, {"id": 2, "gone": None}]
    dataset.alter_columns({"path": "id", "data_type": pa.int32()})
    began(time.time())
    with pytest.raises(TableSchemaValidationError, match=r"column id is not as the view .* has it .*; make that anew"):
        read_by(reader)


def test_a_table_without_rows(tmp_path: Path) -> None:
    lance.write_dataset(rows(), tmp_path / "t")
    reader = LanceSource({"path": str(tmp_path / "t")})
    reader.schema()
    made = reader.reader(IDS)
    assert [[*made.read(part)] for part in made.partitions()] == [[]]


def test_a_schema_of_somebody_else_is_refused(here: Place) -> None:
    with pytest.raises(UnsupportedOperationError, match="option columns"):
        source(here).reader(IDS)


def test_filters_are_not_taken_from_spark(here: Place) -> None:
    found = source(here)
    found.schema()
    assert "pushFilters" not in vars(type(found.reader(IDS)))


# Writing, call by call


def writing(place: Place, *, overwrite: bool = False, **options: object) -> Any:
    """The writer as the driver has it afterwards, and what its one task wrote."""
    writer = send(source(place, **options).writer(IDS, overwrite))
    return writer, send(writer).write(iter(rows(100, 101).to_batches()))


def test_a_run_is_written_once(here: Place) -> None:
    for _ in range(2):
        writer, message = writing(here, run="monday")
        writer.commit([message, None])
    assert ids(here) == [*range(10), 100, 101]


def test_an_append_lands_over_others(here: Place) -> None:
    writer, message = writing(here)
    lance.write_dataset(rows(50), here["path"], mode="append")
    writer.commit([message])
    assert ids(here) == [*range(10), 50, 100, 101]


def test_an_overwrite_swallows_nothing(here: Place) -> None:
    before = files(here)
    writer, message = writing(here, overwrite=True)
    lance.write_dataset(rows(50), here["path"], mode="append")
    with pytest.raises(ConcurrentModificationError):
        writer.commit([message])
    writer.abort([message])
    assert ids(here) == [*range(10), 50]
    assert len(files(here)) == len(before) + 1


def test_the_same_run_at_the_same_time_is_written_once(here: Place) -> None:
    (first, one), (second, other) = (writing(here, run="monday") for _ in range(2))
    first.commit([one])
    second.commit([other])
    assert ids(here) == [*range(10), 100, 101]


@pytest.mark.parametrize("overwrite", [False, True])
def test_two_that_make_the_table(place: Place, overwrite: bool) -> None:
    """Both rows are there, or the second is told that they would not be."""
    (first, one), (second, other) = (writing(place, overwrite=overwrite) for _ in range(2))
    first.commit([one])
    if not overwrite:
        second.commit([other])
        assert ids(place) == [100, 100, 101, 101]
        return
    with pytest.raises(ConcurrentModificationError, match="created it just now"):
        second.commit([other])
    second.abort([other])
    assert ids(place) == [100, 101]


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_table_that_was_made_anew_is_not_written_to(here: Place, overwrite: bool) -> None:
    writer, message = writing(here, overwrite=overwrite)
    rmtree(here["path"])
    lance.write_dataset(rows(500), here["path"])
    with pytest.raises(ConcurrentModificationError, match="made anew"):
        writer.commit([message])
    writer.abort([message])
    assert ids(here) == [500]


def test_a_version_of_a_table_that_was_made_anew_is_not_read(here: Place) -> None:
    found = source(here, version=1)
    found.schema()
    reader = send(found.reader(IDS))
    rmtree(here["path"])
    lance.write_dataset(rows(500), here["path"])
    addresses._opened.clear()
    with pytest.raises(ConcurrentModificationError, match="made anew meanwhile; read it again"):
        reader.partitions()


def test_abort_removes_what_spark_forgot(here: Place) -> None:
    before = files(here)
    writer, _ = writing(here)
    assert files(here) > before
    writer.abort([None])
    assert files(here) == before


def test_a_commit_of_which_nobody_knows_leaves_the_files(here: Place) -> None:
    writer, message = writing(here)
    append = commits.append

    def append_and_fail(*arguments: Any) -> int:
        append(*arguments)
        raise CommitStateUnknownError("the answer was lost")

    with patch.object(commits, "append", append_and_fail), pytest.raises(CommitStateUnknownError):
        writer.commit([message])
    send(writer).abort([message])
    assert ids(here) == [*range(10), 100, 101]
    assert not list(Path(here["path"]).glob("_lancehouse"))


def test_rows_that_do_not_fit_are_refused_before_a_task(here: Place) -> None:
    with pytest.raises(TableSchemaValidationError, match="other"):
        source(here).writer(StructType().add("other", "string"), False)


# Options


@pytest.mark.parametrize(
    ("options", "use", "sentence"),
    [
        ({"path": "p", "impl": "dir"}, TableUse.READ, "not by path and impl"),
        ({"impl": "dir"}, TableUse.READ, "not by impl"),
        ({"path": "p", "colums": "a"}, TableUse.READ, "did you mean columns"),
        ({"path": "p", "region": "x"}, TableUse.READ, r"'region' is no option beside a path; .* storage\.<key>"),
        ({"path": "p", "properties": "{}"}, TableUse.READ, "'properties' is no option beside a path"),
        ({"path": "p", "limit": "1"}, TableUse.READ_STREAM, "limit is no option of readStream"),
        ({"path": "p", "startingVersion": "1"}, TableUse.READ, r"startingVersion is no option of spark\.read"),
        ({"path": "p", "version": "one"}, TableUse.READ, "version, 'one', is not what it has to be"),
        ({"path": "p", "version": "1", "tag": "x"}, TableUse.READ, "give one of them"),
        ({"path": "p", "asOf": "noon"}, TableUse.READ, "asOf, 'noon'"),
        ({"path": "p", "columns": '["a", 1]'}, TableUse.READ, "columns, "),
        ({"path": "p", "limit": "-1"}, TableUse.READ, "limit, '-1'"),
        ({"path": "p", "withRowId": "maybe"}, TableUse.READ, "true or false"),
        ({"path": "p", "vectorColumns": "emb"}, TableUse.WRITE, "emb:128"),
        ({"path": "p", "maxRowsPerFile": "0"}, TableUse.WRITE, "above 0"),
        ({"path": "p", "startingVersion": "first"}, TableUse.READ_STREAM, "earliest, latest"),
        ({"impl": "nobody", "table": "t"}, TableUse.READ, "cannot connect to 'nobody'"),
    ],
)
def test_wrong_options(options: Place, use: TableUse, sentence: str) -> None:
    with pytest.raises(InvalidInputError, match=sentence):
        _everything(SourceOptions(options, use))


def _everything(options: SourceOptions) -> None:
    for meaning in (
        options.address,
        options.scan,
        options.version_selector,
        options.write_options,
        options.follow_options,
        options.tasks,
    ):
        meaning()


def test_what_spark_adds_to_options_of_a_table_of_its_own() -> None:
    made = {"path": "/t", "option.path": "/t", "owner": "me", "provider": "lance", "location": "file:/t"}
    with pytest.raises(UnsupportedOperationError, match="passes no options on"):
        SourceOptions(made, *TableUse)
    with pytest.raises(InvalidInputError, match=r"none of them is given\. Spark's CREATE TABLE"):
        LanceSource({}).reader(IDS)
    with pytest.raises(InvalidInputError, match=r"none of them is given\. Spark's CREATE TABLE"):
        LanceSource({}).writer(IDS, False)


def test_options_without_regard_to_case(tmp_path: Path) -> None:
    options = SourceOptions(
        {"PATH": "p", "Columns": '["a", "b.c"]', "ASOF": "2026-01-01T00:00:00+00:00", "storage.Region": "here"},
        TableUse.READ,
    )
    assert options.address() == TableAddress(path="p", storage_options=(("region", "here"),))
    assert options.scan().columns == ("a", "b.c")
    moment = options.version_selector().as_of
    assert isinstance(moment, datetime)
    assert moment.isoformat() == "2026-01-01T00:00:00+00:00"


def test_properties_of_the_client(tmp_path: Path) -> None:
    given = {"property.table": "x", "storage.region": "r", "secret.key": "s", "properties": '{"camelCase": "y"}'}
    address = SourceOptions(
        {"impl": "dir", "root": str(tmp_path), "table": "a.`b.c`", **given}, TableUse.READ
    ).address()
    assert address.id == ("a", "b.c")
    assert isinstance(address.connection, Connection)
    assert dict(address.connection.properties) == {
        "root": str(tmp_path), "table": "x", "storage.region": "r", "key": "s", "camelCase": "y",
    }  # fmt: skip


@pytest.mark.parametrize(
    "make",
    [
        lambda: SourceOptions({"impl": "dir", "table": "t", "properties": '{"key": "hidden"'}, TableUse.READ).address(),
        lambda: SourceOptions(
            {"impl": "iceberg", "table": "t", "bogus": "hidden", "endpoint": "http://h"}, TableUse.READ
        ).address(),
        lambda: SourceOptions({"path": "p", "account": "hidden"}, TableUse.READ).address(),
    ],
)
def test_errors_do_not_show_secrets(make: Callable[[], object]) -> None:
    with pytest.raises(InvalidInputError) as caught:
        make()
    assert "hidden" not in str(caught.value)


def test_nothing_shows_secrets(here: Place) -> None:
    found = source(here, **{"secret.storage.account_key": "hidden"})
    found.schema()
    reader = found.reader(IDS)
    writer, message = writing({**here, "secret.storage.account_key": "hidden"})
    shown = map(repr, (found, reader, reader.partitions(), writer, writer.sink, message))
    assert not any("hidden" in each for each in shown)
