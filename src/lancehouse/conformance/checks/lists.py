"""Checks of lists and their pages, of unusual names, and of properties."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from urllib.parse import urlsplit

import pytest
from lance_namespace.errors import InvalidInputError, LanceNamespaceError, PermissionDeniedError

from lancehouse.conformance.subject import Id, Subject, local_path, strip_namespace


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


def check_lists_tables_complete(subject: Subject, crowd: tuple[Id, list[str]]) -> None:
    """A long list of tables has each of them once."""
    namespace, names = crowd
    _check_same_names(subject.list_tables(namespace), names)
    subject.note(f"{len(names)} tables")


def check_lists_tables_sorted(subject: Subject, crowd: tuple[Id, list[str]]) -> None:
    """A list of tables is in order."""
    listed = subject.list_tables(crowd[0])
    assert listed == sorted(listed), f"it begins {listed[:4]}"


def check_lists_tables_by_limit(subject: Subject, crowd: tuple[Id, list[str]]) -> None:
    """Pages of tables hold no more than the limit."""
    for limit in (1, 3, len(crowd[1]), len(crowd[1]) + 1):
        longest = max(len(page) for page in subject.table_pages(crowd[0], limit))
        assert longest <= limit, f"a page for limit {limit} has {longest} tables"


@pytest.mark.parametrize("limit", [1, 3, 5, "all", "more"])
def check_lists_tables_paged(subject: Subject, crowd: tuple[Id, list[str]], limit: int | str) -> None:
    """All pages together have every table once (limit {})."""
    namespace, names = crowd
    size = {"all": len(names), "more": len(names) + 1}.get(str(limit)) or int(limit)
    _check_same_names(subject.list_tables(namespace, size), names)


def check_lists_pages_in_order(subject: Subject, crowd: tuple[Id, list[str]]) -> None:
    """Pages of tables follow each other in order."""
    listed = subject.list_tables(crowd[0], 3)
    assert listed == sorted(listed), f"it begins {listed[:6]}"


def check_lists_token_again(subject: Subject, crowd: tuple[Id, list[str]]) -> None:
    """A page token used twice gives the same page twice."""
    namespace, _ = crowd
    first = subject.call("list_tables", namespace, limit=2)
    if not first.page_token:
        raise AssertionError(f"a page of {len(first.tables)} of {len(crowd[1])} tables has no token for the rest")
    one, two = (subject.call("list_tables", namespace, limit=2, page_token=first.page_token).tables for _ in range(2))
    assert one == two, f"first {one}, then {two}"


def check_lists_token_unknown(subject: Subject, crowd: tuple[Id, list[str]]) -> None:
    """A token that was never issued gets a clean answer."""
    try:
        subject.call("list_tables", crowd[0], limit=2, page_token="lancehouse\x00bogus")
    except LanceNamespaceError as error:
        subject.note(f"error {int(error.code)}")
    else:
        subject.note("a list")


def check_lists_change_between_pages(subject: Subject) -> None:
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


def check_lists_namespaces_complete(subject: Subject, siblings: list[str]) -> None:
    """A long list of namespaces has each of them once."""
    _check_same_names(_only_ours(siblings, subject.list_namespaces(subject.parent)), siblings)
    subject.note(f"{len(siblings)} namespaces")


def check_lists_namespaces_sorted(subject: Subject, siblings: list[str]) -> None:
    """A list of namespaces is in order."""
    listed = _only_ours(siblings, subject.list_namespaces(subject.parent))
    assert listed == sorted(listed), f"it begins {listed[:4]}"


@pytest.mark.parametrize("limit", [2, 5])
def check_lists_namespaces_paged(subject: Subject, siblings: list[str], limit: int) -> None:
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
def check_names_table(subject: Subject, text: str) -> None:
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
def check_names_namespace(subject: Subject, text: str) -> None:
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
def check_names_default_location(subject: Subject, text: str) -> None:
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


PLAIN = {"owner": "lancehouse", "purpose": "conformance"}
ODD = {
    "empty": "",
    "spaced key": "a b",
    "unicode": "Grüße 🚀",
    "quotes": "\"'`\\",
    "dotted.key": "a=b;c,d",
}
LONG = {"long": "x" * 2000}
"""A property that a catalog may refuse: some store values in database columns of limited size."""


def check_properties_namespace(subject: Subject) -> None:
    """Properties of a namespace come back."""
    namespace = subject.new_namespace(properties=PLAIN)
    _check_properties(subject.describe_namespace(namespace).properties, PLAIN, "describe_namespace")


def check_properties_namespace_created(subject: Subject) -> None:
    """CreateNamespace answers with the properties."""
    answered = subject.create_namespace([*subject.parent, subject.new_name("n")], properties=PLAIN).properties
    _check_properties(answered, PLAIN, "create_namespace")


def check_properties_namespace_values(subject: Subject) -> None:
    """Unusual keys and values of a namespace's properties come back as they are; a long one may be refused with 13."""
    namespace, expected = _make_with_properties(subject, subject.new_namespace)
    _check_properties(subject.describe_namespace(namespace).properties, expected, "describe_namespace")


def check_properties_namespace_separate(subject: Subject) -> None:
    """A namespace has no properties of another one."""
    subject.new_namespace(properties=PLAIN)
    properties = subject.describe_namespace(subject.new_namespace()).properties or {}
    assert not PLAIN.keys() & properties.keys(), f"a namespace made without properties has {properties}"


def check_properties_table(subject: Subject) -> None:
    """Properties of a table come back."""
    table = subject.new_table(properties=PLAIN)
    _check_properties(subject.describe(table).properties, PLAIN, "describe_table")


def check_properties_table_declared(subject: Subject) -> None:
    """DeclareTable answers with the properties."""
    answered = subject.declare([*subject.home, subject.new_name()], properties=PLAIN).properties
    _check_properties(answered, PLAIN, "declare_table")


def check_properties_table_values(subject: Subject) -> None:
    """Unusual keys and values of a table's properties come back as they are; a long one may be refused with 13."""
    table, expected = _make_with_properties(subject, subject.new_table)
    _check_properties(subject.describe(table).properties, expected, "describe_table")


def check_properties_storage_options(subject: Subject) -> None:
    """Properties of a table do not leak into its storage options."""
    table = [*subject.home, subject.new_name()]
    declared = subject.declare(table, properties=PLAIN)
    for operation, options in {
        "declare_table": declared.storage_options,
        "describe_table": subject.describe(table).storage_options,
    }.items():
        leaked = {*PLAIN, "table_type"} & set(options or {})
        assert not leaked, f"storage_options of {operation} hold the properties {sorted(leaked)}"


def check_properties_described_equals_declared(subject: Subject) -> None:
    """Describe gives the same storage options as declare, but for credentials."""
    table = [*subject.home, subject.new_name()]
    declared = subject.declare(table).storage_options or {}
    described = subject.describe(table).storage_options or {}
    missing = sorted(key for key in declared if key not in described and "expires" not in key)
    assert not missing, f"describe_table lacks {missing}"


def _make_with_properties(subject: Subject, make: Callable[..., Id]) -> tuple[Id, dict[str, str]]:
    """Create a namespace or table with unusual properties; return its id and those that it should have."""
    try:
        return make(properties={**ODD, **LONG}), {**ODD, **LONG}
    except InvalidInputError as error:
        subject.note(f"a value of 2,000 characters is refused: {error}")
    return make(properties=ODD), ODD


def _check_properties(properties: dict[str, str] | None, expected: dict[str, str], operation: str) -> None:
    if properties is None:
        pytest.skip("unsupported: properties (they are null)")
    changed = [key for key, value in expected.items() if properties.get(key) != value]
    assert not changed, f"{operation} does not give back {', '.join(changed)}: {properties}"
