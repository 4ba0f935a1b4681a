"""Open and write tables by one name: that of a catalog in `~/.lancehouse.yaml`, then the levels of the table's id."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import lance
from lance_namespace import LanceNamespace
from lance_namespace.errors import InvalidInputError

from lancehouse import named_catalogs
from lancehouse.connection import Connection
from lancehouse.identifiers import parse_levels
from lancehouse.lake.commits import creates_stable_row_ids, locate_table
from lancehouse.lake.dataset import TableRef, translate_refusals
from lancehouse.lake.errors import translate_errors


def open_table(name: str, **options: Any) -> lance.LanceDataset:
    """Open a table by its name, such as `prod.db.docs`.

    Args:
        name: the name of a catalog in `~/.lancehouse.yaml`, then the table's id there, without the catalog's `parent`.
        options: further arguments of `lance.dataset`: `version` takes a number or a tag, `asof` a time,
            `storage_options` what the catalog does not vend.

    Raises:
        InvalidInputError: there is no such catalog, or the name has no table.
        LanceNamespaceError: the table cannot be opened; the message says what to do, where that is known.
    """
    client, table_id = _find_client(name)
    with translate_errors(name):
        return lance.dataset(namespace_client=client, table_id=table_id, **options)


def write_table(rows: Any, name: str, mode: str = "create", **options: Any) -> lance.LanceDataset:
    """Write rows to a table by its name, and return the table.

    Args:
        rows: whatever `lance.write_dataset` takes: an Arrow table or reader, a DataFrame of pandas or polars, …
        name: as `open_table` takes it.
        mode: `create` (the table must not exist), `append` or `overwrite`.
        options: further arguments of `lance.write_dataset`.

    Raises:
        InvalidInputError: there is no such catalog, or the name has no table.
        LanceNamespaceError: the rows cannot be written; the message says what to do, where that is known.
    """
    client, table_id = _find_client(name)
    options.setdefault("enable_stable_row_ids", creates_stable_row_ids())
    table = TableRef.in_namespace(client, table_id)
    with translate_refusals(client, table_id), translate_errors(name, lambda: locate_table(table).storage_options):
        return lance.write_dataset(rows, namespace_client=client, table_id=table_id, mode=mode, **options)


def locate(name: str) -> dict[str, Any]:
    """Return the arguments by which Daft, lance-ray and Ray Data take a table: `daft.read_lance(**locate(name))`.

    Their workers connect to the catalog themselves. The properties hold what the file says, secrets too.

    Args:
        name: as `open_table` takes it.

    Returns:
        `namespace_impl`, a class path; `namespace_properties`; and `table_id`.

    Raises:
        InvalidInputError: there is no such catalog, or the name has no table.
    """
    connection, table_id = _parse_name(name)
    return {
        "namespace_impl": connection.impl,
        "namespace_properties": dict(connection.properties),
        "table_id": table_id,
    }


def _parse_name(name: str) -> tuple[Connection, list[str]]:
    match parse_levels(name):
        case (catalog, *levels) if levels:
            connection = named_catalogs.load().catalog(catalog)
            return connection, [*connection.parent, *levels]
    raise InvalidInputError(f"{name!r} names no table: it is the name of a catalog, then a table's id in it")


def _find_client(name: str) -> tuple[LanceNamespace, list[str]]:
    connection, table_id = _parse_name(name)
    return _connect(connection.impl, tuple(sorted(connection.properties.items()))), table_id


@lru_cache(32)
def _connect(impl: str, properties: tuple[tuple[str, str], ...]) -> LanceNamespace:
    """Return the client of a catalog; all tables share one, and with it the connections to its server."""
    return Connection(impl, dict(properties)).connect()
