"""Checks of CreateNamespace, ListNamespaces, DescribeNamespace and DropNamespace."""

from __future__ import annotations

import pytest
from lance_namespace.errors import ErrorCode, NamespaceNotFoundError

from lancehouse.conformance.subject import Subject

NOT_FOUND = ErrorCode.NAMESPACE_NOT_FOUND
EXISTS = ErrorCode.NAMESPACE_ALREADY_EXISTS
NOT_EMPTY = ErrorCode.NAMESPACE_NOT_EMPTY
INVALID = ErrorCode.INVALID_INPUT


def check_create(subject: Subject) -> None:
    """A created namespace can be described."""
    subject.describe_namespace(subject.new_namespace())


def check_create_existing(subject: Subject) -> None:
    """Creating a namespace that exists is error 2."""
    namespace = subject.new_namespace()
    with subject.expect_error(EXISTS):
        subject.create_namespace(namespace)


def check_create_below_missing(subject: Subject) -> None:
    """Creating a namespace below a missing one is error 1."""
    orphan = [*subject.parent, subject.new_name("missing"), subject.new_name("n")]
    with subject.expect_error(NOT_FOUND) if subject.has_nested_namespaces else subject.expect_error(NOT_FOUND, INVALID):
        subject.create_namespace(orphan)


def check_nesting(subject: Subject) -> None:
    """A namespace holds namespaces, or refuses a deeper level with 13."""
    child = [*subject.new_namespace(), subject.new_name("child")]
    if not subject.has_nested_namespaces:
        subject.note("flat: namespaces do not nest")
        with subject.expect_error(INVALID):
            subject.create_namespace(child)
        return
    subject.create_namespace(child)
    subject.describe_namespace(child)
    assert subject.list_namespaces(child[:-1]) == [child[-1]], "the child is not listed, once, below its parent"
    assert child[-1] not in subject.list_namespaces(subject.parent), "the child is listed among its parent's siblings"
    subject.note("namespaces nest")


def check_list(subject: Subject) -> None:
    """A new namespace is listed below its parent, once."""
    namespace = subject.new_namespace()
    names = [name for page in subject.namespace_pages(subject.parent) for name in page]
    mine = [name for name in names if name.endswith(namespace[-1])]
    assert len(mine) == 1, f"{namespace[-1]} is listed {len(mine)} times"
    spellings = {namespace[-1]: "listed bare", ".".join(namespace): "with the parent in front, joined by '.'"}
    spellings["$".join(namespace)] = "with the parent in front, joined by '$'"
    assert mine[0] in spellings, f"{'.'.join(namespace)} is listed as {mine[0]!r}"
    subject.note("listed bare" if mine[0] == namespace[-1] else spellings[mine[0]])


def check_list_missing(subject: Subject) -> None:
    """Listing the namespaces below a missing one is error 1."""
    missing = [*subject.parent, subject.new_name("missing")]
    with subject.expect_error(NOT_FOUND) if subject.has_nested_namespaces else subject.expect_error(NOT_FOUND, INVALID):
        subject.list_namespaces(missing)


def check_list_empty(subject: Subject) -> None:
    """A namespace without children has an empty list."""
    if not subject.has_nested_namespaces:
        pytest.skip("namespaces do not nest")
    children = subject.list_namespaces(subject.new_namespace())
    assert children == [], f"a new namespace has children: {children}"


def check_describe_missing(subject: Subject) -> None:
    """Describing a missing namespace is error 1."""
    with subject.expect_error(NOT_FOUND):
        subject.describe_namespace([*subject.parent, subject.new_name("missing")])


def check_drop(subject: Subject) -> None:
    """A dropped namespace is gone, from lists too."""
    namespace = subject.new_namespace()
    subject.drop_namespace(namespace)
    with subject.expect_error(NOT_FOUND):
        subject.describe_namespace(namespace)
    assert namespace[-1] not in subject.list_namespaces(subject.parent), "it is listed still"


def check_drop_with_table(subject: Subject) -> None:
    """Dropping a namespace that holds a table is error 3, and drops nothing."""
    table = subject.new_table(subject.new_namespace())
    with subject.expect_error(NOT_EMPTY):
        subject.drop_namespace(table[:-1])
    subject.describe(table)


def check_drop_with_namespace(subject: Subject) -> None:
    """Dropping a namespace that holds a namespace is error 3."""
    if not subject.has_nested_namespaces:
        pytest.skip("namespaces do not nest")
    child = [*subject.new_namespace(), subject.new_name("child")]
    subject.create_namespace(child)
    with subject.expect_error(NOT_EMPTY):
        subject.drop_namespace(child[:-1])
    subject.describe_namespace(child)


def check_drop_missing(subject: Subject) -> None:
    """Dropping a missing namespace, without a mode, succeeds or is error 1."""
    try:
        subject.drop_namespace([*subject.parent, subject.new_name("missing")])
    except NamespaceNotFoundError:
        subject.note("error 1")
    else:
        subject.note("succeeds")


def check_create_again(subject: Subject) -> None:
    """A dropped namespace can be created again, and is empty then."""
    namespace = subject.new_namespace()
    subject.drop_namespace(namespace)
    subject.create_namespace(namespace)
    tables = subject.list_tables(namespace)
    assert tables == [], f"it holds {tables}"


def check_dropped_is_forgotten(subject: Subject) -> None:
    """Declaring a table in a namespace that was just dropped is error 1."""
    table = subject.new_table(subject.new_namespace())
    subject.deregister(table)
    subject.drop_namespace(table[:-1])
    with subject.expect_error(NOT_FOUND):
        subject.declare(table)


def check_levels(subject: Subject) -> None:
    """A namespace id without levels, or with an empty one, is error 13."""
    with subject.expect_error(INVALID, EXISTS):  # where the root is a namespace, it exists
        subject.create_namespace([])
    with subject.expect_error(INVALID):
        subject.create_namespace([*subject.parent, ""])


def check_errors_name_it(subject: Subject) -> None:
    """Errors name the namespace that they are about."""
    namespace, missing = subject.new_namespace(), [*subject.parent, subject.new_name("missing")]
    with subject.expect_error(EXISTS) as refusal:
        subject.create_namespace(namespace)
    assert namespace[-1] in refusal.message, f"create_namespace: {refusal.message!r} does not name {namespace[-1]}"
    with subject.expect_error(NOT_FOUND) as refusal:
        subject.describe_namespace(missing)
    assert missing[-1] in refusal.message, f"describe_namespace: {refusal.message!r} does not name {missing[-1]}"
