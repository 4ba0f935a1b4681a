"""A gateway for engines that are not ours: tables that storage manages, and that the catalog does, in two catalogs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lancehouse.catalog.bootstrap import open_database
from lancehouse.catalog.callers import Grant, Role
from lancehouse.catalog.principals import Principals
from tests.servers.lancehouse import Served, start_lancehouse
from tests.servers.reference import Reference

BACKENDS = ("main", "managed", "reference", "reference_managed")


@contextmanager
def start_engines_gateway(folder: Path, reference: Reference) -> Iterator[Served]:
    """The warehouses `main` and `managed`, and Iceberg's server as `reference` and `reference_managed`."""
    properties = {"endpoint": reference.uri, "root": str(folder / "reference")}
    described = {
        "warehouses": {"managed": {"managed_by": "impl"}},
        "backends": {
            "reference": {"impl": "iceberg", "properties": properties},
            "reference_managed": {"impl": "iceberg", "properties": {**properties, "managed_by": "impl"}},
        },
    }
    config = folder / "server.yaml"
    config.write_text(json.dumps(described))
    places = {name: folder / name for name in ("main", "managed")}
    with start_lancehouse(folder, warehouses=places, options=["--config", str(config)]) as server:
        yield server


def above(backend: str) -> list[str]:
    """What all ids begin with."""
    return ["wh"] if backend.startswith("reference") else []


def is_managed(backend: str) -> bool:
    """Whether the catalog decides on the versions of its tables."""
    return backend.endswith("managed")


def principal(db: str, name: str, role: Role) -> str:
    """Somebody with a role everywhere in `main`; their token."""
    database = open_database(db)
    try:
        principals = Principals(database, ["main"])
        principals.create(name, [Grant(role, "main")])
        return principals.create_token(name, "test")
    finally:
        database.close()
