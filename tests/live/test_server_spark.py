"""Spark 4.1 with Iceberg's own connector on our server: Lance tables to read, Iceberg tables to read and write."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from uuid import uuid4

import lance
import pyarrow as pa
import pytest

from tests.servers.lancehouse import Served
from tests.servers.spark41 import Row, Spark, SparkError

ROWS = pa.table(
    {
        "id": pa.array(range(10), pa.int64()),
        "word": pa.array([None if number % 5 == 4 else f"w{number}" for number in range(10)]),
        "vector": pa.array([[float(number)] * 2 for number in range(10)], pa.list_(pa.float32(), 2)),
    }
)


@dataclass(frozen=True)
class ServerSparkNamespace:
    """A namespace of the test's own, seen from Spark."""

    spark: Spark
    catalog: str
    namespace: str
    folder: Path

    def sql(self, text: str) -> list[Row]:
        """Run a statement in which `HOME` stands for the namespace."""
        return self.spark.sql(text.replace("HOME", f"{self.catalog}.{self.namespace}"))

    def adopt(self, name: str) -> None:
        """Make the dataset `name` in the namespace's folder a table; Spark's own DDL keeps `table_type` for itself."""
        self.sql(f"CALL {self.catalog}.system.register_table('{self.namespace}.{name}', '{self.folder / name}')")


@pytest.fixture
def home(spark41: Spark, lancehouse_server: Served) -> ServerSparkNamespace:
    key = uuid4().hex[:8]
    spark41.catalog(f"catalog_{key}", {"uri": lancehouse_server.iceberg, "warehouse": lancehouse_server.warehouse})
    spark41.sql(f"CREATE NAMESPACE catalog_{key}.home_{key}")
    return ServerSparkNamespace(spark41, f"catalog_{key}", f"home_{key}", lancehouse_server.location / f"home_{key}")


@pytest.fixture
def words(home: ServerSparkNamespace) -> ServerSparkNamespace:
    """With a Lance table of two versions: ten rows, then twelve."""
    lance.write_dataset(ROWS, str(home.folder / "words"))
    lance.write_dataset(ROWS.slice(0, 2), str(home.folder / "words"), mode="append")
    home.adopt("words")
    return home


@pytest.mark.parametrize(
    ("query", "rows"),
    [
        ("SELECT count(*) n FROM HOME.words", [{"n": 12}]),
        ("SELECT count(*) n FROM HOME.words VERSION AS OF 1", [{"n": 10}]),
        ("SELECT word FROM HOME.words WHERE id = 7", [{"word": "w7"}]),
        ("SELECT id FROM HOME.words WHERE word IS NULL ORDER BY id", [{"id": 4}, {"id": 9}]),
        ("SELECT sum(id) s FROM HOME.words WHERE id > 2 AND word LIKE 'w%'", [{"s": 3 + 5 + 6 + 7 + 8}]),
        ("SELECT vector FROM HOME.words WHERE id = 3", [{"vector": [3.0, 3.0]}]),
        ("SELECT id FROM HOME.words WHERE id IN (2, 99) OR id < 0", [{"id": 2}]),
    ],
)
def test_rows_of_a_lance_table(words: ServerSparkNamespace, query: str, rows: list[Row]) -> None:
    assert words.sql(query) == rows


def test_what_spark_shows_of_a_lance_table(words: ServerSparkNamespace) -> None:
    assert [row["tableName"] for row in words.sql("SHOW TABLES IN HOME")] == ["words"]
    described = {row["col_name"]: row["data_type"] for row in words.sql("DESCRIBE TABLE HOME.words")}
    assert described == {"id": "bigint", "word": "string", "vector": "array<float>"}
    properties = {row["key"]: row["value"] for row in words.sql("SHOW TBLPROPERTIES HOME.words")}
    assert properties["managed_by"] == "storage"


def test_a_new_version_shows_at_once(words: ServerSparkNamespace) -> None:
    before = words.sql("SELECT count(*) n FROM HOME.words")
    lance.write_dataset(ROWS.slice(0, 1), str(words.folder / "words"), mode="append")
    words.sql("REFRESH TABLE HOME.words")
    assert words.sql("SELECT count(*) n FROM HOME.words") == [{"n": before[0]["n"] + 1}]


TYPES = pa.table(
    {
        "i": pa.array([1, None], pa.uint32()),
        "big": pa.array([2**64 - 1, 0], pa.uint64()),
        "t": pa.array([1_700_000_000_123_456_789, None], pa.timestamp("ns")),
        "z": pa.array([1_700_000_000_000_000, None], pa.timestamp("us", "Europe/Paris")),
        "d": pa.array([date(2024, 2, 29), None]),
        "n": pa.array([Decimal("1.50"), None], pa.decimal128(10, 2)),
        "s": pa.array([{"a": 1, "b": ["x", None]}, None], pa.struct([("a", pa.int32()), ("b", pa.list_(pa.string()))])),
    }
)


def test_types(home: ServerSparkNamespace) -> None:
    lance.write_dataset(TYPES, str(home.folder / "types"))
    home.adopt("types")
    [row] = home.sql("SELECT * FROM HOME.types WHERE i = 1")
    assert row == {
        "i": 1,
        "big": str(2**64 - 1),
        "t": str(datetime(2023, 11, 14, 22, 13, 20, 123456)),
        "z": str(datetime(2023, 11, 14, 22, 13, 20)),
        "d": "2024-02-29",
        "n": "1.50",
        "s": {"a": 1, "b": ["x", None]},
    }


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        ("INSERT INTO HOME.words VALUES (1, 'x', NULL)", "lance:/"),  # the client looks for manifests of Iceberg's kind
        ("CALL CATALOG.system.rollback_to_snapshot('HOME.words', 1)", "(?i)managed_by|storage"),
    ],
)
def test_writing_to_a_table_that_storage_manages_is_refused(
    words: ServerSparkNamespace, statement: str, why: str
) -> None:
    with pytest.raises(SparkError, match=why):
        words.sql(statement.replace("CATALOG", words.catalog))
    assert lance.dataset(str(words.folder / "words")).version == 2
    assert words.sql("SELECT count(*) n FROM HOME.words") == [{"n": 12}]


def test_properties_of_a_lance_table(words: ServerSparkNamespace) -> None:
    words.sql("ALTER TABLE HOME.words SET TBLPROPERTIES ('colour' = 'red')")
    assert words.sql("SHOW TBLPROPERTIES HOME.words ('colour')")[0]["value"] == "red"
    words.sql("ALTER TABLE HOME.words UNSET TBLPROPERTIES ('colour')")
    assert "colour" not in {row["key"] for row in words.sql("SHOW TBLPROPERTIES HOME.words")}


def test_dropping_a_lance_table_leaves_its_data(words: ServerSparkNamespace) -> None:
    words.sql("DROP TABLE HOME.words")
    assert words.sql("SHOW TABLES IN HOME") == []
    assert lance.dataset(str(words.folder / "words")).count_rows() == 12


def make(home: ServerSparkNamespace) -> Callable[[str], list[Row]]:
    home.sql("CREATE TABLE HOME.t (id BIGINT, word STRING, day DATE) USING iceberg PARTITIONED BY (day)")
    home.sql("INSERT INTO HOME.t VALUES (1, 'a', DATE'2024-01-01'), (2, 'b', DATE'2024-01-02'), (3, 'c', NULL)")
    return lambda more: home.sql(f"SELECT id, word FROM HOME.t {more} ORDER BY id")


def test_an_iceberg_table(home: ServerSparkNamespace) -> None:
    rows = make(home)
    assert rows("WHERE day = DATE'2024-01-02'") == [{"id": 2, "word": "b"}]
    home.sql("UPDATE HOME.t SET word = 'B' WHERE id = 2")
    home.sql("DELETE FROM HOME.t WHERE id = 1")
    home.sql(
        "MERGE INTO HOME.t USING (SELECT 3 id, 'C' word UNION SELECT 4, 'd') s ON t.id = s.id "
        "WHEN MATCHED THEN UPDATE SET word = s.word WHEN NOT MATCHED THEN INSERT (id, word) VALUES (s.id, s.word)"
    )
    assert rows("") == [{"id": 2, "word": "B"}, {"id": 3, "word": "C"}, {"id": 4, "word": "d"}]
    home.sql("ALTER TABLE HOME.t ADD COLUMN size INT")
    assert home.sql("SELECT size FROM HOME.t WHERE id = 2") == [{"size": None}]


def test_rows_that_were_deleted_by_merge_on_read(home: ServerSparkNamespace) -> None:
    rows = make(home)
    home.sql("ALTER TABLE HOME.t SET TBLPROPERTIES ('write.delete.mode' = 'merge-on-read', 'format-version' = '2')")
    home.sql("INSERT INTO HOME.t SELECT id, 'x', DATE'2024-05-05' FROM range(10, 20)")
    home.sql("DELETE FROM HOME.t WHERE id BETWEEN 12 AND 17")
    deletes = home.sql("SELECT count(*) n FROM HOME.t.delete_files")
    assert deletes[0]["n"] > 0
    assert [row["id"] for row in rows("WHERE id >= 10")] == [10, 11, 18, 19]
    first = home.sql("SELECT snapshot_id FROM HOME.t.snapshots ORDER BY committed_at LIMIT 1")[0]["snapshot_id"]
    assert [row["id"] for row in rows(f"VERSION AS OF {first}")] == [1, 2, 3]


def test_lance_and_iceberg_in_one_query(words: ServerSparkNamespace) -> None:
    make(words)
    joined = "SELECT l.id, l.word, i.word w FROM HOME.words l JOIN HOME.t i ON l.id = i.id WHERE l.id = 3"
    assert words.sql(joined) == [{"id": 3, "word": "w3", "w": "c"}]
    words.sql("CREATE TABLE HOME.copy USING iceberg AS SELECT id, word FROM HOME.words WHERE id < 5")
    assert words.sql("SELECT count(*) n FROM HOME.copy") == [{"n": 7}]


def test_a_view(words: ServerSparkNamespace) -> None:
    words.sql("CREATE VIEW HOME.small AS SELECT id FROM HOME.words WHERE id < 2")
    assert words.sql("SELECT DISTINCT id FROM HOME.small ORDER BY id") == [{"id": 0}, {"id": 1}]
    words.sql("DROP VIEW HOME.small")
    with pytest.raises(SparkError, match="TABLE_OR_VIEW_NOT_FOUND"):
        words.sql("SELECT * FROM HOME.small")
