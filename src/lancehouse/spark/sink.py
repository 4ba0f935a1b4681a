"""What a data source writes: decided on the driver, written in tasks, committed on the driver.

Spark makes these calls in processes of its own, so that each has to know all from what it is handed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

import pyarrow as pa
from lance_namespace.errors import TableNotFoundError

from lancehouse.lake import commits
from lancehouse.lake.fragments import Piece, place
from lancehouse.lake.manifests import made_by
from lancehouse.lake.progress import Progress
from lancehouse.schema.incoming import from_rows
from lancehouse.spark.address import Address
from lancehouse.spark.jobs import Job
from lancehouse.spark.writing import Write, declare, overtaken, schema_for, take_back

ATTEMPTED = "commit"
"""A record of a job: it has come to its commit."""


@dataclass(frozen=True, slots=True)
class Sink:
    """One job that writes rows of Spark to a table."""

    job: Job
    struct: Mapping[str, Any]
    """The JSON of the rows' StructType."""
    schema: pa.Schema
    """Of the table, before or after."""
    base: int
    """The version that was the latest when the job began; 0: there was none."""
    known: str
    """Which commit made it."""
    replaces: bool
    """Whether the rows take the place of all others."""
    declared: bool
    """Whether the catalog knows the table because of this job."""
    how: Write

    @classmethod
    def begin(cls, address: Address, struct: Mapping[str, Any], how: Write, *, replaces: bool) -> Self:
        """See that the rows fit the table. A missing table is declared.

        Raises:
            TableSchemaValidationError: they do not fit.
        """
        table = address.ref()
        try:
            dataset = table.open()
        except TableNotFoundError:
            schema = schema_for(struct, how)
            return cls(Job(address, is_watched=False), struct, schema, 0, "", replaces, declare(table), how)
        schema = schema_for(struct, how, dataset.schema) if replaces else dataset.schema
        from_rows(struct, schema)
        job, base = Job(address, is_watched=False), dataset.version
        return cls(job, struct, schema, base, made_by(dataset), replaces, False, how)

    def write(self, batches: Iterator[pa.RecordBatch]) -> list[Piece]:
        """Write the rows of a task."""
        mode = "append" if self.base and not self.replaces else "overwrite"
        return self.job.write_rows(batches, from_rows(self.struct, self.schema), mode, self.how.layout)

    def commit(self, pieces: Iterable[Piece], properties: Mapping[str, str]) -> int:
        """Make one version of what the tasks wrote.

        Raises:
            ConcurrentModificationError: somebody changed the table or made it, and their rows would be gone.
        """
        table, used = self.job.address.ref(), list(pieces)
        at = place(table)
        self._notes().put(ATTEMPTED, [])
        try:
            with self.job.cleaned(used):
                if not self.base:
                    make = commits.create if self.replaces else commits.create_or_append
                    return make(table, at, self.schema, used, properties)
                commits.require_same(table, self.base, self.known)
                if self.replaces:
                    return commits.overwrite(table, at, self.schema, used, self.base, properties)
                return commits.append(table, at, used, self.base, properties)
        except commits.RunMadeError as error:
            return error.version
        except commits.OvertakenError as error:
            raise overtaken(table) from error

    def abort(self) -> None:
        """Remove what the tasks wrote. Spark calls it also after a commit that failed.

        If nobody knows whether that commit was made, all stays as it is.
        """
        notes = self._notes()
        if ATTEMPTED in notes.done():
            notes.clear()
            return
        self.discard()
        if self.declared:
            take_back(self.job.address.ref())

    def discard(self) -> None:
        """Remove what the tasks wrote, as none of it is needed."""
        with self.job.cleaned([]):
            pass

    def _notes(self) -> Progress:
        at = place(self.job.address.ref())
        return Progress(at.location, at.storage_options, self.job.id)
