"""Statements are read word by word: what is known is parsed, and nothing is skipped. No Spark is needed."""

from __future__ import annotations

from contextlib import suppress
from datetime import date, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lance_namespace.errors import InvalidInputError, UnsupportedOperationError

from lancehouse.jobs.table_jobs import check_arguments
from lancehouse.spark import statement_parser as sql
from lancehouse.spark.statement_parser import Clause, has_subquery, list_words, parse_statement

AB = ("a", "b")

PARSED: list[tuple[str, Any]] = [
    ("INSERT INTO a.b SELECT * FROM x", sql.InsertRows(AB, "SELECT * FROM x")),
    ("insert into table `a`.`b` (c, `d e`) values (1, DEFAULT) , (default, 2);",
     sql.InsertRows(AB, "values (1, NULL) , (NULL, 2)", ("c", "d e"))),
    ("INSERT INTO a.b (SELECT 1)", sql.InsertRows(AB, "(SELECT 1)")),
    ("INSERT INTO a.b BY NAME SELECT 1 AS c", sql.InsertRows(AB, "SELECT 1 AS c", by_name=True)),
    ("INSERT OVERWRITE a.b TABLE c.d", sql.InsertRows(AB, "SELECT * FROM c.d", overwrite=True)),
    ("INSERT INTO a.b REPLACE WHERE x IN (SELECT 1) AND y = 2 SELECT 3",
     sql.InsertRows(AB, "SELECT 3", replace_where="x IN (SELECT 1) AND y = 2")),
    ("WITH q AS (SELECT 1), r AS (SELECT 2) INSERT INTO a.b SELECT * FROM q",
     sql.InsertRows(AB, "WITH q AS (SELECT 1), r AS (SELECT 2) SELECT * FROM q")),
    ("UPDATE a.b SET c = CASE WHEN d THEN 1 ELSE (2) END, t.e = DEFAULT, `set` = array(1, 2)[0] WHERE f = 'x, WHERE'",
     sql.UpdateRows(AB, None, ((("c",), "CASE WHEN d THEN 1 ELSE (2) END"), (("t", "e"), "NULL"),
                           (("set",), "array(1, 2)[0]")), "f = 'x, WHERE'")),
    ("UPDATE a.b AS t SET c = 1 -- all\n", sql.UpdateRows(AB, "t", ((("c",), "1"),))),
    ("UPDATE a.b t SET c = t.where + 1 WHERE t.when > 1",
     sql.UpdateRows(AB, "t", ((("c",), "t.where + 1"),), "t.when > 1")),
    ("DELETE FROM a.b WHERE limit > 3 AND c IS DISTINCT FROM extract(year FROM d) AND from = 1",
     sql.DeleteRows(AB, None, "limit > 3 AND c IS DISTINCT FROM extract(year FROM d) AND from = 1")),
    ("DELETE FROM a.b", sql.DeleteRows(AB, None)),
    ("DELETE FROM a.b t WHERE c = /* no */ 1 -- end", sql.DeleteRows(AB, "t", "c = /* no */ 1")),
    ("""MERGE INTO a.b AS t USING (SELECT 1 AS id) s ON t.id = s.id AND CASE WHEN t.x THEN TRUE END
        WHEN MATCHED AND CASE WHEN s.y THEN FALSE ELSE TRUE END THEN UPDATE SET x = CASE WHEN 1 = 1 THEN 2 END, t.y = 3
        WHEN MATCHED THEN DELETE
        WHEN NOT MATCHED BY TARGET AND s.z THEN INSERT (id, x) VALUES (s.id, (1 + 2))
        WHEN NOT MATCHED THEN INSERT *
        WHEN NOT MATCHED BY SOURCE THEN UPDATE SET x = DEFAULT""",
     sql.MergeRows(AB, "t", "(SELECT 1 AS id)", "s", "t.id = s.id AND CASE WHEN t.x THEN TRUE END", (
         Clause("matched", "update", "CASE WHEN s.y THEN FALSE ELSE TRUE END",
                ((("x",), "CASE WHEN 1 = 1 THEN 2 END"), (("t", "y"), "3"))),
         Clause("matched", "delete", None, ()),
         Clause("not matched", "insert", "s.z", ((("id",), "s.id"), (("x",), "(1 + 2)"))),
         Clause("not matched", "insert", None, None),
         Clause("not matched by source", "update", None, ((("x",), "NULL"),))))),
    ("MERGE INTO a.b USING c.d VERSION AS OF 3 ON a.b.id = d.id WHEN MATCHED THEN UPDATE SET *",
     sql.MergeRows(AB, None, "c.d VERSION AS OF 3", "d", "a.b.id = d.id", (Clause("matched", "update"),))),
    ("CREATE TABLE IF NOT EXISTS a.b (id BIGINT NOT NULL COMMENT \"it's\", v ARRAY<FLOAT>, `default` INT) USING lance "
     "COMMENT 'c' TBLPROPERTIES ('v.arrow.fixed-size-list.size' = '3', x.y = true, z 1.5)",
     sql.DefineTable(AB, "id BIGINT NOT NULL COMMENT 'it\\'s' , v ARRAY < FLOAT > , `default` INT", if_not_exists=True,
                     comment="c", properties={"v.arrow.fixed-size-list.size": "3", "x.y": "true", "z": "1.5"})),
    ("CREATE OR REPLACE TABLE a.b AS SELECT 1", sql.DefineTable(AB, query="SELECT 1", replaces=True)),
    ("REPLACE TABLE a.b USING lance WITH q AS (SELECT 1) SELECT * FROM q",
     sql.DefineTable(AB, query="WITH q AS (SELECT 1) SELECT * FROM q", creates=False, replaces=True)),
    ("CREATE TABLE a.b LIKE c", sql.DefineTable(AB, like=("c",))),
    ("CREATE OR REPLACE TEMP VIEW v AS SELECT 1", sql.CreateView("v", "SELECT 1", replaces=True)),
    ("ALTER TABLE a.b ADD COLUMNS (x INT, y STRUCT<z: INT>)",
     sql.AddColumns(AB, "x INT , y STRUCT < z : INT >")),
    ("ALTER TABLE a.b ADD COLUMN x DECIMAL(10, 2) COMMENT 'c'", sql.AddColumns(AB, "x DECIMAL ( 10 , 2 ) COMMENT 'c'")),
    ("ALTER TABLE a.b DROP COLUMNS IF EXISTS (x, s.y)", sql.DropColumns(AB, ("x", "s.y"), if_exists=True)),
    ("ALTER TABLE a.b DROP COLUMN x, y", sql.DropColumns(AB, ("x", "y"))),
    ("ALTER TABLE a.b RENAME COLUMN x TO y", sql.RenameColumn(AB, "x", "y")),
    ("ALTER TABLE a.b ALTER COLUMN x TYPE DECIMAL(12,2)", sql.AlterColumn(AB, "x", type="DECIMAL(12,2)")),
    ("ALTER TABLE a.b CHANGE COLUMN x DROP NOT NULL", sql.AlterColumn(AB, "x", nullable=True)),
    ("ALTER TABLE a.b ALTER x SET NOT NULL", sql.AlterColumn(AB, "x", nullable=False)),
    ("ALTER TABLE a.b SET TBLPROPERTIES ('k' = 'v', n = 1)", sql.SetProperties(AB, {"k": "v", "n": "1"})),
    ("ALTER TABLE a.b UNSET TBLPROPERTIES IF EXISTS ('k', x.y)", sql.UnsetProperties(AB, ("k", "x.y"), if_exists=True)),
    ("ALTER TABLE a.b RENAME TO c", sql.MoveTable(AB, ("c",))),
    ("DROP TABLE IF EXISTS a.b PURGE", sql.DropTable(AB, if_exists=True)),
    ("TRUNCATE TABLE a.b", sql.Truncate(AB)),
    ("CREATE SCHEMA IF NOT EXISTS a.b COMMENT 'c' WITH DBPROPERTIES (x = 'y')",
     sql.CreateNamespace(AB, if_not_exists=True, properties={"comment": "c", "x": "y"})),
    ("DROP NAMESPACE a.b CASCADE", sql.DropNamespace(AB, cascade=True)),
    ("USE NAMESPACE a.b", sql.Use(AB)),
    ("SHOW DATABASES LIKE 'x*'", sql.ShowNames("namespaces", None, "x*")),
    ("SHOW TABLES IN a.b 'x|y'", sql.ShowNames("tables", AB, "x|y")),
    ("SHOW COLUMNS IN b FROM a", sql.ShowOfTable("columns", AB)),
    ("SHOW CREATE TABLE a.b", sql.ShowOfTable("create", AB)),
    ("SHOW TBLPROPERTIES a.b ('k')", sql.ShowOfTable("properties", AB, "k")),
    ("SHOW INDEXES FROM a.b", sql.ShowOfTable("indices", AB)),
    ("SHOW TAGS IN a.b", sql.ShowOfTable("tags", AB)),
    ("SHOW BRANCHES FROM a.b", sql.ShowOfTable("branches", AB)),
    ("DESC TABLE EXTENDED a.b", sql.Describe(AB, extended=True)),
    ("DESCRIBE a.b c", sql.Describe(AB, column="c")),
    ("DESCRIBE HISTORY a.b LIMIT 3", sql.DescribeHistory(AB, 3)),
    ("DESCRIBE SELECT 1", sql.DescribeQuery("SELECT 1")),
    ("DESCRIBE NAMESPACE EXTENDED a.b", sql.DescribeNamespace(AB)),
    ("OPTIMIZE a.b WITH (target_rows_per_fragment = 1000, materialize_deletions = TRUE)",
     sql.Optimize(AB, {"target_rows_per_fragment": 1000, "materialize_deletions": True})),
    ("VACUUM a.b", sql.Vacuum(AB)),
    ("VACUUM a.b RETAIN 1.5 HOURS DRY RUN", sql.Vacuum(AB, 1.5, dry_run=True)),
    ("CREATE INDEX IF NOT EXISTS i ON TABLE a.b USING ivf_pq (emb) OPTIONS (num_partitions = 4, metric = 'cosine')",
     sql.CreateIndex(AB, "i", "emb", "ivf_pq", {"num_partitions": 4, "metric": "cosine"}, if_not_exists=True)),
    ("ALTER TABLE a.b CREATE INDEX i USING btree (id)", sql.CreateIndex(AB, "i", "id", "btree")),
    ("DROP INDEX i ON a.b", sql.DropIndex(AB, "i")),
    ("ALTER TABLE a.b DROP INDEX IF EXISTS i", sql.DropIndex(AB, "i", if_exists=True)),
    ("ALTER TABLE a.b CREATE OR REPLACE TAG x AS OF VERSION 5", sql.CreateRef(AB, "tag", "x", 5, replaces=True)),
    ("ALTER TABLE a.b CREATE BRANCH IF NOT EXISTS x AS OF TAG y",
     sql.CreateRef(AB, "branch", "x", tag="y", if_not_exists=True)),
    ("ALTER TABLE a.b DROP TAG x", sql.DropRef(AB, "tag", "x")),
    ("RESTORE TABLE a.b TO VERSION AS OF 3", sql.Restore(AB, 3)),
    ("RESTORE a.b TO VERSION AS OF 'best'", sql.Restore(AB, tag="best")),
    ("RESTORE TABLE a.b TO TIMESTAMP AS OF '2026-01-31'", sql.Restore(AB, as_of="2026-01-31")),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), PARSED, ids=[text[:50] for text, _ in PARSED])
def test_what_is_known(text: str, expected: Any) -> None:
    assert parse_statement(text) == expected


@pytest.mark.parametrize(("text", "expected"), PARSED, ids=[text[:50] for text, _ in PARSED])
def test_nothing_is_skipped(text: str, expected: Any) -> None:
    """Words that do not belong there are an error, or reach the query or expression at the end for Spark to refuse."""
    text = text.rstrip("; \n").removesuffix("-- end").removesuffix("-- all\n")
    try:
        changed = parse_statement(f"{text}\n NONSENSE 7")
    except (InvalidInputError, UnsupportedOperationError):
        return
    assert "NONSENSE 7" in str(changed)


def test_parameters_where_a_literal_is_needed() -> None:
    assert parse_statement("RESTORE t TO VERSION AS OF :v", {"v": 7}) == sql.Restore(("t",), 7)
    assert parse_statement("VACUUM t RETAIN :h HOURS", {"h": 2.0}) == sql.Vacuum(("t",), 2.0)
    with pytest.raises(InvalidInputError, match="no value is given for the parameter :v"):
        parse_statement("RESTORE t TO VERSION AS OF :v")
    with pytest.raises(InvalidInputError, match="where a version"):
        parse_statement("RESTORE t TO VERSION AS OF :v", {"v": True})


UNSUPPORTED = [
    ("INSERT OVERWRITE t PARTITION (x = 1) SELECT 1", "INSERT: PARTITION is not supported; Lance tables have no"),
    ("INSERT INTO t AS x SELECT 1", "an alias of the table"),
    ("INSERT WITH SCHEMA EVOLUTION INTO t SELECT 1", "INSERT WITH SCHEMA EVOLUTION"),
    ("INSERT INTO t REPLACE USING (id) SELECT 1", "REPLACE USING"),
    ("INSERT OVERWRITE DIRECTORY '/x' SELECT 1", "DIRECTORY"),
    ("INSERT INTO t DEFAULT VALUES", "DEFAULT VALUES"),
    ("WITH q AS (SELECT 1) DELETE FROM t WHERE id IN (SELECT * FROM q)", "WITH before DELETE"),
    ("DELETE FROM t USING s WHERE t.id = s.id", "DELETE … USING"),
    ("MERGE INTO t USING s ON t.id = s.id WHEN MATCHED THEN UPDATE SET * EXCEPT (x)", "EXCEPT"),
    ("MERGE INTO t USING s ON t.id = s.id WHEN NOT MATCHED BY SOURCE THEN UPDATE SET *", "NOT MATCHED BY SOURCE"),
    ("CREATE TABLE t (id INT) PARTITIONED BY (id)", "PARTITIONED is not supported; Lance tables have no partitions"),
    ("CREATE TABLE t (id INT) CLUSTER BY (id)", "CLUSTER is"),
    ("CREATE TABLE t (id INT) LOCATION 's3://x'", "LOCATION is not supported; the catalog decides"),
    ("CREATE TABLE t (id INT) USING parquet", "USING parquet"),
    ("CREATE TABLE t (id INT) OPTIONS (x = 1)", "OPTIONS"),
    ("CREATE TABLE t (id INT DEFAULT 1)", "DEFAULT"),
    ("CREATE TABLE t (id INT, g INT GENERATED ALWAYS AS (id))", "GENERATED"),
    ("CREATE TABLE t (id INT, CONSTRAINT pk PRIMARY KEY (id))", "PRIMARY"),
    ("CREATE EXTERNAL TABLE t (id INT)", "EXTERNAL"),
    ("CREATE VIEW v AS SELECT 1", "CREATE VIEW"),
    ("CREATE MATERIALIZED VIEW v AS SELECT 1", "use create_materialized_view"),
    ("CREATE TAG x ON t", "write ALTER TABLE … CREATE TAG"),
    ("ALTER TABLE t ADD PARTITION (x = 1)", "ADD PARTITION"),
    ("ALTER TABLE t ADD CONSTRAINT c CHECK (x > 1)", "ADD CONSTRAINT"),
    ("ALTER TABLE t ADD COLUMN x INT FIRST", "FIRST"),
    ("ALTER TABLE t DROP PARTITION (x = 1)", "DROP PARTITION"),
    ("ALTER TABLE t ALTER COLUMN x COMMENT 'c'", "ALTER COLUMN … COMMENT"),
    ("ALTER TABLE t ALTER COLUMN x TYPE BIGINT COMMENT 'c'", "TYPE together with other changes"),
    ("ALTER TABLE t SET LOCATION 'x'", "SET LOCATION"),
    ("ALTER TABLE t RECOVER PARTITIONS", "ALTER TABLE … RECOVER"),
    ("ALTER TABLE t CREATE OR REPLACE BRANCH x", "CREATE OR REPLACE BRANCH"),
    ("ALTER TABLE t CREATE TAG x AS OF BRANCH y", "AS OF BRANCH"),
    ("ALTER TABLE t CREATE TAG x RETAIN 30 DAYS", "RETAIN"),
    ("ALTER VIEW v AS SELECT 1", "ALTER VIEW"),
    ("DROP VIEW v", "DROP VIEW"),
    ("TRUNCATE TABLE t PARTITION (x = 1)", "PARTITION"),
    ("SHOW PARTITIONS t", "SHOW PARTITIONS"),
    ("DESCRIBE DETAIL t", "DESCRIBE DETAIL"),
    ("DESCRIBE t PARTITION (x = 1)", "PARTITION"),
    ("OPTIMIZE t WHERE x = 1", "OPTIMIZE … WHERE"),
    ("OPTIMIZE t ZORDER BY (x)", "OPTIMIZE … ZORDER"),
    ("VACUUM t LITE", "VACUUM … LITE"),
    ("VACUUM t WITH (before_version = 3)", "VACUUM … WITH is not supported; write RETAIN"),
    ("USE CATALOG c", "USE CATALOG"),
    ("UPDATE t SET a = b FROM s WHERE t.id = s.id", "FROM after an expression"),
    ("DELETE FROM t WHERE a = 1 ORDER BY b LIMIT 3", "ORDER after an expression"),
    ("CACHE TABLE t", "CACHE is not supported; spark.sql runs"),
    ("SET x = 1", "SET is not supported"),
]


@pytest.mark.parametrize(("text", "says"), UNSUPPORTED, ids=[text[:50] for text, _ in UNSUPPORTED])
def test_what_is_refused_by_name(text: str, says: str) -> None:
    with pytest.raises(UnsupportedOperationError) as caught:
        parse_statement(text)
    assert says in str(caught.value)


WRONG = [
    ("SELEC 1", "no statement begins with SELEC; did you mean SELECT?"),
    ("INSRT INTO t VALUES (1)", "no statement begins with INSRT; did you mean INSERT?"),
    ("INSERT t SELECT 1", "INSERT: 't' stands where INTO is expected"),
    ("INSERT INTO t", "the text ends where a query is expected"),
    ("INSERT INTO t (a, b SELECT 1", "stands where ) is expected"),
    ("UPDATE t SET", "the text ends where a name is expected"),
    ("UPDATE t SET a = , b = 1", "',' stands where an expression is expected"),
    ("UPDATE t SET a = (1", "the text ends where ) is expected"),
    ("UPDATE t SET a = 1, A = 2", "a is set twice"),
    ("UPDATE t SET a = CASE WHEN b THEN 1", "the text ends where END is expected"),
    ("MERGE INTO t USING s ON t.id = s.id", "the text ends where WHEN is expected"),
    ("MERGE INTO t USING s ON t.id = s.id WHEN MATCHED THEN INSERT *", "'INSERT' stands where UPDATE is expected"),
    ("MERGE INTO t USING s ON t.id = s.id WHEN NOT MATCHED THEN DELETE", "'DELETE' stands where INSERT is expected"),
    ("MERGE INTO t USING s ON a = b WHEN NOT MATCHED THEN INSERT (a, b) VALUES (1)", "2 columns, and has 1 values"),
    ("MERGE INTO t USING s ON a = b WHEN MATCHED THEN DELETE WHEN MATCHED AND c THEN DELETE", "only the last may be"),
    ("CREATE TABLE t", "needs columns in parentheses, or AS and a query"),
    ("CREATE TABLE t (id INT) AS SELECT 1", "needs columns in parentheses, or AS and a query"),
    ("CREATE TABLE t (id INT", "the text ends where ) is expected"),
    ("CREATE OR REPLACE TABLE IF NOT EXISTS t (id INT)", "takes no IF NOT EXISTS"),
    ("CREATE TABLE t (id INT) TBLPROPERTIES (a = 1, a = 2)", "a is given twice"),
    ("DROP TABLE t u", "'u' stands where the end of the statement is expected"),
    ("VACUUM t RETAIN x HOURS", "'x' stands where a number is expected"),
    ("UPDATE t SET a = 'open", "this is no SQL"),
]


@pytest.mark.parametrize(("text", "says"), WRONG, ids=[text[:50] for text, _ in WRONG])
def test_what_is_wrong(text: str, says: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        parse_statement(text)
    assert says in str(caught.value)


WORDS = [word for text, _ in PARSED for word in text.split()]


@given(st.lists(st.one_of(st.sampled_from(WORDS), st.sampled_from(list("(),.;*='`?:<>"))), max_size=12))
def test_any_words_are_parsed_or_refused(words: list[str]) -> None:
    with suppress(InvalidInputError, UnsupportedOperationError):
        parse_statement(" ".join(words))


def test_what_expressions_name() -> None:
    assert list_words("a.`b c` + upper(D) || 'e'") == {"a", "b c", "upper", "d"}
    assert list_words("a * b") == {"a", "b"}
    assert list_words("struct(t.*)") is None
    assert list_words("count(*)") is None
    assert has_subquery("a IN (SELECT 1)")
    assert not has_subquery("a = 'SELECT 1'")


@pytest.mark.parametrize(
    ("text", "short"),
    [
        ("main.ml.docs.id = 1 AND ml.docs.id > docs.id", "docs.id = 1 AND docs.id > docs.id"),
        ("`MAIN`.Ml.`docs`.`a b` = 'main.ml.docs.id'", "`docs`.`a b` = 'main.ml.docs.id'"),
        ("id IN (SELECT id FROM main.ml.docs)", "id IN (SELECT id FROM main.ml.docs)"),
        ("x.main.ml.docs.id = ml.docs", "x.main.ml.docs.id = ml.docs"),
        ("main . ml /* c */ . docs.s.x + main.ml.docs.n", "docs.s.x + docs.n"),
        ("f(main.ml.docs.*)", "f(main.ml.docs.*)"),
        ("a[0].ml.docs.id", "a[0].ml.docs.id"),
    ],
)
def test_a_table_is_named_by_its_last_part(text: str, short: str) -> None:
    assert sql.shorten_qualifiers(text, ("main", "ml", "docs")) == short


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "sql needs a statement, and this text has none"),
        ("-- DROP TABLE t", "sql needs a statement, and this text has none"),
        (" ; /* ; */ ;", "sql needs a statement, and this text has none"),
        ("DELETE FROM t WHERE id = 9; DROP TABLE t", "sql takes one statement at a time"),
        ("DELETE FROM t WHERE id = 9;;x", "sql takes one statement at a time"),
        ("DELETE FROM t WHERE 1 = 0) OR (1 = 1", "'\\)' stands where the end of the statement is expected"),
        ("UPDATE t SET a = 1) WHERE (true", "'\\)' stands where the end of the statement is expected"),
        ("DROP TABLE ``", "'``' stands where a name is expected"),
        ("DROP TABLE a.``.b", "'``' stands where a name is expected"),
        ("DROP TABLE t'", "this is no SQL"),
        (f"{'x' * 10**6} TABLE t", "^X+ … X+: X+ … X+ is not supported"),
        (f"DROP TABLE t {'x' * 10**6}", "^DROP: 'x+ … x+' stands where the end"),
        (f"UPDATE t SET a = {'(' * 10**5}1", "where \\) is expected"),
    ],
)
def test_hostile_texts_are_refused_in_a_few_words(text: str, says: str) -> None:
    with pytest.raises((InvalidInputError, UnsupportedOperationError), match=says) as refused:
        parse_statement(text)
    assert len(str(refused.value)) < 10_000


@pytest.mark.parametrize(
    "args", [{1: 2}, {"a": object()}, {"a": 2**63}, [-(2**70)], [object()], {"a": [{"b": {1, 2}}]}, "text", 5]
)
def test_values_that_sql_has_not(args: Any) -> None:
    with pytest.raises(InvalidInputError, match="args"):
        check_arguments(args)


def test_values_that_sql_has() -> None:
    values = [None, True, 1.5, "a", b"b", Decimal(1), date(2026, 1, 1), timedelta(1), np.float32(1), [1, [2]], {"a": 1}]
    assert check_arguments(values) == values
    assert check_arguments({"a": (1, 2)}) == {"a": (1, 2)}
