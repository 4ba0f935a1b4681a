"""Operations of the Lance interface on columns, and on the metadata of schema and fields."""

from __future__ import annotations

from typing import Any

import lance
from lance_namespace import (
    AlterTableAddColumnsRequest,
    AlterTableAddColumnsResponse,
    AlterTableAlterColumnsRequest,
    AlterTableAlterColumnsResponse,
    AlterTableDropColumnsRequest,
    AlterTableDropColumnsResponse,
    LanceNamespace,
    UpdateFieldMetadataRequest,
    UpdateFieldMetadataResponse,
    UpdateTableSchemaMetadataRequest,
    UpdateTableSchemaMetadataResponse,
)
from lance_namespace.errors import InvalidInputError, UnsupportedOperationError
from lance_namespace_urllib3_client.models.add_columns_entry import AddColumnsEntry
from lance_namespace_urllib3_client.models.alter_columns_entry import AlterColumnsEntry
from lance_namespace_urllib3_client.models.update_field_metadata_entry import UpdateFieldMetadataEntry

from lancehouse.lake.chunked_scan import batch_rows
from lancehouse.lake.dataset import TableRef
from lancehouse.lake.versions import transaction_id
from lancehouse.schema.jsonarrow import type_from_jsonarrow


class ColumnOperations(LanceNamespace):
    """Operations on columns."""

    def alter_table_add_columns(self, request: AlterTableAddColumnsRequest) -> AlterTableAddColumnsResponse:
        """Add columns with values from SQL expressions over existing columns.

        Raises:
            UnsupportedOperationError: a computed or virtual column, which a cluster would have to maintain.
        """
        transforms = {_check_name(entry.name): _sql_expression(entry) for entry in request.new_columns}
        if len(transforms) < len(request.new_columns):
            raise InvalidInputError("a column is added twice")
        with TableRef.in_namespace(self, request.id, branch=request.branch).dataset() as dataset:
            dataset.add_columns(transforms, batch_size=batch_rows(dataset))
        return AlterTableAddColumnsResponse(version=dataset.version)

    def alter_table_alter_columns(self, request: AlterTableAlterColumnsRequest) -> AlterTableAlterColumnsResponse:
        """Rename columns, allow or forbid nulls, or change types; all in one commit."""
        alterations = [_alteration(entry) for entry in request.alterations]
        with TableRef.in_namespace(self, request.id, branch=request.branch).dataset() as dataset:
            dataset.alter_columns(*alterations)
        return AlterTableAlterColumnsResponse(version=dataset.version)

    def alter_table_drop_columns(self, request: AlterTableDropColumnsRequest) -> AlterTableDropColumnsResponse:
        """Drop columns, in one commit."""
        with TableRef.in_namespace(self, request.id, branch=request.branch).dataset() as dataset:
            dataset.drop_columns(request.columns)
        return AlterTableDropColumnsResponse(version=dataset.version)

    def update_table_schema_metadata(
        self, request: UpdateTableSchemaMetadataRequest
    ) -> UpdateTableSchemaMetadataResponse:
        """Set keys of the schema's metadata; other keys stay."""
        with TableRef.in_namespace(self, request.id, branch=request.branch).dataset() as dataset:
            metadata = dataset.update_schema_metadata(request.metadata or {})
            return UpdateTableSchemaMetadataResponse(metadata=metadata, transaction_id=transaction_id(dataset))

    def update_field_metadata(self, request: UpdateFieldMetadataRequest) -> UpdateFieldMetadataResponse:
        """Set, delete (null) or replace the metadata of fields, in one commit."""
        paths = [entry.path for entry in request.updates]
        if len(set(paths)) < len(paths):
            raise InvalidInputError("a field is updated twice")
        with TableRef.in_namespace(self, request.id, branch=request.branch).dataset() as dataset:
            # Lance replaces the metadata of all fields or merges all, so if any is replaced, the merge is done here.
            replace = any(entry.replace for entry in request.updates)
            updates = {
                entry.path: _merged_metadata(dataset, entry) if replace else entry.metadata for entry in request.updates
            }
            dataset.update_field_metadata(updates, replace=replace)
        return UpdateFieldMetadataResponse(
            version=dataset.version, fields={path: _field_metadata(dataset, path) for path in paths}
        )


def _check_name(name: str) -> str:
    """Return the name, unless it contains a null character: Lance stores it, but no library can open the table again.

    Raises:
        InvalidInputError: it contains one.
    """
    if "\0" in name:
        raise InvalidInputError(f"the name of a column has no null character, got {name!r}")
    return name


def _sql_expression(entry: AddColumnsEntry) -> str:
    if entry.computed is not None or entry.virtual_column is not None:
        raise UnsupportedOperationError(
            f"column {entry.name}: computed and virtual columns are maintained by a cluster; give an `expression`"
        )
    if entry.expression is None:
        raise InvalidInputError(f"column {entry.name} needs an expression")
    return entry.expression


def _alteration(entry: AlterColumnsEntry) -> dict[str, Any]:
    if entry.virtual_column is not None:
        raise UnsupportedOperationError(f"column {entry.path}: virtual columns are maintained by a cluster")
    changes = {
        "name": None if entry.rename is None else _check_name(entry.rename),
        "nullable": entry.nullable,
        "data_type": None if entry.data_type is None else type_from_jsonarrow(entry.data_type, (entry.path,)),
    }
    return {"path": entry.path, **{key: value for key, value in changes.items() if value is not None}}


def _merged_metadata(dataset: lance.LanceDataset, entry: UpdateFieldMetadataEntry) -> dict[str, str]:
    merged = entry.metadata if entry.replace else {**_field_metadata(dataset, entry.path), **entry.metadata}
    return {key: value for key, value in merged.items() if value is not None}


def _field_metadata(dataset: lance.LanceDataset, path: str) -> dict[str, str]:
    field = dataset.lance_schema.field(path)
    return {} if field is None else {_decode(key): _decode(value) for key, value in field.metadata.items()}


def _decode(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
