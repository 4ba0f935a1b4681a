"""Runs migrations on the connection that `lancehouse.store.migrate` passes; there is no ini file."""

from __future__ import annotations

from alembic import context

from lancehouse.store.migrate import VERSION_TABLE
from lancehouse.store.model import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=VERSION_TABLE,
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
