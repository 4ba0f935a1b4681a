"""What a commit to an Iceberg table takes for granted, and the words in which clients learn that it no longer holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

from lance_namespace.errors import ConcurrentModificationError

from lancehouse.catalog.errors import IllegalArgumentError
from lancehouse.catalog.iceberg import shapes
from lancehouse.catalog.iceberg.shapes import Json

CREATE = "assert-create"


def check(md: Json | None, requirements: object) -> None:
    """Hold the requirements against the table's metadata; None where there is no table.

    Raises:
        ConcurrentModificationError: one does not hold.
        InvalidInputError: one is not known, or a new table is required and something of it too.
    """
    for item in shapes.each(requirements, "requirements", lambda value: value):
        hold, given = shapes.known(_HOLD, item, "type", "requirement")
        if md is not None:
            hold(md, given)
        elif given["type"] != CREATE:
            raise IllegalArgumentError(f"Invalid create requirements: {given['type']}")


def is_create(requirements: object) -> bool:
    """Whether a commit is to make the table."""
    found = shapes.each(requirements, "requirements", lambda value: shapes.mapping(value, "each requirement"))
    return any(item.get("type") == CREATE for item in found)


def _create(_md: Json, _given: Json) -> None:
    raise ConcurrentModificationError("Requirement failed: table already exists")


def _uuid(md: Json, given: Json) -> None:
    expected = shapes.text(given, "uuid", "assert-table-uuid")
    if expected.lower() != str(md["table-uuid"]).lower():
        raise ConcurrentModificationError(
            f"Requirement failed: UUID does not match: expected {md['table-uuid']} != {shapes.shown(expected)}"
        )


def _ref(md: Json, given: Json) -> None:
    name = shapes.text(given, "ref", "assert-ref-snapshot-id")
    expected = shapes.optional_integer(given, "snapshot-id", "assert-ref-snapshot-id", bits=64)
    ref = md["refs"].get(name)
    if ref is None:
        if expected is not None:
            raise ConcurrentModificationError(
                f"Requirement failed: branch or tag {name} is missing, expected {expected}"
            )
    elif expected is None:
        raise ConcurrentModificationError(f"Requirement failed: {ref['type']} {name} was created concurrently")
    elif expected != ref["snapshot-id"]:
        raise ConcurrentModificationError(
            f"Requirement failed: {ref['type']} {name} has changed: expected id {expected} != {ref['snapshot-id']}"
        )


def _number(key: str, name: str, words: str, md: Json, given: Json) -> None:
    expected = shapes.integer(given, name, f"assert-{name}")
    if expected != md[key]:
        raise ConcurrentModificationError(f"Requirement failed: {words} changed: expected id {expected} != {md[key]}")


_HOLD: Mapping[str, Callable[[Json, Json], None]] = MappingProxyType(
    {
        CREATE: _create,
        "assert-table-uuid": _uuid,
        "assert-ref-snapshot-id": _ref,
        **{
            f"assert-{name}": partial(_number, key, name, words)
            for key, name, words in (
                ("last-column-id", "last-assigned-field-id", "last assigned field id"),
                ("current-schema-id", "current-schema-id", "current schema"),
                ("last-partition-id", "last-assigned-partition-id", "last assigned partition id"),
                ("default-spec-id", "default-spec-id", "default partition spec"),
                ("default-sort-order-id", "default-sort-order-id", "default sort order"),
            )
        },
    }
)
