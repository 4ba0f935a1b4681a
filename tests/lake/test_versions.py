from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import lance
import pytest
from lance_namespace import (
    BatchDeleteTableVersionsRequest,
    CountTableRowsRequest,
    CreateTableBranchRequest,
    CreateTableIndexRequest,
    CreateTableRequest,
    CreateTableTagRequest,
    CreateTableVersionRequest,
    DeleteFromTableRequest,
    DescribeTableVersionRequest,
    DescribeTransactionRequest,
    DropTableIndexRequest,
    InsertIntoTableRequest,
    InvalidInputError,
    LanceNamespace,
    LanceNamespaceError,
    ListTableVersionsRequest,
    RestoreTableRequest,
    TableBranchNotFoundError,
    TableNotFoundError,
    TableVersionNotFoundError,
    TransactionNotFoundError,
    UnsupportedOperationError,
    UpdateTableSchemaMetadataRequest,
)

from lancehouse.lake.dataset import to_millis
from lancehouse.paging import encode_token
from tests.lake.folder import FolderNamespace, rows, stream
from tests.lake.store import FakeStore

Both = tuple[LanceNamespace, list[str]]


@pytest.fixture
def history(both: Both) -> Both:
    """A table with five versions: one row fewer in each."""
    namespace, table = both
    for row in range(4):
        namespace.delete_from_table(DeleteFromTableRequest(id=table, predicate=f"id = {row}"))
    return both


@pytest.fixture
def ours_with_history(ours: FolderNamespace, table: list[str]) -> FolderNamespace:
    for row in range(4):
        ours.delete_from_table(DeleteFromTableRequest(id=table, predicate=f"id = {row}"))
    return ours


def list_versions(namespace: LanceNamespace, table: list[str], **more: Any) -> list[int]:
    found = namespace.list_table_versions(ListTableVersionsRequest(id=table, **more))
    return [version.version for version in found.versions]


def test_list(history: Both) -> None:
    namespace, table = history
    assert list_versions(namespace, table) == [1, 2, 3, 4, 5]
    assert list_versions(namespace, table, descending=True, limit=2) == [5, 4]
    assert list_versions(namespace, table, limit=0) == []


def test_what_is_listed_is_there(history: Both) -> None:
    namespace, table = history
    (latest,) = namespace.list_table_versions(ListTableVersionsRequest(id=table, descending=True, limit=1)).versions
    file = Path("/", latest.manifest_path)
    assert not latest.manifest_path.startswith("/")
    assert file.stat().st_size == latest.manifest_size
    assert latest.timestamp_millis is not None
    assert 1_700_000_000_000 < latest.timestamp_millis <= file.stat().st_mtime_ns // 1_000_000 + 1_000


def test_pages(ours_with_history: FolderNamespace, table: list[str]) -> None:
    first = ours_with_history.list_table_versions(ListTableVersionsRequest(id=table, limit=2))
    assert first.page_token is not None
    assert list_versions(ours_with_history, table, limit=2, page_token=first.page_token) == [3, 4]
    assert list_versions(ours_with_history, table, descending=True, page_token=encode_token(3)) == [2, 1]
    last = ours_with_history.list_table_versions(
        ListTableVersionsRequest(id=table, limit=2, page_token=encode_token(4))
    )
    assert ([each.version for each in last.versions], last.page_token) == ([5], None)
    with pytest.raises(InvalidInputError):
        list_versions(ours_with_history, table, page_token="zz")


def test_names_of_the_first_scheme(ours: FolderNamespace, tmp_path: Path) -> None:
    lance.write_dataset(rows(3), str(tmp_path / "t"), enable_v2_manifest_paths=False).delete("id = 1")
    (tmp_path / "t.json").write_text(f'{{"location": "{tmp_path / "t"}"}}')
    assert list_versions(ours, ["t"]) == [1, 2]
    described = ours.describe_table_version(DescribeTableVersionRequest(id=["t"], version=1))
    assert described.version.manifest_path.endswith("/_versions/1.manifest")


def test_as_pylance_asks(ours_with_history: FolderNamespace, table: list[str]) -> None:
    """Requests that come from inside pylance are dicts, and so are the answers."""
    ask: Any = ours_with_history
    answer = ask.list_table_versions({"id": table, "limit": 1, "descending": True})
    assert answer["versions"][0]["version"] == 5
    native = lance.namespace.DirectoryNamespace(root=str(ours_with_history.root))
    native.create_table(CreateTableRequest(id=["x"]), stream(rows(1)))
    known = set(native.describe_table_version({"id": ["x"], "version": 1})["version"]) - {"e_tag"}
    assert set(ask.describe_table_version({"id": table, "version": 2})["version"]) == known
    deleted = {"id": table, "ranges": [{"start_version": 1, "end_version": 2}]}
    assert ask.batch_delete_table_versions(deleted) == {"deleted_count": 1}


def test_describe(ours_with_history: FolderNamespace, table: list[str]) -> None:
    for version, expected in ((2, 2), (None, 5)):
        request = DescribeTableVersionRequest(id=table, version=version)
        assert ours_with_history.describe_table_version(request).version.version == expected


def test_a_branch_has_its_own(ours: FolderNamespace, table: list[str], tmp_path: Path) -> None:
    ours.delete_from_table(DeleteFromTableRequest(id=table, predicate="id = 1"))
    ours.create_table_branch(CreateTableBranchRequest(id=table, name="a/b", from_version=1))
    ours.delete_from_table(DeleteFromTableRequest(id=table, branch="a/b", predicate="id < 9"))
    ours.delete_from_table(DeleteFromTableRequest(id=table, branch="a/b", predicate="id < 10"))
    assert (list_versions(ours, table), list_versions(ours, table, branch="main")) == ([1, 2], [1, 2])
    assert list_versions(ours, table, branch="a/b") == [1, 2, 3]
    described = ours.describe_table_version(DescribeTableVersionRequest(id=table, branch="a/b")).version
    assert Path("/", described.manifest_path).is_file()
    assert "/tree/a/b/_versions/" in described.manifest_path
    ours.restore_table(RestoreTableRequest(id=table, version=2, branch="a/b"))
    assert ours.count_table_rows(CountTableRowsRequest(id=table, branch="a/b")).count == 291
    assert ours.count_table_rows(CountTableRowsRequest(id=table)).count == 299
    assert delete(ours, table, (2, 4), branch="a/b") == 2
    assert (list_versions(ours, table, branch="a/b"), list_versions(ours, table)) == ([1, 4], [1, 2])


def test_in_a_store(store: FakeStore, tmp_path: Path) -> None:
    namespace = FolderNamespace(tmp_path, store.options, "s3://bucket/a b")
    namespace.create_table(CreateTableRequest(id=["t"]), stream(rows(3)))
    namespace.insert_into_table(InsertIntoTableRequest(id=["t"]), stream(rows(3, 3)))
    found = namespace.list_table_versions(ListTableVersionsRequest(id=["t"])).versions
    assert [version.version for version in found] == [1, 2]
    assert all(version.manifest_path in store.objects for version in found)
    assert found[0].manifest_size is None


def test_restore(history: Both) -> None:
    namespace, table = history
    assert namespace.restore_table(RestoreTableRequest(id=table, version=2)).transaction_id
    assert namespace.count_table_rows(CountTableRowsRequest(id=table)).count == 299
    assert list_versions(namespace, table) == [1, 2, 3, 4, 5, 6]


def delete(namespace: LanceNamespace, table: list[str], *ranges: tuple[int, int], **at: Any) -> int | None:
    spans = [{"start_version": start, "end_version": end} for start, end in ranges]
    request = BatchDeleteTableVersionsRequest.model_validate({"id": table, "ranges": spans, **at})
    return namespace.batch_delete_table_versions(request).deleted_count


@pytest.mark.parametrize(
    ("ranges", "left"),
    [
        ([(1, 3)], [3, 4, 5]),
        ([(0, 5)], [5]),
        ([(1, 2), (3, 4)], [2, 4, 5]),
        ([(2, 3), (2, 4)], [1, 4, 5]),
        ([(7, 9)], [1, 2, 3, 4, 5]),
        ([], [1, 2, 3, 4, 5]),
    ],
)
def test_delete(
    ours_with_history: FolderNamespace, table: list[str], ranges: list[tuple[int, int]], left: list[int]
) -> None:
    assert delete(ours_with_history, table, *ranges) == 5 - len(left)
    assert list_versions(ours_with_history, table) == left
    assert ours_with_history.count_table_rows(CountTableRowsRequest(id=table)).count == 296


@pytest.mark.parametrize("span", [(1, 6), (0, -1), (5, -1)])
def test_the_current_version_stays(ours_with_history: FolderNamespace, table: list[str], span: tuple[int, int]) -> None:
    with pytest.raises(InvalidInputError, match="current"):
        delete(ours_with_history, table, span)
    assert list_versions(ours_with_history, table) == [1, 2, 3, 4, 5]


def test_tagged_versions_stay(ours_with_history: FolderNamespace, table: list[str]) -> None:
    ours_with_history.create_table_tag(CreateTableTagRequest(id=table, tag="kept", version=2))
    with pytest.raises(InvalidInputError, match="kept"):
        delete(ours_with_history, table, (1, 4))
    assert list_versions(ours_with_history, table) == [1, 2, 3, 4, 5]


def test_data_that_a_branch_needs_stays(ours_with_history: FolderNamespace, table: list[str]) -> None:
    ours_with_history.create_table_branch(CreateTableBranchRequest(id=table, name="side", from_version=2))
    ours_with_history.insert_into_table(InsertIntoTableRequest(id=table, mode="overwrite"), stream(rows(1)))
    deleted = delete(ours_with_history, table, (1, 6))
    assert deleted == 6 - len(list_versions(ours_with_history, table)), list_versions(ours_with_history, table)
    request = CountTableRowsRequest(id=table, branch="side", predicate="s like 'word%'")
    assert ours_with_history.count_table_rows(request).count == 299


REFUSED: list[tuple[Callable[[FolderNamespace, list[str]], object], type[Exception]]] = [
    (lambda n, t: list_versions(n, ["none"]), TableNotFoundError),
    (lambda n, t: list_versions(n, t, branch="none"), TableBranchNotFoundError),
    (lambda n, t: list_versions(n, t, limit=-1), InvalidInputError),
    (
        lambda n, t: n.describe_table_version(DescribeTableVersionRequest(id=t, version=99)),
        TableVersionNotFoundError,
    ),
    (lambda n, t: n.restore_table(RestoreTableRequest(id=t, version=99)), TableVersionNotFoundError),
    (lambda n, t: delete(n, t, (1, 2), branch="none"), TableBranchNotFoundError),
    (lambda n, t: n.describe_transaction(DescribeTransactionRequest(id=[*t, "99"])), TransactionNotFoundError),
    (lambda n, t: n.describe_transaction(DescribeTransactionRequest(id=[*t, "zz"])), TransactionNotFoundError),
    (lambda n, t: n.describe_transaction(DescribeTransactionRequest(id=["zz"])), InvalidInputError),
    (lambda n, t: n.describe_transaction(DescribeTransactionRequest()), InvalidInputError),
    (
        lambda n, t: n.create_table_version(CreateTableVersionRequest(id=t, version=2, manifest_path="x")),
        UnsupportedOperationError,
    ),
]


@pytest.mark.parametrize(("act", "expected"), REFUSED)
def test_what_cannot_be(
    ours: FolderNamespace,
    table: list[str],
    act: Callable[[FolderNamespace, list[str]], object],
    expected: type[Exception],
) -> None:
    with pytest.raises(LanceNamespaceError) as raised:
        act(ours, table)
    assert type(raised.value) is expected, raised.value


def test_transactions(both: Both) -> None:
    namespace, table = both
    namespace.delete_from_table(DeleteFromTableRequest(id=table, predicate="id = 1"))
    request = UpdateTableSchemaMetadataRequest(id=table, metadata={"a": "b"})
    uuid = namespace.update_table_schema_metadata(request).transaction_id
    assert uuid is not None
    namespace.create_table_index(CreateTableIndexRequest(id=table, column="id", index_type="BTREE"))
    namespace.drop_table_index(DropTableIndexRequest(id=table, index_name="id_idx"))
    names = ("Overwrite", "Delete", "UpdateConfig", "CreateIndex", "DropIndex")
    for version, operation in enumerate(names, 1):
        found = namespace.describe_transaction(DescribeTransactionRequest(id=[*table, str(version)]))
        assert found.status == "SUCCEEDED"
        assert found.properties is not None
        told = {key: found.properties[key] for key in ("version", "read_version", "operation")}
        assert told == {"version": str(version), "read_version": str(version - 1), "operation": operation}
        assert found.properties["uuid"]
    by_uuid = namespace.describe_transaction(DescribeTransactionRequest(id=[*table, uuid]))
    assert by_uuid.properties is not None
    assert by_uuid.properties["version"] == "3"


def test_a_time_is_in_the_millisecond_that_history_tells() -> None:
    for ms in range(2_150_000_000_000, 2_150_000_001_000):
        told = datetime.fromtimestamp(ms / 1000, UTC)
        local = told.astimezone().replace(tzinfo=None)
        assert {ms} == {to_millis(told), to_millis(local), to_millis(told + timedelta(microseconds=999))}
