"""How the tables of two catalogs differ."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from lance_namespace.errors import LanceNamespaceError, NamespaceNotFoundError, TableNotFoundError

from lancehouse.care.copying import kept
from lancehouse.care.sides import Side
from lancehouse.clients.inspection import Seen
from lancehouse.identifiers import write_levels
from lancehouse.lake.dataset import TableRef
from lancehouse.lake.layout import summary
from lancehouse.lake.survey import parts
from lancehouse.schema.shown import field_json
from lancehouse.trees import Id

FIELDS = ("location", "version", "rows", "schema", "properties")
ERROR = "error"
AT_ONCE = 8

Told = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Difference:
    """A table that is not the same in both."""

    table: str
    is_in_first: bool
    is_in_second: bool
    fields: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    """What each side says, where they disagree."""


@dataclass(frozen=True, slots=True)
class Compared:
    """Two catalogs beside each other."""

    same: int
    different: list[Difference]


def compare(
    first: Side,
    second: Side,
    namespace: Id = (),
    ignore: Collection[str] = (),
    told: Told = lambda _done, _total: None,
) -> Compared:
    """See how two catalogs differ.

    Args:
        first: one of them.
        second: the other.
        namespace: only what is in it and below it, in both; default: all.
        ignore: what may differ, of `FIELDS`.
        told: is called as the work goes on.

    Raises:
        NamespaceNotFoundError: neither has the namespace.
    """
    here, there = _tables(first, second, namespace)
    both = sorted(here & there)
    found = [Difference(write_levels(table), table in here, table in there) for table in sorted(here ^ there)]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        results = pool.map(lambda table: _fields(first, second, table, ignore), both)
        for done, (table, fields) in enumerate(zip(both, results, strict=True), 1):
            if fields:
                found.append(Difference(write_levels(table), True, True, fields))
            told(done, len(both))
    return Compared(len(both) + len(here ^ there) - len(found), sorted(found, key=lambda each: each.table))


def _tables(first: Side, second: Side, namespace: Id) -> tuple[set[Id], set[Id]]:
    found: list[set[Id]] = []
    missing: list[NamespaceNotFoundError] = []
    for side in (first, second):
        try:
            found.append(set(side.tables(namespace)))
        except NamespaceNotFoundError as error:
            missing.append(error)
            found.append(set())
    if len(missing) == len(found):
        raise missing[0]
    return found[0], found[1]


def _fields(first: Side, second: Side, table: Id, ignore: Collection[str]) -> dict[str, tuple[Any, Any]]:
    one, other = _facts(first, table), _facts(second, table)
    return {
        name: (one.get(name), other.get(name))
        for name in (*FIELDS, ERROR)
        if name not in ignore and not _is_same(name, one.get(name), other.get(name))
    }


def _is_same(name: str, one: Any, other: Any) -> bool:
    if name == "location" and one and other:
        return parts(one) == parts(other)
    if name == "properties" and None in (one, other):
        return True  # a catalog that keeps none
    return bool(one == other) and not (name == ERROR and one)


def _facts(side: Side, table: Id) -> dict[str, Any]:
    """What is known of a table; of one that cannot be read, why."""
    try:
        seen = side.look(table)
        if not isinstance(seen, Seen):
            return {ERROR: "it is not there any more"}
        facts: dict[str, Any] = {"location": seen.location, "properties": _properties(side, seen)}
        with side.catalog.explained(side.id(table)):
            told = summary(TableRef.of(side.catalog.namespace, side.id(table)))
    except TableNotFoundError:
        return facts  # it is declared, and has no data
    except LanceNamespaceError as error:
        return {ERROR: str(error)}
    columns = {each["name"]: each["type"] for each in map(field_json, told.schema)}
    return {**facts, "version": told.version, "rows": told.rows, "schema": columns}


def _properties(side: Side, seen: Seen) -> dict[str, str] | None:
    return kept(seen.properties) if side.inspector.keeps_properties else None
