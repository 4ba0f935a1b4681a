"""Checks of namespaces, and of modes and behaviours: what happens to objects that exist already, or do not exist."""

from __future__ import annotations

import pytest
from lance_namespace.errors import (
    ErrorCode,
    NamespaceAlreadyExistsError,
    NamespaceNotEmptyError,
    NamespaceNotFoundError,
    UnsupportedOperationError,
)

from lancehouse.conformance.subject import ROWS, Id, Subject, to_ipc

NOT_FOUND = ErrorCode.NAMESPACE_NOT_FOUND
EXISTS = ErrorCode.NAMESPACE_ALREADY_EXISTS
NOT_EMPTY = ErrorCode.NAMESPACE_NOT_EMPTY
INVALID = ErrorCode.INVALID_INPUT


def check_namespaces_create(subject: Subject) -> None:
    """A created namespace can be described."""
    subject.describe_namespace(subject.new_namespace())


def check_namespaces_create_existing(subject: Subject) -> None:
    """Creating a namespace that exists is error 2."""
    namespace = subject.new_namespace()
    with subject.expect_error(EXISTS):
        subject.create_namespace(namespace)


def check_namespaces_create_below_missing(subject: Subject) -> None:
    """Creating a namespace below a missing one is error 1."""
    orphan = [*subject.parent, subject.new_name("missing"), subject.new_name("n")]
    with subject.expect_error(NOT_FOUND) if subject.has_nested_namespaces else subject.expect_error(NOT_FOUND, INVALID):
        subject.create_namespace(orphan)


def check_namespaces_nesting(subject: Subject) -> None:
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


def check_namespaces_list(subject: Subject) -> None:
    """A new namespace is listed below its parent, once."""
    namespace = subject.new_namespace()
    names = [name for page in subject.namespace_pages(subject.parent) for name in page]
    mine = [name for name in names if name.endswith(namespace[-1])]
    assert len(mine) == 1, f"{namespace[-1]} is listed {len(mine)} times"
    spellings = {namespace[-1]: "listed bare", ".".join(namespace): "with the parent in front, joined by '.'"}
    spellings["$".join(namespace)] = "with the parent in front, joined by '$'"
    assert mine[0] in spellings, f"{'.'.join(namespace)} is listed as {mine[0]!r}"
    subject.note("listed bare" if mine[0] == namespace[-1] else spellings[mine[0]])


def check_namespaces_list_missing(subject: Subject) -> None:
    """Listing the namespaces below a missing one is error 1."""
    missing = subject.missing_namespace()
    with subject.expect_error(NOT_FOUND) if subject.has_nested_namespaces else subject.expect_error(NOT_FOUND, INVALID):
        subject.list_namespaces(missing)


def check_namespaces_list_empty(subject: Subject) -> None:
    """A namespace without children has an empty list."""
    if not subject.has_nested_namespaces:
        pytest.skip("namespaces do not nest")
    children = subject.list_namespaces(subject.new_namespace())
    assert children == [], f"a new namespace has children: {children}"


def check_namespaces_describe_missing(subject: Subject) -> None:
    """Describing a missing namespace is error 1."""
    with subject.expect_error(NOT_FOUND):
        subject.describe_namespace(subject.missing_namespace())


def check_namespaces_drop(subject: Subject) -> None:
    """A dropped namespace is gone, from lists too."""
    namespace = subject.new_namespace()
    subject.drop_namespace(namespace)
    with subject.expect_error(NOT_FOUND):
        subject.describe_namespace(namespace)
    assert namespace[-1] not in subject.list_namespaces(subject.parent), "it is listed still"


def check_namespaces_drop_with_table(subject: Subject) -> None:
    """Dropping a namespace that holds a table is error 3, and drops nothing."""
    table = subject.new_table(subject.new_namespace())
    with subject.expect_error(NOT_EMPTY):
        subject.drop_namespace(table[:-1])
    subject.describe(table)


def check_namespaces_drop_with_namespace(subject: Subject) -> None:
    """Dropping a namespace that holds a namespace is error 3."""
    if not subject.has_nested_namespaces:
        pytest.skip("namespaces do not nest")
    child = [*subject.new_namespace(), subject.new_name("child")]
    subject.create_namespace(child)
    with subject.expect_error(NOT_EMPTY):
        subject.drop_namespace(child[:-1])
    subject.describe_namespace(child)


def check_namespaces_drop_missing(subject: Subject) -> None:
    """Dropping a missing namespace, without a mode, succeeds or is error 1."""
    try:
        subject.drop_namespace(subject.missing_namespace())
    except NamespaceNotFoundError:
        subject.note("error 1")
    else:
        subject.note("succeeds")


def check_namespaces_create_again(subject: Subject) -> None:
    """A dropped namespace can be created again, and is empty then."""
    namespace = subject.new_namespace()
    subject.drop_namespace(namespace)
    subject.create_namespace(namespace)
    tables = subject.list_tables(namespace)
    assert tables == [], f"it holds {tables}"


def check_namespaces_dropped_is_forgotten(subject: Subject) -> None:
    """Declaring a table in a namespace that was just dropped is error 1."""
    table = subject.new_table(subject.new_namespace())
    subject.deregister(table)
    subject.drop_namespace(table[:-1])
    with subject.expect_error(NOT_FOUND):
        subject.declare(table)


def check_namespaces_levels(subject: Subject) -> None:
    """A namespace id without levels, or with an empty one, is error 13."""
    with subject.expect_error(INVALID, EXISTS):  # where the root is a namespace, it exists
        subject.create_namespace([])
    with subject.expect_error(INVALID):
        subject.create_namespace([*subject.parent, ""])


def check_namespaces_errors_name_it(subject: Subject) -> None:
    """Errors name the namespace that they are about."""
    namespace, missing = subject.new_namespace(), subject.missing_namespace()
    with subject.expect_error(EXISTS) as refusal:
        subject.create_namespace(namespace)
    assert namespace[-1] in refusal.message, f"create_namespace: {refusal.message!r} does not name {namespace[-1]}"
    with subject.expect_error(NOT_FOUND) as refusal:
        subject.describe_namespace(missing)
    assert missing[-1] in refusal.message, f"describe_namespace: {refusal.message!r} does not name {missing[-1]}"


BOGUS = "lancehouse_bogus"


def check_modes_create_mode(subject: Subject) -> None:
    """CreateNamespace with mode Create refuses what exists with error 2."""
    namespace = subject.new_namespace(mode="Create")
    for mode in ("Create", "create", "CREATE"):
        with subject.expect_error(EXISTS):
            subject.create_namespace(namespace, mode=mode)


def check_modes_exist_ok(subject: Subject) -> None:
    """CreateNamespace with mode ExistOk keeps what exists."""
    table = subject.new_table(subject.new_namespace())
    _check_mode_accepted(subject, table[:-1], "ExistOk")
    subject.describe(table)


def check_modes_exist_ok_creates(subject: Subject) -> None:
    """CreateNamespace with mode ExistOk creates what is missing."""
    subject.describe_namespace(subject.new_namespace(mode="ExistOk"))


def check_modes_overwrite(subject: Subject) -> None:
    """CreateNamespace with mode Overwrite replaces an empty namespace."""
    namespace = subject.new_namespace(properties={"before": "1"})
    try:
        subject.create_namespace(namespace, mode="Overwrite", properties={"after": "2"})
    except UnsupportedOperationError as error:
        pytest.skip(f"unsupported: Overwrite ({error})")
    except NamespaceAlreadyExistsError as error:
        raise AssertionError("mode Overwrite is not heeded: error 2") from error
    properties = subject.describe_namespace(namespace).properties
    if properties is not None:
        assert "before" not in properties, f"the old properties are there still: {properties}"
        assert properties.get("after") == "2", f"the new properties are not there: {properties}"


def check_modes_overwrite_non_empty(subject: Subject) -> None:
    """Overwrite of a namespace that holds a table is error 3, or empties it."""
    table = subject.new_table(subject.new_namespace())
    try:
        subject.create_namespace(table[:-1], mode="Overwrite")
    except NamespaceNotEmptyError:
        subject.note("error 3")
        subject.describe(table)
    except UnsupportedOperationError as error:
        pytest.skip(f"unsupported: Overwrite ({error})")
    except NamespaceAlreadyExistsError as error:
        raise AssertionError("mode Overwrite is not heeded: error 2") from error
    else:
        subject.note("emptied")
        names = subject.list_tables(table[:-1])
        assert names == [], f"it succeeds, and the namespace holds {names}"


@pytest.mark.parametrize("mode", ["exist_ok", "EXIST_OK", "existok", "EXISTOK"])
def check_modes_spelling_create(subject: Subject, mode: str) -> None:
    """Modes of CreateNamespace may be written in any case ({})."""
    _check_mode_accepted(subject, subject.new_namespace(), mode)


@pytest.mark.parametrize("mode", ["skip", "SKIP"])
def check_modes_spelling_drop(subject: Subject, mode: str) -> None:
    """Modes of DropNamespace may be written in any case ({})."""
    _check_missing_skipped(subject, mode)


def check_modes_drop_fail(subject: Subject) -> None:
    """DropNamespace with mode Fail on a missing namespace is error 1."""
    with subject.expect_error(NOT_FOUND):
        subject.drop_namespace(subject.missing_namespace(), mode="Fail")


def check_modes_drop_skip(subject: Subject) -> None:
    """DropNamespace with mode Skip on a missing namespace succeeds."""
    _check_missing_skipped(subject, "Skip")


def check_modes_restrict(subject: Subject) -> None:
    """DropNamespace with behavior Restrict on what is not empty is error 3."""
    table = subject.new_table(subject.new_namespace())
    with subject.expect_error(ErrorCode.NAMESPACE_NOT_EMPTY):
        subject.drop_namespace(table[:-1], behavior="Restrict")
    subject.describe(table)


def check_modes_cascade(subject: Subject) -> None:
    """DropNamespace with behavior Cascade works, or says that it is unsupported."""
    table = subject.new_table(subject.new_namespace())
    try:
        subject.drop_namespace(table[:-1], behavior="Cascade")
    except UnsupportedOperationError:
        subject.describe(table)
        subject.note("UnsupportedOperationError")
        return
    except NamespaceNotEmptyError as error:
        raise AssertionError("behavior Cascade is not heeded: error 3") from error
    with subject.expect_error(ErrorCode.TABLE_NOT_FOUND, NOT_FOUND):
        subject.describe(table)
    with subject.expect_error(NOT_FOUND):
        subject.describe_namespace(table[:-1])
    subject.note("works")


def check_modes_bogus_create(subject: Subject) -> None:
    """An unknown mode of CreateNamespace is error 13, and creates nothing."""
    namespace = [*subject.parent, subject.new_name("n")]
    with subject.expect_error(INVALID):
        subject.create_namespace(namespace, mode=BOGUS)
    with subject.expect_error(NOT_FOUND):
        subject.describe_namespace(namespace)


def check_modes_bogus_drop(subject: Subject) -> None:
    """An unknown mode of DropNamespace is error 13, and drops nothing."""
    namespace = subject.new_namespace()
    with subject.expect_error(INVALID):
        subject.drop_namespace(namespace, mode=BOGUS)
    subject.describe_namespace(namespace)


def check_modes_bogus_behavior(subject: Subject) -> None:
    """An unknown behavior of DropNamespace is error 13, and drops nothing."""
    namespace = subject.new_namespace()
    with subject.expect_error(INVALID):
        subject.drop_namespace(namespace, behavior=BOGUS)
    subject.describe_namespace(namespace)


def check_modes_bogus_register(subject: Subject) -> None:
    """An unknown mode of RegisterTable is error 13."""
    table = [*subject.home, subject.new_name()]
    subject.created_objects.add_table(table)
    with subject.expect_error(INVALID):
        subject.call("register_table", table, location=subject.new_location(table), mode=BOGUS)


def check_modes_bogus_create_table(subject: Subject) -> None:
    """An unknown mode of CreateTable is error 13, and creates nothing."""
    table = [*subject.home, subject.new_name()]
    subject.created_objects.add_table(table)
    with subject.expect_error(INVALID):
        subject.call("create_table", table, to_ipc(ROWS), mode=BOGUS)
    assert table[-1] not in subject.list_tables(subject.home), "it was refused, and is listed nevertheless"


def _check_mode_accepted(subject: Subject, namespace: Id, mode: str) -> None:
    try:
        subject.create_namespace(namespace, mode=mode)
    except NamespaceAlreadyExistsError as error:
        raise AssertionError(f"mode {mode} is not heeded: error 2") from error


def _check_missing_skipped(subject: Subject, mode: str) -> None:
    try:
        subject.drop_namespace(subject.missing_namespace(), mode=mode)
    except NamespaceNotFoundError as error:
        raise AssertionError(f"mode {mode} is not heeded: error 1") from error
