"""Call operations of any catalog by name, follow the pages of its lists, and walk its namespaces and tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import lance_namespace
from lance_namespace import LanceNamespace
from lance_namespace.errors import (
    InternalError,
    InvalidInputError,
    NamespaceAlreadyExistsError,
    NamespaceNotEmptyError,
    UnsupportedOperationError,
)

from lancehouse.identifiers import format_levels

Id = tuple[str, ...]

SHARED_REQUESTS = {"list_all_tables": "list_tables", "create_table_scalar_index": "create_table_index"}
"""Operations that take the request of another one."""


class CatalogLister(Protocol):
    """Lists a catalog's namespaces and tables, following all pages.

    A level that cannot hold what is listed, such as tables directly in a warehouse, raises InvalidInputError.
    """

    def namespaces(self, id: Sequence[str]) -> list[Id]:
        """Return the ids of the namespaces directly below a namespace."""

    def tables(self, id: Sequence[str]) -> list[Id]:
        """Return the ids of the tables in a namespace, without those further down."""


class CatalogCalls:
    """Calls the operations of a client by their names. Implements `CatalogLister`."""

    namespace: LanceNamespace

    def ask(self, operation: str, request: Any) -> Any:
        """Call an operation, and return its response."""
        raise NotImplementedError

    def call(self, operation: str, id: Sequence[str], **fields: Any) -> Any:
        """Call an operation on a table or namespace; `fields` are those of its request."""
        return self.ask(operation, create_request(operation, id, **fields))

    def pages(self, operation: str, id: Sequence[str], **more: Any) -> Iterator[Any]:
        """Yield all pages of a list."""
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

    def namespaces(self, id: Sequence[str]) -> list[Id]:
        """List the namespaces directly below one, following all pages.

        Some catalogs return whole ids joined by dots, others only the last levels.
        """
        above = ".".join([*id, ""])
        pages = self.pages("list_namespaces", id)
        return [(*id, name.removeprefix(above)) for name in sorted(name for page in pages for name in page.namespaces)]

    def tables(self, id: Sequence[str]) -> list[Id]:
        """List the tables of a namespace, following all pages."""
        pages = self.pages("list_tables", id)
        return [(*id, name) for name in sorted(name for page in pages for name in page.tables)]

    def create_namespace(self, id: Sequence[str], properties: Mapping[str, str], *, exist_ok: bool) -> dict[str, str]:
        """Create a namespace; return its properties, as far as the catalog returns them.

        Raises:
            NamespaceAlreadyExistsError: it exists, and `exist_ok` is False.
        """
        try:
            response = self.call("create_namespace", id, mode="Create", properties=dict(properties) or None)
        except NamespaceAlreadyExistsError:  # Lance's `dir` takes no notice of the mode ExistOk
            if not exist_ok:
                raise
            response = self.call("describe_namespace", id)
        return dict(response.properties or {})

    def drop_namespace(self, id: Sequence[str], *, cascade: bool) -> None:
        """Drop a namespace; with `cascade`, also what is in it.

        Raises:
            NamespaceNotEmptyError: it is not empty, and `cascade` is False.
            UnsupportedOperationError: it is not empty, and the catalog drops only empty ones.
        """
        try:
            self.call("drop_namespace", id, mode="Fail", behavior="Cascade" if cascade else "Restrict")
        except NamespaceNotEmptyError as error:  # Lance's `dir` takes no notice of Cascade
            if not cascade:
                raise
            raise UnsupportedOperationError(
                f"{format_levels(id)}: this catalog drops empty namespaces only; drop what is in it first"
            ) from error


def create_request(operation: str, id: Sequence[str], **fields: Any) -> Any:
    """Create the request of an operation on a table or namespace, by the naming scheme of the interface."""
    words = SHARED_REQUESTS.get(operation, operation).split("_")
    return getattr(lance_namespace, "".join(map(str.capitalize, words)) + "Request")(id=list(id), **fields)


def walk_namespaces(catalog: CatalogLister, id: Id, *, is_known: bool = False) -> Iterator[Id]:
    """Yield a namespace and all namespaces below it, parents first; each is listed when it is reached."""
    yield id
    try:
        children = catalog.namespaces(id)
    except InvalidInputError:
        if not is_known:
            catalog.tables(id)  # raises, unless this is the deepest level that the catalog has
        return
    for child in children:
        yield from walk_namespaces(catalog, child, is_known=True)


def walk_tables(catalog: CatalogLister, id: Id) -> Iterator[Id]:
    """Yield the ids of all tables in a namespace and below it."""
    for namespace in walk_namespaces(catalog, id):
        try:
            yield from catalog.tables(namespace)
        except InvalidInputError:
            continue  # this level holds namespaces only; a namespace that does not exist raises in the walk
