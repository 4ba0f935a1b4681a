"""Checks of DeclareTable, ListTables, DescribeTable and DeregisterTable."""

from __future__ import annotations

import pytest
from lance_namespace.errors import ErrorCode, InvalidInputError

from lancehouse.conformance.subject import Id, Subject

NOT_FOUND = ErrorCode.TABLE_NOT_FOUND
EXISTS = ErrorCode.TABLE_ALREADY_EXISTS
NO_NAMESPACE = ErrorCode.NAMESPACE_NOT_FOUND
INVALID = ErrorCode.INVALID_INPUT


def check_declare(subject: Subject) -> None:
    """A declared table is described at the location that declare returned."""
    table = [*subject.home, subject.new_name()]
    declared = subject.declare(table)
    described = subject.describe(table)
    assert declared.location, "declare_table returned no location"
    assert described.location == declared.location, f"declared at {declared.location}, described {described.location}"
    subject.note(
        "the caller may choose the location" if subject.can_choose_location else "it chooses the location itself"
    )


def check_declare_without_location(subject: Subject) -> None:
    """Without a location the implementation chooses one, or says 13."""
    table = [*subject.home, subject.new_name()]
    try:
        declared = subject.declare(table, location=None)
    except InvalidInputError as error:
        subject.note(f"error 13: {error}")
        assert table[-1] not in subject.list_tables(subject.home), "it was refused, and is listed nevertheless"
    else:
        assert declared.location, "declare_table returned no location"
        subject.note("it chooses one")


def check_declare_existing(subject: Subject) -> None:
    """Declaring a table that exists is error 5, and changes nothing."""
    table = subject.new_table()
    before = subject.describe(table).location
    with subject.expect_error(EXISTS):
        subject.declare(table)
    assert subject.describe(table).location == before, "its location has changed"


def check_declare_in_missing(subject: Subject) -> None:
    """Declaring a table in a missing namespace is error 1."""
    with subject.expect_error(NO_NAMESPACE):
        subject.declare([*subject.parent, subject.new_name("missing"), subject.new_name()])


def check_declare_again(subject: Subject) -> None:
    """A deregistered name can be declared again."""
    table = subject.new_table()
    subject.deregister(table)
    subject.declare(table)
    subject.describe(table)


def check_listed_iff_it_exists(subject: Subject) -> None:
    """A table is listed, once, from declare to deregister."""
    namespace = subject.new_namespace()
    table = subject.new_table(namespace)
    listed = subject.list_tables(namespace)
    assert listed == [table[-1]], f"after declare_table the list is {listed}"
    subject.deregister(table)
    listed = subject.list_tables(namespace)
    assert listed == [], f"after deregister_table the list is {listed}"


def check_list_is_bare(subject: Subject) -> None:
    """Tables are listed by their bare names, or with the namespace in front."""
    namespace = subject.new_namespace()
    table = subject.new_table(namespace)
    names = [name for page in subject.table_pages(namespace) for name in page]
    assert names, "the list is empty"
    assert names[0] in (table[-1], ".".join(table), "$".join(table)), f"{'.'.join(table)} is listed as {names[0]!r}"
    subject.note("listed bare" if names[0] == table[-1] else "listed with the namespace in front")


def check_list_missing(subject: Subject) -> None:
    """Listing the tables of a missing namespace is error 1."""
    with subject.expect_error(NO_NAMESPACE):
        subject.list_tables([*subject.parent, subject.new_name("missing")])


def check_same_name_twice(subject: Subject) -> None:
    """One name in two namespaces is two tables."""
    name = subject.new_name()
    one, two = [*subject.new_namespace(), name], [*subject.new_namespace(), name]
    subject.declare(one)
    subject.declare(two)
    first, second = subject.describe(one).location, subject.describe(two).location
    assert first != second, f"both lie at {first}"
    subject.deregister(one)
    subject.describe(two)
    assert subject.list_tables(one[:-1]) == [], "the first is listed after its end"


def check_describe_missing(subject: Subject) -> None:
    """Describing a missing table is error 4."""
    with subject.expect_error(NOT_FOUND):
        subject.describe([*subject.home, subject.new_name("missing")])


def check_describe_in_missing(subject: Subject) -> None:
    """Describing a table in a missing namespace is error 4 or 1."""
    with subject.expect_error(NOT_FOUND, NO_NAMESPACE):
        subject.describe([*subject.parent, subject.new_name("missing"), subject.new_name()])


def check_deregister(subject: Subject) -> None:
    """A deregistered table is gone."""
    table = subject.new_table()
    subject.deregister(table)
    with subject.expect_error(NOT_FOUND):
        subject.describe(table)


def check_deregister_missing(subject: Subject) -> None:
    """Deregistering a missing table is error 4."""
    with subject.expect_error(NOT_FOUND):
        subject.deregister([*subject.home, subject.new_name("missing")])


def check_levels(subject: Subject) -> None:
    """A table id with too few levels, or an empty one, is error 13."""
    with subject.expect_error(INVALID):
        subject.declare([], location=None)
    with subject.expect_error(INVALID):
        subject.declare([*subject.home, ""])
    with subject.expect_error(INVALID):
        subject.describe([])
    if subject.parent:
        _check_short_id(subject, [subject.parent[0], subject.new_name()])


def check_too_many_levels(subject: Subject) -> None:
    """Where namespaces do not nest, a table id with too many levels is error 13."""
    if subject.has_nested_namespaces:
        pytest.skip("namespaces nest")
    deep = [*subject.home, subject.new_name(), subject.new_name()]
    with subject.expect_error(INVALID):
        subject.declare(deep)
    with subject.expect_error(INVALID):
        subject.describe(deep)
    with subject.expect_error(INVALID):
        subject.deregister(deep)


def check_errors_name_it(subject: Subject) -> None:
    """Errors name the table that they are about."""
    table, missing = subject.new_table(), [*subject.home, subject.new_name("missing")]
    with subject.expect_error(EXISTS) as refusal:
        subject.declare(table)
    assert table[-1] in refusal.message, f"declare_table: {refusal.message!r} does not name {table[-1]}"
    with subject.expect_error(NOT_FOUND) as refusal:
        subject.describe(missing)
    assert missing[-1] in refusal.message, f"describe_table: {refusal.message!r} does not name {missing[-1]}"
    with subject.expect_error(NOT_FOUND) as refusal:
        subject.deregister(missing)
    assert missing[-1] in refusal.message, f"deregister_table: {refusal.message!r} does not name {missing[-1]}"


def _check_short_id(subject: Subject, table: Id) -> None:
    """Check that all operations agree on whether a catalog can hold tables directly."""
    try:
        subject.declare(table)
    except InvalidInputError:
        with subject.expect_error(INVALID):
            subject.describe(table)
        with subject.expect_error(INVALID):
            subject.deregister(table)
    else:
        subject.note(f"a table may lie in {subject.parent[0]} itself")
