"""Which columns and conditions of a query go to which scan; no Spark is needed to see it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from lance_namespace.errors import InvalidInputError

from lancehouse.spark.query_scans import Planner, Settings, find_tables, qualifier_replacements, replacements
from lancehouse.spark.query_text import QueryText, is_query, name_positional
from tests.spark.tpch import QUERIES


def test_tables_of_the_same_name_need_aliases() -> None:
    for text, is_clear in [
        ("SELECT a.docs.id FROM a.docs JOIN b.docs ON true", False),
        ("SELECT x.id FROM a.docs x JOIN b.docs ON x.id = b.docs.id", True),
        ("SELECT id FROM a.docs WHERE id IN (SELECT id FROM b.docs)", True),
        ("SELECT a.docs.id FROM a.docs UNION ALL SELECT a.docs.id FROM a.docs", True),
    ]:
        query = QueryText(text)
        if is_clear:
            list(qualifier_replacements(query, find_tables(query)))
        else:
            with pytest.raises(InvalidInputError, match="two tables of the query are called docs: give them aliases"):
                list(qualifier_replacements(query, find_tables(query)))


def make_schema(columns: dict[str, Any]) -> pa.Schema:
    return pa.schema(columns)


SCHEMAS: dict[str, pa.Schema] = {
    "docs": make_schema(
        {
            "id": pa.int32(),
            "title": pa.string(),
            "score": pa.float64(),
            "price": pa.decimal128(10, 2),
            "day": pa.date32(),
            "at": pa.timestamp("us", "UTC"),
            "is_new": pa.bool_(),
            "place": pa.struct([("city", pa.string())]),
            "wide": pa.string(),
        }
    ),
    "tags": make_schema({"id": pa.int64(), "tag": pa.string(), "weight": pa.float32(), "small": pa.int8()}),
}
ALL = None


def plan(text: str, args: Any = None, **settings: Any) -> Planner:
    text, arguments = name_positional(text, args)
    query = QueryText(text)
    schemas = {use: SCHEMAS[use.parts[-1]] for use in find_tables(query) if use.parts[-1] in SCHEMAS}
    views: dict[tuple[str, ...], tuple[str, ...]] = {("v",): ("x", "id")}
    return Planner(
        query, schemas, lambda parts: views.get(parts), Settings(**{"zone": "Europe/Berlin", **settings}), arguments
    )


def scans(text: str, args: Any = None, **settings: Any) -> list[tuple[Any, Any]]:
    found = plan(text, args, **settings).scans
    return [(ALL if scan.columns is None else " ".join(scan.columns), scan.filter) for scan in found]


COLUMNS: list[tuple[str, list[str | None]]] = [
    ("SELECT title FROM docs", ["title"]),
    ("SELECT TITLE FROM docs", ["title"]),
    ("SELECT `title` FROM docs", ["title"]),
    ("SELECT * FROM docs", [ALL]),
    ("SELECT d.* FROM docs d JOIN tags t ON d.id = t.id", [ALL, "id"]),
    ("SELECT struct(*) FROM docs", [ALL]),
    ("SELECT count(docs.*) FROM docs", [ALL]),
    ("SELECT count(DISTINCT *) FROM docs", [ALL]),
    ("SELECT count(*) FROM docs", ["is_new"]),
    ("SELECT id * 2 FROM docs", ["id"]),
    ("SELECT place.city FROM docs", ["place"]),
    ("SELECT docs.place.city FROM docs", ["place"]),
    ("SELECT max(t.tag) FROM docs d JOIN tags t ON d.id = t.id", ["id", "id tag"]),
    ("SELECT id AS title FROM docs", ["id title"]),  # an alias is an occurrence too
    ("SELECT t.title FROM docs AS t(title)", [ALL]),
    ("SELECT tag FROM docs NATURAL JOIN tags", [ALL, ALL]),
    ("SELECT tag FROM docs JOIN tags USING (id)", ["id", "id tag"]),
    ("SELECT d.id FROM docs d WHERE EXISTS (SELECT * FROM tags t WHERE t.id = d.id)", ["id", "id"]),
    ("SELECT d.id FROM docs d WHERE d.id IN (SELECT t.id FROM tags t WHERE tag = wide)", ["id wide", "id tag"]),
    ("WITH c AS (SELECT id, tag FROM tags) SELECT c.tag FROM c", ["id tag"]),
    ("WITH docs AS (SELECT id FROM tags) SELECT title FROM docs", ["id"]),
    ("SELECT q.id FROM (docs) q", [ALL]),
    ("SELECT q.id FROM (docs JOIN tags ON docs.id = tags.id) q", [ALL, ALL]),
    ("SELECT x.id FROM docs PIVOT (sum(score) FOR id IN (1, 2)) x", [ALL]),
    ("SELECT id FROM docs |> WHERE title = 'a'", [ALL]),
    ("SELECT IDENTIFIER('title') FROM docs", [ALL]),
    ("SELECT /*+ REPARTITION(3, title) */ id FROM docs", ["id title"]),
    ("SELECT 'title' FROM docs -- title", ["is_new"]),
    ("SELECT id FROM docs -- not the end \\\n, title", [ALL]),
    ("SELECT transform(array(1), title -> title + id) FROM docs", ["id title"]),
    ("SELECT _rowid FROM docs", [""]),
    ("TABLE docs", [ALL]),
    ("FROM docs SELECT id", ["id"]),
    ("SELECT id FROM docs UNION ALL SELECT id FROM tags", ["id", "id"]),
    ("SELECT d.id, t.tag FROM docs d, LATERAL (SELECT tag FROM tags WHERE tags.id = d.id) t", ["id", "id tag"]),
]


@pytest.mark.parametrize(("text", "expected"), COLUMNS)
def test_columns(text: str, expected: list[str | None]) -> None:
    found = plan(text).scans
    by_place = sorted(found, key=lambda scan: scan.use.start)
    assert [None if scan.columns is None else " ".join(scan.columns) for scan in by_place] == expected


LINKS: list[tuple[str, list[str]]] = [
    ("docs d JOIN tags t ON d.id = t.id", ["d.id of t.id", "t.id of d.id"]),
    ("docs d, tags t WHERE (t.ID) = d.id AND t.small = 3", ["d.id of t.id", "t.id of d.id"]),
    ("docs d LEFT JOIN tags t ON d.title = t.tag", ["t.tag of d.title"]),
    ("docs d RIGHT JOIN tags t ON d.title = t.tag", ["d.title of t.tag"]),
    ("docs d FULL JOIN tags t ON d.id = t.id", []),
    ("docs d LEFT JOIN tags t ON d.id = t.id WHERE d.id = t.small", ["d.id of t.small", "t.id of d.id"]),
    ("docs d LEFT SEMI JOIN tags t ON d.id = t.id", ["d.id of t.id", "t.id of d.id"]),
    ("docs d LEFT ANTI JOIN tags t ON d.id = t.id", ["t.id of d.id"]),
    ("docs d JOIN tags t ON d.id = t.id OR t.small = 3", []),
    ("docs d JOIN tags t ON d.id <=> t.id", []),
    ("docs d JOIN tags t ON d.id = t.small + 1", []),
    ("docs d JOIN tags t ON d.id = t.tag", []),  # of other types
    ("docs d JOIN tags t ON d.score = t.weight", []),  # NaN, 0.0
    ("docs d JOIN tags TABLESAMPLE (5 ROWS) t ON d.id = t.id", []),
    ("docs d JOIN docs e ON d.id = e.id", ["d.id of e.id", "e.id of d.id"]),
    ("docs d WHERE d.id = d.id AND EXISTS (SELECT 1 FROM tags t WHERE t.id = d.id)", []),
    ("docs d JOIN (SELECT id FROM tags) t ON d.id = t.id", []),
]


@pytest.mark.parametrize(("text", "expected"), LINKS)
def test_tables_that_are_joined_by_equal_keys(text: str, expected: list[str]) -> None:
    """Rows of the first may be left out if no row of the second has their key."""
    links = plan(f"SELECT 1 FROM {text}").links
    found = {f"{each.scan.use.alias}.{each.column} of {each.other.use.alias}.{each.other_column}" for each in links}
    assert sorted(found) == sorted(expected)


def test_case_counts_for_nothing_here_even_if_it_does_for_spark() -> None:
    assert scans("SELECT Title FROM docs", is_case_sensitive=True) == [("title", None)]
    assert scans("SELECT title FROM docs WHERE ID = 5", is_case_sensitive=True) == [("id title", None)]


def test_names_in_quotes_or_patterns_leave_nothing_out() -> None:
    assert scans("SELECT `(id|title)` FROM docs WHERE id = 5", is_odd=True) == [(ALL, None)]


FILTERS: list[tuple[str, str | None]] = [
    ("id = 5", "`id` = 5"),
    ("5 < id", "`id` > 5"),
    ("docs.id == 5", "`id` = 5"),
    ("id <=> 5", "`id` = 5"),
    ("id <=> id", None),
    ("NOT id <=> 5", None),
    ("id = '5'", None),
    ("id = 5L", "`id` = 5"),
    ("id = 2.5", None),
    ("id = 4.0", "`id` = 4"),
    ("id > 3000000000", None),
    ("id = NULL", None),
    ("id + 1 = 5", None),
    ("id IN (1, 2)", "`id` IN (1, 2)"),
    ("id NOT IN (1, 2)", "`id` NOT IN (1, 2)"),
    ("id IN (1, NULL)", None),
    ("id NOT IN (1, NULL)", None),
    ("id IN (1, '2')", None),
    ("id BETWEEN 1 AND 3", "(`id` >= 1 AND `id` <= 3)"),
    ("id NOT BETWEEN 1 AND 3", "(`id` < 1 OR `id` > 3)"),
    ("id BETWEEN 1 AND title", "`id` >= 1"),
    ("NOT (id < 5 AND title = 'a')", "(`id` >= 5 OR `title` <> 'a')"),
    ("NOT (id < 5 OR upper(title) = 'A')", "`id` >= 5"),
    ("NOT (id < 5 AND upper(title) = 'A')", None),
    ("id = 1 OR id = 2 AND upper(title) = 'A'", "(`id` = 1 OR `id` = 2)"),
    ("id = 1 OR upper(title) = 'A'", None),
    ("title = 'a'", "`title` = 'a'"),
    ("title = 'it''s'", None),
    ("title = 'a\\nb'", None),
    ("title = r'a'", None),
    ("title = 'a' 'b'", None),
    ("title = 5", None),
    ("title LIKE 'a%_'", "`title` LIKE 'a%_'"),
    ("title NOT LIKE 'a%'", "`title` NOT LIKE 'a%'"),
    ("title LIKE 'a\\%'", None),
    ("title LIKE 'a#%' ESCAPE '#'", None),
    ("title ILIKE 'a'", None),
    ("title RLIKE 'a'", None),
    ("title IS NULL", "`title` IS NULL"),
    ("title IS NOT NULL", "`title` IS NOT NULL"),
    ("place IS NULL", None),
    ("place.city = 'a'", None),
    ("is_new", "`is_new` = true"),
    ("NOT is_new", "`is_new` = false"),
    ("is_new IS TRUE", "`is_new` = true"),
    ("is_new IS NOT TRUE", None),
    ("score < 5", "`score` < 5.0"),
    ("score > 5", "(`score` > 5.0 OR isnan(`score`))"),
    ("score <> 0.5", "(`score` <> 0.5 OR isnan(`score`))"),
    ("score = 0", None),
    ("score >= -0.0", None),
    ("score > 0", "(`score` > 0.0 OR isnan(`score`))"),
    ("score IN (0, 1)", None),
    ("score = float('NaN')", None),
    ("score > 9007199254740993", None),
    ("price = 1.5", "`price` = decimal(10,2) '1.50'"),
    ("price = 1.505", None),
    ("price > 99999999999", None),
    ("price = 1e0", None),
    ("price < -2", "`price` < decimal(10,2) '-2.00'"),
    ("day = date '2020-02-29'", "`day` = date '2020-02-29'"),
    ("day = '2020-02-29'", "`day` = date '2020-02-29'"),
    ("day = '2020-2-29'", None),
    ("day = date '2020-02-30'", None),
    ("day > date '2020-01-31' + interval '1' month", "`day` > date '2020-02-29'"),
    ("day > date '2020-03-01' - interval 90 days", "`day` > date '2019-12-02'"),
    ("day > timestamp '2020-02-29 00:00:00'", None),
    ("at >= timestamp '2020-02-29 12:00:00'", "`at` >= timestamp '2020-02-29 11:00:00.000000'"),
    ("at >= '2020-07-01'", "`at` >= timestamp '2020-06-30 22:00:00.000000'"),
    ("at >= date '2020-07-01'", "`at` >= timestamp '2020-06-30 22:00:00.000000'"),
    ("at >= timestamp '2020-03-29 02:30:00'", None),  # does not exist in Berlin
    ("at >= timestamp '2020-10-25 02:30:00'", None),  # exists twice
    ("at >= timestamp_ntz '2020-07-01 00:00:00'", None),
    ("at IN ('2020-07-01')", None),
    ("id = 1 AND upper(title) = 'A' AND title = 'a'", "(`id` = 1 AND `title` = 'a')"),
]


@pytest.mark.parametrize(("condition", "expected"), FILTERS)
def test_conditions(condition: str, expected: str | None) -> None:
    [(_, found)] = scans(f"SELECT 1 FROM docs WHERE {condition}")
    assert found == expected


JOINS: list[tuple[str, list[str | None]]] = [
    ("docs d, tags t WHERE d.id = 1 AND t.id = 2", ["`id` = 1", "`id` = 2"]),
    ("docs d, tags t WHERE title = 'a' AND tag = 'b' AND id = 3", ["`title` = 'a'", "`tag` = 'b'"]),
    ("docs d JOIN tags t ON d.id = t.id AND d.id = 1 AND tag = 'a'", ["`id` = 1", "`tag` = 'a'"]),
    ("docs d LEFT JOIN tags t ON d.id = 1 AND t.id = 2", [None, "`id` = 2"]),
    ("docs d LEFT JOIN tags t ON true WHERE d.id = 1 AND t.id = 2", ["`id` = 1", None]),
    ("docs d LEFT JOIN tags t ON true WHERE t.id IS NULL", [None, None]),
    ("docs d RIGHT JOIN tags t ON d.id = 1 AND t.id = 2", ["`id` = 1", None]),
    ("docs d RIGHT JOIN tags t ON true WHERE d.id = 1 AND t.id = 2", [None, "`id` = 2"]),
    ("docs d FULL JOIN tags t ON d.id = 1 AND t.id = 2 WHERE d.id = 3 AND t.id = 4", [None, None]),
    ("docs d LEFT SEMI JOIN tags t ON d.id = 1 AND t.id = 2 WHERE d.id = 3", ["(`id` = 3 AND `id` = 1)", "`id` = 2"]),
    ("docs d LEFT ANTI JOIN tags t ON d.id = 1 AND t.id = 2 WHERE d.id = 3", ["`id` = 3", "`id` = 2"]),
    ("docs d LEFT SEMI JOIN tags t ON true WHERE tag = 'a'", [None, None]),
    ("docs d JOIN tags t USING (id) WHERE id = 1 AND tag = 'a'", [None, "`tag` = 'a'"]),
    ("docs d LEFT JOIN tags t ON d.id = t.id JOIN docs e ON e.id = 1 AND t.id = 2", [None, None, "`id` = 1"]),
    ("docs d JOIN tags t ON d.id = 1 RIGHT JOIN docs e ON t.id = 2 WHERE d.id = 4", ["`id` = 1", "`id` = 2", None]),
    (
        "docs d, tags t JOIN docs e ON d.id = 1 AND t.id = 2 AND price = 3",
        [None, "`id` = 2", "`price` = decimal(10,2) '3.00'"],
    ),
    ("docs d, tags t JOIN v ON price = 3", [None, None]),
    ("((SELECT id AS n FROM tags) a JOIN v ON true) q, docs d WHERE title = 'a' AND d.id = 1", [None, "`id` = 1"]),
    (
        "docs d, tags t JOIN v ON tag = 'a' AND x = 1 AND weight > 0.5",
        [None, "(`tag` = 'a' AND (`weight` > 0.5 OR isnan(`weight`)))"],
    ),
    ("docs d, unknown u WHERE title = 'a' AND d.id = 1", ["`id` = 1"]),
    ("docs TABLESAMPLE (5 ROWS) WHERE id = 1", [None]),
    ("docs AS d(id, b, c, e, f, g, h, i, j) WHERE d.id = 1", [None]),
    (
        "docs d LATERAL VIEW explode(array(1)) e AS n WHERE d.id = 1 AND title = 'a' AND n = 1",
        ["(`id` = 1 AND `title` = 'a')"],
    ),
    ("(SELECT id AS n, tag FROM tags) t, docs d WHERE n = 1 AND title = 'a'", [None, "`title` = 'a'"]),
    (
        "docs d JOIN (SELECT * FROM tags WHERE id = 2) t ON d.title = t.tag WHERE t.id = 5 AND d.id = 1",
        ["`id` = 1", "`id` = 2"],
    ),
    (
        "docs d WHERE EXISTS (SELECT 1 FROM tags t WHERE tag = 'a' AND d.id = 1 AND t.id = 2)",
        [None, "(`tag` = 'a' AND `id` = 2)"],
    ),
    ("docs d WHERE EXISTS (SELECT 1 FROM tags t WHERE title = 'a')", [None, None]),
    ("tags WHERE weight > 0.1", [None]),
    ("tags WHERE weight < 0.5 AND small > 5 AND small < 1000", ["(`weight` < 0.5 AND `small` > 5)"]),
]


@pytest.mark.parametrize(("rest", "expected"), JOINS)
def test_conditions_of_joins(rest: str, expected: list[str | None]) -> None:
    found = sorted(plan(f"SELECT 1 FROM {rest}").scans, key=lambda scan: scan.use.start)
    assert [scan.filter for scan in found] == expected


def test_a_cte_that_is_used_twice_is_one_scan() -> None:
    text = "WITH c AS (SELECT id FROM docs WHERE id > 1) SELECT * FROM c a JOIN c b ON a.id = b.id AND a.id = 5"
    assert scans(text) == [("id", "`id` > 1")]


def test_set_operations_have_conditions_of_their_own() -> None:
    found = scans("SELECT id FROM docs WHERE id = 1 UNION SELECT id FROM docs WHERE id = 2 EXCEPT SELECT id FROM tags")
    assert sorted(found, key=str) == sorted([("id", "`id` = 1"), ("id", "`id` = 2"), ("id", None)], key=str)


@pytest.mark.parametrize(
    ("text", "args", "expected"),
    [
        (
            "SELECT id FROM docs WHERE id = :n AND title = :t",
            {"n": 5, "t": "it's \\"},
            "(`id` = 5 AND `title` = 'it''s \\')",
        ),
        (
            "SELECT id FROM docs WHERE id = ? AND title = '?' AND title <> ?",
            [5, "a"],
            "(`id` = 5 AND `title` = '?' AND `title` <> 'a')",
        ),
        ("SELECT id FROM docs WHERE id = :n", {"n": None}, None),
        ("SELECT id FROM docs WHERE id = :n", {"n": 2.5}, None),
        ("SELECT id, title FROM docs WHERE score <= :n", {"n": -0.0}, "`score` <= 0.0"),
    ],
)
def test_parameters(text: str, args: Any, expected: str | None) -> None:
    [(columns, filter_)] = scans(text, args)
    assert (columns.removesuffix(" score"), filter_) == ("id title" if "title" in text else "id", expected)


def test_too_few_parameters() -> None:
    with pytest.raises(InvalidInputError, match=r"2 places for arguments \(\?\), and 1 are given"):
        name_positional("SELECT ?, '?', ?", [1])


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("SELECT id, title AS t FROM docs LIMIT 5", 5),
        ("SELECT * FROM docs LIMIT :n", 7),
        ("SELECT id FROM docs WHERE id = 1 LIMIT 5", None),
        ("SELECT id FROM docs ORDER BY id LIMIT 5", None),
        ("SELECT id FROM docs LIMIT 5 OFFSET 2", None),
        ("SELECT DISTINCT id FROM docs LIMIT 5", None),
        ("SELECT explode(array(id)) FROM docs LIMIT 5", None),
        ("SELECT docs.id FROM docs, tags LIMIT 5", None),
        ("SELECT count(*) FROM (SELECT id FROM docs LIMIT 5)", None),
        ("SELECT id FROM docs TABLESAMPLE (50 PERCENT) LIMIT 5", None),
    ],
)
def test_limits(text: str, limit: int | None) -> None:
    assert plan(text, {"n": 7}).scans[0].limit == limit


@pytest.mark.parametrize(
    ("text", "items"),
    [
        ("SELECT sum(id) FROM docs", (("sum", "id"),)),
        (
            "SELECT title, count(*) AS n, avg(id) FROM docs WHERE id > 5 GROUP BY title",
            (("key", "title"), ("count", "*"), ("mean", "id")),
        ),
        (
            "SELECT count(1), count(title), min(day), max(d.day) FROM docs d",
            (("count", "*"), ("count", "title"), ("min", "day"), ("max", "day")),
        ),
        ("SELECT sum(id) FROM docs WHERE upper(title) = 'A'", None),
        ("SELECT sum(id) FROM docs WHERE score < 0", None),  # holds -0.0 too
        ("SELECT sum(id) FROM docs HAVING sum(id) > 1", None),
        ("SELECT sum(DISTINCT id) FROM docs", None),
        ("SELECT sum(id) FILTER (WHERE id > 1) FROM docs", None),
        ("SELECT sum(id) OVER () FROM docs", None),
        ("SELECT title, sum(id) FROM docs GROUP BY 1", None),
        ("SELECT sum(id) FROM docs GROUP BY ROLLUP (title)", None),
        ("SELECT id, sum(id) FROM docs GROUP BY title", None),
        ("SELECT sum(id) + 1 FROM docs", None),
        ("SELECT sum(docs.id) FROM docs, tags", None),
        ("SELECT sum(id) FROM docs LIMIT 1", None),
        ("SELECT title FROM docs GROUP BY title", None),
        ("SELECT count(title, id) FROM docs", None),
        ("SELECT count(docs.*) FROM docs", None),
        ("SELECT count(*) FROM docs WHERE score > 5", (("count", "*"),)),
        ("SELECT count(*) FROM docs WHERE score < 5", None),  # of a NaN with a sign, Lance says that it is
        ("SELECT count(*) FROM docs WHERE NOT score > 5", None),
    ],
)
def test_whole_aggregates(text: str, items: Any) -> None:
    whole = plan(text).whole_aggregate()
    assert (whole and whole.items) == items


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SELECT id FROM main.ml.docs", "SELECT id FROM {t0} AS `docs`"),
        ("SELECT id FROM main.ml.docs AS d", "SELECT id FROM {t0} AS d"),
        ("SELECT '{x}' FROM docs VERSION AS OF 3 d -- }", "SELECT '{{x}}' FROM {t0} d -- }}"),
        ("SELECT id FROM docs FOR SYSTEM_VERSION AS OF 'gold'", "SELECT id FROM {t0} AS `docs`"),
        ("SELECT id FROM docs VERSION AS OF :v d WHERE id = :n", "SELECT id FROM {t0} d WHERE id = :n"),
        ("SELECT id FROM docs TIMESTAMP AS OF date_sub(current_date(), 1) - INTERVAL 1 DAY d", "SELECT id FROM {t0} d"),
        ("SELECT id FROM docs TIMESTAMP AS OF '2020-01-01' WHERE id = 1", "SELECT id FROM {t0} AS `docs` WHERE id = 1"),
        ("SELECT version AS of FROM docs", "SELECT version AS of FROM {t0} AS `docs`"),
        (
            "SELECT id FROM docs TABLESAMPLE (5 ROWS) REPEATABLE (1) WHERE 1=1",
            "SELECT id FROM {t0} TABLESAMPLE (5 ROWS) REPEATABLE (1) AS `docs` WHERE 1=1",
        ),
        (
            "SELECT main.ml.docs.id, ml.docs.*, docs.id FROM main.ml.docs",
            "SELECT docs.id, docs.*, docs.id FROM {t0} AS `docs`",
        ),
        ("SELECT a.b.c.d.docs.id FROM a.b.c.d.docs", "SELECT docs.id FROM {t0} AS `docs`"),
        ("TABLE `main`.docs;", "SELECT * FROM {t0} AS `docs`;"),
        ("SELECT id AS table FROM docs", "SELECT id AS table FROM {t0} AS `docs`"),
        ("SELECT DISTINCT table FROM docs", "SELECT DISTINCT table FROM {t0} AS `docs`"),
        ("SELECT * EXCEPT (table) FROM docs", "SELECT * EXCEPT (table) FROM {t0} AS `docs`"),
        ("SELECT 1 UNION ALL TABLE docs", "SELECT 1 UNION ALL SELECT * FROM {t0} AS `docs`"),
        ("SELECT 1 FROM (TABLE docs) d", "SELECT 1 FROM (SELECT * FROM {t0} AS `docs`) d"),
        ("SELECT 'é😀' FROM docs -- é", "SELECT 'é😀' FROM {t0} AS `docs` -- é"),
        ("EXPLAIN EXTENDED SELECT id FROM docs", "EXPLAIN EXTENDED SELECT id FROM {t0} AS `docs`"),
        ("WITH docs AS (SELECT 1), c AS (SELECT * FROM docs) SELECT * FROM docs, c", None),
        (
            "WITH docs AS (SELECT * FROM docs) SELECT * FROM docs",
            "WITH docs AS (SELECT * FROM {t0} AS `docs`) SELECT * FROM docs",
        ),
        (
            "SELECT * FROM (WITH docs AS (SELECT 1) SELECT * FROM docs), docs",
            "SELECT * FROM (WITH docs AS (SELECT 1) SELECT * FROM docs), {t0} AS `docs`",
        ),
        ("WITH RECURSIVE docs AS (SELECT 1 UNION ALL SELECT * FROM docs) SELECT * FROM docs", None),
        (
            "WITH a AS (SELECT * FROM docs), docs AS (SELECT 1) SELECT * FROM a, docs",
            "WITH a AS (SELECT * FROM {t0} AS `docs`), docs AS (SELECT 1) SELECT * FROM a, docs",
        ),
    ],
)
def test_only_names_are_replaced(text: str, expected: str | None) -> None:
    query = QueryText(text)
    uses = [use for use in find_tables(query) if use.parts[-1] == "docs"]
    changes = list(qualifier_replacements(query, uses))
    for number, use in enumerate(uses):
        changes += replacements(query, use, f"t{number}")
    assert query.replace(changes) == (expected or text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("select 1", True),
        ("  (SELECT 1) UNION (SELECT 2)", True),
        ("WITH a AS (SELECT 1) SELECT * FROM a", True),
        ("FROM a SELECT b", True),
        ("VALUES (1)", True),
        ("TABLE a", True),
        ("EXPLAIN FORMATTED SELECT 1", True),
        ("-- a comment\nSELECT 1", True),
        ("WITH a AS (SELECT 1) INSERT INTO t SELECT * FROM a", False),
        ("FROM a INSERT INTO b SELECT *", False),
        ("INSERT INTO a SELECT 1", False),
        ("DROP TABLE a", False),
        ("DESCRIBE a", False),
        ("", False),
        ("WITH a AS (SELECT 1) SELECT * FROM a WHERE kind = 'delete'", True),
        ("WITH a AS (SELECT 1) SELECT a.update, `insert` AS merge FROM a", True),
        ("WITH update AS (SELECT 1), merge AS (SELECT 2) SELECT * FROM update", True),
        ("FROM a SELECT b WHERE kind = 'insert'", True),
        ("WITH a AS (SELECT 1) FROM a INSERT INTO b SELECT *", False),
    ],
)
def test_what_is_a_query(text: str, expected: bool) -> None:
    assert is_query(text) is expected


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("SELECT 'a", "cannot be read"),
        ("SELECT FROM WHERE", "cannot be parsed: .*line 1"),
        ("SELECT 1; SELECT 2", "one statement at a time"),
        ("-- nothing", "has none"),
        ("SELECT * FROM vector_search('t', array(1)", "vector_search: its closing parenthesis is missing"),
        (f"SELECT {'(' * 3000}1{')' * 3000}", "nested too deeply"),
    ],
)
def test_what_cannot_be_parsed(text: str, says: str) -> None:
    with pytest.raises(InvalidInputError, match=says):
        QueryText(text)


TYPES: dict[str, Any] = {
    "int": pa.int32(),
    "long": pa.int64(),
    "text": pa.string(),
    "money": pa.decimal128(15, 2),
    "day": pa.date32(),
}


def read_tpch() -> tuple[dict[str, pa.Schema], dict[int, list[str]]]:
    """The schemas of TPC-H, and what each query reads, in the order of its text."""
    schemas: dict[str, pa.Schema] = {}
    reads: dict[int, list[str]] = {}
    for line in Path(__file__).with_name("tpch_scans.txt").read_text().splitlines()[1:]:
        if " | " not in line:
            table, columns = line.split(": ")
            pairs = (column.split(":") for column in columns.split())
            schemas[table] = pa.schema([(name, TYPES[kind]) for name, kind in pairs])
        else:
            number, _, read = line.partition(" | ")
            reads.setdefault(int(number), []).append(read)
    return schemas, reads


@pytest.mark.parametrize("number", QUERIES)
def test_what_tpch_reads(number: int) -> None:
    schemas, reads = read_tpch()
    query = QueryText(QUERIES[number])
    uses = [use for use in find_tables(query) if use.parts[-1] in schemas]
    found = Planner(query, {use: schemas[use.parts[-1]] for use in uses}).scans
    by_place = sorted(found, key=lambda scan: scan.use.start)
    lines = [f"{each.use.alias} | {' '.join(each.columns or ())} | {each.filter or ''}".rstrip() for each in by_place]
    assert lines == reads[number]
