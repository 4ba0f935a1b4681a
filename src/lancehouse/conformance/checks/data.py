"""Checks that pylance opens and writes tables by their ids."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import lance
import pyarrow as pa
import pytest
from lance_namespace import RegisterTableRequest
from lance_namespace.errors import ErrorCode, InvalidInputError, UnsupportedOperationError

from lancehouse.conformance.subject import ROWS, Id, Subject

WRITERS = 4

KINDS = pa.table(
    {
        "id": pa.array([1, 2], pa.int64()),
        "flag": pa.array([True, None]),
        "price": pa.array([1.5, 2.5], pa.float32()),
        "tags": pa.array([["a", "b"], None]),
        "place": pa.array([{"x": 1, "y": "one"}, {"x": 2, "y": None}]),
        "blob": pa.array([b"\x00\xff", b""]),
        "at": pa.array([0, 1], pa.timestamp("us", tz="UTC")),
    }
)


def check_create(subject: Subject) -> None:
    """lance.write_dataset creates a table by its name, and lance.dataset reads it."""
    if not subject.has_default_location:
        pytest.skip("a new table needs a location, which pylance does not give")
    table = [*subject.home, subject.new_name()]
    subject.write(table, ROWS, "create")
    _check_rows(subject, table, ROWS)
    assert table[-1] in subject.list_tables(subject.home), "it is not listed"


def check_append(subject: Subject) -> None:
    """lance.write_dataset appends to a table by its name."""
    table = subject.new_dataset()
    subject.write(table, ROWS, "append")
    rows = subject.read(table).num_rows
    assert rows == 2 * ROWS.num_rows, f"there are {rows} rows, not {2 * ROWS.num_rows}"


def check_overwrite(subject: Subject) -> None:
    """lance.write_dataset overwrites a table by its name."""
    table = subject.new_dataset()
    subject.write(table, KINDS, "overwrite")
    _check_rows(subject, table, KINDS)


def check_kinds(subject: Subject) -> None:
    """Nested, binary and time columns come back as they were written."""
    _check_rows(subject, subject.new_dataset(KINDS), KINDS)


def check_old_version(subject: Subject) -> None:
    """lance.dataset opens an old version by the table's name."""
    table = subject.new_dataset()
    version = lance.dataset(namespace_client=subject.raw_client, table_id=table).version
    subject.write(table, ROWS, "append")
    rows = subject.read(table, version=version).num_rows
    assert rows == ROWS.num_rows, f"version {version} has {rows} rows, not {ROWS.num_rows}"


def check_create_existing(subject: Subject) -> None:
    """lance.write_dataset in mode create on a table that exists is error 5."""
    if not subject.has_default_location:
        pytest.skip("a new table needs a location, which pylance does not give")
    table = subject.new_dataset()
    with subject.expect_error(ErrorCode.TABLE_ALREADY_EXISTS):
        subject.write(table, KINDS, "create")
    _check_rows(subject, table, ROWS)


def check_read_missing(subject: Subject) -> None:
    """lance.dataset on a missing table is error 4."""
    with subject.expect_error(ErrorCode.TABLE_NOT_FOUND):
        subject.read([*subject.home, subject.new_name("missing")])


def check_concurrent_appends(subject: Subject) -> None:
    """Appends of several writers at once all land."""
    table = subject.new_dataset()
    with ThreadPoolExecutor(WRITERS) as pool:
        for done in [pool.submit(subject.write, table, ROWS, "append") for _ in range(WRITERS)]:
            done.result()
    rows = subject.read(table).num_rows
    assert rows == (WRITERS + 1) * ROWS.num_rows, f"there are {rows} rows, not {(WRITERS + 1) * ROWS.num_rows}"


def check_deregister_keeps_data(subject: Subject) -> None:
    """Deregister leaves the data in place."""
    table = subject.new_dataset()
    described = subject.describe(table)
    subject.deregister(table)
    rows = subject.count_rows_at(described.location or "", described.storage_options)
    assert rows == ROWS.num_rows, f"{rows} of {ROWS.num_rows} rows are left at {described.location}"


def check_register_again(subject: Subject) -> None:
    """A deregistered table that is registered again has its rows."""
    table = subject.new_dataset()
    location = subject.describe(table).location or ""
    subject.deregister(table)
    _register_or_declare(subject, table, location)
    _check_rows(subject, table, ROWS)


def _register_or_declare(subject: Subject, table: Id, location: str) -> None:
    """Register a table; where that is not supported, declare it at the same location."""
    try:
        subject.client.register_table(RegisterTableRequest(id=table, location=location))
    except UnsupportedOperationError:
        subject.declare(table, location=location)
        subject.note("by declare_table: register_table is not supported")
    except InvalidInputError:
        within = location.rstrip("/").rpartition("/")[2]
        subject.client.register_table(RegisterTableRequest(id=table, location=within))
        subject.note("it wants a location relative to its root")


def _check_rows(subject: Subject, table: Id, expected: pa.Table) -> None:
    read = subject.read(table)
    assert read.schema.names == expected.schema.names, f"the columns are {read.schema.names}"
    assert read.equals(expected), f"the rows are {read.to_pylist()}"
