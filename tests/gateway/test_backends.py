from __future__ import annotations

from typing import Any

import pytest
from lance_namespace import (
    BatchCommitTablesRequest,
    BatchCreateTableVersionsRequest,
    DescribeTableRequest,
    RenameTableRequest,
)
from lance_namespace.errors import InvalidInputError

from lancehouse.gateway.backends import Backend, ids_of, placed

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
        (RenameTableRequest(id=["db", "t"], new_table_name="u"), [["db", "t"]], [["wh", "db", "t"]]),
        (
            BatchCommitTablesRequest.from_dict(COMMITS),
            [["db", "a"], ["db", "b"]],
            [["wh", "db", "a"], ["wh", "db", "b"]],
        ),
        (BatchCreateTableVersionsRequest.from_dict(ENTRIES), [["db", "a"]], [["wh", "db", "a"]]),
    ],
)
def test_ids_of_a_warehouse_do_not_repeat_it(request_: Any, ids: list[list[str]], below: list[list[str]]) -> None:
    assert ids_of(request_) == ids
    assert ids_of(placed(request_, ("wh",))) == below
    assert placed(request_, ()) is request_


def test_who_describes_tables_knows_no_secret_of_the_storage() -> None:
    properties = {"endpoint": "http://127.0.0.1:1", "storage.aws_secret_access_key": "s3cr3t"}
    backend = Backend("b", "lancehouse.IcebergNamespace", properties)
    pair = backend.connect()
    assert pair.inner is not pair.outer
    assert "s3cr3t" not in repr(backend)
    assert backend.connect() is pair
    without = Backend("b", "lancehouse.IcebergNamespace", {"endpoint": "http://127.0.0.1:1"}).connect()
    assert without.inner is without.outer


def test_a_backend_that_cannot_be_connected_to_says_why() -> None:
    with pytest.raises(InvalidInputError, match=r"cannot connect to 'lancehouse.IcebergNamespace': .*endpoint"):
        Backend("b", "lancehouse.IcebergNamespace", {}).connect()
