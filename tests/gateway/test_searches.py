"""Full-text queries of callers are bounded; ordinary ones pass."""

from __future__ import annotations

from typing import Any

import pytest
from lance_namespace.errors import InvalidInputError
from lance_namespace_urllib3_client.models.query_table_request_full_text_query import QueryTableRequestFullTextQuery

from lancehouse.gateway.text_searches import check_text_search

WORD: dict[str, Any] = {"match": {"terms": "word", "column": "s"}}


def nested(levels: int, kind: str = "boolean") -> dict[str, Any]:
    query = WORD
    for _ in range(levels):
        boolean = {"boolean": {"must": [query], "must_not": [], "should": []}}
        query = boolean if kind == "boolean" else {"boost": {"positive": query, "negative": WORD}}
    return query


def beside(count: int) -> dict[str, Any]:
    return {"boolean": {"must": [], "must_not": [WORD] * (count // 2), "should": [WORD] * (count - count // 2)}}


def check(query: dict[str, Any]) -> None:
    said = query if "string_query" in query else {"structured_query": {"query": query}}
    check_text_search(QueryTableRequestFullTextQuery.from_dict(said))


@pytest.mark.parametrize(
    "query",
    [
        WORD,
        nested(40),
        nested(40, "boost"),
        beside(999),
        {"phrase": {"terms": "a few words", "column": "s", "slop": 3}},
        {"match": {"terms": "word", "column": "s", "fuzziness": 2, "max_expansions": 200}},
        {"multi_match": {"match_queries": [WORD["match"]] * 10}},
        {"string_query": {"query": "word " * 800, "columns": ["a", "b"]}},
        {"string_query": {"query": "word"}},
    ],
)
def test_ordinary_queries_pass(query: dict[str, Any]) -> None:
    check(query)


@pytest.mark.parametrize(
    ("query", "words"),
    [
        (nested(41), "nested more than 40 levels deep"),
        (nested(41, "boost"), "nested more than 40 levels deep"),
        (beside(1_000), "more than 1,000 queries"),
        ({"multi_match": {"match_queries": [WORD["match"]] * 1_000}}, "more than 1,000 queries"),
        ({"match": {"terms": "word " * 1_601, "column": "s"}}, "8,005 characters"),
        ({"phrase": {"terms": "word " * 1_601, "column": "s"}}, "8,005 characters"),
        ({"match": {"terms": "a", "column": "s", "max_expansions": 201}}, "max_expansions is 201"),
        ({"string_query": {"query": "word " * 1_601}}, "8,005 characters"),
        ({"string_query": {"query": "word", "columns": ["s"] * 2_001}}, "8,004 characters in all columns"),
    ],
)
def test_what_is_too_much_is_refused(query: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInputError, match=f"^full_text_query: .*{words}"):
        check(query)


def test_no_query_is_none() -> None:
    check_text_search(None)
