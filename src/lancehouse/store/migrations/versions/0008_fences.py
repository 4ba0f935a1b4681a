"""What the database knows of the epoch files in its warehouses."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"

NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
TEXT = sa.Text(collation="C").with_variant(sa.Text(), "sqlite")


def upgrade() -> None:
    """Create the table, empty: a server writes the first epoch file of a warehouse when it starts."""
    op.create_table(
        "fences",
        sa.Column("warehouse_id", NUMBER, nullable=False),
        sa.Column("catalog", TEXT, nullable=False),
        sa.Column("epoch", NUMBER, nullable=False),
        sa.Column("tokens", TEXT, nullable=False),
        sa.Column("position", NUMBER, nullable=False),
        sa.Column("state", TEXT, nullable=False),
        sa.Column("reason", TEXT, nullable=False),
        sa.Column("renewed_ms", NUMBER, nullable=True),
        sa.Column("holder", TEXT, nullable=False),
        sa.Column("leased_until_ms", NUMBER, nullable=False),
        sa.ForeignKeyConstraint(["warehouse_id"], ["warehouses.id"], name="fk_fences_warehouse_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("warehouse_id", name="pk_fences"),
    )
