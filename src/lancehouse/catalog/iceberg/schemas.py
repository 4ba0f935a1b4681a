"""Parse and check schemas, partition specs and sort orders of Iceberg tables, in JSON."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal, InvalidOperation
from itertools import count
from types import MappingProxyType
from typing import Any

from lance_namespace.errors import InvalidInputError

from lancehouse.catalog.errors import IllegalArgumentError, ValidationError
from lancehouse.catalog.iceberg import json_values
from lancehouse.catalog.iceberg.json_values import Json, format_value

_HEX = re.compile(r"([0-9a-fA-F]{2})*")
_DATE = r"\d{4}-\d\d-\d\d"
_TIME = r"\d\d:\d\d(:\d\d(\.\d{1,9})?)?"


def check_default(value: object, type_: object) -> object:
    """Return the value in the form that every reader accepts.

    Raises:
        IllegalArgumentError: it is not a value of this type, or the type cannot have a default.
    """
    name = type_ if isinstance(type_, str) else "nested"
    check = _CHECKS.get(re.split(r"[\[(]", name)[0])
    default = check(value, name) if check is not None else None
    if default is not None:
        return default
    raise IllegalArgumentError(f"Cannot parse default as a {name} value: {format_value(value)}")


def _integer_check(bits: int) -> Callable[[object, str], object]:
    def check(value: object, _: str) -> object:
        if not isinstance(value, int) or isinstance(value, bool):
            return None
        return value if -(1 << (bits - 1)) <= value < 1 << (bits - 1) else None

    return check


def _check_real(value: object, _: str) -> object:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) < 1 << 1023 else None  # readers recognize a float by its decimal point


def _pattern_check(pattern: str, parse: Callable[[str], object]) -> Callable[[object, str], object]:
    regex = re.compile(pattern)

    def check(value: object, _: str) -> object:
        if not isinstance(value, str) or not regex.fullmatch(value):
            return None
        try:
            parse(re.sub(r"(\.\d{6})\d+", r"\1", value))
        except ValueError:
            return None
        return value

    return check


def _check_decimal(value: object, type_: str) -> object:
    precision, scale = (int(number) for number in re.findall(r"\d+", type_))
    try:
        number = Decimal(value) if isinstance(value, str) else None
    except InvalidOperation:
        return None
    if number is None or not number.is_finite():
        return None
    digits = number.as_tuple()
    return value if digits.exponent == -scale and len(digits.digits) <= precision else None


def _check_hex(value: object, type_: str) -> object:
    if not isinstance(value, str) or not _HEX.fullmatch(value):
        return None
    length = re.search(r"\d+", type_)
    return value if length is None or len(value) == 2 * int(length[0]) else None


_timestamp = _pattern_check(f"{_DATE}T{_TIME}", datetime.fromisoformat)
_timestamptz = _pattern_check(rf"{_DATE}T{_TIME}(\+00:00|Z)", datetime.fromisoformat)

_CHECKS: Mapping[str, Callable[[object, str], object]] = MappingProxyType(
    {
        "boolean": lambda value, _: value if isinstance(value, bool) else None,
        "int": _integer_check(32),
        "long": _integer_check(64),
        "float": _check_real,
        "double": _check_real,
        "decimal": _check_decimal,
        "string": lambda value, _: value if isinstance(value, str) else None,
        "uuid": lambda value, _: value if isinstance(value, str) and json_values.UUID.fullmatch(value) else None,
        "date": _pattern_check(_DATE, date.fromisoformat),
        "time": _pattern_check(_TIME, time.fromisoformat),
        "timestamp": _timestamp,
        "timestamp_ns": _timestamp,
        "timestamptz": _timestamptz,
        "timestamptz_ns": _timestamptz,
        "fixed": _check_hex,
        "binary": _check_hex,
    }
)


Parents = tuple[tuple[str, bool], ...]
"""For each enclosing field, outermost first: its kind, and whether it is required."""

MAX_DEPTH = 64
"""Most levels of nesting."""

_PRIMITIVES = frozenset(
    {
        *("boolean", "int", "long", "float", "double", "string", "uuid", "binary", "date", "time"),
        *("timestamp", "timestamptz", "timestamp_ns", "timestamptz_ns", "unknown", "variant", "geometry", "geography"),
    }
)
_DECIMAL = re.compile(r"decimal\(\s*(\d{1,3})\s*,\s*(\d{1,3})\s*\)")
_FIXED = re.compile(r"fixed\[\s*(\d{1,9})\s*\]")
_SPATIAL = re.compile(r"geometry\([^,()]+\)|geography\([^,()]+(,[^,()]+)?\)", re.IGNORECASE)
_SINCE_V3 = re.compile(r"timestamp(tz)?_ns|variant|unknown|geometry.*|geography.*")
"""Types that format version 3 introduced."""
_MAX_PRECISION = 38


@dataclass(frozen=True, slots=True)
class IcebergColumn:
    """A field of a schema, at any depth."""

    id: int
    name: str
    """Full name, with the names of all enclosing fields."""
    type: Any
    required: bool
    default: object
    parents: Parents
    """The enclosing fields, outermost first."""

    @property
    def is_primitive(self) -> bool:
        """Whether the type is primitive; variant does not count as such."""
        return isinstance(self.type, str) and self.type != "variant"


def parse_schema(value: object, where: str = "schema") -> Json:
    """Parse a client's schema into the canonical form.

    Raises:
        InvalidInputError: it is not a schema, or it contradicts itself.
    """
    json = json_values.require_object(value, where)
    if json.get("type", "struct") != "struct":
        raise IllegalArgumentError(f"Cannot create schema, not a struct type: {json_values.format_value(json['type'])}")
    schema: Json = {
        "type": "struct",
        "schema-id": json_values.optional_integer(json, "schema-id", where) or 0,
        "fields": _parse_fields(json, where, 0),
    }
    identifiers = [] if json.get("identifier-field-ids") is None else json["identifier-field-ids"]
    by_id = columns_of(schema)
    if keys := sorted(set(json_values.integers({"ids": identifiers}, "ids", f"{where}: identifier-field-ids"))):
        for key in keys:
            _check_identifier(key, by_id)
        schema["identifier-field-ids"] = keys
    return schema


def columns_of(schema: Json) -> dict[int, IcebergColumn]:
    """Return every field, at any depth, by its id.

    Raises:
        ValidationError: an id or a name occurs twice.
    """
    by_id: dict[int, IcebergColumn] = {}
    names: dict[str, int] = {}
    for column in _walk_struct(schema, "", ()):
        if column.id in by_id:
            raise ValidationError(f"Invalid schema: multiple fields for id {column.id}")
        if column.name in names:
            raise ValidationError(
                f"Invalid schema: multiple fields for name {json_values.format_value(column.name)}: "
                f"{names[column.name]} and {column.id}"
            )
        by_id[column.id] = column
        names[column.name] = column.id
    return by_id


def highest_id(schema: Json) -> int:
    """Return the highest field id, or 0 if there are no fields."""
    return max((column.id for column in _walk_struct(schema, "", ())), default=0)


def is_same(one: Json, other: Json) -> bool:
    """Return whether two schemas differ in nothing but their schema ids."""
    return {**one, "schema-id": 0} == {**other, "schema-id": 0}


def check_version(schema: Json, version: int) -> None:
    """Refuse types and defaults that this format version does not have.

    Raises:
        IllegalArgumentError: there are some; the message names the columns.
    """
    problems = []
    for column in columns_of(schema).values() if version < 3 else ():
        if isinstance(column.type, str) and _SINCE_V3.fullmatch(column.type):
            problems.append(f"Invalid type for {column.name}: {column.type} is not supported until v3")
        if column.default is not None:
            problems.append(
                f"Invalid initial default for {column.name}: "
                f"non-null default ({json_values.format_value(column.default)}) is not supported until v3"
            )
    if problems:
        raise IllegalArgumentError(f"Invalid schema for v{version}:\n- " + "\n- ".join(problems))


def assign_fresh_ids(schema: Json) -> tuple[Json, dict[int, int]]:
    """Return the schema with ids assigned from 1 as Iceberg does it, and the new id for each old one."""
    new_ids: dict[int, int] = {}
    fields = _renumber(schema, new_ids, count(1))["fields"]
    identifiers = [new_ids[key] for key in schema.get("identifier-field-ids", [])]
    extra: Json = {"identifier-field-ids": sorted(identifiers)} if identifiers else {}
    return {"type": "struct", "schema-id": 0, "fields": fields, **extra}, new_ids


def _parse_fields(struct: Json, where: str, depth: int) -> list[Json]:
    if depth > MAX_DEPTH:
        raise InvalidInputError(f"{where} is nested deeper than {MAX_DEPTH} levels")
    return [
        _parse_field(json_values.require_object(item, f"each field of {where}"), depth)
        for item in json_values.items(struct, "fields", where)
    ]


def _parse_field(json: Json, depth: int) -> Json:
    where = f"field {json_values.format_value(json_values.text(json, 'name', 'field'))}"
    field: Json = {
        "id": json_values.integer(json, "id", where),
        "name": json["name"],
        "required": json_values.flag(json, "required", where),
        "type": _parse_type(json.get("type"), where, depth + 1),
    }
    if field["required"] and field["type"] == "unknown":
        raise IllegalArgumentError(f"Cannot create required field with unknown type: {json['name']}")
    if (doc := json_values.optional_text(json, "doc", where)) is not None:
        field["doc"] = doc
    for key in ("initial-default", "write-default"):
        if json.get(key) is not None:
            field[key] = check_default(json[key], field["type"])
    return field


def _parse_type(json: object, where: str, depth: int) -> Any:
    if isinstance(json, str):
        return _parse_primitive(json, where)
    type_ = json_values.require_object(json, f"{where}: 'type'")
    if depth > MAX_DEPTH:
        raise InvalidInputError(f"{where} is nested deeper than {MAX_DEPTH} levels")
    match type_.get("type"):
        case "struct":
            return {"type": "struct", "fields": _parse_fields(type_, where, depth)}
        case "list":
            return {
                "type": "list",
                "element-id": json_values.integer(type_, "element-id", where),
                "element": _parse_type(type_.get("element"), where, depth + 1),
                "element-required": json_values.flag(type_, "element-required", where),
            }
        case "map":
            return {
                "type": "map",
                "key-id": json_values.integer(type_, "key-id", where),
                "key": _parse_type(type_.get("key"), where, depth + 1),
                "value-id": json_values.integer(type_, "value-id", where),
                "value": _parse_type(type_.get("value"), where, depth + 1),
                "value-required": json_values.flag(type_, "value-required", where),
            }
        case other:
            raise IllegalArgumentError(f"Cannot parse type of {where}: {json_values.format_value(other)}")


def _parse_primitive(json: str, where: str) -> str:
    name = json.strip()
    if name.lower() in _PRIMITIVES:
        return name.lower()
    if match := _DECIMAL.fullmatch(name.lower()):
        precision, scale = int(match[1]), int(match[2])
        if not 1 <= precision <= _MAX_PRECISION or scale > precision:
            raise IllegalArgumentError(
                f"{where}: {json_values.format_value(json)}: precision must be 1 to 38, and scale no more than it"
            )
        return f"decimal({precision}, {scale})"
    if match := _FIXED.fullmatch(name.lower()):
        return f"fixed[{int(match[1])}]"
    if _SPATIAL.fullmatch(name):
        return name[:9].lower() + name[9:]
    raise IllegalArgumentError(
        f"Cannot parse type string of {where} to primitive type: {json_values.format_value(json)}"
    )


def _walk_struct(struct: Json, prefix: str, parents: Parents) -> Iterator[IcebergColumn]:
    for field in struct["fields"]:
        default = field.get("initial-default")
        yield from _walk_type(field["id"], prefix + field["name"], field["type"], field["required"], default, parents)


def _walk_type(
    id: int, name: str, type_: Any, required: bool, default: object, parents: Parents
) -> Iterator[IcebergColumn]:
    yield IcebergColumn(id, name, type_, required, default, parents)
    if isinstance(type_, str):
        return
    inner = (*parents, (type_["type"], required))
    if type_["type"] == "struct":
        yield from _walk_struct(type_, f"{name}.", inner)
    elif type_["type"] == "list":
        yield from _walk_type(
            type_["element-id"], f"{name}.element", type_["element"], type_["element-required"], None, inner
        )
    else:
        yield from _walk_type(type_["key-id"], f"{name}.key", type_["key"], True, None, inner)
        yield from _walk_type(type_["value-id"], f"{name}.value", type_["value"], type_["value-required"], None, inner)


def _check_identifier(key: int, columns_by_id: dict[int, IcebergColumn]) -> None:
    column = columns_by_id.get(key)
    if column is None:
        raise IllegalArgumentError(f"Cannot add fieldId {key} as an identifier field: field does not exist")
    reason = None
    if not column.is_primitive:
        reason = "not a primitive type field"
    elif not column.required:
        reason = "not a required field"
    elif column.type in ("float", "double"):
        reason = "must not be float or double field"
    elif any(kind != "struct" for kind, _ in column.parents):
        reason = "must not be nested in a list or map"
    elif not all(required for _, required in column.parents):
        reason = "must not be nested in an optional field"
    if reason:
        raise IllegalArgumentError(f"Cannot add field {column.name} as an identifier field: {reason}")


def _renumber(type_: Any, new: dict[int, int], ids: Iterator[int]) -> Any:
    if isinstance(type_, str):
        return type_
    if type_["type"] == "struct":
        # Iceberg numbers all fields of a struct before those nested in them.
        for field in type_["fields"]:
            new[field["id"]] = next(ids)
        fields = [
            {**field, "id": new[field["id"]], "type": _renumber(field["type"], new, ids)} for field in type_["fields"]
        ]
        return {**type_, "fields": fields}
    parts = ("element",) if type_["type"] == "list" else ("key", "value")
    for name in parts:
        new[type_[f"{name}-id"]] = next(ids)
    changes: Json = {f"{name}-id": new[type_[f"{name}-id"]] for name in parts}
    changes |= {name: _renumber(type_[name], new, ids) for name in parts}
    return {**type_, **changes}


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
    partition_names: set[str] = set()
    for field in spec["fields"]:
        name = field["name"]
        if not name:
            raise IllegalArgumentError("Cannot use empty partition name: ")
        if name in partition_names:
            raise IllegalArgumentError(f"Cannot use partition name more than once: {name}")
        if field["source-id"] in columns and names.get(name, field["source-id"]) != field["source-id"]:
            raise IllegalArgumentError(
                f"Cannot create identity partition sourced from different field in schema: {name}"
            )
        partition_names.add(name)


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
