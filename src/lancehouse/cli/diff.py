"""`lancehouse diff`: compare the tables of two catalogs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from lancehouse.cli.options import open_side, with_namespace, with_side
from lancehouse.cli.output import FAILED, OutputColumn, format_count

if TYPE_CHECKING:
    from lancehouse.admin.diff import Difference
    from lancehouse.cli.main import CliContext

FIELDS = ("location", "version", "rows", "schema", "properties")
"""Fields that are compared."""


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
    from lancehouse.admin.diff import compare

    app: CliContext = ctx.obj
    one, other = open_side(app, first), open_side(app, second)
    with app.output.progress(f"comparing {first} and {second}") as progress:
        comparison = compare(one, other, namespace, ignored, progress.count)
    rows = [_difference_row(difference, first, second) for difference in comparison.different]
    columns = (OutputColumn("table", "Table"), OutputColumn("result", "Where"), OutputColumn("words", "What differs"))
    counts = {
        "same": comparison.same,
        "only_in_a": sum(not difference.is_in_second for difference in comparison.different),
        "only_in_b": sum(not difference.is_in_first for difference in comparison.different),
        "different": sum(difference.is_in_first and difference.is_in_second for difference in comparison.different),
    }
    words = (
        f"{format_count(counts['same'], 'table')} the same, {counts['different']} different, "
        f"{counts['only_in_a']} only in "
        f"{first}, {counts['only_in_b']} only in {second}"
    )
    app.output.table(columns, rows, {"a": first, "b": second, "counts": counts}, words, name="tables")
    if rows:
        ctx.exit(FAILED)


def _difference_row(difference: Difference, first: str, second: str) -> dict[str, Any]:
    where = (
        "both"
        if difference.is_in_first and difference.is_in_second
        else f"only in {first if difference.is_in_first else second}"
    )
    fields = {name: [_redact_value(name, value) for value in values] for name, values in difference.fields.items()}
    words = [f"{name}: {_format_value(one)} / {_format_value(other)}" for name, (one, other) in fields.items()]
    return {"table": difference.table, "result": where, "words": "; ".join(words), "fields": fields}


def _redact_value(name: str, value: Any) -> Any:
    from lancehouse.secrets import redact_properties

    return redact_properties(value) if name == "properties" and value is not None else value


def _format_value(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {item}" for key, item in value.items()) or "none"
    return "none" if value is None else str(value)
