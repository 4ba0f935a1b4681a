"""Rows for the tests of the store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lancehouse.store import repository
from lancehouse.store.database import Database
from lancehouse.store.model import EntryRow
from lancehouse.store.statements import Tx

NOW = 1_700_000_000_000


@dataclass(frozen=True)
class StoredNamespace:
    """Where a test works."""

    database: Database
    warehouse_id: int
    namespace_id: int

    def insert(self, name: str, **values: Any) -> EntryRow | None:
        """A new entry in the namespace `a`, in a transaction of its own."""
        return self.database.write(lambda tx: insert(tx, values.pop("namespace_id", self.namespace_id), name, **values))

    def create(self, name: str, **values: Any) -> EntryRow:
        """The same, sure to be made."""
        entry = self.insert(name, **values)
        assert entry is not None
        return entry

    def find(self, name: str) -> EntryRow | None:
        """An entry of the namespace `a`."""
        return self.database.read(lambda tx: repository.find_entry(tx, self.warehouse_id, ("a",), name))


def insert(tx: Tx, namespace_id: int, name: str, **values: Any) -> EntryRow | None:
    """A table, but for what is said of it."""
    location = values.pop("location", f"/data/{name}")
    given: dict[str, Any] = {
        "kind": "lance",
        "uuid": f"uuid of {name}",
        "location": location,
        "location_key": f"{location}/",
        "properties": {},
        "now_ms": NOW,
        **values,
    }
    return repository.insert_entry(tx, namespace_id, name=name, **given)
