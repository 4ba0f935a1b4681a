"""Everything that the Lance interface can do to one table, written once for every catalog."""

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
    table by its name, through the catalog: credentials stay fresh, and commits go through it where it manages
    versions. Nothing is kept between calls.

    It is done as Lance's own directory namespace does it. Where that one ignores what a request says, this one heeds
    it: the branch of every operation, options of indices, pages of tags and branches, several query vectors. Beyond
    that, `batch_delete_table_versions` spares the current version and tagged ones, and statistics do not count deleted
    rows.
    """

    confinement: Confinement | None = None
    """What of its tables may be opened; None: whatever they name. A server sets it, for the rows of others."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Let every operation be called from Rust too, as lancedb does."""
        super().__init_subclass__(**kwargs)
        accept_dicts(cls)
