"""Checks of tables as entries of a catalog: declare, describe, register, rename and drop them, and their details."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import lance
import pytest
from lance_namespace.errors import ErrorCode, InvalidInputError, LanceNamespaceError, UnsupportedOperationError

from lancehouse.conformance.subject import ROWS, Id, Subject, local_path

NOT_FOUND = ErrorCode.TABLE_NOT_FOUND
EXISTS = ErrorCode.TABLE_ALREADY_EXISTS
NO_NAMESPACE = ErrorCode.NAMESPACE_NOT_FOUND
INVALID = ErrorCode.INVALID_INPUT


def check_tables_declare(subject: Subject) -> None:
    """A declared table is described at the location that declare returned."""
    table = [*subject.home, subject.new_name()]
    declared = subject.declare(table)
    described = subject.describe(table)
    assert declared.location, "declare_table returned no location"
    assert described.location == declared.location, f"declared at {declared.location}, described {described.location}"
    subject.note(
        "the caller may choose the location" if subject.can_choose_location else "it chooses the location itself"
    )


def check_tables_declare_without_location(subject: Subject) -> None:
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


def check_tables_declare_existing(subject: Subject) -> None:
    """Declaring a table that exists is error 5, and changes nothing."""
    table = subject.new_table()
    before = subject.describe(table).location
    with subject.expect_error(EXISTS):
        subject.declare(table)
    assert subject.describe(table).location == before, "its location has changed"


def check_tables_declare_in_missing(subject: Subject) -> None:
    """Declaring a table in a missing namespace is error 1."""
    with subject.expect_error(NO_NAMESPACE):
        subject.declare([*subject.parent, subject.new_name("missing"), subject.new_name()])


def check_tables_declare_again(subject: Subject) -> None:
    """A deregistered name can be declared again."""
    table = subject.new_table()
    subject.deregister(table)
    subject.declare(table)
    subject.describe(table)


def check_tables_listed_iff_it_exists(subject: Subject) -> None:
    """A table is listed, once, from declare to deregister."""
    namespace = subject.new_namespace()
    table = subject.new_table(namespace)
    listed = subject.list_tables(namespace)
    assert listed == [table[-1]], f"after declare_table the list is {listed}"
    subject.deregister(table)
    listed = subject.list_tables(namespace)
    assert listed == [], f"after deregister_table the list is {listed}"


def check_tables_list_is_bare(subject: Subject) -> None:
    """Tables are listed by their bare names, or with the namespace in front."""
    namespace = subject.new_namespace()
    table = subject.new_table(namespace)
    names = [name for page in subject.table_pages(namespace) for name in page]
    assert names, "the list is empty"
    assert names[0] in (table[-1], ".".join(table), "$".join(table)), f"{'.'.join(table)} is listed as {names[0]!r}"
    subject.note("listed bare" if names[0] == table[-1] else "listed with the namespace in front")


def check_tables_list_missing(subject: Subject) -> None:
    """Listing the tables of a missing namespace is error 1."""
    with subject.expect_error(NO_NAMESPACE):
        subject.list_tables(subject.missing_namespace())


def check_tables_same_name_twice(subject: Subject) -> None:
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


def check_tables_describe_missing(subject: Subject) -> None:
    """Describing a missing table is error 4."""
    with subject.expect_error(NOT_FOUND):
        subject.describe(subject.missing_table())


def check_tables_describe_in_missing(subject: Subject) -> None:
    """Describing a table in a missing namespace is error 4 or 1."""
    with subject.expect_error(NOT_FOUND, NO_NAMESPACE):
        subject.describe([*subject.parent, subject.new_name("missing"), subject.new_name()])


def check_tables_deregister(subject: Subject) -> None:
    """A deregistered table is gone."""
    table = subject.new_table()
    subject.deregister(table)
    with subject.expect_error(NOT_FOUND):
        subject.describe(table)


def check_tables_deregister_missing(subject: Subject) -> None:
    """Deregistering a missing table is error 4."""
    with subject.expect_error(NOT_FOUND):
        subject.deregister(subject.missing_table())


def check_tables_levels(subject: Subject) -> None:
    """A table id with too few levels, or an empty one, is error 13."""
    with subject.expect_error(INVALID):
        subject.declare([], location=None)
    with subject.expect_error(INVALID):
        subject.declare([*subject.home, ""])
    with subject.expect_error(INVALID):
        subject.describe([])
    if subject.parent:
        _check_short_id(subject, [subject.parent[0], subject.new_name()])


def check_tables_too_many_levels(subject: Subject) -> None:
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


def check_tables_errors_name_it(subject: Subject) -> None:
    """Errors name the table that they are about."""
    table, missing = subject.new_table(), subject.missing_table()
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


def check_entries_namespace_exists(subject: Subject) -> None:
    """namespace_exists answers for a namespace that is there."""
    subject.call("namespace_exists", subject.new_namespace())


def check_entries_namespace_exists_missing(subject: Subject) -> None:
    """namespace_exists is error 1 for a missing one."""
    with subject.expect_error(NO_NAMESPACE):
        subject.call("namespace_exists", subject.missing_namespace())


def check_entries_table_exists(subject: Subject) -> None:
    """table_exists answers for a table that is there."""
    subject.call("table_exists", subject.new_table())


def check_entries_table_exists_missing(subject: Subject) -> None:
    """table_exists is error 4 for a missing one."""
    with subject.expect_error(NOT_FOUND):
        subject.call("table_exists", subject.missing_table())


def check_entries_register(subject: Subject) -> None:
    """A registered table opens by its name."""
    table = subject.new_dataset()
    location = _detach(subject, table)
    other = [*subject.home, subject.new_name()]
    _register(subject, other, location)
    assert subject.read(other).num_rows == ROWS.num_rows, "its rows are not there"
    assert other[-1] in subject.list_tables(subject.home), "it is not listed"


def check_entries_register_existing(subject: Subject) -> None:
    """Registering a name that exists is error 5."""
    table = subject.new_dataset()
    location = _detach(subject, table)
    existing = subject.new_table()
    with subject.expect_error(EXISTS):
        _register(subject, existing, location)


def check_entries_register_overwrite(subject: Subject) -> None:
    """RegisterTable with mode Overwrite replaces the entry."""
    table = subject.new_dataset()
    location = _detach(subject, table)
    existing = subject.new_table()
    _register(subject, existing, location, mode="Overwrite")
    assert subject.read(existing).num_rows == ROWS.num_rows, "the entry still leads elsewhere"


def check_entries_register_in_missing(subject: Subject) -> None:
    """Registering a table in a missing namespace is error 1."""
    location = _detach(subject, subject.new_dataset())
    with subject.expect_error(NO_NAMESPACE):
        _register(subject, [*subject.parent, subject.new_name("missing"), subject.new_name()], location)


def check_entries_drop_table(subject: Subject) -> None:
    """drop_table removes the entry and the data, or leaves the data to a server that keeps them for a while."""
    table = subject.new_dataset()
    described = subject.describe(table)
    keeps_dropped = getattr(subject.raw_client, "keeps_dropped", None)  # the client of our server has it
    keeps = keeps_dropped is not None and keeps_dropped(table)
    subject.call("drop_table", table)
    with subject.expect_error(NOT_FOUND):
        subject.describe(table)
    if keeps:
        return
    there = _can_open(described.location or "", described.storage_options)
    assert not there, f"the data lie at {described.location} still"


def check_entries_drop_declared(subject: Subject) -> None:
    """drop_table removes a table that has no data yet."""
    table = subject.new_table()
    subject.call("drop_table", table)
    with subject.expect_error(NOT_FOUND):
        subject.describe(table)


def check_entries_drop_missing(subject: Subject) -> None:
    """drop_table on a missing table is error 4."""
    with subject.expect_error(NOT_FOUND):
        subject.call("drop_table", subject.missing_table())


def check_entries_rename(subject: Subject) -> None:
    """A renamed table has its rows under the new name, and the old one is gone."""
    table = subject.new_dataset()
    renamed = [*subject.home, subject.new_name()]
    subject.created_objects.add_table(renamed)
    subject.call("rename_table", table, new_table_name=renamed[-1])
    assert subject.read(renamed).num_rows == ROWS.num_rows, "its rows are not there"
    with subject.expect_error(NOT_FOUND):
        subject.describe(table)
    listed = subject.list_tables(subject.home)
    assert renamed[-1] in listed, "the new name is not listed"
    assert table[-1] not in listed, "the old name is listed still"


def check_entries_rename_to_existing(subject: Subject) -> None:
    """Renaming a table to a name that exists is error 5."""
    table, existing = subject.new_table(), subject.new_table()
    with subject.expect_error(EXISTS):
        subject.call("rename_table", table, new_table_name=existing[-1])
    subject.describe(table)


def check_entries_rename_missing(subject: Subject) -> None:
    """Renaming a missing table is error 4."""
    missing = subject.missing_table()
    with subject.expect_error(NOT_FOUND):
        subject.call("rename_table", missing, new_table_name=subject.new_name())


def check_entries_rename_across(subject: Subject) -> None:
    """A table can be renamed into another namespace."""
    table, namespace = subject.new_dataset(), subject.new_namespace()
    moved = [*namespace, subject.new_name()]
    subject.created_objects.add_table(moved)
    subject.call("rename_table", table, new_table_name=moved[-1], new_namespace_id=namespace)
    assert subject.read(moved).num_rows == ROWS.num_rows, "its rows are not there"


def check_entries_list_all(subject: Subject) -> None:
    """list_all_tables finds tables of several namespaces."""
    tables = [subject.new_table(subject.new_namespace()) for _ in range(2)]
    if subject.has_nested_namespaces:
        child = [*tables[0][:-1], subject.new_name("child")]
        subject.create_namespace(child)
        tables.append(subject.new_table(child))
    listed = [name for page in subject.pages("list_all_tables", subject.parent) for name in page.tables]
    counts = {table[-1]: sum(name.endswith(table[-1]) for name in listed) for table in tables}
    assert set(counts.values()) == {1}, f"of {list(counts)} it lists {[n for n in listed if subject.token in n][:4]}"


def _detach(subject: Subject, table: Id) -> str:
    """Deregister a table, and return the location where its data stays."""
    location = subject.describe(table).location or ""
    subject.deregister(table)
    return location


def _register(subject: Subject, table: Id, location: str, mode: str | None = None) -> None:
    """Register a table by its location, or by the last part of it where the implementation needs that."""
    subject.created_objects.add_table(table, location)
    try:
        subject.call("register_table", table, location=location, mode=mode)
    except InvalidInputError:
        if subject.can_choose_location:
            raise
        within = location.rstrip("/").rpartition("/")[2]
        subject.call("register_table", table, location=within, mode=mode)
        subject.note("it wants a location relative to its root")


def _can_open(location: str, storage_options: dict[str, str] | None) -> bool:
    path = local_path(location)
    try:
        lance.dataset(location if path is None else str(path), storage_options=storage_options)
    except (ValueError, OSError):
        return False
    return True


DETAILS = "load_detailed_metadata"


@contextmanager
def skip_if_unsupported(what: str) -> Iterator[None]:
    """Skip a check if an option is unsupported, though its operation (describe or list) is a basic one."""
    try:
        yield
    except UnsupportedOperationError:
        pytest.skip(f"unsupported: {what}")


def check_details_only_declared(subject: Subject) -> None:
    """check_declared tells a table without data from one with data."""
    empty, full = subject.new_table(), subject.new_dataset()
    with skip_if_unsupported("check_declared"):
        flags = [subject.describe(table, check_declared=True).is_only_declared for table in (empty, full)]
    if flags == [None, None]:
        pytest.skip("unsupported: check_declared (is_only_declared is null)")
    assert flags[0] is True, f"is_only_declared of a table without data is {flags[0]}"
    assert not flags[1], f"is_only_declared of a table with data is {flags[1]}"


def check_details_include_declared(subject: Subject) -> None:
    """A list with include_declared=False has the tables with data only."""
    namespace = subject.new_namespace()
    empty, full = subject.new_table(namespace), subject.new_dataset(namespace=namespace)
    with skip_if_unsupported("include_declared"):
        listed = subject.list_tables(namespace, include_declared=False)
    assert listed == [full[-1]], f"of {empty[-1]} without and {full[-1]} with data it has {listed}"
    both = sorted(subject.list_tables(namespace, include_declared=True))
    assert both == sorted([empty[-1], full[-1]]), f"with include_declared=True it is {both}"


def check_details_detailed(subject: Subject) -> None:
    """load_detailed_metadata gives version and schema."""
    table = subject.new_dataset()
    with skip_if_unsupported(DETAILS):
        details = subject.describe(table, load_detailed_metadata=True)
    assert details.version, f"version is {details.version}"
    assert details.var_schema, "schema is null"
    names = [field.name for field in details.var_schema.fields]
    assert names == ROWS.column_names, f"the schema has the columns {names}, not {ROWS.column_names}"


def check_details_detailed_stats(subject: Subject) -> None:
    """load_detailed_metadata gives statistics."""
    with skip_if_unsupported(DETAILS):
        stats = subject.describe(subject.new_dataset(), load_detailed_metadata=True).stats
    assert stats is not None, "stats is null"


def check_details_detailed_declared(subject: Subject) -> None:
    """load_detailed_metadata of a table without data is an answer, or a clean error."""
    table = subject.new_table()
    try:
        with skip_if_unsupported(DETAILS):
            version = subject.describe(table, load_detailed_metadata=True).version
    except LanceNamespaceError as error:
        subject.note(f"error {int(error.code)}")
    else:
        assert not version, f"a table without data has version {version}"


def check_details_table_uri(subject: Subject) -> None:
    """with_table_uri gives a complete address."""
    with skip_if_unsupported("with_table_uri"):
        uri = subject.describe(subject.new_dataset(), with_table_uri=True, load_detailed_metadata=True).table_uri
    if uri is None:
        pytest.skip("unsupported: with_table_uri (it is null)")
    assert "://" in uri, f"it is {uri!r}"


def check_details_vend_credentials(subject: Subject) -> None:
    """vend_credentials=True is answered where there is nothing to vend."""
    with skip_if_unsupported("vend_credentials"):
        subject.describe(subject.new_table(), vend_credentials=True)


def check_details_describe_version(subject: Subject) -> None:
    """Describing a version that does not exist is error 11."""
    table = subject.new_dataset()
    with skip_if_unsupported(DETAILS), subject.expect_error(ErrorCode.TABLE_VERSION_NOT_FOUND):
        subject.describe(table, version=999, load_detailed_metadata=True)
