"""Parse PlanTableScan requests; build plans, scan tasks and plan task tokens."""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self
from uuid import uuid4

import orjson
from lance_namespace.errors import InvalidInputError
from pyiceberg.schema import Schema

from lancehouse.catalog.errors import PlanTaskNotFoundError
from lancehouse.catalog.iceberg.json_values import flag, optional_integer, require_object, texts
from lancehouse.catalog.scans.expressions import (
    MAX_DEPTH,
    Filter,
    balance,
    find_field,
    nesting_depth,
    parse_filter,
    unknown_column_error,
)

Json = dict[str, Any]

METADATA_COLUMNS = frozenset(
    {"_file", "_pos", "_deleted", "_spec_id", "_partition", "_row_id", "_last_updated_sequence_number"}
)
"""Columns that Iceberg's readers compute themselves."""

TOKEN_BYTES = 16 << 20
"""Most bytes of a decompressed plan task; ours are far smaller."""

_WHERE = "scan"
_KEYS = (
    *("snapshot-id", "start-snapshot-id", "end-snapshot-id", "select", "stats-fields", "filter"),
    *("case-sensitive", "use-snapshot-schema", "min-rows-requested"),
)


@dataclass(frozen=True)
class ScanRequest:
    """A PlanTableScan request, checked as far as possible without the table."""

    json: Json
    """The known keys of the request, with the filter rebalanced so that it can be serialized again."""
    snapshot_id: int | None
    start_id: int | None
    end_id: int | None
    select: Sequence[str] | None
    stats_fields: Sequence[str]
    case_sensitive: bool
    use_snapshot_schema: bool

    @classmethod
    def from_json(cls, json: Any) -> Self:
        """Parse a request.

        Raises:
            InvalidInputError: a value has the wrong type, snapshots are given in two ways, or the filter is too deep.
        """
        body = require_object(json, _WHERE)
        fields = {key: body[key] for key in _KEYS if key in body}
        if "filter" in fields:
            fields["filter"] = balance(fields["filter"])
        request = cls(
            fields,
            optional_integer(fields, "snapshot-id", _WHERE, bits=64),
            optional_integer(fields, "start-snapshot-id", _WHERE, bits=64),
            optional_integer(fields, "end-snapshot-id", _WHERE, bits=64),
            None if fields.get("select") is None else texts(fields, "select", _WHERE),
            [] if fields.get("stats-fields") is None else texts(fields, "stats-fields", _WHERE),
            True if fields.get("case-sensitive") is None else flag(fields, "case-sensitive", _WHERE),
            False if fields.get("use-snapshot-schema") is None else flag(fields, "use-snapshot-schema", _WHERE),
        )
        optional_integer(fields, "min-rows-requested", _WHERE, bits=64)
        if request.snapshot_id is not None and request.is_incremental:
            raise InvalidInputError("scan: 'snapshot-id' goes with neither 'start-snapshot-id' nor 'end-snapshot-id'")
        if (request.start_id is None) != (request.end_id is None):
            raise InvalidInputError("scan: an incremental scan needs both 'start-snapshot-id' and 'end-snapshot-id'")
        return request

    @cached_property
    def is_incremental(self) -> bool:
        """Whether only rows are requested that were appended between two snapshots."""
        return self.start_id is not None or self.end_id is not None

    def parse_filter(self, schema: Schema) -> Filter:
        """Return the filter, whose names refer to `schema`.

        Raises:
            InvalidInputError: it is not a filter, or names a column that does not exist.
        """
        return parse_filter(self.json.get("filter"), schema, case_sensitive=self.case_sensitive)

    def selected_ids(self, *schemas: Schema) -> set[int] | None:
        """Return the ids of the selected fields, each looked up in the first schema that has it; None for all.

        Raises:
            InvalidInputError: no schema has such a column.
        """
        return None if self.select is None else set(self._field_ids("select", self.select, schemas))

    def stats_field_ids(self, *schemas: Schema) -> set[int]:
        """Return the ids of fields whose statistics are requested.

        Raises:
            InvalidInputError: no schema has such a column.
        """
        return set(self._field_ids("stats-fields", self.stats_fields, schemas))

    def _field_ids(self, where: str, names: Sequence[str], schemas: Sequence[Schema]) -> list[int]:
        ids = []
        for name in names:
            matches = (find_field(schema, name, case_sensitive=self.case_sensitive) for schema in schemas)
            field = next((field for field in matches if field is not None), None)
            if field is not None:
                ids.append(field.field_id)
            elif name.split(".")[0] not in METADATA_COLUMNS and name != "*":
                raise unknown_column_error(where, name, schemas[0])
        return ids


def completed_plan(tasks: Json) -> Json:
    """Return a completed plan. Its id has no meaning, but the specification requires one."""
    return {"status": "completed", "plan-id": str(uuid4()), **tasks}


def scan_tasks(files: Sequence[Json] = (), deletes: Sequence[Json] = (), plan_tasks: Sequence[str] = ()) -> Json:
    """Return the JSON of scan tasks, all or a part of a plan's."""
    tasks: Json = {"file-scan-tasks": list(files), "plan-tasks": list(plan_tasks)}
    return tasks | ({"delete-files": list(deletes)} if deletes else {})


def encode_task(content: Json) -> str:
    """Return a plan task that holds all that is needed to resolve it, so that any server can.

    It is not signed: it is checked against the table when it comes back, so a forged one gains nothing.
    """
    return base64.urlsafe_b64encode(zlib.compress(orjson.dumps(content))).decode()


def decode_task(text: object) -> Json:
    """Return the content of a plan task.

    Raises:
        PlanTaskNotFoundError: it is not a plan task of this server.
    """
    missing = PlanTaskNotFoundError("Plan task does not exist: plan the scan again")
    if not isinstance(text, str):
        raise missing
    try:
        unpacker = zlib.decompressobj()
        raw = unpacker.decompress(base64.urlsafe_b64decode(text.encode("ascii")), TOKEN_BYTES)
        content = orjson.loads(raw)
    except (ValueError, binascii.Error, zlib.error) as error:
        raise missing from error
    if not isinstance(content, dict) or nesting_depth(content) > MAX_DEPTH + 2:
        raise missing
    return content
