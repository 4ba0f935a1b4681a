"""Lance tables by their catalog name, in Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime, timedelta
from typing import Any, TypeVar

from lance_namespace.errors import InvalidInputError
from pyspark.sql import DataFrame, SparkSession

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
from lancehouse.spark.address import Connection, TableAddress, TableName
from lancehouse.spark.aggregates import parse_aggregation
from lancehouse.spark.row_changes import ChangeResult

Names = str | Sequence[str]
Time = datetime | date | str
"""A time, or text that is one by ISO 8601; one without a zone is of this machine."""
T = TypeVar("T")


class LanceCatalog:
    """The tables of a catalog, for a Spark session.

    A table is named by its levels, as a list or as text in which dots join them and a level with a dot stands in
    backquotes. A change is one commit, through the catalog where it manages versions, and leaves the table as it was if
    it fails.

    Args:
        spark: the session.
        impl: `iceberg`, `polaris`, `unity`, `dir`, `rest`, or the path of a class, as `lance_namespace.connect` has it.
        properties: of that client.

    Raises:
        InvalidInputError: the session is too old, there is no such client, or it does not take these properties.
    """

    def __init__(self, spark: SparkSession, impl: str, properties: Mapping[str, str] | None = None) -> None:
        session.check_session(spark)
        self.spark = spark
        self._connection = Connection.from_properties(impl, properties)

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
        """The rows of one version, which is chosen now: what is committed later does not show.

        Args:
            table: its id.
            columns: which to read, by default all. Spark does not tell which ones a query needs.
            filter: which rows, in Lance's SQL; indices are used.
            version: which one, by default the latest.
            tag: which version, by its tag.
            as_of: which version, by the time, in milliseconds as `history` has them: a datetime, or text such as
                `2026-01-31T12:00:00+00:00`; without a zone it is of this machine.
            with_row_id: whether to add the column `_rowid`.
            limit: how many rows at most.
        """
        scan = Scan(
            arguments.some_names("columns", columns),
            arguments.check_condition("filter", filter),
            arguments.check_number("limit", limit),
            arguments.flag("with_row_id", with_row_id),
        )
        return table_reader.read_table(
            self.spark, self._connection.table_address(table), scan, VersionSelector(version, tag, as_of)
        )

    def count(
        self,
        table: TableName,
        filter: str | None = None,
        version: int | None = None,
        tag: str | None = None,
        as_of: Time | None = None,
    ) -> int:
        """How many rows there are, or match."""
        rows = arguments.check_condition("filter", filter)
        return table_reader.count_rows(
            self.spark, self._connection.table_address(table), rows, VersionSelector(version, tag, as_of)
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
        """Sums and the like over columns, added up inside the tasks: no row goes to the JVM.

        The answer has the columns of `group_by`, and `{column}_{function}` for each other; `count="*"` counts rows, in
        the column `count`.
        """
        given = {"sum": sum, "min": min, "max": max, "mean": mean, "count": count}
        measures = {name: arguments.some_names(name, columns) for name, columns in given.items()}
        groups = arguments.check_names("group_by", group_by)
        aggregation = parse_aggregation(groups, measures, arguments.check_condition("filter", filter))
        return aggregates.aggregate(
            self.spark, self._connection.table_address(table), aggregation, VersionSelector(version, tag, as_of)
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
        """The `k` rows nearest to a vector, the nearest first, with their `_distance`.

        Args:
            table: its id.
            vector: what to look for.
            k: how many rows.
            column: which vectors, where the table has several.
            filter: among which rows, in Lance's SQL.
            columns: which to read, by default all.
            metric: l2, cosine or dot; by default the index's, and l2 without one.
            version: see `read`, as for the others.
            tag: see `read`.
            as_of: see `read`.
            nprobes: how many partitions of the index are searched, by default at least 20.
            refine_factor: how many times `k` candidates are compared by their vectors, not by the codes of the index;
                by default 10, and at least 200 candidates.
            ef: how many candidates an HNSW index keeps; at least `k` times `refine_factor`.

        Without an index all vectors are compared, so that the last three have no meaning.

        Raises:
            InvalidInputError: the vector does not fit, or a number is none above 0.
        """
        return vector_search.search(
            self.spark,
            self._connection.table_address(table),
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
        """The versions, the latest first: time, operation, rows, files, bytes and tags."""
        return listing.history(self.spark, self._connection.table_address(table))

    def register_views(self, namespace: TableName, prefix: str = "", *, replace: bool = False) -> list[str]:
        """Make a temporary view of each table in a namespace; the names.

        Each query of a view reads the version that is the latest then. Call this again to see new tables and columns.

        Args:
            namespace: its levels.
            prefix: what the names begin with; the rest is the table's name.
            replace: whether to take names that something else in the session has.

        Raises:
            InvalidInputError: a view that this did not make of the same table, or a table of the session, has one of
                the names; no view was made.
        """
        levels, begin = arguments.levels("namespace", namespace), arguments.check_text("prefix", prefix)
        replaces = arguments.flag("replace", replace)
        return listing.register_views(self.spark, self._connection, levels, begin, replace=replaces)

    # Writing

    def create(self, df: DataFrame, table: TableName, **how: Any) -> int:
        """Make a table of a DataFrame; the version. `how`: see `append`.

        Raises:
            TableAlreadyExistsError: there is one.
        """
        df, write_options = arguments.check_frame(df), arguments.parse_write_options("create", how)
        return table_writer.create(df, self._connection.table_address(table), write_options)

    def append(self, df: DataFrame, table: TableName, **how: Any) -> int:
        """Add the rows of a DataFrame; the version that this made.

        Args:
            df: the rows; columns are matched by name, and one that the table has and `df` has not becomes null.
            table: its id.
            how: `vector_columns={"emb": 128}` says which arrays become vectors, where the table does not say it;
                `nullable=False` has columns of a new table that may not be null where those of `df` may not, by default
                all may; `max_rows_per_file`, `max_bytes_per_file` and `data_storage_version` are Lance's; `run` names
                the run: the same one again adds nothing.

        Raises:
            TableNotFoundError: there is no such table.
            TableSchemaValidationError: the columns do not fit.
        """
        df, write_options = arguments.check_frame(df), arguments.parse_write_options("append", how)
        return table_writer.append(df, self._connection.table_address(table), write_options)

    def overwrite(self, df: DataFrame, table: TableName, **how: Any) -> int:
        """Put the rows of a DataFrame in the place of all others, and its columns too; a missing table is created.

        Older versions stay. `how`: see `append`.

        Raises:
            ConcurrentModificationError: somebody changed the table meanwhile, which this would undo.
        """
        df, write_options = arguments.check_frame(df), arguments.parse_write_options("overwrite", how)
        return table_writer.overwrite(df, self._connection.table_address(table), write_options)

    def delete(self, table: TableName, where: str, **how: Any) -> ChangeResult:
        """Delete the rows that match a condition in Lance's SQL; `true` deletes all. `how`: `run`, see `append`.

        Raises:
            ConcurrentModificationError: somebody changes the same rows again and again.
        """
        where, write_options = arguments.check_text("where", where), arguments.parse_write_options("delete", how)
        return row_changes.delete(self.spark, self._connection.table_address(table), where, write_options)

    def update(self, table: TableName, set: Mapping[str, str], where: str | None = None, **how: Any) -> ChangeResult:
        """Set columns to SQL expressions over the row, in the rows that match or in all. `how`: see `append`.

        Raises:
            ConcurrentModificationError: somebody changes the same rows again and again.
        """
        values, rows = arguments.check_expressions(set), arguments.check_condition("where", where)
        write_options = arguments.parse_write_options("update", how)
        return row_changes.update(self.spark, self._connection.table_address(table), values, rows, write_options)

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
        """Merge the rows of a DataFrame into a table by their keys, by default an upsert. `df` is evaluated once.

        Args:
            df: the rows, with no key twice unless there is `latest_by`; a key that is null matches nothing.
            table: its id.
            on: the columns that are the key.
            when_matched: what happens to rows of the table that `df` has too: `update`, `delete` or `ignore`.
            when_not_matched: what happens to rows of `df` that the table has not: `insert` or `ignore`.
            delete_by_source: whether rows of the table that `df` has not are deleted.
            latest_by: of rows of `df` with the same key, the one with the greatest value of this column is merged; of
                several columns, the first that differs decides, and null is the least. A column that the table has not
                is used for this alone.
            how: see `append`.

        Raises:
            InvalidInputError: a key comes twice in `df`, or twice with the same values of `latest_by`; the text shows
                one.
            ConcurrentModificationError: somebody changes the same rows again and again.
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
        return merge.merge(df, self._connection.table_address(table), keys, rules, write_options, latest_by=order)

    def add_columns(
        self, table: TableName, columns: Mapping[str, str | Function], read_columns: Names | None = None
    ) -> int:
        """Add columns that are computed from others, in place: nothing else is written again. The version it made.

        After a failure the same call goes on where it was, if the functions are the same, with all modules of your own
        that they import, the installed packages, and the files and environment variables that the code names. Else it
        starts over, and a warning says why.

        Args:
            table: its id.
            columns: what each is: SQL over the row, or a function that takes an Arrow batch and gives an array; all are
                SQL, or all are functions.
            read_columns: which columns functions get, by default all.
        """
        columns = arguments.check_mapping("columns", columns, "new columns, such as {'twice': 'id * 2'}")
        reads = arguments.some_names("read_columns", read_columns)
        return computed_columns.add_columns(self.spark, self._connection.table_address(table), columns, reads)

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
        """Bring files or an Iceberg table into a Lance table, in Arrow alone; the version that this made.

        A missing table is created. After a failure the same call goes on where it was.

        Args:
            source: a path, folder, glob or a list of those; for Iceberg a table or scan of pyiceberg, or its name.
            table: its id.
            format: parquet, csv, json, arrow, images or iceberg; by default what the extensions say.
            mode: `append`, `overwrite` or `create`.
            columns: which to read, by default all.
            options: those of the format, such as `{"delimiter": ";", "types": {"zip": "string"}}`, and storage options
                for the source; for Iceberg the properties of its catalog. CSV has delimiter, quote, escape, header,
                skip_rows, null_values, encoding, types and schema; JSON has encoding, types and schema.
            how: see `append`.

        Raises:
            InvalidInputError: a file cannot be read, or the format has no such option.
            TableSchemaValidationError: the columns do not fit the table.
        """
        write_options = arguments.parse_write_options("ingest", how)
        return ingest.ingest(
            self.spark,
            self._connection.table_address(table),
            source,
            format=arguments.some_text("format", format),
            mode=arguments.check_text("mode", mode),
            columns=arguments.some_names("columns", columns),
            options=arguments.check_mapping("options", options or {}, "options, such as {'delimiter': ';'}"),
            how=write_options,
        )

    # Upkeep: of a table, or of all in a namespace and below it; `namespace=""` is the whole catalog

    def compact(self, table: TableName | None = None, *, namespace: TableName | None = None, **options: Any) -> Any:
        """Make fewer, larger fragments without deleted rows. `options`: those of `lance.optimize.CompactionOptions`.

        Returns:
            What was done; for a namespace, what was done to each table, or the error that it met, by the table's id.
        """
        return self._run_on(table, namespace, lambda address: maintenance.compact(self.spark, address, options))

    def create_index(
        self, table: TableName, column: str, kind: str, name: str | None = None, replace: bool = False, **params: Any
    ) -> BuiltIndex:
        """Build an index.

        Args:
            table: its id.
            column: what to index.
            kind: IVF_PQ, IVF_HNSW_SQ, IVF_FLAT …, BTREE, BITMAP, LABEL_LIST, INVERTED, NGRAM, ZONEMAP …
            name: by default that of the column with `_idx`.
            replace: whether an index of that name is built anew.
            params: of the kind, in pylance's words, such as `num_partitions` and `metric`.
        """
        return maintenance.create_index(
            self.spark,
            self._connection.table_address(table),
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
        """Take rows into indices that came after them; the version that has them. See `compact` for namespaces."""
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
        """Remove old versions, and the data that no other version needs; the current and tagged ones stay.

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
        """Remove files that no version names: what killed jobs have left. See `compact` for namespaces.

        Args:
            table: its id.
            namespace: instead of a table.
            older_than: younger files may belong to a job that is about to commit them; by default 7 days. What a job
                has noted, and its files, go when its last note is as old: until then it can go on.
            dry_run: whether to remove nothing and only tell.
            no_writers: the caller knows that nobody writes to the table, so that any age will do; jobs that can go on
                are kept for 7 days all the same, unless `older_than` is given.
        """
        tells, alone = arguments.flag("dry_run", dry_run), arguments.flag("no_writers", no_writers)
        return self._run_on(
            table, namespace, lambda address: maintenance.remove_orphans(self.spark, address, older_than, tells, alone)
        )

    def _run_on(self, table: TableName | None, namespace: TableName | None, work: Callable[[TableAddress], T]) -> Any:
        if (table is None) == (namespace is None):
            raise InvalidInputError('name a table, or a namespace with namespace=; namespace="" is the whole catalog')
        if table is not None:
            return work(self._connection.table_address(table))
        return maintenance.run_on_tables(self._connection, arguments.levels("namespace", namespace), work)
