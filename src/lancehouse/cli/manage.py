"""`lancehouse table manage`: set whether the catalog or storage decides a table's current version."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from lancehouse.cli.catalog_options import with_client, with_table
from lancehouse.properties import IMPL, MANAGED_BY, STORAGE

if TYPE_CHECKING:
    from lance_namespace import LanceNamespace

    from lancehouse.cli.client import Client
    from lancehouse.cli.main import CliContext
    from lancehouse.clients.iceberg import IcebergNamespace


@click.command()
@click.option(
    "--by",
    type=click.Choice([IMPL, STORAGE]),
    required=True,
    help="impl: what the catalog accepted; storage: the newest there.",
)
@click.option("--adopt", is_flag=True, help="With impl: take in versions that were written past the catalog.")
@with_client
@with_table
@click.pass_obj
def manage(app: CliContext, table: tuple[str, ...], by: str, adopt: bool, client: Client) -> None:
    """Say who decides which version is the current one.

    ID is wh.db.docs, all levels joined by dots; a level with a dot stands in backquotes: 'wh.`my.db`.docs'.

    Stop the table's writers before: one that has it open goes on as it was told when it opened it. As long as catalog
    and storage disagree on the version nothing changes, and the error says what to do.
    """
    if adopt and by != IMPL:
        raise click.UsageError(f"--adopt goes with --by {IMPL}")
    with client.translate_errors(table):
        version = get_managed_tables(client.namespace).manage_table(table, by, adopt=adopt)
    app.output.record("", {"table": client.format_id(table), MANAGED_BY: by, "version": version})


def get_managed_tables(namespace: LanceNamespace) -> IcebergNamespace:
    """Return the client if its catalog can manage the versions of tables.

    Raises:
        UnsupportedOperationError: it cannot; the message says what to do.
    """
    from lance_namespace.errors import UnsupportedOperationError

    from lancehouse.clients.catalog_namespace import CatalogNamespace
    from lancehouse.clients.iceberg import IcebergNamespace

    if isinstance(namespace, IcebergNamespace):
        return namespace
    client, way_out = (
        (namespace.client, namespace.managed_versions_hint)
        if isinstance(namespace, CatalogNamespace)
        else (type(namespace).__name__, CatalogNamespace.managed_versions_hint)
    )
    raise UnsupportedOperationError(
        f"{MANAGED_BY}={IMPL} is not possible with {client}, whose tables have no ref that a commit could move; "
        f"{way_out}"
    )
