"""Checks of columns, metadata and statistics of a table."""

from __future__ import annotations

import lance
from lance_namespace import (
    AlterTableAddColumnsRequest,
    AlterTableAlterColumnsRequest,
    AlterTableDropColumnsRequest,
    GetTableStatsRequest,
    UpdateFieldMetadataRequest,
    UpdateTableSchemaMetadataRequest,
)
from lance_namespace.errors import ErrorCode
from lance_namespace_urllib3_client.models.add_columns_entry import AddColumnsEntry
from lance_namespace_urllib3_client.models.alter_columns_entry import AlterColumnsEntry
from lance_namespace_urllib3_client.models.update_field_metadata_entry import UpdateFieldMetadataEntry

from lancehouse.conformance.subject import ROWS, Subject

NO_COLUMN = (ErrorCode.TABLE_COLUMN_NOT_FOUND, ErrorCode.INVALID_INPUT)
METADATA = {"lancehouse": "conformance"}


def check_add(subject: Subject) -> None:
    """alter_table_add_columns adds a computed column."""
    table = subject.new_dataset()
    column = AddColumnsEntry(name="twice", expression="id * 2")
    subject.client.alter_table_add_columns(AlterTableAddColumnsRequest(id=table, new_columns=[column]))
    read = subject.read(table)
    assert "twice" in read.column_names, f"the columns are {read.column_names}"
    assert read["twice"].to_pylist() == [2, 4, 6], f"it holds {read['twice'].to_pylist()}"


def check_rename(subject: Subject) -> None:
    """alter_table_alter_columns renames a column."""
    table = subject.new_dataset()
    change = AlterColumnsEntry(path="name", rename="label")
    subject.client.alter_table_alter_columns(AlterTableAlterColumnsRequest(id=table, alterations=[change]))
    names = subject.read(table).column_names
    assert names == ["id", "label", "vector"], f"the columns are {names}"


def check_drop(subject: Subject) -> None:
    """alter_table_drop_columns drops a column."""
    table = subject.new_dataset()
    subject.client.alter_table_drop_columns(AlterTableDropColumnsRequest(id=table, columns=["vector"]))
    names = subject.read(table).column_names
    assert names == ["id", "name"], f"the columns are {names}"


def check_drop_missing(subject: Subject) -> None:
    """Dropping a missing column is error 12 or 13."""
    with subject.expect_error(*NO_COLUMN):
        request = AlterTableDropColumnsRequest(id=subject.new_dataset(), columns=["nowhere"])
        subject.client.alter_table_drop_columns(request)


def check_rename_missing(subject: Subject) -> None:
    """Renaming a missing column is error 12 or 13."""
    change = AlterColumnsEntry(path="nowhere", rename="label")
    with subject.expect_error(*NO_COLUMN):
        request = AlterTableAlterColumnsRequest(id=subject.new_dataset(), alterations=[change])
        subject.client.alter_table_alter_columns(request)


def check_missing_table(subject: Subject) -> None:
    """Dropping a column of a missing table is error 4."""
    missing = [*subject.home, subject.new_name("missing")]
    with subject.expect_error(ErrorCode.TABLE_NOT_FOUND):
        subject.client.alter_table_drop_columns(AlterTableDropColumnsRequest(id=missing, columns=["id"]))


def check_stats(subject: Subject) -> None:
    """get_table_stats counts rows."""
    stats = subject.client.get_table_stats(GetTableStatsRequest(id=subject.new_dataset()))
    assert stats.num_rows == ROWS.num_rows, f"it counts {stats.num_rows} rows, not {ROWS.num_rows}"


def check_stats_missing(subject: Subject) -> None:
    """Statistics of a missing table are error 4."""
    with subject.expect_error(ErrorCode.TABLE_NOT_FOUND):
        subject.client.get_table_stats(GetTableStatsRequest(id=[*subject.home, subject.new_name("missing")]))


def check_schema_metadata(subject: Subject) -> None:
    """update_table_schema_metadata sets metadata of the schema."""
    table = subject.new_dataset()
    subject.client.update_table_schema_metadata(UpdateTableSchemaMetadataRequest(id=table, metadata=METADATA))
    found = lance.dataset(namespace_client=subject.raw_client, table_id=table).schema.metadata or {}
    assert found.get(b"lancehouse") == b"conformance", f"the metadata are {found}"


def check_field_metadata(subject: Subject) -> None:
    """update_field_metadata sets metadata of a column."""
    table = subject.new_dataset()
    update = UpdateFieldMetadataEntry(path="name", metadata={**METADATA})
    subject.client.update_field_metadata(UpdateFieldMetadataRequest(id=table, updates=[update]))
    found = lance.dataset(namespace_client=subject.raw_client, table_id=table).schema.field("name").metadata or {}
    assert found.get(b"lancehouse") == b"conformance", f"the metadata are {found}"
