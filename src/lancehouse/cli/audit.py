"""`lancehouse audit`: who changed what in the catalog of a server, and when."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from lancehouse.cli.options import COUNT, confirm, open_database, parse_id, requires_extra, with_db, with_yes
from lancehouse.cli.output import format_count, output_columns

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lancehouse.catalog.audit import AuditFilter
    from lancehouse.cli.main import CliContext
    from lancehouse.cli.options import Levels
    from lancehouse.store.database import Database
    from lancehouse.store.model import AuditRow

CHANGES = output_columns(time="When", principal="Who", peer="From", action="Action", what="What", change="Change")
PAGE = 1000


def parse_moment(_: click.Context, __: click.Parameter, value: str | None) -> int | None:
    """Return a month, day or time in UTC as milliseconds."""
    if value is None:
        return None
    text = f"{value}-01" if re.fullmatch(r"\d{4}-\d{2}", value) else value
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(f"{value!r} is no time: give 2026-11, 2026-11-18 or 2026-11-18T10:30") from None
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


@click.group(invoke_without_command=True)
@with_db
@click.option("--warehouse", metavar="NAME", help="Only changes in this warehouse.")
@click.option("--namespace", metavar="ID", default="", callback=parse_id, help="Only this namespace and below: a.b.")
@click.option("--name", metavar="NAME", help="Only changes of tables, views or principals with this name.")
@click.option("--principal", metavar="NAME", help="Only changes by this principal.")
@click.option("--action", metavar="WORD", help="Only changes of this kind: table, table.drop, grant.")
@click.option("--since", metavar="TIME", callback=parse_moment, help="Only changes since then: 2026-11, 2026-11-18.")
@click.option("--until", metavar="TIME", callback=parse_moment, help="Only changes before then.")
@click.option("--limit", type=COUNT, default=100, show_default=True, help="Maximum number of changes to show.")
@click.option("--json-lines", is_flag=True, help="Print each change as JSON on a line, without a limit.")
@click.pass_context
def audit(
    ctx: click.Context,
    db: str | None,
    warehouse: str | None,
    namespace: Levels,
    name: str | None,
    principal: str | None,
    action: str | None,
    since: int | None,
    until: int | None,
    limit: int,
    json_lines: bool,
) -> None:
    """Show who changed what in a server's catalog."""
    if ctx.invoked_subcommand is not None:
        return
    with requires_extra("server"):
        from lancehouse.catalog.audit import AuditFilter, to_json
    app: CliContext = ctx.obj
    audit_filter = AuditFilter(warehouse, tuple(namespace) or None, name, principal, action, since or 0, until)
    with open_database(db) as database:
        if json_lines:
            for row in _read(database, audit_filter, None):
                click.echo(json.dumps(to_json(row), ensure_ascii=False))
            return
        rows = [_to_output(to_json(row)) for row in _read(database, audit_filter, limit)]
    app.output.table(CHANGES, rows, {"count": len(rows)}, format_count(len(rows), "change"), name="changes")


@audit.command()
@with_db
@click.option("--before", metavar="MONTH", required=True, callback=parse_moment, help="A month: 2026-01.")
@with_yes
@click.pass_obj
def prune(app: CliContext, db: str | None, before: int, yes: bool) -> None:
    """Delete the changes of whole months that are no longer needed.

    Export them first: `lancehouse audit --until MONTH --json-lines > audit.jsonl`. Who follows events must have read
    them.
    """
    moment = datetime.fromtimestamp(before / 1000, UTC)
    if (moment.day, moment.hour, moment.minute, moment.second, moment.microsecond) != (1, 0, 0, 0, 0):
        raise click.BadParameter("the audit is kept by whole months: give one such as 2026-01", param_hint="--before")
    confirm(app, f"Delete all changes before {moment:%Y-%m} from the audit? This is final.", yes=yes)
    with open_database(db) as database:
        from lancehouse.store.audit import delete_changes

        deleted = database.write(lambda tx: delete_changes(tx, before))
    app.output.record({"before": f"{moment:%Y-%m}", "deleted": deleted})


def _read(database: Database, audit_filter: AuditFilter, limit: int | None) -> Iterator[AuditRow]:
    """Yield changes, newest first, page by page. Who may read the database may read all of it."""
    from lancehouse.catalog.audit import Audit
    from lancehouse.catalog.callers import ANYBODY, Caller

    before, left = None, limit
    while left is None or left > 0:
        rows, before = Audit(database).list(Caller(ANYBODY), audit_filter, before, min(PAGE, left or PAGE))
        yield from rows
        left = None if left is None else left - len(rows)
        if before is None:
            return


def _to_output(change: dict[str, Any]) -> dict[str, Any]:
    what = [part for part in (change["warehouse"], *change["namespace"], change["name"]) if part]
    before, after = (json.dumps(change[key], ensure_ascii=False) if change[key] else "" for key in ("before", "after"))
    return {**change, "what": ".".join(what), "change": " → ".join(filter(None, (before, after)))}
