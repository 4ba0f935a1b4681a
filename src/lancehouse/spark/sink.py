"""Write the rows of a Spark data source: prepared on the driver, written in tasks, committed on the driver.

Spark makes these calls in separate processes, so each gets all its state from the pickled object.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

import pyarrow as pa
from lance_namespace.errors import TableNotFoundError

from lancehouse.jobs.address import TableAddress
from lancehouse.jobs.job import Job, WriteOptions, declare_table, undo_declaration
from lancehouse.lake import commits
from lancehouse.lake.fragments import Piece, locate_table
from lancehouse.lake.manifests import read_transaction_uuid
from lancehouse.schema.spark_to_lance import from_spark_rows
from lancehouse.spark.table_writer import create_conflict, new_table_schema, write_rows

ATTEMPTED = "commit"
"""Key of a job's record: it has begun its commit."""


@dataclass(frozen=True, slots=True)
class Sink:
    """One job that writes rows of Spark to a table; can be sent to other processes."""

    job: Job
    struct: Mapping[str, Any]
    """The JSON of the rows' StructType."""
    schema: pa.Schema
    """Schema of the table that the rows are written in: the existing one for an append, the new one otherwise."""
    base: int
    """The version that was the latest when the job began; 0 if there was none."""
    base_uuid: str
    """Uuid of the commit that made it."""
    replaces: bool
    """Whether the rows replace all others."""
    declared: bool
    """Whether this job declared the table in the catalog."""
    how: WriteOptions

    @classmethod
    def begin(cls, address: TableAddress, struct: Mapping[str, Any], how: WriteOptions, *, replaces: bool) -> Self:
        """Check that the rows fit the table. A missing table is declared.

        Raises:
            TableSchemaValidationError: the rows do not fit.
        """
        table = address.to_ref()
        try:
            dataset = table.open()
        except TableNotFoundError:
            schema = new_table_schema(struct, how)
            return cls(Job(address, is_watched=False), struct, schema, 0, "", replaces, declare_table(table), how)
        schema = new_table_schema(struct, how, dataset.schema) if replaces else dataset.schema
        from_spark_rows(struct, schema)
        job, base = Job(address, is_watched=False), dataset.version
        return cls(job, struct, schema, base, read_transaction_uuid(dataset), replaces, False, how)

    def write(self, batches: Iterator[pa.RecordBatch]) -> list[Piece]:
        """Write the rows of a task, without a commit."""
        mode = "append" if self.base and not self.replaces else "overwrite"
        return write_rows(self.job, batches, from_spark_rows(self.struct, self.schema), mode, self.how.layout)

    def commit(self, pieces: Iterable[Piece], properties: Mapping[str, str]) -> int:
        """Commit what the tasks wrote as one version; return the version.

        Raises:
            ConcurrentModificationError: another writer changed or created the table, and its rows would be lost.
        """
        table, used = self.job.address.to_ref(), list(pieces)
        at = locate_table(table)
        # Spark also calls `abort` after a commit that failed. From here on a failure may mean that the version was
        # made, so `abort` must not delete its files.
        self.job.progress().record(ATTEMPTED, [])
        try:
            with self.job.clean_up_after(used):
                if not self.base:
                    make = commits.create if self.replaces else commits.create_or_append
                    return make(table, at, self.schema, used, properties)
                commits.require_same_table(table, self.base, self.base_uuid)
                if self.replaces:
                    return commits.overwrite(table, at, self.schema, used, self.base, properties)
                return commits.append(table, at, used, self.base, properties)
        except commits.RunAlreadyCommittedError as error:
            return error.version
        except commits.CreateConflictError as error:
            raise create_conflict(table) from error

    def abort(self) -> None:
        """Remove what the tasks wrote. Spark also calls this after a commit that failed.

        If it is not known whether that commit was made, the files stay.
        """
        notes = self.job.progress()
        if ATTEMPTED in notes.read_records():
            notes.clear()
            return
        self.discard()
        if self.declared:
            undo_declaration(self.job.address.to_ref())

    def discard(self) -> None:
        """Remove all that the tasks wrote."""
        with self.job.clean_up_after([]):
            pass
