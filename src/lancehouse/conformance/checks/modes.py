"""Checks of modes and behaviours: what happens to objects that exist already, or do not exist."""

from __future__ import annotations

import pytest
from lance_namespace import CreateTableRequest, RegisterTableRequest
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
INVALID = ErrorCode.INVALID_INPUT
BOGUS = "lancehouse_bogus"


def check_create_mode(subject: Subject) -> None:
    """CreateNamespace with mode Create refuses what exists with error 2."""
    namespace = subject.new_namespace(mode="Create")
    for mode in ("Create", "create", "CREATE"):
        with subject.expect_error(EXISTS):
            subject.create_namespace(namespace, mode=mode)


def check_exist_ok(subject: Subject) -> None:
    """CreateNamespace with mode ExistOk keeps what exists."""
    table = subject.new_table(subject.new_namespace())
    _check_mode_accepted(subject, table[:-1], "ExistOk")
    subject.describe(table)


def check_exist_ok_creates(subject: Subject) -> None:
    """CreateNamespace with mode ExistOk creates what is missing."""
    subject.describe_namespace(subject.new_namespace(mode="ExistOk"))


def check_overwrite(subject: Subject) -> None:
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


def check_overwrite_non_empty(subject: Subject) -> None:
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
        left = subject.list_tables(table[:-1])
        assert left == [], f"it succeeds, and the namespace holds {left}"


@pytest.mark.parametrize("mode", ["exist_ok", "EXIST_OK", "existok", "EXISTOK"])
def check_spelling_create(subject: Subject, mode: str) -> None:
    """Modes of CreateNamespace may be written in any case ({})."""
    _check_mode_accepted(subject, subject.new_namespace(), mode)


@pytest.mark.parametrize("mode", ["skip", "SKIP"])
def check_spelling_drop(subject: Subject, mode: str) -> None:
    """Modes of DropNamespace may be written in any case ({})."""
    _check_missing_skipped(subject, mode)


def check_drop_fail(subject: Subject) -> None:
    """DropNamespace with mode Fail on a missing namespace is error 1."""
    with subject.expect_error(NOT_FOUND):
        subject.drop_namespace([*subject.parent, subject.new_name("missing")], mode="Fail")


def check_drop_skip(subject: Subject) -> None:
    """DropNamespace with mode Skip on a missing namespace succeeds."""
    _check_missing_skipped(subject, "Skip")


def check_restrict(subject: Subject) -> None:
    """DropNamespace with behavior Restrict on what is not empty is error 3."""
    table = subject.new_table(subject.new_namespace())
    with subject.expect_error(ErrorCode.NAMESPACE_NOT_EMPTY):
        subject.drop_namespace(table[:-1], behavior="Restrict")
    subject.describe(table)


def check_cascade(subject: Subject) -> None:
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


def check_bogus_create(subject: Subject) -> None:
    """An unknown mode of CreateNamespace is error 13, and creates nothing."""
    namespace = [*subject.parent, subject.new_name("n")]
    with subject.expect_error(INVALID):
        subject.create_namespace(namespace, mode=BOGUS)
    with subject.expect_error(NOT_FOUND):
        subject.describe_namespace(namespace)


def check_bogus_drop(subject: Subject) -> None:
    """An unknown mode of DropNamespace is error 13, and drops nothing."""
    namespace = subject.new_namespace()
    with subject.expect_error(INVALID):
        subject.drop_namespace(namespace, mode=BOGUS)
    subject.describe_namespace(namespace)


def check_bogus_behavior(subject: Subject) -> None:
    """An unknown behavior of DropNamespace is error 13, and drops nothing."""
    namespace = subject.new_namespace()
    with subject.expect_error(INVALID):
        subject.drop_namespace(namespace, behavior=BOGUS)
    subject.describe_namespace(namespace)


def check_bogus_register(subject: Subject) -> None:
    """An unknown mode of RegisterTable is error 13."""
    table = [*subject.home, subject.new_name()]
    subject.created_objects.add_table(table)
    with subject.expect_error(INVALID):
        request = RegisterTableRequest(id=table, location=subject.new_location(table), mode=BOGUS)
        subject.client.register_table(request)


def check_bogus_create_table(subject: Subject) -> None:
    """An unknown mode of CreateTable is error 13, and creates nothing."""
    table = [*subject.home, subject.new_name()]
    subject.created_objects.add_table(table)
    with subject.expect_error(INVALID):
        subject.client.create_table(CreateTableRequest(id=table, mode=BOGUS), to_ipc(ROWS))
    assert table[-1] not in subject.list_tables(subject.home), "it was refused, and is listed nevertheless"


def _check_mode_accepted(subject: Subject, namespace: Id, mode: str) -> None:
    try:
        subject.create_namespace(namespace, mode=mode)
    except NamespaceAlreadyExistsError as error:
        raise AssertionError(f"mode {mode} is not heeded: error 2") from error


def _check_missing_skipped(subject: Subject, mode: str) -> None:
    try:
        subject.drop_namespace([*subject.parent, subject.new_name("missing")], mode=mode)
    except NamespaceNotFoundError as error:
        raise AssertionError(f"mode {mode} is not heeded: error 1") from error
