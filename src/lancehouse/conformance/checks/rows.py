"""Checks of operations on rows through the namespace itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from lance_namespace import (
    AnalyzeTableQueryPlanRequest,
    CountTableRowsRequest,
    CreateTableRequest,
    DeleteFromTableRequest,
    ExplainTableQueryPlanRequest,
    InsertIntoTableRequest,
    MergeInsertIntoTableRequest,
    QueryTableRequest,
    UpdateTableRequest,
)
from lance_namespace.errors import ErrorCode
from lance_namespace_urllib3_client.models.query_table_request_columns import QueryTableRequestColumns
from lance_namespace_urllib3_client.models.query_table_request_vector import QueryTableRequestVector

from lancehouse.conformance.subject import ROWS, Id, Subject, to_ipc

MORE = ROWS.set_column(0, "id", pa.array([3, 4, 5], pa.int64()))


def check_create(subject: Subject) -> None:
    """create_table makes a table with rows."""
    table = _create_table(subject)
    assert subject.read(table).equals(ROWS), f"the rows are {subject.read(table).to_pylist()}"


def check_create_existing(subject: Subject) -> None:
    """create_table on a table that exists is error 5."""
    table = _create_table(subject)
    with subject.expect_error(ErrorCode.TABLE_ALREADY_EXISTS):
        subject.client.create_table(CreateTableRequest(id=table), to_ipc(ROWS))


def check_create_exist_ok(subject: Subject) -> None:
    """create_table with mode ExistOk keeps the rows that are there."""
    table = _create_table(subject)
    subject.client.create_table(CreateTableRequest(id=table, mode="exist_ok"), to_ipc(MORE))
    assert subject.read(table).equals(ROWS), f"the rows are {subject.read(table).to_pylist()}"


def check_create_overwrite(subject: Subject) -> None:
    """create_table with mode Overwrite replaces the rows that are there."""
    table = _create_table(subject)
    subject.client.create_table(CreateTableRequest(id=table, mode="Overwrite"), to_ipc(MORE))
    assert subject.read(table).equals(MORE), f"the rows are {subject.read(table).to_pylist()}"


def check_create_in_missing(subject: Subject) -> None:
    """create_table in a missing namespace is error 1."""
    table = [*subject.parent, subject.new_name("missing"), subject.new_name()]
    subject.created_objects.add_table(table)
    with subject.expect_error(ErrorCode.NAMESPACE_NOT_FOUND):
        subject.client.create_table(CreateTableRequest(id=table), to_ipc(ROWS))


def check_insert(subject: Subject) -> None:
    """insert_into_table appends rows."""
    table = subject.new_dataset()
    subject.client.insert_into_table(InsertIntoTableRequest(id=table), to_ipc(MORE))
    _check_ids(subject, table, [1, 2, 3, 3, 4, 5])


def check_insert_overwrite(subject: Subject) -> None:
    """insert_into_table with mode Overwrite replaces all rows."""
    table = subject.new_dataset()
    subject.client.insert_into_table(InsertIntoTableRequest(id=table, mode="overwrite"), to_ipc(MORE))
    _check_ids(subject, table, [3, 4, 5])


def check_count(subject: Subject) -> None:
    """count_table_rows counts rows, with a predicate too."""
    table = subject.new_dataset()
    everything = subject.client.count_table_rows(CountTableRowsRequest(id=table))
    some = subject.client.count_table_rows(CountTableRowsRequest(id=table, predicate="id > 1"))
    counts = [getattr(answer, "count", answer) for answer in (everything, some)]
    assert counts == [3, 2], f"of 3 rows and 2 that match it counts {counts}"


def check_query(subject: Subject) -> None:
    """query_table answers a filter with the right rows and columns."""
    columns = QueryTableRequestColumns(column_names=["id", "name"])
    rows = _query(subject, subject.new_dataset(), filter="id >= 2", columns=columns)
    assert rows.sort_by("id").to_pylist() == [{"id": 2, "name": "two"}, {"id": 3, "name": "three"}], (
        f"it finds {rows.to_pylist()}"
    )


def check_query_vector(subject: Subject) -> None:
    """query_table finds the nearest vector."""
    vector = QueryTableRequestVector(single_vector=[0.1, 1.0])
    rows = _query(subject, subject.new_dataset(), k=1, vector=vector, vector_column="vector")
    assert rows["id"].to_pylist() == [2], f"it finds {rows.to_pylist()}"


def check_query_limit(subject: Subject) -> None:
    """query_table returns no more than k rows."""
    rows = _query(subject, subject.new_dataset(), k=2).num_rows
    assert rows == 2, f"for k=2 there are {rows} rows"


def check_update(subject: Subject) -> None:
    """update_table changes the rows that match."""
    table = subject.new_dataset()
    request = UpdateTableRequest(id=table, predicate="id = 2", updates=[["name", "'zwei'"]])
    updated = subject.client.update_table(request).updated_rows
    assert updated == 1, f"it reports {updated} rows"
    names = subject.read(table)["name"].to_pylist()
    assert names == ["one", "zwei", "three"], f"the names are {names}"


def check_delete(subject: Subject) -> None:
    """delete_from_table removes the rows that match."""
    table = subject.new_dataset()
    subject.client.delete_from_table(DeleteFromTableRequest(id=table, predicate="id = 2"))
    _check_ids(subject, table, [1, 3])


def check_merge(subject: Subject) -> None:
    """merge_insert_into_table updates what matches and inserts the rest."""
    table = subject.new_dataset()
    request = MergeInsertIntoTableRequest(
        id=table, on=["id"], when_matched_update_all=True, when_not_matched_insert_all=True
    )
    merged = subject.client.merge_insert_into_table(request, to_ipc(MORE))
    _check_ids(subject, table, [1, 2, 3, 4, 5])
    name = subject.read(table)["name"].to_pylist()[2]
    assert name == "one", f"the row that matched has the name {name!r}, not the new one"
    counts = (merged.num_updated_rows, merged.num_inserted_rows)
    assert counts == (1, 2), f"it reports {counts} rows updated and inserted, not (1, 2)"


def check_plans(subject: Subject) -> None:
    """explain_table_query_plan and analyze_table_query_plan say something."""
    table = subject.new_dataset()
    query = _query_request(table, filter="id = 1")
    explained = subject.client.explain_table_query_plan(ExplainTableQueryPlanRequest(id=table, query=query))
    assert explained, "the plan is empty"
    analyzed = subject.client.analyze_table_query_plan(
        AnalyzeTableQueryPlanRequest(**query.model_dump(exclude_none=True))
    )
    assert analyzed, "the analysis is empty"


MISSING: dict[str, Callable[[Id], tuple[Any, ...]]] = {
    "count_table_rows": lambda table: (CountTableRowsRequest(id=table),),
    "insert_into_table": lambda table: (InsertIntoTableRequest(id=table), to_ipc(ROWS)),
    "merge_insert_into_table": lambda table: (
        MergeInsertIntoTableRequest(id=table, on=["id"], when_matched_update_all=True),
        to_ipc(ROWS),
    ),
    "update_table": lambda table: (UpdateTableRequest(id=table, updates=[["name", "'x'"]]),),
    "delete_from_table": lambda table: (DeleteFromTableRequest(id=table, predicate="id = 1"),),
    "query_table": lambda table: (_query_request(table),),
}


@pytest.mark.parametrize("operation", MISSING)
def check_missing(subject: Subject, operation: str) -> None:
    """{} on a missing table is error 4."""
    missing = [*subject.home, subject.new_name("missing")]
    with subject.expect_error(ErrorCode.TABLE_NOT_FOUND):
        getattr(subject.client, operation)(*MISSING[operation](missing))


def _create_table(subject: Subject) -> Id:
    table = [*subject.home, subject.new_name()]
    subject.created_objects.add_table(table)
    subject.client.create_table(CreateTableRequest(id=table), to_ipc(ROWS))
    subject.describe(table)
    return table


def _query_request(table: Id, **options: Any) -> QueryTableRequest:
    return QueryTableRequest(**{"id": table, "k": 10, "vector": QueryTableRequestVector(), **options})


def _query(subject: Subject, table: Id, **options: Any) -> pa.Table:
    answer = subject.client.query_table(_query_request(table, **options))
    return pa.ipc.open_file(pa.BufferReader(getattr(answer, "data", answer))).read_all()


def _check_ids(subject: Subject, table: Id, expected: list[int]) -> None:
    ids = subject.read(table)["id"].to_pylist()
    assert ids == expected, f"the ids are {ids}, not {expected}"
