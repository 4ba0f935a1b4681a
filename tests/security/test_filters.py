"""No SQL of a caller ends the server, or makes it large: it is parsed first, and what is allowed is bounded."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from itertools import repeat
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from tests.gateway import sql_grammar
from tests.live.gateways import until
from tests.security.filters import LONGEST_SHORT, PLACES, QUERY, ROWS, SHORT, Target
from tests.security.watch import attack_server
from tests.servers.lancehouse import start_lancehouse

pytestmark = pytest.mark.timeout(900)

KILLERS = {
    "a chain that fits into an address": "||".join(["s"] * 3_000) + "='x'",
    "a long chain of ||": " || ".join(["s"] * 5_000) + " = 'x'",
    "a long chain of +": " + ".join(["id"] * 5_000) + " = 1",
    "a long chain of =": "b" + " = true" * 5_000,
    "a long chain of IS NULL": "b" + " IS NULL" * 5_000,
    "a long chain of casts": "id" + "::int" * 5_000 + " = 1",
    "many brackets": "(" * 10_000 + "b" + ")" * 10_000,
    "many NOT": "NOT " * 10_000 + "b",
    "many minus": "id = " + "- " * 10_000 + "1",
    "functions in functions": "lower(" * 5_000 + "s" + ")" * 5_000 + " = 'a'",
    "subscripts": "l" + "[1]" * 5_000 + " = 'x'",
    "fields": "s" + ".x" * 5_000 + " = 1",
    "many branches": f"coalesce(CASE {' '.join(f'WHEN id={n} THEN b' for n in range(1_900))} END, false)",
    "branches in branches": "coalesce(CASE WHEN " * 12 + "b" + " THEN b END, b)" * 12,
    "between": "abs(cast(" * 13 + "b" + " as int)) BETWEEN 0 AND 1" * 13,
    "cases": "coalesce(" + "CASE WHEN b THEN " * 5_000 + "b" + " END" * 5_000 + ")",
}
"""They overflowed the native stack, or would the parser's, or became so large that they took minutes."""

GLUTTONS = {
    "repeat": "repeat('a', 2000000000) = s",
    "repeat for each row": "repeat(s, 100000) = 'x'",
    "range": "array_length(range(0, 500000000)) = 1",
    "generate_series": "generate_series(0, 500000000) IS NULL",
    "lpad": "lpad(s, 2000000000, 'x') = 'x'",
    "rpad": "rpad('a', 2000000000) = s",
    "array_repeat": "array_length(array_repeat(s, 100000000)) = 1",
    "array_resize": "array_length(array_resize(l, 100000000)) = 1",
    "concat in concat": "concat(" * 20 + "s" + ", s, s, s, s, s, s, s, s, s)" * 20 + " = 'x'",
    "replace in replace": "replace(" * 12 + "s" + ", 'a', 'aaaaaaaaaaaaaaaaaaaa')" * 12 + " = 'x'",
    "regexp_replace": "regexp_replace(" * 6 + "s" + ", '.', '\\0\\0\\0\\0\\0\\0\\0\\0', 'g')" * 6 + " = 'x'",
    "encode in encode": "encode(" * 30 + "s" + ", 'hex')" * 30 + " = 'x'",
    "a long literal in each row": f"s || '{'x' * 200_000}' = 'a'",
    "a long literal in a function": f"greatest(s, '{'x' * 200_000}') = 'a'",
    "a long list in each row": f"array_has_any(l, make_array(s, {', '.join(repr(str(n)) for n in range(20_000))}))",
    "a huge type": "arrow_cast(id, 'FixedSizeBinary(2000000000)') IS NULL",
    "hidden by a backslash": "s IN ('\\', repeat(chr(97), 2000000000), ') --')",
}
"""They took gigabytes."""

NO_CONDITIONS = {
    "an aggregate": "max(id) = 1",
    "count": "count(*) > 1",
    "a window": "sum(id) OVER () > 1",
    "row_number": "row_number() OVER (ORDER BY id) = 1",
    "a subquery": "id IN (SELECT 1)",
    "a scalar subquery": "(SELECT max(id) FROM t) = id",
    "exists": "EXISTS (SELECT 1)",
    "unnest": "unnest(l) = 'x'",
    "a table function": "id IN (generate_series(1, 3))",
    "two statements": "id = 1; DROP TABLE t",
    "a placeholder": "id = ?",
    "a named placeholder": "id = :x",
    "a lambda": "array_filter(l, x -> x = 'x')",
    "a cast that there is not": "cast(b as decimal(76, 70)) = s",
    "nothing": "--",
    "half of a text": "s = 'abc",
}
"""They are none that a row can meet; many were a 500."""


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with start_lancehouse(tmp_path_factory.mktemp("filters")) as server:
        table = Target(server, "filters")
        table.create()
        yield table


def refusal_text(status: int, answer: bytes) -> str:
    """What a refusal says; code 13, or the console's own form."""
    assert status == 400, answer[:300]
    said = json.loads(answer)
    assert said.get("code", 13) == 13, said
    return str(said.get("error") or said)


WORST = (
    "a chain that fits into an address",
    "a long chain of +",
    "many NOT",
    "branches in branches",
    "repeat",
    "range",
    "hidden by a backslash",
)
"""For the places that an ordinary run does not attack with all."""


@pytest.mark.parametrize("place", PLACES)
def test_no_sql_ends_the_server_or_takes_much_memory(target: Target, soak: bool, place: str) -> None:
    every = KILLERS | GLUTTONS
    with attack_server(target.server, soak=soak):
        for sql in every.values() if soak or place == "query" else map(every.__getitem__, WORST):
            if place not in SHORT or len(sql) <= LONGEST_SHORT:
                refusal_text(*PLACES[place](target, sql))
    assert target.count("true") == (200, str(ROWS).encode())


@pytest.mark.parametrize("place", PLACES)
def test_what_is_no_condition_is_refused_by_name(target: Target, place: str) -> None:
    for sql in NO_CONDITIONS.values():
        refusal_text(*PLACES[place](target, sql))
    assert "the function max is not allowed" in refusal_text(*target.query("max(id) = 1"))
    assert target.count("true") == (200, str(ROWS).encode())


@pytest.mark.parametrize(
    "filter",
    [
        " OR ".join(f"id = {number}" for number in range(ROWS)),
        " AND ".join(f"id != {number}" for number in range(ROWS, 2 * ROWS)),
        f"id IN ({', '.join(map(str, range(ROWS)))})",
        f"id NOT IN ({', '.join(str(-number) for number in range(1, ROWS))})",
        " OR ".join(f"(id = {number} AND s = 'abc')" for number in range(9_000)) + " OR id >= 9000",
    ],
    ids=["or", "and", "in", "not in", "or of and"],
)
def test_twenty_thousand_terms_are_fine(target: Target, soak: bool, filter: str) -> None:
    with attack_server(target.server, soak=soak):
        assert target.count(filter) == (200, str(ROWS).encode())


@pytest.mark.parametrize(
    "columns",
    [
        {"column_names": ["s" + ".x" * 20_000]},
        {"column_names": ["id"] * 200_000},
        {"column_aliases": {f"c{number}": " || ".join(["s"] * 8) for number in range(5_000)}},
        {"column_aliases": {f"c{number}": f"'{'x' * 990}' || s" for number in range(2_000)}},
    ],
    ids=["a deep name", "many names", "many operators", "many literals"],
)
def test_many_columns_are_refused(target: Target, soak: bool, columns: object) -> None:
    with attack_server(target.server, soak=soak):
        said = refusal_text(*target.query("true", columns=columns))
    assert said.startswith("columns: ")


def _nested_query(levels: int) -> object:
    query: object = {"match": {"terms": "abc", "column": "s"}}
    for _ in range(levels):
        query = {"boolean": {"must": [query], "must_not": [], "should": []}}
    return {"structured_query": {"query": query}}


@pytest.mark.parametrize(
    "query",
    [
        {"string_query": {"query": "abc " * 400_000, "columns": ["s"]}},
        {"string_query": {"query": "abc", "columns": ["s"] * 100_000}},
        {"structured_query": {"query": {"phrase": {"terms": "abc " * 100_000, "column": "s"}}}},
        *map(_nested_query, (60, 150, 300)),
    ],
    ids=["words", "columns", "a phrase", "60 deep", "150 deep", "300 deep"],
)
def test_full_text_queries_are_bounded(target: Target, soak: bool, query: object) -> None:
    """They ended the process, or took minutes."""
    with attack_server(target.server, soak=soak):
        refusal_text(*target.query("true", full_text_query=query))
        refusal_text(*target.post(f"table/{target.id}/analyze_plan", {**QUERY, "full_text_query": query}))
        refusal_text(*target.post(f"table/{target.id}/explain_plan", {"query": {**QUERY, "full_text_query": query}}))


@pytest.mark.parametrize(
    "search",
    [{"k": 2**31 - 1}, {"offset": 2**31 - 1}, {"refine_factor": 2**31 - 1}, {"ef": 2**31 - 1}],
    ids=["k", "offset", "refine_factor", "ef"],
)
def test_searches_for_billions_of_rows_are_refused(target: Target, soak: bool, search: dict[str, int]) -> None:
    """Room for them was allocated before anything was found, which ended the process."""
    body = {**QUERY, "vector": {"single_vector": [0.5] * 8}, "vector_column": "v", **search}
    with attack_server(target.server, soak=soak):
        refusal_text(*target.post(f"table/{target.id}/query", body))
        refusal_text(*target.post(f"table/{target.id}/analyze_plan", body))
        refusal_text(*target.post(f"table/{target.id}/explain_plan", {"query": body}))
        words = {"string_query": {"query": "abc", "columns": ["s"]}}
        assert target.query("true", full_text_query=words, k=2**31 - 1)[0] in (200, 400)


def test_large_filters_at_once_stay_small(target: Target, soak: bool) -> None:
    sql = " OR ".join(f"(id = {number} AND s LIKE '%{number}')" for number in range(9_000))
    with attack_server(target.server, soak=soak), ThreadPoolExecutor(16) as callers:
        answers = list(callers.map(lambda _: target.count(sql), range(32 if soak else 4)))
    assert {status for status, _ in answers} == {200}


@pytest.mark.parametrize(
    "sql",
    [
        f"id = {'9' * 400_000}",
        f"id = '{'x' * 400_000}'",
        f"id = '{'<Token>' * 50_000}'",
        f"id = '{'://a:a' * 50_000}'",
        f"id = '{'Received literal a(' * 20_000}'",
        f"nothing = '{'column ' * 50_000}'",
    ],
    ids=["number", "text", "tags", "addresses", "literals", "columns"],
)
def test_filters_that_lance_repeats_in_its_errors(target: Target, soak: bool, sql: str) -> None:
    """What is read out of an error is bounded: patterns that search a long text hold up all threads."""
    with attack_server(target.server, soak=soak):
        status, answer = target.count(sql)
    assert status in (400, 404)
    assert len(answer) < 10_000


LARGE = 1_000_000
LARGE_ROWS = 700
CONTAINED = "s LIKE '%x%'"


@pytest.fixture(scope="module")
def large(target: Target) -> Target:
    """The table `large` of texts of a megabyte each, which are small on disk."""
    some = pa.record_batch({"id": pa.array(range(50)), "s": pa.array(["a" * LARGE] * 50, pa.large_string())})
    _, answer = target.post(f"table/{target.name}$large/declare", {})
    rows = pa.RecordBatchReader.from_batches(some.schema, repeat(some, LARGE_ROWS // 50))
    lance.write_dataset(rows, json.loads(answer)["location"])
    return target


@pytest.mark.parametrize(
    ("operation", "body"),
    [
        ("count_rows", {"predicate": CONTAINED}),
        ("analyze_plan", {**QUERY, "filter": CONTAINED}),
        ("add_columns", {"new_columns": [{"name": "size", "expression": "length(s)"}]}),
        ("delete", {"predicate": CONTAINED}),
        ("update", {"predicate": "id < 20", "updates": [["s", "upper(s)"]]}),
        ("delete", {"predicate": "s LIKE '%A%' AND id < 10"}),
    ],
)
def test_rows_of_a_megabyte_are_looked_at_a_few_at_a_time(
    large: Target, soak: bool, operation: str, body: object
) -> None:
    with attack_server(large.server, soak=soak):
        status, answer = large.post(f"table/{large.name}$large/{operation}", body)
    assert status == 200, answer[:300]


def test_a_change_of_large_rows_is_a_change(large: Target) -> None:
    """As the last ones of the test before left them."""
    some = {"vector": {}, "k": 0, "columns": {"column_names": ["id"]}, "filter": "starts_with(s, 'A')"}
    status, answer = large.post(f"table/{large.name}$large/query", some)
    assert status == 200
    with pa.ipc.open_file(answer) as file:
        assert set(file.read_all().column("id").to_pylist()) == set(range(10, 20))
    assert large.post(f"table/{large.name}$large/count_rows", {})[1] == str(LARGE_ROWS * 4 // 5).encode()


PACKED_ROWS = 800


def test_a_worker_that_fills_the_memory_ends_alone(tmp_path: Path, soak: bool) -> None:
    """Of rows that are packed nobody knows how large they become."""
    # In the soak run more workers end than may crash in a minute before they are ready.
    crashes = 7 if soak else 2
    texts: pa.Field[Any] = pa.field("s", pa.large_string(), metadata={"lance-encoding:compression": "zstd"})
    schema = pa.schema([pa.field("id", pa.int64()), texts])
    some = pa.record_batch([pa.array(range(50)), pa.array(["a" * LARGE] * 50, pa.large_string())], schema=schema)
    with start_lancehouse(tmp_path, workers=2, options=["--max-memory", "500MiB"]) as server:
        target = Target(server, "packed")
        target.create()
        _, answer = target.post("table/packed$large/declare", {})
        rows = pa.RecordBatchReader.from_batches(schema, repeat(some, PACKED_ROWS // 50))
        lance.write_dataset(rows, json.loads(answer)["location"], data_storage_version="2.1")
        for _ in range(crashes):
            with pytest.raises((OSError, HTTPException)):
                target.post("table/packed$large/count_rows", {"predicate": CONTAINED})
            until(lambda: target.count("id = 1") == (200, b"1"), "the other worker answers")
        assert server.log.read_text().count("holds more than --max-memory") == crashes


def test_a_long_literal_may_be_set_in_few_rows_only(target: Target, soak: bool) -> None:
    updates = [["s", f"'{'x' * 100_000}'"]]
    with attack_server(target.server, soak=soak):
        said = refusal_text(*target.post(f"table/{target.id}/update", {"updates": updates}))
        assert f"{ROWS:,} rows would get literals of 100,000 bytes" in said
        few = {"predicate": "id < 3", "updates": updates}
        assert target.post(f"table/{target.id}/update", few)[0] == 200
    assert target.count("length(s) = 100000") == (200, b"3")
    assert target.post(f"table/{target.id}/update", {"updates": [["s", "'abc'"]]})[0] == 200


@pytest.mark.parametrize("seed", [17, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(18, 37))])
def test_sql_made_by_a_grammar_neither_ends_nor_fills_the_server(target: Target, seed: int, soak: bool) -> None:
    """Every filter is answered: with rows, or with an error that is the caller's. There are 20,000 in the soak run."""
    filters = sql_grammar.filters(random.Random(seed), 1000 if soak else 300)
    with attack_server(target.server, soak=soak), ThreadPoolExecutor(4) as callers:
        answers = list(callers.map(lambda sql: (sql, *target.count(sql)), filters))
    wrong = [(sql, answer) for sql, status, answer in answers if status not in (200, 400, 404)]
    assert not wrong, wrong[:3]
    assert sum(status == 200 for _, status, _ in answers) > len(answers) / 10, "too few are filters at all"


def test_iceberg_filters_end_in_400(target: Target, soak: bool) -> None:
    """Scan planning writes SQL by itself, out of JSON."""
    path = f"/iceberg/v1/{target.server.warehouse}/namespaces/{target.name}/tables/t/plan"

    def nested_filter(kinds: Sequence[str], levels: int) -> object:
        expression: object = {"type": "eq", "term": "id", "value": 1}
        for level in range(levels):
            kind, other = kinds[level % len(kinds)], {"type": "gt", "term": "id", "value": level}
            parts = {"child": expression} if kind == "not" else {"left": expression, "right": other}
            expression = {"type": kind, **parts}
        return expression

    text = "x" * 1_000_000
    with attack_server(target.server, soak=soak):
        for expression in (
            *(nested_filter([kind], 400) for kind in ("and", "or", "not")),
            *(nested_filter(["and", "or"], levels) for levels in (30, 45, 90, 300)),
            {"type": "starts-with", "term": "s", "value": text},
            {"type": "eq", "term": "s", "value": text},
            {"type": "in", "term": "s", "values": [f"{number:040}" for number in range(20_000)]},
        ):
            status, answer = target.send("POST", path, {"filter": expression})
            assert status in (200, 400), answer[:300]
            if status == 400:
                assert json.loads(answer)["error"]["type"] == "BadRequestException"
