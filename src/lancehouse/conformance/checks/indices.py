"""Checks of the indices of a table."""

from __future__ import annotations

import pyarrow as pa
from lance_namespace import (
    CreateTableIndexRequest,
    DescribeTableIndexStatsRequest,
    DropTableIndexRequest,
    ListTableIndicesRequest,
)
from lance_namespace.errors import ErrorCode

from lancehouse.conformance.subject import Id, Subject

SIZE = 512
INDEXED = pa.table(
    {
        "id": pa.array(range(SIZE), pa.int64()),
        "text": pa.array([f"word{number % 7} and more" for number in range(SIZE)]),
        "vector": pa.array([[float(number % 16), 1.0] for number in range(SIZE)], pa.list_(pa.float32(), 2)),
    }
)
NAME = "lancehouse_index"


def check_scalar(subject: Subject) -> None:
    """A scalar index is created and listed."""
    table = _create_indexed_table(subject)
    columns = _list_indices(subject, table)[NAME]
    assert columns == ["id"], f"it is listed for the columns {columns}"


def check_vector(subject: Subject) -> None:
    """A vector index is created and listed."""
    table = subject.new_dataset(INDEXED)
    request = CreateTableIndexRequest(
        id=table, column="vector", index_type="IVF_FLAT", name=NAME, distance_type="l2", num_partitions=1
    )
    subject.client.create_table_index(request)
    assert NAME in _list_indices(subject, table), f"the indices are {list(_list_indices(subject, table))}"


def check_text(subject: Subject) -> None:
    """A full-text index is created and listed."""
    table = subject.new_dataset(INDEXED)
    request = CreateTableIndexRequest(id=table, column="text", index_type="FTS", name=NAME)
    subject.client.create_table_scalar_index(request)
    assert NAME in _list_indices(subject, table), f"the indices are {list(_list_indices(subject, table))}"


def check_stats(subject: Subject) -> None:
    """describe_table_index_stats counts the indexed rows."""
    table = _create_indexed_table(subject)
    request = DescribeTableIndexStatsRequest(id=table, index_name=NAME)
    rows = subject.client.describe_table_index_stats(request).num_indexed_rows
    assert rows == SIZE, f"{rows} of {SIZE} rows are indexed"


def check_stats_missing(subject: Subject) -> None:
    """Statistics of a missing index are error 6."""
    with subject.expect_error(ErrorCode.TABLE_INDEX_NOT_FOUND):
        request = DescribeTableIndexStatsRequest(id=subject.new_dataset(), index_name=NAME)
        subject.client.describe_table_index_stats(request)


def check_drop(subject: Subject) -> None:
    """A dropped index is gone."""
    table = _create_indexed_table(subject)
    subject.client.drop_table_index(DropTableIndexRequest(id=table, index_name=NAME))
    assert NAME not in _list_indices(subject, table), "it is listed still"


def check_drop_missing(subject: Subject) -> None:
    """Dropping a missing index is error 6."""
    with subject.expect_error(ErrorCode.TABLE_INDEX_NOT_FOUND):
        subject.client.drop_table_index(DropTableIndexRequest(id=subject.new_dataset(), index_name=NAME))


def check_missing_column(subject: Subject) -> None:
    """An index on a missing column is error 12 or 13."""
    request = CreateTableIndexRequest(id=subject.new_dataset(), column="nowhere", index_type="BTREE")
    with subject.expect_error(ErrorCode.TABLE_COLUMN_NOT_FOUND, ErrorCode.INVALID_INPUT):
        subject.client.create_table_scalar_index(request)


def check_missing_table(subject: Subject) -> None:
    """The indices of a missing table are error 4."""
    with subject.expect_error(ErrorCode.TABLE_NOT_FOUND):
        _list_indices(subject, [*subject.home, subject.new_name("missing")])


def _create_indexed_table(subject: Subject) -> Id:
    table = subject.new_dataset(INDEXED)
    request = CreateTableIndexRequest(id=table, column="id", index_type="BTREE", name=NAME)
    subject.client.create_table_scalar_index(request)
    return table


def _list_indices(subject: Subject, table: Id) -> dict[str, list[str]]:
    indices = subject.client.list_table_indices(ListTableIndicesRequest(id=table)).indexes
    return {index.index_name: list(index.columns) for index in indices}
