"""Find the table that a name in SQL means: of this catalog, of one that is attached under an alias, or Spark's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

from lance_namespace.errors import (
    InvalidInputError,
    LanceNamespaceError,
    NamespaceNotFoundError,
    TableNotFoundError,
)
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from lancehouse.identifiers import format_levels, quote_name
from lancehouse.suggestions import find_close

if TYPE_CHECKING:
    from lancehouse.spark.catalog import LanceCatalog

T = TypeVar("T")
Levels = tuple[str, ...]
GLOBAL = "global_temp"
"""Spark's namespace of temporary views that all sessions share."""


def resolve_table(catalog: LanceCatalog, parts: Sequence[str]) -> tuple[LanceCatalog, Levels] | None:
    """Return the catalog and the levels of the table that a name in SQL means; None if the table is Spark's.

    A temporary view comes first, as it does in Spark; then a table of the catalog, by its levels, or relative to the
    namespace of `LanceCatalog.use`; then one that Spark's own catalogs know. A first part that is the alias of an
    attached catalog names a table of that one alone.

    Raises:
        TableNotFoundError: nobody knows the name; the message proposes a similar one.
    """
    table = find_table(catalog, parts, lambda owner, levels: owner._address(levels).to_ref().find())
    return None if table is None else table[:2]


def find_table(
    catalog: LanceCatalog, parts: Sequence[str], find: Callable[[LanceCatalog, Levels], T | None]
) -> tuple[LanceCatalog, Levels, T] | None:
    """Resolve a name as `resolve_table` does, and return what `find` made of the table too.

    Args:
        catalog: the catalog whose names come first.
        parts: the name.
        find: returns None, or raises that there is no such table or namespace, where the catalog has none.
    """
    name = tuple(parts)
    if _is_temporary_view(catalog.spark, name):
        return None
    refusal: InvalidInputError | None = None
    for owner, levels in candidates(catalog, name):
        try:
            table = find(owner, levels)
        except (TableNotFoundError, NamespaceNotFoundError):
            continue
        except InvalidInputError as error:
            if len(levels) > 2:  # with fewer than this kind of catalog has, the name is of something else
                refusal = refusal or error
            continue
        if table is not None:
            return owner, levels, table
    if name[0] not in catalog.attached and (_is_known_to_spark(catalog.spark, name) or _is_file(catalog.spark, name)):
        return None
    raise refusal or not_found(catalog, name)


def new_table_levels(catalog: LanceCatalog, parts: Sequence[str]) -> tuple[LanceCatalog, Levels]:
    """Return the catalog and the levels that a table gets which is created by this name.

    A name of one part goes into the namespace of `LanceCatalog.use`; a longer one is taken as it stands.
    """
    return next(candidates(catalog, tuple(parts)))


def candidates(catalog: LanceCatalog, name: Levels) -> Iterator[tuple[LanceCatalog, Levels]]:
    """Yield what a name may mean among the tables of catalogs, the likeliest first."""
    if len(name) > 1 and (other := catalog.attached.get(name[0])) is not None:
        yield other, name[1:] if len(name) > 2 else (*other.current_namespace, name[1])
        return
    default = catalog.current_namespace
    if len(name) == 1:
        yield catalog, (*default, *name)
        return
    yield catalog, name
    for count in range(len(default), 0, -1):
        yield catalog, (*default[:count], *name)


def not_found(catalog: LanceCatalog, name: Levels) -> TableNotFoundError:
    """Return the error for a name that nobody knows."""
    owner, levels = next(candidates(catalog, name))
    message = f"there is no table {format_levels(levels)}, and Spark has no view or table {format_levels(name)}"
    try:
        names = {table[-1] for table in owner._calls.tables(owner._namespace_id("namespace", levels[:-1]))}
    except LanceNamespaceError:
        names = set()
    if (close := find_close(levels[-1], names)) is not None:
        return TableNotFoundError(f"{message}; did you mean {format_levels((*levels[:-1], close))}?")
    if len(name) == 1 and not owner.current_namespace:
        message = f"{message}; name all its levels, or choose a namespace with use()"
    return TableNotFoundError(message)


def _is_temporary_view(spark: SparkSession, name: Levels) -> bool:
    if len(name) > 2 or (len(name) == 2 and name[0].lower() != GLOBAL):
        return False
    quoted = ".".join(map(quote_name, name))
    return bool(_is_known_to_spark(spark, name) and spark.catalog.getTable(quoted).isTemporary)


def _is_known_to_spark(spark: SparkSession, name: Levels) -> bool:
    try:
        return bool(spark.catalog.tableExists(".".join(map(quote_name, name))))
    except PySparkException:  # no such catalog, or more levels than it has
        return False


def _is_file(spark: SparkSession, name: Levels) -> bool:
    """Return whether a name is a format and a path, such as parquet.`/data/docs`, that Spark reads.

    What else is wrong with such files, Spark says itself. A path has a slash: without one, a table of a namespace that
    is called `text` or `json` and does not exist would be looked for in the working directory.

    Raises:
        TableNotFoundError: there are no such files.
        InvalidInputError: Spark does not read this format by a path alone.
    """
    if len(name) != 2 or "/" not in name[1]:
        return False
    quoted = ".".join(map(quote_name, name))
    try:
        _ = spark.table(quoted).schema
    except PySparkException as error:
        match error.getCondition():
            case "TABLE_OR_VIEW_NOT_FOUND":
                return False
            case "PATH_NOT_FOUND":
                raise TableNotFoundError(f"there are no files {name[1]} for Spark to read as {name[0]}") from None
            case "UNSUPPORTED_DATASOURCE_FOR_DIRECT_QUERY":
                raise InvalidInputError(
                    f"Spark does not read {quoted} by this name: make a temporary view of it, with "
                    f"spark.read.format('{name[0]}').load('{name[1]}').createOrReplaceTempView(…), and name that"
                ) from None
    return True
