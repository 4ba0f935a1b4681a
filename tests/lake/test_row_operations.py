from __future__ import annotations

import io
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance.fragment import write_fragments
from lance_namespace import (
    ConcurrentModificationError,
    CountTableRowsRequest,
    CreateTableBranchRequest,
    CreateTableRequest,
    CreateTableVersionRequest,
    DeclareTableRequest,
    DeclareTableResponse,
    DeleteFromTableRequest,
    DeregisterTableRequest,
    DeregisterTableResponse,
    DescribeTableRequest,
    DescribeTableResponse,
    DropTableRequest,
    GetTableStatsRequest,
    InsertIntoTableRequest,
    InvalidInputError,
    LanceNamespace,
    LanceNamespaceError,
    ListTableIndicesRequest,
    ListTableTagsRequest,
    MergeInsertIntoTableRequest,
    PermissionDeniedError,
    QueryTableRequest,
    ServiceUnavailableError,
    TableAlreadyExistsError,
    TableBranchNotFoundError,
    TableColumnNotFoundError,
    TableNotFoundError,
    TableSchemaValidationError,
    TableVersionNotFoundError,
    UpdateTableRequest,
)
from lance_namespace_urllib3_client.models.query_table_request_vector import QueryTableRequestVector

from lancehouse.lake import commits
from lancehouse.lake.dataset import exists
from lancehouse.lake.row_operations import explain_existing, parse_duration
from tests.lake.folder import FolderNamespace, rows, stream
from tests.lake.store import FakeStore

Both = tuple[LanceNamespace, list[str]]
T = ["t"]


def count(namespace: LanceNamespace, id: list[str] = T, **at: Any) -> int | None:
    return namespace.count_table_rows(CountTableRowsRequest(id=id, **at)).count


def ids(namespace: FolderNamespace, id: list[str] = T) -> list[int]:
    located = namespace.describe_table(DescribeTableRequest(id=id)).location
    return sorted(lance.dataset(located).to_table(columns=["id"])["id"].to_pylist())


# create


@pytest.mark.parametrize("mode", [None, "create", "Create", "CREATE", "exist_ok", "ExistOk", "overwrite", "Overwrite"])
def test_create(namespace: LanceNamespace, mode: str | None) -> None:
    created = namespace.create_table(CreateTableRequest(id=T, mode=mode), stream(rows(7)))
    assert created.version == 1
    assert count(namespace) == 7


@pytest.mark.parametrize("mode", [None, "ExistOk", "Overwrite"])
def test_create_what_is_only_declared(namespace: LanceNamespace, mode: str | None) -> None:
    namespace.declare_table(DeclareTableRequest(id=T))
    created = namespace.create_table(CreateTableRequest(id=T, mode=mode), stream(rows(7)))
    assert created.version == 1
    assert count(namespace) == 7


def test_create_what_is_there(both: Both) -> None:
    namespace, table = both
    with pytest.raises(TableAlreadyExistsError):
        namespace.create_table(CreateTableRequest(id=table), stream(rows(1)))
    assert count(namespace) == 300


@pytest.mark.parametrize("mode", ["exist_ok", "ExistOk", "EXISTOK"])
def test_create_what_may_be_there(both: Both, mode: str) -> None:
    namespace, table = both
    created = namespace.create_table(CreateTableRequest(id=table, mode=mode), stream(rows(1)))
    assert (created.version, count(namespace)) == (None, 300)


def test_overwriting_adds_a_version(both: Both) -> None:
    namespace, table = both
    created = namespace.create_table(CreateTableRequest(id=table, mode="Overwrite"), stream(pa.table({"x": [1]})))
    assert (created.version, count(namespace), count(namespace, version=1)) == (2, 1, 300)


def test_properties_reach_the_catalog(namespace: LanceNamespace) -> None:
    created = namespace.create_table(CreateTableRequest(id=T, properties={"a": "b"}), stream(rows(1)))
    assert created.properties == {"a": "b"}


def test_a_wrong_mode(namespace: LanceNamespace) -> None:
    with pytest.raises(InvalidInputError):
        namespace.create_table(CreateTableRequest(id=T, mode="replace"), stream(rows(1)))


BROKEN = [b"", b"garbage", stream(rows())[:3000]]


@pytest.mark.parametrize("data", BROKEN, ids=["empty", "garbage", "cut"])
@pytest.mark.parametrize("mode", ["Create", "ExistOk", "Overwrite"])
def test_broken_data_leaves_nothing(ours: FolderNamespace, tmp_path: Path, data: bytes, mode: str) -> None:
    with pytest.raises(InvalidInputError, match=r"^table t: "):
        ours.create_table(CreateTableRequest(id=T, mode=mode), data)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("data", BROKEN, ids=["empty", "garbage", "cut"])
@pytest.mark.parametrize("mode", ["Create", "ExistOk", "Overwrite"])
def test_broken_data_harms_no_table(ours: FolderNamespace, table: list[str], data: bytes, mode: str) -> None:
    with pytest.raises(InvalidInputError):
        ours.create_table(CreateTableRequest(id=table, mode=mode), data)
    assert count(ours) == 300


DOUBLE = pa.Table.from_arrays([pa.array([1]), pa.array([1])], names=["a", "a"])
"""A good stream that Lance refuses."""


def test_rows_that_cannot_be_written_leave_nothing(ours: FolderNamespace, tmp_path: Path) -> None:
    with pytest.raises(TableSchemaValidationError):
        ours.create_table(CreateTableRequest(id=T), stream(DOUBLE))
    assert list(tmp_path.iterdir()) == []


def test_rows_that_cannot_be_written_leave_the_declaration_of_others(ours: FolderNamespace) -> None:
    ours.declare_table(DeclareTableRequest(id=T))
    with pytest.raises(TableSchemaValidationError):
        ours.create_table(CreateTableRequest(id=T), stream(DOUBLE))
    assert ours.entries() == T


def test_an_overwrite_that_fails_keeps_the_table(ours: FolderNamespace, table: list[str]) -> None:
    with pytest.raises(TableSchemaValidationError):
        ours.create_table(CreateTableRequest(id=table, mode="Overwrite"), stream(DOUBLE))
    assert count(ours) == 300


def test_an_interrupted_creation_is_taken_back(ours: FolderNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(commits, "write_fragments", interrupt)
    with pytest.raises(KeyboardInterrupt):
        ours.create_table(CreateTableRequest(id=T), stream(rows(1)))
    assert ours.entries() == []


def test_files_of_a_failed_write_go(ours: FolderNamespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def halfway(*_: object, **__: object) -> None:
        (tmp_path / "t" / "data").mkdir(parents=True)
        (tmp_path / "t" / "data" / "x.lance").write_text("x")
        raise OSError("LanceError(IO): No space left on device (os error 28)")

    monkeypatch.setattr(commits, "write_fragments", halfway)
    with pytest.raises(ServiceUnavailableError, match="No space left on device"):
        ours.create_table(CreateTableRequest(id=T), stream(rows(1)))
    assert list(tmp_path.iterdir()) == []


def overtake(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody else writes the first rows, 5, just before ours are committed."""
    write = write_fragments

    def overtaken(data: pa.Table, location: str, **options: Any) -> Any:
        written = write(data, location, **options)
        lance.write_dataset(rows(5, 1000), location)
        return written

    monkeypatch.setattr(commits, "write_fragments", overtaken)


@pytest.mark.parametrize("declared", [False, True])
def test_a_race_for_a_new_table_harms_nobody(
    ours: FolderNamespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, declared: bool
) -> None:
    if declared:
        ours.declare_table(DeclareTableRequest(id=T))
    overtake(monkeypatch)
    with pytest.raises(TableAlreadyExistsError):
        ours.create_table(CreateTableRequest(id=T), stream(rows(1)))
    assert count(ours) == 5
    assert len(list((tmp_path / "t" / "data").iterdir())) == 1


def test_a_race_for_a_table_that_may_exist(ours: FolderNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    ours.declare_table(DeclareTableRequest(id=T))
    overtake(monkeypatch)
    assert ours.create_table(CreateTableRequest(id=T, mode="ExistOk"), stream(rows(1))).version is None
    assert count(ours) == 5


def test_a_race_of_first_inserts_loses_no_rows(ours: FolderNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    ours.declare_table(DeclareTableRequest(id=T))
    overtake(monkeypatch)
    assert ours.insert_into_table(InsertIntoTableRequest(id=T), stream(rows(1))).version == 2
    assert count(ours) == 6


def test_data_without_an_entry_is_not_taken_over(ours: FolderNamespace, tmp_path: Path) -> None:
    lance.write_dataset(rows(5), str(tmp_path / "t"))
    for mode in ("Create", "ExistOk"):
        with pytest.raises(TableAlreadyExistsError, match="there is a Lance table at"):
            ours.create_table(CreateTableRequest(id=T, mode=mode), stream(rows(1)))
    assert ours.entries() == []
    assert exists(str(tmp_path / "t"))
    assert ours.create_table(CreateTableRequest(id=T, mode="Overwrite"), stream(rows(1))).version == 2


def test_a_failure_to_take_back_is_told(ours: FolderNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: FolderNamespace, __: DeregisterTableRequest) -> DeregisterTableResponse:
        raise ServiceUnavailableError("the catalog is away")

    monkeypatch.setattr(FolderNamespace, "deregister_table", fail)
    with pytest.raises(TableSchemaValidationError) as raised:
        ours.create_table(CreateTableRequest(id=T), stream(DOUBLE))
    assert "the catalog is away" in raised.value.__notes__[0]


def test_storage_options_of_a_request_win(store: FakeStore, tmp_path: Path) -> None:
    wrong = {**store.options, "aws_endpoint": "http://127.0.0.1:9"}
    namespace = FolderNamespace(tmp_path, wrong, "s3://bucket")
    right = {"aws_endpoint": store.options["aws_endpoint"]}
    namespace.create_table(CreateTableRequest(id=T, storage_options=right), stream(rows(3)))
    assert exists("s3://bucket/t", store.options)


def test_a_store_that_refuses(store: FakeStore, tmp_path: Path) -> None:
    namespace = FolderNamespace(tmp_path, store.options, "s3://bucket")
    store.refusal = (403, "AccessDenied")
    with pytest.raises(PermissionDeniedError) as raised:
        namespace.create_table(CreateTableRequest(id=T), stream(rows(3)))
    assert "verysecretvalue" not in str(raised.value)
    assert "could not be taken back" in raised.value.__notes__[0]


def test_a_table_in_a_store(store: FakeStore, tmp_path: Path) -> None:
    namespace = FolderNamespace(tmp_path, store.options, "s3://bucket")
    namespace.create_table(CreateTableRequest(id=T), stream(rows(3)))
    namespace.insert_into_table(InsertIntoTableRequest(id=T), stream(rows(3, 3)))
    assert count(namespace) == 6
    namespace.drop_table(DropTableRequest(id=T))
    assert store.objects == {}


# insert


@pytest.mark.parametrize(
    ("mode", "expected"), [("append", 305), ("Append", 305), ("overwrite", 5), ("Overwrite", 5), ("OVERWRITE", 5)]
)
def test_insert(both: Both, mode: str, expected: int) -> None:
    namespace, table = both
    inserted = namespace.insert_into_table(InsertIntoTableRequest(id=table, mode=mode), stream(rows(5, 1000)))
    assert (inserted.num_inserted_rows, inserted.version) == (5, 2)
    assert count(namespace) == expected


def test_insert_some_columns(both: Both) -> None:
    namespace, table = both
    namespace.insert_into_table(InsertIntoTableRequest(id=table), stream(rows(1).select(["id"])))
    assert count(namespace, predicate="s is null") == 1


def test_insert_no_rows(both: Both) -> None:
    namespace, table = both
    inserted = namespace.insert_into_table(InsertIntoTableRequest(id=table), stream(rows(0)))
    assert (inserted.num_inserted_rows, count(namespace)) == (0, 300)


@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_inserting_creates_what_is_only_declared(namespace: LanceNamespace, mode: str) -> None:
    namespace.declare_table(DeclareTableRequest(id=T))
    inserted = namespace.insert_into_table(InsertIntoTableRequest(id=T, mode=mode), stream(rows(5)))
    assert (inserted.num_inserted_rows, inserted.version, count(namespace)) == (5, 1, 5)


def test_merging_creates_what_is_only_declared(namespace: LanceNamespace) -> None:
    namespace.declare_table(DeclareTableRequest(id=T))
    request = MergeInsertIntoTableRequest(id=T, on=["id"], when_not_matched_insert_all=True)
    merged = namespace.merge_insert_into_table(request, stream(rows(5)))
    assert (merged.num_inserted_rows, merged.num_updated_rows, merged.version) == (5, 0, 1)


def test_first_inserts_at_the_same_time_all_land(ours: FolderNamespace) -> None:
    ours.declare_table(DeclareTableRequest(id=T))
    start = threading.Barrier(4)

    def insert(first: int) -> None:
        start.wait()
        ours.insert_into_table(InsertIntoTableRequest(id=T), stream(rows(5, first)))

    threads = [threading.Thread(target=insert, args=(first,)) for first in (0, 10, 20, 30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ids(ours) == [i for first in (0, 10, 20, 30) for i in range(first, first + 5)]


@pytest.mark.parametrize(
    ("request_", "data", "expected"),
    [
        ({"mode": "replace"}, stream(rows(1)), InvalidInputError),
        ({}, b"garbage", InvalidInputError),
        ({}, stream(pa.table({"id": ["a"]})), TableSchemaValidationError),
        ({}, stream(pa.table({"id": [1], "zz": [1]})), TableSchemaValidationError),
        ({"branch": "none"}, stream(rows(1)), TableBranchNotFoundError),
        ({"id": ["none"]}, stream(rows(1)), TableNotFoundError),
    ],
)
def test_insert_what_cannot_be(
    ours: FolderNamespace, table: list[str], request_: dict[str, Any], data: bytes, expected: type[Exception]
) -> None:
    with pytest.raises(LanceNamespaceError) as raised:
        ours.insert_into_table(InsertIntoTableRequest(**{"id": table, **request_}), data)
    assert type(raised.value) is expected
    assert count(ours) == 300


# merge


def merge(namespace: LanceNamespace, data: pa.Table | None = None, **request: Any) -> tuple[int | None, ...]:
    merged = namespace.merge_insert_into_table(
        MergeInsertIntoTableRequest(id=T, on=["id"], **request), stream(rows(20, 290) if data is None else data)
    )
    assert merged.version == 2
    return merged.num_updated_rows, merged.num_inserted_rows, merged.num_deleted_rows


@pytest.mark.parametrize(
    ("request_", "counts", "left"),
    [
        ({"when_not_matched_insert_all": True}, (0, 10, 0), 310),
        ({"when_matched_update_all": True}, (10, 0, 0), 300),
        ({"when_matched_update_all": True, "when_not_matched_insert_all": True}, (10, 10, 0), 310),
        ({"when_matched_update_all": True, "when_matched_update_all_filt": "source.id > 295"}, (4, 0, 0), 300),
        ({"when_matched_update_all_filt": "source.id > 295"}, (4, 0, 0), 300),
        ({"when_not_matched_insert_all": True, "when_not_matched_by_source_delete": True}, (0, 10, 290), 20),
        ({"when_not_matched_insert_all": True, "when_not_matched_by_source_delete_filt": "id < 3"}, (0, 10, 3), 307),
        ({"when_matched_update_all": True, "timeout": "30s", "use_index": True}, (10, 0, 0), 300),
    ],
)
def test_merge(both: Both, request_: dict[str, Any], counts: tuple[int, ...], left: int) -> None:
    namespace, _ = both
    assert merge(namespace, **request_) == counts
    assert count(namespace) == left


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        ({"on": None, "when_matched_update_all": True}, InvalidInputError),
        ({"on": ["id"]}, InvalidInputError),
        ({"on": ["zz"], "when_matched_update_all": True}, TableColumnNotFoundError),
        ({"on": ["id"], "when_matched_update_all": True, "timeout": "soon"}, InvalidInputError),
        ({"on": ["id"], "when_matched_update_all": True, "branch": "none"}, TableBranchNotFoundError),
    ],
)
def test_merge_what_cannot_be(
    ours: FolderNamespace, table: list[str], request_: dict[str, Any], expected: type[Exception]
) -> None:
    with pytest.raises(LanceNamespaceError) as raised:
        ours.merge_insert_into_table(MergeInsertIntoTableRequest(id=table, **request_), stream(rows(3)))
    assert type(raised.value) is expected


@pytest.mark.parametrize(
    ("text", "seconds"), [("30s", 30), ("5m", 300), ("100ms", 0.1), ("1.5s", 1.5), ("1m30s", 90), ("2h", 7200)]
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "30", "s", "1 day", "-1s", "1s later", f"{'9' * 20}h"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(InvalidInputError):
        parse_duration(text)


# update, delete, count


def test_update(both: Both) -> None:
    namespace, table = both
    updated = namespace.update_table(UpdateTableRequest(id=table, updates=[["s", "'new'"]], predicate="id < 10"))
    assert (updated.updated_rows, updated.version, updated.properties) == (10, 2, None)
    assert count(namespace, predicate="s = 'new'") == 10
    assert namespace.update_table(UpdateTableRequest(id=table, updates=[["s", "'all'"]])).updated_rows == 300


def test_update_nothing(both: Both) -> None:
    namespace, table = both
    updated = namespace.update_table(UpdateTableRequest(id=table, updates=[["id", "1"]], predicate="id = 999"))
    assert (updated.updated_rows, updated.version) == (0, 2)
    with pytest.raises(InvalidInputError):
        namespace.update_table(UpdateTableRequest(id=table, updates=[]))


def test_update_a_column_twice(ours: FolderNamespace, table: list[str]) -> None:
    with pytest.raises(InvalidInputError):
        ours.update_table(UpdateTableRequest(id=table, updates=[["id", "1"], ["id", "2"]]))


def test_delete(both: Both) -> None:
    namespace, table = both
    assert namespace.delete_from_table(DeleteFromTableRequest(id=table, predicate="id < 10")).version == 2
    assert count(namespace) == 290
    with pytest.raises(InvalidInputError):
        namespace.delete_from_table(DeleteFromTableRequest(id=table, predicate=""))
    with pytest.raises(InvalidInputError):
        namespace.delete_from_table(DeleteFromTableRequest(id=table, predicate="id =="))


@pytest.mark.parametrize("clause", [" LIMIT 1", " ORDER BY id", "; true", " HAVING true", " s = 'x'"])
def test_what_follows_a_condition_is_refused(ours: FolderNamespace, table: list[str], clause: str) -> None:
    """Lance itself ignores it."""
    for request in (
        lambda: ours.delete_from_table(DeleteFromTableRequest(id=table, predicate=f"id < 10{clause}")),
        lambda: ours.update_table(UpdateTableRequest(id=table, updates=[["s", "'x'"]], predicate=f"id < 10{clause}")),
        lambda: ours.update_table(UpdateTableRequest(id=table, updates=[["s", f"'x'{clause}"]])),
        lambda: count(ours, predicate=f"id < 10{clause}"),
    ):
        with pytest.raises(InvalidInputError):
            request()
    assert (count(ours), count(ours, predicate="s = 'x'")) == (300, 0)


def test_count(both: Both) -> None:
    namespace, table = both
    namespace.delete_from_table(DeleteFromTableRequest(id=table, predicate="id < 10"))
    assert count(namespace, predicate="id < 20") == 10
    assert count(namespace, version=1) == 300
    with pytest.raises(TableVersionNotFoundError):
        count(namespace, version=99)
    with pytest.raises(TableVersionNotFoundError):
        count(namespace, version=0)


def test_a_branch_is_another_table(ours: FolderNamespace, table: list[str]) -> None:
    ours.create_table_branch(CreateTableBranchRequest(id=table, name="side"))
    on: dict[str, Any] = {"id": table, "branch": "side"}
    assert ours.insert_into_table(InsertIntoTableRequest(**on), stream(rows(5, 1000))).version == 2
    assert ours.update_table(UpdateTableRequest(**on, updates=[["s", "'x'"]], predicate="id < 3")).updated_rows == 3
    ours.delete_from_table(DeleteFromTableRequest(**on, predicate="id = 5"))
    merge_request = MergeInsertIntoTableRequest(**on, on=["id"], when_not_matched_insert_all=True)
    assert ours.merge_insert_into_table(merge_request, stream(rows(1, 2000))).num_inserted_rows == 1
    assert (count(ours, branch="side"), count(ours, branch="side", predicate="s = 'x'")) == (305, 3)
    assert (count(ours), count(ours, predicate="s = 'x'"), count(ours, branch="main")) == (300, 0, 300)
    assert ours.insert_into_table(InsertIntoTableRequest(**on, mode="overwrite"), stream(rows(2))).version == 6
    assert (count(ours), count(ours, branch="side"), count(ours, branch="side", version=2)) == (300, 2, 305)


NEED_DATA: dict[str, Callable[[LanceNamespace, list[str]], object]] = {
    "count": lambda n, t: n.count_table_rows(CountTableRowsRequest(id=t)),
    "query": lambda n, t: n.query_table(QueryTableRequest(id=t, k=3, vector=QueryTableRequestVector())),
    "update": lambda n, t: n.update_table(UpdateTableRequest(id=t, updates=[["id", "1"]])),
    "delete": lambda n, t: n.delete_from_table(DeleteFromTableRequest(id=t, predicate="id = 1")),
    "indices": lambda n, t: n.list_table_indices(ListTableIndicesRequest(id=t)),
    "stats": lambda n, t: n.get_table_stats(GetTableStatsRequest(id=t)),
    "tags": lambda n, t: n.list_table_tags(ListTableTagsRequest(id=t)),
}


@pytest.mark.parametrize("operation", NEED_DATA.values(), ids=NEED_DATA)
def test_what_needs_data(namespace: LanceNamespace, operation: Callable[[LanceNamespace, list[str]], object]) -> None:
    namespace.declare_table(DeclareTableRequest(id=["declared"]))
    for table in (["declared"], ["none"]):
        with pytest.raises(TableNotFoundError):
            operation(namespace, table)


class Managed(FolderNamespace):
    """Arbitrates commits, as a catalog does that manages versions; it lists them with the operations of ours."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.commits: list[int] = []

    def describe_table(self, request: DescribeTableRequest) -> DescribeTableResponse:
        return super().describe_table(request).model_copy(update={"managed_versioning": True})

    def declare_table(self, request: DeclareTableRequest) -> DeclareTableResponse:
        return super().declare_table(request).model_copy(update={"managed_versioning": True})

    def create_table_version(self, request: CreateTableVersionRequest) -> Any:
        final = request.manifest_path.partition(".manifest")[0] + ".manifest"
        try:
            Path("/", final).hardlink_to(Path("/", request.manifest_path))
        except FileExistsError as error:
            raise ConcurrentModificationError("that version is taken") from error
        Path("/", request.manifest_path).unlink()
        self.commits.append(request.version)
        return {"version": {"version": request.version, "manifest_path": final}}


def test_commits_go_through_a_namespace_that_manages_versions(tmp_path: Path) -> None:
    namespace = Managed(tmp_path)
    namespace.create_table(CreateTableRequest(id=T), stream(rows(10)))
    namespace.insert_into_table(InsertIntoTableRequest(id=T), stream(rows(5, 10)))
    namespace.delete_from_table(DeleteFromTableRequest(id=T, predicate="id = 1"))
    namespace.update_table(UpdateTableRequest(id=T, updates=[["s", "'x'"]]))
    merge_request = MergeInsertIntoTableRequest(id=T, on=["id"], when_not_matched_insert_all=True)
    namespace.merge_insert_into_table(merge_request, stream(rows(1)))
    namespace.create_table(CreateTableRequest(id=T, mode="Overwrite"), stream(rows(3)))
    assert namespace.commits == [1, 2, 3, 4, 5, 6]
    assert (count(namespace), count(namespace, version=2)) == (3, 15)
    with pytest.raises(TableVersionNotFoundError):
        count(namespace, version=9)


def test_a_race_where_versions_are_managed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    namespace = Managed(tmp_path)
    overtake(monkeypatch)
    with pytest.raises(TableAlreadyExistsError):
        namespace.create_table(CreateTableRequest(id=T), stream(rows(1)))
    assert count(namespace) == 5


@pytest.mark.parametrize("as_file", [False, True], ids=["bytes", "stream"])
def test_an_extension_on_a_type_that_is_not_its_own(ours: FolderNamespace, as_file: bool) -> None:
    """What pylance's own extension type raises of it is no failure of ours."""
    blob = {"ARROW:extension:name": "lance.blob.v2", "ARROW:extension:metadata": ""}
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, pa.schema([pa.field("b", pa.int32(), metadata=blob)])):
        pass
    data = sink.getvalue().to_pybytes()
    with pytest.raises(InvalidInputError, match="another type than its Arrow extension stores: BlobType"):
        ours.create_table(CreateTableRequest(id=T), io.BytesIO(data) if as_file else data)
    assert ours.entries() == []


class Unseeing(FolderNamespace):
    """Says that a table exists, and fails when it is looked at."""

    failure: Exception = ServiceUnavailableError("the store is away")

    def describe_table(self, request: DescribeTableRequest) -> DescribeTableResponse:
        raise self.failure


@pytest.mark.parametrize("failure", [ServiceUnavailableError("away"), ValueError("away"), NotImplementedError()])
def test_a_table_that_exists_and_cannot_be_looked_at(tmp_path: Path, failure: Exception) -> None:
    namespace = Unseeing(tmp_path)
    namespace.failure = failure
    known = TableAlreadyExistsError("t is there")
    with pytest.raises(TableAlreadyExistsError) as raised, explain_existing(namespace, T):
        raise known
    assert raised.value is known
