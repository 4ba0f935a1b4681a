"""Tables that need maintenance: at a plain path, and with a catalog that manages their versions."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import lance
import pyarrow as pa
from lance_namespace import CreateTableRequest

from lancehouse.jobs import orphans
from lancehouse.jobs.address import TableAddress
from lancehouse.lake.dataset import TableRef
from tests.clients.managed import ManagedCatalog
from tests.lake.folder import rows, stream


@dataclass(frozen=True)
class Worn:
    """A table of many small fragments."""

    ref: TableRef
    folder: Path
    house: ManagedCatalog | None = None

    @property
    def address(self) -> TableAddress:
        """As jobs take it."""
        return TableAddress(self.ref.namespace, self.ref.id, self.ref.location)

    def open(self) -> lance.LanceDataset:
        """As somebody else sees it."""
        return self.ref.open()

    def append(self, data: pa.Table) -> None:
        """Add rows, in a fragment of their own."""
        lance.write_dataset(data, self.open(), mode="append")

    def files(self, *folders: str) -> set[str]:
        """The files in some of its folders."""
        found = (path for folder in folders for path in (self.folder / folder).rglob("*") if path.is_file())
        return {str(path.relative_to(self.folder)) for path in found}

    def check(self) -> None:
        """See that a catalog agrees with storage."""
        if self.house:
            self.house.check(list(self.ref.id))


def remove_orphans(
    table: TableRef, older_than: timedelta | None = None, *, dry_run: bool = False, no_writers: bool = False
) -> orphans.Orphans:
    """What `run_removal` does, of any reference to a table, and task after task."""
    found = orphans.Orphans()
    for task in orphans.plan(table, older_than, no_writers=no_writers):
        found += task.summarize() if dry_run else orphans.execute(table, task)
    return found


def worn_path(folder: Path, fragments: int = 6, each: int = 10) -> Worn:
    """A table without a catalog."""
    for number in range(fragments):
        lance.write_dataset(rows(each, number * each), str(folder), mode="append" if number else "create")
    return Worn(TableRef(str(folder)), folder)


def worn_in(house: ManagedCatalog, fragments: int = 6, each: int = 10) -> Worn:
    """A table whose versions the catalog manages."""
    made = house.id(f"t{uuid4().hex[:8]}")
    house.namespace.create_table(CreateTableRequest(id=made), stream(rows(each)))
    table = Worn(TableRef.in_namespace(house.connect(), made), house.folder(made), house)
    for number in range(1, fragments):
        table.append(rows(each, number * each))
    return table
