"""Checks of the properties of namespaces and tables, and of their separation from storage options."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from lance_namespace.errors import InvalidInputError

from lancehouse.conformance.subject import Id, Subject

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


def check_namespace(subject: Subject) -> None:
    """Properties of a namespace come back."""
    namespace = subject.new_namespace(properties=PLAIN)
    _check_properties(subject.describe_namespace(namespace).properties, PLAIN, "describe_namespace")


def check_namespace_created(subject: Subject) -> None:
    """CreateNamespace answers with the properties."""
    answered = subject.create_namespace([*subject.parent, subject.new_name("n")], properties=PLAIN).properties
    _check_properties(answered, PLAIN, "create_namespace")


def check_namespace_values(subject: Subject) -> None:
    """Unusual keys and values of a namespace's properties come back as they are; a long one may be refused with 13."""
    namespace, expected = _make_with_properties(subject, subject.new_namespace)
    _check_properties(subject.describe_namespace(namespace).properties, expected, "describe_namespace")


def check_namespace_separate(subject: Subject) -> None:
    """A namespace has no properties of another one."""
    subject.new_namespace(properties=PLAIN)
    properties = subject.describe_namespace(subject.new_namespace()).properties or {}
    assert not PLAIN.keys() & properties.keys(), f"a namespace made without properties has {properties}"


def check_table(subject: Subject) -> None:
    """Properties of a table come back."""
    table = subject.new_table(properties=PLAIN)
    _check_properties(subject.describe(table).properties, PLAIN, "describe_table")


def check_table_declared(subject: Subject) -> None:
    """DeclareTable answers with the properties."""
    answered = subject.declare([*subject.home, subject.new_name()], properties=PLAIN).properties
    _check_properties(answered, PLAIN, "declare_table")


def check_table_values(subject: Subject) -> None:
    """Unusual keys and values of a table's properties come back as they are; a long one may be refused with 13."""
    table, expected = _make_with_properties(subject, subject.new_table)
    _check_properties(subject.describe(table).properties, expected, "describe_table")


def check_storage_options(subject: Subject) -> None:
    """Properties of a table do not leak into its storage options."""
    table = [*subject.home, subject.new_name()]
    declared = subject.declare(table, properties=PLAIN)
    for operation, options in {
        "declare_table": declared.storage_options,
        "describe_table": subject.describe(table).storage_options,
    }.items():
        leaked = {*PLAIN, "table_type"} & set(options or {})
        assert not leaked, f"storage_options of {operation} hold the properties {sorted(leaked)}"


def check_described_equals_declared(subject: Subject) -> None:
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
