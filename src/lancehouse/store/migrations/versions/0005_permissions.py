"""Grants on tables, groups, and tokens that expire."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"

NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
TEXT = sa.Text(collation="C").with_variant(sa.Text(), "sqlite")


def upgrade() -> None:
    """Add the columns and the table of members; groups are principals of another kind."""
    op.add_column("principals", sa.Column("kind", TEXT, server_default="principal", nullable=False))
    op.create_table(
        "members",
        sa.Column("principal_id", NUMBER, nullable=False),
        sa.Column("group_id", NUMBER, nullable=False),
        sa.ForeignKeyConstraint(
            ["principal_id"], ["principals.id"], name="fk_members_principal_id", ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["group_id"], ["principals.id"], name="fk_members_group_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("principal_id", "group_id", name="pk_members"),
    )
    op.create_index("ix_members_group_id", "members", ["group_id"])
    op.add_column("tokens", sa.Column("expires_ms", NUMBER))
    op.add_column("grants", sa.Column("table_name", TEXT))
    op.create_index("ix_grants_warehouse_path_key", "grants", ["warehouse", "path_key"])
