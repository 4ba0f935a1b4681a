"""Row filters and column masks of grants."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"

TEXT = sa.Text(collation="C").with_variant(sa.Text(), "sqlite")


def upgrade() -> None:
    """Add the column; no grant has any yet."""
    op.add_column("grants", sa.Column("restriction", TEXT))
