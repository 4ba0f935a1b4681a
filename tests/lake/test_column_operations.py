from __future__ import annotations

from collections.abc import Callable
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance_namespace import (
    AlterTableAddColumnsRequest,
    AlterTableAlterColumnsRequest,
    AlterTableDropColumnsRequest,
    CreateTableBranchRequest,
    DescribeTableRequest,
    InvalidInputError,
    LanceNamespace,
    LanceNamespaceError,
    TableBranchNotFoundError,
    TableColumnNotFoundError,
    TableSchemaValidationError,
    UnsupportedOperationError,
    UpdateFieldMetadataRequest,
    UpdateTableSchemaMetadataRequest,
)

from lancehouse.lake.dataset import TableRef
from tests.lake.folder import FolderNamespace

Both = tuple[LanceNamespace, list[str]]


def open_table(namespace: LanceNamespace, table: list[str]) -> lance.LanceDataset:
    return lance.dataset(namespace.describe_table(DescribeTableRequest(id=table)).location)


def add(namespace: LanceNamespace, table: list[str], *columns: dict[str, Any], **at: Any) -> int:
    request = AlterTableAddColumnsRequest.model_validate({"id": table, "new_columns": columns, **at})
    return namespace.alter_table_add_columns(request).version


def alter(namespace: LanceNamespace, table: list[str], *alterations: dict[str, Any], **at: Any) -> int:
    request = AlterTableAlterColumnsRequest.model_validate({"id": table, "alterations": alterations, **at})
    return namespace.alter_table_alter_columns(request).version


def drop(namespace: LanceNamespace, table: list[str], *columns: str, **at: Any) -> int:
    return namespace.alter_table_drop_columns(
        AlterTableDropColumnsRequest(id=table, columns=list(columns), **at)
    ).version


def test_add(both: Both) -> None:
    namespace, table = both
    assert add(namespace, table, {"name": "x", "expression": "id * 2"}, {"name": "y", "expression": "'a'"}) == 2
    row = open_table(namespace, table).to_table(columns=["x", "y"], limit=1, offset=7).to_pylist()
    assert row == [{"x": 14, "y": "a"}]


def test_rename_and_allow_null(both: Both) -> None:
    namespace, table = both
    assert alter(namespace, table, {"path": "s", "rename": "text"}, {"path": "b", "nullable": False}) == 2
    schema = open_table(namespace, table).schema
    assert "text" in schema.names
    assert not schema.field("b").nullable
    assert alter(namespace, table, {"path": "b", "nullable": True}) == 3


@pytest.mark.parametrize(
    ("column", "data_type", "expected"),
    [
        ("id", {"type": "int32"}, pa.int32()),
        ("s", {"type": "large_utf8"}, pa.large_string()),
        (
            "v",
            {
                "type": "fixed_size_list",
                "length": 8,
                "fields": [{"name": "item", "nullable": True, "type": {"type": "float64"}}],
            },
            pa.list_(pa.float64(), 8),
        ),
    ],
)
def test_cast(
    ours: FolderNamespace, table: list[str], column: str, data_type: dict[str, Any], expected: pa.DataType
) -> None:
    assert alter(ours, table, {"path": column, "data_type": data_type}) == 2
    assert open_table(ours, table).schema.field(column).type == expected


def test_drop(both: Both) -> None:
    namespace, table = both
    assert drop(namespace, table, "b", "l") == 2
    assert open_table(namespace, table).schema.names == ["id", "s", "v"]


VIRTUAL = {"input_columns": ["id"], "outputs": [], "image": "i", "udf": "u", "udf_name": "n", "udf_version": "1"}

REFUSED: list[tuple[Callable[[FolderNamespace, list[str]], object], type[Exception]]] = [
    (lambda n, t: add(n, t, {"name": "id", "expression": "1"}), TableSchemaValidationError),
    (lambda n, t: add(n, t, {"name": "x", "expression": "1"}, {"name": "x", "expression": "2"}), InvalidInputError),
    (lambda n, t: add(n, t, {"name": "x", "expression": "zz"}), TableColumnNotFoundError),
    (lambda n, t: add(n, t, {"name": "x", "expression": "(("}), InvalidInputError),
    (lambda n, t: add(n, t, {"name": "x"}), InvalidInputError),
    (lambda n, t: add(n, t, {"name": "x", "computed": "id + 1"}), UnsupportedOperationError),
    (lambda n, t: add(n, t, {"name": "x", "virtual_column": VIRTUAL}), UnsupportedOperationError),
    (lambda n, t: add(n, t, {"name": "x", "expression": "1"}, branch="none"), TableBranchNotFoundError),
    (lambda n, t: alter(n, t, {"path": "zz", "rename": "y"}), TableColumnNotFoundError),
    (lambda n, t: alter(n, t, {"path": "s", "rename": "a\0b"}), InvalidInputError),
    (lambda n, t: add(n, t, {"name": "a\0b", "expression": "id"}), InvalidInputError),
    (lambda n, t: alter(n, t, {"path": "s", "rename": "_rowid"}), InvalidInputError),
    (lambda n, t: add(n, t, {"name": "_rowoffset", "expression": "id"}), InvalidInputError),
    (lambda n, t: add(n, t, {"name": "a", "expression": "id LIMIT 1"}), InvalidInputError),
    (lambda n, t: alter(n, t, {"path": "s", "rename": "id"}), TableSchemaValidationError),
    (lambda n, t: alter(n, t, {"path": "s", "data_type": {"type": "int32"}}), TableSchemaValidationError),
    (lambda n, t: alter(n, t, {"path": "s", "data_type": {"type": "zzz"}}), TableSchemaValidationError),
    (lambda n, t: alter(n, t, {"path": "s"}), InvalidInputError),
    (lambda n, t: alter(n, t, {"path": "s", "virtual_column": {}}), UnsupportedOperationError),
    (lambda n, t: drop(n, t, "zz"), TableColumnNotFoundError),
    (lambda n, t: drop(n, t, "id", "s", "b", "v", "l"), InvalidInputError),
    (lambda n, t: note(n, t, {"path": "zz", "metadata": {"a": "b"}}), TableColumnNotFoundError),
    (
        lambda n, t: note(n, t, {"path": "zz", "metadata": {}}, {"path": "id", "metadata": {}, "replace": True}),
        TableColumnNotFoundError,
    ),
    (lambda n, t: note(n, t, {"path": "id", "metadata": {}}, {"path": "id", "metadata": {}}), InvalidInputError),
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
    assert open_table(ours, table).version == 1


def test_a_branch_has_its_own_columns(ours: FolderNamespace, table: list[str]) -> None:
    ours.create_table_branch(CreateTableBranchRequest(id=table, name="side"))
    add(ours, table, {"name": "x", "expression": "1"}, branch="side")
    alter(ours, table, {"path": "s", "rename": "text"}, branch="side")
    assert drop(ours, table, "b", branch="side") == 4
    assert TableRef.in_namespace(ours, table, branch="side").open().schema.names == ["id", "text", "v", "l", "x"]
    assert open_table(ours, table).schema.names == ["id", "s", "b", "v", "l"]


def test_metadata_of_the_schema(both: Both) -> None:
    namespace, table = both
    request = UpdateTableSchemaMetadataRequest(id=table, metadata={"a": "1", "b": "2"})
    first = namespace.update_table_schema_metadata(request)
    second = namespace.update_table_schema_metadata(UpdateTableSchemaMetadataRequest(id=table, metadata={"a": "3"}))
    assert (first.metadata, second.metadata) == ({"a": "1", "b": "2"}, {"a": "3", "b": "2"})
    assert first.transaction_id
    assert first.transaction_id != second.transaction_id
    assert (
        namespace.update_table_schema_metadata(UpdateTableSchemaMetadataRequest(id=table)).metadata == second.metadata
    )


def note(namespace: FolderNamespace, table: list[str], *updates: dict[str, Any]) -> tuple[int, Any]:
    request = UpdateFieldMetadataRequest.model_validate({"id": table, "updates": updates})
    response = namespace.update_field_metadata(request)
    return response.version, response.fields


def test_metadata_of_fields(ours: FolderNamespace, table: list[str]) -> None:
    first = note(
        ours, table, {"path": "id", "metadata": {"a": "1", "b": "2"}}, {"path": "l.item", "metadata": {"c": "3"}}
    )
    assert first == (2, {"id": {"a": "1", "b": "2"}, "l.item": {"c": "3"}})
    assert note(ours, table, {"path": "id", "metadata": {"a": None, "d": "4"}}) == (3, {"id": {"b": "2", "d": "4"}})
    assert note(ours, table, {"path": "id", "metadata": {"e": "5"}, "replace": True}) == (4, {"id": {"e": "5"}})


def test_metadata_of_fields_replaced_and_added_in_one_commit(ours: FolderNamespace, table: list[str]) -> None:
    note(ours, table, {"path": "id", "metadata": {"a": "1"}}, {"path": "s", "metadata": {"a": "1", "b": "2"}})
    both = note(
        ours,
        table,
        {"path": "id", "metadata": {"c": "3"}, "replace": True},
        {"path": "s", "metadata": {"c": "3", "a": None}},
    )
    assert both == (3, {"id": {"c": "3"}, "s": {"b": "2", "c": "3"}})
