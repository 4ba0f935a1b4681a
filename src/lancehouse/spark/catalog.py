"""`LanceCatalog`: the tables of a catalog for a Spark session, to read, write and maintain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime
from typing import Any, Self

import pyarrow as pa
from lance_namespace.errors import InvalidInputError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.types import StructType

from lancehouse import named_catalogs
from lancehouse.connection import Connection
from lancehouse.jobs.address import TableAddress, TableName
from lancehouse.jobs.blob_references import ReferencedBlobs
from lancehouse.jobs.job import ChangeResult
from lancehouse.jobs.row_changes import ColumnUpdateResult
from lancehouse.jobs.table_jobs import (
    Names,
    TableJobs,
    check_arguments,
    check_blobs,
    check_condition,
    check_flag,
    check_frame,
    check_levels,
    check_mapping,
    check_names,
    check_number,
    check_text,
    parse_fill_options,
    parse_functions,
    parse_merge_rules,
    parse_write_options,
    some_names,
    some_text,
    split_report,
)
from lancehouse.lake.dataset import VersionSelector
from lancehouse.lake.scans import Scan
from lancehouse.lake.search import Search
from lancehouse.schema.spark_rows import to_spark_rows
from lancehouse.spark import (
    aggregates,
    changes,
    listing,
    merge,
    queries,
    search,
    session,
    statements,
    streams,
    table_reader,
    table_writer,
)
from lancehouse.spark.aggregates import parse_aggregation
from lancehouse.spark.engine import SparkEngine
from lancehouse.spark.query_text import is_query

Time = datetime | date | str
"""A time, or ISO 8601 text; without a time zone it is in the local time of this machine."""


class LanceCatalog(TableJobs):
    """The tables of a catalog, for a Spark session.

    A table is named by its levels, as a list, or as text joined by dots in which a level that contains a dot is quoted
    with backquotes. A change is one commit, through the catalog where it manages versions, and leaves the table
    unchanged if it fails.

    Args:
        spark: the session.
        impl: `iceberg`, `polaris`, `unity`, `lakekeeper`, `dir`, `rest`, or the path of a class, as
            `lance_namespace.connect` takes it.
        properties: properties of that client.
        functions: what may be imported by the names that tables have; by default everything. See `TableJobs`.

    Raises:
        InvalidInputError: the session is too old, there is no such client, or it does not accept these properties.
    """

    def __init__(
        self,
        spark: SparkSession,
        impl: str,
        properties: Mapping[str, str] | None = None,
        *,
        functions: Names | None = None,
    ) -> None:
        session.check_session(spark)
        self.spark, self._catalog = spark, Connection(impl, dict(properties or {}))
        super().__init__(self._catalog, SparkEngine(spark), functions=functions)
        self.driver_bytes = session.default_driver_bytes()
        """A count, aggregate or search that reads no more is done by this process, without a job of Spark."""
        self.current_namespace: tuple[str, ...] = ()
        self.attached: dict[str, LanceCatalog] = {}

    @classmethod
    def named(cls, spark: SparkSession, name: str) -> Self:  # type: ignore[override]
        """Return the catalog that `~/.lancehouse.yaml` or the environment gives a name.

        If it has a `parent` there, its levels stand before every id, and are not written.

        Raises:
            InvalidInputError: there is no such catalog, or its configuration is invalid.
        """
        return cls._from_connection(spark, named_catalogs.load().catalog(check_text("name", name)))

    @classmethod
    def _from_connection(cls, spark: SparkSession, connection: Connection) -> Self:
        catalog = cls(spark, connection.impl, connection.properties)
        catalog._parent = connection.parent
        return catalog

    def __repr__(self) -> str:
        return f"LanceCatalog({self._catalog.impl!r})"

    # SQL

    def sql(self, text: str, args: Mapping[str, Any] | Sequence[Any] | None = None, blobs: str = "bytes") -> DataFrame:
        """Run a statement in Spark's SQL over tables of this catalog, of attached ones and of Spark; return the result.

        In a query each table is read at the version that is the latest now, or at the one that the query names, and
        only with the columns and rows that the query needs. Spark runs the text as it was written. See `explain`.

        Other statements change and show tables at once: INSERT, UPDATE, DELETE, MERGE, CREATE, ALTER, SHOW and so on. A
        change is one commit, with the guarantees of the method of that name.

        Args:
            text: the statement. Tables are named by their levels, or relative to the namespace of `use`.
            args: values for `:name` as a dict, or for `?` as a list.
            blobs: how blobs of tables of catalogs come, see `read`. What a statement writes are the bytes.

        Raises:
            InvalidInputError: the text is no statement, or Spark refuses it.
            UnsupportedOperationError: a clause is not supported; the message names it, and nothing was written.
            TableNotFoundError: nobody knows a table of that name.
        """
        statement, values, form = check_text("text", text), check_arguments(args), check_blobs(blobs)
        with queries.limit_nesting():
            if not is_query(statement):
                return statements.run_statement(self, statement, values, form)
            return queries.run_query(self, statement, values, form)

    def explain(self, text: str, args: Mapping[str, Any] | Sequence[Any] | None = None) -> str:
        """Return what a query reads of each table: version, columns, filter, indices; and what is left to Spark.

        Args:
            text: see `sql`.
            args: see `sql`.
        """
        with queries.limit_nesting():
            return queries.PlannedQuery(self, check_text("text", text), check_arguments(args)).explain()

    def use(self, namespace: TableName) -> None:
        """Choose the namespace in which SQL looks for names of one part; "" for none."""
        self.current_namespace = check_levels("namespace", namespace)

    def attach(self, alias: str, catalog: LanceCatalog) -> None:
        """Let SQL name the tables of another catalog of the same session by an alias: `alias.levels.of.the.table`.

        Raises:
            InvalidInputError: the alias is empty, or the catalog is none, or of another session.
        """
        name = check_text("alias", alias)
        if not name:
            raise InvalidInputError("alias must be a name, not an empty text")
        if not isinstance(catalog, LanceCatalog) or catalog.spark is not self.spark:
            raise InvalidInputError(f"catalog must be a LanceCatalog of the same session, not {catalog!r}")
        self.attached[name] = catalog

    def schema(self, table: TableName, version: int | None = None, tag: str | None = None) -> StructType:
        """Return the columns of a table, or of a version of it, as those of a DataFrame that reads it."""
        return session.to_struct(to_spark_rows(super().schema(table, version, tag)).struct)

    # Reading

    def read(
        self,
        table: TableName,
        columns: Names | None = None,
        filter: str | None = None,
        version: int | None = None,
        tag: str | None = None,
        as_of: Time | None = None,
        with_row_id: bool = False,
        limit: int | None = None,
        blobs: str = "bytes",
    ) -> DataFrame:
        """Return the rows of one version, which is chosen now: later commits are not visible.

        Args:
            table: id of the table.
            columns: columns to read, all by default. Spark does not tell a Python source which ones a query needs.
            filter: condition on the rows, in Lance's SQL; indices are used.
            version: version to read, the latest by default.
            tag: tag of the version to read.
            as_of: read the version that was the latest at this time, compared in milliseconds with those of `history`:
                a datetime, or text such as `2026-01-31T12:00:00+00:00`; without a time zone it is local time.
            with_row_id: add the column `_rowid`.
            limit: largest number of rows.
            blobs: `bytes`, or `reference`: blob columns have small structs that name the blobs, which pass through
                joins and shuffles in their place. `read_blobs` reads them, `blob_reader` opens them in tasks, and a
                write stores their bytes.
        """
        scan = Scan(
            some_names("columns", columns),
            check_condition("filter", filter),
            check_number("limit", limit),
            check_flag("with_row_id", with_row_id),
            blobs=check_blobs(blobs),
        )
        return table_reader.read_table(self.spark, self._address(table), scan, VersionSelector(version, tag, as_of))

    def read_blobs(self, df: DataFrame, column: Names, tables: Names | None = None) -> DataFrame:
        """Return a DataFrame whose references to blobs are replaced by the bytes, which its tasks read.

        A task holds a few megabytes of blobs at once, or one that is larger. Null stays null. An action on the result
        fails if a blob cannot be read: with TableVersionNotFoundError if its version was cleaned up, with
        ConcurrentModificationError if its table was made anew, or is one of another catalog.

        Args:
            df: has columns of references, as `read` returns them with `blobs="reference"`. They may have been joined,
                cached, or written to files and read again.
            column: the column, or several of them.
            tables: ids of the tables whose blobs may be read, if others wrote the references: whoever wrote them
                chose what is read with your rights. By default all that the catalog lets you read.

        Raises:
            TableColumnNotFoundError: there is no such column.
            InvalidInputError: it has no references.
        """
        return table_reader.read_blobs(check_frame(df), check_names("column", column), self.blob_reader(tables))

    def blob_reader(self, tables: Names | None = None) -> ReferencedBlobs:
        """Return what opens blobs by references, for functions of your own in tasks: `mapInArrow`, `udf` and so on.

        Its `open(reference)` returns a file, of which only what is asked for is read. It goes to the tasks with the
        properties of this catalog, as jobs do.

        Args:
            tables: see `read_blobs`.
        """
        allowed = some_names("tables", tables)
        ids = None if allowed is None else frozenset(self._address(table).id for table in allowed)
        return ReferencedBlobs(self._catalog, ids)

    def read_changes(
        self,
        table: TableName,
        from_version: int | None = None,
        to_version: int | None = None,
        *,
        from_tag: str | None = None,
        from_time: Time | None = None,
        columns: Names | None = None,
        filter: str | None = None,
    ) -> DataFrame:
        """Return the changes of rows after a version: each with `_change_type`, `_commit_version`, `_commit_timestamp`.

        The type is `insert`, `update_postimage` (the row after the change) or `delete` (the row as it was). Values of
        computed columns are no changes.

        Args:
            table: id of the table, which has stable row ids.
            from_version: changes that were made after this version; 0 for all.
            to_version: up to this one, the latest by default.
            from_tag: after the version of this tag, instead of `from_version`.
            from_time: after the version that was the latest at this time, instead of `from_version`.
            columns: see `read`.
            filter: condition on the rows, as they are in the change.

        Raises:
            InvalidInputError: the table has no stable row ids.
            TableVersionNotFoundError: a version between them was cleaned up.
            UnsupportedOperationError: an older version was restored between them.
        """
        first, last = check_number("from_version", from_version), check_number("to_version", to_version)
        if from_time is not None and not isinstance(from_time, str | date):
            raise InvalidInputError(f"from_time must be a time, as a datetime or as text, not {from_time!r}")
        start = VersionSelector(first, some_text("from_tag", from_tag), from_time)
        if start == VersionSelector():
            raise InvalidInputError("say after which version: from_version, from_tag or from_time; 0 is before all")
        scan = Scan(some_names("columns", columns), check_condition("filter", filter))
        return changes.read_table_changes(self.spark, self._address(table), scan, start, VersionSelector(last))

    def count(
        self,
        table: TableName,
        filter: str | None = None,
        version: int | None = None,
        tag: str | None = None,
        as_of: Time | None = None,
    ) -> int:
        """Return the number of rows, or of those that match a filter. See `read` for the arguments."""
        rows = check_condition("filter", filter)
        selector = VersionSelector(version, tag, as_of)
        return table_reader.count_rows(self.spark, self._address(table), rows, selector, self.driver_bytes)

    def aggregate(
        self,
        table: TableName,
        group_by: Names = (),
        *,
        filter: str | None = None,
        version: int | None = None,
        tag: str | None = None,
        as_of: Time | None = None,
        sum: Names | None = None,
        min: Names | None = None,
        max: Names | None = None,
        mean: Names | None = None,
        count: Names | None = None,
    ) -> DataFrame:
        """Aggregate columns, optionally by group. Tasks aggregate in Arrow: no row goes to the JVM.

        The result has the columns of `group_by`, and `{column}_{function}` for each aggregate; `count="*"` counts rows,
        in the column `count`.
        """
        columns_by_function = {"sum": sum, "min": min, "max": max, "mean": mean, "count": count}
        measures = {name: some_names(name, columns) for name, columns in columns_by_function.items()}
        groups = check_names("group_by", group_by)
        aggregation = parse_aggregation(groups, measures, check_condition("filter", filter))
        selector = VersionSelector(version, tag, as_of)
        return aggregates.aggregate(self.spark, self._address(table), aggregation, selector, self.driver_bytes)

    def _search(
        self, address: TableAddress, vector: Any, text: Any, how: Search, hybrid: Any, selector: VersionSelector
    ) -> DataFrame:
        return search.search(self.spark, address, vector, text, how, hybrid, selector, self.driver_bytes)

    def _explain(
        self, address: TableAddress, vector: Any, text: Any, how: Search, hybrid: Any, selector: VersionSelector
    ) -> str:
        return search.explain(self.spark, address, vector, text, how, hybrid, selector)

    def _to_frame(self, rows: pa.Table) -> DataFrame:
        return self.spark.createDataFrame(rows)

    def keep_filled(
        self,
        table: TableName,
        checkpoint: str,
        columns: Names | Mapping[str, Any] | None = None,
        where: str | None = None,
        trigger: str | Mapping[str, Any] = "10 seconds",
        **how: Any,
    ) -> StreamingQuery:
        """Start a streaming query that fills computed columns whenever the table has a new version.

        It does what `backfill` does, so that each row is filled once, also after a restart.

        Args:
            table: id of the table.
            checkpoint: location where Spark keeps how far the query is.
            columns: see `backfill`.
            where: see `backfill`.
            trigger: how often it looks for new versions, or arguments of Spark's `trigger`, such as
                `{"availableNow": True}`, which ends when all is filled.
            how: see `backfill`.
        """
        place, address = check_text("checkpoint", checkpoint), self._address(table)
        functions = columns if isinstance(columns, Mapping) else some_names("columns", columns)
        if isinstance(functions, Mapping):
            parse_functions(functions)
        parse_fill_options(split_report(how)[0], check_condition("where", where), False)
        expected = "a time such as '10 seconds', or arguments of Spark's trigger"
        when = {"processingTime": trigger} if isinstance(trigger, str) else check_mapping("trigger", trigger, expected)
        address.to_ref().open()
        return streams.keep_filled(
            self.spark, address, functions, {"where": where, **how}, when, place, self._functions
        )

    def history(self, table: TableName) -> DataFrame:
        """Return the versions, the latest first: time, operation, rows, files, bytes and tags."""
        return listing.history(self.spark, self._address(table))

    def register_views(self, namespace: TableName, prefix: str = "", *, replace: bool = False) -> list[str]:
        """Create a temporary view of each table in a namespace; return the names of the views.

        Each query of a view reads the latest version at that time. Call this again to see new tables and columns.

        Args:
            namespace: levels of the namespace.
            prefix: prefix of the views' names; the rest is the table's name.
            replace: also replace views that this did not create, and hide tables of the session of the same name.

        Raises:
            InvalidInputError: another view or a table of the session has one of the names, and `replace` is False; no
                view was created.
        """
        levels, begin = self._namespace_id("namespace", namespace), check_text("prefix", prefix)
        replaces = check_flag("replace", replace)
        return listing.register_views(self.spark, self._catalog, levels, begin, replace=replaces)

    # Writing

    def create(self, df: DataFrame, table: TableName, **how: Any) -> int:
        """Create a table from a DataFrame; return the version. See `append` for `how`.

        Raises:
            TableAlreadyExistsError: the table exists.
        """
        df, write_options = check_frame(df), parse_write_options("create", how)
        return table_writer.create(df, self._address(table), write_options)

    def append(self, df: DataFrame, table: TableName, **how: Any) -> int:
        """Append the rows of a DataFrame; return the version that this made.

        Args:
            df: the rows; columns are matched by name, and a column of the table that `df` lacks becomes null.
            table: id of the table.
            how: `vector_columns={"emb": 128}` says which arrays become vectors, where the table does not say it;
                `nullable=False` gives a new table the nullability of `df`'s columns, by default all are nullable;
                `max_rows_per_file`, `max_bytes_per_file` and `data_storage_version` are Lance's; `run` names the run:
                repeating a run adds nothing; `schema_mode="evolve"` adds columns that the table lacks, null in the rows
                that it has, and widens types.

        Raises:
            TableNotFoundError: there is no such table.
            TableSchemaValidationError: the columns do not fit.
        """
        df, write_options = check_frame(df), parse_write_options("append", how)
        return table_writer.append(df, self._address(table), write_options)

    def overwrite(self, df: DataFrame, table: TableName, **how: Any) -> int:
        """Replace all rows and the columns of a table by those of a DataFrame; a missing table is created.

        Older versions stay. See `append` for `how`. Returns the version that this made.

        Raises:
            ConcurrentModificationError: another writer changed the table meanwhile, which this would undo.
        """
        df, write_options = check_frame(df), parse_write_options("overwrite", how)
        return table_writer.overwrite(df, self._address(table), write_options)

    def merge(  # type: ignore[override]
        self,
        df: DataFrame,
        table: TableName,
        on: Names,
        when_matched: str = "update",
        when_not_matched: str = "insert",
        delete_by_source: bool = False,
        latest_by: Names | None = None,
        **how: Any,
    ) -> ChangeResult:
        """Merge the rows of a DataFrame into a table by key; an upsert by default. `df` is evaluated once.

        Args:
            df: the rows, without duplicate keys unless `latest_by` is given; a key that is null matches nothing.
            table: id of the table.
            on: the columns that are the key.
            when_matched: what to do with rows of the table whose key is in `df`: `update`, `delete` or `ignore`.
            when_not_matched: what to do with rows of `df` whose key is not in the table: `insert` or `ignore`.
            delete_by_source: delete rows of the table whose key is not in `df`.
            latest_by: of rows of `df` with the same key, merge the one with the greatest value of this column; with
                several columns, the first that differs decides, and null is the least. A column that the table lacks is
                used for this alone.
            how: see `append`.

        Raises:
            InvalidInputError: `df` has a key twice, or twice with the same values of `latest_by`; the message shows
                one.
            ConcurrentModificationError: other writers kept changing the same rows, so that all retries failed.
        """
        rules = parse_merge_rules(when_matched, when_not_matched, delete_by_source)
        order = () if latest_by is None else check_names("latest_by", latest_by)
        df, keys, write_options = (
            check_frame(df),
            check_names("on", on),
            parse_write_options("merge", how),
        )
        return merge.merge(df, self._address(table), keys, rules, write_options, latest_by=order)

    def update_columns(  # type: ignore[override]
        self, table: TableName, df: DataFrame, on: Names, **how: Any
    ) -> ColumnUpdateResult:
        """Set columns to the values that a DataFrame brings, in the rows with the same key; rewrite nothing else.

        Only files of these columns are written. Columns that are computed from them are filled again by `backfill`.

        Args:
            table: id of the table.
            df: the key, and the columns to set, each key once; a key that is null matches nothing.
            on: the columns that are the key.
            how: `run` names the run: repeating a run changes nothing.

        Raises:
            InvalidInputError: `df` has a key twice, which the message shows, or a column is computed.
            TableColumnNotFoundError: the table has no such column.
            ConcurrentModificationError: other writers kept changing the same rows, so that all retries failed.
        """
        df, keys, write_options = check_frame(df), check_names("on", on), parse_write_options("update_columns", how)
        return merge.update_columns(df, self._address(table), keys, write_options)
