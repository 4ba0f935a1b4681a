"""Searches of callers are bounded; ordinary ones pass."""

from __future__ import annotations

from typing import Any

import pytest
from lance_namespace import QueryTableRequest
from lance_namespace.errors import InvalidInputError

from lancehouse.gateway.request_sql import check_search

WORD: dict[str, Any] = {"match": {"terms": "word", "column": "s"}}


def nested_query(levels: int, kind: str = "boolean") -> dict[str, Any]:
    query = WORD
    for _ in range(levels):
        boolean = {"boolean": {"must": [query], "must_not": [], "should": []}}
        query = boolean if kind == "boolean" else {"boost": {"positive": query, "negative": WORD}}
    return query


def beside(count: int) -> dict[str, Any]:
    return {"boolean": {"must": [], "must_not": [WORD] * (count // 2), "should": [WORD] * (count - count // 2)}}


def check(query: dict[str, Any]) -> None:
    said = query if "string_query" in query else {"structured_query": {"query": query}}
    search({"k": 3, "vector": {}, "full_text_query": said})


def search(body: dict[str, Any]) -> None:
    request = QueryTableRequest.from_dict(body)
    assert request is not None
    check_search(request)


@pytest.mark.parametrize(
    "query",
    [
        WORD,
        nested_query(40),
        nested_query(40, "boost"),
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
        (nested_query(41), "nested more than 40 levels deep"),
        (nested_query(41, "boost"), "nested more than 40 levels deep"),
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


ONE: dict[str, Any] = {"vector": {"single_vector": [0.5, 1.5]}}
TWO: dict[str, Any] = {"vector": {"multi_vector": [[0.5, 1.5]] * 2}}


@pytest.mark.parametrize(
    "body",
    [
        {"k": 10, **ONE},
        {"k": 1_000_000, **ONE},
        {"k": 500_000, **TWO},
        {"k": 10_000, "refine_factor": 100, **ONE},
        {"k": 0, "vector": {}},
        {"k": 2**31 - 1, "offset": 2**31 - 1, "vector": {}},  # a scan
    ],
)
def test_ordinary_searches_pass(body: dict[str, Any]) -> None:
    search(body)


@pytest.mark.parametrize(
    "body",
    [
        {"k": 1_000_001, **ONE},
        {"k": 10, "offset": 999_991, **ONE},
        {"k": 500_001, **TWO},
        {"k": 10_000, "refine_factor": 101, **ONE},
        {"k": 10, "ef": 1_000_001, **ONE},
    ],
)
def test_searches_for_too_many_rows_are_refused(body: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError, match="at most 1,000,000 rows"):
        search(body)


def test_vectors_are_searched_for_a_thousand_at_once() -> None:
    search({"k": 1, "vector": {"multi_vector": [[0.5]] * 1_000}})
    with pytest.raises(InvalidInputError, match="1,001 vectors"):
        search({"k": 1, "vector": {"multi_vector": [[0.5]] * 1_001}})
