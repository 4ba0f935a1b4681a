"""Statements of SQL that change and show tables, through `cat.sql`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance_namespace.errors import (
    InvalidInputError,
    LanceNamespaceError,
    TableAlreadyExistsError,
    TableColumnNotFoundError,
    TableNotFoundError,
    TableSchemaValidationError,
    UnsupportedOperationError,
)

from lancehouse.spark import LanceCatalog


@pytest.fixture
def cat(spark: Any, tmp_path: Path) -> LanceCatalog:
    return LanceCatalog(spark, "dir", {"root": str(tmp_path)})


def rows(cat: LanceCatalog, table: str = "t") -> list[tuple[Any, ...]]:
    """All rows, in an order of their own."""
    found = cat._address(table).to_ref().open().to_table().to_pylist()
    return sorted((tuple(row.values()) for row in found), key=repr)


def answer(cat: LanceCatalog, text: str, args: Any = None) -> list[dict[str, Any]]:
    return [row.asDict() for row in cat.sql(text, args).collect()]


def version(cat: LanceCatalog, table: str = "t") -> int:
    return int(cat._address(table).to_ref().open().version)


def fill(cat: LanceCatalog, count: int = 6, *, files: int = 2) -> None:
    """A table of numbers and texts in some files, two of whose rows are null."""
    cat.sql("CREATE TABLE t (id BIGINT NOT NULL, name STRING, price DOUBLE, at TIMESTAMP)")
    for first in range(0, count, -(-count // files)):
        cat.sql(
            "INSERT INTO t SELECT id, CASE WHEN id = 4 THEN NULL ELSE concat('n', id) END, id * 1.5D, "
            f"timestamp_seconds(id) FROM range({first}, {min(first + -(-count // files), count)})"
        )


def test_insert(cat: LanceCatalog) -> None:
    fill(cat)
    assert len(rows(cat)) == 6
    assert answer(cat, "INSERT INTO t VALUES (10, 'a', 1, NULL), (11, DEFAULT, 2, NULL)") == [
        {"num_affected_rows": 2, "num_inserted_rows": 2}
    ]
    cat.sql("INSERT INTO TABLE t (price, ID) VALUES (:p, ?)".replace("?", ":i"), {"p": 2.5, "i": 12})
    cat.sql("INSERT INTO t (id, name) VALUES (?, ?)", [13, "it's"])
    cat.sql("INSERT INTO t BY NAME SELECT 'x' AS name, 14L AS id")
    cat.sql("WITH q AS (SELECT 15 AS a) INSERT INTO t (id) SELECT a FROM q")
    new = [row[:3] for row in rows(cat) if row[0] > 9]
    assert new == [
        (10, "a", 1.0), (11, None, 2.0), (12, None, 2.5), (13, "it's", None), (14, "x", None), (15, None, None),
    ]  # fmt: skip
    cat.sql("CREATE TABLE u LIKE t")
    cat.sql("INSERT INTO u TABLE t")
    assert rows(cat, "u") == rows(cat)


def test_insert_overwrite(cat: LanceCatalog) -> None:
    fill(cat)
    before = cat._address("t").to_ref().open().schema
    assert (
        answer(cat, "INSERT OVERWRITE t (id, name) SELECT id + 1, name FROM t WHERE id < 2")[0]["num_inserted_rows"]
        == 2
    )
    assert rows(cat) == [(1, "n0", None, None), (2, "n1", None, None)]
    assert cat._address("t").to_ref().open().schema == before


def test_insert_replace_where(cat: LanceCatalog) -> None:
    fill(cat)
    number = version(cat)
    assert answer(cat, "INSERT INTO t REPLACE WHERE id >= 2 SELECT 7, 'seven', 0, NULL") == [
        {"num_affected_rows": 5, "num_inserted_rows": 1, "num_deleted_rows": 4}
    ]
    assert [row[:2] for row in rows(cat)] == [(0, "n0"), (1, "n1"), (7, "seven")]
    assert version(cat) == number + 1
    with pytest.raises(LanceNamespaceError, match="does not fulfil REPLACE WHERE id < 0"):
        cat.sql("INSERT INTO t REPLACE WHERE id < 0 SELECT 7, 'seven', 0, NULL")
    assert version(cat) == number + 1


def test_update(cat: LanceCatalog) -> None:
    fill(cat)
    number = version(cat)
    done = answer(cat, "UPDATE t AS x SET x.name = upper(concat(name, :tail)), price = -x.price WHERE id % 2 = 1",
                  {"tail": "?"})  # fmt: skip
    assert done == [{"num_affected_rows": 3}]
    assert [row[:3] for row in rows(cat)] == [
        (0, "n0", 0.0), (1, "N1?", -1.5), (2, "n2", 3.0), (3, "N3?", -4.5), (4, None, 6.0), (5, "N5?", -7.5),
    ]  # fmt: skip
    assert version(cat) == number + 1
    assert answer(cat, "UPDATE t SET price = DEFAULT")[0]["num_affected_rows"] == 6
    assert {row[2] for row in rows(cat)} == {None}
    assert answer(cat, "UPDATE t SET price = 1 WHERE id > 100")[0]["num_affected_rows"] == 0
    assert version(cat) == number + 2


def test_updated_rows_keep_their_ids_and_other_columns(cat: LanceCatalog) -> None:
    """Also what Spark would round: nanoseconds. And vectors, blobs and types that it has not."""
    blob = pa.field("blob", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    plain = {"id": pa.uint64(), "ns": pa.timestamp("ns"), "emb": pa.list_(pa.float32(), 2)}
    schema = pa.schema([*pa.schema(plain), blob, pa.field("kind", pa.dictionary(pa.int8(), pa.string()))])
    count = 150
    table = pa.table(
        [
            pa.array(range(count), pa.uint64()),
            pa.array([1_234_567_891 + i for i in range(count)], pa.timestamp("ns")),
            pa.array([[i, 0.5] for i in range(count)], pa.list_(pa.float32(), 2)),
            pa.array([b"b%d" % i * 10 for i in range(count)], pa.large_binary()),
            pa.array([str(i % 3) for i in range(count)]).dictionary_encode().cast(schema.field("kind").type),
        ],
        schema=schema,
    )
    cat.create_table("b", schema)
    ref = cat._address("b").to_ref()
    lance.write_dataset(table, ref.open().uri, mode="append", max_rows_per_file=40)

    def read() -> list[dict[str, Any]]:
        scanner = ref.open().scanner(with_row_id=True, blob_handling="all_binary")
        return sorted(scanner.to_table().to_pylist(), key=lambda row: row["id"])

    before = read()
    cat.sql("UPDATE b SET kind = concat('new', kind) WHERE id % 2 = 1")
    cat.sql("DELETE FROM b WHERE id % 3 = 2")
    expected = [
        {**row, "kind": f"new{row['kind']}" if row["id"] % 2 else row["kind"]} for row in before if row["id"] % 3 != 2
    ]
    assert [dict(row) for row in read()] == expected


def test_delete(cat: LanceCatalog, spark: Any) -> None:
    fill(cat)
    number = version(cat)
    assert answer(cat, "DELETE FROM t WHERE length(name) = 2 AND id % 2 = 0") == [{"num_affected_rows": 2}]
    assert version(cat) == number + 1
    spark.createDataFrame([(1,), (None,)], "k int").createOrReplaceTempView("doomed")
    assert answer(cat, "DELETE FROM t AS x WHERE EXISTS (SELECT 1 FROM doomed WHERE k = x.id)")[0] == {
        "num_affected_rows": 1
    }
    assert [row[0] for row in rows(cat)] == [3, 4, 5]
    cat.sql("TRUNCATE TABLE t")
    assert rows(cat) == []
    assert answer(cat, "DELETE FROM t") == [{"num_affected_rows": 0}]


def test_a_subquery_reads_tables_of_the_catalog(cat: LanceCatalog) -> None:
    fill(cat)
    cat.sql("CREATE TABLE other AS SELECT id, id * 100 AS score FROM range(3)")
    cat.sql(
        "UPDATE t SET price = (SELECT max(score) FROM other WHERE other.id = t.id) WHERE id IN (SELECT id FROM other)"
    )
    assert [row[2] for row in rows(cat)] == [0.0, 100.0, 200.0, 4.5, 6.0, 7.5]
    cat.sql("DELETE FROM t WHERE id = (SELECT max(id) FROM t)")
    assert len(rows(cat)) == 5


def test_merge(cat: LanceCatalog, spark: Any) -> None:
    fill(cat)
    number = version(cat)
    spark.createDataFrame(
        [(1, "one"), (2, "two"), (9, "nine"), (10, None)], "id int, name string"
    ).createOrReplaceTempView("s")
    done = answer(
        cat,
        """
        MERGE INTO t USING s ON t.id = s.id
        WHEN MATCHED AND s.name = 'one' THEN UPDATE SET name = s.name, t.price = price + 100
        WHEN MATCHED THEN DELETE
        WHEN NOT MATCHED AND name IS NOT NULL THEN INSERT (id, name) VALUES (id, upper(s.name)) -- id is the source's
        WHEN NOT MATCHED BY SOURCE AND id > 4 THEN UPDATE SET name = concat(name, '!')
        WHEN NOT MATCHED BY SOURCE AND t.id = 0 THEN DELETE;
        """,
    )
    assert done == [{"num_affected_rows": 5, "num_updated_rows": 2, "num_deleted_rows": 2, "num_inserted_rows": 1}]
    assert [row[:3] for row in rows(cat)] == [
        (1, "one", 101.5), (3, "n3", 4.5), (4, None, 6.0), (5, "n5!", 7.5), (9, "NINE", None),
    ]  # fmt: skip
    assert version(cat) == number + 1


def test_merge_by_star(cat: LanceCatalog) -> None:
    fill(cat)
    cat.sql(
        "MERGE INTO t USING (SELECT id + 3 AS ID, 'new' AS name, 0 AS price, current_timestamp() AS at, 1 AS more "
        "FROM range(5)) AS s ON t.id = s.id WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    )
    assert [row[:2] for row in rows(cat)] == [
        (0, "n0"), (1, "n1"), (2, "n2"), *((number, "new") for number in range(3, 8)),
    ]  # fmt: skip


def test_a_row_that_two_rows_would_change(cat: LanceCatalog, spark: Any) -> None:
    fill(cat)
    number = version(cat)
    spark.createDataFrame([(1, "a"), (1, "b")], "id int, name string").createOrReplaceTempView("twice")
    merge = "MERGE INTO t USING twice AS s ON t.id = s.id WHEN MATCHED "
    for clause in ("THEN UPDATE SET name = s.name", "AND s.id > 0 THEN DELETE"):
        with pytest.raises(InvalidInputError, match="matches several rows of the source"):
            cat.sql(merge + clause)
    assert version(cat) == number
    assert answer(cat, f"{merge} AND s.name = 'b' THEN UPDATE SET name = s.name")[0]["num_updated_rows"] == 1
    assert answer(cat, f"{merge} THEN DELETE")[0] == {
        "num_affected_rows": 1, "num_updated_rows": 0, "num_deleted_rows": 1, "num_inserted_rows": 0,
    }  # fmt: skip


REFUSED: list[tuple[str, type[Exception], str]] = [
    ("INSERT INTO t SELECT 1", TableSchemaValidationError, "the query has 1 columns, and 4 are expected: id, name"),
    ("INSERT INTO t (id, nam) VALUES (1, 'a')", TableColumnNotFoundError, "no column nam"),
    ("INSERT INTO t (id, ID) VALUES (1, 2)", InvalidInputError, "id is named twice"),
    ("INSERT INTO t (id) VALUES ('1')", TableSchemaValidationError, "column id: string is not stored as bigint"),
    ("INSERT INTO t (name) VALUES ('1')", TableSchemaValidationError, "id is missing and may not be null"),
    ("INSERT INTO t (id) VALUES (NULL)", LanceNamespaceError, "id"),
    ("INSERT INTO t PARTITION (id = 1) SELECT 1", UnsupportedOperationError, "PARTITION is not supported"),
    ("INSERT INTO absent SELECT 1", TableNotFoundError, "absent"),
    ("UPDATE t SET nam = 1", TableColumnNotFoundError, "no column nam"),
    ("UPDATE t SET id = 'x'", TableSchemaValidationError, "string is not stored as bigint"),
    ("UPDATE t SET name.x = 'x'", InvalidInputError, "a field of a struct cannot be set alone"),
    ("UPDATE t SET id = 1, ID = 2", InvalidInputError, "id is set twice"),
    ("UPDATE t SET id = NULL WHERE id = 1", LanceNamespaceError, "id"),
    ("UPDATE t SET price = id / 0", LanceNamespaceError, "zero"),
    ("UPDATE t SET name = nothing", LanceNamespaceError, "nothing"),
    ("UPDATE t SET name = 'a' LIMIT 1", LanceNamespaceError, "LIMIT"),
    ("UPDATE t SET name = 'a' FROM s", LanceNamespaceError, "FROM"),
    ("DELETE FROM t USING s WHERE t.id = s.id", UnsupportedOperationError, "DELETE … USING is not supported"),
    ("DELETE FROM t WHERE nothing = 1", LanceNamespaceError, "nothing"),
    ("MERGE INTO t USING t AS s ON t.id = s.id WHEN MATCHED THEN UPDATE SET nam = 1", TableColumnNotFoundError, "nam"),
    ("MERGE INTO t USING (SELECT 1 AS id) s ON t.id = s.id WHEN NOT MATCHED THEN INSERT *", TableSchemaValidationError,
     "the source has no column name, price, at"),
    ("MERGE INTO t USING (SELECT 9 AS id) s ON t.id = s.id WHEN NOT MATCHED THEN INSERT (id) VALUES (t.id)",
     LanceNamespaceError, "t"),
    ("MERGE WITH SCHEMA EVOLUTION INTO t USING t s ON t.id = s.id WHEN MATCHED THEN DELETE", UnsupportedOperationError,
     "MERGE WITH SCHEMA EVOLUTION is not supported"),
    ("CREATE TABLE t (id INT)", TableAlreadyExistsError, "t exists"),
    ("REPLACE TABLE absent (id INT)", TableNotFoundError, "no table absent"),
    ("ALTER TABLE t SET TBLPROPERTIES ('name.lance.encoding' = 'blob')", UnsupportedOperationError,
     "name keeps its type"),
    ("ALTER TABLE t ADD COLUMN x INT AFTER id", UnsupportedOperationError, "AFTER is not supported"),
    ("ALTER TABLE t UNSET TBLPROPERTIES ('x')", InvalidInputError, "no property x"),
    ("OPTIMIZE t ZORDER BY (id)", UnsupportedOperationError, "ZORDER is not supported"),
    ("OPTIMIZE t WITH (many = 1)", InvalidInputError, "many"),
    ("VACUUM t RETAIN -1 HOURS", InvalidInputError, "RETAIN -1 HOURS"),
    ("VACUUM t WITH (before_version = 3)", UnsupportedOperationError, "VACUUM … WITH is not supported"),
    ("CREATE INDEX i ON t (id)", InvalidInputError, "name its kind with USING"),
    ("CREATE INDEX i ON t USING btree (id, name)", UnsupportedOperationError, "several columns"),
    ("RESTORE TABLE t TO VERSION AS OF 99", LanceNamespaceError, "99"),
    ("RESTORE TABLE t TO TIMESTAMP AS OF 'then'", InvalidInputError, "no time"),
    ("ANALYZE TABLE t COMPUTE STATISTICS", UnsupportedOperationError, "ANALYZE is not supported"),
]  # fmt: skip


def test_what_is_refused_writes_nothing(cat: LanceCatalog) -> None:
    fill(cat)
    root = Path(cat._address("t").to_ref().open().uri.removeprefix("file://"))
    before = sorted(str(path) for path in root.rglob("*"))
    for text, kind, says in REFUSED:
        with pytest.raises(kind) as caught:
            cat.sql(text)
        assert says in str(caught.value), text
        assert sorted(str(path) for path in root.rglob("*")) == before, text
