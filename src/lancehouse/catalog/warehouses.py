"""Settings of the catalog: warehouses, with their storage and credentials, and webhooks, which get their changes.

Only quick imports here: the settings of a server are read before Lance is loaded.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from lancehouse.catalog.errors import WarehouseNotFoundError
from lancehouse.properties import STORAGE

RETENTION_S = 7 * 86400


@dataclass(frozen=True, slots=True)
class Warehouse:
    """A warehouse of a server, with its settings. Its repr shows no secrets."""

    id: int
    name: str
    location: str
    roots: tuple[str, ...] = ()
    """More locations, besides `location`, below which tables may lie."""
    storage: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Storage options in Lance's names, for the server's own access."""
    vend: Literal["none", "static", "sts", "sas"] = "none"
    """Which credentials clients get that ask for them."""
    role_arn: str | None = None
    """With `sts` on S3: the role that the server assumes for clients."""
    cache: str | None = None
    """Location of the Parquet copies for scans; by default `.lancehouse/` below `location`."""
    blob_roots: tuple[str, ...] = ()
    """Locations outside of tables from which external blobs may be read."""
    managed_by: str = STORAGE
    """`managed_by` of new Lance tables whose properties do not set it."""
    static_read: Mapping[str, str] = field(default_factory=dict, repr=False)
    """With `static`: the credentials for readers. Those in `storage` are for writers only."""
    sas_scope: Literal["folder", "container"] = "folder"
    """With `sas`: what a token opens. `container` is for accounts without a hierarchical namespace."""
    retention_s: int = RETENTION_S
    """For how long a dropped table can be restored, in seconds; 0: not at all."""
    maintenance: Mapping[str, str] = field(default_factory=dict)
    """Properties `maintenance.*` of all its tables, unless a namespace or a table sets them."""


class Warehouses(dict[str | None, Warehouse]):
    """The warehouses of a server by name; None stands for the first one."""

    def __missing__(self, name: str | None) -> Warehouse:
        """Return the first warehouse for None.

        Raises:
            WarehouseNotFoundError: the server has no warehouse of that name.
        """
        if name is None:
            return next(iter(self.values()))
        raise WarehouseNotFoundError(f"Warehouse does not exist: {name}")


SECRET_PREFIX = "whsec_"  # noqa: S105


@dataclass(frozen=True, slots=True)
class Webhook:
    """A URL that gets events."""

    name: str
    url: str
    secret: str = field(repr=False)
    warehouse: str | None = None
    """Only changes of this warehouse; None for all."""
    types: tuple[str, ...] = ()
    """Only actions that begin so, such as `table` or `table.commit`; empty for all."""

    def selects(self, action: str, warehouse: str) -> bool:
        """Return whether a change is sent."""
        return self.warehouse in (None, warehouse) and (
            not self.types or any(f"{action}.".startswith(f"{word}.") for word in self.types)
        )

    def sign(self, id: str, timestamp: int, body: bytes) -> str:
        """Return the signature of a message as the Standard Webhooks specification has it."""
        is_encoded = self.secret.startswith(SECRET_PREFIX)
        # Without validation, characters that are not Base64 would be left out, down to an empty key.
        key = (
            base64.b64decode(self.secret.removeprefix(SECRET_PREFIX), validate=True)
            if is_encoded
            else self.secret.encode()
        )
        content = f"{id}.{timestamp}.".encode() + body
        return "v1," + base64.b64encode(hmac.new(key, content, hashlib.sha256).digest()).decode()
