"""`TableJobs`: change and maintain the tables of a catalog, in this process or on any other engine."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import date, datetime, time, timedelta
from numbers import Number
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
import pyarrow as pa
from lance_namespace import LanceNamespace
from lance_namespace.errors import InvalidInputError, LanceNamespaceError

from lancehouse import named_catalogs
from lancehouse.connection import Connection
from lancehouse.identifiers import format_levels, parse_levels, quote_name
from lancehouse.jobs import columns as columns_jobs
from lancehouse.jobs import (
    compaction,
    index_building,
    ingest,
    merge,
    orphans,
    row_changes,
    table_changes,
    views,
)
from lancehouse.jobs import recall as recall_jobs
from lancehouse.jobs import search as search_jobs
from lancehouse.jobs.address import PinnedVersion, TableAddress, TableName, get_client, list_tables
from lancehouse.jobs.column_filling import FillOptions, FillResult
from lancehouse.jobs.column_functions import CallRules, ColumnFunction, is_column_function
from lancehouse.jobs.columns import Function
from lancehouse.jobs.engine import Engine, JobCancelledError, LocalEngine
from lancehouse.jobs.index_building import BuiltIndex
from lancehouse.jobs.job import ChangeResult, ReportFill, WriteOptions
from lancehouse.jobs.merge_keys import MergeRules
from lancehouse.jobs.row_changes import ColumnUpdateResult
from lancehouse.jobs.sources.formats import ALL_OPTIONS
from lancehouse.jobs.views import RefreshResult
from lancehouse.lake.column_states import read_failed_rows
from lancehouse.lake.commits import FileLayout
from lancehouse.lake.dataset import VersionSelector
from lancehouse.lake.foreign_tables import ClientCalls
from lancehouse.lake.scans import BLOB_FORMS
from lancehouse.lake.search import Search, plan_search
from lancehouse.lake.vector_search import SearchEffort, require_count
from lancehouse.schema.spark import parse_field, parse_schema
from lancehouse.suggestions import suggest

Names = str | Sequence[str]
T = TypeVar("T")

LARGEST = 2**63 - 1
_WRITE_ARGUMENTS = (
    "vector_columns",
    "nullable",
    "run",
    "max_rows_per_file",
    "max_bytes_per_file",
    "data_storage_version",
    "schema_mode",
)
SCHEMA_MODES = ("fixed", "evolve")
_EVOLVING = ("append", "merge", "ingest")
"""Calls by which the columns of a table may evolve."""


class TableJobs:
    """Jobs on the tables of a catalog: each plans, has an engine run its pieces, and makes one commit.

    A table is named by its levels, as a list, or as text joined by dots in which a level that contains a dot is quoted
    with backquotes. A change is one commit, through the catalog where it manages versions, and leaves the table
    unchanged if it fails.

    Args:
        connection: the catalog; or a client of it, if the engine runs pieces in this process.
        engine: runs the pieces; by default a `LocalEngine` with a thread for each processor.
        functions: what may be imported by the names that tables have: functions as `module:name`, or modules with all
            below them. By default everything, which suits tables that only you write.

    Raises:
        InvalidInputError: there is no such client, it does not accept these properties, or a client is given to an
            engine of other processes.
    """

    def __init__(
        self,
        connection: Connection | LanceNamespace,
        engine: Engine | None = None,
        *,
        functions: Names | None = None,
    ) -> None:
        self._engine: Engine = engine or LocalEngine()
        self._functions = some_names("functions", functions)
        if not isinstance(connection, Connection) and not self._engine.shares_memory:
            raise InvalidInputError("an engine of other processes needs a Connection: a client cannot be sent to them")
        self._connection = connection
        get_client(connection)

    @classmethod
    def named(cls, name: str, engine: Engine | None = None) -> Self:
        """Return the jobs of a catalog that `~/.lancehouse.yaml` or the environment names.

        If the catalog has a `parent` there, its levels stand before every id, and are not written.

        Args:
            name: of the catalog.
            engine: see the constructor.

        Raises:
            InvalidInputError: there is no such catalog, or its configuration is invalid.
        """
        connection = named_catalogs.load().catalog(check_text("name", name))
        jobs = cls(connection, engine)
        jobs._parent = connection.parent
        return jobs

    _parent: tuple[str, ...] = ()
    """Levels before every id, which a named catalog may have."""

    def _address(self, table: TableName) -> TableAddress:
        address = TableAddress.parse(self._connection, table)
        return replace(address, id=(*self._parent, *address.id)) if self._parent else address

    def _namespace_id(self, name: str, namespace: Any) -> tuple[str, ...]:
        return (*self._parent, *check_levels(name, namespace))

    def _format_id(self, id: Sequence[str]) -> str:
        return format_levels(id[len(self._parent) :])

    @property
    def _calls(self) -> ClientCalls:
        return ClientCalls(get_client(self._connection))

    # Namespaces and tables

    def namespaces(self, parent: TableName | None = None) -> list[str]:
        """Return the namespaces directly below one, or the first level of the catalog, as whole ids in order.

        Raises:
            InvalidInputError: the catalog does not list its first level, as Iceberg REST with its warehouses.
        """
        levels = self._namespace_id("parent", "" if parent is None else parent)
        return list(map(self._format_id, self._calls.namespaces(levels)))

    def create_namespace(
        self, namespace: TableName, properties: Mapping[str, str] | None = None, *, exist_ok: bool = False
    ) -> None:
        """Create a namespace, with properties where the catalog keeps them.

        Raises:
            NamespaceAlreadyExistsError: it exists, and `exist_ok` is False.
        """
        levels, properties = self._require_levels(namespace), check_properties("properties", properties or {})
        self._calls.create_namespace(levels, properties, exist_ok=check_flag("exist_ok", exist_ok))

    def drop_namespace(self, namespace: TableName, *, cascade: bool = False) -> None:
        """Drop a namespace that is empty; with `cascade` also one that is not, where the catalog can.

        Raises:
            NamespaceNotFoundError: there is none.
            NamespaceNotEmptyError: it is not empty.
            UnsupportedOperationError: the catalog drops empty namespaces only.
        """
        levels = self._require_levels(namespace)
        self._calls.drop_namespace(levels, cascade=check_flag("cascade", cascade))

    def _require_levels(self, namespace: Any) -> tuple[str, ...]:
        if not (levels := check_levels("namespace", namespace)):
            raise InvalidInputError("namespace: name at least one level")
        return (*self._parent, *levels)

    def tables(self, namespace: TableName = "") -> list[str]:
        """Return the tables directly in a namespace, as whole ids in order; also those that are only declared."""
        return list(map(self._format_id, self._calls.tables(self._namespace_id("namespace", namespace))))

    def exists(self, table: TableName) -> bool:
        """Return whether a table exists and has a version; one that is only declared has none."""
        return table_changes.table_exists(self._address(table))

    def create_table(
        self,
        table: TableName,
        schema: Any,
        *,
        properties: Mapping[str, str] | None = None,
        comment: str | None = None,
        exist_ok: bool = False,
    ) -> int:
        """Create a table without rows; return its version.

        Args:
            table: id of the table.
            schema: the columns: an Arrow schema, DDL text such as `id bigint NOT NULL, name string`, or a StructType.
            properties: of the table, see `set_properties`; `managed_by` and `storage.*` go to the catalog's entry.
            comment: the property `comment`.
            exist_ok: leave a table that exists as it is.

        Raises:
            TableAlreadyExistsError: it exists, and `exist_ok` is False.
            TableSchemaValidationError: Lance does not store such columns.
        """
        columns, properties = check_schema("schema", schema), check_properties("properties", properties or {})
        if some_text("comment", comment) is not None:
            properties = {**properties, table_changes.COMMENT: str(comment)}
        exist_ok = check_flag("exist_ok", exist_ok)
        return table_changes.create_table(self._address(table), columns, properties, exist_ok=exist_ok)

    def drop(self, table: TableName, *, missing_ok: bool = False) -> None:
        """Drop a table with its data, which cannot be undone.

        Raises:
            TableNotFoundError: there is none, and `missing_ok` is False.
        """
        table_changes.drop_table(self._calls, self._address(table).id, missing_ok=check_flag("missing_ok", missing_ok))

    def rename(self, table: TableName, new_name: TableName) -> None:
        """Rename a table, or move it to another namespace; its data stays where it is.

        Args:
            table: id of the table.
            new_name: a name in the same namespace, or a whole id.

        Raises:
            UnsupportedOperationError: the catalog cannot rename tables, as Lance's `dir`.
            TableAlreadyExistsError: there is a table of the new name.
        """
        old_id, levels = self._address(table).id, check_levels("new_name", new_name)
        if not levels:
            raise InvalidInputError("new_name: name at least one level")
        new_id = (*old_id[:-1], *levels) if len(levels) == 1 else (*self._parent, *levels)
        self._calls.call("rename_table", old_id, new_table_name=new_id[-1], new_namespace_id=list(new_id[:-1]))

    def schema(self, table: TableName, version: int | None = None, tag: str | None = None) -> Any:
        """Return the columns of a table, or of a version of it, as an Arrow schema."""
        return table_changes.read_schema(self._address(table), VersionSelector(version, tag))

    # Columns

    def drop_columns(self, table: TableName, columns: Names) -> int:
        """Drop columns; return the version that this made. `s.x` is the field x of the struct s.

        The data goes when the table is compacted and cleaned up. Indices on the columns are dropped with them, and so
        is what belongs to a computed column.

        Raises:
            TableColumnNotFoundError: there is no such column.
            InvalidInputError: another column is computed from one of them.
        """
        return table_changes.drop_columns(self._address(table), _require_any(check_names("columns", columns)))

    def rename_columns(self, table: TableName, names: Mapping[str, str]) -> int:
        """Rename columns, such as `{"old": "new"}`; return the version that this made. No data is written.

        Raises:
            TableColumnNotFoundError: there is no such column.
            TableSchemaValidationError: a name is taken.
            InvalidInputError: the SQL of a computed column names one of them.
        """
        new_names = check_properties("names", names, "old and new names of columns, such as {'old': 'new'}")
        return table_changes.rename_columns(self._address(table), _require_any(new_names))

    def alter_columns(self, table: TableName, changes: Mapping[str, Mapping[str, Any]]) -> int:
        """Change the type of columns, or whether they may be null; return the version that this made.

        A type may become a wider one, such as int a bigint, float a double or decimal(5,2) a decimal(10,2). The column
        is then written again as a whole in this process; all others stay. Nullability of other columns that is changed
        by the same call is a commit of its own.

        Args:
            table: id of the table.
            changes: for each column `{"type": …, "nullable": …}`, or one of them; a type is Arrow's or DDL text.

        Raises:
            TableColumnNotFoundError: there is no such column.
            TableSchemaValidationError: a type is no wider one.
            InvalidInputError: a column has nulls or an index, see above.
        """
        return table_changes.alter_columns(self._address(table), _require_any(parse_alterations(changes)))

    # Tags, branches, versions and properties

    def tag(self, table: TableName, name: str, version: int | None = None, *, replace: bool = False) -> int:
        """Give a version a name, the latest by default; return the version. Clean-up keeps it.

        Raises:
            TableTagAlreadyExistsError: there is a tag of that name, and `replace` is False.
            TableVersionNotFoundError: there is no such version.
        """
        name, version = check_text("name", name), check_number("version", version)
        replace = check_flag("replace", replace)
        return table_changes.set_tag(self._calls, self._address(table), name, version, replace=replace)

    def untag(self, table: TableName, name: str) -> None:
        """Delete a tag; its version stays until it is cleaned up.

        Raises:
            TableTagNotFoundError: there is none.
        """
        self._calls.call("delete_table_tag", self._address(table).id, tag=check_text("name", name))

    def branch(self, table: TableName, name: str, version: int | None = None) -> None:
        """Create a branch from a version of the main branch, the latest by default.

        Raises:
            TableBranchAlreadyExistsError: there is a branch of that name.
            TableVersionNotFoundError: there is no such version.
        """
        name, version = check_text("name", name), check_number("version", version)
        self._calls.call("create_table_branch", self._address(table).id, name=name, from_version=version)

    def drop_branch(self, table: TableName, name: str) -> None:
        """Delete a branch with the data that only it has.

        Raises:
            TableBranchNotFoundError: there is none.
            InvalidInputError: another branch was created from it.
        """
        self._calls.call("delete_table_branch", self._address(table).id, name=check_text("name", name))

    def restore(
        self,
        table: TableName,
        version: int | None = None,
        tag: str | None = None,
        as_of: datetime | date | str | None = None,
    ) -> int:
        """Make an older version the current one, by a new version with the same content; return that.

        Args:
            table: id of the table.
            version: the version to restore.
            tag: its tag, instead.
            as_of: restore the version that was the latest at this time, instead.

        Raises:
            ConcurrentModificationError: somebody changed the table meanwhile, which this would undo.
        """
        address, selector = self._address(table), VersionSelector(check_number("version", version), tag, as_of)
        if selector == VersionSelector():
            raise InvalidInputError("restore needs a version, a tag or a time")
        return table_changes.restore(address, selector)

    def properties(self, table: TableName) -> dict[str, str]:
        """Return the properties of a table and of its entry in the catalog, without secrets."""
        return table_changes.read_properties(self._calls, self._address(table))

    def set_properties(self, table: TableName, properties: Mapping[str, str]) -> int:
        """Set properties of a table; return the version that this made.

        They are Lance's `config` of the table: the same under every catalog, versioned, and kept when the table is
        overwritten. `lance.*` are settings of Lance.
        """
        return table_changes.set_properties(self._address(table), check_properties("properties", properties))

    def unset_properties(self, table: TableName, names: Names) -> int:
        """Remove properties of a table, those that it has; return the version."""
        return table_changes.unset_properties(self._address(table), check_names("names", names))

    # Rows

    def delete(self, table: TableName, where: str, **how: Any) -> ChangeResult:
        """Delete the rows that match a condition in Lance's SQL; `true` deletes all. `how` takes `run`, see `ingest`.

        Raises:
            ConcurrentModificationError: other writers kept changing the same rows, so that all retries failed.
        """
        where, write_options = check_text("where", where), parse_write_options("delete", how)
        return row_changes.delete(self._engine, self._address(table), where, write_options)

    def update(self, table: TableName, set: Mapping[str, str], where: str | None = None, **how: Any) -> ChangeResult:
        """Set columns to SQL expressions over the row, in the rows that match or in all. See `ingest` for `how`.

        Raises:
            ConcurrentModificationError: other writers kept changing the same rows, so that all retries failed.
        """
        expressions, condition = check_expressions(set), check_condition("where", where)
        write_options = parse_write_options("update", how)
        return row_changes.update(self._engine, self._address(table), expressions, condition, write_options)

    def merge(
        self,
        rows: Any,
        table: TableName,
        on: Names,
        when_matched: str = "update",
        when_not_matched: str = "insert",
        delete_by_source: bool = False,
        **how: Any,
    ) -> ChangeResult:
        """Merge rows in memory into a table by key; an upsert by default.

        Args:
            rows: an Arrow table or record batch reader, without duplicate keys; a key that is null matches nothing.
            table: id of the table.
            on: the columns that are the key.
            when_matched: what to do with rows of the table whose key is in `rows`: `update`, `delete` or `ignore`.
            when_not_matched: what to do with rows whose key is not in the table: `insert` or `ignore`.
            delete_by_source: delete rows of the table whose key is not in `rows`.
            how: see `ingest`.

        Raises:
            InvalidInputError: `rows` has a key twice; the message shows one.
            ConcurrentModificationError: other writers kept changing the same rows, so that all retries failed.
        """
        source = merge.ArrowRows(check_arrow(rows))
        rules = parse_merge_rules(when_matched, when_not_matched, delete_by_source)
        keys, write_options = check_names("on", on), parse_write_options("merge", how)
        return merge.merge(self._engine, self._address(table), source, keys, rules, write_options)

    def update_columns(self, table: TableName, rows: Any, on: Names, **how: Any) -> ColumnUpdateResult:
        """Set columns to the values that rows in memory bring, in the rows with the same key; rewrite nothing else.

        Only files of these columns are written. Columns that are computed from them are filled again by `backfill`.

        Args:
            table: id of the table.
            rows: an Arrow table or record batch reader with the key and the columns to set, each key once; a key that
                is null matches nothing.
            on: the columns that are the key.
            how: `run` names the run: repeating a run changes nothing.

        Raises:
            InvalidInputError: `rows` has a key twice, which the message shows, or a column is computed.
            TableColumnNotFoundError: the table has no such column.
            ConcurrentModificationError: other writers kept changing the same rows, so that all retries failed.
        """
        source, keys = merge.ArrowRows(check_arrow(rows)), check_names("on", on)
        write_options = parse_write_options("update_columns", how)
        return row_changes.update_columns(self._engine, self._address(table), source, keys, write_options)

    # Search

    def search(
        self,
        table: TableName,
        vector: Any = None,
        k: int = 10,
        column: str | None = None,
        filter: str | None = None,
        columns: Names | None = None,
        metric: str | None = None,
        version: int | None = None,
        tag: str | None = None,
        as_of: Any = None,
        nprobes: int | None = None,
        refine_factor: int | None = None,
        ef: int | None = None,
        prefilter: bool = True,
        *,
        text: Any = None,
        text_column: str | None = None,
        hybrid: Any = None,
    ) -> Any:
        """Return the rows that are best for a vector, for words, or for both: a DataFrame with Spark, else Arrow.

        One query gives its rows, the best first, with `_distance` and `_score`. Several give `query_id`, `rank` from 1,
        `_distance`, `_score` and the columns.

        Args:
            table: id of the table.
            vector: a vector; several, or a 2-D array of numpy; or a table of queries with the columns `query_id` and
                `vector`, a DataFrame on Spark. A null vector in it finds nothing.
            k: number of rows for each query.
            column: the vector column; needed if the table has several.
            filter: condition on the rows, in Lance's SQL.
            columns: columns to return, all by default.
            metric: l2, cosine or dot; by default that of the index, and l2 without one.
            version: version to search, the latest by default.
            tag: tag of the version to search.
            as_of: search the version that was the latest at this time.
            nprobes: number of partitions of the index that are searched, at least 20 by default.
            refine_factor: `k` times this number of candidates are compared by their vectors, not by the codes of the
                index; by default 10, and at least 200 candidates.
            ef: number of candidates that an HNSW index keeps; at least `k` times `refine_factor`.
            prefilter: whether the filter selects the rows that are searched; else those of the `k` that were found.
            text: words to look for, scored by BM25; several texts; or a table of queries with the columns `query_id`
                and `text`.
            text_column: the column with the text; by default the only one with a full-text index.
            hybrid: with a vector and a text, how their two rankings are fused: True or 'rrf' for reciprocal rank
                fusion, or weights in it, such as `{"vector": 0.7, "text": 0.3}`. With a table of queries, says that
                vectors and texts are meant.

        For several queries the index is used if that is estimated to take less time than to compare all vectors, which
        is exact, or if `nprobes`, `refine_factor` or `ef` is given; `explain_search` tells.

        Raises:
            InvalidInputError: a vector does not fit the column, or an argument is not what it has to be.
        """
        options = {
            "column": column,
            "filter": filter,
            "columns": columns,
            "metric": metric,
            "nprobes": nprobes,
            "refine_factor": refine_factor,
            "ef": ef,
            "prefilter": prefilter,
            "text_column": text_column,
            "hybrid": hybrid,
        }
        how = parse_search_options("search", k, options)
        return self._search(self._address(table), vector, text, how, hybrid, VersionSelector(version, tag, as_of))

    def _search(
        self, address: TableAddress, vector: Any, text: Any, how: Search, hybrid: Any, selector: VersionSelector
    ) -> Any:
        queries = search_jobs.parse_queries(vector, text, hybrid)
        pinned = PinnedVersion.resolve(address, selector)
        return search_jobs.search_locally(pinned, queries, how, self._engine.parallelism)

    def explain_search(self, table: TableName, vector: Any = None, k: int = 10, **how: Any) -> str:
        """Return how `search` would find its rows, with the same arguments, and why: by index or by comparing all."""
        selected = [how.pop(name, None) for name in ("version", "tag", "as_of")]
        text, hybrid = how.pop("text", None), how.get("hybrid")
        search, selector = parse_search_options("explain_search", k, how), VersionSelector(*selected)
        return self._explain(self._address(table), vector, text, search, hybrid, selector)

    def _explain(
        self, address: TableAddress, vector: Any, text: Any, how: Search, hybrid: Any, selector: VersionSelector
    ) -> str:
        query_set = search_jobs.parse_queries(vector, text, hybrid)
        ref, dataset = PinnedVersion.resolve(address, selector).open()
        return plan_search(ref, dataset, how, query_set.queries, self._engine.parallelism).explain()

    def recall(
        self,
        table: TableName,
        column: str | None = None,
        queries: int = 100,
        k: int = 10,
        nprobes: Sequence[int] | None = None,
        refine_factor: Sequence[int] | None = None,
        plot: str | None = None,
        keep: bool = True,
    ) -> Any:
        """Measure how many of the `k` nearest rows a search by index finds, and how long it takes, by its effort.

        Queries are vectors of rows that are chosen at random; the row itself, which any search finds, does not count.
        What is nearest is found by comparing all rows. Searches are timed one at a time in this process. The result
        has a row for the default effort, in which both are null, and for each pair of `nprobes` and `refine_factor`:
        `recall`, `median_ms` and `p95_ms`. It is kept with the table, for the console; a warning says so if it cannot,
        as when the caller may not write.

        Args:
            table: id of the table.
            column: the vector column; needed if the table has several.
            queries: number of queries.
            k: number of rows that a search returns.
            nprobes: numbers of partitions to search; by default 1, 5, 20, 50, and all if they are 200 at most.
            refine_factor: multiples of `k` that are compared exactly; by default 1, 5 and 20.
            plot: path of an SVG file to write.
            keep: whether to keep the result with the table, in a version that changes nothing else.

        Raises:
            InvalidInputError: the column has no index, or `plot` is in a folder that does not exist.
        """
        column, file, is_kept = some_text("column", column), some_text("plot", plot), check_flag("keep", keep)
        probes, factors = check_numbers("nprobes", nprobes), check_numbers("refine_factor", refine_factor)
        if file is not None and not Path(file).parent.is_dir():  # said before minutes of measuring
            raise InvalidInputError(f"plot: there is no folder {Path(file).parent}")
        pinned = PinnedVersion.resolve(self._address(table))
        measurement = recall_jobs.measure_recall(self._engine, pinned, column, queries, k, probes, factors)
        if file is not None:
            title = f"{pinned.address}: recall@{k} of {queries} queries"
            Path(file).write_text(recall_jobs.plot_recall(title, measurement), "utf-8")
        if is_kept:
            recall_jobs.keep_recall(pinned, column, queries, k, measurement)
        return self._to_frame(measurement)

    def _to_frame(self, rows: pa.Table) -> Any:
        """Return rows as the caller gets them; a DataFrame with Spark."""
        return rows

    # Computed columns

    def _fill_options(self, how: Mapping[str, Any], where: str | None = None, recompute: bool = False) -> FillOptions:
        return replace(parse_fill_options(how, where, recompute), allowed=self._functions)

    def add_columns(
        self,
        table: TableName,
        columns: Mapping[str, str | Function | Callable[..., Any]] | pa.Schema,
        read_columns: Names | None = None,
        *,
        allow_changed: bool = False,
        **how: Any,
    ) -> int:
        """Add columns that are computed from others, without rewriting existing data; return the version that this
        made.

        Functions that are marked with `@lancehouse.column` define the columns, which `backfill` keeps filled; `how`
        takes the same arguments. Other functions, and SQL, compute the columns once.

        After a failure the same call resumes the work if the functions are the same, including all modules of your own
        that they import, the installed packages, and the files and environment variables that the code names. Otherwise
        it starts over, and a warning says why.

        Args:
            table: id of the table.
            columns: for each new column SQL over the row, or a function that takes an Arrow batch and returns an array;
                either all are SQL, or all are functions. An Arrow schema adds columns that are null.
            read_columns: columns that are passed to functions, all by default.
        """
        if isinstance(columns, pa.Schema) and read_columns is None and not how:
            check_flag("allow_changed", allow_changed)
            return table_changes.add_null_columns(self._address(table), check_schema("columns", columns))
        columns = check_mapping("columns", columns, "new columns, such as {'twice': 'id * 2'}")
        read_columns = some_names("read_columns", read_columns)
        allow_changed = check_flag("allow_changed", allow_changed)
        if not any(map(is_column_function, columns.values())):
            if how:
                raise InvalidInputError(f"{', '.join(how)}: only for functions that @lancehouse.column has marked")
            return columns_jobs.add_columns_once(self._engine, self._address(table), columns, read_columns)
        if read_columns is not None:
            raise InvalidInputError("read_columns: functions that are marked with @column name their inputs there")
        functions = parse_functions(columns)
        self.define_columns(table, functions, allow_changed=allow_changed)
        return self.backfill(table, functions, **how).version

    def define_columns(self, table: TableName, columns: Mapping[str, Any], *, allow_changed: bool = False) -> int:
        """Define computed columns without filling them, or define them anew; return the version of the table.

        Rows that another version of the function made are filled again by the next `backfill`.

        Args:
            table: id of the table.
            columns: for each column a function or class that is marked with `@lancehouse.column`, or SQL over the row.
            allow_changed: accept a function whose code has changed while its version has not.

        Raises:
            InvalidInputError: a column exists that is not computed or has another type, or a function has changed.
        """
        functions, allow_changed = parse_functions(columns), check_flag("allow_changed", allow_changed)
        return columns_jobs.define_columns(self._engine, self._address(table), functions, allow_changed=allow_changed)

    def backfill(
        self,
        table: TableName,
        columns: Names | Mapping[str, Any] | None = None,
        where: str | None = None,
        version: str | None = None,
        recompute: bool = False,
        **how: Any,
    ) -> FillResult:
        """Fill computed columns: rows that nobody has filled, that another version made, or whose inputs changed since.

        Changed inputs are found in tables with stable row ids. After a failure the same call goes on with what is
        computed. Only the data of the columns are written.

        Args:
            table: id of the table.
            columns: names of computed columns, all by default; or a function for each, where the one that defines it
                cannot be imported by its name.
            where: fill only rows that match this condition in Lance's SQL.
            version: fail unless this is the version that defines the columns.
            recompute: fill all rows that `where` selects, also those that are up to date.
            how: `on_error` is `fail`, `null` (a row that fails becomes null) or `skip` (it stays as it is);
                `where_failed=True` fills the rows that have failed; `retries`, `retry_on` (names of exceptions) and
                `backoff_s` repeat calls; `timeout_s` limits a call; `batch_rows` is the size of a call;
                `checkpoint_rows` and `checkpoint_s` say how much a crash may lose; `commit_every` fragments commits
                early; `max_concurrency` limits the calls at once; `resources={"gpu": 1}` asks Spark for executors;
                `optimize_indices=True` adds the rows to the indices on the columns at the end; `report_progress` is
                called with a `FillProgress` every few seconds, in another thread.

        Raises:
            InvalidInputError: a function failed for a row, cannot be imported, or is not the one that defines the
                column.
            ConcurrentModificationError: others kept changing the same rows; the same call goes on.
        """
        if isinstance(columns, Mapping):
            functions: Sequence[str] | Mapping[str, ColumnFunction] | None = parse_functions(columns)
        else:
            functions = some_names("columns", columns)
        how, report = split_report(how)
        options = self._fill_options(how, check_condition("where", where), check_flag("recompute", recompute))
        version = some_text("version", version)
        return columns_jobs.backfill(self._engine, self._address(table), functions, options, version, report)

    def computed_columns(self, table: TableName) -> Any:
        """Return the computed columns of a table: functions, versions, inputs, and how many rows are filled."""
        return self._to_frame(columns_jobs.list_columns(self._address(table).to_ref()))

    def column_errors(self, table: TableName, column: str, columns: Names = ()) -> Any:
        """Return the rows for which the function of a column has failed: row id, state, version and exception.

        Args:
            table: id of the table.
            column: the computed column.
            columns: further columns of the rows, such as their keys.
        """
        ref, keys = self._address(table).to_ref(), check_names("columns", columns)
        return self._to_frame(read_failed_rows(ref, check_text("column", column), keys))

    # Materialized views

    def create_materialized_view(
        self,
        view: TableName,
        source: TableName,
        function: Any = None,
        columns: Names | Mapping[str, str] = (),
        where: str | None = None,
        **how: Any,
    ) -> RefreshResult:
        """Create a table whose rows are made of those of another, which `refresh` brings up to date.

        Called again with another version of the function, it makes all rows again.

        Args:
            view: id of the new table.
            source: id of the table that it is made of, which has stable row ids.
            function: a function or class that is marked with `@lancehouse.column` and returns a list for each row,
                whose items become rows; the fields of structs become columns. Without one, a row becomes one row.
            columns: columns of the source to take along, or SQL over its rows by name.
            where: take only rows of the source that match.
            how: see `backfill`: `batch_rows`, `retries`, `max_concurrency` and so on.

        Raises:
            TableAlreadyExistsError: there is a table that is no view, or a view with other columns.
        """
        if isinstance(columns, Mapping):
            expressions = dict(check_mapping("columns", columns, "columns and SQL, such as {'id': 'id'}"))
        else:
            expressions = {name: quote_name(name) for name in check_names("columns", columns)}
        column_function = None if function is None else ColumnFunction.of(function)
        how, report = split_report(how)
        options = self._fill_options(how)
        ids = self._address(check_table("view", view)), self._address(check_table("source", source))
        condition = check_condition("where", where)
        return views.create_view(self._engine, *ids, expressions, column_function, condition, options, report)

    def view_errors(self, view: TableName, columns: Names = ()) -> Any:
        """Return the rows of its source that a view leaves out, since its function failed: row id, version, exception.

        Args:
            view: id of the view.
            columns: columns of the source's rows to return, such as their keys.
        """
        address, keys = self._address(check_table("view", view)), check_names("columns", columns)
        return self._to_frame(views.list_view_errors(address, keys))

    def refresh(self, view: TableName, function: Any = None, **how: Any) -> RefreshResult:
        """Make the rows of a view again that came of rows which are new, changed or deleted since.

        Args:
            view: id of the view.
            function: its function, where it cannot be imported by its name.
            how: see `backfill`.
        """
        column_function = None if function is None else ColumnFunction.of(function)
        how, report = split_report(how)
        address, options = self._address(check_table("view", view)), self._fill_options(how)
        return views.refresh_view(self._engine, address, column_function, options, report)

    def lineage(self, table: TableName) -> Any:
        """Return what the computed columns of a table come from, and the table itself if it is a view, upwards."""
        return self._to_frame(views.list_lineage(self._address(table)))

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
            how: `nullable=False` keeps the nullability of the source's columns in a new table;
                `max_rows_per_file`, `max_bytes_per_file` and `data_storage_version` are Lance's; `run` names the run:
                repeating a run changes nothing; `schema_mode="evolve"` adds columns that the table lacks, and widens
                types, in mode `append`.

        Raises:
            InvalidInputError: a file cannot be read, or the format has no such option.
            TableSchemaValidationError: the columns do not fit the table.
        """
        write_options = parse_write_options("ingest", how)
        return ingest.ingest(
            self._engine,
            self._address(table),
            source,
            format=some_text("format", format),
            mode=check_text("mode", mode),
            columns=some_names("columns", columns),
            options=check_mapping("options", options or {}, "options, such as {'delimiter': ';'}"),
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
        return self._run_on(table, namespace, lambda address: compaction.compact(self._engine, address, options))

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
        return index_building.create_index(
            self._engine,
            self._address(table),
            check_text("column", column),
            check_text("kind", kind),
            some_text("name", name),
            check_flag("replace", replace),
            params,
        )

    def indices(self, table: TableName) -> list[dict[str, Any]]:
        """Return the indices of a table: their names, columns, types, and how many rows they cover and do not."""
        pages = self._calls.pages("list_table_indices", self._address(table).id)
        return [table_changes.describe_index(index) for page in pages for index in page.indexes]

    def drop_index(self, table: TableName, name: str) -> None:
        """Drop an index.

        Raises:
            TableIndexNotFoundError: there is none of that name.
        """
        self._calls.call("drop_table_index", self._address(table).id, index_name=check_text("name", name))

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
        names, retrain = some_names("names", names), check_flag("retrain", retrain)
        return self._run_on(
            table,
            namespace,
            lambda address: index_building.optimize_indices(self._engine, address, names, retrain=retrain),
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
        dry_run = check_flag("dry_run", dry_run)
        return self._run_on(
            table, namespace, lambda address: orphans.run_cleanup(self._engine, address, older_than, dry_run=dry_run)
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
        flags = {"dry_run": check_flag("dry_run", dry_run), "no_writers": check_flag("no_writers", no_writers)}
        return self._run_on(
            table, namespace, lambda address: orphans.run_removal(self._engine, address, older_than, **flags)
        )

    def _run_on(self, table: TableName | None, namespace: TableName | None, work: Callable[[TableAddress], T]) -> Any:
        """Return the result of a table; or for a namespace that of each table below it, or its error, by the id.

        The failure of one table does not stop the others.

        Raises:
            JobCancelledError: the caller cancelled the job; tables that were done stay done.
        """
        if (table is None) == (namespace is None):
            raise InvalidInputError('name a table, or a namespace with namespace=; namespace="" is the whole catalog')
        if table is not None:
            return work(self._address(table))
        outcomes: dict[str, T | LanceNamespaceError] = {}
        for address in list_tables(self._connection, self._namespace_id("namespace", namespace)):
            try:
                outcomes[format_levels(address.id)] = work(address)
            except JobCancelledError:
                raise
            except LanceNamespaceError as error:
                outcomes[format_levels(address.id)] = error
        return outcomes


def measure_largest_table(connection: Connection | LanceNamespace, namespace: Sequence[str]) -> int:
    """Return the size in bytes of the data files of the largest table in a namespace and below it."""
    return max((measure_table(address) for address in list_tables(connection, namespace)), default=0)


def measure_table(address: TableAddress) -> int:
    """Return the size in bytes of a table's data files; 0 if it cannot be read, which the job itself will report."""
    try:
        totals = address.to_ref().open().get_version()["metadata"]
    except LanceNamespaceError:
        return 0
    return int(totals.get("total_files_size", 0))


# Validation of arguments: each function returns the value if it is valid, and names the argument in its error if not


def check_text(name: str, value: Any) -> str:
    """Return a text.

    Raises:
        InvalidInputError: it is not a text. The functions below raise the same for what they check.
    """
    if not isinstance(value, str):
        raise _wrong_type(name, "a text", value)
    return value


def some_text(name: str, value: Any) -> str | None:
    """Return a text, or None."""
    return None if value is None else check_text(name, value)


def check_flag(name: str, value: Any) -> bool:
    """Return a boolean."""
    if not isinstance(value, bool):
        raise _wrong_type(name, "True or False", value)
    return value


def check_levels(name: str, value: Any) -> tuple[str, ...]:
    """Return the levels of a namespace that is given as a list or as text; no levels mean the whole catalog."""
    levels = parse_levels(value) if isinstance(value, str) else tuple(value) if isinstance(value, Iterable) else None
    if levels is None or not all(isinstance(level, str) for level in levels):
        raise _wrong_type(name, "text such as 'wh.db', or a list of levels", value)
    return levels


def check_arguments(value: Any) -> dict[str, Any] | list[Any] | None:
    """Return the values of the parameters of a statement: by name, in order, or none."""
    if value is None:
        return None
    is_named = isinstance(value, Mapping) and all(isinstance(name, str) for name in value)
    if not is_named and (isinstance(value, str | Mapping) or not isinstance(value, Sequence)):
        raise _wrong_type("args", "values by name, such as {'id': 5}, or a list of them", value)
    arguments = dict(value) if is_named else list(value)
    for name, argument in arguments.items() if isinstance(arguments, dict) else enumerate(arguments):
        if not _is_argument(argument):
            raise InvalidInputError(
                f"args: {name} is {type(argument).__name__}, or has such a value, for which SQL has none; integers "
                "have 64 bits there: give a Decimal for larger ones"
            )
    return arguments


_ARGUMENTS = (str, bytes, bytearray, Number, date, time, timedelta, np.generic, np.ndarray)
"""Types of values of parameters, beside lists and maps of them; `Number` has booleans and decimals too."""


def _is_argument(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_argument, value))
    if isinstance(value, Mapping):
        return all(map(_is_argument, (*value, *value.values())))
    if isinstance(value, int):
        return -LARGEST - 1 <= value <= LARGEST
    return value is None or isinstance(value, _ARGUMENTS) or type(value).__module__.startswith("pyspark.")


def check_table(name: str, value: Any) -> TableName:
    """Return the id of a table."""
    if not isinstance(value, str | Sequence) or not all(isinstance(level, str) for level in value):
        raise _wrong_type(name, "a table, such as 'wh.db.docs'", value)
    return value


def check_blobs(value: Any) -> str:
    """Return how blobs are read, checked."""
    if value not in BLOB_FORMS:
        raise _wrong_type("blobs", " or ".join(BLOB_FORMS), value)
    return str(value)


def check_condition(name: str, value: Any) -> str | None:
    """Return a condition in SQL, or None."""
    if value is not None and not isinstance(value, str):
        raise _wrong_type(name, "a condition in SQL, as a text", value)
    return value


def check_names(name: str, value: Any) -> tuple[str, ...]:
    """Return one name or several as a tuple."""
    names = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, Iterable) else None
    if names is None or not all(isinstance(item, str) for item in names):
        raise _wrong_type(name, "the name of a column, or a list of names", value)
    return names


def some_names(name: str, value: Any) -> tuple[str, ...] | None:
    """Return one name or several as a tuple, or None."""
    return None if value is None else check_names(name, value)


def check_number(name: str, value: Any) -> int | None:
    """Return a 64-bit integer, or None."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or abs(value) > LARGEST):
        raise _wrong_type(name, "a whole number", value)
    return value


def check_numbers(name: str, value: Any) -> list[int] | None:
    """Return one number or several as a list, or None."""
    if value is None:
        return None
    numbers: list[Any] = [value] if isinstance(value, int) else list(value) if isinstance(value, Iterable) else []
    if not numbers or not all(isinstance(number, int) and not isinstance(number, bool) for number in numbers):
        raise _wrong_type(name, "a whole number, or a list of such", value)
    return numbers


def check_mapping(name: str, value: Any, expected: str) -> Mapping[str, Any]:
    """Return a mapping whose keys are texts."""
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise _wrong_type(name, expected, value)
    return value


def check_properties(name: str, value: Any, expected: str = "texts by name, such as {'owner': 'me'}") -> dict[str, str]:
    """Return a mapping of texts to texts."""
    if not all(isinstance(text, str) for text in check_mapping(name, value, expected).values()):
        raise _wrong_type(name, expected, value)
    return dict(value)


def check_schema(name: str, value: Any) -> pa.Schema:
    """Return columns that are given as an Arrow schema, as DDL text or as a StructType of Spark."""
    try:
        return parse_schema(value)
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        expected = "columns, as an Arrow schema or as text such as 'id bigint, name string'"
        raise _wrong_type(name, expected, value) from error


def parse_alterations(changes: Any) -> dict[str, tuple[pa.DataType | None, bool | None]]:
    """Return the new type and nullability of columns, where they are given."""
    expected = "changes of columns, such as {'id': {'type': 'bigint', 'nullable': True}}"
    parsed = {}
    for column, change in check_mapping("changes", changes, expected).items():
        check_mapping(f"changes: {column}", change, "{'type': …, 'nullable': …}")
        if not change or {*change} - {"type", "nullable"}:
            raise _wrong_type(f"changes: {column}", "{'type': …, 'nullable': …}, or one of them", change)
        dtype, nullable = change.get("type"), change.get("nullable")
        if dtype is not None and not isinstance(dtype, str | pa.DataType):
            raise _wrong_type(f"changes: {column}: type", "a type, of Arrow or as text such as 'bigint'", dtype)
        new_type: pa.DataType | None = None if dtype is None else parse_field(column, dtype).type
        flag = None if nullable is None else check_flag(f"changes: {column}: nullable", nullable)
        parsed[column] = (new_type, flag)
    return parsed


C = TypeVar("C", bound=Collection[Any])


def _require_any(columns: C) -> C:
    """Return columns, after a check that there is at least one."""
    if not columns:
        raise InvalidInputError("columns: name at least one")
    return columns


def check_expressions(value: Any) -> Mapping[str, str]:
    """Return the SQL expressions that `update` sets columns to."""
    for column, expression in check_mapping("set", value, "columns and SQL, such as {'price': 'price * 2'}").items():
        if callable(expression):
            raise InvalidInputError(
                f"set: {column} is a function, and update takes SQL over the row; compute a column with add_columns, "
                "or merge a DataFrame that has the new values"
            )
        if not isinstance(expression, str):
            raise _wrong_type(f"set: {column}", f"SQL, as a text such as {str(expression)!r}", expression)
    checked: Mapping[str, str] = value
    return checked


def check_frame(value: Any) -> Any:
    """Return a DataFrame of Spark."""
    if not callable(getattr(value, "mapInArrow", None)):
        raise _wrong_type("df", "a DataFrame of Spark (spark.createDataFrame makes one)", type(value))
    return value


def check_arrow(value: Any) -> pa.Table:
    """Return rows in memory as an Arrow table."""
    if isinstance(value, pa.RecordBatchReader):
        return value.read_all()
    if not isinstance(value, pa.Table):
        raise _wrong_type("rows", "an Arrow table", type(value))
    return value


def _check_argument_names(call: str, arguments: Mapping[str, Any], names: Collection[str]) -> None:
    for name in arguments:
        if name not in names:
            raise InvalidInputError(f"{call} has no argument {name!r}; {suggest(name, names)}")


_SEARCH_ARGUMENTS = (
    "column",
    "filter",
    "columns",
    "metric",
    "nprobes",
    "refine_factor",
    "ef",
    "prefilter",
    "text_column",
    "hybrid",
)


def parse_search_options(call: str, k: Any, arguments: Mapping[str, Any]) -> Search:
    """Return how to search, from the keyword arguments of `search`.

    Args:
        call: name of the method, for errors.
        k: number of rows.
        arguments: the keyword arguments.
    """
    _check_argument_names(call, arguments, _SEARCH_ARGUMENTS)
    effort = SearchEffort(*(arguments.get(name) for name in ("nprobes", "refine_factor", "ef")))
    require_count("k", k)
    effort.check(k)
    return Search(
        int(k),
        column=some_text("column", arguments.get("column")),
        text_column=some_text("text_column", arguments.get("text_column")),
        filter=check_condition("filter", arguments.get("filter")),
        columns=some_names("columns", arguments.get("columns")),
        metric=some_text("metric", arguments.get("metric")),
        effort=effort,
        prefilter=check_flag("prefilter", arguments.get("prefilter", True)),
        weights=search_jobs.parse_weights(arguments.get("hybrid")),
    )


def parse_merge_rules(when_matched: Any, when_not_matched: Any, delete_by_source: Any) -> MergeRules:
    """Return the rules of a merge."""
    matched, not_matched = (
        check_text("when_matched", when_matched),
        check_text("when_not_matched", when_not_matched),
    )
    return MergeRules(matched, not_matched, check_flag("delete_by_source", delete_by_source))


def parse_write_options(call: str, arguments: Mapping[str, Any]) -> WriteOptions:
    """Return write options from the keyword arguments that all writes share.

    Args:
        call: name of the method, for errors.
        arguments: the keyword arguments.
    """
    for name in arguments:
        if call == "ingest" and name in ALL_OPTIONS:
            raise InvalidInputError(f"{name} is an option of the format: give it as options={{{name!r}: …}}")
    _check_argument_names(call, arguments, _WRITE_ARGUMENTS)
    vectors = check_mapping(
        "vector_columns", arguments.get("vector_columns") or {}, "columns and dimensions: {'emb': 128}"
    )
    for column, dimension in vectors.items():
        if not (isinstance(dimension, int) and dimension > 0):
            raise _wrong_type(f"vector_columns: {column}", "the number of values in a vector", dimension)
    layout = FileLayout(
        check_number("max_rows_per_file", arguments.get("max_rows_per_file")),
        check_number("max_bytes_per_file", arguments.get("max_bytes_per_file")),
        some_text("data_storage_version", arguments.get("data_storage_version")),
    )
    nullable = arguments.get("nullable", True)
    if not isinstance(nullable, bool):
        raise _wrong_type("nullable", "True, or False to keep what the rows say of nulls", nullable)
    schema_mode = arguments.get("schema_mode", "fixed")
    if schema_mode not in SCHEMA_MODES:
        raise _wrong_type("schema_mode", " or ".join(SCHEMA_MODES), schema_mode)
    evolves = bool(schema_mode == "evolve")
    if evolves and call not in _EVOLVING:
        raise InvalidInputError(f"schema_mode: columns evolve by {', '.join(_EVOLVING)}, not by {call}")
    return WriteOptions(vectors, layout, some_text("run", arguments.get("run")), nullable=nullable, evolves=evolves)


def parse_functions(columns: Any) -> dict[str, ColumnFunction]:
    """Return the functions of computed columns, by their names."""
    functions = check_mapping("columns", columns, "columns and functions, such as {'embedding': Embed}")
    return {name: ColumnFunction.of(function) for name, function in functions.items()}


_ON_ERROR = ("fail", "null", "skip")
_FILL_FLAGS = ("optimize_indices", "where_failed")
_FILL_NUMBERS = {
    "batch_rows": (int, "a number of rows"),
    "checkpoint_rows": (int, "a number of rows"),
    "checkpoint_s": (int | float, "seconds"),
    "commit_every": (int, "a number of fragments"),
    "max_concurrency": (int, "a number of calls"),
    "retries": (int, "how often a call is repeated"),
    "backoff_s": (int | float, "seconds"),
    "timeout_s": (int | float, "seconds"),
}


def split_report(arguments: Mapping[str, Any]) -> tuple[dict[str, Any], ReportFill | None]:
    """Return the arguments of `backfill` without `report_progress`, and this."""
    rest = dict(arguments)
    report = rest.pop("report_progress", None)
    if report is not None and not callable(report):
        raise _wrong_type("report_progress", "a function", report)
    return rest, report


def parse_fill_options(arguments: Mapping[str, Any], where: str | None, recompute: bool) -> FillOptions:
    """Return the options of `backfill` from its keyword arguments."""
    _check_argument_names("backfill", arguments, (*_FILL_FLAGS, *_FILL_NUMBERS, "on_error", "retry_on", "resources"))
    options = {name: value for name, value in arguments.items() if value is not None}
    for name, value in options.items():
        if name in _FILL_FLAGS:
            check_flag(name, value)
        elif name in _FILL_NUMBERS:
            kind, expected = _FILL_NUMBERS[name]
            least = 0 if name in ("retries", "backoff_s") else 1e-3
            if isinstance(value, bool) or not isinstance(value, kind) or not least <= value < LARGEST:
                raise _wrong_type(name, expected, value)
    if options.get("on_error", "fail") not in _ON_ERROR:
        raise _wrong_type("on_error", f"one of {', '.join(_ON_ERROR)}", options["on_error"])
    value = options.pop("retry_on", ())
    exceptions = [value] if isinstance(value, str | type) else list(value) if isinstance(value, Iterable) else [value]
    if not all(isinstance(item, str | type) for item in exceptions):
        raise _wrong_type("retry_on", "exceptions, or their names", value)
    names = tuple(item.__name__ if isinstance(item, type) else item for item in exceptions)
    rules = {name: options.pop(name) for name in ("on_error", "retries", "backoff_s", "timeout_s") if name in options}
    resources = check_mapping("resources", options.pop("resources", {}), "amounts, such as {'gpu': 1}")
    if any(isinstance(amount, bool) or not isinstance(amount, int | float) for amount in resources.values()):
        raise _wrong_type("resources", "amounts, such as {'gpu': 1}", resources)
    call_rules = CallRules(retry_on=names, **rules)
    return FillOptions(where, recompute, rules=call_rules, resources=resources, **options)


def _wrong_type(name: str, expected: str, value: Any) -> InvalidInputError:
    return InvalidInputError(f"{name} must be {expected}, not {value!r}")
