"""Walks over catalogs whose levels hold different things."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from lance_namespace.errors import InvalidInputError, NamespaceNotFoundError

from lancehouse.catalog_walk import Id, walk_namespaces, walk_tables


class Fixed:
    """A catalog of fixed levels: above `first` there are no tables, below `last` no namespaces."""

    def __init__(self, first: int, last: int | None, *tables: Id) -> None:
        self._first = first
        self._last = last
        self._tables = tables

    def namespaces(self, id: Sequence[str]) -> list[Id]:
        if self._last is not None and len(id) >= self._last:
            raise InvalidInputError(f"{id} is too deep")
        return sorted({table[: len(id) + 1] for table in self._below(id) if len(table) > len(id) + 1})

    def tables(self, id: Sequence[str]) -> list[Id]:
        if len(id) < self._first or (self._last is not None and len(id) > self._last):
            raise InvalidInputError(f"{id} holds no tables")
        return [table for table in self._below(id) if len(table) == len(id) + 1]

    def _below(self, id: Sequence[str]) -> list[Id]:
        found = [table for table in self._tables if table[: len(id)] == tuple(id)]
        if not found:
            raise NamespaceNotFoundError(f"{id} is not there")
        return found


UNITY = Fixed(2, 2, ("c", "s", "t"), ("c", "s", "u"), ("c", "r", "t"))
ICEBERG = Fixed(2, None, ("w", "a", "t"), ("w", "a", "b", "c", "t"))
FOLDER = Fixed(0, None, ("t",), ("a", "t"))


@pytest.mark.parametrize(
    ("lists", "id", "namespaces", "tables"),
    [
        (UNITY, (), ["", "c", "c.r", "c.s"], ["c.r.t", "c.s.t", "c.s.u"]),
        (UNITY, ("c",), ["c", "c.r", "c.s"], ["c.r.t", "c.s.t", "c.s.u"]),
        (UNITY, ("c", "s"), ["c.s"], ["c.s.t", "c.s.u"]),
        (ICEBERG, ("w",), ["w", "w.a", "w.a.b", "w.a.b.c"], ["w.a.t", "w.a.b.c.t"]),
        (FOLDER, (), ["", "a"], ["t", "a.t"]),
    ],
)
def test_all_that_is_below(lists: Fixed, id: Id, namespaces: list[str], tables: list[str]) -> None:
    assert [".".join(each) for each in walk_namespaces(lists, id)] == namespaces
    assert [".".join(each) for each in walk_tables(lists, id)] == tables


@pytest.mark.parametrize("walk", [walk_namespaces, walk_tables])
@pytest.mark.parametrize(
    ("id", "expected"), [(("c", "s", "t"), InvalidInputError), (("c", "x"), NamespaceNotFoundError)]
)
def test_where_nothing_is(walk: type, id: Id, expected: type[Exception]) -> None:
    with pytest.raises(expected):
        list(walk(UNITY, id))
