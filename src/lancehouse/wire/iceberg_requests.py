"""Iceberg REST: the shapes of requests, as a server checks them before it does anything.

Types are strict (a number is no string), unknown keys are let through, and what is `null` counts as left out, as
Iceberg's own parsers have it. What the parts mean is checked by whoever uses them.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError


class RequestModel(BaseModel):
    """JSON of a client, with kebab-case names."""

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
    """A column; its type is read with the rest of the schema."""

    id: int | None = None
    name: str
    type: str | dict[str, Any]
    required: bool | None = None
    doc: str | None = None


class Schema(RequestModel):
    """A struct of columns."""

    type: str | None = None
    fields: list[StructField]
    schema_id: int | None = None
    identifier_field_ids: list[int] | None = None


class CreateNamespaceRequest(RequestModel):
    """A namespace that is to be made."""

    namespace: list[str]
    properties: Properties | None = None


class UpdateNamespacePropertiesRequest(RequestModel):
    """Properties to set and to remove."""

    updates: Properties | None = None
    removals: list[str] | None = None


class CreateTableRequest(RequestModel):
    """A table that is to be made, or staged."""

    name: str
    table_schema: Schema = Field(alias="schema")
    location: str | None = None
    partition_spec: dict[str, Any] | None = None
    write_order: dict[str, Any] | None = None
    stage_create: bool | None = None
    properties: Properties | None = None


class RegisterTableRequest(RequestModel):
    """A table that is there already, and gets a name."""

    name: str
    metadata_location: str
    overwrite: bool | None = None


class RegisterViewRequest(RequestModel):
    """A view that is there already, and gets a name."""

    name: str
    metadata_location: str


class Identifier(RequestModel):
    """Name of a table or view and of its namespace."""

    namespace: list[str]
    name: str


class RenameTableRequest(RequestModel):
    """From one name to another; views too."""

    source: Identifier
    destination: Identifier


class Requirement(RequestModel):
    """What must hold for a commit."""

    type: str


class Update(RequestModel):
    """One change of a commit."""

    action: str


class CommitTableRequest(RequestModel):
    """Changes of one table."""

    identifier: Identifier | None = None
    requirements: list[Requirement] | None = None
    updates: list[Update] | None = None


class CommitViewRequest(CommitTableRequest):
    """Changes of one view."""


class TableChange(CommitTableRequest):
    """Changes of one table among several."""

    identifier: Identifier


class CommitTransactionRequest(RequestModel):
    """Changes of several tables, all or none."""

    table_changes: list[TableChange]


class ViewVersion(RequestModel):
    """What a view says."""

    version_id: int
    timestamp_ms: int
    schema_id: int
    summary: Properties
    representations: list[dict[str, Any]]
    default_namespace: list[str]
    default_catalog: str | None = None


class CreateViewRequest(RequestModel):
    """A view that is to be made."""

    name: str
    view_schema: Schema = Field(alias="schema")
    view_version: ViewVersion
    properties: Properties | None = None
    location: str | None = None


class ReportMetricsRequest(RequestModel):
    """How a scan or a commit went."""

    report_type: str
    table_name: str | None = None


class PlanTableScanRequest(RequestModel):
    """Which rows and columns of which version are wanted."""

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
    """More of a plan."""

    plan_task: str


def format_validation_error(error: ValidationError) -> str:
    """What is wrong with a request, in one sentence that names the fields and not their values."""
    faults = error.errors(include_url=False, include_context=False, include_input=False)
    details = "; ".join(f"{_format_path(fault['loc'])}: {fault['msg'].lower()}" for fault in faults[:3])
    more = f"; and {len(faults) - 3} more" if len(faults) > 3 else ""
    return f"Cannot parse {error.title}: {details}{more}"


def _format_path(path: tuple[int | str, ...]) -> str:
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text or "the body"
