"""A catalog as commands ask it: any implementation, with our own code for what it cannot do to a table itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import lance_namespace
from lance_namespace import LanceNamespace
from lance_namespace.errors import (
    InternalError,
    LanceNamespaceError,
    NamespaceNotFoundError,
    TableColumnNotFoundError,
    TableNotFoundError,
    TableTagNotFoundError,
    TableVersionNotFoundError,
    UnsupportedOperationError,
)

from lancehouse.admin.checked_catalog import Shell
from lancehouse.cli.catalog_options import format_id
from lancehouse.conformance.target import ConformanceTarget
from lancehouse.identifiers import format_levels

if TYPE_CHECKING:
    from lance import LanceDataset

    from lancehouse.lake.dataset import TableRef
    from lancehouse.lake.operations import TableOperations

Id = Sequence[str]

SHOWN_BY: Mapping[type[LanceNamespaceError], str] = MappingProxyType(
    {
        TableColumnNotFoundError: "table schema",
        TableTagNotFoundError: "table tag list",
        TableVersionNotFoundError: "table history",
    }
)
"""What shows what of a table was not there."""


@dataclass(frozen=True)
class Client:
    """A client and what it was made of."""

    namespace: LanceNamespace
    target: ConformanceTarget
    shell: Shell = field(default_factory=Shell)
    """How commands begin and end that ask the same catalog."""

    def format_id(self, id: Id) -> str:
        """An id as it is typed: without the levels that the catalog puts in front of it."""
        return format_id(self.target, id)

    def ask(self, operation: str, request: Any) -> Any:
        """Have an operation carried out.

        Raises:
            LanceNamespaceError: as the implementation has it; what raises something else has no code, and gets one.
        """
        from lancehouse.gateway.foreign_tables import TABLE_OPERATIONS

        implementation = self.table_operations if operation in TABLE_OPERATIONS else self.namespace
        with self.translate_errors(request.id or (), operation):
            return getattr(implementation, operation)(request)

    def call(self, operation: str, id: Id, **fields: Any) -> Any:
        """Have an operation carried out on a table or namespace; `fields` are those of its request.

        Commands need not import requests, which takes longer than their help may.
        """
        return self.ask(operation, _request_model(operation)(id=list(id), **fields))

    @property
    def table_operations(self) -> TableOperations:
        """What reads and writes tables: the client itself, or our own code on the tables that it describes."""
        from lancehouse.gateway.foreign_tables import ForeignTables
        from lancehouse.lake.operations import TableOperations

        return self.namespace if isinstance(self.namespace, TableOperations) else ForeignTables(self.namespace)

    @contextmanager
    def open_table(self, id: Id, **at: Any) -> Iterator[tuple[TableRef, LanceDataset]]:
        """A table, at a version or tag, with its address."""
        from lancehouse.lake.dataset import TableRef

        with self.translate_errors(id):
            table = TableRef.in_namespace(self.namespace, id, **at)
            try:
                dataset = table.open()
            except (TableVersionNotFoundError, TableTagNotFoundError) as error:
                kind, name = next((kind, name) for kind, name in at.items() if name is not None)
                raise type(error)(f"table {self.format_id(id)} has no {kind} {name}") from error
            yield table, dataset

    @contextmanager
    def translate_errors(self, id: Id, operation: str = "") -> Iterator[None]:
        """Turn what is raised inside into errors that say what to do; they show no secret.

        Args:
            id: of the table or namespace that it is about.
            operation: what was asked for.
        """
        from lancehouse.lake.errors import clean_message, translate_errors

        try:
            with (
                translate_errors(self.format_id(id) or "the catalog", self.target.properties),
                self._translate_unsupported(id, operation),
            ):
                yield
        except LanceNamespaceError as error:
            message = clean_message(self.target.redact(str(error)))
            explained = error if message == str(error) else type(error)(message)
            if hint := self._hint(id, error):
                explained.add_note(hint)
            if explained is error:
                raise
            raise explained from None

    @contextmanager
    def _translate_unsupported(self, id: Id, operation: str) -> Iterator[None]:
        try:
            yield
        except NotImplementedError:
            raise UnsupportedOperationError(f"{self.format_id(id)}: this catalog has no {operation}") from None

    def _hint(self, id: Id, error: LanceNamespaceError) -> str | None:
        if command := next((command for kind, command in SHOWN_BY.items() if isinstance(error, kind)), None):
            return f"{self._format_command(command, id)} shows those that there are"
        if not isinstance(error, TableNotFoundError | NamespaceNotFoundError):
            return None
        parent = self.target.parent
        if parent and tuple(id[len(parent) : 2 * len(parent)]) == parent:
            typed = format_levels(id[2 * len(parent) :])
            return f"the catalog puts {format_levels(parent)} in front of ids already: write {typed or 'less'}"
        if isinstance(error, TableNotFoundError):
            return f"{self._format_command('table list', id[:-1])} shows the tables that are there"
        if len(id) == 1 and not parent and not getattr(self.namespace, "lists_catalogs", True):
            return f"is {format_levels(id)} right? This catalog does not tell which warehouses it has"
        above = id[:1] if len(id) > 1 and not parent else ()
        return f"{self._format_command('namespace list', above)} shows the namespaces that are there"

    def _format_command(self, command: str, id: Id) -> str:
        typed_id = self.format_id(id)
        return f"`{self.shell.command(*command.split(), *([typed_id] if typed_id else []))}`"

    def namespaces(self, id: Id) -> list[tuple[str, ...]]:
        """The namespaces directly below one, all pages of them.

        Some catalogs list whole ids, joined by dots, others last levels.
        """
        above = ".".join([*id, ""])
        pages = self.pages("list_namespaces", id)
        return [(*id, name.removeprefix(above)) for name in sorted(name for page in pages for name in page.namespaces)]

    def tables(self, id: Id) -> list[tuple[str, ...]]:
        """The tables of a namespace, all pages of them."""
        pages = self.pages("list_tables", id)
        return [(*id, name) for name in sorted(name for page in pages for name in page.tables)]

    def versions(self, id: Id, limit: int | None = None) -> Iterator[list[int]]:
        """The numbers of a table's versions, the latest first; a page asked for has `limit` of them at most."""
        for page in self.pages("list_table_versions", id, descending=True, limit=limit):
            yield [version.version for version in page.versions]

    def pages(self, operation: str, id: Id, **more: Any) -> Iterator[Any]:
        """All pages of a list."""
        token, seen_tokens = None, set()
        while True:
            page = self.call(operation, id, page_token=token, **more)
            yield page
            token = page.page_token
            if not token:
                return
            if token in seen_tokens:
                raise InternalError(f"{operation} gives the same page again and again: the list would never end")
            seen_tokens.add(token)


def _request_model(operation: str) -> Any:
    """The model of an operation's request, as the interface names it."""
    return getattr(lance_namespace, "".join(word.capitalize() for word in operation.split("_")) + "Request")
