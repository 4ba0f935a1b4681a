"""Models that validate the bodies of Iceberg REST requests on the server.

Types are strict (a number is not a string), unknown keys are ignored, and `null` counts as missing, as in Iceberg's own
parsers. The meaning of the parts is checked by the code that uses them.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError


class RequestModel(BaseModel):
    """Base class of request bodies, with kebab-case names."""

    model_config = ConfigDict(
        strict=True,
        frozen=True,
        extra="ignore",
        alias_generator=lambda name: name.replace("_", "-"),
        validate_by_name=False,
        validate_by_alias=True,
    )


Properties = dict[str, str]


class StructField(RequestModel):
    """A column; its type is parsed with the rest of the schema."""

    id: int | None = None
    name: str
    type: str | dict[str, Any]
    required: bool | None = None
    doc: str | None = None


class Schema(RequestModel):
    """A schema: a struct of columns."""

    type: str | None = None
    fields: list[StructField]
    schema_id: int | None = None
    identifier_field_ids: list[int] | None = None


class CreateNamespaceRequest(RequestModel):
    """Create a namespace."""

    namespace: list[str]
    properties: Properties | None = None


class UpdateNamespacePropertiesRequest(RequestModel):
    """Set and remove properties of a namespace."""

    updates: Properties | None = None
    removals: list[str] | None = None


class CreateTableRequest(RequestModel):
    """Create a table, or stage it."""

    name: str
    table_schema: Schema = Field(alias="schema")
    location: str | None = None
    partition_spec: dict[str, Any] | None = None
    write_order: dict[str, Any] | None = None
    stage_create: bool | None = None
    properties: Properties | None = None


class RegisterTableRequest(RequestModel):
    """Register an existing table under a name."""

    name: str
    metadata_location: str
    overwrite: bool | None = None


class RegisterViewRequest(RequestModel):
    """Register an existing view under a name."""

    name: str
    metadata_location: str


class Identifier(RequestModel):
    """Name of a table or view, and its namespace."""

    namespace: list[str]
    name: str


class RenameTableRequest(RequestModel):
    """Rename a table or a view."""

    source: Identifier
    destination: Identifier


class Requirement(RequestModel):
    """A requirement of a commit."""

    type: str


class Update(RequestModel):
    """One update of a commit."""

    action: str


class CommitTableRequest(RequestModel):
    """Commit changes to one table."""

    identifier: Identifier | None = None
    requirements: list[Requirement] | None = None
    updates: list[Update] | None = None


class CommitViewRequest(CommitTableRequest):
    """Commit changes to one view."""


class TableChange(CommitTableRequest):
    """The changes to one table in a transaction over several."""

    identifier: Identifier


class CommitTransactionRequest(RequestModel):
    """Commit changes to several tables, all or none."""

    table_changes: list[TableChange]


class ViewVersion(RequestModel):
    """One version of a view's definition."""

    version_id: int
    timestamp_ms: int
    schema_id: int
    summary: Properties
    representations: list[dict[str, Any]]
    default_namespace: list[str]
    default_catalog: str | None = None


class CreateViewRequest(RequestModel):
    """Create a view."""

    name: str
    view_schema: Schema = Field(alias="schema")
    view_version: ViewVersion
    properties: Properties | None = None
    location: str | None = None


class ReportMetricsRequest(RequestModel):
    """Report metrics of a scan or a commit."""

    report_type: str
    table_name: str | None = None


class PlanTableScanRequest(RequestModel):
    """Plan a scan: which rows and columns, of which snapshot."""

    snapshot_id: int | None = None
    select: list[str] | None = None
    filter: dict[str, Any] | bool | None = None
    min_rows_requested: int | None = None
    case_sensitive: bool | None = None
    use_snapshot_schema: bool | None = None
    start_snapshot_id: int | None = None
    end_snapshot_id: int | None = None
    stats_fields: list[str] | None = None


class FetchScanTasksRequest(RequestModel):
    """Fetch the tasks that a plan task stands for."""

    plan_task: str


def format_validation_error(error: ValidationError) -> str:
    """Return what is wrong with a request in one sentence, with the names of fields but not their values."""
    faults = error.errors(include_url=False, include_context=False, include_input=False)
    details = "; ".join(f"{_format_path(fault['loc'])}: {fault['msg'].lower()}" for fault in faults[:3])
    more = f"; and {len(faults) - 3} more" if len(faults) > 3 else ""
    return f"Cannot parse {error.title}: {details}{more}"


def _format_path(path: tuple[int | str, ...]) -> str:
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text or "the body"
