"""The warehouses of a server: a name, a place, and how the place is reached."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from lancehouse.properties import STORAGE


@dataclass(frozen=True, slots=True)
class Warehouse:
    """Where the tables of one catalog lie. Its repr shows no secret."""

    id: int
    name: str
    location: str
    roots: tuple[str, ...] = ()
    """More places, besides `location`, where tables may lie."""
    storage: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Storage options in Lance's names, for this server itself."""
    vend: Literal["none", "static", "sts"] = "none"
    """What clients that ask for credentials are given."""
    role_arn: str | None = None
    """With `sts`: the role that is assumed for them."""
    cache: str | None = None
    """Where Parquet copies for scans are kept; by default `.lancehouse/` below `location`."""
    blob_roots: tuple[str, ...] = ()
    """Places outside of its tables from which external blobs are read."""
    managed_by: str = STORAGE
    """Who decides which version of a new Lance table is the current one, where its properties do not say."""
    static_read: Mapping[str, str] = field(default_factory=dict, repr=False)
    """With `static`: the credentials that readers get. The warehouse's own, in `storage`, are for writers only."""
