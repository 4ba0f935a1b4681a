"""What the Polaris emulator holds: catalogs, their namespaces, and the tables of both kinds in them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.servers.loopback import RefusedError

Levels = tuple[str, ...]
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class IcebergTable:
    """An Iceberg table; `vended` are the storage credentials that a client gets when it asks for them."""

    metadata: Json
    metadata_location: str
    config: Mapping[str, str] = field(default_factory=dict)
    vended: Sequence[Json] = ()


@dataclass(frozen=True, slots=True)
class PolarisGenericTable:
    """A generic table; `vended` are its storage access configurations."""

    format: str
    location: str | None
    doc: str | None
    properties: Mapping[str, str]
    vended: Sequence[Json] = ()


@dataclass(slots=True)
class MixedNamespace:
    """A namespace; tables of both kinds share its names."""

    properties: dict[str, str]
    tables: dict[str, IcebergTable | PolarisGenericTable] = field(default_factory=dict)

    @property
    def location(self) -> str:
        return self.properties.get("location", "")


@dataclass(slots=True)
class PolarisCatalog:
    """A catalog, which Iceberg calls a warehouse."""

    name: str
    location: str
    namespaces: dict[Levels, MixedNamespace] = field(default_factory=dict)

    def namespace(self, levels: Levels) -> MixedNamespace:
        if (found := self.namespaces.get(levels)) is None:
            raise RefusedError(404, "NoSuchNamespaceException", f"Namespace does not exist: {join_levels(levels)}")
        return found

    def children(self, parent: Levels) -> list[Levels]:
        return [levels for levels in self.namespaces if levels[:-1] == parent]

    def home(self, levels: Levels) -> str:
        """Where what is created in a namespace, or at the root, goes by default."""
        return (self.namespace(levels).location if levels else self.location).rstrip("/")

    def iceberg(self, levels: Levels, name: str) -> IcebergTable:
        found = self.namespaces[levels].tables.get(name) if levels in self.namespaces else None
        if not isinstance(found, IcebergTable):
            raise RefusedError(404, "NoSuchTableException", f"Table does not exist: {join_levels([*levels, name])}")
        return found

    def generic(self, levels: Levels, name: str) -> PolarisGenericTable:
        found = self.namespaces[levels].tables.get(name) if levels in self.namespaces else None
        if not isinstance(found, PolarisGenericTable):
            raise RefusedError(
                404, "NoSuchTableException", f"Generic table does not exist: {join_levels([*levels, name])}"
            )
        return found

    def check_free(self, levels: Levels, name: str) -> None:
        found = self.namespace(levels).tables.get(name)
        if found is not None:
            kind = "Table" if isinstance(found, IcebergTable) else "Generic table"
            raise RefusedError(409, "AlreadyExistsException", f"{kind} already exists: {join_levels([*levels, name])}")

    def check_apart(self, parent: Levels, location: str) -> None:
        """Refuse a location that lies above, below or at that of an Iceberg table or namespace beside it."""
        beside = [self.namespaces[child].location for child in self.children(parent)]
        tables = self.namespaces[parent].tables.values() if parent else ()
        beside += [table.metadata["location"] for table in tables if isinstance(table, IcebergTable)]
        wanted = folder(location)
        for other in map(folder, filter(None, beside)):
            if wanted.startswith(other) or other.startswith(wanted):
                reason = f"because it conflicts with existing table or namespace at location '{other}'"
                raise RefusedError(
                    403, "ForbiddenException", f"Unable to create table at location '{location}' {reason}"
                )


def join_levels(levels: Iterable[str]) -> str:
    return ".".join(levels)


def folder(location: str) -> str:
    return location.rstrip("/") + "/"
