"""Read and change the maintenance properties of namespaces and tables in any catalog."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

from lance_namespace import DescribeNamespaceRequest, DescribeTableRequest, LanceNamespace
from lance_namespace.errors import (
    InvalidInputError,
    LanceNamespaceError,
    NamespaceNotFoundError,
    TableNotFoundError,
    UnsupportedOperationError,
)

from lancehouse.clients.inspection import inspector_for
from lancehouse.identifiers import format_levels
from lancehouse.jobs import table_changes
from lancehouse.jobs.address import TableAddress
from lancehouse.lake.dataset import TableRef
from lancehouse.maintenance_policy import Level, check_properties, policy_properties


def read_namespace_levels(client: LanceNamespace, namespace: Sequence[str]) -> list[Level]:
    """Return the properties of a namespace and of all above it, the outermost first.

    Levels that are no namespaces, as the warehouse of an Iceberg catalog, are left out.
    """
    levels: list[Level] = []
    for depth in range(1, len(namespace) + 1):
        above = list(namespace[:depth])
        # A catalog refuses to describe its own name; what is missing or forbidden has no say.
        with suppress(InvalidInputError, UnsupportedOperationError, NamespaceNotFoundError):
            response = client.describe_namespace(DescribeNamespaceRequest(id=above))
            levels.append((f"namespace {format_levels(above)}", policy_properties(response.properties)))
    return levels


def read_table_level(client: LanceNamespace, id: Sequence[str]) -> Level | None:
    """Return the properties of a table, of its entry and of its data; those of the entry count. None: no such table."""
    try:
        entry = client.describe_table(DescribeTableRequest(id=list(id))).properties
    except (TableNotFoundError, NamespaceNotFoundError, InvalidInputError):
        return None
    try:
        config = TableRef.in_namespace(client, id).open().config()
    except LanceNamespaceError:  # it has no data, or none that can be read
        config = {}
    return f"table {format_levels(id)}", policy_properties(config) | policy_properties(entry)


def change_properties(
    client: LanceNamespace, id: Sequence[str], updates: Mapping[str, str], removals: Sequence[str]
) -> str:
    """Set and remove maintenance properties of a table or namespace; return which of both it is.

    Where a catalog cannot change the entry of a table, they are stored with its data.

    Raises:
        InvalidInputError: a property is unknown or its value is wrong.
        NamespaceNotFoundError: there is neither a table nor a namespace of this name.
        UnsupportedOperationError: the catalog cannot change properties of namespaces.
    """
    check_properties(updates)
    inspector = inspector_for(client)
    if read_table_level(client, id) is None:
        client.describe_namespace(DescribeNamespaceRequest(id=list(id)))
        inspector.update_namespace_properties(id, updates, removals)
        return "namespace"
    try:
        inspector.update_table_properties(id, updates, removals)
    except UnsupportedOperationError:
        address = TableAddress.parse(client, id)
        if updates:
            table_changes.set_properties(address, updates)
        if removals:
            table_changes.unset_properties(address, removals)
    return "table"
