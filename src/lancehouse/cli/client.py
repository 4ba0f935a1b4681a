"""Catalog client of the commands: any namespace implementation, our own code for what it lacks, hints on errors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from lance_namespace import LanceNamespace
from lance_namespace.errors import (
    LanceNamespaceError,
    NamespaceNotEmptyError,
    NamespaceNotFoundError,
    ServiceUnavailableError,
    TableColumnNotFoundError,
    TableNotFoundError,
    TableTagAlreadyExistsError,
    TableTagNotFoundError,
    TableVersionNotFoundError,
    UnauthenticatedError,
)

from lancehouse.admin.checked_catalog import Shell
from lancehouse.catalog_walk import CatalogCalls
from lancehouse.cli.options import format_id
from lancehouse.connection import Connection
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
"""Command that lists what an error says is missing."""


@dataclass(frozen=True)
class Client(CatalogCalls):
    """A namespace client, and how it was created."""

    namespace: LanceNamespace
    target: Connection
    shell: Shell = field(default_factory=Shell)
    """Start and end of shell commands on the same catalog."""

    def format_id(self, id: Id) -> str:
        """Format an id as the user types it: without the catalog's `parent`."""
        return format_id(self.target, id)

    def ask(self, operation: str, request: Any) -> Any:
        """Call an operation, and return its response.

        Raises:
            LanceNamespaceError: as the implementation raises it; other exceptions are translated to one.
        """
        from lancehouse.lake.foreign_tables import find_implementation

        with self.translate_errors(request.id or (), operation):
            return getattr(find_implementation(self.namespace, operation), operation)(request)

    @property
    def table_operations(self) -> TableOperations:
        """The object that reads and writes tables: the client itself, or our own code on tables that it describes."""
        from lancehouse.lake.foreign_tables import table_operations

        return table_operations(self.namespace)

    @contextmanager
    def open_table(self, id: Id, **at: Any) -> Iterator[tuple[TableRef, LanceDataset]]:
        """Open a table, at a version or tag, and yield it with its TableRef."""
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
        """Translate exceptions raised inside the context to errors with a hint on what to do, and without secrets.

        Args:
            id: of the table or namespace that the call is about.
            operation: the name of the operation.
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
            from lancehouse.lake.foreign_tables import no_operation_error

            raise no_operation_error(self.format_id(id), operation) from None

    def _hint(self, id: Id, error: LanceNamespaceError) -> str | None:
        if command := next((command for kind, command in SHOWN_BY.items() if isinstance(error, kind)), None):
            return f"{self._format_command(command, id)} shows those that there are"
        if not isinstance(error, TableNotFoundError | NamespaceNotFoundError):
            return None
        parent = self.target.parent
        if parent and tuple(id[len(parent) : 2 * len(parent)]) == parent:
            typed = format_levels(id[2 * len(parent) :])
            return f"the catalog puts {format_levels(parent)} in front of ids already: write {typed or 'less'}"
        if "there is no dropped table" in str(error):
            return f"{self._format_command('table list --dropped', id[:-1])} shows those that there are"
        if isinstance(error, TableNotFoundError):
            return f"{self._format_command('table list', id[:-1])} shows the tables that are there"
        if len(id) == 1 and not parent and not getattr(self.namespace, "lists_catalogs", True):
            return f"is {format_levels(id)} right? This catalog does not tell which warehouses it has"
        above = id[:1] if len(id) > 1 and not parent else ()
        return f"{self._format_command('namespace list', above)} shows the namespaces that are there"

    def _format_command(self, command: str, id: Id) -> str:
        typed_id = self.format_id(id)
        return f"`{self.shell.command(*command.split(), *([typed_id] if typed_id else []))}`"

    def versions(self, id: Id, limit: int | None = None) -> Iterator[list[int]]:
        """Yield pages of a table's version numbers, the latest first; `limit` is the size of a page."""
        for page in self.pages("list_table_versions", id, descending=True, limit=limit):
            yield [version.version for version in page.versions]


BY_KIND: Mapping[type[LanceNamespaceError], str] = MappingProxyType(
    {
        NamespaceNotEmptyError: "`lancehouse table list NAMESPACE --recursive` shows the tables in it",
        NamespaceNotFoundError: "`lancehouse namespace create NAMESPACE` makes one",
        TableTagAlreadyExistsError: "`lancehouse table tag update ID TAG` lets it name another version",
        TableNotFoundError: "`lancehouse table list NAMESPACE` shows the tables that are there",
        TableColumnNotFoundError: "`lancehouse table schema ID` shows the columns",
        TableTagNotFoundError: "`lancehouse table tag list ID` shows the tags",
        TableVersionNotFoundError: "`lancehouse table history ID` shows the versions",
        UnauthenticatedError: "the property `credential` or `auth_token` authenticates you: set it in "
        "~/.lancehouse.yaml, or with --property",
        ServiceUnavailableError: "check that `endpoint` is right and the server is running",
    }
)
BY_WORDS: Mapping[str, str] = MappingProxyType(
    {
        "property 'endpoint' is required": "name a catalog of ~/.lancehouse.yaml with --catalog, or give "
        "--property endpoint=URL",
        "a namespace id is [warehouse or catalog": "an id is all levels joined by dots, such as main.db; the "
        "`parent` of a catalog in ~/.lancehouse.yaml is added automatically, so db is enough there",
        "a table id is [warehouse or catalog": "an id is all levels joined by dots, such as main.db.docs; the "
        "`parent` of a catalog in ~/.lancehouse.yaml is added automatically, so db.docs is enough there",
        "the catalog's database is out of reach": "check that --db is right and the database is running",
        "replace=True builds it anew": "add --replace to build it anew, or choose another --name",
        "there is no database": "check --db; `lancehouse serve` creates a database",
        "say it with format=": "set it with --format NAME",
        "leave it out with columns=": "--column NAME loads only that column; repeat it for each",
        "options={'encoding'": "--option encoding=latin-1 names it",
        "options={'types'": "--type COLUMN=TYPE gives a column a type",
        "set allow_changed=True": "--allow-changed accepts it",
        'set on_error="null"': "--on-error null sets such rows to null, --on-error skip leaves them as they are",
        "No space left on device": "free some space there, and run it again",
    }
)


def find_hints(error: Exception) -> list[str]:
    """Return the notes that were added to an error; if there are none, the hint for errors of its kind."""
    if noted := getattr(error, "__notes__", []):
        return list(map(str, noted))
    by_words = [hint for words, hint in BY_WORDS.items() if words in str(error)]
    by_kind = [hint for kind, hint in BY_KIND.items() if isinstance(error, kind)]
    return (by_words + by_kind)[:1]
