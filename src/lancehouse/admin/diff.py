"""Comparison of the tables of two catalogs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from lance_namespace.errors import LanceNamespaceError, NamespaceNotFoundError, TableNotFoundError

from lancehouse.admin.copy import portable_properties
from lancehouse.admin.named_catalog import NamedCatalog
from lancehouse.catalog_walk import Id
from lancehouse.clients.inspection import InspectedTable
from lancehouse.identifiers import format_levels
from lancehouse.lake.dataset import TableRef
from lancehouse.lake.dataset_discovery import split_location
from lancehouse.lake.storage_layout import read_summary
from lancehouse.schema.display import field_to_json

FIELDS = ("location", "version", "rows", "schema", "properties")
ERROR = "error"
MAX_WORKERS = 8

ReportProgress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Difference:
    """A table that is not the same in both catalogs."""

    table: str
    is_in_first: bool
    is_in_second: bool
    fields: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    """The values of both sides, where they differ."""


@dataclass(frozen=True, slots=True)
class CatalogDiff:
    """Result of a comparison: how many tables are the same, and the others."""

    same: int
    different: list[Difference]


def compare(
    first: NamedCatalog,
    second: NamedCatalog,
    namespace: Id = (),
    ignore: Collection[str] = (),
    report_progress: ReportProgress = lambda _done, _total: None,
) -> CatalogDiff:
    """Compare the tables of two catalogs.

    Args:
        first: one of them.
        second: the other.
        namespace: compare only tables in it and below it; default: all.
        ignore: names among `FIELDS` that are not compared.
        report_progress: is called with the number of tables compared, and of all.

    Raises:
        NamespaceNotFoundError: neither catalog has the namespace.
    """
    here, there = _list_tables(first, second, namespace)
    both = sorted(here & there)
    differences = [Difference(format_levels(table), table in here, table in there) for table in sorted(here ^ there)]
    with ThreadPoolExecutor(MAX_WORKERS) as pool:
        results = pool.map(lambda table: _different_fields(first, second, table, ignore), both)
        for done, (table, fields) in enumerate(zip(both, results, strict=True), 1):
            if fields:
                differences.append(Difference(format_levels(table), True, True, fields))
            report_progress(done, len(both))
    return CatalogDiff(
        len(both) + len(here ^ there) - len(differences), sorted(differences, key=lambda difference: difference.table)
    )


def _list_tables(first: NamedCatalog, second: NamedCatalog, namespace: Id) -> tuple[set[Id], set[Id]]:
    tables: list[set[Id]] = []
    missing: list[NamespaceNotFoundError] = []
    for side in (first, second):
        try:
            tables.append(set(side.list_tables(namespace)))
        except NamespaceNotFoundError as error:
            missing.append(error)
            tables.append(set())
    if len(missing) == len(tables):
        raise missing[0]
    return tables[0], tables[1]


def _different_fields(
    first: NamedCatalog, second: NamedCatalog, table: Id, ignore: Collection[str]
) -> dict[str, tuple[Any, Any]]:
    one, other = _table_facts(first, table), _table_facts(second, table)
    return {
        name: (one.get(name), other.get(name))
        for name in (*FIELDS, ERROR)
        if name not in ignore and not _is_same(name, one.get(name), other.get(name))
    }


def _is_same(name: str, one: Any, other: Any) -> bool:
    if name == "location" and one and other:
        return split_location(one) == split_location(other)
    if name == "properties" and None in (one, other):
        return True  # a catalog that stores no properties
    return bool(one == other) and not (name == ERROR and one)


def _table_facts(side: NamedCatalog, table: Id) -> dict[str, Any]:
    """Return the compared fields of a table; for one that cannot be read, the error."""
    try:
        inspected = side.find_table(table)
        if not isinstance(inspected, InspectedTable):
            return {ERROR: "it is not there any more"}
        facts: dict[str, Any] = {"location": inspected.location, "properties": _comparable_properties(side, inspected)}
        with side.catalog.translate_errors(side.full_id(table)):
            table_summary = read_summary(TableRef.in_namespace(side.catalog.namespace, side.full_id(table)))
    except TableNotFoundError:
        return facts  # it is declared only, and has no data
    except LanceNamespaceError as error:
        return {ERROR: str(error)}
    columns = {column["name"]: column["type"] for column in map(field_to_json, table_summary.schema)}
    return {**facts, "version": table_summary.version, "rows": table_summary.rows, "schema": columns}


def _comparable_properties(side: NamedCatalog, inspected: InspectedTable) -> dict[str, str] | None:
    return portable_properties(inspected.properties) if side.inspector.keeps_properties else None
