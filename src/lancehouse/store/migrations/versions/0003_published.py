"""Whether the manifest of a table's current version is at its final path."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Add the column, and drop schemas that were not kept up to date; a server fills both in when it next can."""
    op.add_column("entries", sa.Column("published", NUMBER))
    op.execute("UPDATE entries SET schema = NULL WHERE kind = 'lance' AND version IS NOT NULL")
