"""Checks of unusual names: they are stored correctly, or refused without leaving anything behind."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest
from lance_namespace.errors import InvalidInputError, PermissionDeniedError

from lancehouse.conformance.subject import Id, Subject, local_path

NAMES = {
    "a space": "a b",
    "a dot": "a.b",
    "a slash": "a/b",
    "a backslash": "a\\b",
    "a percent sign": "100%",
    "an escaped slash": "a%2Fb",
    "a plus": "a+b",
    "a dollar": "a$b",
    "an apostrophe": "it's",
    "a quotation mark": 'a"b',
    "a backquote": "a`b",
    "a question mark": "a?b=c&d",
    "a hash": "a#b",
    "a colon": "a:b",
    "an at sign": "a@b",
    "a dash": "a-b",
    "capitals": "MixedCase",
    "an emoji": "a🚀b",
    "other scripts": "Grüße_数据",
    "255 characters": "x" * 255,
}
CASES = [pytest.param(text, id=what) for what, text in NAMES.items()]


@pytest.mark.parametrize("text", CASES)
def check_table(subject: Subject, text: str) -> None:
    """A table whose name has {} round-trips, or is refused with 13."""
    table = [*subject.new_namespace(), _unique_name(subject, text)]
    namespace, name = table[:-1], table[-1]
    try:
        declared = subject.declare(table)
    except InvalidInputError as error:
        subject.note(f"refused: {error}")
        _check_not_listed(name, subject.list_tables(namespace))
        return
    assert subject.list_tables(namespace) == [name], f"it is listed as {subject.list_tables(namespace)}"
    assert subject.describe(table).location == declared.location, "it is described at another location than declared"
    subject.deregister(table)
    _check_not_listed(name, subject.list_tables(namespace))


@pytest.mark.parametrize("text", CASES)
def check_namespace(subject: Subject, text: str) -> None:
    """A namespace whose name has {} round-trips, or is refused with 13."""
    name = _unique_name(subject, text)
    namespace = [*subject.parent, name]
    try:
        subject.create_namespace(namespace)
    except InvalidInputError as error:
        subject.note(f"refused: {error}")
        _check_not_listed(name, subject.list_namespaces(subject.parent))
        return
    listed = subject.list_namespaces(subject.parent)
    alike = [one for one in listed if name.removesuffix(text)[:20] in one]
    assert listed.count(name) == 1, f"it is listed as {alike}"
    subject.describe_namespace(namespace)
    _check_holds_table(subject, namespace)
    subject.drop_namespace(namespace)
    _check_not_listed(name, subject.list_namespaces(subject.parent))


@pytest.mark.parametrize("text", [pytest.param("..", id="two dots"), pytest.param("../../escape", id="../../escape")])
def check_default_location(subject: Subject, text: str) -> None:
    """A table called {} does not leave its namespace's folder."""
    neighbour = [*subject.new_namespace(), subject.new_name()]
    table = [*neighbour[:-1], text]
    try:
        beside = subject.declare(neighbour, location=None).location or ""
        location = subject.declare(table, location=None).location or ""
    except InvalidInputError as error:
        subject.note(f"refused: {error}")
        return
    assert location != beside, f"two tables lie at {location}"
    folder, resolved = _resolve_path(beside).rpartition("/")[0], _resolve_path(location)
    assert resolved.startswith(f"{folder}/"), f"it lies at {location}, and its neighbour at {beside}"
    assert ".." not in resolved.split("/"), f"it lies at {location}"


def _resolve_path(location: str) -> str:
    return str(local_path(location) or urlsplit(location).path).rstrip("/")


def _check_holds_table(subject: Subject, namespace: Id) -> None:
    try:
        table = subject.new_table(namespace)
    except PermissionDeniedError as error:
        subject.note(f"no table in it: {error}")
        table = []
    listed = subject.list_tables(namespace)
    assert listed == table[-1:], f"its tables are {listed}, not {table[-1:]}"
    if table:
        subject.deregister(table)


def _unique_name(subject: Subject, text: str) -> str:
    """Return the name with a unique prefix; one of 255 characters keeps its length."""
    mark = subject.new_name()
    return (mark + text)[:255] if len(text) == 255 else mark + text


def _check_not_listed(name: str, listed: list[str]) -> None:
    assert name not in listed, f"{name!r} is gone, and listed"
