"""Base class of the Iceberg and Polaris clients: warehouses, `/v1/config` and namespaces of Iceberg REST."""

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

from lancehouse.caches import SingleFlight
from lancehouse.clients.catalog_namespace import CatalogNamespace, none_if_missing
from lancehouse.clients.rest import Rest
from lancehouse.errors import is_named, is_route_missing
from lancehouse.identifiers import UNIT_SEPARATOR, NamespaceId, TableId
from lancehouse.wire.iceberg import CatalogConfig, Namespace, NamespacePage

T = TypeVar("T")

VEND_HEADERS: Mapping[str, str] = MappingProxyType({"X-Iceberg-Access-Delegation": "vended-credentials"})
"""Headers that ask a server for credentials to the table's storage."""

LOCATIONS = ("root", "default-base-location")
"""Keys in `/v1/config` for the location of a warehouse's tables: of `lancehouse serve`, and of Polaris."""

BULK_THRESHOLD = 8
"""Number of tables from which on a list loads them in bulk."""

EXISTS_TTL_S = 60.0
"""Seconds for which a namespace that was found is taken to exist."""


@dataclass(frozen=True, slots=True)
class WarehousePaths:
    """Path prefix, level separator and endpoints of one warehouse, from `/v1/config`."""

    base_path: str
    """`/v1`, with the warehouse's prefix if there is one."""
    separator: str
    """Joins the levels of a namespace in a path; percent-encoded."""
    root: str | None
    """Location below which tables are created by default; None if neither the user nor the server names one."""
    endpoints: frozenset[str] | None
    """Endpoints that the server announces; None if it announces none."""

    def namespace_path(self, namespace: NamespaceId) -> str:
        """Return the path of a namespace."""
        return f"{self.base_path}/namespaces/{namespace.to_path_segment(self.separator)}"

    def tables_path(self, namespace: NamespaceId) -> str:
        """Return the path of the Iceberg tables of a namespace."""
        return f"{self.namespace_path(namespace)}/tables"

    def table_path(self, table: TableId) -> str:
        """Return the path of an Iceberg table."""
        return f"{self.tables_path(table.namespace)}/{table.to_path_segment()}"


class WarehouseNamespace(CatalogNamespace):
    """Namespaces of any depth below a warehouse, whose name is the first level of an id."""

    iceberg_path: ClassVar[str] = "/v1"
    """Path of Iceberg's REST API below the base URL."""
    vends_freely: ClassVar[bool] = True
    lists_catalogs: ClassVar[bool] = False
    """Whether warehouses can be listed; Iceberg REST has no call for it."""

    def __init__(self, **properties: str) -> None:
        super().__init__(**properties)
        base = self._base_url()
        self._rest = Rest(self._settings, base=base, token_uri=f"{base}{self.iceberg_path}/oauth/tokens")
        self._announced_paths: dict[str, list[WarehousePaths]] = {}
        self._locations: dict[str, list[str]] = {}
        self._config_flight: SingleFlight[list[WarehousePaths]] = SingleFlight()
        self._resolved_paths: dict[str, WarehousePaths] = {}
        self._existing_namespaces = _ExistingNamespaces()

    def _base_url(self) -> str:
        """Return the URL below which the Iceberg REST API lies."""
        return self._settings.endpoint.removesuffix("/v1")

    # Warehouses

    def _call_warehouse(self, catalog: str, call: Callable[[WarehousePaths], T]) -> T:
        """Call a function with the paths of a warehouse, and return its result.

        If the server announces no prefix, the warehouse's name is tried as one; if it has no such route, the call is
        made again without a prefix. Paths are remembered only after a call with them has succeeded.
        """
        if (resolved := self._resolved_paths.get(catalog)) is not None:
            return call(resolved)
        first, *others = self._announced_paths.get(catalog) or self._config_flight.run(
            catalog, lambda: self._load_warehouse_paths(catalog)
        )
        try:
            return self._call_and_remember(catalog, first, call)
        except LanceNamespaceError as error:
            if not others or not is_route_missing(error):
                raise
            try:
                return self._call_and_remember(catalog, others[0], call)
            except LanceNamespaceError as second:
                # An error of a route that exists describes the problem; if neither route exists, report the first.
                raise (error if is_route_missing(second) and not is_named(second) else second) from None

    def _call_and_remember(self, catalog: str, paths: WarehousePaths, call: Callable[[WarehousePaths], T]) -> T:
        result = call(paths)
        self._resolved_paths[catalog] = paths
        return result

    def _load_warehouse_paths(self, catalog: str) -> list[WarehousePaths]:
        # Another thread may have loaded the configuration between the caller's check and this call.
        return self._announced_paths.get(catalog) or self._announced_paths.setdefault(
            catalog, self._warehouse_paths(catalog)
        )

    def _load_config(self, catalog: str) -> tuple[dict[str, str], CatalogConfig]:
        """Request `/v1/config`; return the server's defaults overridden by its overrides, and the whole response."""
        config = self._rest.get(
            f"{self.iceberg_path}/config",
            CatalogConfig,
            query=urlencode({"warehouse": catalog}, quote_via=quote),
            about=f"warehouse {catalog}",
            on={404: NamespaceNotFoundError, "NotFoundException": NamespaceNotFoundError},
        )
        merged = {**(config.defaults or {}), **(config.overrides or {})}
        return {key: value for key, value in merged.items() if isinstance(value, str)}, config

    def _warehouse_paths(self, catalog: str) -> list[WarehousePaths]:
        """Return the possible paths of a warehouse, the most likely first."""
        merged, config = self._load_config(catalog)
        self._locations[catalog] = [merged[key] for key in LOCATIONS if merged.get(key)]
        prefix = merged.get("prefix")
        # Some servers (Nessie) send a prefix that is percent-encoded already: `%` must not be encoded a second time.
        prefixes = [quote(prefix.strip("/"), safe="/%:@!$&'()*+,;=~")] if prefix else [quote(catalog, safe=""), ""]
        return [
            WarehousePaths(
                base_path="/".join(part for part in (self.iceberg_path, way) if part),
                separator=merged.get("namespace-separator") or UNIT_SEPARATOR,
                root=self._settings.root or merged.get("root"),
                endpoints=frozenset(config.endpoints) if config.endpoints is not None else None,
            )
            for way in prefixes
        ]

    def _announced_locations(self) -> list[str]:
        """Return the locations that the warehouses used so far announce for their tables."""
        return [location for locations in self._locations.values() for location in locations]

    # Namespaces

    def _list_children(self, parent: NamespaceId) -> list[NamespaceId]:
        def list_levels(at: WarehousePaths) -> list[list[str]]:
            query = f"parent={parent.to_path_segment(at.separator)}" if parent.levels else ""
            pages = self._rest.list_pages(
                f"{at.base_path}/namespaces", NamespacePage, about=parent, query=query, on={404: NamespaceNotFoundError}
            )
            return [levels for page in pages for levels in page.namespaces or ()]

        children = [
            NamespaceId(parent.catalog, tuple(levels))
            for levels in self._call_warehouse(parent.catalog, list_levels)
            if levels
        ]
        if not children and parent.levels:
            # Some servers list the children of a missing namespace as an empty list instead of 404.
            self._require_namespace(parent)
        return children

    def _create_namespace(self, namespace: NamespaceId, properties: Mapping[str, str]) -> Mapping[str, str]:
        if len(namespace.levels) > 1:
            self._require_namespace(namespace.parent)
        body = Namespace(namespace=list(namespace.levels), properties=dict(properties))

        def lookup() -> Namespace | None:
            existing = none_if_missing(lambda: self._load_namespace(namespace))
            is_ours = existing is not None and properties.items() <= existing.items()
            return Namespace(namespace=list(namespace.levels), properties=dict(existing or {})) if is_ours else None

        def create(at: WarehousePaths) -> tuple[Namespace, str]:
            created = self._rest.create(
                f"{at.base_path}/namespaces",
                body,
                Namespace,
                about=namespace,
                lookup=lookup,
                on={404: NamespaceNotFoundError, 409: NamespaceAlreadyExistsError},
            )
            return created, unquote(at.separator)

        created, separator = self._call_warehouse(namespace.catalog, create)
        if any(separator in level for level in namespace.levels):
            self._check_level(namespace, separator)
        self._existing_namespaces.add(namespace)
        return created.properties or {}

    def _check_level(self, namespace: NamespaceId, separator: str) -> None:
        """Check that the server did not split a level that contains the separator; delete the namespace if it did.

        Raises:
            InvalidInputError: the server takes the separator in the name for the end of a level.
        """
        if namespace not in self._list_children(namespace.parent):
            self._delete_namespace(namespace, cascade=False)
            raise InvalidInputError(
                f"{namespace}: the server takes {separator!r} for the end of a level, no name may contain it"
            )

    def _load_namespace(self, namespace: NamespaceId) -> Mapping[str, str]:
        loaded = self._call_warehouse(
            namespace.catalog,
            lambda at: self._rest.get(
                at.namespace_path(namespace), Namespace, about=namespace, on={404: NamespaceNotFoundError}
            ),
        )
        self._existing_namespaces.add(namespace)
        return loaded.properties or {}

    def _delete_namespace(self, namespace: NamespaceId, *, cascade: bool) -> None:
        assert not cascade, "refused before"
        self._existing_namespaces.forget(namespace)
        self._call_warehouse(
            namespace.catalog,
            lambda at: self._rest.delete(
                at.namespace_path(namespace),
                about=namespace,
                on={404: NamespaceNotFoundError, 409: NamespaceNotEmptyError},
            ),
        )

    def _require_namespace(self, namespace: NamespaceId) -> None:
        """Check that a namespace exists, because some servers create tables below a missing one, or list it as empty.

        Raises:
            NamespaceNotFoundError: it does not exist.
        """
        if namespace not in self._existing_namespaces:
            self._load_namespace(namespace)


class _ExistingNamespaces:
    """Namespaces that were found within the last `EXISTS_TTL_S` seconds. Thread-safe."""

    def __init__(self) -> None:
        self._expires_at: dict[NamespaceId, float] = {}
        self._lock = threading.Lock()

    def add(self, namespace: NamespaceId) -> None:
        with self._lock:
            self._expires_at[namespace] = time.monotonic() + EXISTS_TTL_S

    def forget(self, namespace: NamespaceId) -> None:
        """Forget a namespace and all namespaces below it."""
        with self._lock:
            self._expires_at = {
                cached: until for cached, until in self._expires_at.items() if not namespace.contains(cached)
            }

    def __contains__(self, namespace: NamespaceId) -> bool:
        return self._expires_at.get(namespace, 0.0) > time.monotonic()
