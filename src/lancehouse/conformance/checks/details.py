"""Checks of optional fields of describe and list: declared only, details, table URI, credentials."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from lance_namespace.errors import ErrorCode, LanceNamespaceError, UnsupportedOperationError

from lancehouse.conformance.subject import ROWS, Subject

DETAILS = "load_detailed_metadata"


@contextmanager
def skip_if_unsupported(what: str) -> Iterator[None]:
    """Skip a check if an option is unsupported, though its operation (describe or list) is a basic one."""
    try:
        yield
    except UnsupportedOperationError:
        pytest.skip(f"unsupported: {what}")


def check_only_declared(subject: Subject) -> None:
    """check_declared tells a table without data from one with data."""
    empty, full = subject.new_table(), subject.new_dataset()
    with skip_if_unsupported("check_declared"):
        seen = [subject.describe(table, check_declared=True).is_only_declared for table in (empty, full)]
    if seen == [None, None]:
        pytest.skip("unsupported: check_declared (is_only_declared is null)")
    assert seen[0] is True, f"is_only_declared of a table without data is {seen[0]}"
    assert not seen[1], f"is_only_declared of a table with data is {seen[1]}"


def check_include_declared(subject: Subject) -> None:
    """A list with include_declared=False has the tables with data only."""
    namespace = subject.new_namespace()
    empty, full = subject.new_table(namespace), subject.new_dataset(namespace=namespace)
    with skip_if_unsupported("include_declared"):
        listed = subject.list_tables(namespace, include_declared=False)
    assert listed == [full[-1]], f"of {empty[-1]} without and {full[-1]} with data it has {listed}"
    both = sorted(subject.list_tables(namespace, include_declared=True))
    assert both == sorted([empty[-1], full[-1]]), f"with include_declared=True it is {both}"


def check_detailed(subject: Subject) -> None:
    """load_detailed_metadata gives version and schema."""
    table = subject.new_dataset()
    with skip_if_unsupported(DETAILS):
        details = subject.describe(table, load_detailed_metadata=True)
    assert details.version, f"version is {details.version}"
    assert details.var_schema, "schema is null"
    names = [field.name for field in details.var_schema.fields]
    assert names == ROWS.column_names, f"the schema has the columns {names}, not {ROWS.column_names}"


def check_detailed_stats(subject: Subject) -> None:
    """load_detailed_metadata gives statistics."""
    with skip_if_unsupported(DETAILS):
        stats = subject.describe(subject.new_dataset(), load_detailed_metadata=True).stats
    assert stats is not None, "stats is null"


def check_detailed_declared(subject: Subject) -> None:
    """load_detailed_metadata of a table without data is an answer, or a clean error."""
    table = subject.new_table()
    try:
        with skip_if_unsupported(DETAILS):
            version = subject.describe(table, load_detailed_metadata=True).version
    except LanceNamespaceError as error:
        subject.note(f"error {int(error.code)}")
    else:
        assert not version, f"a table without data has version {version}"


def check_table_uri(subject: Subject) -> None:
    """with_table_uri gives a complete address."""
    with skip_if_unsupported("with_table_uri"):
        uri = subject.describe(subject.new_dataset(), with_table_uri=True, load_detailed_metadata=True).table_uri
    if uri is None:
        pytest.skip("unsupported: with_table_uri (it is null)")
    assert "://" in uri, f"it is {uri!r}"


def check_vend_credentials(subject: Subject) -> None:
    """vend_credentials=True is answered where there is nothing to vend."""
    with skip_if_unsupported("vend_credentials"):
        subject.describe(subject.new_table(), vend_credentials=True)


def check_describe_version(subject: Subject) -> None:
    """Describing a version that does not exist is error 11."""
    table = subject.new_dataset()
    with skip_if_unsupported(DETAILS), subject.expect_error(ErrorCode.TABLE_VERSION_NOT_FOUND):
        subject.describe(table, version=999, load_detailed_metadata=True)
