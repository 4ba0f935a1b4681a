"""Iceberg's schemas in their JSON form: one form for each schema, so that equal ones are equal."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

from lance_namespace.errors import InvalidInputError

from lancehouse.catalog.errors import IllegalArgumentError, ValidationError
from lancehouse.catalog.iceberg import defaults as iceberg_defaults
from lancehouse.catalog.iceberg import shapes
from lancehouse.catalog.iceberg.shapes import Json

Parents = tuple[tuple[str, bool], ...]

MAX_DEPTH = 64

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
_MAX_PRECISION = 38


@dataclass(frozen=True, slots=True)
class Column:
    """A field at any depth."""

    id: int
    name: str
    """With the names of all fields above it."""
    type: Any
    required: bool
    default: object
    parents: Parents
    """The kinds of the fields it lies in, outermost first, and whether each is required."""

    @property
    def primitive(self) -> bool:
        return isinstance(self.type, str) and self.type != "variant"


def checked(value: object, where: str = "schema") -> Json:
    """A client's schema in its one form.

    Raises:
        InvalidInputError: no schema at all, or one that contradicts itself.
    """
    given = shapes.mapping(value, where)
    if given.get("type", "struct") != "struct":
        raise IllegalArgumentError(f"Cannot create schema, not a struct type: {shapes.shown(given['type'])}")
    schema: Json = {
        "type": "struct",
        "schema-id": shapes.optional_integer(given, "schema-id", where) or 0,
        "fields": _fields(given, where, 0),
    }
    identifiers = [] if given.get("identifier-field-ids") is None else given["identifier-field-ids"]
    found = columns(schema)
    if keys := sorted(set(shapes.integers({"ids": identifiers}, "ids", f"{where}: identifier-field-ids"))):
        for key in keys:
            _check_identifier(key, found)
        schema["identifier-field-ids"] = keys
    return schema


def columns(schema: Json) -> dict[int, Column]:
    """Every field by its id.

    Raises:
        ValidationError: an id or a name is given twice.
    """
    found: dict[int, Column] = {}
    names: dict[str, int] = {}
    for column in _walk(schema, "", ()):
        if column.id in found:
            raise ValidationError(f"Invalid schema: multiple fields for id {column.id}")
        if column.name in names:
            raise ValidationError(
                f"Invalid schema: multiple fields for name {shapes.shown(column.name)}: "
                f"{names[column.name]} and {column.id}"
            )
        found[column.id] = column
        names[column.name] = column.id
    return found


def highest_id(schema: Json) -> int:
    """The highest field id; 0 for no fields."""
    return max((column.id for column in _walk(schema, "", ())), default=0)


def is_same(one: Json, other: Json) -> bool:
    """Whether two schemas differ in nothing but their ids."""
    return {**one, "schema-id": 0} == {**other, "schema-id": 0}


def check_version(schema: Json, version: int) -> None:
    """Refuse what this version of the format does not have.

    Raises:
        IllegalArgumentError: it names the columns.
    """
    problems = []
    for column in columns(schema).values() if version < 3 else ():
        if isinstance(column.type, str) and _SINCE_V3.fullmatch(column.type):
            problems.append(f"Invalid type for {column.name}: {column.type} is not supported until v3")
        if column.default is not None:
            problems.append(
                f"Invalid initial default for {column.name}: "
                f"non-null default ({shapes.shown(column.default)}) is not supported until v3"
            )
    if problems:
        raise IllegalArgumentError(f"Invalid schema for v{version}:\n- " + "\n- ".join(problems))


def fresh(schema: Json) -> tuple[Json, dict[int, int]]:
    """The schema with ids counted from 1 as Iceberg does it, and the new id of each old one."""
    new: dict[int, int] = {}
    fields = _renumbered(schema, new, count(1))["fields"]
    identifiers = [new[key] for key in schema.get("identifier-field-ids", [])]
    extra: Json = {"identifier-field-ids": sorted(identifiers)} if identifiers else {}
    return {"type": "struct", "schema-id": 0, "fields": fields, **extra}, new


def _fields(struct: Json, where: str, depth: int) -> list[Json]:
    if depth > MAX_DEPTH:
        raise InvalidInputError(f"{where} is nested deeper than {MAX_DEPTH} levels")
    return [
        _field(shapes.mapping(item, f"each field of {where}"), depth) for item in shapes.items(struct, "fields", where)
    ]


def _field(given: Json, depth: int) -> Json:
    where = f"field {shapes.shown(shapes.text(given, 'name', 'field'))}"
    field: Json = {
        "id": shapes.integer(given, "id", where),
        "name": given["name"],
        "required": shapes.flag(given, "required", where),
        "type": _type(given.get("type"), where, depth + 1),
    }
    if field["required"] and field["type"] == "unknown":
        raise IllegalArgumentError(f"Cannot create required field with unknown type: {given['name']}")
    if (doc := shapes.optional_text(given, "doc", where)) is not None:
        field["doc"] = doc
    for key in ("initial-default", "write-default"):
        if given.get(key) is not None:
            field[key] = iceberg_defaults.checked(given[key], field["type"])
    return field


def _type(given: object, where: str, depth: int) -> Any:
    if isinstance(given, str):
        return _primitive(given, where)
    type_ = shapes.mapping(given, f"{where}: 'type'")
    if depth > MAX_DEPTH:
        raise InvalidInputError(f"{where} is nested deeper than {MAX_DEPTH} levels")
    match type_.get("type"):
        case "struct":
            return {"type": "struct", "fields": _fields(type_, where, depth)}
        case "list":
            return {
                "type": "list",
                "element-id": shapes.integer(type_, "element-id", where),
                "element": _type(type_.get("element"), where, depth + 1),
                "element-required": shapes.flag(type_, "element-required", where),
            }
        case "map":
            return {
                "type": "map",
                "key-id": shapes.integer(type_, "key-id", where),
                "key": _type(type_.get("key"), where, depth + 1),
                "value-id": shapes.integer(type_, "value-id", where),
                "value": _type(type_.get("value"), where, depth + 1),
                "value-required": shapes.flag(type_, "value-required", where),
            }
        case other:
            raise IllegalArgumentError(f"Cannot parse type of {where}: {shapes.shown(other)}")


def _primitive(given: str, where: str) -> str:
    name = given.strip()
    if name.lower() in _PRIMITIVES:
        return name.lower()
    if found := _DECIMAL.fullmatch(name.lower()):
        precision, scale = int(found[1]), int(found[2])
        if not 1 <= precision <= _MAX_PRECISION or scale > precision:
            raise IllegalArgumentError(
                f"{where}: {shapes.shown(given)}: precision must be 1 to 38, and scale no more than it"
            )
        return f"decimal({precision}, {scale})"
    if found := _FIXED.fullmatch(name.lower()):
        return f"fixed[{int(found[1])}]"
    if _SPATIAL.fullmatch(name):
        return name[:9].lower() + name[9:]
    raise IllegalArgumentError(f"Cannot parse type string of {where} to primitive type: {shapes.shown(given)}")


def _walk(struct: Json, prefix: str, parents: Parents) -> Iterator[Column]:
    for field in struct["fields"]:
        default = field.get("initial-default")
        yield from _below(field["id"], prefix + field["name"], field["type"], field["required"], default, parents)


def _below(id: int, name: str, type_: Any, required: bool, default: object, parents: Parents) -> Iterator[Column]:
    yield Column(id, name, type_, required, default, parents)
    if isinstance(type_, str):
        return
    inner = (*parents, (type_["type"], required))
    if type_["type"] == "struct":
        yield from _walk(type_, f"{name}.", inner)
    elif type_["type"] == "list":
        yield from _below(
            type_["element-id"], f"{name}.element", type_["element"], type_["element-required"], None, inner
        )
    else:
        yield from _below(type_["key-id"], f"{name}.key", type_["key"], True, None, inner)
        yield from _below(type_["value-id"], f"{name}.value", type_["value"], type_["value-required"], None, inner)


def _check_identifier(key: int, found: dict[int, Column]) -> None:
    column = found.get(key)
    if column is None:
        raise IllegalArgumentError(f"Cannot add fieldId {key} as an identifier field: field does not exist")
    reason = None
    if not column.primitive:
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


def _renumbered(type_: Any, new: dict[int, int], ids: Iterator[int]) -> Any:
    if isinstance(type_, str):
        return type_
    if type_["type"] == "struct":
        for field in type_["fields"]:
            new[field["id"]] = next(ids)
        fields = [
            {**field, "id": new[field["id"]], "type": _renumbered(field["type"], new, ids)} for field in type_["fields"]
        ]
        return {**type_, "fields": fields}
    parts = ("element",) if type_["type"] == "list" else ("key", "value")
    for name in parts:
        new[type_[f"{name}-id"]] = next(ids)
    changes: Json = {f"{name}-id": new[type_[f"{name}-id"]] for name in parts}
    changes |= {name: _renumbered(type_[name], new, ids) for name in parts}
    return {**type_, **changes}
