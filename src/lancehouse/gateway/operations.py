"""All operations of the Lance REST Namespace protocol in one table: paths, encodings, required access."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from enum import Enum, auto
from functools import cached_property

from lance_namespace import LanceNamespace
from pydantic import BaseModel


class RequestEncoding(Enum):
    """How a request is encoded."""

    JSON = auto()
    """Its model as JSON, with the same id as in the path; some fields may be in the query."""
    QUERY = auto()
    """In the query alone."""
    ARROW = auto()
    """In the query; the rows are an Arrow IPC stream in the body."""
    PAIRS = auto()
    """A bare JSON object of strings."""


class ResponseEncoding(Enum):
    """How a response is encoded."""

    JSON = auto()
    """Its model as JSON."""
    NOTHING = auto()
    """An empty body: the status says everything."""
    NUMBER = auto()
    """A bare number."""
    TEXT = auto()
    """A bare JSON string."""
    ARROW = auto()
    """An Arrow IPC file."""
    PAIRS = auto()
    """A bare JSON object of strings."""


class RequiredAccess(Enum):
    """What a caller must be allowed to do."""

    READ = auto()
    WRITE = auto()
    """Write to tables."""
    CREATE = auto()
    """Put new tables into a namespace."""
    DROP = auto()
    """Take tables out of a namespace."""
    MANAGE = auto()
    """Create, change and drop namespaces."""


@dataclass(frozen=True)
class Operation:
    """One operation of the protocol."""

    name: str
    """Name in the protocol."""
    method: str
    """HTTP method."""
    path: str
    """Path of the URL, with placeholders."""
    required_access: RequiredAccess
    body: RequestEncoding = RequestEncoding.JSON
    response: ResponseEncoding = ResponseEncoding.JSON
    status: int = 200
    """HTTP status of a successful response."""

    rows: bool = False
    """Whether it reads or writes rows, so that it may take long."""
    instead: str = ""
    """What to use instead, where a backend has no such operation because it takes a job."""

    @cached_property
    def method_name(self) -> str:
        """Name of the method of `LanceNamespace`."""
        return re.sub(r"(?<!^)(?=[A-Z])", "_", self.name).lower()

    @cached_property
    def model(self) -> type[BaseModel]:
        """Model of the request."""
        signature = inspect.signature(getattr(LanceNamespace, self.method_name), eval_str=True)
        model: type[BaseModel] = signature.parameters["request"].annotation
        return model


READ, WRITE, CREATE, DROP, MANAGE = RequiredAccess

OPERATIONS: tuple[Operation, ...] = (
    Operation("CreateNamespace", "POST", "namespace/{id}/create", MANAGE),
    Operation("ListNamespaces", "GET", "namespace/{id}/list", READ, RequestEncoding.QUERY),
    Operation("DescribeNamespace", "POST", "namespace/{id}/describe", READ),
    Operation("DropNamespace", "POST", "namespace/{id}/drop", MANAGE),
    Operation("NamespaceExists", "POST", "namespace/{id}/exists", READ, response=ResponseEncoding.NOTHING),
    Operation("ListTables", "GET", "namespace/{id}/table/list", READ, RequestEncoding.QUERY),
    Operation("ListAllTables", "GET", "table", READ, RequestEncoding.QUERY),
    Operation("RegisterTable", "POST", "table/{id}/register", CREATE),
    Operation("DescribeTable", "POST", "table/{id}/describe", READ),
    Operation("TableExists", "POST", "table/{id}/exists", READ, response=ResponseEncoding.NOTHING),
    Operation("DropTable", "POST", "table/{id}/drop", DROP, rows=True),
    Operation("DeregisterTable", "POST", "table/{id}/deregister", DROP),
    Operation("RestoreTable", "POST", "table/{id}/restore", WRITE, rows=True),
    Operation("RenameTable", "POST", "table/{id}/rename", DROP),
    Operation(
        "UpdateTableSchemaMetadata",
        "POST",
        "table/{id}/schema_metadata/update",
        WRITE,
        RequestEncoding.PAIRS,
        ResponseEncoding.PAIRS,
    ),
    Operation("ListTableVersions", "POST", "table/{id}/version/list", READ, RequestEncoding.QUERY),
    Operation("CreateTableVersion", "POST", "table/{id}/version/create", WRITE),
    Operation("DescribeTableVersion", "POST", "table/{id}/version/describe", READ),
    Operation("BatchDeleteTableVersions", "POST", "table/{id}/version/delete", WRITE, rows=True),
    Operation("BatchCreateTableVersions", "POST", "table/version/batch-create", WRITE),
    Operation("BatchCommitTables", "POST", "table/batch-commit", WRITE),
    Operation("AlterTableAlterColumns", "POST", "table/{id}/alter_columns", WRITE, rows=True),
    Operation("UpdateFieldMetadata", "POST", "table/{id}/update_field_metadata", WRITE),
    Operation("AlterTableDropColumns", "POST", "table/{id}/drop_columns", WRITE, rows=True),
    Operation("GetTableStats", "POST", "table/{id}/stats", READ, rows=True),
    Operation("InsertIntoTable", "POST", "table/{id}/insert", WRITE, RequestEncoding.ARROW, rows=True),
    Operation("MergeInsertIntoTable", "POST", "table/{id}/merge_insert", WRITE, RequestEncoding.ARROW, rows=True),
    Operation("UpdateTable", "POST", "table/{id}/update", WRITE, rows=True),
    Operation("DeleteFromTable", "POST", "table/{id}/delete", WRITE, rows=True),
    Operation("QueryTable", "POST", "table/{id}/query", READ, response=ResponseEncoding.ARROW, rows=True),
    Operation("CountTableRows", "POST", "table/{id}/count_rows", READ, response=ResponseEncoding.NUMBER, rows=True),
    Operation("CreateTable", "POST", "table/{id}/create", CREATE, RequestEncoding.ARROW, rows=True),
    Operation(
        "ExplainTableQueryPlan", "POST", "table/{id}/explain_plan", READ, response=ResponseEncoding.TEXT, rows=True
    ),
    Operation(
        "AnalyzeTableQueryPlan", "POST", "table/{id}/analyze_plan", READ, response=ResponseEncoding.TEXT, rows=True
    ),
    Operation("AlterTableAddColumns", "POST", "table/{id}/add_columns", WRITE, rows=True),
    Operation(
        "AlterTableBackfillColumns",
        "POST",
        "table/{id}/backfill_column",
        WRITE,
        status=202,
        rows=True,
        instead="`lancehouse table backfill`, or backfill of lancehouse.jobs.TableJobs or Spark's LanceCatalog",
    ),
    Operation(
        "RefreshMaterializedView",
        "POST",
        "materialized_view/{id}/refresh",
        WRITE,
        status=202,
        rows=True,
        instead="`lancehouse table refresh`, or refresh of lancehouse.jobs.TableJobs or Spark's LanceCatalog",
    ),
    Operation(
        "CreateMaterializedView",
        "POST",
        "materialized_view/{id}/create",
        CREATE,
        status=201,
        rows=True,
        instead="create_materialized_view of lancehouse.jobs.TableJobs or Spark's LanceCatalog",
    ),
    Operation("CreateTableIndex", "POST", "table/{id}/create_index", WRITE, rows=True),
    Operation("CreateTableScalarIndex", "POST", "table/{id}/create_scalar_index", WRITE, rows=True),
    Operation("ListTableIndices", "POST", "table/{id}/index/list", READ),
    Operation("DescribeTableIndexStats", "POST", "table/{id}/index/{index_name}/stats", READ),
    Operation("DropTableIndex", "POST", "table/{id}/index/{index_name}/drop", WRITE),
    Operation("ListTableTags", "POST", "table/{id}/tags/list", READ, RequestEncoding.QUERY),
    Operation("GetTableTagVersion", "POST", "table/{id}/tags/version", READ),
    Operation("DeclareTable", "POST", "table/{id}/declare", CREATE),
    Operation("CreateTableTag", "POST", "table/{id}/tags/create", WRITE),
    Operation("DeleteTableTag", "POST", "table/{id}/tags/delete", WRITE),
    Operation("UpdateTableTag", "POST", "table/{id}/tags/update", WRITE),
    Operation("ListTableBranches", "POST", "table/{id}/branches/list", READ, RequestEncoding.QUERY),
    Operation("CreateTableBranch", "POST", "table/{id}/branches/create", WRITE),
    Operation("DeleteTableBranch", "POST", "table/{id}/branches/delete", WRITE),
    Operation("DescribeTransaction", "POST", "transaction/{id}/describe", READ),
    Operation("AlterTransaction", "POST", "transaction/{id}/alter", WRITE),
)

BY_METHOD = {operation.method_name: operation for operation in OPERATIONS}
"""Each operation by the name of its method of `LanceNamespace`."""
