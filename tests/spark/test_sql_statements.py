"""Statements of SQL that change and show tables, through `cat.sql`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import date, datetime
from pathlib import Path
from random import Random
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from lance_namespace.errors import (
    InvalidInputError,
    LanceNamespaceError,
    TableAlreadyExistsError,
    TableColumnNotFoundError,
    TableNotFoundError,
    TableSchemaValidationError,
    TableVersionNotFoundError,
    UnsupportedOperationError,
)

from lancehouse.identifiers import format_levels
from lancehouse.lake.row_changes import commit_rewrite
from lancehouse.spark import LanceCatalog, row_statements
from tests.clients.managed import managed_by_lancehouse
from tests.servers.lancehouse import Served


@pytest.fixture
def cat(spark: Any, tmp_path: Path) -> LanceCatalog:
    spark.catalog.dropTempView("docs")  # which others may have left: it would hide the table
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
    """A table of numbers and texts in some files; one text is null."""
    fields: list[Any] = [
        pa.field("id", pa.int64(), nullable=False), ("name", pa.string()), ("price", pa.float64()),
        ("at", pa.timestamp("us", "UTC")),
    ]  # fmt: skip
    schema = pa.schema(fields)
    cat.create_table("t", schema)
    texts = [None if number == 4 else f"n{number}" for number in range(count)]
    columns: list[Any] = [range(count), texts, [number * 1.5 for number in range(count)], range(count)]
    data = pa.table(
        [pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)], schema=schema
    )
    uri = cat._address("t").to_ref().open().uri
    lance.write_dataset(data, uri, mode="append", max_rows_per_file=-(-count // files))


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


def test_nan_is_the_greatest_number_whatever_its_sign(cat: LanceCatalog) -> None:
    """0.0 / 0.0 has a sign on many processors, and is then the least number to Lance."""
    nan = -np.float64("nan")
    cat.sql("CREATE TABLE n (id BIGINT, x DOUBLE)")
    data = pa.table({"id": [1, 2, 3], "x": pa.array(np.array([1.0, nan, np.copysign(nan, 1)]))})
    lance.write_dataset(data, cat._address("n").to_ref().open().uri, mode="append")
    assert answer(cat, "SELECT count(*) AS n FROM n WHERE x < 5") == [{"n": 1}]
    assert answer(cat, "DELETE FROM n WHERE x < 5") == [{"num_affected_rows": 1}]
    assert answer(cat, "DELETE FROM n WHERE x > 5") == [{"num_affected_rows": 2}]


@pytest.mark.parametrize(
    "text",
    [
        "DELETE FROM t WHERE nope = 1",
        "UPDATE t SET price = 1 WHERE nope = 1",
        "MERGE INTO t USING (SELECT 1 AS k) s ON t.nope = s.k WHEN MATCHED THEN DELETE",
    ],
)
def test_an_unknown_column_is_told_with_those_of_the_table(cat: LanceCatalog, text: str) -> None:
    fill(cat)
    with pytest.raises(InvalidInputError, match=r"nope` cannot be resolved.*\[.*`name`.*\]") as error:
        cat.sql(text)
    assert "__lh_" not in str(error.value)


def test_update_without_columns_to_read(cat: LanceCatalog) -> None:
    fill(cat)
    assert answer(cat, "UPDATE t SET price = 1 + 1, name = 'it''s' || 'so'")[0]["num_affected_rows"] == 6
    assert {row[1:3] for row in rows(cat)} == {("it'sso", 2.0)}


def test_a_change_that_others_change_too(cat: LanceCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is made again on what they have left, and no file of the first attempt stays."""
    fill(cat)
    attempts = list[int]()
    commit = commit_rewrite

    def overtaken(*args: Any, **more: Any) -> int:
        attempts.append(1)
        if len(attempts) == 1:
            cat.update("t", {"price": "100"}, "id = 1")
            cat.delete("t", "id = 2")
        return commit(*args, **more)

    monkeypatch.setattr(row_statements, "commit_rewrite", overtaken)
    assert answer(cat, "UPDATE t SET price = price + id WHERE id % 10 < 3")[0]["num_affected_rows"] == 2
    assert len(attempts) == 2
    assert [row[2] for row in rows(cat)] == [0.0, 101.0, 4.5, 6.0, 7.5]
    ref = cat._address("t").to_ref()
    versions = [ref.open().checkout_version(each) for each in range(1, version(cat) + 1)]
    used = {file.path for each in versions for fragment in each.get_fragments() for file in fragment.data_files()}
    assert {path.name for path in (Path(ref.open().uri) / "data").iterdir()} == used


def test_updated_rows_keep_their_ids_and_other_columns(cat: LanceCatalog) -> None:
    """Also what Spark would round: nanoseconds. And vectors, blobs and types that it has not."""
    blob = pa.field("blob", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    fields: list[Any] = [
        ("id", pa.uint64()), ("ns", pa.timestamp("ns")), ("emb", pa.list_(pa.float32(), 2)), blob,
        ("kind", pa.dictionary(pa.int8(), pa.string())),
    ]  # fmt: skip
    schema = pa.schema(fields)
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


def spy_upserts(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """A list that gets for each MERGE by keys of a small source whether the driver alone could match them."""
    match, found = row_statements._match_upsert, list[bool]()

    def spy(*of: Any) -> Any:
        changes = match(*of)
        found.append(changes is not None)
        return changes

    monkeypatch.setattr(row_statements, "_match_upsert", spy)
    return found


UPDATE, INSERT = "WHEN MATCHED THEN UPDATE SET *", "WHEN NOT MATCHED THEN INSERT *"
AT = "TIMESTAMP '2026-01-31 12:00:00'"
SAME = f"id AS ID, 'new' AS name, 0.5D AS Price, {AT} AS at, 1 AS more"
UPSERTS: list[tuple[str, str, str, bool]] = [
    (SAME, "t.id = s.id", f"{UPDATE} {INSERT}", True),
    (SAME, "s.ID = (t.id)", f"{INSERT} {UPDATE}", True),
    (SAME, "t.id = s.id", UPDATE, True),
    (SAME, "t.id = s.id", INSERT, True),
    (SAME, "t.id = s.id AND t.name = s.name", f"{UPDATE} {INSERT}", True),
    (SAME.replace("'new'", "CASE id WHEN 3 THEN 'n3' END"), "t.name = s.name", f"{UPDATE} {INSERT}", True),
    (SAME.replace("'new'", "concat('n', id)"), "t.name = s.name", f"{UPDATE} {INSERT}", True),
    (SAME.replace("id AS", "IF(id = 6, 0, id) AS"), "t.id = s.id", f"{UPDATE} {INSERT}", True),
    (SAME.replace("0.5D", "id"), "t.id = s.id", f"{UPDATE} {INSERT}", False),
    (SAME, "t.id = s.id AND s.more = 1", f"{UPDATE} {INSERT}", False),
    (SAME, "t.id = s.id AND t.price > 5", f"{UPDATE} {INSERT}", False),
    (SAME, "t.id = s.id", f"{UPDATE.replace('THEN', 'AND s.id > 4 THEN')} {INSERT}", False),
    (SAME, "t.id = s.id", f"WHEN MATCHED THEN DELETE {INSERT}", False),
    (SAME, "t.id = s.id", "WHEN MATCHED THEN UPDATE SET name = s.name", False),
    (SAME.replace("id AS", "id % 2 + 10 AS"), "t.id = s.id", f"{UPDATE} {INSERT}", False),
]


@pytest.mark.parametrize(("columns", "on", "clauses", "by_driver"), UPSERTS)
def test_upsert_of_few_rows(
    spark: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    columns: str,
    on: str,
    clauses: str,
    by_driver: bool,
) -> None:
    """Whether the driver matches them or a query of Spark, rows and counts are the same."""
    found, results = spy_upserts(monkeypatch), []
    for most in (1 << 20, 0):
        cat = LanceCatalog(spark, "dir", {"root": str(tmp_path / str(most))})
        cat.driver_bytes = most
        fill(cat)
        counts = answer(cat, f"MERGE INTO t USING (SELECT {columns} FROM range(3, 9)) AS s ON {on} {clauses}")
        results.append((counts, rows(cat)))
    assert found == [by_driver]
    assert results[0] == results[1]


def test_upsert_of_columns_with_names_of_ours(cat: LanceCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    by_driver = spy_upserts(monkeypatch)
    cat.sql("CREATE TABLE t (place BIGINT, clause STRING, k0 STRING)")
    cat.sql("INSERT INTO t VALUES (1, 'a', 'b')")
    source = "VALUES (1L, 'c', 'd'), (2L, 'e', 'f') AS s (place, clause, k0)"
    cat.sql(f"MERGE INTO t USING (SELECT * FROM {source}) AS s ON t.place = s.place {UPDATE} {INSERT}")
    assert by_driver == [True]
    assert rows(cat) == [(1, "c", "d"), (2, "e", "f")]


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
    ("UPDATE t SET name = 'a' LIMIT 1", UnsupportedOperationError, "LIMIT after an expression"),
    ("UPDATE t SET name = 'a' FROM s", UnsupportedOperationError, "FROM after an expression"),
    ("DELETE FROM t USING s WHERE t.id = s.id", UnsupportedOperationError, "DELETE … USING is not supported"),
    ("DELETE FROM t WHERE nothing = 1", LanceNamespaceError, "nothing"),
    ("MERGE INTO t USING t AS s ON t.id = s.id WHEN MATCHED THEN UPDATE SET nam = 1", TableColumnNotFoundError, "nam"),
    ("MERGE INTO t USING (SELECT 1 AS id) s ON t.id = s.id WHEN NOT MATCHED THEN INSERT *", TableSchemaValidationError,
     "the source has no column name, price, at"),
    ("MERGE INTO t USING (SELECT 9 AS id) s ON t.id = s.id WHEN NOT MATCHED THEN INSERT (id) VALUES (t.id)",
     LanceNamespaceError, "t"),
    ("MERGE WITH SCHEMA EVOLUTION INTO t USING t s ON t.id = s.id WHEN MATCHED THEN UPDATE SET nam = 1",
     TableColumnNotFoundError, "nam"),
    ("CREATE TABLE t (id INT)", TableAlreadyExistsError, "t exists"),
    ("REPLACE TABLE absent (id INT)", TableNotFoundError, "no table absent"),
    ("ALTER TABLE t SET TBLPROPERTIES ('name.lance.encoding' = 'blob')", UnsupportedOperationError,
     "name keeps its type"),
    ("ALTER TABLE t ADD COLUMN s.y INT", UnsupportedOperationError, "s.y, a field of a struct, is not supported"),
    ("CREATE TABLE u (x INT, `s t`.y INT)", UnsupportedOperationError, "s t.y, a field of a struct, is not supported"),
    ("ALTER TABLE t ADD COLUMN x INT AFTER id", UnsupportedOperationError, "AFTER is not supported"),
    ("ALTER TABLE t UNSET TBLPROPERTIES ('x')", InvalidInputError, "no property x"),
    ("OPTIMIZE t ZORDER BY (id)", UnsupportedOperationError, "ZORDER is not supported"),
    ("OPTIMIZE t WITH (many = 1)", InvalidInputError, "many"),
    ("VACUUM t RETAIN -1 HOURS", InvalidInputError, "RETAIN -1 HOURS"),
    ("VACUUM t WITH (before_version = 3)", UnsupportedOperationError, "VACUUM … WITH is not supported"),
    ("CREATE INDEX i ON t (id)", InvalidInputError, "name its kind with USING"),
    ("CREATE INDEX i ON t USING btree (id, name)", UnsupportedOperationError, "several columns"),
    ("RESTORE TABLE t TO VERSION AS OF 99", TableVersionNotFoundError, "has no version 99; the latest is 2"),
    ("RESTORE TABLE t TO TIMESTAMP AS OF 'then'", InvalidInputError, "no time"),
    (f"DELETE FROM t WHERE {'(' * 3000}id = 1{')' * 3000}", InvalidInputError, "the statement is nested too deeply"),
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
    assert not [each.name for each in cat.spark.catalog.listTables() if each.name.startswith("__lh_")]


def test_create_table_and_what_describes_it(cat: LanceCatalog) -> None:
    cat.sql(
        """CREATE TABLE docs (
            id BIGINT NOT NULL COMMENT 'it\\'s the key', -- a comment of SQL
            title STRING, tags ARRAY<STRING>, at TIMESTAMP_NTZ, price DECIMAL(10, 2),
            who STRUCT<name: STRING, `full name`: STRING>, emb ARRAY<FLOAT>, half ARRAY<FLOAT>, body BINARY
        ) USING lance COMMENT 'all documents' TBLPROPERTIES (
            'emb.arrow.fixed-size-list.size' = 4, 'half.arrow.fixed-size-list.size' = '2',
            'half.arrow.float16' = 'true', 'title.arrow.large_var_char' = 'true', 'body.lance.encoding' = 'blob',
            'team' = 'search'
        )"""
    )
    schema = cat._address("docs").to_ref().open().schema
    assert schema.field("id") == pa.field("id", pa.int64(), nullable=False)
    assert schema.field("id").metadata == {b"comment": b"it's the key"}
    assert schema.field("emb").type == pa.list_(pa.float32(), 4)
    assert schema.field("half").type == pa.list_(pa.float16(), 2)
    assert schema.field("title").type == pa.large_string()
    assert schema.field("body").metadata == {b"lance-encoding:blob": b"true"}
    cat.sql("INSERT INTO docs (id, emb, half, body) VALUES (1, array(1, 2, 3.5, 4), array(0.5, 1), x'ab')")
    assert answer(cat, "SELECT id, emb, half, body FROM docs") == [
        {"id": 1, "emb": [1.0, 2.0, 3.5, 4.0], "half": [0.5, 1.0], "body": b"\xab"}
    ]
    described = answer(cat, "DESCRIBE docs")
    assert described[0] == {"col_name": "id", "data_type": "bigint", "comment": "it's the key"}
    assert described[6]["data_type"] == "array<float>"
    details = {row["col_name"]: row["data_type"] for row in answer(cat, "DESCRIBE TABLE EXTENDED docs")}
    assert details["Provider"] == "lance"
    assert details["Rows"] == "1"
    assert details["Comment"] == "all documents"
    assert answer(cat, "DESCRIBE docs ID")[1] == {"info_name": "data_type", "info_value": "bigint"}
    assert [row["col_name"] for row in answer(cat, "SHOW COLUMNS IN docs")] == schema.names
    assert {"key": "team", "value": "search"} in answer(cat, "SHOW TBLPROPERTIES docs")
    assert answer(cat, "SHOW TBLPROPERTIES docs ('nothing')")[0]["value"].endswith("does not have property: nothing")
    [[text]] = cat.sql("SHOW CREATE TABLE docs").collect()
    cat.sql("DROP TABLE docs")
    cat.sql(text)
    assert cat._address("docs").to_ref().open().schema == schema
    assert cat.sql("SHOW CREATE TABLE docs").first()[0] == text
    assert answer(cat, "DESCRIBE SELECT 1 AS x, 'a' AS y") == [
        {"col_name": "x", "data_type": "int", "comment": None},
        {"col_name": "y", "data_type": "string", "comment": None},
    ]


def test_create_from_a_query_and_replace(cat: LanceCatalog) -> None:
    fill(cat)
    cat.sql(
        "CREATE TABLE v TBLPROPERTIES ('e.arrow.fixed-size-list.size' = '2') AS "
        "SELECT id, array(CAST(id AS FLOAT), 0.5F) AS e FROM t WHERE id < 2"
    )
    assert rows(cat, "v") == [(0, [0.0, 0.5]), (1, [1.0, 0.5])]
    assert cat._address("v").to_ref().open().schema.field("e").type == pa.list_(pa.float32(), 2)
    cat.sql("CREATE TABLE IF NOT EXISTS v AS SELECT 1 AS other")
    assert len(rows(cat, "v")) == 2
    cat.sql("CREATE OR REPLACE TABLE v AS SELECT id + 10 AS id, e FROM v")
    assert rows(cat, "v") == [(10, [0.0, 0.5]), (11, [1.0, 0.5])]
    assert version(cat, "v") == 2
    cat.sql("REPLACE TABLE v (x INT NOT NULL, e ARRAY<FLOAT>)")
    assert cat._address("v").to_ref().open().schema == pa.schema(
        [pa.field("x", pa.int32(), nullable=False), pa.field("e", pa.list_(pa.float32()))]
    )
    assert rows(cat, "v") == []
    cat.sql("CREATE TEMP VIEW few AS SELECT * FROM t WHERE id < 3")
    assert answer(cat, "SELECT count(*) AS n FROM few") == [{"n": 3}]
    cat.spark.catalog.dropTempView("few")


def test_a_replaced_table_has_the_properties_of_the_statement(cat: LanceCatalog) -> None:
    def properties() -> dict[str, str]:
        return {row["key"]: row["value"] for row in answer(cat, "SHOW TBLPROPERTIES p")}

    cat.sql("CREATE TABLE p (id INT) COMMENT 'old' TBLPROPERTIES ('a' = '1', 'b' = '2')")
    assert properties() == {"a": "1", "b": "2", "comment": "old"}
    cat.sql("CREATE OR REPLACE TABLE p (id INT) TBLPROPERTIES ('b' = '3', 'c' = '4')")
    assert properties() == {"b": "3", "c": "4"}
    cat.sql("REPLACE TABLE p COMMENT 'new' AS SELECT 1 AS id")
    assert properties() == {"comment": "new"}
    assert version(cat, "p") == 6
    cat.sql("CREATE OR REPLACE TABLE p AS SELECT 2 AS id")
    assert properties() == {}
    assert rows(cat, "p") == [(2,)]


@pytest.mark.parametrize(
    ("text", "args"),
    [
        ("INSERT INTO t (id) VALUES (NULL)", None),
        ("UPDATE t SET id = NULL", None),
        ("UPDATE t SET id = :id", {"id": None}),
        ("UPDATE t SET id = nullif(id, 3)", None),
        ("MERGE INTO t USING (SELECT 1L AS id) s ON t.id = s.id WHEN MATCHED THEN UPDATE SET id = NULL", None),
    ],
)
def test_a_null_that_may_not_be_is_refused_in_our_words(cat: LanceCatalog, text: str, args: Any) -> None:
    fill(cat)
    advice = "ALTER COLUMN id DROP NOT NULL in SQL, or alter_columns(table, {'id': {'nullable': True}})"
    with pytest.raises(LanceNamespaceError) as refused:
        cat.sql(text, args)
    assert advice in str(refused.value)
    assert version(cat) == 2


def test_a_text_is_no_date_as_an_argument_either(cat: LanceCatalog) -> None:
    cat.sql("CREATE TABLE d (day DATE, at TIMESTAMP, plain TIMESTAMP_NTZ, name STRING)")
    cat.sql("INSERT INTO d VALUES (DATE'2026-01-01', NULL, NULL, NULL)")
    for column in ("day", "at", "plain"):
        for text in (f"UPDATE d SET {column} = :v", f"UPDATE d SET {column} = :v WHERE day + 0 < DATE'2027-01-01'"):
            with pytest.raises(TableSchemaValidationError, match=f"column {column}: string is not stored as"):
                cat.sql(text, {"v": "2026-01-02"})
    cat.sql("UPDATE d SET day = :v, name = :n", {"v": date(2026, 1, 2), "n": date(2026, 1, 3)})
    cat.sql("UPDATE d SET plain = CAST(:v AS TIMESTAMP_NTZ)", {"v": "2026-01-02 03:04:05"})
    assert rows(cat, "d") == [(date(2026, 1, 2), None, datetime(2026, 1, 2, 3, 4, 5), "2026-01-03")]


def test_columns_may_be_qualified_by_all_levels_of_the_table(spark: Any, lancehouse_server: Any) -> None:
    catalog = managed_by_lancehouse(lancehouse_server)
    cat = LanceCatalog(spark, catalog.impl, catalog.properties)
    table = catalog.id("q")
    whole, part = format_levels(table), format_levels(table[1:])
    cat.sql(f"CREATE TABLE {whole} AS SELECT id, id AS n FROM range(9)")
    cat.sql(f"DELETE FROM {whole} WHERE {whole}.id = 0")
    cat.sql(f"DELETE FROM {whole} WHERE {part.upper()}.id + {whole}.n = 2")
    cat.use(catalog.levels)
    cat.sql(f"UPDATE q SET n = {part}.n * 10 WHERE {whole}.id = 2 OR q.id = 3")
    cat.sql(f"UPDATE q SET {whole}.n = 5 WHERE {whole}.id = 4")
    cat.sql(
        f"MERGE INTO {whole} USING (SELECT 5L AS id) s ON {part}.id = s.id "
        f"WHEN MATCHED AND {whole}.n > 0 THEN UPDATE SET n = {whole}.n + s.id "
        f"WHEN NOT MATCHED BY SOURCE AND {whole}.id > 7 THEN DELETE"
    )
    cat.sql(f"INSERT INTO q REPLACE WHERE {whole}.id = 6 SELECT 6L, 0L")
    cat.sql(f"DELETE FROM q WHERE EXISTS (SELECT 1 FROM {whole} o WHERE o.id = {whole}.id AND o.id = 7)")
    assert rows(cat, whole) == [(2, 20), (3, 30), (4, 5), (5, 10), (6, 0)]
    with pytest.raises(InvalidInputError, match="cannot be resolved"):
        cat.sql(f"DELETE FROM q AS a WHERE {whole}.id = 2")


def test_merge_with_schema_evolution(cat: LanceCatalog) -> None:
    cat.sql("CREATE TABLE e AS SELECT id, 'a' AS name FROM range(3)")
    source = "(SELECT * FROM VALUES (2L, 'b', 1.5D), (7L, 'c', 2.5D) AS v(ID, extra, more))"
    cat.sql(
        f"MERGE WITH SCHEMA EVOLUTION INTO e USING {source} s ON e.id = s.id "
        "WHEN MATCHED THEN UPDATE SET extra = s.extra WHEN NOT MATCHED THEN INSERT (id) VALUES (s.id)"
    )
    assert rows(cat, "e") == [(0, "a", None), (1, "a", None), (2, "a", "b"), (7, None, None)]
    cat.sql(
        f"MERGE WITH SCHEMA EVOLUTION INTO e USING {source} s ON e.id = s.id "
        "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    )
    assert rows(cat, "e") == [
        (0, "a", None, None), (1, "a", None, None), (2, "a", "b", 1.5), (7, None, "c", 2.5),
    ]  # fmt: skip
    latest = version(cat, "e")
    with pytest.raises(TableSchemaValidationError, match="column id: string is not stored as bigint"):
        cat.sql(
            "MERGE WITH SCHEMA EVOLUTION INTO e USING (SELECT 'x' AS id) s ON e.name = s.id "
            "WHEN NOT MATCHED THEN INSERT *"
        )
    assert version(cat, "e") == latest


def test_alter_table(cat: LanceCatalog) -> None:
    fill(cat)
    cat.sql("ALTER TABLE t ADD COLUMNS (score FLOAT COMMENT 'of it', small INT)")
    cat.sql("ALTER TABLE t ALTER COLUMN SCORE TYPE DOUBLE")
    cat.sql("ALTER TABLE t RENAME COLUMN name TO title")
    cat.sql("ALTER TABLE t ALTER COLUMN id DROP NOT NULL")
    cat.sql("ALTER TABLE t DROP COLUMNS (small, at)")
    cat.sql("ALTER TABLE t DROP COLUMN IF EXISTS nothing")
    schema = cat._address("t").to_ref().open().schema
    assert schema.names == ["id", "title", "price", "score"]
    assert schema.field("score").type == pa.float64()
    assert schema.field("id").nullable
    cat.sql("ALTER TABLE t SET TBLPROPERTIES ('a' = 1, b.c = 'two')")
    cat.sql("ALTER TABLE t UNSET TBLPROPERTIES ('a')")
    cat.sql("ALTER TABLE t UNSET TBLPROPERTIES IF EXISTS ('a')")
    known = cat.properties("t")
    assert known["b.c"] == "two"
    assert "a" not in known


def test_restore_to_a_time_in_a_zone_that_is_an_offset(cat: LanceCatalog, tmp_path: Path) -> None:
    fill(cat)
    session = cat.spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "+02:00")
    same = LanceCatalog(session, "dir", {"root": str(tmp_path)})
    same.sql("RESTORE TABLE t TO TIMESTAMP AS OF '2126-01-31 12:00:00'")
    assert len(rows(same)) == 6


def test_tags_beside_one_that_is_not_ascii(cat: LanceCatalog, tmp_path: Path) -> None:
    """pylance creates such a tag, and then lists none."""
    fill(cat)
    number = version(cat)
    lance.dataset(tmp_path / "t.lance").tags.create("ä", number)
    cat.sql("ALTER TABLE t CREATE TAG good AS OF VERSION 1")
    assert [row["name"] for row in answer(cat, "SHOW TAGS FROM t")] == ["good", "ä"]
    cat.sql("ALTER TABLE t DROP TAG IF EXISTS good")
    assert [row["name"] for row in answer(cat, "SHOW TAGS FROM t")] == ["ä"]


def test_versions_tags_and_maintenance(cat: LanceCatalog) -> None:
    fill(cat, files=3)
    number = version(cat)
    cat.sql("ALTER TABLE t CREATE TAG good")
    cat.sql("ALTER TABLE t CREATE TAG IF NOT EXISTS good AS OF VERSION 1")
    cat.sql("DELETE FROM t")
    assert answer(cat, "SHOW TAGS FROM t") == [{"name": "good", "branch": None, "version": number}]
    assert answer(cat, "RESTORE TABLE t TO VERSION AS OF 'good'") == [{"version": number + 2}]
    assert len(rows(cat)) == 6
    cat.sql("RESTORE t TO VERSION AS OF ?", [number + 1])
    assert rows(cat) == []
    cat.sql("RESTORE TABLE t TO TIMESTAMP AS OF '2126-01-31 12:00:00'")
    cat.sql(f"RESTORE TABLE t TO VERSION AS OF {number}")
    cat.sql("ALTER TABLE t DROP TAG good")
    cat.sql("ALTER TABLE t DROP TAG IF EXISTS good")
    cat.sql("ALTER TABLE t CREATE BRANCH trial AS OF VERSION 2")
    assert [row["name"] for row in answer(cat, "SHOW BRANCHES IN t")] == ["trial"]
    cat.sql("ALTER TABLE t DROP BRANCH trial")
    done = answer(cat, "OPTIMIZE t WITH (target_rows_per_fragment = 100)")[0]
    assert done["fragments_removed"] > done["fragments_added"] == 1
    history = answer(cat, "DESCRIBE HISTORY t LIMIT 2")
    assert [row["version"] for row in history] == [version(cat), version(cat) - 1]
    assert answer(cat, "VACUUM t") == [{"bytes_removed": 0, "old_versions": 0}]
    would = answer(cat, "VACUUM t RETAIN 0 HOURS DRY RUN")[0]["old_versions"]
    assert answer(cat, "VACUUM t RETAIN 0 HOURS")[0]["old_versions"] == would > 1


def test_indices(cat: LanceCatalog) -> None:
    fill(cat, 300)
    assert answer(cat, "CREATE INDEX by_id ON t USING btree (ID)")[0]["index_name"] == "by_id"
    cat.sql("CREATE INDEX IF NOT EXISTS by_id ON t USING btree (id)")
    cat.sql("ALTER TABLE t CREATE INDEX words USING fts (name) WITH (with_position = FALSE)")
    shown = {row["name"]: row for row in answer(cat, "SHOW INDEXES IN t")}
    assert shown["by_id"]["fields"] == ["id"]
    assert shown["by_id"]["index_type"] == "btree"
    assert shown["by_id"]["num_indexed_rows"] == 300
    assert set(shown) == {"by_id", "words"}
    cat.sql("DROP INDEX words ON t")
    cat.sql("ALTER TABLE t DROP INDEX IF EXISTS words")
    assert [row["name"] for row in answer(cat, "SHOW INDEX FROM t")] == ["by_id"]


def test_namespaces(spark: Any, lancehouse_server: Any) -> None:
    catalog = managed_by_lancehouse(lancehouse_server)
    cat = LanceCatalog(spark, catalog.impl, catalog.properties)
    warehouse, own = catalog.id("t")[0], "sql_statements"
    cat.sql(f"CREATE NAMESPACE {warehouse}.{own} COMMENT 'ours'")
    cat.sql(f"CREATE SCHEMA IF NOT EXISTS {warehouse}.{own}")
    shown = [row["namespace"] for row in answer(cat, f"SHOW NAMESPACES IN {warehouse} LIKE 'sql_*'")]
    assert shown == [f"{warehouse}.{own}"]
    assert {"info_name": "comment", "info_value": "ours"} in answer(cat, f"DESCRIBE NAMESPACE {warehouse}.{own}")
    cat.sql(f"USE {warehouse}.{own}")
    cat.sql("CREATE TABLE t AS SELECT id, id * 1.5D AS price FROM range(6)")
    cat.sql("UPDATE t SET price = price + 1 WHERE id > 2")
    cat.sql("MERGE INTO t USING (SELECT 9 AS id) s ON t.id = s.id WHEN NOT MATCHED THEN INSERT (id) VALUES (id)")
    assert answer(cat, "SELECT count(*) AS n, sum(price) AS p FROM t") == [{"n": 7, "p": 25.5}]
    assert answer(cat, "SHOW TABLES LIKE 'T|u'") == [
        {"namespace": f"{warehouse}.{own}", "tableName": "t", "isTemporary": False}
    ]
    cat.sql("ALTER TABLE t RENAME TO u")
    assert answer(cat, "SHOW TABLES 't'") == []
    cat.sql("DROP TABLE IF EXISTS t")
    cat.sql("DROP TABLE u")
    cat.sql(f"DROP NAMESPACE {warehouse}.{own}")
    cat.sql(f"DROP NAMESPACE IF EXISTS {warehouse}.{own}")


# Generated merges, beside a model in plain Python of the rules that Spark and Delta document

Target = tuple[int | None, str | None, float | None]
Source = tuple[int | None, str | None, int]
Truth = bool | None
Condition = tuple[str, Callable[[Any, Any], Truth]]


def equal(one: Any, other: Any) -> Truth:
    return None if one is None or other is None else one == other


def less(one: Any, other: Any) -> Truth:
    return None if one is None or other is None else one < other


def both(one: Truth, other: Truth) -> Truth:
    return False if one is False or other is False else None if None in (one, other) else True


ON: list[Condition] = [
    ("t.id = s.id", lambda t, s: equal(t[0], s[0])),
    ("s.id = t.id AND t.name = s.name", lambda t, s: both(equal(t[0], s[0]), equal(t[1], s[1]))),
    ("t.id <=> s.id", lambda t, s: t[0] == s[0]),
    ("t.id = s.id AND s.w > 2", lambda t, s: both(equal(t[0], s[0]), less(2, s[2]))),
    ("t.id = s.id AND t.id > 1", lambda t, s: both(equal(t[0], s[0]), less(1, t[0]))),
    ("t.id < s.w AND t.name = s.name", lambda t, s: both(less(t[0], s[2]), equal(t[1], s[1]))),
]
MATCHED: list[Condition] = [
    ("s.w > 2", lambda _, s: less(2, s[2])),
    ("t.price < w", lambda t, s: less(t[2], s[2])),
    ("t.name = s.name", lambda t, s: equal(t[1], s[1])),
    ("CASE WHEN t.price IS NULL THEN TRUE END", lambda t, _: True if t[2] is None else None),
]
NOT_MATCHED: list[Condition] = [
    ("w > 2", lambda _, s: less(2, s[2])),
    ("s.name IS NOT NULL", lambda _, s: s[1] is not None),
    ("id = 3", lambda _, s: equal(s[0], 3)),
]
BY_SOURCE: list[Condition] = [
    ("price > 1.0", lambda t, _: less(1.0, t[2])),
    ("t.id % 2 = 0", lambda t, _: None if t[0] is None else t[0] % 2 == 0),
    ("name IS NULL", lambda t, _: t[1] is None),
]
SETS: dict[str, list[tuple[str, Callable[[Any, Any], Any]]]] = {
    "matched": [
        ("UPDATE SET name = s.name", lambda t, s: (t[0], s[1], t[2])),
        (
            "UPDATE SET price = t.price + w, t.id = s.id",
            lambda t, s: (s[0], t[1], None if t[2] is None else t[2] + s[2]),
        ),
        ("UPDATE SET *", lambda _, s: (s[0], s[1], float(s[2]))),
        ("DELETE", lambda *_: None),
    ],
    "not matched": [
        ("INSERT *", lambda _, s: (s[0], s[1], float(s[2]))),
        ("INSERT (name, id) VALUES (upper(name), s.id)", lambda _, s: (s[0], s[1] and s[1].upper(), None)),
    ],
    "not matched by source": [
        ("UPDATE SET price = id, name = 'gone'", lambda t, _: (t[0], "gone", None if t[0] is None else float(t[0]))),
        ("DELETE", lambda *_: None),
    ],
}
Chosen = tuple[str, Condition | None, tuple[str, Callable[[Any, Any], Any]]]


def choose_clauses(random: Random) -> list[Chosen]:
    """Some clauses of each kind in a random order of kinds; only the last of a kind may be without a condition."""
    if random.random() < 0.3:
        upsert: list[Chosen] = [("matched", None, SETS["matched"][2]), ("not matched", None, SETS["not matched"][0])]
        return random.sample(upsert, random.choice([1, 2, 2]))
    kinds: list[list[Chosen]] = []
    for kind, conditions in (("matched", MATCHED), ("not matched", NOT_MATCHED), ("not matched by source", BY_SOURCE)):
        count = random.choice([0, 1, 1, 2, 2, 3])
        chosen: list[Chosen] = [(kind, random.choice(conditions), random.choice(SETS[kind])) for _ in range(count)]
        if chosen and random.random() < 0.5:
            chosen[-1] = (kind, None, chosen[-1][2])
        kinds.append(chosen)
    random.shuffle(kinds)
    return [each for kind in kinds for each in kind] or [("matched", None, SETS["matched"][0])]


def model(
    target: list[Target], source: list[Source], on: Condition, clauses: list[Chosen]
) -> tuple[list[Any], list[int]] | None:
    """The rows afterwards, and how many were updated, deleted and inserted; None if a row would change twice."""

    def apply(kind: str, t: Any, s: Any) -> tuple[str, Any] | None:
        for of, condition, (text, values) in clauses:
            if of == kind and (condition is None or condition[1](t, s) is True):
                return text.partition(" ")[0], values(t, s)
        return None

    matched = [each for each in clauses if each[0] == "matched"]
    only_deletes = len(matched) == 1 and matched[0][1] is None and matched[0][2][0] == "DELETE"
    kept, counts = list[Any](), {"UPDATE": 0, "DELETE": 0, "INSERT": 0}
    for t in target:
        pairs = [s for s in source if on[1](t, s) is True]
        found = [apply("matched", t, s) for s in pairs] if pairs else [apply("not matched by source", t, None)]
        actions = [each for each in found if each is not None]
        if len(actions) > 1 and not only_deletes:
            return None
        if not actions:
            kept.append(t)
            continue
        action, row = actions[0]
        counts[action] += 1
        kept += [] if action == "DELETE" else [row]
    for s in source:
        if not any(on[1](t, s) is True for t in target) and (done := apply("not matched", None, s)) is not None:
            counts["INSERT"] += 1
            kept.append(done[1])
    return sorted(kept, key=repr), list(counts.values())


MERGES, ALL_MERGES = 100, 1000
"""In every run, and at full size."""


def choose_rows(random: Random) -> tuple[list[Target], list[Source]]:
    ids, names = [None, *range(8)], [None, "a", "b", "c"]
    size = random.choice([0, 3, 8, 12])
    target = [(random.choice(ids), random.choice(names), random.choice([None, 0.5, 1.5, 4.0])) for _ in range(size)]
    keys = random.sample(ids, random.choice([0, 2, 5]))
    twice = random.choices(keys, k=random.choice([0, 1, 1, 2])) if keys else []
    return target, [(key, random.choice(names), random.randrange(5)) for key in (*keys, *twice)]


def check_merge(cat: LanceCatalog, seed: int) -> str:
    """Merge generated rows by generated clauses; return what happened."""
    random, table = Random(seed), f"g{seed}"
    (target, source), on, clauses = choose_rows(random), random.choice(ON), choose_clauses(random)
    expected = model(target, source, on, clauses)
    fields: list[Any] = [("id", pa.int64()), ("name", pa.string()), ("price", pa.float64())]
    schema = pa.schema(fields)
    columns = [pa.array(column, field.type) for column, field in zip(zip(*target, strict=True), schema, strict=False)]
    data = pa.table(columns, schema=schema) if target else schema.empty_table()
    lance.write_dataset(
        data, cat._address(table).to_ref().location or str(Path(cat._connection.properties["root"]) / f"{table}.lance"),  # type: ignore[union-attr]
        max_rows_per_file=5, enable_stable_row_ids=random.random() < 0.5,
    )  # fmt: skip
    values = ", ".join(f"({_literal(i)}, {_literal(n)}, {w})" for i, n, w in source)
    some = f"VALUES {values}" if source else "SELECT 1, 'a', 1 WHERE FALSE"
    price = random.choice(["w", "CAST(w AS DOUBLE)"])
    text = f"MERGE INTO {table} t USING (SELECT CAST(id AS BIGINT) AS id, CAST(name AS STRING) AS name, w, {price} AS price FROM ({some}) AS x(id, name, w)) s ON {on[0]}"  # noqa: E501
    for kind, condition, (action, _) in clauses:
        text += f" WHEN {kind.upper()}{f' AND {condition[0]}' if condition else ''} THEN {action}"
    if expected is None:
        with pytest.raises(InvalidInputError, match="matches several rows of the source"):
            cat.sql(text)
        assert rows(cat, table) == sorted(target, key=repr), text
        return "refused"
    [counts] = cat.sql(text).collect()
    assert rows(cat, table) == expected[0], text
    assert list(counts) == [sum(expected[1]), *expected[1]], text
    return "changed" if any(expected[1]) else "unchanged"


def _literal(value: Any) -> str:
    return "NULL" if value is None else f"'{value}'" if isinstance(value, str) else str(value)


@pytest.mark.parametrize(
    "first", [0, *(pytest.param(first, marks=pytest.mark.soak) for first in range(MERGES, ALL_MERGES, MERGES))]
)
def test_generated_merges(cat: LanceCatalog, monkeypatch: pytest.MonkeyPatch, first: int) -> None:
    by_driver = spy_upserts(monkeypatch)
    with ThreadPoolExecutor(4) as pool:
        outcomes = Counter(pool.map(lambda seed: check_merge(cat, seed), range(first, first + MERGES)))
    assert min(outcomes["refused"], outcomes["changed"]) > 1, outcomes
    assert any(by_driver)


def test_the_page(spark: Any, lancehouse_server: Served) -> None:
    page = (Path(__file__).parents[2] / "docs" / "sql.md").read_text().partition("## Statements")[2]
    (block,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    cat = LanceCatalog(spark, "lancehouse.IcebergNamespace", {"endpoint": lancehouse_server.iceberg})
    exec(block.replace("main.ml", f"{lancehouse_server.warehouse}.page"), {"cat": cat, "spark": spark})
    assert answer(cat, "SELECT id, title FROM docs") == [{"id": 1, "title": "new"}]
    spark.catalog.dropTempView("staged")
