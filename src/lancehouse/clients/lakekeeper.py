"""Client for Lakekeeper: Lance tables as generic tables with the format `lance`."""

from __future__ import annotations

from typing import ClassVar

from lance_namespace import RenameTableRequest, RenameTableResponse
from lance_namespace.errors import InvalidInputError, TableAlreadyExistsError, TableNotFoundError

from lancehouse.clients.catalog_namespace import none_if_missing
from lancehouse.clients.generic_tables import GenericTableNamespace
from lancehouse.identifiers import TableId
from lancehouse.wire.iceberg import RenameTable, TableIdentifier

ICEBERG_API = "/catalog"
GENERIC_API = "/lakekeeper"


class LakekeeperNamespace(GenericTableNamespace):
    """The Lance namespace of a Lakekeeper server. The first level of an id is the warehouse, by its name."""

    client: ClassVar[str] = "lakekeeper"
    iceberg_path: ClassVar[str] = f"{ICEBERG_API}/v1"
    managed_versions_hint: ClassVar[str] = (
        "Lakekeeper's own Iceberg tables have one: use the `iceberg` client with Lakekeeper's endpoint and /catalog"
    )

    def _base_url(self) -> str:
        return self._settings.endpoint.removesuffix("/v1").removesuffix(ICEBERG_API)

    def _generic_path(self, catalog: str) -> str:
        # Lakekeeper's paths have the warehouse's id, which `/v1/config` announces as the prefix for its name.
        prefix = self._call_warehouse(catalog, lambda paths: paths.base_path).removeprefix(self.iceberg_path)
        return f"{GENERIC_API}/v1{prefix}"

    def rename_table(self, request: RenameTableRequest) -> RenameTableResponse:
        """Give a table another name, in its namespace or another one of its warehouse; its data stays in place."""
        source = self._parse_table_id(request.id)
        namespace = self._parse_namespace_id(request.new_namespace_id) if request.new_namespace_id else source.namespace
        target = self._parse_table_id([*namespace.parts, request.new_table_name])
        if namespace.catalog != source.namespace.catalog:
            raise InvalidInputError(f"{source} cannot be renamed to {target}: it would change its warehouse")
        self._load_table(source, vend=False)  # a table of another format is none of this namespace's
        self._require_namespace(namespace)
        self._rest.post(
            f"{self._generic_path(namespace.catalog)}/generic-tables/rename",
            RenameTable(source=_to_identifier(source), destination=_to_identifier(target)),
            about=source,
            is_done=lambda: self._is_renamed(source, target),
            on={404: TableNotFoundError, 409: TableAlreadyExistsError},
        )
        return RenameTableResponse()

    def _is_renamed(self, source: TableId, target: TableId) -> bool:
        """Look whether a rename whose response was lost was made."""
        renamed = none_if_missing(lambda: self._load_table(target, vend=False))
        return renamed is not None and none_if_missing(lambda: self._load_table(source, vend=False)) is None


def _to_identifier(table: TableId) -> TableIdentifier:
    return TableIdentifier(namespace=list(table.namespace.levels), name=table.name)
