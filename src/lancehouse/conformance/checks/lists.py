"""Checks that lists are complete and sorted, and that pages neither lose nor repeat an entry."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest
from lance_namespace import ListTablesRequest
from lance_namespace.errors import LanceNamespaceError

from lancehouse.conformance.subject import Id, Subject, strip_namespace


@pytest.fixture(scope="module")
def crowd(_subject: Subject) -> tuple[Id, list[str]]:
    """Create a namespace with many tables, for this module."""
    namespace = _subject.new_namespace(keep=True)
    names = [f"{_subject.token}_{number:04}" for number in range(_subject.target.entries)]
    for name in [*names[1::2], *names[::2]]:
        _subject.declare([*namespace, name], keep=True)
    return namespace, names


@pytest.fixture(scope="module")
def siblings(_subject: Subject) -> list[str]:
    """Create many namespaces below the parent, for this module."""
    names = [f"{_subject.token}_s{number:04}" for number in range(_subject.target.entries)]
    for name in [*names[1::2], *names[::2]]:
        _subject.create_namespace([*_subject.parent, name], keep=True)
    return names


def check_tables_complete(subject: Subject, crowd: tuple[Id, list[str]]) -> None:
    """A long list of tables has each of them once."""
    namespace, names = crowd
    _check_same_names(subject.list_tables(namespace), names)
    subject.note(f"{len(names)} tables")


def check_tables_sorted(subject: Subject, crowd: tuple[Id, list[str]]) -> None:
    """A list of tables is in order."""
    listed = subject.list_tables(crowd[0])
    assert listed == sorted(listed), f"it begins {listed[:4]}"


def check_tables_by_limit(subject: Subject, crowd: tuple[Id, list[str]]) -> None:
    """Pages of tables hold no more than the limit."""
    for limit in (1, 3, len(crowd[1]), len(crowd[1]) + 1):
        longest = max(len(page) for page in subject.table_pages(crowd[0], limit))
        assert longest <= limit, f"a page for limit {limit} has {longest} tables"


@pytest.mark.parametrize("limit", [1, 3, 5, "all", "more"])
def check_tables_paged(subject: Subject, crowd: tuple[Id, list[str]], limit: int | str) -> None:
    """All pages together have every table once (limit {})."""
    namespace, names = crowd
    size = {"all": len(names), "more": len(names) + 1}.get(str(limit)) or int(limit)
    _check_same_names(subject.list_tables(namespace, size), names)


def check_pages_in_order(subject: Subject, crowd: tuple[Id, list[str]]) -> None:
    """Pages of tables follow each other in order."""
    listed = subject.list_tables(crowd[0], 3)
    assert listed == sorted(listed), f"it begins {listed[:6]}"


def check_token_again(subject: Subject, crowd: tuple[Id, list[str]]) -> None:
    """A page token used twice gives the same page twice."""
    namespace, _ = crowd
    first = subject.client.list_tables(ListTablesRequest(id=namespace, limit=2))
    if not first.page_token:
        raise AssertionError(f"a page of {len(first.tables)} of {len(crowd[1])} tables has no token for the rest")
    again = ListTablesRequest(id=namespace, limit=2, page_token=first.page_token)
    one, two = subject.client.list_tables(again).tables, subject.client.list_tables(again).tables
    assert one == two, f"first {one}, then {two}"


def check_token_unknown(subject: Subject, crowd: tuple[Id, list[str]]) -> None:
    """A token that was never issued gets a clean answer."""
    try:
        subject.client.list_tables(ListTablesRequest(id=crowd[0], limit=2, page_token="lancehouse\x00bogus"))
    except LanceNamespaceError as error:
        subject.note(f"error {int(error.code)}")
    else:
        subject.note("a list")


def check_change_between_pages(subject: Subject) -> None:
    """A table that comes or goes between two pages costs no other its place."""
    namespace = subject.new_namespace()
    names = [f"{subject.token}_{letter}" for letter in "bdfh"]
    for name in names:
        subject.declare([*namespace, name])
    pages = subject.table_pages(namespace, 2)
    listed = next(pages)
    subject.declare([*namespace, f"{subject.token}_a"])
    subject.declare([*namespace, f"{subject.token}_z"])
    subject.deregister([*namespace, strip_namespace(listed[0], namespace)])
    listed = [strip_namespace(name, namespace) for name in [*listed, *(name for page in pages for name in page)]]
    counted = Counter(listed)
    assert all(counted[name] == 1 for name in names), f"of {names} this was listed: {listed}"


def check_namespaces_complete(subject: Subject, siblings: list[str]) -> None:
    """A long list of namespaces has each of them once."""
    _check_same_names(_only_ours(siblings, subject.list_namespaces(subject.parent)), siblings)
    subject.note(f"{len(siblings)} namespaces")


def check_namespaces_sorted(subject: Subject, siblings: list[str]) -> None:
    """A list of namespaces is in order."""
    listed = _only_ours(siblings, subject.list_namespaces(subject.parent))
    assert listed == sorted(listed), f"it begins {listed[:4]}"


@pytest.mark.parametrize("limit", [2, 5])
def check_namespaces_paged(subject: Subject, siblings: list[str], limit: int) -> None:
    """Pages of namespaces keep to the limit, and lose and double nothing (limit {})."""
    pages = list(subject.namespace_pages(subject.parent, limit))
    longest = max(len(page) for page in pages)
    assert longest <= limit, f"a page for limit {limit} has {longest} namespaces"
    _check_same_names(
        _only_ours(siblings, [strip_namespace(name, subject.parent) for page in pages for name in page]), siblings
    )


def _only_ours(names: Iterable[str], listed: list[str]) -> list[str]:
    """Return the listed names that this run created: the parent may hold others."""
    return [name for name in listed if name in set(names)]


def _check_same_names(listed: list[str], names: list[str]) -> None:
    counted = Counter(listed)
    missing = [name for name in names if not counted[name]]
    double = [name for name in names if counted[name] > 1]
    strange = [name for name in counted if name not in set(names)]
    assert not missing, f"{len(missing)} of {len(names)} are missing: {missing[:4]}"
    assert not double, f"{len(double)} of {len(names)} are listed more than once: {double[:4]}"
    assert not strange, f"there are names that nobody made: {strange[:4]}"
