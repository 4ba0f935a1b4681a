"""An index that has all that a list of names needs."""

from __future__ import annotations

from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Make it."""
    op.create_index("ix_entries_namespace_id_name_kind", "entries", ["namespace_id", "name", "kind"])
