from __future__ import annotations

import inspect
import pickle
import time
from pathlib import Path
from typing import Any

import pytest
from lance_namespace import (
    CountTableRowsRequest,
    CreateTableRequest,
    DescribeTableRequest,
    DescribeTableResponse,
    InvalidInputError,
    LanceNamespace,
    PermissionDeniedError,
)

from lancehouse.lake.dataset import TableRef
from lancehouse.lake.operations import TableOperations
from tests.lake.folder import FolderNamespace, rows, stream
from tests.lake.store import FakeStore

CATALOG = {
    *("namespace_id", "describe_table", "declare_table", "deregister_table", "drop_table", "register_table"),
    *("table_exists", "rename_table", "list_tables", "list_all_tables", "create_empty_table"),
    *("list_namespaces", "describe_namespace", "create_namespace", "drop_namespace", "namespace_exists"),
}
LATER = {"create_table_version", "batch_create_table_versions", "batch_commit_tables"}
CLUSTER = {"alter_table_backfill_columns", "create_materialized_view", "refresh_materialized_view", "alter_transaction"}


def test_every_operation_of_the_interface_is_accounted_for() -> None:
    interface = {name for name, _ in inspect.getmembers(LanceNamespace, inspect.isfunction) if not name.startswith("_")}
    done = {name for name in interface if getattr(TableOperations, name) is not getattr(LanceNamespace, name)}
    assert interface - done == CATALOG | LATER | CLUSTER


@pytest.mark.parametrize(
    ("request_dict", "said"),
    [
        ({"id": "s3cr3t"}, "DescribeTableRequest: id: Input should be a valid list"),
        ({"id": ["t"], "context": {"password": ["s3cr3t"]}}, "DescribeTableRequest: context.password: "),
    ],
)
def test_a_dict_that_is_no_request(ours: FolderNamespace, request_dict: Any, said: str) -> None:
    with pytest.raises(InvalidInputError) as error:
        ours.describe_table(request_dict)
    assert str(error.value).startswith(said)
    assert "s3cr3t" not in str(error.value)


def test_a_namespace_pickles(ours: FolderNamespace, table: list[str]) -> None:
    copy = pickle.loads(pickle.dumps(ours))
    assert copy.count_table_rows(CountTableRowsRequest(id=table)).count == 300


class Vending(FolderNamespace):
    """Hands out credentials that have to be renewed at once, for as long as it is `open`."""

    open = True
    asked = 0

    def describe_table(self, request: DescribeTableRequest) -> DescribeTableResponse:
        self.asked += 1
        if not self.open:
            raise PermissionDeniedError("no more credentials")
        entry = super().describe_table(request)
        soon = {"expires_at_millis": str(int(time.time() * 1000) + 1)}
        return entry.model_copy(update={"storage_options": {**(entry.storage_options or {}), **soon}})


def test_credentials_are_renewed(store: FakeStore, tmp_path: Path) -> None:
    namespace = Vending(tmp_path, store.options, "s3://bucket")
    namespace.create_table(CreateTableRequest(id=["t"]), stream(rows(3)))
    dataset = TableRef.in_namespace(namespace, ["t"]).open()
    before = namespace.asked
    assert dataset.to_table().num_rows == 3
    assert namespace.asked > before


def test_credentials_that_are_not_renewed(store: FakeStore, tmp_path: Path) -> None:
    namespace = Vending(tmp_path, store.options, "s3://bucket")
    namespace.create_table(CreateTableRequest(id=["t"]), stream(rows(3)))
    with (
        pytest.raises(PermissionDeniedError, match=r"^table t: no more credentials$"),
        TableRef.in_namespace(namespace, ["t"]).dataset() as dataset,
    ):
        namespace.open = False
        dataset.delete("id = 1")
