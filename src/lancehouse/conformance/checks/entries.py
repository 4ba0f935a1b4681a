"""Checks of entries beyond the eight basic operations: exists, register, drop, rename, list all."""

from __future__ import annotations

import lance
from lance_namespace import (
    DropTableRequest,
    ListTablesRequest,
    NamespaceExistsRequest,
    RegisterTableRequest,
    RenameTableRequest,
    TableExistsRequest,
)
from lance_namespace.errors import ErrorCode, InvalidInputError

from lancehouse.conformance.subject import ROWS, Id, Subject, local_path

NOT_FOUND = ErrorCode.TABLE_NOT_FOUND
EXISTS = ErrorCode.TABLE_ALREADY_EXISTS
NO_NAMESPACE = ErrorCode.NAMESPACE_NOT_FOUND


def check_namespace_exists(subject: Subject) -> None:
    """namespace_exists answers for a namespace that is there."""
    subject.client.namespace_exists(NamespaceExistsRequest(id=subject.new_namespace()))


def check_namespace_exists_missing(subject: Subject) -> None:
    """namespace_exists is error 1 for a missing one."""
    with subject.expect_error(NO_NAMESPACE):
        subject.client.namespace_exists(NamespaceExistsRequest(id=[*subject.parent, subject.new_name("missing")]))


def check_table_exists(subject: Subject) -> None:
    """table_exists answers for a table that is there."""
    subject.client.table_exists(TableExistsRequest(id=subject.new_table()))


def check_table_exists_missing(subject: Subject) -> None:
    """table_exists is error 4 for a missing one."""
    with subject.expect_error(NOT_FOUND):
        subject.client.table_exists(TableExistsRequest(id=[*subject.home, subject.new_name("missing")]))


def check_register(subject: Subject) -> None:
    """A registered table opens by its name."""
    table = subject.new_dataset()
    location = _detach(subject, table)
    other = [*subject.home, subject.new_name()]
    _register(subject, other, location)
    assert subject.read(other).num_rows == ROWS.num_rows, "its rows are not there"
    assert other[-1] in subject.list_tables(subject.home), "it is not listed"


def check_register_existing(subject: Subject) -> None:
    """Registering a name that exists is error 5."""
    table = subject.new_dataset()
    location = _detach(subject, table)
    taken = subject.new_table()
    with subject.expect_error(EXISTS):
        _register(subject, taken, location)


def check_register_overwrite(subject: Subject) -> None:
    """RegisterTable with mode Overwrite replaces the entry."""
    table = subject.new_dataset()
    location = _detach(subject, table)
    taken = subject.new_table()
    _register(subject, taken, location, mode="Overwrite")
    assert subject.read(taken).num_rows == ROWS.num_rows, "the entry still leads elsewhere"


def check_register_in_missing(subject: Subject) -> None:
    """Registering a table in a missing namespace is error 1."""
    location = _detach(subject, subject.new_dataset())
    with subject.expect_error(NO_NAMESPACE):
        _register(subject, [*subject.parent, subject.new_name("missing"), subject.new_name()], location)


def check_drop_table(subject: Subject) -> None:
    """drop_table removes the entry and the data, or leaves the data to a server that keeps them for a while."""
    table = subject.new_dataset()
    described = subject.describe(table)
    keeps_dropped = getattr(subject.raw_client, "keeps_dropped", None)  # the client of our server has it
    keeps = keeps_dropped is not None and keeps_dropped(table)
    subject.client.drop_table(DropTableRequest(id=table))
    with subject.expect_error(NOT_FOUND):
        subject.describe(table)
    if keeps:
        return
    there = _can_open(described.location or "", described.storage_options)
    assert not there, f"the data lie at {described.location} still"


def check_drop_declared(subject: Subject) -> None:
    """drop_table removes a table that has no data yet."""
    table = subject.new_table()
    subject.client.drop_table(DropTableRequest(id=table))
    with subject.expect_error(NOT_FOUND):
        subject.describe(table)


def check_drop_missing(subject: Subject) -> None:
    """drop_table on a missing table is error 4."""
    with subject.expect_error(NOT_FOUND):
        subject.client.drop_table(DropTableRequest(id=[*subject.home, subject.new_name("missing")]))


def check_rename(subject: Subject) -> None:
    """A renamed table has its rows under the new name, and the old one is gone."""
    table = subject.new_dataset()
    renamed = [*subject.home, subject.new_name()]
    subject.created_objects.add_table(renamed)
    subject.client.rename_table(RenameTableRequest(id=table, new_table_name=renamed[-1]))
    assert subject.read(renamed).num_rows == ROWS.num_rows, "its rows are not there"
    with subject.expect_error(NOT_FOUND):
        subject.describe(table)
    listed = subject.list_tables(subject.home)
    assert renamed[-1] in listed, "the new name is not listed"
    assert table[-1] not in listed, "the old name is listed still"


def check_rename_to_existing(subject: Subject) -> None:
    """Renaming a table to a name that exists is error 5."""
    table, taken = subject.new_table(), subject.new_table()
    with subject.expect_error(EXISTS):
        subject.client.rename_table(RenameTableRequest(id=table, new_table_name=taken[-1]))
    subject.describe(table)


def check_rename_missing(subject: Subject) -> None:
    """Renaming a missing table is error 4."""
    missing = [*subject.home, subject.new_name("missing")]
    with subject.expect_error(NOT_FOUND):
        subject.client.rename_table(RenameTableRequest(id=missing, new_table_name=subject.new_name()))


def check_rename_across(subject: Subject) -> None:
    """A table can be renamed into another namespace."""
    table, namespace = subject.new_dataset(), subject.new_namespace()
    moved = [*namespace, subject.new_name()]
    subject.created_objects.add_table(moved)
    request = RenameTableRequest(id=table, new_table_name=moved[-1], new_namespace_id=namespace)
    subject.client.rename_table(request)
    assert subject.read(moved).num_rows == ROWS.num_rows, "its rows are not there"


def check_list_all(subject: Subject) -> None:
    """list_all_tables finds tables of several namespaces."""
    tables = [subject.new_table(subject.new_namespace()) for _ in range(2)]
    if subject.has_nested_namespaces:
        child = [*tables[0][:-1], subject.new_name("child")]
        subject.create_namespace(child)
        tables.append(subject.new_table(child))
    listed: list[str] = []
    token: str | None = None
    while token or not listed:
        page = subject.client.list_all_tables(ListTablesRequest(id=subject.parent, page_token=token))
        listed += page.tables
        token = page.page_token
        if not token:
            break
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
        subject.client.register_table(RegisterTableRequest(id=table, location=location, mode=mode))
    except InvalidInputError:
        if subject.can_choose_location:
            raise
        within = location.rstrip("/").rpartition("/")[2]
        subject.client.register_table(RegisterTableRequest(id=table, location=within, mode=mode))
        subject.note("it wants a location relative to its root")


def _can_open(location: str, storage_options: dict[str, str] | None) -> bool:
    path = local_path(location)
    try:
        lance.dataset(location if path is None else str(path), storage_options=storage_options)
    except (ValueError, OSError):
        return False
    return True
