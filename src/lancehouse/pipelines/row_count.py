"""Count the rows that Spark tasks read, by records below the table's location."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from uuid import uuid4

import pyarrow as pa
from lance_namespace.errors import LanceNamespaceError

from lancehouse.jobs.address import TableAddress
from lancehouse.jobs.job import JobProgress


@dataclass(frozen=True, slots=True)
class RowCount:
    """A count that tasks add to; sent to executors. A task that is repeated counts once."""

    address: TableAddress
    job: str = field(default_factory=lambda: f"count-{uuid4().hex}")

    def count(self, key: str, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the batches unchanged, and record the number of their rows under a key."""
        rows = 0
        for batch in batches:
            rows += batch.num_rows
            yield batch
        try:
            self._progress().record(key, rows)
        except LanceNamespaceError:
            return  # the table does not exist yet: the rows are evaluated before they are written

    def take(self) -> int:
        """Return the total, and remove the records."""
        progress = self._progress()
        rows = sum(progress.read_records().values())
        progress.clear()
        return int(rows)

    def _progress(self) -> JobProgress:
        at = self.address.write_location(self.job)
        return JobProgress(at.location, at.storage_options, self.job)
