from __future__ import annotations

from typing import Any

import pytest
from lance_namespace.errors import InvalidInputError

from lancehouse.gateway import messages
from lancehouse.gateway.operations import OPERATIONS, Operation

BY_NAME = {operation.name: operation for operation in OPERATIONS}


def read(name: str, body: bytes = b"", query: bytes = b"", **named: Any) -> Any:
    operation: Operation = BY_NAME[name]
    return messages.parse_request(operation, named, messages.parse_query(query), body, {})


@pytest.mark.parametrize(
    ("segment", "query", "levels"),
    [
        ("db$t", b"", ["db", "t"]),
        ("db.t", b"delimiter=.", ["db", "t"]),
        ("db.t", b"", ["db.t"]),
        ("a::b", b"delimiter=::", ["a", "b"]),
        ("$", b"", []),
        (".", b"delimiter=.", []),
        ("ü 100%", b"", ["ü 100%"]),
    ],
)
def test_the_delimiter_parts_the_levels_and_alone_is_the_root(segment: str, query: bytes, levels: list[str]) -> None:
    assert messages.parse_id(segment, messages.parse_query(query)) == levels


@pytest.mark.parametrize(
    ("segment", "query"), [("db$", b""), ("$$", b""), ("a..b", b"delimiter=."), ("a", b"delimiter=")]
)
def test_an_empty_level_is_refused(segment: str, query: bytes) -> None:
    with pytest.raises(InvalidInputError, match="empty"):
        messages.parse_id(segment, messages.parse_query(query))


def test_the_id_of_the_body_must_be_that_of_the_path() -> None:
    assert read("DescribeTable", b'{"id": ["db", "t"]}', id=["db", "t"]).id == ["db", "t"]
    assert read("DescribeTable", b"{}", id=["db", "t"]).id == ["db", "t"]
    with pytest.raises(InvalidInputError, match=r"the path says that id is \['db', 't'\], and the body says \['x'\]"):
        read("DescribeTable", b'{"id": ["x"]}', id=["db", "t"])
    with pytest.raises(InvalidInputError, match=r"the path says that id is \['t'\], and the body says \[\]"):
        read("DescribeTable", b'{"id": []}', id=["t"])
    assert read("DescribeNamespace", b'{"id": []}', id=[]).id == []
    with pytest.raises(InvalidInputError, match="index_name"):
        read("DropTableIndex", b'{"index_name": "other"}', id=["db", "t"], index_name="mine")
    with pytest.raises(InvalidInputError, match="the path says that index_name is 'mine', and the query says 'other'"):
        read("DropTableIndex", b"", b"index_name=other", id=["db", "t"], index_name="mine")
    with pytest.raises(InvalidInputError, match="the query says that version is 2, and the body says 3"):
        read("DescribeTable", b'{"version": 3}', b"version=2", id=["t"])


def test_texts_that_may_be_secret_are_not_repeated() -> None:
    with pytest.raises(InvalidInputError, match="the query and the body have different properties") as error:
        read(
            "DeclareTable", b'{"properties": {"storage.key": "s3cr3t"}}', b'properties={"storage.key":"pass"}', id=["t"]
        )
    assert "s3cr3t" not in str(error.value)
    assert "pass" not in str(error.value)


def test_fields_come_from_the_query() -> None:
    described = read("DescribeTable", b'{"version": 3}', b"load_detailed_metadata=true&with_table_uri=FALSE", id=["t"])
    assert (described.version, described.load_detailed_metadata, described.with_table_uri) == (3, True, False)
    listed = read("ListTables", b"", b"limit=7&page_token=a%2Bb+c&include_declared=false", id=["db"])
    assert (listed.limit, listed.page_token, listed.include_declared) == (7, "a+b c", False)
    merged = read("MergeInsertIntoTable", b"rows", b"on=a&on=b&when_matched_update_all=true&timeout=5s", id=["t"])
    assert (merged.on, merged.when_matched_update_all, merged.timeout) == (["a", "b"], True, "5s")
    made = read("CreateTable", b"rows", b"mode=overwrite&properties=%7B%22team%22%3A%22eng%22%7D", id=["t"])
    assert (made.mode, made.properties) == ("overwrite", {"team": "eng"})
    assert read("UpdateTableSchemaMetadata", b'{"a": "b", "id": "c"}', id=["t"]).metadata == {"a": "b", "id": "c"}


@pytest.mark.parametrize(
    ("name", "body", "query", "words"),
    [
        ("DescribeTable", b"{", b"", "not JSON"),
        ("DescribeTable", b"[1]", b"", "must be a JSON object, not list"),
        ("DescribeTable", b'{"version": "three"}', b"", "version"),
        ("DescribeTable", b'{"context": {"a": 1}}', b"", "context"),
        ("QueryTable", b"{}", b"", "QueryTable"),
        ("QueryTable", b'{"k": 3, "vector": "x"}', b"", "QueryTable"),
        ("BatchCommitTables", b'{"operations": [1]}', b"", "BatchCommitTables"),
        ("ListTables", b"", b"limit=many", "limit must be a whole number of 64 bits, got 'many'"),
        ("ListTables", b"", b"limit=9223372036854775808", "limit must be a whole number of 64 bits"),
        ("ListTables", b"", b"include_declared=perhaps", "include_declared must be true or false"),
        ("CreateTable", b"", b"properties=%5B%5D", "properties in the query must be a JSON object of texts"),
        ("CreateTable", b"", b"properties=%7B%22a%22%3A1%7D", "properties in the query must be a JSON object of texts"),
        ("CreateTable", b"", b"storage_options=%7Bsecret", "storage_options in the query must be a JSON object"),
        ("ListTables", b"", b"page_token=%FF", "'page_token' in the query is not UTF-8"),
    ],
)
def test_what_is_wrong_is_named(name: str, body: bytes, query: bytes, words: str) -> None:
    with pytest.raises(InvalidInputError, match=words) as raised:
        read(name, body, query)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (b'{"identity": {"api_key": "k"}}', {"x-api-key": "k"}),
        (b'{"identity": {"auth_token": "t", "api_key": ""}}', {"authorization": "Bearer t"}),
        (b'{"identity": {"api_key": 5}}', {}),
        (b'{"identity": ["k"]}', {}),
        (b'{"identity"', {}),
        (b'["identity"]', {}),
        (b"{}", {}),
        (b"", {}),
    ],
)
def test_who_calls_may_stand_in_the_body(body: bytes, headers: dict[str, str]) -> None:
    assert messages.identity_headers(body) == headers


def test_a_backend_is_not_told_who_calls() -> None:
    assert read("DescribeTable", b'{"identity": {"api_key": "s3cr3t"}}', id=["t"]).identity is None


def test_header_fields_win_over_the_context_of_the_body() -> None:
    body = (
        b'{"context": {"header.X-Team": "ops", "header.authorization": "s3cr3t", "trace": "7", "header.x-more": "1"}}'
    )
    request = messages.parse_request(BY_NAME["DescribeTable"], {"id": ["t"]}, {}, body, {"header.x-team": "eng"})
    assert request.context == {"header.x-team": "eng", "trace": "7", "header.x-more": "1"}
    assert read("DescribeTable", b"{}", id=["t"]).context is None


def test_header_fields_are_context_but_secrets_are_not() -> None:
    headers = {"x-team": "eng", "authorization": "Bearer s3cr3t", "x-api-key": "s3cr3t", "content-length": "3"}
    assert messages.headers_to_context(headers) == {"header.x-team": "eng"}
