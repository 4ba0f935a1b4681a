"""A server that the attacks on places share."""

from __future__ import annotations

import json
from collections.abc import Iterator

import lance
import pyarrow as pa
import pytest
from lance_namespace import CreateNamespaceRequest

from lancehouse.catalog.callers import Grant, Role
from tests.security.house import PNG, SECRET, ServerWithPrincipals, principals
from tests.servers.lancehouse import start_lancehouse


@pytest.fixture(scope="package")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerWithPrincipals]:
    """The server; `blob_roots` of its warehouse name one folder beside it."""
    folder = tmp_path_factory.mktemp("house")
    (folder / "blobs").mkdir()
    db = f"sqlite:///{folder / 'catalog.db'}"
    config = folder / "server.yaml"
    warehouse = {"location": str(folder / "warehouse"), "blob_roots": [str(folder / "blobs")]}
    backends = {"files": {"impl": "dir", "properties": {"root": str(folder / "files")}}}
    config.write_text(json.dumps({"warehouses": {"main": warehouse}, "backends": backends}))
    tokens = principals(db, root=Grant(Role.ADMIN))
    with start_lancehouse(folder, db=db, options=["--config", str(config)]) as served:
        house = ServerWithPrincipals(served, folder, tokens)
        house.secret.write_bytes(PNG + SECRET)
        for name in ("a", "b"):
            house.client("root").create_namespace(CreateNamespaceRequest(id=["main", name]))
        grants = {"alice": Grant(Role.WRITER, "main", ("a",)), "bob": Grant(Role.WRITER, "main", ("b",))}
        tokens |= principals(db, **grants)
        victim = pa.table({"id": [1], "text": ["rows of bob"]})
        lance.write_dataset(victim, house.place("b", "victim"))
        house.register("bob", "b", "victim")
        yield house
