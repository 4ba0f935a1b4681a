"""Indices for catalogs of many tables: of words in names, on Postgres, and of tables that are leased or fail."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from lancehouse.store.migrate import create_search_index

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Create the indices; the one of words where the database can."""
    create_search_index(op.get_bind())
    op.drop_index("ix_maintained_tables_lease_until_ms", "maintained_tables")
    for name, columns, condition in (
        ("leased", ["lease_until_ms"], sa.text("lease_until_ms IS NOT NULL")),
        ("failing", ["due_ms", "id"], sa.text("failures > 0")),
    ):
        op.create_index(
            f"ix_maintained_tables_{name}",
            "maintained_tables",
            columns,
            sqlite_where=condition,
            postgresql_where=condition,
        )
