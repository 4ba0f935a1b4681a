"""The least that each operation of the protocol takes."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

from lancehouse.gateway.operations import OPERATIONS, Operation, RequestEncoding

QUERY = {"k": 1, "vector": {}}
BODIES: dict[str, dict[str, Any]] = {
    "RegisterTable": {"location": "nowhere"},
    "RestoreTable": {"version": 1},
    "RenameTable": {"new_table_name": "other"},
    "UpdateTableSchemaMetadata": {"key": "value"},
    "CreateTableVersion": {"version": 2, "manifest_path": "_versions/2.manifest"},
    "BatchDeleteTableVersions": {"ranges": [{"start_version": 1, "end_version": 2}]},
    "BatchCreateTableVersions": {"entries": [{"id": ["db", "t"], "version": 2, "manifest_path": "m"}]},
    "BatchCommitTables": {"operations": [{"declare_table": {"id": ["db", "u"]}}]},
    "AlterTableAlterColumns": {"alterations": [{"path": "id", "rename": "key"}]},
    "UpdateFieldMetadata": {"updates": [{"path": "id", "metadata": {"a": "b"}}]},
    "AlterTableDropColumns": {"columns": ["id"]},
    "UpdateTable": {"updates": [["id", "id + 1"]]},
    "DeleteFromTable": {"predicate": "id = 1"},
    "QueryTable": QUERY,
    "ExplainTableQueryPlan": {"query": QUERY},
    "AnalyzeTableQueryPlan": QUERY,
    "AlterTableAddColumns": {"new_columns": [{"name": "more", "expression": "id + 1"}]},
    "AlterTableBackfillColumns": {"column": "id"},
    "CreateMaterializedView": {"source_table_id": ["db", "t"]},
    "CreateTableIndex": {"column": "id", "index_type": "BTREE"},
    "CreateTableScalarIndex": {"column": "id", "index_type": "BTREE"},
    "GetTableTagVersion": {"tag": "one"},
    "CreateTableTag": {"tag": "one", "version": 1},
    "DeleteTableTag": {"tag": "one"},
    "UpdateTableTag": {"tag": "one", "version": 1},
    "CreateTableBranch": {"name": "side"},
    "DeleteTableBranch": {"name": "side"},
    "AlterTransaction": {"actions": []},
}


def rows(count: int = 3) -> bytes:
    """As an Arrow IPC stream."""
    table = pa.table({"id": pa.array(range(count), pa.int64())})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def call(operation: Operation, id: str) -> tuple[str, str, bytes | None]:
    """Method, path below `/v1/` and body."""
    path = operation.path.format(id=id, index_name="index")
    if operation.name == "MergeInsertIntoTable":
        path += "?on=id&when_matched_update_all=true"
    if operation.body is RequestEncoding.ARROW:
        return operation.method, path, rows()
    if operation.body is RequestEncoding.QUERY:
        return operation.method, path, b"" if operation.method == "POST" else None
    return operation.method, path, json.dumps(BODIES.get(operation.name, {})).encode()


IN_ORDER = sorted(OPERATIONS, key=lambda each: ("Drop" in each.name or "Deregister" in each.name, each.name))
"""Those that end things come last."""
