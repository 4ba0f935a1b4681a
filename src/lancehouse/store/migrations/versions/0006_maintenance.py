"""Tables under maintenance, what was done to them, and how far planning has come."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"

NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
TEXT = sa.Text(collation="C").with_variant(sa.Text(), "sqlite")


def upgrade() -> None:
    """Create the tables, empty: everything in them is found again."""
    op.create_table(
        "maintained_tables",
        sa.Column("id", NUMBER, sa.Identity(), nullable=False),
        sa.Column("entry_id", NUMBER, nullable=True),
        sa.Column("backend", TEXT, nullable=False),
        sa.Column("path", TEXT, nullable=False),
        sa.Column("path_key", TEXT, nullable=False),
        sa.Column("due_ms", NUMBER, nullable=True),
        sa.Column("why", TEXT, nullable=False),
        sa.Column("requested", TEXT, nullable=False),
        sa.Column("requested_by", TEXT, nullable=False),
        sa.Column("lease", NUMBER, nullable=False),
        sa.Column("worker", TEXT, nullable=False),
        sa.Column("lease_until_ms", NUMBER, nullable=True),
        sa.Column("started_ms", NUMBER, nullable=True),
        sa.Column("looked_ms", NUMBER, nullable=True),
        sa.Column("failures", NUMBER, nullable=False),
        sa.Column("error", TEXT, nullable=False),
        sa.Column("seen", TEXT, nullable=False),
        sa.ForeignKeyConstraint(["entry_id"], ["entries.id"], name="fk_maintained_tables_entry_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_maintained_tables"),
        sa.UniqueConstraint("entry_id", name="uq_maintained_tables_entry_id"),
        sa.UniqueConstraint("backend", "path_key", name="uq_maintained_tables_backend_path_key"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_maintained_tables_due_ms", "maintained_tables", ["due_ms"])
    op.create_index("ix_maintained_tables_lease_until_ms", "maintained_tables", ["lease_until_ms"])
    op.create_table(
        "maintenance_runs",
        sa.Column("id", NUMBER, sa.Identity(), nullable=False),
        sa.Column("table_id", NUMBER, nullable=False),
        sa.Column("started_ms", NUMBER, nullable=False),
        sa.Column("ended_ms", NUMBER, nullable=False),
        sa.Column("worker", TEXT, nullable=False),
        sa.Column("operation", TEXT, nullable=False),
        sa.Column("outcome", TEXT, nullable=False),
        sa.Column("why", TEXT, nullable=False),
        sa.Column("version_before", NUMBER, nullable=True),
        sa.Column("version_after", NUMBER, nullable=True),
        sa.Column("bytes_before", NUMBER, nullable=True),
        sa.Column("bytes_after", NUMBER, nullable=True),
        sa.Column("bytes_removed", NUMBER, nullable=False),
        sa.Column("message", TEXT, nullable=False),
        sa.ForeignKeyConstraint(
            ["table_id"], ["maintained_tables.id"], name="fk_maintenance_runs_table_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_maintenance_runs"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_maintenance_runs_table_id", "maintenance_runs", ["table_id"])
    op.create_index("ix_maintenance_runs_ended_ms", "maintenance_runs", ["ended_ms"])
    op.create_table(
        "maintenance_marks",
        sa.Column("name", TEXT, nullable=False),
        sa.Column("number", NUMBER, nullable=False),
        sa.Column("holder", TEXT, nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_maintenance_marks"),
    )
