"""The implementation under test, with helper methods for the checks, which track errors and what they create."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, cast
from urllib.parse import unquote, urlsplit

import lance
import pyarrow as pa
from lance_namespace import (
    CreateNamespaceResponse,
    DeclareTableResponse,
    DescribeNamespaceResponse,
    DescribeTableResponse,
    LanceNamespace,
)
from lance_namespace.errors import (
    ErrorCode,
    InvalidInputError,
    LanceNamespaceError,
    NamespaceNotFoundError,
    PermissionDeniedError,
    TableNotFoundError,
    UnsupportedOperationError,
)

from lancehouse.catalog_walk import create_request
from lancehouse.conformance.target import ConformanceTarget

GONE = (NamespaceNotFoundError, TableNotFoundError, InvalidInputError)
"""Errors that an implementation may raise for an object that was never created, or is removed."""


class CreatedObjects:
    """Objects to remove at the end.

    Ids are added *before* the objects are created: a create may succeed on the server although its response is lost.
    """

    def __init__(self, client: LanceNamespace, token: str) -> None:
        self._client = client
        self._token = token
        self._namespaces: dict[tuple[str, ...], None] = {}
        self._tables: dict[tuple[str, ...], str | None] = {}
        self._locations: set[str] = set()
        self._long_lived: set[tuple[str, ...]] = set()

    def add_namespace(self, id: Sequence[str], *, keep: bool = False) -> None:
        """Add a namespace.

        Args:
            id: of the namespace.
            keep: whether to keep it until the end of the run, not only of the check.
        """
        self._namespaces[tuple(id)] = None
        if keep:
            self._long_lived.add(tuple(id))

    def add_table(self, id: Sequence[str], location: str | None = None, *, keep: bool = False) -> None:
        """Add a table, and its location as soon as it is known."""
        self._tables[tuple(id)] = location or self._tables.get(tuple(id))
        if location:
            self._locations.add(location)
        if keep:
            self._long_lived.add(tuple(id))

    def remove_entries(self, *, everything: bool = False) -> list[str]:
        """Remove the entries; return the failures, whose entries stay in the list."""
        failures: list[str] = []
        retained = set() if everything else self._long_lived
        for table in [table_id for table_id in self._tables if table_id not in retained]:
            if reason := self._remove_table(table, self._tables[table]):
                failures.append(f"table {'.'.join(table)}: {reason}")
            else:
                del self._tables[table]
        for namespace in sorted(
            (namespace_id for namespace_id in self._namespaces if namespace_id not in retained), key=len, reverse=True
        ):
            if reason := self._remove("drop_namespace", namespace):
                failures.append(f"namespace {'.'.join(namespace)}: {reason}")
            else:
                del self._namespaces[namespace]
        return failures

    def _remove_table(self, id: tuple[str, ...], location: str | None) -> str:
        """Remove a table's entry; data that is not on this machine can only be deleted by the implementation."""
        if location and local_path(location) is None:
            self._remove("drop_table", id)
        return self._remove("deregister_table", id)

    def _remove(self, operation: str, id: Sequence[str]) -> str:
        try:
            getattr(self._client, operation)(create_request(operation, id))
        except GONE:
            return ""
        except (LanceNamespaceError, AssertionError) as error:
            return str(error) or type(error).__name__
        return ""

    def remove_data(self) -> None:
        """Delete local folders that bear the token of this run, next to the locations of its tables.

        An implementation may encode names on disk, so the exact folder of a table is not known.
        """
        for anchor in {anchor for location in self._locations if (anchor := self._parent_of_ours(location))}:
            for folder in list(anchor.iterdir()) if anchor.is_dir() else []:
                if self._token in folder.name:
                    shutil.rmtree(folder, ignore_errors=True)

    def _parent_of_ours(self, location: str) -> Path | None:
        """Return the lowest folder above a location whose path does not contain the token of this run."""
        folder = local_path(location)
        if folder is None or self._token not in str(folder):
            return None
        return next(parent for parent in folder.parents if self._token not in str(parent))


def local_path(location: str) -> Path | None:
    """Return the local folder of a location, with links and dots resolved; None if it is elsewhere."""
    parts = urlsplit(location)
    if parts.scheme not in ("", "file"):
        return None
    path = location if not parts.scheme else unquote(parts.path)
    return Path(os.path.realpath(path))


BASIC = frozenset(
    {
        "create_namespace",
        "list_namespaces",
        "describe_namespace",
        "drop_namespace",
        "declare_table",
        "list_tables",
        "describe_table",
        "deregister_table",
    }
)
"""Operations that every implementation must support."""


@dataclass
class CheckLog:
    """What was observed during one check."""

    notes: list[str] = field(default_factory=list)
    operation: str = ""
    """The operation that was called last."""
    errors: list[str] = field(default_factory=list)
    """Messages of all errors of the run, which must not contain a secret."""

    def clear(self) -> None:
        """Reset notes and operation before the next check."""
        self.notes.clear()
        self.operation = ""

    def note(self, text: str) -> None:
        """Add a note, unless it is there already."""
        if text not in self.notes:
            self.notes.append(text)


class ErrorCheckingClient:
    """Wraps a client. LanceNamespaceErrors pass; any other exception becomes a failed check that names its class."""

    def __init__(self, client: LanceNamespace, evidence: CheckLog) -> None:
        self._client = client
        self._evidence = evidence

    def __getattr__(self, operation: str) -> Callable[..., Any]:
        call = getattr(self._client, operation)

        def call_checked(*arguments: Any) -> Any:
            self._evidence.operation = operation
            try:
                return call(*arguments)
            except LanceNamespaceError as error:
                self._evidence.errors.append(str(error))
                raise
            except Exception as error:  # any exception of an implementation is to be judged
                self._evidence.errors.append(str(error))
                raise AssertionError(
                    f"{operation} raised {class_name(error)}, no LanceNamespaceError: {error}"
                ) from error

        return call_checked


def with_error_checks(client: LanceNamespace, evidence: CheckLog) -> LanceNamespace:
    """Wrap a client in an ErrorCheckingClient."""
    return cast(LanceNamespace, ErrorCheckingClient(client, evidence))


def class_name(error: BaseException) -> str:
    """Return the qualified class name of an error."""
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def format_error(error: LanceNamespaceError) -> str:
    """Format an error in one line."""
    return f"{type(error).__name__} (error {int(error.code)}): {error}"


@dataclass
class Refusal:
    """Holds the expected error, once it is raised."""

    error: LanceNamespaceError | None = None

    @property
    def message(self) -> str:
        """Text of the error."""
        return str(self.error)


Id = list[str]
MANY_PAGES = 10_000
"""More pages than this, for the few entries of the suite, mean that a list never ends."""

ROWS = pa.table(
    {
        "id": pa.array([1, 2, 3], pa.int64()),
        "name": pa.array(["one", "two", "three"]),
        "vector": pa.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], pa.list_(pa.float32(), 2)),
    }
)
"""Rows of the suite's tables, unless a check needs others."""


class Subject:
    """An implementation under test.

    The names of everything that it creates contain a token of this run, so that objects of others are never touched.
    """

    def __init__(self, target: ConformanceTarget) -> None:
        self.target = target
        self.token = f"lhc{secrets.token_hex(4)}"
        self.log = CheckLog()
        self.raw_client: LanceNamespace = target.connect()
        """The client itself, which pylance is given."""
        self.client = with_error_checks(self.raw_client, self.log)
        """The client with error checks."""
        self.created_objects = CreatedObjects(self.client, self.token)
        self._count = 0
        self._absent = [folder for folder in self._default_folders() if not folder.exists()]

    # Logging and clean-up

    def note(self, text: str) -> None:
        """Add a note to the result of the check."""
        self.log.note(text)

    @contextmanager
    def expect_error(self, *codes: ErrorCode) -> Iterator[Refusal]:
        """Fail the check unless one of these errors is raised inside the context."""
        expected = " or ".join(f"{int(code)} ({code.name})" for code in codes)
        refusal = Refusal()
        try:
            yield refusal
        except LanceNamespaceError as error:
            if error.code not in codes:
                if error.code is ErrorCode.UNSUPPORTED:
                    raise  # the plug-in reports it as unsupported
                raise AssertionError(
                    f"{self.log.operation}: expected error {expected}, got {format_error(error)}"
                ) from error
            refusal.error = error
            self.log.note(f"error {int(error.code)}")
        else:
            raise AssertionError(f"{self.log.operation} succeeded, expected error {expected}")

    def with_error_checks(self, client: LanceNamespace) -> LanceNamespace:
        """Wrap another client in error checks."""
        return with_error_checks(client, self.log)

    def close(self) -> list[str]:
        """Remove everything that is left of the run, and return the failures."""
        failures = self.created_objects.remove_entries(everything=True)
        self.created_objects.remove_data()
        if "folder" in self.__dict__:
            shutil.rmtree(self.folder, ignore_errors=True)
        for folder in self._absent:
            with suppress(OSError):  # it was never created, or holds files of others
                folder.rmdir()
        return failures

    def _default_folders(self) -> list[Path]:
        """Return local folders where tables without a location would lie, the deepest first."""
        root = local_path(self.target.properties.get("root", "."))
        levels = self.target.parent
        return [root.joinpath(*levels[:end]) for end in range(len(levels), 0, -1)] if root else []

    # Features of the implementation, determined once

    @cached_property
    def parent(self) -> Id:
        """The namespace below which the suite works."""
        return list(self.target.parent)

    @cached_property
    def home(self) -> Id:
        """A namespace that exists for the whole run, for tables whose neighbours do not matter."""
        return self.new_namespace(keep=True)

    @cached_property
    def has_nested_namespaces(self) -> bool:
        """Whether namespaces can hold namespaces."""
        child = [*self.home, self.new_name("child")]
        self.created_objects.add_namespace(child)
        try:
            self.call("create_namespace", child)
        except (InvalidInputError, UnsupportedOperationError):
            return False
        return True

    @cached_property
    def can_choose_location(self) -> bool:
        """Whether the caller may choose the location of a table."""
        table = [*self.home, self.new_name("probe")]
        self.created_objects.add_table(table)
        try:
            self.call("declare_table", table, location=self.new_location(table))
        except (InvalidInputError, PermissionDeniedError, UnsupportedOperationError):
            return False
        return True

    @cached_property
    def has_default_location(self) -> bool:
        """Whether the implementation chooses a location if the caller gives none."""
        table = [*self.home, self.new_name("probe")]
        self.created_objects.add_table(table)
        try:
            declared = self.call("declare_table", table)
        except (InvalidInputError, UnsupportedOperationError):
            return False
        self.created_objects.add_table(table, declared.location)
        return True

    @cached_property
    def folder(self) -> Path:
        """A temporary folder for the data of this run."""
        return Path(tempfile.mkdtemp(prefix=f"{self.token}_"))

    def new_location(self, table: Sequence[str]) -> str:
        """Return an unused location for a table."""
        root = self.target.root or self.target.properties.get("root") or self.folder.as_uri()
        name = re.sub(r"\W", "_", table[-1], flags=re.ASCII)[:60]
        self._count += 1
        return f"{root.rstrip('/')}/{self.token}/{name}_{self._count}"

    def new_name(self, what: str = "t") -> str:
        """Return an unused name."""
        self._count += 1
        return f"{self.token}_{what}{self._count}"

    def missing_namespace(self) -> Id:
        """Return the id of a namespace that does not exist."""
        return [*self.parent, self.new_name("missing")]

    def missing_table(self) -> Id:
        """Return the id of a table that does not exist, in a namespace that does."""
        return [*self.home, self.new_name("missing")]

    # Calls

    def call(self, operation: str, id: Sequence[str], *body: bytes, **fields: Any) -> Any:
        """Call an operation on a table or namespace, and return its response."""
        return getattr(self.client, operation)(create_request(operation, id, **fields), *body)

    def pages(self, operation: str, id: Id, **fields: Any) -> Iterator[Any]:
        """Yield all pages of a list."""
        token: str | None = None
        for _ in range(MANY_PAGES):
            page = self.call(operation, id, page_token=token, **fields)
            yield page
            token = page.page_token
            if not token:
                return
        raise AssertionError(f"the list has not ended after {MANY_PAGES} pages")

    # Namespaces

    def create_namespace(self, id: Id, *, keep: bool = False, **options: Any) -> CreateNamespaceResponse:
        """Create a namespace, after adding it to the objects to remove."""
        self.created_objects.add_namespace(id, keep=keep)
        created: CreateNamespaceResponse = self.call("create_namespace", id, **options)
        return created

    def new_namespace(self, *, keep: bool = False, **options: Any) -> Id:
        """Create a namespace with a new name below the parent, and return its id."""
        namespace = [*self.parent, self.new_name("n")]
        self.create_namespace(namespace, keep=keep, **options)
        return namespace

    def describe_namespace(self, id: Id) -> DescribeNamespaceResponse:
        """Describe a namespace."""
        described: DescribeNamespaceResponse = self.call("describe_namespace", id)
        return described

    def drop_namespace(self, id: Id, **options: Any) -> None:
        """Drop a namespace."""
        self.call("drop_namespace", id, **options)

    def list_namespaces(self, id: Id, limit: int | None = None) -> list[str]:
        """Return the last levels of all child namespaces."""
        return [strip_namespace(name, id) for page in self.namespace_pages(id, limit) for name in page]

    def namespace_pages(self, id: Id, limit: int | None = None) -> Iterator[list[str]]:
        """Yield the pages of a list of namespaces."""
        return (page.namespaces for page in self.pages("list_namespaces", id, limit=limit))

    # Tables

    def declare(self, id: Id, *, keep: bool = False, **options: Any) -> DeclareTableResponse:
        """Declare a table, at a location of the suite's own where the implementation allows it."""
        self.created_objects.add_table(id, keep=keep)
        if "location" not in options and self.can_choose_location:
            options["location"] = self.new_location(id)
        declared: DeclareTableResponse = self.call("declare_table", id, **options)
        self.created_objects.add_table(id, declared.location, keep=keep)
        return declared

    def new_table(self, namespace: Id | None = None, **options: Any) -> Id:
        """Declare a table with a new name and without data, and return its id."""
        table = [*(namespace or self.home), self.new_name()]
        self.declare(table, **options)
        return table

    def describe(self, id: Id, **options: Any) -> DescribeTableResponse:
        """Describe a table."""
        described: DescribeTableResponse = self.call("describe_table", id, **options)
        if any(self.token in level for level in id):
            self.created_objects.add_table(id, described.location)
        return described

    def deregister(self, id: Id) -> None:
        """Deregister a table."""
        self.call("deregister_table", id)

    def list_tables(self, id: Id, limit: int | None = None, **options: Any) -> list[str]:
        """Return the names of all tables of a namespace, without the namespace."""
        return [strip_namespace(name, id) for page in self.table_pages(id, limit, **options) for name in page]

    def table_pages(self, id: Id, limit: int | None = None, **options: Any) -> Iterator[list[str]]:
        """Yield the pages of a list of tables."""
        return (page.tables for page in self.pages("list_tables", id, limit=limit, **options))

    # Data

    def new_dataset(self, data: pa.Table = ROWS, namespace: Id | None = None) -> Id:
        """Create a table with data, written by pylance through the namespace, and return its id."""
        table = [*(namespace or self.home), self.new_name()]
        if self.can_choose_location:
            self.declare(table)
            self.write(table, data, "overwrite")
        else:
            self.write(table, data, "create")
        return table

    def write(self, id: Id, data: pa.Table, mode: str) -> None:
        """Write a table by its id, as a user of pylance does."""
        self.created_objects.add_table(id)
        self.log.operation = f"lance.write_dataset(mode={mode!r})"
        lance.write_dataset(data, namespace_client=self.raw_client, table_id=id, mode=mode)
        described = self.raw_client.describe_table(create_request("describe_table", id))
        self.created_objects.add_table(id, described.location)

    def read(self, id: Id, **options: Any) -> pa.Table:
        """Read all rows of a table by its id, ordered by the column `id`."""
        self.log.operation = "lance.dataset"
        rows: pa.Table = lance.dataset(namespace_client=self.raw_client, table_id=id, **options).to_table()
        return rows.sort_by("id") if "id" in rows.column_names else rows

    def count_rows_at(self, location: str, storage_options: dict[str, str] | None) -> int:
        """Return the number of rows at a location, without the catalog."""
        self.log.operation = f"lance.dataset({location!r})"
        path = local_path(location)
        where = location if path is None else str(path)
        rows: int = lance.dataset(where, storage_options=storage_options).count_rows()
        return rows


def to_ipc(data: pa.Table) -> bytes:
    """Return rows as the Arrow IPC stream that the interface takes."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, data.schema) as writer:
        writer.write_table(data)
    return sink.getvalue().to_pybytes()


def strip_namespace(name: str, parent: Sequence[str]) -> str:
    """Remove the namespace that some implementations put before the names in a list."""
    for separator in (".", "$"):
        for start in range(len(parent)):
            prefix = separator.join(parent[start:]) + separator
            if name.startswith(prefix):
                return name.removeprefix(prefix)
    return name
