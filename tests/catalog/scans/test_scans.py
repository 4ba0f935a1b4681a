from __future__ import annotations

import shutil
from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from itertools import chain
from pathlib import Path
from typing import Any

import lance
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lance_namespace.errors import InvalidInputError, PermissionDeniedError, TableNotFoundError
from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.expressions.visitors import bind
from pyiceberg.io.pyarrow import expression_to_pyarrow

from lancehouse.catalog.bootstrap import open_database, record_warehouses
from lancehouse.catalog.callers import Caller, Grant, Identity, Role
from lancehouse.catalog.catalog import Catalog
from lancehouse.catalog.errors import PlanNotFoundError, PlanTaskNotFoundError
from lancehouse.catalog.scans import lance as lance_scans
from lancehouse.catalog.scans.exports import ExportFiles
from lancehouse.catalog.scans.scan_requests import encode_task
from lancehouse.catalog.warehouses import Warehouse
from lancehouse.credentials import to_iceberg_config
from lancehouse.lake import chunked_scan, parquet_export
from tests.catalog.scans.clients import ScanClient
from tests.catalog.scans.predicates import (
    And,
    EqualTo,
    GreaterThan,
    In,
    IsNaN,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    NotEqualTo,
    NotIn,
    NotNull,
    NotStartsWith,
    Or,
    StartsWith,
)
from tests.servers.moto import Bucket

LEVELS = ("db",)


@pytest.fixture
def client(catalog: Catalog, main: Warehouse, caller: Caller) -> ScanClient:
    catalog.namespaces.create(caller, main, LEVELS, {})
    return ScanClient(catalog, main)


def numbers(first: int, last: int) -> pa.Table:
    ids = range(first, last)
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "name": pa.array([None if i % 7 == 0 else f"name {i}" for i in ids]),
            "small": pa.array([i % 100 for i in ids], pa.int8()),
            "big": pa.array([2**63 + i for i in ids], pa.uint64()),
            "f": pa.array([None if i % 5 == 0 else float("nan") if i % 5 == 1 else i / 4 for i in ids], pa.float32()),
            "d": pa.array([-0.0 if i % 3 == 0 else float(i) for i in ids]),
            "day": pa.array([date(2024, 1, 1 + i % 28) for i in ids]),
            "at": pa.array([i * 1_000_000_001 - 1 for i in ids], pa.timestamp("ns")),
            "zoned": pa.array([i * 3_600_000_000 for i in ids], pa.timestamp("us", "America/New_York")),
            "price": pa.array([Decimal(i) / 4 for i in ids], pa.decimal128(10, 2)),
            "flag": pa.array([i % 2 == 0 for i in ids]),
            "nested": pa.array([{"x": i, "tags": [str(i)]} for i in ids]),
        }
    )


def add_table(client: ScanClient) -> lance.LanceDataset:
    """Four fragments of ten rows, of which two are deleted."""
    location = f"{client.warehouse.location}/db/t"
    lance.write_dataset(numbers(0, 20), location, max_rows_per_file=10)
    lance.write_dataset(numbers(20, 40), location, max_rows_per_file=10, mode="append")
    dataset = lance.dataset(location)
    dataset.delete("id in (5, 25)")
    request = {"name": "t", "location": location, "schema": EMPTY, "properties": {"table_type": "lance"}}
    client.served.tables.create(client.caller, client.warehouse, LEVELS, request)
    return lance.dataset(location)


@pytest.fixture
def table(client: ScanClient) -> lance.LanceDataset:
    """The table `db.t`, in a catalog of the test's own."""
    return add_table(client)


@pytest.fixture(scope="module")
def shared_client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScanClient]:
    """A catalog with the table `db.t`, for tests that only read."""
    folder = tmp_path_factory.mktemp("shared")
    database = open_database(f"sqlite:///{folder / 'catalog.db'}")
    given = Warehouse(0, "main", str(folder / "main"))
    Path(given.location).mkdir()
    catalog = Catalog(database, record_warehouses(database, [given], given))
    client = ScanClient(catalog, catalog.warehouses["main"])
    catalog.namespaces.create(client.caller, client.warehouse, LEVELS, {})
    add_table(client)
    yield client
    catalog.scans.exports.close()
    database.close()


@pytest.fixture(scope="module")
def whole(shared_client: ScanClient) -> pa.Table:
    """All rows, as pyiceberg reads them."""
    return shared_client.table("db", "t").scan().to_arrow()


EMPTY: dict[str, Any] = {"type": "struct", "schema-id": 0, "fields": []}


def files(answers: list[dict[str, Any]]) -> list[str]:
    return [task["data-file"]["file-path"] for answer in answers for task in answer["file-scan-tasks"]]


FILTERS: list[tuple[BooleanExpression, int]] = [
    (AlwaysTrue(), 4),
    (EqualTo("id", 12), 1),
    (GreaterThan("id", 29), 1),
    (LessThan("id", 0), 0),
    (Not(LessThan("id", 30)), 1),
    (Or(EqualTo("id", 1), EqualTo("id", 39)), 2),
    (And(GreaterThan("id", 5), LessThan("id", 8)), 1),
    (In("id", [3, 33]), 2),
    (NotIn("id", [3, 33]), 4),
    (EqualTo("id", 5), 0),
    (EqualTo("name", "name 12"), 1),
    (StartsWith("name", "name 3"), 2),
    (NotStartsWith("name", "name"), 4),
    (IsNull("name"), 4),
    (NotNull("name"), 4),
    (NotEqualTo("name", "name 1"), 4),
    (LessThan("small", 1000), 4),
    (GreaterThan("small", 35), 1),
    (EqualTo("big", 2**63 + 3), 4),
    (LessThanOrEqual("f", 2.0), 4),
    (Not(LessThan("f", 100.0)), 4),
    (IsNaN("f"), 4),
    (EqualTo("d", 0.0), 4),
    (LessThan("d", 0.0), 4),
    (EqualTo("d", 38.0), 1),
    (EqualTo("day", "2024-01-25"), 1),
    (EqualTo("at", "1970-01-01T00:00:11.000000"), 1),
    (GreaterThan("zoned", "1970-01-02T12:00:00.000000+00:00"), 3),
    (EqualTo("price", Decimal("3.25")), 1),
    (EqualTo("flag", True), 4),
    (EqualTo("nested.x", 11), 4),
    (And(EqualTo("nested.x", 11), GreaterThan("id", 10)), 3),
]
"""With the number of files that are left, where a smaller one would leave out rows."""


@pytest.mark.parametrize(("where", "left"), FILTERS, ids=lambda case: str(case)[:60])
def test_rows_are_those_that_pyiceberg_finds_in_the_whole_table(
    shared_client: ScanClient, whole: pa.Table, where: BooleanExpression, left: int
) -> None:
    assert whole.num_rows == 38
    expected = filter_rows(shared_client, whole, where)
    scan = shared_client.table("db", "t").scan(row_filter=where)
    assert repr(scan.to_arrow().sort_by("id").to_pylist()) == repr(expected)
    assert len(files(shared_client.answers[-1:])) == left
    assert scan.count() == len(expected)


def filter_rows(client: ScanClient, whole: pa.Table, where: BooleanExpression) -> list[dict[str, Any]]:
    """What pyiceberg makes of a filter by itself, once it has all rows."""
    if isinstance(where, AlwaysTrue):
        return whole.sort_by("id").to_pylist()
    schema = client.table("db", "t").schema()
    return whole.filter(expression_to_pyarrow(bind(schema, where, True), schema)).sort_by("id").to_pylist()


def test_only_the_columns_asked_for_are_copied(client: ScanClient, table: lance.LanceDataset) -> None:
    scan = client.table("db", "t").scan(row_filter=EqualTo("name", "name 12"), selected_fields=("id", "nested.x"))
    assert scan.to_arrow().to_pylist() == [{"id": 12, "nested": {"x": 12}}]
    (path,) = files(client.answers)
    assert pq.read_schema(path.removeprefix("file://")).names == ["id", "name", "nested"]


def test_copies_are_used_again_for_fewer_columns_and_in_later_versions(
    client: ScanClient, table: lance.LanceDataset
) -> None:
    client.table("db", "t").scan(selected_fields=("id", "name")).to_arrow()
    first = files(client.answers)
    lance.write_dataset(numbers(40, 50), table.uri, mode="append")
    rows = client.table("db", "t").scan(selected_fields=("name",)).to_arrow()
    assert rows.num_rows == 48
    assert files(client.answers[-1:])[:4] == first
    assert len(files(client.answers[-1:])) == 5


@pytest.mark.parametrize(("snapshot", "count"), [(1, 20), (2, 40), (3, 38), (None, 38)])
def test_time_travel(shared_client: ScanClient, snapshot: int | None, count: int) -> None:
    assert shared_client.table("db", "t").scan(snapshot_id=snapshot).to_arrow().num_rows == count


def test_tags_and_branches(client: ScanClient, table: lance.LanceDataset) -> None:
    table.tags.create("first", 1)
    branch = table.create_branch("experiment", 2)
    lance.write_dataset(numbers(100, 103), branch, mode="append")
    loaded = client.table("db", "t")
    assert loaded.scan().use_ref("first").to_arrow().num_rows == 20
    assert loaded.scan().use_ref("experiment").to_arrow().num_rows == 43


def test_a_column_that_an_old_version_has_not_is_null(client: ScanClient, table: lance.LanceDataset) -> None:
    table.add_columns({"twice": "id * 2"})
    table.alter_columns({"path": "name", "name": "title"})
    loaded = client.table("db", "t")
    old = loaded.scan(snapshot_id=1, selected_fields=("id", "twice", "title")).to_arrow().sort_by("id")
    assert old.slice(1, 1).to_pylist() == [{"id": 1, "twice": None, "title": "name 1"}]
    assert loaded.scan(snapshot_id=1, selected_fields=("twice",)).to_arrow()["twice"].to_pylist() == [None] * 20
    new = loaded.scan(row_filter=EqualTo("twice", 24), selected_fields=("title",)).to_arrow()
    assert new.to_pylist() == [{"title": "name 12"}]


def test_a_table_without_rows_or_without_data(client: ScanClient, main: Warehouse, caller: Caller) -> None:
    fields = [{"id": 1, "name": "id", "type": "long", "required": False}]
    request = {"schema": {**EMPTY, "fields": fields}, "properties": {"table_type": "lance"}}
    client.served.tables.create(caller, main, LEVELS, {"name": "declared", **request})
    location = f"{main.location}/db/empty"
    lance.write_dataset(pa.table({"id": pa.array([], pa.int64())}), location)
    client.served.tables.create(caller, main, LEVELS, {"name": "empty", "location": location, **request})
    for name in ("declared", "empty"):
        assert client.table("db", name).scan().to_arrow().num_rows == 0


def test_a_dataset_that_was_made_anew_is_not_mixed_up_with_the_one_before(
    client: ScanClient, table: lance.LanceDataset
) -> None:
    client.table("db", "t").scan().to_arrow()
    shutil.rmtree(table.uri)
    lance.write_dataset(numbers(200, 203), table.uri)
    assert client.table("db", "t").scan().to_arrow()["id"].to_pylist() == [200, 201, 202]


def test_what_takes_long_is_left_to_plan_tasks(
    client: ScanClient, table: lance.LanceDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lance_scans, "COPIES", 2)
    lance.write_dataset(numbers(40, 50), table.uri, mode="append")
    where = GreaterThan("id", 3)
    scan = client.table("db", "t").scan(row_filter=where)
    assert scan.to_arrow().sort_by("id")["id"].to_pylist() == [i for i in range(4, 50) if i not in (5, 25)]
    assert [len(answer["file-scan-tasks"]) for answer in client.answers] == [2, 2, 1]
    assert len(client.answers[0]["plan-tasks"]) == 2
    assert scan.count() == 44


def test_a_large_fragment_comes_in_several_files(client: ScanClient, monkeypatch: pytest.MonkeyPatch) -> None:
    location = f"{client.warehouse.location}/db/large"
    lance.write_dataset(numbers(0, 200), location).delete("id % 10 = 3")
    request = {"name": "large", "location": location, "schema": EMPTY, "properties": {"table_type": "lance"}}
    client.served.tables.create(client.caller, client.warehouse, LEVELS, request)
    expected = [i for i in range(200) if i % 10 != 3]
    monkeypatch.setattr(lance_scans, "COPIED_BYTES", 400)
    few = client.table("db", "large").scan(selected_fields=("id",))
    assert few.to_arrow()["id"].to_pylist() == expected
    assert [len(answer["file-scan-tasks"]) for answer in client.answers] == [1, 1, 1, 1]
    client.answers.clear()
    again = few.to_arrow()
    assert again["id"].to_pylist() == expected
    assert [len(answer["file-scan-tasks"]) for answer in client.answers] == [4]
    monkeypatch.setattr(lance_scans, "COPIED_BYTES", 1 << 20)
    monkeypatch.setattr(parquet_export, "FILE_BYTES", 1)
    monkeypatch.setattr(parquet_export, "ROW_GROUP_BYTES", 1)
    monkeypatch.setattr(chunked_scan, "BATCH_ROWS", 50)
    client.answers.clear()
    more = client.table("db", "large").scan(selected_fields=("id", "name"))
    assert more.to_arrow()["id"].to_pylist() == expected
    assert len(client.answers) == len(files(client.answers)) == 4


@pytest.mark.parametrize(
    ("start", "end", "expected"), [(1, 2, [*range(20, 40)]), (2, 3, []), (1, 4, [*range(20, 43)]), (3, 4, [40, 41, 42])]
)
def test_incremental_scans_have_what_was_appended(
    client: ScanClient, main: Warehouse, table: lance.LanceDataset, start: int, end: int, expected: list[int]
) -> None:
    lance.write_dataset(numbers(40, 43), table.uri, mode="append")
    request = {"start-snapshot-id": start, "end-snapshot-id": end, "select": ["id"]}
    answer = client.served.scans.plan(client.caller, main, LEVELS, "t", request)
    found = [pq.read_table(path.removeprefix("file://"))["id"].to_pylist() for path in files([answer])]
    assert sorted(map(str, chain(*found))) == sorted(map(str, expected))


BAD: list[tuple[dict[str, Any], str]] = [
    ({"select": ["nope"]}, "select: the table has no column 'nope'; it has id, name"),
    ({"select": ["ID"]}, "no column 'ID'"),
    ({"select": "id"}, "'select' must be a list"),
    ({"stats-fields": ["nope"]}, "stats-fields: the table has no column"),
    ({"filter": {"type": "eq", "term": "nope", "value": 1}}, "filter: the table has no column 'nope'"),
    ({"filter": {"type": "like", "term": "id", "value": 1}}, "'like' is no operation"),
    ({"filter": {"type": "eq", "term": 5, "value": 1}}, "a term must name a column, got 5"),
    ({"filter": {"type": "eq", "term": "id", "value": {"a": 1}}}, "got an object"),
    ({"filter": {"type": "in", "term": "id", "values": 1}}, "needs a list of values"),
    ({"filter": "id = 1"}, "filter must be an object"),
    ({"filter": {"type": "not", "child": None}}, "filter must be an object, got null"),
    ({"snapshot-id": 99}, "Cannot find snapshot with ID 99"),
    ({"snapshot-id": "1"}, "'snapshot-id' must be"),
    ({"snapshot-id": 1, "start-snapshot-id": 1, "end-snapshot-id": 2}, "goes with neither"),
    ({"start-snapshot-id": 1}, "needs both"),
    ({"start-snapshot-id": 3, "end-snapshot-id": 2}, "is not a parent ancestor of"),
    ({"start-snapshot-id": 1, "end-snapshot-id": 77}, "Cannot find snapshot with ID 77"),
    ({"case-sensitive": "yes"}, "'case-sensitive' must be"),
]


@pytest.mark.parametrize(("request_", "text"), BAD, ids=lambda case: str(case)[:50])
def test_requests_that_make_no_sense(shared_client: ScanClient, request_: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidInputError, match=text):
        shared_client.served.scans.plan(shared_client.caller, shared_client.warehouse, LEVELS, "t", request_)


JAVA: list[tuple[dict[str, Any], list[int]]] = [
    ({"select": ["id"], "filter": True}, [i for i in range(40) if i not in (5, 25)]),
    ({"select": [], "filter": {"type": "eq", "term": "id", "value": 12}}, [*range(10, 20)]),
    ({"select": ["id", "_file", "_pos"], "filter": {"type": "gt", "term": "id", "value": 29}}, [*range(30, 40)]),
    ({"select": ["id", "nested", "nested.x", "nested.tags.element"], "filter": False}, []),
    (
        {"select": ["ID"], "case-sensitive": False, "filter": {"type": "EQ", "term": "Id", "value": 31}},
        [*range(30, 40)],
    ),
    (
        {"filter": {"type": "eq", "term": {"type": "transform", "transform": "bucket[4]", "term": "id"}, "value": 1}},
        [i for i in range(40) if i not in (5, 25)],
    ),
    (
        {
            "filter": {
                "type": "lt",
                "term": {"type": "reference", "term": "id"},
                "value": {"type": "literal", "value": 3},
            }
        },
        [i for i in range(10) if i != 5],
    ),
    ({"filter": {"type": "gt-eq", "term": "day", "value": 19747}}, [i for i in range(20, 30) if i != 25]),
    ({"use-snapshot-schema": True, "min-rows-requested": 1, "snapshot-id": 1, "stats-fields": ["id"]}, [*range(20)]),
]


@pytest.mark.parametrize(("request_", "expected"), JAVA, ids=lambda case: str(case)[:50])
def test_requests_as_java_writes_them(shared_client: ScanClient, request_: dict[str, Any], expected: list[int]) -> None:
    answer = shared_client.served.scans.plan(shared_client.caller, shared_client.warehouse, LEVELS, "t", request_)
    found = [pq.read_table(path.removeprefix("file://")) for path in files([answer])]
    if "id" in (request_.get("select") or ["id"]):
        ids = chain(*(each["id"].to_pylist() for each in found))
        assert sorted(map(str, ids)) == sorted(map(str, expected))
    else:
        assert sum(each.num_rows for each in found) == len(expected)
    residuals = [task.get("residual-filter") for task in answer["file-scan-tasks"]]
    given = request_.get("filter")
    assert residuals == [None if given in (None, True) else given] * len(residuals)


def test_long_and_deep_filters(client: ScanClient, main: Warehouse, table: lance.LanceDataset) -> None:
    chain: dict[str, Any] = {"type": "eq", "term": "id", "value": 0}
    for number in range(1, 2000):
        chain = {"type": "or", "left": chain, "right": {"type": "eq", "term": "id", "value": number * 100}}
    answer = client.served.scans.plan(client.caller, main, LEVELS, "t", {"filter": chain})
    assert len(files([answer])) == 1
    orjson.dumps(answer)
    deep: Any = True
    for _ in range(500):
        deep = {"type": "not", "child": deep}
    with pytest.raises(InvalidInputError, match="nested more than"):
        client.served.scans.plan(client.caller, main, LEVELS, "t", {"filter": deep})


def test_long_filters_of_pyiceberg(
    client: ScanClient, table: lance.LanceDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lance_scans, "COPIES", 1)
    where = Or(*(EqualTo("id", number) for number in range(8, 2008)))
    scan = client.table("db", "t").scan(row_filter=where, selected_fields=("id",))
    assert scan.to_arrow().sort_by("id")["id"].to_pylist() == [i for i in range(8, 40) if i != 25]
    assert len(client.answers) == 4


def test_infinity_which_pyiceberg_writes_as_null(shared_client: ScanClient) -> None:
    scan = shared_client.table("db", "t").scan(row_filter=LessThan("d", float("inf")))
    assert scan.to_arrow().num_rows == 38
    assert scan.count() == 38


def test_plans_and_tasks_that_nobody_gave_out(shared_client: ScanClient) -> None:
    scans, caller, main = shared_client.served.scans, shared_client.caller, shared_client.warehouse
    forged = [
        "",
        "x",
        "é",
        encode_task({}),
        encode_task({"snapshot": 99, "rows": [[0, 0, 5]], "columns": [1], "filter": None}),
        encode_task({"snapshot": 1, "rows": [[17, 0, 5]], "columns": [1], "filter": None}),
        encode_task({"snapshot": 1, "rows": [[0, 0, "5"]], "columns": [1], "filter": None}),
        encode_task({"snapshot": 1, "rows": [[0, 0, 5]], "columns": [999], "filter": None}),
        encode_task({"snapshot": 1, "rows": [[0, 0, 5]], "columns": [], "filter": None}),
        encode_task({"snapshot": 1, "rows": [[0, 5, 5]], "columns": [1], "filter": None}),
        encode_task({"snapshot": 1, "rows": [[0, 0, 11]], "columns": [1], "filter": None}),
        encode_task({"snapshot": 1, "rows": [[0, -1, 5]], "columns": [1], "filter": None}),
        encode_task({"snapshot": True, "rows": [[0, 0, 5]], "columns": [1], "filter": None}),
        encode_task({"snapshot": 1, "rows": [[False, 0, 5]], "columns": [1], "filter": None}),
        encode_task({"snapshot": 1, "rows": [[0, False, 5]], "columns": [1], "filter": None}),
        encode_task({"snapshot": 1, "rows": [[0, 0, True]], "columns": [1], "filter": None}),
        encode_task({"snapshot": 1, "rows": [[0, 0, 5]], "columns": [True], "filter": None}),
        encode_task({"snapshot": 1, "rows": [[0, 0, 5]] * 33, "columns": [1], "filter": None}),
        encode_task({"request": {}, "manifests": ["/etc/passwd"]}),
    ]
    for text in forged:
        with pytest.raises(PlanTaskNotFoundError):
            scans.fetch_tasks(caller, main, LEVELS, "t", text)
    assert scans.plan(caller, main, LEVELS, "t", {"select": ["id"]})["status"] == "completed"
    plan_id = scans.plan(caller, main, LEVELS, "t", {})["plan-id"]
    scans.cancel_plan(caller, main, LEVELS, "t", plan_id)
    for call in (
        lambda: scans.fetch_plan(caller, main, LEVELS, "t", plan_id),
        lambda: scans.cancel_plan(caller, main, LEVELS, "t", "x"),
    ):
        with pytest.raises(PlanNotFoundError):
            call()


def test_who_may_plan(shared_client: ScanClient) -> None:
    stranger = Caller(Identity("stranger", (Grant(Role.READER, "other"),)))
    with pytest.raises(PermissionDeniedError):
        shared_client.served.scans.plan(stranger, shared_client.warehouse, LEVELS, "t", {})
    with pytest.raises(PermissionDeniedError):
        shared_client.served.scans.fetch_tasks(stranger, shared_client.warehouse, LEVELS, "t", "x")
    with pytest.raises(TableNotFoundError, match=r"Table does not exist: db\.nope"):
        shared_client.served.scans.plan(shared_client.caller, shared_client.warehouse, LEVELS, "nope", {})


def test_copies_lie_in_the_object_store_of_the_warehouse(tmp_path: Path, caller: Caller, s3: Bucket) -> None:
    database = open_database(f"sqlite:///{tmp_path / 'catalog.db'}")
    given = Warehouse(0, "remote", f"{s3.uri}/house", storage=s3.options)
    catalog = Catalog(database, record_warehouses(database, [given], given))
    warehouse = catalog.warehouses["remote"]
    catalog.namespaces.create(caller, warehouse, LEVELS, {})
    location = f"{s3.uri}/house/db/t"
    lance.write_dataset(numbers(0, 20), location, max_rows_per_file=10, storage_options=dict(s3.options))
    request = {"name": "t", "location": location, "schema": EMPTY, "properties": {"table_type": "lance"}}
    catalog.tables.create(caller, warehouse, LEVELS, request)
    client = ScanClient(catalog, warehouse, to_iceberg_config(s3.options))
    scan = client.table("db", "t").scan(row_filter=GreaterThan("id", 12), selected_fields=("id",))
    assert scan.to_arrow()["id"].to_pylist() == [*range(13, 20)]
    (path,) = files(client.answers)
    assert path.startswith(f"{s3.uri}/house/.lancehouse/")
    catalog.fence.look(is_first=True)  # which leaves a file of its own beside the folders of copies
    assert [path] == [found for _, found in ExportFiles(warehouse).list_older_than(-60)]
    ExportFiles(warehouse).files.delete(path)
    assert ExportFiles(warehouse).list_older_than(-60) == []
    catalog.scans.exports.close()
    database.close()
