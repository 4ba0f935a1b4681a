from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest
from lance_namespace.errors import InvalidInputError

from lancehouse.catalog.callers import ANYBODY, Caller
from lancehouse.catalog.catalog import Catalog
from lancehouse.server.api import maintenance
from lancehouse.server.http.routes import DEFAULT_PAGE, LARGEST_PAGE, Call, Match, parse_json_object, parse_query
from lancehouse.wire import iceberg_requests as shapes


def call(query: bytes = b"", body: bytes = b"") -> Call:
    return Call(cast(Catalog, None), Caller(ANYBODY), Match(""), parse_query(query), {}, body)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        (b"", (None, None)),
        (b"pageSize=5", (None, None)),
        (b"pageToken=", ("", DEFAULT_PAGE)),
        (b"pageToken=abc&pageSize=7", ("abc", 7)),
        (b"pageToken=&pageSize=9999999999", ("", LARGEST_PAGE)),
    ],
)
def test_page(query: bytes, expected: tuple[str | None, int | None]) -> None:
    assert call(query).page_request() == expected


@pytest.mark.parametrize("limit", ["0", "x", "", "1001", "\u0661", "000000001000", "000000001" + "0" * 5000])
def test_a_wrong_limit_of_maintenance(limit: str) -> None:
    with pytest.raises(InvalidInputError, match="limit must be a whole number"):
        maintenance._parse_limit(replace(call(), query={"limit": limit}))


@pytest.mark.parametrize("size", [b"0", b"-1", b"x", b"1.5", b"", b"%D9%A1", b"99999999999999999999"])
def test_a_wrong_page_size(size: bytes) -> None:
    with pytest.raises(InvalidInputError, match="pageSize"):
        call(b"pageSize=" + size).page_request()


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        (b"", [()]),
        (b"parent=", [()]),
        (b"parent=a", [("a",)]),
        (b"parent=a%1Fb", [("a", "b")]),
        (b"parent=a%251Fb", [("a", "b")]),
        (b"parent=a%2520b", [("a%20b",), ("a b",)]),
        (b"parent=a%20b", [("a b",)]),
        (b"parent=a+b", [("a b",)]),
    ],
)
def test_parent_may_be_encoded_twice(query: bytes, expected: list[tuple[str, ...]]) -> None:
    assert call(query).parent_candidates() == expected


@pytest.mark.parametrize("query", [b"parent=a%1F", b"parent=%zz", b"parent=%ff", b"parent=%00", b"%zz=1"])
def test_a_wrong_query(query: bytes) -> None:
    with pytest.raises(InvalidInputError):
        call(query).parent_candidates()


@pytest.mark.parametrize(("value", "expected"), [(b"true", True), (b"TRUE", True), (b"False", False)])
def test_flag(value: bytes, expected: bool) -> None:
    assert call(b"purgeRequested=" + value).flag("purgeRequested") is expected
    assert call().flag("purgeRequested") is False


@pytest.mark.parametrize("value", [b"", b"1", b"yes"])
def test_a_wrong_flag(value: bytes) -> None:
    with pytest.raises(InvalidInputError, match="purgeRequested must be true or false"):
        call(b"purgeRequested=" + value).flag("purgeRequested")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "missing"),
        (b"{", "not JSON"),
        (b"[1]", "must be a JSON object, not list"),
        (b'{"a":"\xff"}', "not JSON"),
        (b'{"a":["x\\u0000"]}', "NUL"),
        (b'{"x\\u0000":1}', "NUL"),
        (b'{"a":"\\ud800"}', "not JSON"),
        (b"[" * 5000, "not JSON"),
    ],
)
def test_a_body_that_is_no_object(body: bytes, words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        parse_json_object(body)


def test_a_backslash_before_u0000_is_text() -> None:
    assert parse_json_object(b'{"a":"\\\\u0000"}') == {"a": "\\u0000"}


@pytest.mark.parametrize(
    ("model", "body", "field"),
    [
        (shapes.CreateNamespaceRequest, b"{}", "namespace: field required"),
        (shapes.CreateNamespaceRequest, b'{"namespace":"a"}', "namespace: input should be a valid list"),
        (shapes.CreateNamespaceRequest, b'{"namespace":[1]}', r"namespace\[0\]"),
        (shapes.CreateNamespaceRequest, b'{"namespace":["a"],"properties":{"k":1}}', "properties.k"),
        (shapes.CreateTableRequest, b'{"name":"t"}', "schema"),
        (shapes.CreateTableRequest, b'{"name":"t","schema":{"fields":[{"id":1}]}}', r"schema.fields\[0\].name"),
        (shapes.CreateTableRequest, b'{"name":"t","schema":{"fields":[]},"stage-create":"yes"}', "stage-create"),
        (shapes.CommitTableRequest, b'{"requirements":[],"updates":[{}]}', r"updates\[0\].action"),
        (shapes.CommitTransactionRequest, b'{"table-changes":[{"updates":[]}]}', r"table-changes\[0\].identifier"),
        (shapes.RenameTableRequest, b'{"source":{"namespace":["a"],"name":"t"}}', "destination"),
        (shapes.PlanTableScanRequest, b'{"snapshot-id":"1"}', "snapshot-id"),
        (shapes.PlanTableScanRequest, b'{"snapshot-id":1.5}', "snapshot-id"),
        (shapes.FetchScanTasksRequest, b"{}", "plan-task"),
    ],
)
def test_a_wrong_type_is_named(model: Any, body: bytes, field: str) -> None:
    with pytest.raises(InvalidInputError, match=f"Cannot parse {model.__name__}: .*{field}"):
        call(body=body).parse_body(model)


def test_null_counts_as_left_out_and_unknown_keys_stay() -> None:
    body = b'{"namespace":["a"],"properties":null,"new":{"x":1}}'
    assert call(body=body).parse_body(shapes.CreateNamespaceRequest)["new"] == {"x": 1}
