"""Namespaces that differ where the specifications let them; nothing fails on any of them."""

from __future__ import annotations

from typing import Any

from lance_namespace import (
    CreateNamespaceRequest,
    CreateNamespaceResponse,
    DeclareTableRequest,
    DeclareTableResponse,
    DropNamespaceRequest,
    DropNamespaceResponse,
    ListNamespacesRequest,
    ListNamespacesResponse,
)
from lance_namespace.errors import InvalidInputError

from tests.conformance.model import Id, ModelNamespace


class Flat(ModelNamespace):
    """A catalog with schemas, and no more levels."""

    def id_of(self, id: list[str] | None) -> Id:
        return super().id_of(self.check_levels(id, 3))

    def create_namespace(self, request: CreateNamespaceRequest) -> CreateNamespaceResponse:
        self.check_levels(request.id, 2)
        return super().create_namespace(request)

    def list_namespaces(self, request: ListNamespacesRequest) -> ListNamespacesResponse:
        self.check_levels(request.id, 1)
        return super().list_namespaces(request)

    def check_levels(self, id: list[str] | None, most: int) -> list[str] | None:
        if len(id or ()) > most:
            raise InvalidInputError(f"{id} has more than {most} levels")
        return id


class Prefixed(ModelNamespace):
    """Lists say the parent too."""

    def list_namespaces(self, request: ListNamespacesRequest) -> ListNamespacesResponse:
        found = super().list_namespaces(request)
        names = [".".join([*(request.id or ()), name]) for name in found.namespaces]
        return found.model_copy(update={"namespaces": names})


class ForgivingDrop(ModelNamespace):
    """Dropping what is missing succeeds, unless the mode says Fail."""

    def drop_namespace(self, request: DropNamespaceRequest) -> DropNamespaceResponse:
        return super().drop_namespace(request.model_copy(update={"mode": request.mode or "Skip"}))


class OwnLocations(ModelNamespace):
    """Nobody else chooses where a table lies."""

    def declare_table(self, request: DeclareTableRequest) -> DeclareTableResponse:
        if request.location:
            raise InvalidInputError("a table lies where its name says")
        return super().declare_table(request)


class NeedsLocation(ModelNamespace):
    """Someone else must choose where a table lies."""

    def declare_table(self, request: DeclareTableRequest) -> DeclareTableResponse:
        if not request.location:
            raise InvalidInputError("a table needs a location")
        return super().declare_table(request)


class NoProperties(ModelNamespace):
    """Properties are null: there are none."""

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name not in ("create_namespace", "describe_namespace", "declare_table", "describe_table"):
            return found
        return lambda request: found(request).model_copy(update={"properties": None})


class Picky(ModelNamespace):
    """Names are plain, or refused."""

    def id_of(self, id: list[str] | None) -> Id:
        if any(not level.replace("_", "").isalnum() or not level.isascii() or len(level) > 100 for level in id or ()):
            raise InvalidInputError(f"{id} is no plain name")
        return super().id_of(id)


class Unpicklable(ModelNamespace):
    def __reduce__(self) -> str | tuple[Any, ...]:
        raise TypeError("not this one")


PERMITTED: dict[type[ModelNamespace], dict[str, str]] = {
    Flat: {"namespaces.nesting": "flat: namespaces do not nest; error 13"},
    Prefixed: {"namespaces.list": "with the parent in front, joined by '.'"},
    ForgivingDrop: {"namespaces.drop_missing": "succeeds"},
    OwnLocations: {"tables.declare": "it chooses the location itself"},
    NeedsLocation: {"tables.declare_without_location": "error 13: a table needs a location"},
    NoProperties: {"properties.table": "properties (they are null)"},
    Picky: {"names.table[a dash]": "refused"},
    Unpicklable: {"connection.pickle": "pickle (not this one)"},
}
"""And what the suite says it saw."""
