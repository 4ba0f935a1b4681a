"""Dropped tables that can be restored, and a record of changes that outlives what was changed."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"

NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
TEXT = sa.Text(collation="C").with_variant(sa.Text(), "sqlite")
UNNUMBERED = sa.text("position IS NULL")


def upgrade() -> None:
    """Let entries have no namespace, and make the tables."""
    _allow_no_namespace()
    op.create_table(
        "dropped",
        sa.Column("entry_id", NUMBER, nullable=False),
        sa.Column("warehouse_id", NUMBER, nullable=False),
        sa.Column("path", TEXT, nullable=False),
        sa.Column("path_key", TEXT, nullable=False),
        sa.Column("name", TEXT, nullable=False),
        sa.Column("dropped_ms", NUMBER, nullable=False),
        sa.Column("expires_ms", NUMBER, nullable=False),
        sa.Column("principal", TEXT, nullable=False),
        sa.Column("purge", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(["entry_id"], ["entries.id"], name="fk_dropped_entry_id", ondelete="CASCADE"),
        sa.ForeignKeyConstraint(
            ["warehouse_id"], ["warehouses.id"], name="fk_dropped_warehouse_id", ondelete="RESTRICT"
        ),
        sa.PrimaryKeyConstraint("entry_id", name="pk_dropped"),
    )
    op.create_index("ix_dropped_expires_ms", "dropped", ["expires_ms"])
    op.create_index("ix_dropped_warehouse_id_path_key_name", "dropped", ["warehouse_id", "path_key", "name"])
    op.create_table(
        "audit",
        sa.Column("id", NUMBER, sa.Identity(), nullable=False),
        sa.Column("at_ms", NUMBER, nullable=False),
        *(
            sa.Column(name, TEXT, nullable=False)
            for name in ("principal", "peer", "client", "request_id", "action", "warehouse", "path", "name")
        ),
        sa.Column("before", TEXT, nullable=True),
        sa.Column("after", TEXT, nullable=True),
        sa.Column("position", NUMBER, nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_audit"),
        sa.UniqueConstraint("position", name="uq_audit_position"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_audit_at_ms", "audit", ["at_ms"])
    op.create_index("ix_audit_name_id", "audit", ["name", "id"])
    op.create_index("ix_audit_unnumbered", "audit", ["id"], sqlite_where=UNNUMBERED, postgresql_where=UNNUMBERED)

    op.create_table(
        "webhooks",
        sa.Column("name", TEXT, nullable=False),
        sa.Column("position", NUMBER, nullable=False),
        sa.Column("holder", TEXT, nullable=False),
        sa.Column("leased_until_ms", NUMBER, nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_webhooks"),
    )


def _allow_no_namespace() -> None:
    """SQLite cannot change a column, so the table is copied; its ids must still never be given again."""
    connection = op.get_bind()
    last = None
    if connection.dialect.name == "sqlite":
        last = connection.execute(sa.text("SELECT seq FROM sqlite_sequence WHERE name = 'entries'")).scalar()
    with op.batch_alter_table("entries", table_kwargs={"sqlite_autoincrement": True}) as batch:
        batch.alter_column("namespace_id", existing_type=NUMBER, nullable=True)
    if last is not None:
        connection.execute(sa.text("DELETE FROM sqlite_sequence WHERE name = 'entries'"))
        connection.execute(sa.text("INSERT INTO sqlite_sequence VALUES ('entries', :last)"), {"last": last})
