from __future__ import annotations

from typing import Any

import pytest
from lance_namespace import (
    BatchCommitTablesRequest,
    BatchCommitTablesResponse,
    BatchCreateTableVersionsRequest,
    DeregisterTableResponse,
    DescribeTableRequest,
    DescribeTableResponse,
    DropTableResponse,
    ListNamespacesRequest,
    ListNamespacesResponse,
    ListTablesRequest,
    ListTablesResponse,
    RenameTableRequest,
)

from lancehouse.gateway.backends import add_prefix, remove_prefix, request_ids

COMMITS = {
    "operations": [
        {"declare_table": {"id": ["db", "a"]}},
        {"create_table_version": {"id": ["db", "b"], "version": 2, "manifest_path": "m"}},
    ]
}
ENTRIES = {"entries": [{"id": ["db", "a"], "version": 2, "manifest_path": "m"}]}


@pytest.mark.parametrize(
    ("request_", "ids", "below"),
    [
        (DescribeTableRequest(id=["db", "t"]), [["db", "t"]], [["wh", "db", "t"]]),
        (DescribeTableRequest(), [[]], [["wh"]]),
        (
            RenameTableRequest(id=["db", "t"], new_table_name="u", new_namespace_id=["other"]),
            [["db", "t"], ["other", "u"]],
            [["wh", "db", "t"], ["wh", "other", "u"]],
        ),
        (
            RenameTableRequest(id=["db", "t"], new_table_name="u"),
            [["db", "t"], ["db", "u"]],
            [["wh", "db", "t"], ["wh", "db", "u"]],
        ),
        (
            BatchCommitTablesRequest.from_dict(COMMITS),
            [["db", "a"], ["db", "b"]],
            [["wh", "db", "a"], ["wh", "db", "b"]],
        ),
        (BatchCreateTableVersionsRequest.from_dict(ENTRIES), [["db", "a"]], [["wh", "db", "a"]]),
    ],
)
def test_ids_of_a_warehouse_do_not_repeat_it(request_: Any, ids: list[list[str]], below: list[list[str]]) -> None:
    assert request_ids(request_) == ids
    assert request_ids(add_prefix(request_, ("wh",))) == below
    assert add_prefix(request_, ()) is request_


@pytest.mark.parametrize(
    ("response", "request_", "told"),
    [
        (DescribeTableResponse(namespace=["wh", "db"]), None, {"namespace": ["db"]}),
        (DropTableResponse(id=["wh", "db", "t"], location="l"), None, {"id": ["db", "t"], "location": "l"}),
        (DeregisterTableResponse(id=["wh", "db", "t"]), None, {"id": ["db", "t"]}),
        (
            BatchCommitTablesResponse.from_dict({"results": [{"deregister_table": {"id": ["wh", "db", "t"]}}]}),
            None,
            {"results": [{"deregister_table": {"id": ["db", "t"]}}]},
        ),
        (
            ListNamespacesResponse(namespaces=["wh.db.x", "wh.db.x.y"]),
            ListNamespacesRequest(id=["db"]),
            {"namespaces": ["x", "x.y"]},
        ),
        (
            ListTablesResponse(tables=["wh$db$t", "wh$t"]),
            ListTablesRequest(context={"delimiter": "$"}),
            {"tables": ["db$t", "t"]},
        ),
        (ListTablesResponse(tables=["wh"]), ListTablesRequest(id=["db"]), {"tables": ["wh"]}),
    ],
)
def test_names_are_told_relative_to_what_was_asked(response: Any, request_: Any, told: dict[str, Any]) -> None:
    assert remove_prefix(response, request_, ("wh",), whole_ids=True).to_dict() == told


def test_lists_of_last_levels_stay_as_they_are() -> None:
    response = ListNamespacesResponse(namespaces=["wh.db.x"])
    assert remove_prefix(response, ListNamespacesRequest(id=["db"]), ("wh",), whole_ids=False) is response
