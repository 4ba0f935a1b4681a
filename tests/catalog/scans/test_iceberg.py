from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pytest
from lance_namespace.errors import InvalidInputError
from pyiceberg.catalog.rest.scan_planning import ScanTasks
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.expressions import BooleanExpression
from pyiceberg.expressions.visitors import bind
from pyiceberg.io.pyarrow import expression_to_pyarrow
from pyiceberg.manifest import DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform, TruncateTransform
from pyiceberg.typedef import Record
from pyiceberg.types import DateType, DecimalType, LongType, NestedField, StringType, TimestampType

from lancehouse.catalog.callers import Caller
from lancehouse.catalog.catalog import Catalog
from lancehouse.catalog.errors import MetadataNotFoundError, PlanTaskNotFoundError
from lancehouse.catalog.scans import iceberg
from lancehouse.catalog.scans.scan_requests import ScanRequest, decode_task, encode_task
from lancehouse.catalog.warehouses import Warehouse
from tests.catalog.scans.icebergs import (
    IO,
    READ,
    append,
    delete_file,
    position_deletes,
    read,
    request,
    sql_catalog,
    with_deletes,
)
from tests.catalog.scans.predicates import (
    And,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNull,
    LessThan,
    Not,
    NotEqualTo,
    NotNull,
    Or,
    StartsWith,
)

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "name", StringType(), required=False),
    NestedField(3, "at", TimestampType(), required=False),
    NestedField(4, "day", DateType(), required=False),
    NestedField(5, "price", DecimalType(9, 2), required=False),
)
SPECS = {
    "unpartitioned": PartitionSpec(),
    "identity": PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "name")),
    "many": PartitionSpec(
        PartitionField(3, 1000, DayTransform(), "at_day"),
        PartitionField(1, 1001, BucketTransform(3), "id_bucket"),
        PartitionField(2, 1002, TruncateTransform(1), "name_trunc"),
        PartitionField(5, 1003, IdentityTransform(), "price"),
    ),
}


class Anywhere:
    """Lets a table name any file."""

    def check_readable(self, file: str, what: str) -> None:
        pass


plan = partial(iceberg.plan, files=Anywhere())
tasks = partial(iceberg.fetch_tasks, files=Anywhere())


def rows(first: int, last: int) -> pa.Table:
    ids = range(first, last)
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "name": pa.array([None if i % 4 == 3 else "abc"[i % 4] * 2 for i in ids]),
            "at": pa.array([datetime(2024, 1, 1 + i % 3) for i in ids], pa.timestamp("us")),
            "day": pa.array([date(2024, 2, 1 + i % 5) for i in ids]),
            "price": pa.array([Decimal(i % 2) / 4 for i in ids], pa.decimal128(9, 2)),
        }
    )


@pytest.fixture
def tables(tmp_path: Path) -> SqlCatalog:
    return sql_catalog(tmp_path)


def create_table(tables: SqlCatalog, spec: PartitionSpec, **more: Any) -> Table:
    table = tables.create_table("db.t", SCHEMA, partition_spec=spec, **more)
    for some in (rows(0, 12), rows(100, 104)):
        append(table, some) if len(spec.fields) > 1 else table.append(some)
    return table


FILTERS: list[BooleanExpression | None] = [
    None,
    EqualTo("id", 3),
    GreaterThan("id", 50),
    EqualTo("name", "aa"),
    Or(IsNull("name"), EqualTo("id", 0)),
    NotNull("name"),
    NotEqualTo("name", "aa"),
    StartsWith("name", "b"),
    Not(In("name", ["aa", "bb"])),
    And(GreaterThanOrEqual("at", "2024-01-02T00:00:00"), LessThan("at", "2024-01-03T00:00:00")),
    EqualTo("day", "2024-02-03"),
    EqualTo("price", Decimal("0.25")),
    LessThan("id", -1),
]


@pytest.mark.parametrize("spec", SPECS, ids=str)
@pytest.mark.parametrize("where", FILTERS, ids=lambda case: str(case)[:50])
def test_files_and_rows_are_those_of_pyiceberg_itself(
    tables: SqlCatalog, spec: str, where: BooleanExpression | None
) -> None:
    table = create_table(tables, SPECS[spec])
    scan = table.scan() if where is None else table.scan(row_filter=where)
    answer = plan(table.metadata, READ, request(where), has_nulls=False)
    own = {task.file.file_path: task for task in scan.plan_files()}
    planned = {task["data-file"]["file-path"]: task for task in answer["file-scan-tasks"]}
    assert planned.keys() <= own.keys()
    for path, task in planned.items():
        assert task["data-file"]["record-count"] == own[path].file.record_count
        assert task["data-file"]["file-size-in-bytes"] == own[path].file.file_size_in_bytes
    got = read(table.metadata, answer) if where is None else read(table.metadata, answer, where)
    assert got.sort_by("id").to_pylist() == scan.to_arrow().sort_by("id").to_pylist()


def test_partitions_in_json(tables: SqlCatalog) -> None:
    table = create_table(tables, SPECS["many"])
    where = And(EqualTo("id", 3), EqualTo("price", Decimal("0.25")))
    found = plan(table.metadata, READ, request(where))["file-scan-tasks"]
    task = next(task for task in found if task["data-file"]["partition"][0::2] == ["2024-01-01", None])
    file = task["data-file"]
    assert (file["spec-id"], file["content"], file["file-format"]) == (0, "data", "parquet")
    day, bucket, name, price = file["partition"]
    assert (day, name, price) == ("2024-01-01", None, "0.25")
    assert bucket in range(3)
    assert task["residual-filter"] == request(where).json["filter"]
    without = plan(table.metadata, READ, request(where), has_nulls=False)["file-scan-tasks"]
    assert [] in [task["data-file"]["partition"] for task in without]


def test_nothing_is_left_to_filter_where_the_partition_says_it(tables: SqlCatalog) -> None:
    table = create_table(tables, SPECS["identity"])
    answer = plan(table.metadata, READ, request(EqualTo("name", "aa")))
    assert [task["residual-filter"] for task in answer["file-scan-tasks"]] == [True, True]
    whole = plan(table.metadata, READ, request())
    assert {task["residual-filter"] for task in whole["file-scan-tasks"]} == {True}


def test_time_travel_and_changed_schemas(tables: SqlCatalog) -> None:
    table = create_table(tables, SPECS["identity"])
    first = table.metadata.snapshots[0].snapshot_id
    with table.update_schema() as update:
        update.rename_column("id", "number")
        update.delete_column("day")
        update.add_column("more", LongType())
    with table.update_spec() as spec:
        spec.remove_field("name")
        spec.add_field("number", BucketTransform(2), "number_bucket")
    new = rows(200, 204).rename_columns(["number", "name", "at", "day", "price"]).drop_columns(["day"])
    append(table, new.append_column("more", pa.array([1, 2, 3, 4], pa.int64())))
    for where in (GreaterThan("number", 2), EqualTo("more", 2), IsNull("more"), EqualTo("name", "aa")):
        answer = plan(table.metadata, READ, request(where), has_nulls=False)
        got = read(table.metadata, answer, where).sort_by("number").to_pylist()
        assert got == table.scan(row_filter=where).to_arrow().sort_by("number").to_pylist()
    old = plan(table.metadata, READ, request(snapshot_id=first), has_nulls=False)
    assert sum(task["data-file"]["record-count"] for task in old["file-scan-tasks"]) == 12
    json = {"filter": {"type": "eq", "term": "id", "value": 0}, "snapshot-id": first, "select": ["id", "day"]}
    named = plan(table.metadata, READ, ScanRequest.from_json({**json, "use-snapshot-schema": True}))
    assert len(named["file-scan-tasks"]) == 1
    with pytest.raises(InvalidInputError, match="no column 'id'; it has number"):
        plan(table.metadata, READ, ScanRequest.from_json(json))


def test_position_deletes(tables: SqlCatalog, tmp_path: Path) -> None:
    table = create_table(tables, SPECS["unpartitioned"])
    second, first = (task.file.file_path for task in table.scan().plan_files())
    assert "00000-0" in first
    deletes = [position_deletes(tmp_path, first, [0, 1]), position_deletes(tmp_path, second, [3])]
    metadata = with_deletes(table, deletes)
    answer = plan(metadata, READ, request())
    assert [delete["content"] for delete in answer["delete-files"]] == ["position-deletes"] * 2
    assert read(metadata, answer).sort_by("id")["id"].to_pylist() == [*range(2, 12), 100, 101, 102]
    before = plan(metadata, READ, request(snapshot_id=table.metadata.current_snapshot_id))
    assert "delete-files" not in before


def test_position_deletes_do_not_reach_later_files_or_other_partitions(tables: SqlCatalog, tmp_path: Path) -> None:
    table = create_table(tables, SPECS["identity"])
    deletes = [position_deletes(tmp_path, "file:///elsewhere", [0], partition=Record("aa"))]
    table.metadata = with_deletes(table, deletes)
    answer = plan(table.metadata, READ, request())
    with_them = [task for task in answer["file-scan-tasks"] if task.get("delete-file-references")]
    assert len(answer["file-scan-tasks"]) == 8
    assert {task["data-file"]["partition"][0] for task in with_them} == {"aa"}
    assert len(with_them) == 2


def test_equality_deletes(tables: SqlCatalog, tmp_path: Path) -> None:
    table = create_table(tables, SPECS["identity"])
    file = tmp_path / "eq.parquet"
    everywhere = delete_file(file, DataFileContent.EQUALITY_DELETES, 1, equality_ids=[1], partition=Record("bb"))
    metadata = with_deletes(table, [everywhere])
    answer = plan(metadata, READ, request())
    assert answer["delete-files"][0] == {
        "spec-id": 0,
        "content": "equality-deletes",
        "file-path": f"file://{file}",
        "file-format": "parquet",
        "partition": ["bb"],
        "file-size-in-bytes": 1,
        "record-count": 1,
        "equality-ids": [1],
    }
    with_them = [task for task in answer["file-scan-tasks"] if task.get("delete-file-references") == [0]]
    assert {task["data-file"]["partition"][0] for task in with_them} == {"bb"}


def test_equality_deletes_without_partition_reach_all_that_is_older(tables: SqlCatalog, tmp_path: Path) -> None:
    table = create_table(tables, SPECS["unpartitioned"])
    delete = delete_file(tmp_path / "eq.parquet", DataFileContent.EQUALITY_DELETES, 1, equality_ids=[1, 2])
    metadata = with_deletes(table, [delete])
    assert [task["delete-file-references"] for task in plan(metadata, READ, request())["file-scan-tasks"]] == [
        [0],
        [0],
    ]
    with pytest.raises(NotImplementedError, match="equality deletes"):
        read(metadata, plan(metadata, READ, request()))


def test_deletion_vectors_replace_position_deletes(tables: SqlCatalog, tmp_path: Path) -> None:
    table = create_table(tables, SPECS["unpartitioned"])
    first, second = (task.file.file_path for task in table.scan().plan_files())
    vector = delete_file(
        tmp_path / "v.puffin",
        DataFileContent.POSITION_DELETES,
        2,
        file_format=FileFormat.PUFFIN,
        referenced_data_file=first,
        content_offset=4,
        content_size_in_bytes=40,
    )
    deletes = [vector, position_deletes(tmp_path, first, [0]), position_deletes(tmp_path, second, [0])]
    answer = plan(with_deletes(table, deletes), READ, request())
    by_path = {
        task["data-file"]["file-path"]: [answer["delete-files"][place] for place in task["delete-file-references"]]
        for task in answer["file-scan-tasks"]
    }
    assert by_path[first] == [
        {
            "spec-id": 0,
            "content": "position-deletes",
            "file-path": f"file://{tmp_path / 'v.puffin'}",
            "file-format": "puffin",
            "partition": [],
            "file-size-in-bytes": 1,
            "record-count": 2,
            "referenced-data-file": first,
            "content-offset": 4,
            "content-size-in-bytes": 40,
        }
    ]
    assert all(delete["file-format"] == "parquet" for delete in by_path[second])


def test_statistics_are_told_of_the_fields_asked_for(tables: SqlCatalog) -> None:
    table = create_table(tables, SPECS["unpartitioned"])
    file = plan(table.metadata, READ, request(stats_fields=["id"]))["file-scan-tasks"][-1]["data-file"]
    assert file["value-counts"] == {"keys": [1], "values": [12]}
    assert file["lower-bounds"] == {"keys": [1], "values": ["0000000000000000"]}
    assert file["upper-bounds"] == {"keys": [1], "values": ["0B00000000000000"]}


def test_incremental_scans_have_what_was_appended(tables: SqlCatalog) -> None:
    table = create_table(tables, SPECS["unpartitioned"])
    table.delete("id = 1")
    table.append(rows(300, 302))
    ids = [snapshot.snapshot_id for snapshot in table.metadata.snapshots]

    def count_records(start: int, end: int) -> int:
        answer = plan(table.metadata, READ, request(start_snapshot_id=start, end_snapshot_id=end))
        return sum(task["data-file"]["record-count"] for task in answer["file-scan-tasks"])

    assert count_records(ids[0], ids[1]) == 4
    assert count_records(ids[0], ids[-1]) == 6
    assert count_records(ids[1], ids[2]) == 0
    with pytest.raises(InvalidInputError, match="is not a parent ancestor"):
        count_records(ids[2], ids[1])


def test_many_files_are_left_to_plan_tasks(tables: SqlCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    table = create_table(tables, SPECS["identity"])
    monkeypatch.setattr(iceberg, "FILES", 4)
    where = GreaterThan("id", 1)
    answer = plan(table.metadata, READ, request(where))
    (later,) = answer["plan-tasks"]
    rest = tasks(table.metadata, READ, decode_task(later))
    paths = [task["data-file"]["file-path"] for part in (answer, rest) for task in part["file-scan-tasks"]]
    assert len(paths) == len(set(paths)) == 8
    with pytest.raises(PlanTaskNotFoundError):
        tasks(table.metadata, READ, {"request": {}, "manifests": ["/etc/passwd"]})


def with_manifest_list(metadata: TableMetadata, manifest_list: str) -> TableMetadata:
    """The table with another manifest list in its current snapshot."""
    *others, last = metadata.snapshots
    listed = last.model_copy(update={"manifest_list": manifest_list})
    return metadata.model_copy(update={"snapshots": [*others, listed]})


def manifest_list_path(table: Table) -> Path:
    snapshot = table.metadata.current_snapshot()
    assert snapshot is not None
    return Path(snapshot.manifest_list.removeprefix("file://"))


@pytest.mark.parametrize(
    "place",
    [
        *("/etc/passwd", "/etc/nonexistent", "/etc", "relative", "", "/", "file:", "file:///etc/passwd"),
        *("s3://nobucket/x", "hdfs://x/y", "http://127.0.0.1:1/x", "lance://x", "lance:///x", "FILE:///etc/passwd"),
        *("{other}", "file://{other}", "file:{other}", "{own}/../{other.name}", "{own}/link/{other.name}"),
        *("{own}", "{own}-beside/x", "{own}/a\0b", "file://host{own}/x", "file://{own}/%2e%2e?x"),
    ],
)
def test_manifest_lists_that_are_not_the_tables_own_stay_closed(tables: SqlCatalog, place: str) -> None:
    victim = tables.create_table("db.victim", SCHEMA)
    victim.append(rows(0, 3))
    table = create_table(tables, SPECS["unpartitioned"])
    other, own = manifest_list_path(victim), Path(table.location().removeprefix("file://"))
    (own / "link").symlink_to(other.parent)
    metadata = with_manifest_list(table.metadata, place.format(other=other, own=own))
    words = rf"^snapshot {metadata.current_snapshot_id}: its manifest list lies neither below the table's location nor"
    with pytest.raises(InvalidInputError, match=words) as caught:
        plan(metadata, READ, request())
    assert "passwd" not in str(caught.value)


def test_another_tables_manifests_are_reached_by_no_commit_and_no_registration(
    catalog: Catalog, main: Warehouse, caller: Caller
) -> None:
    made = {name: sql_catalog(Path(main.location) / name) for name in ("mine", "theirs")}
    for name, tables in made.items():
        table = tables.create_table("db.t", SCHEMA)
        table.append(rows(0, 3))
        catalog.namespaces.create(caller, main, (name,), {})
        request_ = {"name": "t", "metadata-location": table.metadata_location}
        catalog.tables.register(caller, main, (name,), request_)
        assert len(catalog.scans.plan(caller, main, (name,), "t", {})["file-scan-tasks"]) == 1
        tables.engine.dispose()
    mine, theirs = (orjson.loads(catalog.tables.load(caller, main, (name,), "t").metadata) for name in made)
    snapshot = {**mine["snapshots"][0], "manifest-list": theirs["snapshots"][0]["manifest-list"]}
    update = {"action": "add-snapshot", "snapshot": {**snapshot, "snapshot-id": 7, "sequence-number": 2}}
    with pytest.raises(InvalidInputError, match=r"^snapshot 7: its manifest list lies neither"):
        catalog.commits.commit(caller, main, ("mine",), "t", {"requirements": [], "updates": [update]})
    forged = Path(main.location) / "mine" / "forged.metadata.json"
    forged.write_bytes(orjson.dumps({**mine, "snapshots": [snapshot]}))
    catalog.tables.drop(caller, main, ("mine",), "t")
    catalog.tables.register(caller, main, ("mine",), {"name": "t", "metadata-location": str(forged)})
    with pytest.raises(InvalidInputError, match=f"^snapshot {snapshot['snapshot-id']}: its manifest list lies neither"):
        catalog.scans.plan(caller, main, ("mine",), "t", {})


def test_manifests_that_are_not_the_tables_own_stay_closed(tables: SqlCatalog, tmp_path: Path) -> None:
    table = create_table(tables, SPECS["unpartitioned"])
    metadata = with_deletes(table, [position_deletes(tmp_path, "x", [0])], folder=f"file://{tmp_path}")
    with pytest.raises(
        InvalidInputError, match=rf"^snapshot {metadata.current_snapshot_id}: its manifest lies neither"
    ):
        plan(metadata, READ, request())


@pytest.mark.parametrize("form", ["{path}", "file:{path}", "file://{path}"])
def test_a_tables_own_manifest_list_may_be_written_in_any_form(tables: SqlCatalog, form: str) -> None:
    table = create_table(tables, SPECS["unpartitioned"])
    metadata = with_manifest_list(table.metadata, form.format(path=manifest_list_path(table)))
    assert len(plan(metadata, READ, request())["file-scan-tasks"]) == 2


def test_manifests_below_the_metadata_path(tables: SqlCatalog, tmp_path: Path) -> None:
    path = {"write.metadata.path": f"{tmp_path}/beside"}
    table = create_table(tables, SPECS["unpartitioned"], properties=path)
    assert manifest_list_path(table).parent == tmp_path / "beside"
    assert len(plan(table.metadata, READ, request())["file-scan-tasks"]) == 2
    with pytest.raises(InvalidInputError, match=r"its write\.metadata\.path"):
        plan(table.metadata.model_copy(update={"properties": {}}), READ, request())


SPOILT: list[Callable[[Path], object]] = [
    Path.unlink,
    lambda file: file.write_bytes(b""),
    lambda file: file.write_bytes(b"no Avro at all"),
    lambda file: file.write_bytes(file.read_bytes()[:-9]),
    lambda file: file.write_bytes(file.read_bytes()[:300]),
    lambda file: file.write_bytes(file.read_bytes().replace(b'"long"', b'"lung"')),
    lambda file: file.write_bytes(file.read_bytes().replace(b"deflate", b"deflatf")),
    lambda file: file.write_bytes(file.read_bytes()[:-60] + b"\xff" * 60),
    lambda file: file.write_bytes(file.read_bytes() + b"\x02"),
]


@pytest.mark.parametrize("spoil", SPOILT)
@pytest.mark.parametrize("which", ["list", "manifest"])
def test_a_manifest_that_is_gone_or_broken(tables: SqlCatalog, spoil: Callable[[Path], object], which: str) -> None:
    table = create_table(tables, SPECS["identity"])
    snapshot = table.metadata.current_snapshot()
    assert snapshot is not None
    manifest = snapshot.manifests(IO)[0].manifest_path
    path = str(manifest_list_path(table)) if which == "list" else manifest.removeprefix("file://")
    spoil(Path(path))
    with pytest.raises(MetadataNotFoundError, match=rf"^Failed to open input stream for file: (file://)?{path}$"):
        plan(table.metadata, READ, request())


def test_a_manifest_that_is_a_folder_or_a_link(tables: SqlCatalog, tmp_path: Path) -> None:
    table = create_table(tables, SPECS["identity"])
    path = manifest_list_path(table)
    path.rename(tmp_path / "moved.avro")
    path.mkdir()
    with pytest.raises(InvalidInputError, match="cannot be read: Is a directory"):
        plan(table.metadata, READ, request())
    path.rmdir()
    path.symlink_to(tmp_path / "moved.avro")
    with pytest.raises(InvalidInputError, match="takes manifests from nowhere else"):
        plan(table.metadata, READ, request())


def test_too_many_files_are_refused(tables: SqlCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    table = create_table(tables, SPECS["identity"])
    names = plan(table.metadata, READ, request())["file-scan-tasks"]
    monkeypatch.setattr(iceberg, "MAX_FILES", len(names))
    assert plan(table.metadata, READ, request())["file-scan-tasks"] == names
    for most, what in ((len(names) - 1, "data files"), (1, "manifests")):
        monkeypatch.setattr(iceberg, "MAX_FILES", most)
        with pytest.raises(InvalidInputError, match=f"more than {most} {what}: filter by partition"):
            plan(table.metadata, READ, request())


def test_long_filters_come_back_as_trees(tables: SqlCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    table = create_table(tables, SPECS["identity"])
    monkeypatch.setattr(iceberg, "FILES", 4)
    terms = [{"type": "eq", "term": "id", "value": number} for number in range(1, 2000)]
    left, right = terms[0], terms[-1]
    for term in terms[1:]:
        left = {"type": "or", "left": left, "right": term}
    for term in terms[-2::-1]:
        right = {"type": "or", "left": term, "right": right}
    for where in (left, right):
        answer = plan(table.metadata, READ, ScanRequest.from_json({"filter": where}), has_nulls=False)
        rest = tasks(table.metadata, READ, decode_task(*answer["plan-tasks"]))
        assert len(answer["file-scan-tasks"]) == len(rest["file-scan-tasks"]) == 4
        parsed = ScanTasks.model_validate_json(orjson.dumps(answer)).file_scan_tasks[0].residual_filter
        assert parsed is not None
        ids = pa.table({"id": pa.array(range(-5, 2010), pa.int64())})
        bound = bind(table.schema(), parsed, case_sensitive=True)
        assert ids.filter(expression_to_pyarrow(bound))["id"].to_pylist() == [*range(1, 2000)]


def nested_filter(levels: int, **more: Any) -> Any:
    made: Any = {"type": "eq", "term": "id", "value": 1, **more}
    for level in range(levels):
        made = {"type": ("and", "or")[level % 2], "left": made, "right": {"type": "is-null", "term": "id"}}
    return made


def transforms(levels: int) -> Any:
    term: Any = "id"
    for _ in range(levels):
        term = {"type": "transform", "transform": "bucket[4]", "term": term}
    return {"type": "eq", "term": term, "value": 1}


def lists(levels: int) -> Any:
    made: list[Any] = []
    for _ in range(levels):
        made = [made]
    return made


def test_filters_that_are_nested_too_deep(tables: SqlCatalog) -> None:
    table = create_table(tables, SPECS["unpartitioned"])
    fine = plan(table.metadata, READ, ScanRequest.from_json({"filter": nested_filter(99), "unknown": lists(900)}))
    orjson.dumps(fine)
    for deep in (nested_filter(100), nested_filter(900), transforms(400), nested_filter(0, unknown=lists(400))):
        with pytest.raises(InvalidInputError, match="the filter is nested more than 100 levels deep: simplify it"):
            plan(table.metadata, READ, ScanRequest.from_json({"filter": deep}))
    with pytest.raises(PlanTaskNotFoundError):
        decode_task(encode_task({"request": {}, "manifests": lists(200)}))


@pytest.mark.parametrize("version", ["1", "2"])
def test_versions_and_empty_tables(tables: SqlCatalog, version: str) -> None:
    table = tables.create_table("db.e", SCHEMA, properties={"format-version": version})
    assert plan(table.metadata, READ, request()) == {"file-scan-tasks": [], "plan-tasks": []}
    table.append(rows(0, 5))
    assert read(table.metadata, plan(table.metadata, READ, request())).num_rows == 5
