"""Change the columns of a table so that rows with other columns fit, before these are written."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

import pyarrow as pa
from lance_namespace.errors import InvalidInputError, TableSchemaValidationError

from lancehouse.jobs.address import TableAddress
from lancehouse.jobs.column_functions import definitions
from lancehouse.jobs.job import WriteOptions
from lancehouse.lake.commits import ColumnsChangedError
from lancehouse.lake.row_changes import ATTEMPTS, retry_conflicts
from lancehouse.lake.scans import COMPANION, empty_dataset
from lancehouse.schema.evolution import SchemaEvolution, plan_evolution

logger = logging.getLogger(__name__)

OTHER_COLUMNS = "Append with different schema"
"""What Lance says of rows that are written for other types than a table has by now."""

T = TypeVar("T")


def plan_columns(schema: pa.Schema, incoming: pa.Schema) -> SchemaEvolution:
    """Return how the columns of a table have to change for rows with other columns. Computed columns stay.

    Raises:
        TableSchemaValidationError: they cannot; the message names the columns.
    """
    computed = definitions(schema)
    evolution = plan_evolution(schema, incoming, [*computed, *(each.companion for each in computed.values())])
    if taken := [name for name in evolution.new.names if name.startswith(COMPANION)]:
        raise InvalidInputError(f"{taken[0]}: names that begin with {COMPANION} are taken")
    return evolution


def evolve_columns(
    address: TableAddress,
    plan: Callable[[pa.Schema], pa.Schema],
    check: Callable[[pa.Schema], object] = lambda _: None,
) -> bool:
    """Change the columns of a table so that some rows fit; return whether there was anything to do.

    New columns are one commit, which writes no data. Wider types are another, before it, which writes these columns
    again in this process. If this fails in between, the table is whole, and the same call goes on. Of several writers
    that do this at once, each sees what the others have done.

    Args:
        address: the table.
        plan: returns the columns of the rows, given those of the table.
        check: called with the columns that the table will have, before anything is changed; raises if the rows do not
            fit them.

    Raises:
        TableSchemaValidationError: the columns cannot evolve so; nothing was changed.
        ConcurrentModificationError: others kept changing the table.
    """

    def attempt() -> bool:
        with address.to_ref().dataset() as dataset:
            evolution = plan_columns(dataset.schema, plan(dataset.schema))
            check(evolution.target)
            if not evolution:
                return False
            empty_dataset(evolution.target)
            if evolution.wider:
                dataset.alter_columns(*({"path": path, "data_type": to} for path, to in evolution.wider.items()))
            if evolution.new.names:
                dataset.add_columns(evolution.new)
            logger.info("%s: columns evolved in version %d", address, dataset.version)
            return True

    return retry_conflicts(address, attempt)


def retry_changed_columns(how: WriteOptions, attempt: Callable[[], T]) -> T:
    """Write rows again, where columns may evolve, if somebody else has changed a type meanwhile."""
    for _ in range(ATTEMPTS - 1 if how.evolves else 0):
        try:
            return attempt()
        except (ColumnsChangedError, TableSchemaValidationError) as error:
            if isinstance(error, TableSchemaValidationError) and OTHER_COLUMNS not in str(error):
                raise
            logger.info("the rows are written again: %s", error)
    return attempt()
