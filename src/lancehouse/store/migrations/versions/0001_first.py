"""The first schema."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
TEXT = sa.Text(collation="C").with_variant(sa.Text(), "sqlite")


def upgrade() -> None:
    """Make all tables."""
    _names()
    _versions()
    _callers()
    _copies()


def _names() -> None:
    op.create_table(
        "warehouses",
        sa.Column("id", NUMBER, sa.Identity(), nullable=False),
        sa.Column("name", TEXT, nullable=False),
        sa.Column("location", TEXT, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_warehouses"),
        sa.UniqueConstraint("name", name="uq_warehouses_name"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "namespaces",
        sa.Column("id", NUMBER, sa.Identity(), nullable=False),
        sa.Column("warehouse_id", NUMBER, nullable=False),
        sa.Column("parent_id", NUMBER, nullable=True),
        sa.Column("name", TEXT, nullable=False),
        sa.Column("path", TEXT, nullable=False),
        sa.Column("path_key", TEXT, nullable=False),
        sa.Column("properties", TEXT, nullable=False),
        sa.ForeignKeyConstraint(["parent_id"], ["namespaces.id"], name="fk_namespaces_parent_id", ondelete="RESTRICT"),
        sa.ForeignKeyConstraint(
            ["warehouse_id"], ["warehouses.id"], name="fk_namespaces_warehouse_id", ondelete="RESTRICT"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_namespaces"),
        sa.UniqueConstraint("warehouse_id", "path_key", name="uq_namespaces_warehouse_id_path_key"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_namespaces_parent_id", "namespaces", ["parent_id"])
    op.create_index("ix_namespaces_warehouse_id_parent_id_name", "namespaces", ["warehouse_id", "parent_id", "name"])
    op.create_table(
        "entries",
        sa.Column("id", NUMBER, sa.Identity(), nullable=False),
        sa.Column("namespace_id", NUMBER, nullable=False),
        sa.Column("name", TEXT, nullable=False),
        sa.Column("kind", TEXT, nullable=False),
        sa.Column("uuid", TEXT, nullable=False),
        sa.Column("location", TEXT, nullable=False),
        sa.Column("location_key", TEXT, nullable=False),
        sa.Column("properties", TEXT, nullable=False),
        sa.Column("revision", NUMBER, nullable=False),
        sa.Column("created_ms", NUMBER, nullable=False),
        sa.Column("updated_ms", NUMBER, nullable=False),
        sa.Column("schema", TEXT, nullable=True),
        sa.Column("version", NUMBER, nullable=True),
        sa.Column("metadata_location", TEXT, nullable=True),
        sa.ForeignKeyConstraint(
            ["namespace_id"], ["namespaces.id"], name="fk_entries_namespace_id", ondelete="RESTRICT"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_entries"),
        sa.UniqueConstraint("namespace_id", "name", name="uq_entries_namespace_id_name"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_entries_location_key", "entries", ["location_key"])


def _versions() -> None:
    op.create_table(
        "snapshots",
        sa.Column("entry_id", NUMBER, nullable=False),
        sa.Column("snapshot_id", NUMBER, autoincrement=False, nullable=False),
        sa.Column("parent_id", NUMBER, nullable=True),
        sa.Column("sequence", NUMBER, nullable=False),
        sa.Column("timestamp_ms", NUMBER, nullable=False),
        sa.Column("manifest_list", TEXT, nullable=False),
        sa.Column("summary", TEXT, nullable=False),
        sa.ForeignKeyConstraint(["entry_id"], ["entries.id"], name="fk_snapshots_entry_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("entry_id", "snapshot_id", name="pk_snapshots"),
    )
    op.create_table(
        "refs",
        sa.Column("entry_id", NUMBER, nullable=False),
        sa.Column("name", TEXT, nullable=False),
        sa.Column("kind", TEXT, nullable=False),
        sa.Column("snapshot_id", NUMBER, nullable=False),
        sa.ForeignKeyConstraint(["entry_id"], ["entries.id"], name="fk_refs_entry_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("entry_id", "name", name="pk_refs"),
    )
    op.create_table(
        "commits",
        sa.Column("id", NUMBER, sa.Identity(), nullable=False),
        sa.Column("entry_id", NUMBER, nullable=False),
        sa.Column("at_ms", NUMBER, nullable=False),
        sa.Column("principal", TEXT, nullable=False),
        sa.Column("client", TEXT, nullable=False),
        sa.Column("request_id", TEXT, nullable=False),
        sa.Column("revision", NUMBER, nullable=False),
        sa.Column("snapshot_id", NUMBER, nullable=True),
        sa.Column("operation", TEXT, nullable=False),
        sa.ForeignKeyConstraint(["entry_id"], ["entries.id"], name="fk_commits_entry_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_commits"),
    )
    op.create_index("ix_commits_entry_id", "commits", ["entry_id"])


def _callers() -> None:
    op.create_table(
        "principals",
        sa.Column("id", NUMBER, sa.Identity(), nullable=False),
        sa.Column("name", TEXT, nullable=False),
        sa.Column("client_id", TEXT, nullable=True),
        sa.Column("secret_hash", TEXT, nullable=True),
        sa.Column("created_ms", NUMBER, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_principals"),
        sa.UniqueConstraint("client_id", name="uq_principals_client_id"),
        sa.UniqueConstraint("name", name="uq_principals_name"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "tokens",
        sa.Column("principal_id", NUMBER, nullable=False),
        sa.Column("label", TEXT, nullable=False),
        sa.Column("token_hash", TEXT, nullable=False),
        sa.Column("created_ms", NUMBER, nullable=False),
        sa.ForeignKeyConstraint(["principal_id"], ["principals.id"], name="fk_tokens_principal_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("principal_id", "label", name="pk_tokens"),
        sa.UniqueConstraint("token_hash", name="uq_tokens_token_hash"),
    )
    op.create_table(
        "grants",
        sa.Column("principal_id", NUMBER, nullable=False),
        sa.Column("role", TEXT, nullable=False),
        sa.Column("warehouse", TEXT, nullable=False),
        sa.Column("path_key", TEXT, nullable=False),
        sa.Column("path", TEXT, nullable=False),
        sa.ForeignKeyConstraint(["principal_id"], ["principals.id"], name="fk_grants_principal_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("principal_id", "role", "warehouse", "path_key", name="pk_grants"),
    )
    op.create_table(
        "signing_keys",
        sa.Column("id", NUMBER, autoincrement=False, nullable=False),
        sa.Column("key", TEXT, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_signing_keys"),
    )
    op.create_table(
        "idempotency_keys",
        sa.Column("key", TEXT, nullable=False),
        sa.Column("digest", TEXT, nullable=False),
        sa.Column("status", NUMBER, nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=True),
        sa.Column("created_ms", NUMBER, nullable=False),
        sa.PrimaryKeyConstraint("key", name="pk_idempotency_keys"),
    )
    op.create_index("ix_idempotency_keys_created_ms", "idempotency_keys", ["created_ms"])


def _copies() -> None:
    op.create_table(
        "exports",
        sa.Column("id", NUMBER, sa.Identity(), nullable=False),
        sa.Column("warehouse", TEXT, nullable=False),
        sa.Column("table_uuid", TEXT, nullable=False),
        sa.Column("version", TEXT, nullable=False),
        sa.Column("fragment", NUMBER, nullable=False),
        sa.Column("columns", TEXT, nullable=False),
        sa.Column("path", TEXT, nullable=False),
        sa.Column("bytes", NUMBER, nullable=False),
        sa.Column("rows", NUMBER, nullable=False),
        sa.Column("planned_ms", NUMBER, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_exports"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_exports_table_uuid_version", "exports", ["table_uuid", "version"])
    op.create_index("ix_exports_warehouse_planned_ms", "exports", ["warehouse", "planned_ms"])
