"""Check the requirements of a commit to an Iceberg table, with the messages of Iceberg's own library."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

from lance_namespace.errors import ConcurrentModificationError

from lancehouse.catalog.errors import IllegalArgumentError
from lancehouse.catalog.iceberg import json_values
from lancehouse.catalog.iceberg.json_values import Json

CREATE = "assert-create"


def check_requirements(md: Json | None, requirements: object) -> None:
    """Check the requirements against the table's metadata, or against None if there is no table.

    Raises:
        ConcurrentModificationError: one does not hold.
        InvalidInputError: one is unknown, or there is no table and one is not `assert-create`.
    """
    for item in json_values.parse_list(requirements, "requirements", lambda value: value):
        check_one, requirement = json_values.get_handler(_CHECKS, item, "type", "requirement")
        if md is not None:
            check_one(md, requirement)
        elif requirement["type"] != CREATE:
            raise IllegalArgumentError(f"Invalid create requirements: {requirement['type']}")


def is_create(requirements: object) -> bool:
    """Return whether the commit is to create the table."""
    items = json_values.parse_list(
        requirements, "requirements", lambda value: json_values.require_object(value, "each requirement")
    )
    return any(item.get("type") == CREATE for item in items)


def _check_create(_md: Json, _given: Json) -> None:
    raise ConcurrentModificationError("Requirement failed: table already exists")


def _check_uuid(md: Json, requirement: Json) -> None:
    expected = json_values.text(requirement, "uuid", "assert-table-uuid")
    if expected.lower() != str(md["table-uuid"]).lower():
        raise ConcurrentModificationError(
            f"Requirement failed: UUID does not match: expected {md['table-uuid']} != "
            f"{json_values.format_value(expected)}"
        )


def _check_ref(md: Json, requirement: Json) -> None:
    name = json_values.text(requirement, "ref", "assert-ref-snapshot-id")
    expected = json_values.optional_integer(requirement, "snapshot-id", "assert-ref-snapshot-id", bits=64)
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


def _check_number(key: str, name: str, words: str, md: Json, requirement: Json) -> None:
    expected = json_values.integer(requirement, name, f"assert-{name}")
    if expected != md[key]:
        raise ConcurrentModificationError(f"Requirement failed: {words} changed: expected id {expected} != {md[key]}")


_CHECKS: Mapping[str, Callable[[Json, Json], None]] = MappingProxyType(
    {
        CREATE: _check_create,
        "assert-table-uuid": _check_uuid,
        "assert-ref-snapshot-id": _check_ref,
        **{
            f"assert-{name}": partial(_check_number, key, name, words)
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
