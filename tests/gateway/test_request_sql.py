"""Every field of a request that holds SQL is rewritten, and no other."""

from __future__ import annotations

from typing import Any

import pytest
from lance_namespace import CountTableRowsRequest, CountTableRowsResponse
from lance_namespace.errors import InvalidInputError
from pydantic import BaseModel

from lancehouse.gateway.operations import OPERATIONS
from lancehouse.gateway.request_sql import rewrite_sql
from tests.gateway.calls import BODIES, QUERY

MODELS = {operation.name: operation.model for operation in OPERATIONS}
BEFORE, AFTER, BAD = "id=1", "id = 1", "repeat('a', 9) = s"


def nothing(_: CountTableRowsRequest) -> Any:
    raise AssertionError("rows are counted only for long literals")


PLACES: list[tuple[str, str, dict[str, Any]]] = [
    ("QueryTable", "filter", {**QUERY, "filter": "?"}),
    ("QueryTable", "columns: x", {**QUERY, "columns": {"column_aliases": {"x": "?"}}}),
    ("AnalyzeTableQueryPlan", "filter", {**QUERY, "filter": "?"}),
    ("AnalyzeTableQueryPlan", "columns: x", {**QUERY, "columns": {"column_aliases": {"x": "?"}}}),
    ("ExplainTableQueryPlan", "filter", {"query": {**QUERY, "filter": "?"}}),
    ("ExplainTableQueryPlan", "columns: x", {"query": {**QUERY, "columns": {"column_aliases": {"x": "?"}}}}),
    ("CountTableRows", "predicate", {"predicate": "?"}),
    ("DeleteFromTable", "predicate", {"predicate": "?"}),
    ("UpdateTable", "predicate", {"predicate": "?", "updates": [["a", "b"]]}),
    ("UpdateTable", "updates: a", {"updates": [["a", "?"]]}),
    ("AlterTableAddColumns", "new_columns: n", {"new_columns": [{"name": "n", "expression": "?"}]}),
    ("AlterTableBackfillColumns", "where", {"column": "n", "where": "?"}),
    ("MergeInsertIntoTable", "when_matched_update_all_filt", {"when_matched_update_all_filt": "?"}),
    (
        "MergeInsertIntoTable",
        "when_not_matched_by_source_delete_filt",
        {"when_not_matched_by_source_delete_filt": "?"},
    ),
]


def fill_sql(body: Any, sql: str) -> Any:
    if isinstance(body, dict):
        return {key: fill_sql(value, sql) for key, value in body.items()}
    if isinstance(body, list):
        return [fill_sql(value, sql) for value in body]
    return sql if body == "?" else body


def build_request(name: str, body: dict[str, Any]) -> BaseModel:
    made: BaseModel = MODELS[name].from_dict({"id": ["db", "t"], **body})  # type: ignore[attr-defined]
    return made


@pytest.mark.parametrize(("name", "field", "body"), PLACES)
def test_sql_is_rewritten_where_it_stands(name: str, field: str, body: dict[str, Any]) -> None:
    assert rewrite_sql(build_request(name, fill_sql(body, BEFORE)), nothing) == build_request(
        name, fill_sql(body, AFTER)
    )
    with pytest.raises(InvalidInputError, match=f"^{field}: the function repeat is not allowed here"):
        rewrite_sql(build_request(name, fill_sql(body, BAD)), nothing)


def test_every_field_of_a_request_that_is_named_like_sql_is_known() -> None:
    """A new version of the protocol that takes SQL elsewhere fails here."""
    words = ("filt", "predicate", "where", "expression", "sql")
    known = {"filter", "predicate", "where", "when_matched_update_all_filt", "when_not_matched_by_source_delete_filt"}
    named = {
        field
        for model in MODELS.values()
        for field in model.model_fields
        if any(word in field.lower() for word in words) and not field.startswith("prefilter")
    }
    assert named == known


@pytest.mark.parametrize("name", sorted(MODELS.keys() - {name for name, _, _ in PLACES}))
def test_other_requests_stay_as_they_are(name: str) -> None:
    if name != "CreateMaterializedView":  # its query goes to another server, which must know it
        request = MODELS[name].model_construct(**BODIES.get(name, {}))
        assert rewrite_sql(request, nothing) is request


def test_conditions_that_are_missing_or_blank_are_left_to_who_knows_what_they_mean() -> None:
    for body in ({}, {"predicate": " "}):
        request = build_request("CountTableRows", body)
        assert rewrite_sql(request, nothing) == request


@pytest.mark.parametrize("updates", [[["a"]], [["a", "1", "2"]]])
def test_an_update_is_pairs(updates: list[list[str]]) -> None:
    request = MODELS["UpdateTable"].model_construct(id=["t"], predicate=None, updates=updates)
    with pytest.raises(InvalidInputError, match="a pair of a column and an expression"):
        rewrite_sql(request, nothing)


def test_long_literals_are_set_in_as_many_rows_as_memory_allows() -> None:
    asked: list[CountTableRowsRequest] = []

    def count(request: CountTableRowsRequest) -> CountTableRowsResponse:
        asked.append(request)
        return CountTableRowsResponse(count=671)

    body = {"predicate": "id<5", "updates": [["s", f"'{'x' * 100_000}'"]], "branch": "side"}
    assert rewrite_sql(build_request("UpdateTable", body), count)
    assert asked == [CountTableRowsRequest(id=["db", "t"], branch="side", predicate="id < 5")]
    body["updates"] = [["s", f"'{'x' * 100_100}'"]]
    with pytest.raises(InvalidInputError, match="671 rows would get literals of 100,100 bytes each"):
        rewrite_sql(build_request("UpdateTable", body), count)


@pytest.mark.parametrize("place", [PLACES[1], PLACES[10]], ids=["query", "add columns"])
def test_a_long_literal_is_no_column_of_all_rows(place: tuple[str, str, dict[str, Any]]) -> None:
    name, field, body = place
    with pytest.raises(InvalidInputError, match=f"^{field}: its literals have 1,001 bytes"):
        rewrite_sql(build_request(name, fill_sql(body, f"'{'x' * 1001}'")), nothing)


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({f"c{n}": "abs(id)" for n in range(1_001)}, "1,001 columns are computed"),
        ({f"c{n}": "id + 1 + 2 + 3" for n in range(667)}, "2,001 operators are used in all"),
        ({f"c{n}": "lower(s)" for n in range(101)}, "101 values of columns are put into others"),
        ({f"c{n}": f"'{'x' * 1000}'" for n in range(11)}, "literals of all columns have 11,000 bytes"),
    ],
)
def test_many_columns_are_bounded_together(columns: dict[str, str], words: str) -> None:
    """Each alone would be taken."""
    for name, body in (
        ("QueryTable", {**QUERY, "columns": {"column_aliases": columns}}),
        ("AlterTableAddColumns", {"new_columns": [{"name": key, "expression": sql} for key, sql in columns.items()]}),
    ):
        with pytest.raises(InvalidInputError, match=f"olumns: {words}"):
            rewrite_sql(build_request(name, body), nothing)
    if "literals" not in words:  # those are bounded by the rows that get them
        with pytest.raises(InvalidInputError, match=f"updates: {words}"):
            rewrite_sql(
                build_request("UpdateTable", {"updates": [[key, sql] for key, sql in columns.items()]}), nothing
            )


def test_columns_may_be_renamed_as_many_as_there_are() -> None:
    columns = {f"c{number}": f"s{number}" for number in range(1_000)}
    request = build_request("QueryTable", {**QUERY, "columns": {"column_aliases": columns}})
    assert rewrite_sql(request, nothing) == request


@pytest.mark.parametrize(
    ("names", "words"),
    [(["id"] * 10_001, "10,001 are named"), (["s" + ".x" * 65], "nested more than 64 levels deep")],
)
def test_names_of_columns_are_bounded(names: list[str], words: str) -> None:
    """Lance writes them into SQL, and takes minutes for a path of 20,000 levels."""
    request = build_request("QueryTable", {**QUERY, "columns": {"column_names": names}})
    with pytest.raises(InvalidInputError, match=words):
        rewrite_sql(request, nothing)
