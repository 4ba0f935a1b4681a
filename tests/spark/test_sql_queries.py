"""Queries in SQL over Lance tables give what Spark gives on Parquet, and read no more than they need."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lance_namespace.errors import (
    InvalidInputError,
    TableNotFoundError,
    TableTagNotFoundError,
    TableVersionNotFoundError,
    UnsupportedOperationError,
)
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession, functions

from lancehouse.connection import Connection
from lancehouse.identifiers import format_levels
from lancehouse.jobs import TableJobs
from lancehouse.jobs.address import PinnedVersion
from lancehouse.lake.scans import Scan, split_fragments
from lancehouse.schema.spark_rows import to_spark_rows
from lancehouse.spark import LanceCatalog, queries
from lancehouse.spark.engine import run_in_tasks
from lancehouse.spark.query_text import QueryText, search_name
from lancehouse.spark.session import default_driver_bytes, name_normalizer, to_struct
from lancehouse.spark.table_reader import read_small_version
from tests.clients.managed import managed_by_lancehouse
from tests.servers.lancehouse import Served
from tests.spark.query_generator import COLUMNS, make_query, make_tables
from tests.spark.tpch import QUERIES as TPCH
from tests.spark.tpch import TABLES, generate

FAST = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.parquet.filterPushdown": "false",
}
"""For many small queries: compiling them takes longer than running them.

Parquet's own filters lose rows with -0.0 where a query asks for 0.0, which are equal to Spark.
"""
UNDECIDED = "a cast that fails"
CHUNK = 20
QUERIES, ALL_QUERIES = 200, 2000


def read_on_driver(spark: SparkSession, pinned: PinnedVersion, scan: Scan) -> DataFrame:
    """What `read_version` reads, without tasks in Python: that takes most of the time of a small query."""
    table, dataset = pinned.open()
    rows = to_spark_rows(scan.schema(table, dataset))
    parts = [part for group in split_fragments(dataset, 1, split=False) for part in group]
    batches = [rows.convert_batch(batch) for batch in scan.batches(table, dataset, parts)]
    if not any(batch.num_rows for batch in batches):
        return spark.createDataFrame([], to_struct(rows.struct))
    return spark.createDataFrame(pa.Table.from_batches(batches, rows.schema), to_struct(rows.struct))


def canonical(value: Any) -> Any:
    """A value that can be sorted and compared; NaN is equal to itself, 0.0 is not -0.0."""
    if isinstance(value, float):
        return struct.pack(">d", value) if value == value else b"nan"
    if isinstance(value, tuple | list):
        return tuple(map(canonical, value))
    return repr(value)


def answer(run: Callable[[str], DataFrame], text: str) -> Any:
    """The names, types and rows of a result, in any order; or that there is none."""
    try:
        frame = run(text)
        schema = [(column.name, column.dataType) for column in frame.schema.fields]
        return schema, sorted((tuple(map(canonical, row)) for row in frame.collect()), key=repr)
    except (PySparkException, Py4JError, InvalidInputError) as error:
        # Whether a text that is no number is ever cast to one depends on the order in which Spark evaluates a plan.
        return UNDECIDED if "CAST_INVALID_INPUT" in str(error) else f"refused: {error}"


@pytest.fixture(scope="module")
def house(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> LanceCatalog:
    """A folder with documents in three versions, and their words."""
    folder = tmp_path_factory.mktemp("house")
    session = spark.newSession()
    for key, value in FAST.items():
        session.conf.set(key, value)
    place = folder / "docs.lance"
    for first in (0, 10, 20):
        ids = pa.array(range(first, first + 10), pa.int32())
        amounts = ids.cast(pa.decimal128(10, 0)).cast(pa.decimal128(12, 2))
        titles = [f"title {number % 3}" for number in range(first, first + 10)]
        rows = pa.table(
            {"id": ids, "title": titles, "amount": amounts, "place": [{"city": "Bonn"}] * 10, "wide": ["w" * 9] * 10}
        )
        lance.write_dataset(rows, place, mode="append" if first else "create")
    table = lance.dataset(place)
    table.tags.create("first", 1)
    table.create_scalar_index("id", "BTREE")
    lance.write_dataset(pa.table({"id": [1, 2, 3], "word": ["a", "b", "c"]}), folder / "words.lance")
    return LanceCatalog(session, "dir", {"root": str(folder)})


def rows(frame: DataFrame) -> list[tuple[Any, ...]]:
    return sorted(map(tuple, frame.collect()))


def test_a_query_is_read_by_tasks(house: LanceCatalog) -> None:
    text = "SELECT d.title, w.word FROM docs d JOIN words w USING (id) WHERE id < 3 AND d.place.city = 'Bonn'"
    assert rows(house.sql(text)) == [("title 1", "a"), ("title 2", "b")]


def test_versions_tags_and_times(house: LanceCatalog) -> None:
    counted = {
        "docs": 30,
        "docs VERSION AS OF 2": 20,
        "docs VERSION AS OF 'first'": 10,
        "docs FOR SYSTEM_VERSION AS OF 1 d": 10,
        "docs TIMESTAMP AS OF current_timestamp() + INTERVAL 1 DAY": 30,
        "docs TIMESTAMP AS OF :at AS d": 30,
        "docs VERSION AS OF :version AS d": 20,
        "docs VERSION AS OF :tag": 10,
        "docs a LEFT ANTI JOIN docs VERSION AS OF 1 b ON a.id = b.id": 20,
    }
    for table, count in counted.items():
        args = {"at": "2126-01-01", "version": 2, "tag": "first"}
        assert rows(house.sql(f"SELECT count(*) FROM {table}", args)) == [(count,)], table
    with pytest.raises(InvalidInputError, match="VERSION AS OF :v needs the number of a version, or the name of a tag"):
        house.sql("SELECT id FROM docs VERSION AS OF :v", {"v": 1.5})
    with pytest.raises(InvalidInputError, match="TIMESTAMP AS OF 'nonsense' is no time"):
        house.sql("SELECT id FROM docs TIMESTAMP AS OF 'nonsense'")
    with pytest.raises(TableVersionNotFoundError, match="had no version yet at 2020-01-01"):
        house.sql("SELECT id FROM docs TIMESTAMP AS OF '2020-01-01 00:00:00+00:00'")
    with pytest.raises(TableTagNotFoundError):
        house.sql("SELECT id FROM docs VERSION AS OF 'nope'")
    with pytest.raises(TableVersionNotFoundError, match=r"^table docs has no version 99; the latest is \d$"):
        house.sql("SELECT id FROM docs VERSION AS OF 99")
    with pytest.raises(TableVersionNotFoundError, match=r"^table docs has no version 99; the latest is \d$"):
        house.read("docs", version=99)


def test_a_result_stays_as_it_is_when_the_table_changes(house: LanceCatalog, tmp_path: Path) -> None:
    lance.write_dataset(pa.table({"id": [1]}), tmp_path / "t.lance")
    catalog = LanceCatalog(house.spark, "dir", {"root": str(tmp_path)})
    frame = catalog.sql("SELECT * FROM t")
    lance.write_dataset(pa.table({"id": [2]}), tmp_path / "t.lance", mode="append")
    assert rows(frame) == [(1,)]
    assert rows(catalog.sql("SELECT * FROM t")) == [(1,), (2,)]


def test_arguments_braces_and_comments(house: LanceCatalog) -> None:
    text = "SELECT '{t0}' AS `a{b}`, id, ? AS n FROM docs WHERE id IN (?, ?) -- {c} ?"
    frame = house.sql(text, ["it's", 3, 4])
    assert frame.columns == ["a{b}", "id", "n"]
    assert rows(frame) == [("{t0}", 3, "it's"), ("{t0}", 4, "it's")]
    assert rows(house.sql("SELECT id FROM docs WHERE id = :n", {"n": 5})) == [(5,)]
    assert rows(house.sql("SELECT '{}' AS x")) == [("{}",)]


def test_whose_name_it_is(house: LanceCatalog, tmp_path: Path) -> None:
    spark = house.spark
    lance.write_dataset(pa.table({"id": [77]}), tmp_path / "docs.lance")
    other = LanceCatalog(spark, "dir", {"root": str(tmp_path)})
    house.attach("dev", other)
    text = "SELECT max(a.id), max(b.id) FROM docs a, dev.docs b"
    assert rows(house.sql(text)) == [(29, 77)]
    spark.range(5).createOrReplaceTempView("numbers")
    assert rows(house.sql("SELECT max(n.id), max(d.id) FROM numbers n, docs d WHERE n.id = d.id")) == [(4, 4)]
    spark.range(3).createOrReplaceTempView("words")  # a temporary view comes before a table
    try:
        assert rows(house.sql("SELECT count(*) FROM words")) == [(3,)]
    finally:
        spark.catalog.dropTempView("words")
    assert rows(house.sql("WITH docs AS (SELECT 1 AS id) SELECT id FROM docs")) == [(1,)]
    assert rows(house.sql("SELECT word FROM words WHERE id IN (SELECT id FROM docs WHERE id = 2)")) == [("b",)]
    with pytest.raises(TableNotFoundError, match=r"there is no table dcos, and Spark has .*did you mean docs"):
        house.sql("SELECT * FROM dcos")
    with pytest.raises(TableNotFoundError, match="there is no table nope"):
        house.sql("SELECT * FROM dev.nope")


def test_files_of_spark(house: LanceCatalog, tmp_path: Path) -> None:
    files = tmp_path / "some files"
    files.mkdir()
    pq.write_table(pa.table({"id": [1, 2, 77]}), files / "one.parquet")
    name = f"parquet.`{files}`"
    assert rows(house.sql(f"SELECT w.word FROM {name} f JOIN words w ON w.id = f.id AND w.id > 1")) == [("b",)]
    assert house.explain(f"SELECT max(id) FROM {name}") == f"of Spark: parquet.{files}"
    nested = LanceCatalog(house.spark, "dir", {"root": str(tmp_path)})
    nested.use("a.b")  # names are looked up below it first, where such levels may be refused
    assert rows(nested.sql(f"SELECT max(id) FROM {name}")) == [(77,)]
    with pytest.raises(UnsupportedOperationError, match=r"use spark\.sql for it"):
        house.sql(f"INSERT INTO {name} VALUES (3)")
    with pytest.raises(TableNotFoundError, match=f"there are no files {tmp_path}/nope for Spark to read as parquet"):
        house.sql(f"SELECT * FROM parquet.`{tmp_path}/nope`")
    with pytest.raises(InvalidInputError, match=r"make a temporary view of it, with spark\.read\.format\('lance'\)"):
        house.sql(f"SELECT * FROM lance.`{tmp_path}/docs.lance`")
    (tmp_path / "text.txt").write_text("words")
    with pytest.raises(InvalidInputError, match="FAILED_TO_CREATE_PLAN"):
        house.sql(f"SELECT * FROM parquet.`{tmp_path}/text.txt`")
    with pytest.raises(TableNotFoundError, match=r"there is no table text\.docs"):
        house.sql("SELECT * FROM text.docs")  # there is a folder `docs` where the tests run


@pytest.mark.parametrize("size", [0, 30_000, 50 << 20, 1 << 62])
def test_spark_knows_how_large_a_table_is(spark: Any, size: int) -> None:
    """Else it would send the largest table of a join to all tasks."""

    def work(number: int) -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"number": [number], "attempts": [1]})

    schema = to_struct(to_spark_rows(pa.schema([("number", pa.int64()), ("attempts", pa.int64())])).struct)
    frame = run_in_tasks(spark, [5, 6, 7], work, schema, size=size)
    told = int(frame._jdf.queryExecution().optimizedPlan().stats().sizeInBytes())
    assert size / 2 <= told <= size * 2 + 100 or told > 8 << 30  # of which Spark sends none in any case
    assert rows(frame) == [(5, 1), (6, 1), (7, 1)]
    assert len(set(frame.select(functions.spark_partition_id()).collect())) == 3


def test_rows_that_join_nothing_are_not_read(house: LanceCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys of a table that is small go to the scan of another, for which an index may answer."""
    filters = []

    def read(spark: SparkSession, pinned: PinnedVersion, scan: Scan) -> DataFrame:
        filters.append(scan.filter)
        return read_on_driver(spark, pinned, scan)

    monkeypatch.setattr(queries, "read_version", read)
    monkeypatch.setattr(queries, "read_small_version", read_unless_large)
    monkeypatch.setattr(f"{__name__}.LARGE", {"docs"})
    for text, expected, count in [
        ("FROM docs d, words w WHERE d.id = w.id AND w.word > 'a'", "`id` IN (2, 3)", 2),
        ("FROM words w LEFT JOIN docs d ON d.id = w.id WHERE word = 'c'", "`id` IN (3)", 1),
        ("FROM words w JOIN docs d ON d.id = w.id AND w.word = 'z'", "(`id` IS NULL AND `id` IS NOT NULL)", 0),
        ("FROM words v, words w, docs d WHERE v.id = w.id AND v.word = 'b' AND d.id = w.id", "`id` IN (2)", 1),
        ("FROM docs d, words w WHERE d.id = w.id AND w.word > 'a' AND d.id < 3", "(`id` < 3) AND `id` IN (2, 3)", 1),
        ("FROM docs d LEFT JOIN words w ON d.id = w.id AND w.word > 'a'", None, 30),
        ("FROM docs d JOIN words w ON d.id = w.id", None, 3),  # all rows of a table tell little
        ("FROM docs d LEFT ANTI JOIN words w ON d.id = w.id AND w.word = 'b'", None, 29),
        ("FROM docs d LEFT SEMI JOIN words w ON d.id = w.id AND w.word = 'b'", "`id` IN (2)", 1),
    ]:
        filters.clear()
        assert len(house.sql(f"SELECT d.title {text}").collect()) == count, text
        assert filters == [expected], text


def test_names_of_several_levels(house: LanceCatalog, lancehouse_server: Served) -> None:
    managed = managed_by_lancehouse(lancehouse_server)
    catalog = LanceCatalog(house.spark, managed.impl, managed.properties)
    table = managed.id("docs")
    catalog.create(house.spark.range(7), table)
    name = format_levels(table)
    assert rows(catalog.sql(f"SELECT max({name}.id) FROM {name} WHERE docs.id < 5")) == [(4,)]
    catalog.use(managed.levels)
    assert rows(catalog.sql("SELECT docs.* FROM docs WHERE id = 5")) == [(5,)]
    catalog.use(managed.levels[:1])
    below = format_levels(table[1:])
    assert rows(catalog.sql(f"SELECT count(*) FROM {below}")) == [(7,)]
    house.attach("far", catalog)
    assert rows(house.sql(f"SELECT d.id FROM far.{name} f JOIN docs d ON d.id = f.id AND f.id > 4")) == [(5,), (6,)]
    with pytest.raises(TableNotFoundError, match="did you mean"):
        catalog.sql(f"SELECT 1 FROM {format_levels((*table[:-1], 'dosc'))}")


def test_aggregates_have_the_names_and_types_of_spark(house: LanceCatalog) -> None:
    theirs = house.spark.newSession()
    house.read("docs").createOrReplaceTempView("plain")
    queried = [
        "SELECT count(*) FROM {}",
        "SELECT COUNT(1) AS n, count(*) FROM {}",
        "SELECT sum(id), avg(ID), min(title) AS `a b`, max(amount), sum(amount), count(title) FROM {}",
        "SELECT title, sum(id), title AS again FROM {} WHERE id > 3 AND title <> 'title 1' GROUP BY title",
        "SELECT sum(id), count(*) FROM {} WHERE id < 0",
    ]
    for text in queried:
        mine = queries.PlannedQuery(house, text.format("docs"))
        assert mine.whole_aggregate() is not None, text
        found, expected = mine.run(), house.spark.sql(text.format("plain"))
        assert [(each.name, each.dataType) for each in found.schema] == [
            (each.name, each.dataType) for each in expected.schema
        ]
        assert rows(found) == rows(expected), text
    house.spark.catalog.dropTempView("plain")
    assert theirs is not house.spark


def test_names_in_double_quotes(spark: SparkSession, tmp_path: Path) -> None:
    lance.write_dataset(pa.table({"a": ["x", "b"], "b": ["x", "y"], "n": [1, 2]}), tmp_path / "t.lance")
    session = spark.newSession()
    catalog = LanceCatalog(session, "dir", {"root": str(tmp_path)})
    text = 'SELECT n FROM t WHERE a = "b"'
    assert [row.n for row in catalog.sql(text).collect()] == [2], "a text"
    session.conf.set("spark.sql.ansi.doubleQuotedIdentifiers", "TRUE")
    assert [row.n for row in catalog.sql(text).collect()] == [1], "a column, as Spark's rules are those of ANSI"
    assert queries.PlannedQuery(catalog, "SELECT sum(n) FROM t").whole_aggregate() is None


def test_settings_that_nobody_has_set(spark: SparkSession) -> None:
    session = spark.newSession()
    settings = queries.read_settings(session)
    assert (settings.is_ansi, settings.is_case_sensitive, settings.is_odd) == (True, False, False)
    session.conf.set("spark.sql.caseSensitive", "TRUE")
    session.conf.set("spark.sql.ansi.enabled", "false")
    settings = queries.read_settings(session)
    assert (settings.is_ansi, settings.is_case_sensitive) == (False, True)
    assert name_normalizer(session)("Name") == "Name"


def test_explain(house: LanceCatalog) -> None:
    text = (
        "SELECT d.title FROM docs VERSION AS OF 3 d JOIN words ON d.id = words.id WHERE d.id = 2 AND upper(title) = 'A'"
    )
    lines = house.explain(text).splitlines()
    assert lines == [
        "docs AS d: version 3, 30 rows",
        "  columns: id, title (2 of 5)",
        "  filter: `id` = 2",
        "  index: none",
        "  left to Spark: UPPER(title) = 'A' (it may mean something else to Lance)",
        "words AS words: version 1, 3 rows",
        "  columns: id (1 of 2)",
        "  filter: none",
    ]
    assert "  index: id_idx (BTree)" in house.explain("SELECT id FROM docs WHERE id = 2")
    assert house.explain("SELECT count(*) FROM docs").endswith("result: the number of rows in the manifest")
    assert house.explain("SELECT 1") == "no tables"
    assert "LocalTableScan" in house.sql("EXPLAIN SELECT id FROM docs WHERE id = 2").first()[0]


def test_the_page(house: LanceCatalog, capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "sql.md").read_text().partition("## Statements")[0]
    for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(block, {"cat": house})
    shown = capsys.readouterr().out
    assert "|title 2|" in shown
    assert "  index: id_idx (BTree)" in shown
    for text in re.findall(r"^SELECT .*", re.search(r"```sql\n(.*?)```", page, re.DOTALL)[1], re.MULTILINE):  # type: ignore[index]
        QueryText(text)


def test_searches_are_relations(house: LanceCatalog, tmp_path: Path) -> None:
    vectors = pa.array([[number / 10, 1.0] for number in range(10)], pa.list_(pa.float32(), 2))
    words = [f"word{number % 3} all" for number in range(10)]
    table = lance.write_dataset(pa.table({"id": range(10), "emb": vectors, "body": words}), tmp_path / "vectors.lance")
    table.create_scalar_index("body", "INVERTED")
    catalog = LanceCatalog(house.spark, "dir", {"root": str(tmp_path)})
    catalog.attach("docs", house)
    near = "SELECT s.id, d.title FROM vector_search(table => 'vectors', vector => array(0.5, 1), k => 3) s"
    expected = [(4, "title 1"), (5, "title 2"), (6, "title 0")]
    assert rows(catalog.sql(f"{near} JOIN docs.docs d ON s.id = d.id")) == expected
    found = catalog.sql("SELECT id FROM vector_search(TABLE vectors, :v, 2, filter => 'id > 7')", {"v": [0.0, 1.0]})
    assert rows(found) == [(8,), (9,)]
    several = "(SELECT id AS query_id, emb AS vector FROM vectors WHERE id IN (1, 8))"
    counted = catalog.sql(
        f"SELECT query_id, count(*), min(rank) FROM vector_search('vectors', queries => {several}, k => 2) GROUP BY ALL"
    )
    assert rows(counted) == [(1, 2, 1), (8, 2, 1)]
    assert {row.id % 3 for row in catalog.sql("SELECT id FROM text_search('vectors', 'word2', k => 9)").collect()} == {
        2
    }
    both = "SELECT id FROM hybrid_search('vectors', array(0.2, 1), 'word2', k => 1)"
    assert rows(catalog.sql(both)) == [(2,)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LanceCatalog, "_search", lambda *_: pytest.fail("it searches"))
        assert "vector_search of vectors AS s:" in catalog.explain(near.replace("d.title", "1"))
    text = "text_search('vectors', 'word2', columns => array('id'))"
    for search in ("vector_search('vectors', array(0.5, 1))", text, both.partition("FROM ")[2],
                   f"vector_search('vectors', queries => {several})", "text_search('vectors', array('all', 'word1'))",
                   "vector_search('vectors', array(array(0.5, 1)), version => 1)"):  # fmt: skip
        planned = queries.PlannedQuery(catalog, f"SELECT * FROM {search}")
        assert list(planned._columns_of((search_name(0),)) or ()) == planned.run().columns
    with pytest.raises(InvalidInputError, match="vector_search has no argument kk; did you mean k"):
        catalog.sql("SELECT * FROM vector_search('vectors', array(1, 2), kk => 3)")
    with pytest.raises(InvalidInputError, match="needs the table"):
        catalog.sql("SELECT * FROM vector_search(k => 3)")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("SELECT nope FROM docs", r"`nope` cannot be resolved.*\[`id`, .*`title`"),
        ("SELECT id FROM docs d WHERE titel = 'a'", r"`titel` cannot be resolved.*\[`title`"),
        ("SELECT FROM docs", "Syntax error"),
        ("SELECT id FROM docs WHERE", "cannot be parsed"),
        ("SELECT id FROM docs GROUP BY title", "id"),
    ],
)
def test_what_spark_refuses(house: LanceCatalog, text: str, says: str) -> None:
    with pytest.raises(InvalidInputError, match=says) as error:
        house.sql(text)
    assert not any(word in str(error.value) for word in ("at org.apache", "_pyspark_", "Project"))


def test_explain_shows_the_plan_of_aggregates_too(house: LanceCatalog) -> None:
    for text in ("SELECT count(*) FROM docs", "SELECT title, count(*) FROM docs GROUP BY title"):
        [(shown,)] = house.sql(f"EXPLAIN {text}").collect()
        assert "== Physical Plan ==" in shown


@pytest.fixture(scope="module")
def generated(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LanceCatalog, SparkSession]]:
    folder = tmp_path_factory.mktemp("generated")
    ours, theirs = spark.newSession(), spark.newSession()
    for session in (ours, theirs):
        for key, value in FAST.items():
            session.conf.set(key, value)
    catalog = LanceCatalog(ours, "dir", {"root": str(folder)})
    for name, rows in make_tables().items():
        table = lance.write_dataset(rows, folder / f"{name}.lance", max_rows_per_file=8)
        table.create_scalar_index("k", "BTREE")
        for column in {"x", "ts", "d"} & set(rows.column_names):
            table.create_scalar_index(column, "BTREE")
        pq.write_table(rows, folder / f"{name}.parquet")
        theirs.read.parquet(str(folder / f"{name}.parquet")).createOrReplaceTempView(name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(queries, "read_version", read_on_driver)
        patch.setattr(queries, "read_small_version", read_unless_large)
        yield catalog, theirs


LARGE: set[str] = set()
"""Tables that are not read before Spark begins, however small they are."""


def read_unless_large(pinned: PinnedVersion, scan: Scan, most_bytes: int) -> pa.Table | None:
    return None if pinned.address.id[-1] in LARGE else read_small_version(pinned, scan, most_bytes)


@pytest.fixture(scope="module")
def tpch(
    spark: Any, soak: bool, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[LanceCatalog, SparkSession]]:
    folder = tmp_path_factory.mktemp("tpch")
    files = generate(folder / "files", 0.1 if soak else 0.01)
    ours, theirs = spark.newSession(), spark.newSession()
    catalog = LanceCatalog(ours, "dir", {"root": str(folder / "lance")})
    jobs = TableJobs(Connection("dir", {"root": str(folder / "lance")}))
    for table in TABLES:
        jobs.ingest(files / f"{table}.parquet", table)
        theirs.read.parquet(str(files / f"{table}.parquet")).createOrReplaceTempView(table)
    with pytest.MonkeyPatch.context() as patch:
        if not soak:
            patch.setattr(queries, "read_version", read_on_driver)
        yield catalog, theirs


@pytest.mark.parametrize("number", TPCH)
def test_tpch(tpch: tuple[LanceCatalog, SparkSession], number: int) -> None:
    read_small_tables(tpch[0], before_spark=number % 2 == 0)
    catalog, theirs = tpch
    assert catalog.sql(TPCH[number]).collect() == theirs.sql(TPCH[number]).collect()


@contextmanager
def failed_casts_are_null(*sessions: SparkSession) -> Iterator[None]:
    """Whether a cast that fails is ever evaluated then makes no difference."""
    for session in sessions:
        session.conf.set("spark.sql.ansi.enabled", "false")
    yield
    for session in sessions:
        session.conf.unset("spark.sql.ansi.enabled")


def check_generated(catalog: LanceCatalog, theirs: SparkSession, seeds: range) -> tuple[int, int]:
    """Compare queries; how many have an answer, and how many of their scans have a filter."""
    answered = filtered = 0
    for seed in seeds:
        text = make_query(seed)
        expected, found = answer(theirs.sql, text), answer(catalog.sql, text)
        if UNDECIDED in (expected, found):
            with failed_casts_are_null(theirs, catalog.spark):
                expected, found = answer(theirs.sql, text), answer(catalog.sql, text)
            assert UNDECIDED not in (expected, found), f"{seed}: {text}"
        if isinstance(expected, str):
            assert isinstance(found, str), f"{seed}: {text}\n{expected}"
            continue
        plans = [
            (plan.use.parts, plan.columns, plan.filter) for plan in queries.PlannedQuery(catalog, text).planner.scans
        ]
        assert found == expected, f"{seed}: {text}\n{plans}"
        answered += 1
        filtered += sum(plan[-1] is not None for plan in plans)
    return answered, filtered


def read_small_tables(catalog: LanceCatalog, *, before_spark: bool) -> None:
    """Choose one of the two ways in which tables of a query are read."""
    catalog.driver_bytes = default_driver_bytes() if before_spark else 0


def choose_large_tables(catalog: LanceCatalog, chunk: int) -> None:
    """Choose which tables are read before Spark begins: all, none, or some whose keys choose the rows of the others."""
    LARGE.clear()
    LARGE.update([*COLUMNS][chunk % 2 :: 2] if chunk % 4 > 1 else [])
    read_small_tables(catalog, before_spark=chunk % 4 != 1)


@pytest.mark.parametrize("first", range(0, QUERIES, CHUNK))
def test_generated_queries(generated: tuple[LanceCatalog, SparkSession], first: int) -> None:
    choose_large_tables(generated[0], first // CHUNK)
    answered, filtered = check_generated(*generated, range(first, first + CHUNK))
    assert answered >= CHUNK // 2
    assert filtered > 0


@pytest.mark.soak
@pytest.mark.parametrize("first", range(QUERIES, ALL_QUERIES, CHUNK))
def test_more_generated_queries(generated: tuple[LanceCatalog, SparkSession], first: int) -> None:
    choose_large_tables(generated[0], first // CHUNK)
    answered, _ = check_generated(*generated, range(first, first + CHUNK))
    assert answered >= CHUNK // 2
