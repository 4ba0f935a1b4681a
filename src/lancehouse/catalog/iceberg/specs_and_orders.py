"""Parse and check partition specs and sort orders of Iceberg tables in JSON."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from lancehouse.catalog.errors import IllegalArgumentError, ValidationError
from lancehouse.catalog.iceberg import json_values
from lancehouse.catalog.iceberg.json_values import Json
from lancehouse.catalog.iceberg.schemas import IcebergColumn

Columns = Mapping[int, IcebergColumn]
"""Columns of a schema by field id."""

FIRST_FIELD_ID = 1000
"""First id of partition fields."""

UNSORTED: Json = {"order-id": 0, "fields": []}
"""The empty sort order."""

_WITH_NUMBER = re.compile(r"(bucket|truncate)\[\s*(\d{1,10})\s*\]")
_DATES = ("date",)
_TIMESTAMPS = ("timestamp", "timestamptz", "timestamp_ns", "timestamptz_ns")
_NOT_IDENTITY = ("geometry", "geography", "variant")

_SOURCES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        **dict.fromkeys(("year", "years", "month", "months", "day", "days"), (*_DATES, *_TIMESTAMPS)),
        **dict.fromkeys(("hour", "hours"), _TIMESTAMPS),
        "bucket": ("int", "long", "decimal", "date", "time", *_TIMESTAMPS, "string", "uuid", "fixed", "binary"),
        "truncate": ("int", "long", "decimal", "string", "binary"),
    }
)
"""Types that each transform accepts.

Identity accepts nearly all and void all; unknown transforms are left to the clients.
"""


def parse_spec(value: object, where: str = "partition spec") -> Json:
    """Parse a client's partition spec; a field without an id gets None."""
    json = json_values.require_object(value, where)
    fields = [_parse_spec_field(item, where) for item in json_values.items(json, "fields", where)]
    missing = [field for field in fields if field["field-id"] is None]
    if missing and len(missing) < len(fields):
        raise IllegalArgumentError(
            f"Cannot parse spec with missing field IDs: {len(missing)} missing of {len(fields)} fields."
        )
    ids = [field["field-id"] for field in fields if field["field-id"] is not None]
    if len(set(ids)) < len(ids):
        raise IllegalArgumentError(f"{where}: two fields have the same field-id")
    return {"spec-id": json_values.optional_integer(json, "spec-id", where) or 0, "fields": fields}


def parse_order(value: object, where: str = "sort order") -> Json:
    """Parse a client's sort order."""
    json = json_values.require_object(value, where)
    fields = [_parse_sort_field(item, where) for item in json_values.items(json, "fields", where)]
    order_id = json_values.optional_integer(json, "order-id", where)
    if not fields and order_id not in (None, 0):
        raise IllegalArgumentError("Unsorted order ID must be 0")
    if fields and order_id == 0:
        raise IllegalArgumentError("Sort order ID 0 is reserved for unsorted order")
    return {"order-id": order_id or 0, "fields": fields}


def is_same_spec(one: Json, other: Json) -> bool:
    """Return whether two specs partition alike, with the same field names."""
    return _comparable_fields(one) == _comparable_fields(other)


def last_field_id(spec: Json) -> int:
    """Return the highest id of a partition field, or 999 if there is none."""
    return max((field["field-id"] for field in spec["fields"]), default=FIRST_FIELD_ID - 1)


def is_sequential(spec: Json) -> bool:
    """Return whether the fields have consecutive ids from 1000, the only ones that format version 1 can express."""
    return all(field["field-id"] == FIRST_FIELD_ID + index for index, field in enumerate(spec["fields"]))


def assign_field_ids(spec: Json, specs: list[Json], last: int) -> Json:
    """Return the spec with an id for each field: that of the same field in an earlier spec, or the next free one."""
    known_ids = {
        (field["source-id"], field["transform"]): field["field-id"] for old in specs for field in old["fields"]
    }
    fields = []
    for field in spec["fields"]:
        field_id = field["field-id"]
        if field_id is None:
            field_id = known_ids.get((field["source-id"], field["transform"]))
        if field_id is None:
            field_id = last = max(last, FIRST_FIELD_ID - 1) + 1
        fields.append({**field, "field-id": field_id})
    return {**spec, "fields": fields}


def remap_sources(layout: Json, ids: Mapping[int, int], kind: str) -> Json:
    """Return a spec or sort order for a schema whose columns got new ids.

    Raises:
        ValidationError: the schema lacks a source column.
    """
    for field in layout["fields"]:
        if field["source-id"] not in ids:
            raise ValidationError(f"Cannot find source column for {kind} field: {_format_field(field)}")
    return {**layout, "fields": [{**field, "source-id": ids[field["source-id"]]} for field in layout["fields"]]}


def check_partition_names(spec: Json, columns: Columns) -> None:
    """Refuse partition field names that are empty, used twice, or the name of another column."""
    names = {column.name: column.id for column in columns.values()}
    seen: set[str] = set()
    for field in spec["fields"]:
        name = field["name"]
        if not name:
            raise IllegalArgumentError("Cannot use empty partition name: ")
        if name in seen:
            raise IllegalArgumentError(f"Cannot use partition name more than once: {name}")
        if field["source-id"] in columns and names.get(name, field["source-id"]) != field["source-id"]:
            raise IllegalArgumentError(
                f"Cannot create identity partition sourced from different field in schema: {name}"
            )
        seen.add(name)


def check_spec(spec: Json, columns: Columns) -> None:
    """Refuse a spec whose source columns do not exist or do not fit their transforms."""
    for field in spec["fields"]:
        if field["transform"] != "void":
            column = _get_source(field, columns, "partition", "partition by")
            if any(kind != "struct" for kind, _ in column.parents):
                raise ValidationError(f"Invalid partition field parent: {column.name} lies in a list or map")


def check_order(order: Json, columns: Columns) -> None:
    """Refuse a sort order whose source columns do not exist or do not fit their transforms."""
    for field in order["fields"]:
        _get_source(field, columns, "sort", "sort by")


def _get_source(field: Json, columns: Columns, kind: str, verb: str) -> IcebergColumn:
    column = columns.get(field["source-id"])
    if column is None:
        raise ValidationError(f"Cannot find source column for {kind} field: {_format_field(field)}")
    if not column.is_primitive:
        raise ValidationError(f"Cannot {verb} non-primitive source field: {column.name}")
    if not _can_transform(field["transform"], column.type):
        raise ValidationError(f"Invalid source type {column.type} for transform: {field['transform']}")
    return column


def _can_transform(transform: str, type_: str) -> bool:
    base = re.split(r"[\[(]", type_)[0]
    if transform == "identity":
        return base not in _NOT_IDENTITY
    sources = _SOURCES.get(transform.partition("[")[0])
    return sources is None or base in sources


def _format_field(field: Json) -> str:
    name = f"{field['field-id']}: {json_values.format_value(field['name'])}: " if "name" in field else ""
    return f"{name}{field['transform']}({field['source-id']})"


def _comparable_fields(spec: Json) -> list[Any]:
    return [(field["source-id"], field["transform"], field["name"]) for field in spec["fields"]]


def _parse_spec_field(value: object, where: str) -> Json:
    json = json_values.require_object(value, f"each field of {where}")
    where = f"field of {where}"
    return {
        "source-id": json_values.integer(json, "source-id", where),
        "field-id": json_values.optional_integer(json, "field-id", where),
        "transform": _parse_transform(json, where),
        "name": json_values.text(json, "name", where),
    }


def _parse_sort_field(value: object, where: str) -> Json:
    json = json_values.require_object(value, f"each field of {where}")
    where = f"field of {where}"
    return {
        "transform": _parse_transform(json, where),
        "source-id": json_values.integer(json, "source-id", where),
        "direction": _parse_choice(json, "direction", ("asc", "desc"), where),
        "null-order": _parse_choice(json, "null-order", ("nulls-first", "nulls-last"), where),
    }


def _parse_choice(json: Json, key: str, allowed: tuple[str, ...], where: str) -> str:
    value = json_values.text(json, key, where).lower()
    if value not in allowed:
        raise IllegalArgumentError(
            f"{where}: '{key}' must be {' or '.join(allowed)}, got {json_values.format_value(value)}"
        )
    return value


def _parse_transform(json: Json, where: str) -> str:
    value = json_values.text(json, "transform", where)
    name = value.strip().lower()
    if match := _WITH_NUMBER.fullmatch(name):
        number = int(match[2])
        if not 0 < number < 1 << 31:
            raise IllegalArgumentError(f"Invalid transform: {json_values.format_value(value)} (the number must be > 0)")
        return f"{match[1]}[{number}]"
    if name.startswith(("bucket", "truncate")) or not name:
        raise IllegalArgumentError(
            f"{where}: cannot parse transform {json_values.format_value(value)}; write bucket[16] or truncate[4]"
        )
    return name if name in _SOURCES or name in ("identity", "void") else value
