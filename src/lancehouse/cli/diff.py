"""`lancehouse diff`: how the tables of two catalogs differ."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from lancehouse.cli.output import FAILED, Column
from lancehouse.cli.pairs import side, with_namespace, with_side
from lancehouse.cli.words import counted, hidden

if TYPE_CHECKING:
    from lancehouse.care.diffs import Difference
    from lancehouse.cli.main import App

FIELDS = ("location", "version", "rows", "schema", "properties")
"""What is compared."""


@click.command()
@with_side("first", "A")
@with_side("second", "B")
@with_namespace
@click.option(
    "--ignore", "ignored", metavar="FIELD", type=click.Choice(FIELDS), multiple=True, help=f"Of {', '.join(FIELDS)}."
)
@click.pass_context
def diff(ctx: click.Context, first: str, second: str, namespace: tuple[str, ...], ignored: tuple[str, ...]) -> None:
    """Compare the tables of two catalogs.

    ~/.lancehouse.yaml names both, A and B. A table is the same if its entries agree on where it is, its version, rows,
    columns and properties. It exits with 0 if all are, else with 1.
    """
    from lancehouse.care.diffs import compare

    app: App = ctx.obj
    one, other = side(app, first), side(app, second)
    with app.output.progress(f"comparing {first} and {second}") as progress:
        found = compare(one, other, namespace, ignored, progress.count)
    rows = [_row(each, first, second) for each in found.different]
    columns = (Column("table", "Table"), Column("result", "Where"), Column("words", "What differs"))
    counts = {
        "same": found.same,
        "only_in_a": sum(not each.is_in_second for each in found.different),
        "only_in_b": sum(not each.is_in_first for each in found.different),
        "different": sum(each.is_in_first and each.is_in_second for each in found.different),
    }
    words = (
        f"{counted(counts['same'], 'table')} the same, {counts['different']} different, {counts['only_in_a']} only in "
        f"{first}, {counts['only_in_b']} only in {second}"
    )
    app.output.table(columns, rows, {"a": first, "b": second, "counts": counts}, words, name="tables")
    if rows:
        ctx.exit(FAILED)


def _row(found: Difference, first: str, second: str) -> dict[str, Any]:
    where = "both" if found.is_in_first and found.is_in_second else f"only in {first if found.is_in_first else second}"
    fields = {name: [_hidden(name, value) for value in values] for name, values in found.fields.items()}
    words = [f"{name}: {_said(one)} / {_said(other)}" for name, (one, other) in fields.items()]
    return {"table": found.table, "result": where, "words": "; ".join(words), "fields": fields}


def _hidden(name: str, value: Any) -> Any:
    return hidden(value) if name == "properties" and value is not None else value


def _said(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {each}" for key, each in value.items()) or "none"
    return "none" if value is None else str(value)
