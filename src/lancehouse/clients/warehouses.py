"""Namespaces as Iceberg REST has them, below a warehouse or catalog: what Iceberg servers and Polaris share."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, TypeVar
from urllib.parse import quote, unquote, urlencode

from lance_namespace.errors import (
    InvalidInputError,
    LanceNamespaceError,
    NamespaceAlreadyExistsError,
    NamespaceNotEmptyError,
    NamespaceNotFoundError,
)

from lancehouse.clients.flights import Flights
from lancehouse.clients.namespace import CatalogNamespace, if_found
from lancehouse.clients.rest import Rest
from lancehouse.errors import is_named, is_route_missing
from lancehouse.identifiers import UNIT_SEPARATOR, NamespaceId, TableId
from lancehouse.wire.iceberg import CatalogConfig, Namespace, NamespacePage

T = TypeVar("T")

VEND: Mapping[str, str] = MappingProxyType({"X-Iceberg-Access-Delegation": "vended-credentials"})
"""Asks a server for credentials to the table's storage."""

LOCATIONS = ("root", "default-base-location")
"""What `/v1/config` calls the place where tables of a warehouse lie: ours, and Polaris."""

MANY = 8
"""From so many tables on, a list asks for them in bulk."""

SEEN_S = 60.0
"""How long a namespace that was seen to exist is taken to exist."""


@dataclass(frozen=True, slots=True)
class Warehouse:
    """How the server wants one warehouse addressed, as `/v1/config` says."""

    path: str
    separator: str
    root: str | None
    endpoints: frozenset[str] | None

    def namespace(self, namespace: NamespaceId) -> str:
        """The path of a namespace."""
        return f"{self.path}/namespaces/{namespace.wire(self.separator)}"

    def tables(self, namespace: NamespaceId) -> str:
        """The path of the Iceberg tables of a namespace."""
        return f"{self.namespace(namespace)}/tables"

    def table(self, table: TableId) -> str:
        """The path of an Iceberg table."""
        return f"{self.tables(table.namespace)}/{table.wire()}"


class WarehouseNamespace(CatalogNamespace):
    """Namespaces of any depth below a warehouse, which is the first level of an id."""

    vends_freely: ClassVar[bool] = True
    lists_catalogs: ClassVar[bool] = False
    """Servers do not tell their warehouses."""

    def __init__(self, **properties: str) -> None:
        super().__init__(**properties)
        base = self._base()
        self._rest = Rest(self._settings, base=base, token_uri=f"{base}/v1/oauth/tokens")
        self._announced: dict[str, list[Warehouse]] = {}
        self._locations: dict[str, list[str]] = {}
        self._asking: Flights[list[Warehouse]] = Flights()
        self._warehouses: dict[str, Warehouse] = {}
        self._seen = _Seen()

    def _base(self) -> str:
        """The URL below which Iceberg's API lies."""
        return self._settings.endpoint.removesuffix("/v1")

    # Warehouses

    def _at(self, catalog: str, call: Callable[[Warehouse], T]) -> T:
        """Make a call below the warehouse's prefix.

        A server that announces none is tried with the warehouse's name, and if it has no such route, without a prefix.
        Only the way that led to an answer is remembered.
        """
        if (known := self._warehouses.get(catalog)) is not None:
            return call(known)
        named, *others = self._announced.get(catalog) or self._asking.join(catalog, lambda: self._ask(catalog))
        try:
            return self._remember(catalog, named, call)
        except LanceNamespaceError as error:
            if not others or not is_route_missing(error):
                raise
            try:
                return self._remember(catalog, others[0], call)
            except LanceNamespaceError as second:
                # What the server says where it has the route is the answer; where it has neither, the first one is.
                raise (error if is_route_missing(second) and not is_named(second) else second) from None

    def _remember(self, catalog: str, way: Warehouse, call: Callable[[Warehouse], T]) -> T:
        result = call(way)
        self._warehouses[catalog] = way
        return result

    def _ask(self, catalog: str) -> list[Warehouse]:
        # A flight may have landed between the caller's look and this one.
        return self._announced.get(catalog) or self._announced.setdefault(catalog, self._ways(catalog))

    def _config(self, catalog: str) -> tuple[dict[str, str], CatalogConfig]:
        """What the server announces: the defaults, under the overrides."""
        config = self._rest.get(
            "/v1/config",
            CatalogConfig,
            query=urlencode({"warehouse": catalog}, quote_via=quote),
            about=f"warehouse {catalog}",
            on={404: NamespaceNotFoundError, "NotFoundException": NamespaceNotFoundError},
        )
        merged = {**(config.defaults or {}), **(config.overrides or {})}
        return {key: value for key, value in merged.items() if isinstance(value, str)}, config

    def _ways(self, catalog: str) -> list[Warehouse]:
        """The ways to address a warehouse, the likeliest first."""
        merged, config = self._config(catalog)
        self._locations[catalog] = [merged[key] for key in LOCATIONS if merged.get(key)]
        prefix = merged.get("prefix")
        prefixes = [quote(prefix.strip("/"), safe="/%:@!$&'()*+,;=~")] if prefix else [quote(catalog, safe=""), ""]
        return [
            Warehouse(
                path="/".join(part for part in ("/v1", way) if part),
                separator=merged.get("namespace-separator") or UNIT_SEPARATOR,
                root=self._settings.root or merged.get("root"),
                endpoints=frozenset(config.endpoints) if config.endpoints is not None else None,
            )
            for way in prefixes
        ]

    def _announced_locations(self) -> list[str]:
        """As `CatalogNamespace`: of the warehouses that were used."""
        return [location for found in self._locations.values() for location in found]

    # Namespaces

    def _children(self, parent: NamespaceId) -> list[NamespaceId]:
        def listed(at: Warehouse) -> list[list[str]]:
            query = f"parent={parent.wire(at.separator)}" if parent.levels else ""
            pages = self._rest.pages(
                f"{at.path}/namespaces", NamespacePage, about=parent, query=query, on={404: NamespaceNotFoundError}
            )
            return [levels for page in pages for levels in page.namespaces or ()]

        found = [NamespaceId(parent.catalog, tuple(levels)) for levels in self._at(parent.catalog, listed) if levels]
        if not found and parent.levels:
            self._require(parent)
        return found

    def _create_namespace(self, namespace: NamespaceId, properties: Mapping[str, str]) -> Mapping[str, str]:
        if len(namespace.levels) > 1:
            self._require(namespace.parent)
        body = Namespace(namespace=list(namespace.levels), properties=dict(properties))

        def lookup() -> Namespace | None:
            found = if_found(lambda: self._load_namespace(namespace))
            mine = found is not None and properties.items() <= found.items()
            return Namespace(namespace=list(namespace.levels), properties=dict(found or {})) if mine else None

        def create(at: Warehouse) -> tuple[Namespace, str]:
            made = self._rest.create(
                f"{at.path}/namespaces",
                body,
                Namespace,
                about=namespace,
                lookup=lookup,
                on={404: NamespaceNotFoundError, 409: NamespaceAlreadyExistsError},
            )
            return made, unquote(at.separator)

        made, joint = self._at(namespace.catalog, create)
        if any(joint in level for level in namespace.levels):
            self._check_level(namespace, joint)
        self._seen.add(namespace)
        return made.properties or {}

    def _check_level(self, namespace: NamespaceId, joint: str) -> None:
        """Some servers make two levels of one that contains what joins them: look, and take it back if so.

        Raises:
            InvalidInputError: the server did.
        """
        if namespace not in self._children(namespace.parent):
            self._delete_namespace(namespace, cascade=False)
            raise InvalidInputError(
                f"{namespace}: the server takes {joint!r} for the end of a level, no name may contain it"
            )

    def _load_namespace(self, namespace: NamespaceId) -> Mapping[str, str]:
        found = self._at(
            namespace.catalog,
            lambda at: self._rest.get(
                at.namespace(namespace), Namespace, about=namespace, on={404: NamespaceNotFoundError}
            ),
        )
        self._seen.add(namespace)
        return found.properties or {}

    def _delete_namespace(self, namespace: NamespaceId, *, cascade: bool) -> None:
        assert not cascade, "refused before"
        self._seen.forget(namespace)
        self._at(
            namespace.catalog,
            lambda at: self._rest.delete(
                at.namespace(namespace),
                about=namespace,
                on={404: NamespaceNotFoundError, 409: NamespaceNotEmptyError},
            ),
        )

    def _require(self, namespace: NamespaceId) -> None:
        """Some servers create below a namespace that does not exist, or list it as empty: ask first.

        Raises:
            NamespaceNotFoundError: it does not exist.
        """
        if namespace not in self._seen:
            self._load_namespace(namespace)


class _Seen:
    """The namespaces that were seen to exist within the last minute."""

    def __init__(self) -> None:
        self._until: dict[NamespaceId, float] = {}
        self._lock = threading.Lock()

    def add(self, namespace: NamespaceId) -> None:
        with self._lock:
            self._until[namespace] = time.monotonic() + SEEN_S

    def forget(self, namespace: NamespaceId) -> None:
        """Forget a namespace and all below it."""
        with self._lock:
            self._until = {known: until for known, until in self._until.items() if not namespace.contains(known)}

    def __contains__(self, namespace: NamespaceId) -> bool:
        return self._until.get(namespace, 0.0) > time.monotonic()
