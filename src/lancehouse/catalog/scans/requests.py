"""What a client asks of a scan, and what it is told: Iceberg's PlanTableScanRequest, plans and tasks."""

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
from lancehouse.catalog.iceberg.shapes import flag, mapping, optional_integer, texts
from lancehouse.catalog.scans.expressions import MAX_DEPTH, Filter, balanced, depth, find, parse, unknown_column

Json = dict[str, Any]

METADATA_COLUMNS = frozenset(
    {"_file", "_pos", "_deleted", "_spec_id", "_partition", "_row_id", "_last_updated_sequence_number"}
)
"""What Iceberg's readers find out themselves."""

TOKEN_BYTES = 16 << 20
"""Of an unpacked token; ours are far smaller."""

_WHERE = "scan"
_KEYS = (
    *("snapshot-id", "start-snapshot-id", "end-snapshot-id", "select", "stats-fields", "filter"),
    *("case-sensitive", "use-snapshot-schema", "min-rows-requested"),
)


@dataclass(frozen=True)
class ScanRequest:
    """A request, checked as far as it can be without the table."""

    json: Json
    """What is known of it, with a filter that is not too deep to be written again."""
    snapshot_id: int | None
    start_id: int | None
    end_id: int | None
    select: Sequence[str] | None
    stats_fields: Sequence[str]
    case_sensitive: bool
    use_snapshot_schema: bool

    @classmethod
    def of(cls, json: Any) -> Self:
        """A request as it came.

        Raises:
            InvalidInputError: a value of the wrong type, two ways of naming snapshots at once, or too deep a filter.
        """
        asked = mapping(json, _WHERE)
        given = {key: asked[key] for key in _KEYS if key in asked}
        if "filter" in given:
            given["filter"] = balanced(given["filter"])
        made = cls(
            given,
            optional_integer(given, "snapshot-id", _WHERE, bits=64),
            optional_integer(given, "start-snapshot-id", _WHERE, bits=64),
            optional_integer(given, "end-snapshot-id", _WHERE, bits=64),
            None if given.get("select") is None else texts(given, "select", _WHERE),
            [] if given.get("stats-fields") is None else texts(given, "stats-fields", _WHERE),
            True if given.get("case-sensitive") is None else flag(given, "case-sensitive", _WHERE),
            False if given.get("use-snapshot-schema") is None else flag(given, "use-snapshot-schema", _WHERE),
        )
        optional_integer(given, "min-rows-requested", _WHERE, bits=64)
        if made.snapshot_id is not None and made.is_incremental:
            raise InvalidInputError("scan: 'snapshot-id' goes with neither 'start-snapshot-id' nor 'end-snapshot-id'")
        if (made.start_id is None) != (made.end_id is None):
            raise InvalidInputError("scan: an incremental scan needs both 'start-snapshot-id' and 'end-snapshot-id'")
        return made

    @cached_property
    def is_incremental(self) -> bool:
        """Whether only rows are wanted that were appended between two snapshots."""
        return self.start_id is not None or self.end_id is not None

    def filter(self, schema: Schema) -> Filter:
        """The filter, whose names are of `schema`.

        Raises:
            InvalidInputError: it is no filter, or names a column that is not there.
        """
        return parse(self.json.get("filter"), schema, case_sensitive=self.case_sensitive)

    def selected(self, *schemas: Schema) -> set[int] | None:
        """The ids of selected fields, named as in the first schema that has them; None for all.

        Raises:
            InvalidInputError: no schema has such a column.
        """
        return None if self.select is None else set(self._ids("select", self.select, schemas))

    def with_stats(self, *schemas: Schema) -> set[int]:
        """The ids of fields whose statistics are asked for.

        Raises:
            InvalidInputError: no schema has such a column.
        """
        return set(self._ids("stats-fields", self.stats_fields, schemas))

    def _ids(self, where: str, names: Sequence[str], schemas: Sequence[Schema]) -> list[int]:
        ids = []
        for name in names:
            found = (find(schema, name, case_sensitive=self.case_sensitive) for schema in schemas)
            field = next((field for field in found if field is not None), None)
            if field is not None:
                ids.append(field.field_id)
            elif name.split(".")[0] not in METADATA_COLUMNS and name != "*":
                raise unknown_column(where, name, schemas[0])
        return ids


def completed(tasks: Json) -> Json:
    """A plan. Nothing is held for it: its id is there because the specification wants one."""
    return {"status": "completed", "plan-id": str(uuid4()), **tasks}


def scan_tasks(files: Sequence[Json] = (), deletes: Sequence[Json] = (), plan_tasks: Sequence[str] = ()) -> Json:
    """The tasks of a plan, all of them or some."""
    found: Json = {"file-scan-tasks": list(files), "plan-tasks": list(plan_tasks)}
    return found | ({"delete-files": list(deletes)} if deletes else {})


def token(content: Json) -> str:
    """A plan task: all that is needed to do it, so that any server can. Whoever forges one gains nothing by it."""
    return base64.urlsafe_b64encode(zlib.compress(orjson.dumps(content))).decode()


def from_token(text: object) -> Json:
    """What a plan task holds.

    Raises:
        PlanTaskNotFoundError: no plan gave it out.
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
    if not isinstance(content, dict) or depth(content) > MAX_DEPTH + 2:
        raise missing
    return content
