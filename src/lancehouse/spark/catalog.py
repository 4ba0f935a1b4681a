"""`LanceCatalog`: the tables of a catalog for a Spark session, to read, write and maintain."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime, timedelta
from typing import Any, TypeVar

from lance_namespace.errors import InvalidInputError
from pyspark.sql import DataFrame, SparkSession

from lancehouse.connection import Connection
from lancehouse.jobs.computed_columns import Function
from lancehouse.jobs.index_building import BuiltIndex
from lancehouse.jobs.merge import MergeRules
from lancehouse.lake.scans import Scan, VersionSelector
from lancehouse.lake.vector_search import SearchEffort
from lancehouse.spark import (
    aggregates,
    arguments,
    computed_columns,
    ingest,
    listing,
    maintenance,
    merge,
    row_changes,
    session,
    table_reader,
    table_writer,
    vector_search,
)
from lancehouse.spark.address import TableAddress, TableName, get_client
from lancehouse.spark.aggregates import parse_aggregation
from lancehouse.spark.row_changes import ChangeResult

Names = str | Sequence[str]
Time = datetime | date | str
"""A time, or ISO 8601 text; without a time zone it is in the local time of this machine."""
T = TypeVar("T")


class LanceCatalog:
    """The tables of a catalog, for a Spark session.

    A table is named by its levels, as a list, or as text joined by dots in which a level that contains a dot is quoted
    with backquotes. A change is one commit, through the catalog where it manages versions, and leaves the table
    unchanged if it fails.

    Args:
        spark: the session.
        impl: `iceberg`, `polaris`, `unity`, `dir`, `rest`, or the path of a class, as `lance_namespace.connect` takes
            it.
        properties: properties of that client.

    Raises:
        InvalidInputError: the session is too old, there is no such client, or it does not accept these properties.
    """

    def __init__(self, spark: SparkSession, impl: str, properties: Mapping[str, str] | None = None) -> None:
        session.check_session(spark)
        self.spark = spark
        self._connection = Connection(impl, dict(properties or {}))
        get_client(self._connection)

    def __repr__(self) -> str:
        return f"LanceCatalog({self._connection.impl!r})"

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
        """
        scan = Scan(
            arguments.some_names("columns", columns),
            arguments.check_condition("filter", filter),
            arguments.check_number("limit", limit),
            arguments.flag("with_row_id", with_row_id),
        )
        return table_reader.read_table(
            self.spark, TableAddress.parse(self._connection, table), scan, VersionSelector(version, tag, as_of)
        )

    def count(
        self,
        table: TableName,
        filter: str | None = None,
        version: int | None = None,
        tag: str | None = None,
        as_of: Time | None = None,
    ) -> int:
        """Return the number of rows, or of those that match a filter. See `read` for the arguments."""
        rows = arguments.check_condition("filter", filter)
        return table_reader.count_rows(
            self.spark, TableAddress.parse(self._connection, table), rows, VersionSelector(version, tag, as_of)
        )

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
        given = {"sum": sum, "min": min, "max": max, "mean": mean, "count": count}
        measures = {name: arguments.some_names(name, columns) for name, columns in given.items()}
        groups = arguments.check_names("group_by", group_by)
        aggregation = parse_aggregation(groups, measures, arguments.check_condition("filter", filter))
        return aggregates.aggregate(
            self.spark, TableAddress.parse(self._connection, table), aggregation, VersionSelector(version, tag, as_of)
        )

    def search(
        self,
        table: TableName,
        vector: Iterable[float],
        k: int = 10,
        column: str | None = None,
        filter: str | None = None,
        columns: Sequence[str] | None = None,
        metric: str | None = None,
        version: int | None = None,
        tag: str | None = None,
        as_of: Time | None = None,
        nprobes: int | None = None,
        refine_factor: int | None = None,
        ef: int | None = None,
    ) -> DataFrame:
        """Return the `k` rows nearest to a vector, the nearest first, with their `_distance`.

        Args:
            table: id of the table.
            vector: the query vector.
            k: number of rows to return.
            column: the vector column; needed if the table has several.
            filter: condition on the rows that are searched, in Lance's SQL.
            columns: columns to return, all by default.
            metric: l2, cosine or dot; by default that of the index, and l2 without one.
            version: see `read`.
            tag: see `read`.
            as_of: see `read`.
            nprobes: number of partitions of the index that are searched, at least 20 by default.
            refine_factor: `k` times this number of candidates are compared by their vectors, not by the codes of the
                index; by default 10, and at least 200 candidates.
            ef: number of candidates that an HNSW index keeps; at least `k` times `refine_factor`.

        Without an index all vectors are compared, and the last three arguments have no effect.

        Raises:
            InvalidInputError: the vector does not fit the column, or a number is not positive.
        """
        return vector_search.search(
            self.spark,
            TableAddress.parse(self._connection, table),
            vector,
            k,
            column=arguments.some_text("column", column),
            filter=arguments.check_condition("filter", filter),
            columns=arguments.some_names("columns", columns),
            metric=arguments.some_text("metric", metric),
            effort=SearchEffort(nprobes, refine_factor, ef),
            selector=VersionSelector(version, tag, as_of),
        )

    def history(self, table: TableName) -> DataFrame:
        """Return the versions, the latest first: time, operation, rows, files, bytes and tags."""
        return listing.history(self.spark, TableAddress.parse(self._connection, table))

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
        levels, begin = arguments.levels("namespace", namespace), arguments.check_text("prefix", prefix)
        replaces = arguments.flag("replace", replace)
        return listing.register_views(self.spark, self._connection, levels, begin, replace=replaces)

    # Writing

    def create(self, df: DataFrame, table: TableName, **how: Any) -> int:
        """Create a table from a DataFrame; return the version. See `append` for `how`.

        Raises:
            TableAlreadyExistsError: the table exists.
        """
        df, write_options = arguments.check_frame(df), arguments.parse_write_options("create", how)
        return table_writer.create(df, TableAddress.parse(self._connection, table), write_options)

    def append(self, df: DataFrame, table: TableName, **how: Any) -> int:
        """Append the rows of a DataFrame; return the version that this made.

        Args:
            df: the rows; columns are matched by name, and a column of the table that `df` lacks becomes null.
            table: id of the table.
            how: `vector_columns={"emb": 128}` says which arrays become vectors, where the table does not say it;
                `nullable=False` gives a new table the nullability of `df`'s columns, by default all are nullable;
                `max_rows_per_file`, `max_bytes_per_file` and `data_storage_version` are Lance's; `run` names the run:
                repeating a run adds nothing.

        Raises:
            TableNotFoundError: there is no such table.
            TableSchemaValidationError: the columns do not fit.
        """
        df, write_options = arguments.check_frame(df), arguments.parse_write_options("append", how)
        return table_writer.append(df, TableAddress.parse(self._connection, table), write_options)

    def overwrite(self, df: DataFrame, table: TableName, **how: Any) -> int:
        """Replace all rows and the columns of a table by those of a DataFrame; a missing table is created.

        Older versions stay. See `append` for `how`. Returns the version that this made.

        Raises:
            ConcurrentModificationError: another writer changed the table meanwhile, which this would undo.
        """
        df, write_options = arguments.check_frame(df), arguments.parse_write_options("overwrite", how)
        return table_writer.overwrite(df, TableAddress.parse(self._connection, table), write_options)

    def delete(self, table: TableName, where: str, **how: Any) -> ChangeResult:
        """Delete the rows that match a condition in Lance's SQL; `true` deletes all. `how` takes `run`, see `append`.

        Raises:
            ConcurrentModificationError: other writers kept changing the same rows, so that all retries failed.
        """
        where, write_options = arguments.check_text("where", where), arguments.parse_write_options("delete", how)
        return row_changes.delete(self.spark, TableAddress.parse(self._connection, table), where, write_options)

    def update(self, table: TableName, set: Mapping[str, str], where: str | None = None, **how: Any) -> ChangeResult:
        """Set columns to SQL expressions over the row, in the rows that match or in all. See `append` for `how`.

        Raises:
            ConcurrentModificationError: other writers kept changing the same rows, so that all retries failed.
        """
        values, rows = arguments.check_expressions(set), arguments.check_condition("where", where)
        write_options = arguments.parse_write_options("update", how)
        return row_changes.update(self.spark, TableAddress.parse(self._connection, table), values, rows, write_options)

    def merge(
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
        when_matched, when_not_matched = (
            arguments.check_text("when_matched", when_matched),
            arguments.check_text("when_not_matched", when_not_matched),
        )
        rules = MergeRules(when_matched, when_not_matched, arguments.flag("delete_by_source", delete_by_source))
        order = () if latest_by is None else arguments.check_names("latest_by", latest_by)
        df, keys, write_options = (
            arguments.check_frame(df),
            arguments.check_names("on", on),
            arguments.parse_write_options("merge", how),
        )
        return merge.merge(df, TableAddress.parse(self._connection, table), keys, rules, write_options, latest_by=order)

    def add_columns(
        self, table: TableName, columns: Mapping[str, str | Function], read_columns: Names | None = None
    ) -> int:
        """Add columns that are computed from others, without rewriting existing data; return the version that this
        made.

        After a failure the same call resumes the work if the functions are the same, including all modules of your own
        that they import, the installed packages, and the files and environment variables that the code names. Otherwise
        it starts over, and a warning says why.

        Args:
            table: id of the table.
            columns: for each new column SQL over the row, or a function that takes an Arrow batch and returns an array;
                either all are SQL, or all are functions.
            read_columns: columns that are passed to functions, all by default.
        """
        columns = arguments.check_mapping("columns", columns, "new columns, such as {'twice': 'id * 2'}")
        reads = arguments.some_names("read_columns", read_columns)
        return computed_columns.add_columns(self.spark, TableAddress.parse(self._connection, table), columns, reads)

    def ingest(
        self,
        source: Any,
        table: TableName,
        format: str | None = None,
        mode: str = "append",
        columns: Names | None = None,
        options: Mapping[str, Any] | None = None,
        **how: Any,
    ) -> int:
        """Load files or an Iceberg table into a Lance table, in Arrow only; return the version that this made.

        A missing table is created. After a failure the same call resumes the work.

        Args:
            source: a path, folder, glob or a list of those; for Iceberg a table or scan of pyiceberg, or its name.
            table: id of the table.
            format: parquet, csv, json, arrow, images or iceberg; by default inferred from the extensions.
            mode: `append`, `overwrite` or `create`.
            columns: columns to read, all by default.
            options: options of the format, such as `{"delimiter": ";", "types": {"zip": "string"}}`, and storage
                options for the source; for Iceberg the properties of its catalog. CSV has delimiter, quote, escape,
                header, skip_rows, null_values, encoding, types and schema; JSON has encoding, types and schema.
            how: see `append`.

        Raises:
            InvalidInputError: a file cannot be read, or the format has no such option.
            TableSchemaValidationError: the columns do not fit the table.
        """
        write_options = arguments.parse_write_options("ingest", how)
        return ingest.ingest(
            self.spark,
            TableAddress.parse(self._connection, table),
            source,
            format=arguments.some_text("format", format),
            mode=arguments.check_text("mode", mode),
            columns=arguments.some_names("columns", columns),
            options=arguments.check_mapping("options", options or {}, "options, such as {'delimiter': ';'}"),
            how=write_options,
        )

    # Maintenance of a table, or of all tables in a namespace and below it; `namespace=""` is the whole catalog

    def compact(self, table: TableName | None = None, *, namespace: TableName | None = None, **options: Any) -> Any:
        """Rewrite small fragments into larger ones, without deleted rows.

        Args:
            table: id of the table.
            namespace: levels of a namespace, instead of a table; "" is the whole catalog.
            options: options of `lance.optimize.CompactionOptions`.

        Returns:
            What was done; for a namespace, what was done to each table, or the error that occurred, by the table's id.
        """
        return self._run_on(table, namespace, lambda address: maintenance.compact(self.spark, address, options))

    def create_index(
        self, table: TableName, column: str, kind: str, name: str | None = None, replace: bool = False, **params: Any
    ) -> BuiltIndex:
        """Build an index.

        Args:
            table: id of the table.
            column: the column to index.
            kind: IVF_PQ, IVF_HNSW_SQ, IVF_FLAT …, BTREE, BITMAP, LABEL_LIST, INVERTED, NGRAM, ZONEMAP …
            name: name of the index, by default that of the column followed by `_idx`.
            replace: rebuild an index of that name if there is one.
            params: parameters of the kind, under pylance's names, such as `num_partitions` and `metric`.
        """
        return maintenance.create_index(
            self.spark,
            TableAddress.parse(self._connection, table),
            arguments.check_text("column", column),
            arguments.check_text("kind", kind),
            arguments.some_text("name", name),
            arguments.flag("replace", replace),
            params,
        )

    def optimize_indices(
        self,
        table: TableName | None = None,
        *,
        namespace: TableName | None = None,
        names: Names | None = None,
        retrain: bool = False,
    ) -> Any:
        """Add rows that came after the indices were built to them; return the new version.

        See `compact` for namespaces.
        """
        chosen, anew = arguments.some_names("names", names), arguments.flag("retrain", retrain)
        return self._run_on(
            table, namespace, lambda address: maintenance.optimize_indices(self.spark, address, chosen, anew)
        )

    def cleanup(
        self,
        table: TableName | None = None,
        *,
        namespace: TableName | None = None,
        older_than: timedelta = timedelta(days=14),
        dry_run: bool = False,
    ) -> Any:
        """Remove old versions, and the data that no other version needs; the current and tagged versions stay.

        See `compact` for namespaces.
        """
        tells = arguments.flag("dry_run", dry_run)
        return self._run_on(
            table, namespace, lambda address: maintenance.cleanup(self.spark, address, older_than, tells)
        )

    def remove_orphans(
        self,
        table: TableName | None = None,
        *,
        namespace: TableName | None = None,
        older_than: timedelta | None = None,
        dry_run: bool = False,
        no_writers: bool = False,
    ) -> Any:
        """Remove files that no version references, such as those that killed jobs have left.

        See `compact` for namespaces.

        Args:
            table: id of the table.
            namespace: levels of a namespace, instead of a table.
            older_than: minimum age of the files, 7 days by default; younger files may belong to a job that is about to
                commit them. The records and files of a job stay until its last record has this age: until then it can
                be resumed.
            dry_run: remove nothing, and return what would be removed.
            no_writers: the caller guarantees that nobody writes to the table, so that any age is allowed; jobs that can
                be resumed are still kept for 7 days, unless `older_than` is given.
        """
        tells, alone = arguments.flag("dry_run", dry_run), arguments.flag("no_writers", no_writers)
        return self._run_on(
            table, namespace, lambda address: maintenance.remove_orphans(self.spark, address, older_than, tells, alone)
        )

    def _run_on(self, table: TableName | None, namespace: TableName | None, work: Callable[[TableAddress], T]) -> Any:
        if (table is None) == (namespace is None):
            raise InvalidInputError('name a table, or a namespace with namespace=; namespace="" is the whole catalog')
        if table is not None:
            return work(TableAddress.parse(self._connection, table))
        return maintenance.run_on_tables(self._connection, arguments.levels("namespace", namespace), work)
