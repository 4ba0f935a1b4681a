"""Checks of rows: written and read by pylance through the namespace, and by the operations of the namespace."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance_namespace import QueryTableRequest
from lance_namespace.errors import ErrorCode, InvalidInputError, UnsupportedOperationError
from lance_namespace_urllib3_client.models.query_table_request_columns import QueryTableRequestColumns
from lance_namespace_urllib3_client.models.query_table_request_vector import QueryTableRequestVector

from lancehouse.conformance.subject import ROWS, Id, Subject, to_ipc

WRITERS = 4

KINDS = pa.table(
    {
        "id": pa.array([1, 2], pa.int64()),
        "flag": pa.array([True, None]),
        "price": pa.array([1.5, 2.5], pa.float32()),
        "tags": pa.array([["a", "b"], None]),
        "place": pa.array([{"x": 1, "y": "one"}, {"x": 2, "y": None}]),
        "blob": pa.array([b"\x00\xff", b""]),
        "at": pa.array([0, 1], pa.timestamp("us", tz="UTC")),
    }
)


def check_data_create(subject: Subject) -> None:
    """lance.write_dataset creates a table by its name, and lance.dataset reads it."""
    if not subject.has_default_location:
        pytest.skip("a new table needs a location, which pylance does not give")
    table = [*subject.home, subject.new_name()]
    subject.write(table, ROWS, "create")
    _check_rows(subject, table, ROWS)
    assert table[-1] in subject.list_tables(subject.home), "it is not listed"


def check_data_append(subject: Subject) -> None:
    """lance.write_dataset appends to a table by its name."""
    table = subject.new_dataset()
    subject.write(table, ROWS, "append")
    rows = subject.read(table).num_rows
    assert rows == 2 * ROWS.num_rows, f"there are {rows} rows, not {2 * ROWS.num_rows}"


def check_data_overwrite(subject: Subject) -> None:
    """lance.write_dataset overwrites a table by its name."""
    table = subject.new_dataset()
    subject.write(table, KINDS, "overwrite")
    _check_rows(subject, table, KINDS)


def check_data_kinds(subject: Subject) -> None:
    """Nested, binary and time columns come back as they were written."""
    _check_rows(subject, subject.new_dataset(KINDS), KINDS)


def check_data_old_version(subject: Subject) -> None:
    """lance.dataset opens an old version by the table's name."""
    table = subject.new_dataset()
    version = lance.dataset(namespace_client=subject.raw_client, table_id=table).version
    subject.write(table, ROWS, "append")
    rows = subject.read(table, version=version).num_rows
    assert rows == ROWS.num_rows, f"version {version} has {rows} rows, not {ROWS.num_rows}"


def check_data_create_existing(subject: Subject) -> None:
    """lance.write_dataset in mode create on a table that exists is error 5."""
    if not subject.has_default_location:
        pytest.skip("a new table needs a location, which pylance does not give")
    table = subject.new_dataset()
    with subject.expect_error(ErrorCode.TABLE_ALREADY_EXISTS):
        subject.write(table, KINDS, "create")
    _check_rows(subject, table, ROWS)


def check_data_read_missing(subject: Subject) -> None:
    """lance.dataset on a missing table is error 4."""
    with subject.expect_error(ErrorCode.TABLE_NOT_FOUND):
        subject.read(subject.missing_table())


def check_data_concurrent_appends(subject: Subject) -> None:
    """Appends of several writers at once all land."""
    table = subject.new_dataset()
    with ThreadPoolExecutor(WRITERS) as pool:
        for future in [pool.submit(subject.write, table, ROWS, "append") for _ in range(WRITERS)]:
            future.result()
    rows = subject.read(table).num_rows
    assert rows == (WRITERS + 1) * ROWS.num_rows, f"there are {rows} rows, not {(WRITERS + 1) * ROWS.num_rows}"


def check_data_deregister_keeps_data(subject: Subject) -> None:
    """Deregister leaves the data in place."""
    table = subject.new_dataset()
    described = subject.describe(table)
    subject.deregister(table)
    rows = subject.count_rows_at(described.location or "", described.storage_options)
    assert rows == ROWS.num_rows, f"{rows} of {ROWS.num_rows} rows are left at {described.location}"


def check_data_register_again(subject: Subject) -> None:
    """A deregistered table that is registered again has its rows."""
    table = subject.new_dataset()
    location = subject.describe(table).location or ""
    subject.deregister(table)
    _register_or_declare(subject, table, location)
    _check_rows(subject, table, ROWS)


def _register_or_declare(subject: Subject, table: Id, location: str) -> None:
    """Register a table; where that is not supported, declare it at the same location."""
    try:
        subject.call("register_table", table, location=location)
    except UnsupportedOperationError:
        subject.declare(table, location=location)
        subject.note("by declare_table: register_table is not supported")
    except InvalidInputError:
        within = location.rstrip("/").rpartition("/")[2]
        subject.call("register_table", table, location=within)
        subject.note("it wants a location relative to its root")


def _check_rows(subject: Subject, table: Id, expected: pa.Table) -> None:
    rows = subject.read(table)
    assert rows.schema.names == expected.schema.names, f"the columns are {rows.schema.names}"
    assert rows.equals(expected), f"the rows are {rows.to_pylist()}"


QUERY: dict[str, Any] = {"k": 10, "vector": QueryTableRequestVector()}
MORE = ROWS.set_column(0, "id", pa.array([3, 4, 5], pa.int64()))


def check_rows_create(subject: Subject) -> None:
    """create_table makes a table with rows."""
    table = _create_table(subject)
    assert subject.read(table).equals(ROWS), f"the rows are {subject.read(table).to_pylist()}"


def check_rows_create_existing(subject: Subject) -> None:
    """create_table on a table that exists is error 5."""
    table = _create_table(subject)
    with subject.expect_error(ErrorCode.TABLE_ALREADY_EXISTS):
        subject.call("create_table", table, to_ipc(ROWS))


def check_rows_create_exist_ok(subject: Subject) -> None:
    """create_table with mode ExistOk keeps the rows that are there."""
    table = _create_table(subject)
    subject.call("create_table", table, to_ipc(MORE), mode="exist_ok")
    assert subject.read(table).equals(ROWS), f"the rows are {subject.read(table).to_pylist()}"


def check_rows_create_overwrite(subject: Subject) -> None:
    """create_table with mode Overwrite replaces the rows that are there."""
    table = _create_table(subject)
    subject.call("create_table", table, to_ipc(MORE), mode="Overwrite")
    assert subject.read(table).equals(MORE), f"the rows are {subject.read(table).to_pylist()}"


def check_rows_create_in_missing(subject: Subject) -> None:
    """create_table in a missing namespace is error 1."""
    table = [*subject.parent, subject.new_name("missing"), subject.new_name()]
    subject.created_objects.add_table(table)
    with subject.expect_error(ErrorCode.NAMESPACE_NOT_FOUND):
        subject.call("create_table", table, to_ipc(ROWS))


def check_rows_insert(subject: Subject) -> None:
    """insert_into_table appends rows."""
    table = subject.new_dataset()
    subject.call("insert_into_table", table, to_ipc(MORE))
    _check_ids(subject, table, [1, 2, 3, 3, 4, 5])


def check_rows_insert_overwrite(subject: Subject) -> None:
    """insert_into_table with mode Overwrite replaces all rows."""
    table = subject.new_dataset()
    subject.call("insert_into_table", table, to_ipc(MORE), mode="overwrite")
    _check_ids(subject, table, [3, 4, 5])


def check_rows_count(subject: Subject) -> None:
    """count_table_rows counts rows, with a predicate too."""
    table = subject.new_dataset()
    everything = subject.call("count_table_rows", table)
    some = subject.call("count_table_rows", table, predicate="id > 1")
    counts = [getattr(answer, "count", answer) for answer in (everything, some)]
    assert counts == [3, 2], f"of 3 rows and 2 that match it counts {counts}"


def check_rows_query(subject: Subject) -> None:
    """query_table answers a filter with the right rows and columns."""
    columns = QueryTableRequestColumns(column_names=["id", "name"])
    rows = _query(subject, subject.new_dataset(), filter="id >= 2", columns=columns)
    assert rows.sort_by("id").to_pylist() == [{"id": 2, "name": "two"}, {"id": 3, "name": "three"}], (
        f"it finds {rows.to_pylist()}"
    )


def check_rows_query_vector(subject: Subject) -> None:
    """query_table finds the nearest vector."""
    vector = QueryTableRequestVector(single_vector=[0.1, 1.0])
    rows = _query(subject, subject.new_dataset(), k=1, vector=vector, vector_column="vector")
    assert rows["id"].to_pylist() == [2], f"it finds {rows.to_pylist()}"


def check_rows_query_limit(subject: Subject) -> None:
    """query_table returns no more than k rows."""
    rows = _query(subject, subject.new_dataset(), k=2).num_rows
    assert rows == 2, f"for k=2 there are {rows} rows"


def check_rows_update(subject: Subject) -> None:
    """update_table changes the rows that match."""
    table = subject.new_dataset()
    updated = subject.call("update_table", table, predicate="id = 2", updates=[["name", "'zwei'"]]).updated_rows
    assert updated == 1, f"it reports {updated} rows"
    names = subject.read(table)["name"].to_pylist()
    assert names == ["one", "zwei", "three"], f"the names are {names}"


def check_rows_delete(subject: Subject) -> None:
    """delete_from_table removes the rows that match."""
    table = subject.new_dataset()
    subject.call("delete_from_table", table, predicate="id = 2")
    _check_ids(subject, table, [1, 3])


def check_rows_merge(subject: Subject) -> None:
    """merge_insert_into_table updates what matches and inserts the rest."""
    table = subject.new_dataset()
    matching = {"on": ["id"], "when_matched_update_all": True, "when_not_matched_insert_all": True}
    merged = subject.call("merge_insert_into_table", table, to_ipc(MORE), **matching)
    _check_ids(subject, table, [1, 2, 3, 4, 5])
    name = subject.read(table)["name"].to_pylist()[2]
    assert name == "one", f"the row that matched has the name {name!r}, not the new one"
    counts = (merged.num_updated_rows, merged.num_inserted_rows)
    assert counts == (1, 2), f"it reports {counts} rows updated and inserted, not (1, 2)"


def check_rows_plans(subject: Subject) -> None:
    """explain_table_query_plan and analyze_table_query_plan say something."""
    table = subject.new_dataset()
    query = {**QUERY, "filter": "id = 1"}
    explained = subject.call("explain_table_query_plan", table, query=QueryTableRequest(id=table, **query))
    assert explained, "the plan is empty"
    assert subject.call("analyze_table_query_plan", table, **query), "the analysis is empty"


MISSING: dict[str, tuple[list[bytes], dict[str, Any]]] = {
    "count_table_rows": ([], {}),
    "insert_into_table": ([to_ipc(ROWS)], {}),
    "merge_insert_into_table": ([to_ipc(ROWS)], {"on": ["id"], "when_matched_update_all": True}),
    "update_table": ([], {"updates": [["name", "'x'"]]}),
    "delete_from_table": ([], {"predicate": "id = 1"}),
    "query_table": ([], QUERY),
}
"""Operations on rows: the body and the fields of a request."""


@pytest.mark.parametrize("operation", MISSING)
def check_rows_missing(subject: Subject, operation: str) -> None:
    """{} on a missing table is error 4."""
    body, fields = MISSING[operation]
    with subject.expect_error(ErrorCode.TABLE_NOT_FOUND):
        subject.call(operation, subject.missing_table(), *body, **fields)


def _create_table(subject: Subject) -> Id:
    table = [*subject.home, subject.new_name()]
    subject.created_objects.add_table(table)
    subject.call("create_table", table, to_ipc(ROWS))
    subject.describe(table)
    return table


def _query(subject: Subject, table: Id, **options: Any) -> pa.Table:
    answer = subject.call("query_table", table, **{**QUERY, **options})
    return pa.ipc.open_file(pa.BufferReader(getattr(answer, "data", answer))).read_all()


def _check_ids(subject: Subject, table: Id, expected: list[int]) -> None:
    ids = subject.read(table)["id"].to_pylist()
    assert ids == expected, f"the ids are {ids}, not {expected}"
