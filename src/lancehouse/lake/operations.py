"""All operations of the Lance interface on one table, implemented once for every catalog."""

from __future__ import annotations

from typing import Any

from lancehouse.lake.column_operations import ColumnOperations
from lancehouse.lake.confinement import Confinement
from lancehouse.lake.index_operations import IndexOperations
from lancehouse.lake.query_operations import QueryOperations
from lancehouse.lake.reference_operations import ReferenceOperations
from lancehouse.lake.requests import accept_dicts
from lancehouse.lake.row_operations import RowOperations
from lancehouse.lake.versions import VersionOperations


class TableOperations(
    RowOperations, QueryOperations, ColumnOperations, IndexOperations, ReferenceOperations, VersionOperations
):
    """A namespace whose tables can be read, written and altered.

    A catalog adds `describe_table`, `declare_table`, `deregister_table` and `drop_table`. Each operation opens the
    table by name, through the catalog: credentials are renewed, and commits go through the catalog if it manages
    versions. No state is kept between calls.

    The behaviour is that of Lance's own directory namespace. What that one ignores in a request is honoured here: the
    branch of every operation, options of indices, pages of tags and branches, several query vectors. In addition,
    `batch_delete_table_versions` never deletes the current version or tagged ones, and statistics do not count deleted
    rows.
    """

    confinement: Confinement | None = None
    """What may be opened for its tables; None means whatever they refer to. A server sets it, for tables of others."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Let every operation be called from Rust too, as lancedb does."""
        super().__init_subclass__(**kwargs)
        accept_dicts(cls)
