"""Run the statements of `cat.sql` that are no queries: changes, definitions of tables, SHOW, DESCRIBE and so on."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
from lance_namespace import DescribeNamespaceRequest
from lance_namespace.errors import (
    InvalidInputError,
    NamespaceNotFoundError,
    TableAlreadyExistsError,
    TableColumnNotFoundError,
    TableNotFoundError,
    TableSchemaValidationError,
    UnsupportedOperationError,
)
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType
from sqlglot import exp

from lancehouse.identifiers import format_levels, parse_levels, quote_name
from lancehouse.jobs.address import TableAddress, get_client
from lancehouse.jobs.job import ChangeResult, WriteOptions
from lancehouse.jobs.table_changes import replace_properties, set_properties
from lancehouse.lake.commits import count_rows_added, locate_table
from lancehouse.lake.dataset import read_tags
from lancehouse.schema.blob_references import is_blob
from lancehouse.schema.definitions import COMPANION
from lancehouse.schema.spark import from_ddl, from_spark, parse_schema, to_spark, with_vectors
from lancehouse.secrets import redact_properties
from lancehouse.spark import row_statements, table_writer
from lancehouse.spark import statement_parser as sql
from lancehouse.spark.conditions import Condition, Constants, Translator
from lancehouse.spark.queries import parse_time, read_settings, spark_message
from lancehouse.spark.query_text import QueryText, name_positional
from lancehouse.spark.row_statements import RunQuery, assign, resolve_column
from lancehouse.spark.session import to_local_frame, to_struct
from lancehouse.spark.table_names import new_table_levels, resolve_table
from lancehouse.spark.table_reader import MOST_ROWS

if TYPE_CHECKING:
    from lancehouse.spark.catalog import LanceCatalog

Levels = tuple[str, ...]
Rows = Sequence[Sequence[Any]]
Change = TypeVar("Change", sql.UpdateRows, sql.DeleteRows, sql.MergeRows)
Text = TypeVar("Text", str, str | None)

VACUUM_HOURS = 14 * 24
"""Age in hours up to which VACUUM keeps old versions by default. That of lance-spark removes all of them."""
INDEX_KINDS = {"FTS": "INVERTED"}
"""Names of indices that differ between lance-spark and Lance."""

VECTOR, HALF, LARGE, ENCODING = (
    "arrow.fixed-size-list.size",
    "arrow.float16",
    "arrow.large_var_char",
    "lance.encoding",
)
_BLOB = b"lance-encoding:blob"
"""Key of a column's metadata by which Lance stores its values as blobs."""
_COLUMN_PROPERTY = re.compile(r"(?P<column>.+)\.(?P<key>(?:arrow|lance)\.[\w-]+(?:\.[\w-]+)*)")


def run_statement(
    catalog: LanceCatalog,
    text: str,
    args: Mapping[str, Any] | Sequence[Any] | None = None,
    blobs: str = "bytes",
) -> DataFrame:
    """Run a statement that is no query; return its result, such as the number of rows that it has changed.

    Args:
        catalog: the catalog that names in the text belong to.
        text: the statement.
        args: values of its parameters, by name or in order.
        blobs: how queries in it read blobs, see `LanceCatalog.read`.

    Raises:
        UnsupportedOperationError: a clause that is not supported; nothing was written.
        InvalidInputError: it is no statement; nothing was written.
        LanceNamespaceError: what the method behind it raises.
    """
    text, arguments = name_positional(text, args)
    return _Runner(catalog, arguments or {}, blobs).run(sql.parse_statement(text, arguments or {}))


class _Runner:
    """Runs one statement."""

    def __init__(self, catalog: LanceCatalog, args: Mapping[str, Any], blobs: str) -> None:
        self._catalog, self._spark, self._args, self._blobs = catalog, catalog.spark, args, blobs

    def run(self, statement: sql.Statement) -> DataFrame:
        """Run a statement by its class."""
        runs: Mapping[type[Any], Callable[[Any], DataFrame]] = {
            sql.InsertRows: self._insert,
            sql.UpdateRows: self._update,
            sql.DeleteRows: self._delete,
            sql.MergeRows: self._merge,
            sql.DefineTable: self._create_table,
            sql.CreateView: self._create_view,
            sql.AddColumns: self._add_columns,
            sql.DropColumns: self._drop_columns,
            sql.RenameColumn: self._rename_column,
            sql.AlterColumn: self._alter_column,
            sql.SetProperties: self._set_properties,
            sql.UnsetProperties: self._unset_properties,
            sql.MoveTable: self._rename_table,
            sql.DropTable: self._drop_table,
            sql.Truncate: self._truncate,
            sql.CreateNamespace: self._create_namespace,
            sql.DropNamespace: self._drop_namespace,
            sql.Use: self._use,
            sql.ShowNames: self._show_names,
            sql.ShowOfTable: self._show_of_table,
            sql.Describe: self._describe,
            sql.DescribeNamespace: self._describe_namespace,
            sql.DescribeQuery: self._describe_query,
            sql.DescribeHistory: self._describe_history,
            sql.Optimize: self._optimize,
            sql.Vacuum: self._vacuum,
            sql.CreateIndex: self._create_index,
            sql.DropIndex: self._drop_index,
            sql.CreateRef: self._create_ref,
            sql.DropRef: self._drop_ref,
            sql.Restore: self._restore,
        }
        try:
            return runs[type(statement)](statement)
        except (ParseException, AnalysisException) as error:  # of a query or expression inside, before it was run
            raise InvalidInputError(spark_message(error)) from error

    # Names

    def _find(self, name: sql.Name) -> tuple[LanceCatalog, Levels]:
        """Return the catalog and the levels of an existing table.

        Raises:
            TableNotFoundError: there is none.
            UnsupportedOperationError: it is a table or a view of Spark.
        """
        if (table := resolve_table(self._catalog, name)) is None:
            raise UnsupportedOperationError(
                f"{format_levels(name)} is a table or view of Spark, not of this catalog: use spark.sql for it"
            )
        return table[0], tuple(table[1])

    def _find_if_exists(self, name: sql.Name, *, if_exists: bool) -> tuple[LanceCatalog, Levels] | None:
        try:
            return self._find(name)
        except TableNotFoundError:
            if if_exists:
                return None
            raise

    def _namespace(self, name: sql.Name | None) -> tuple[LanceCatalog, Levels]:
        """Return the catalog and the levels of a namespace, by default the one in use."""
        if name is None:
            return self._catalog, self._catalog.current_namespace
        if (other := self._catalog.attached.get(name[0])) is not None:
            return other, name[1:]
        return self._catalog, name

    def _address(self, name: sql.Name) -> TableAddress:
        owner, levels = self._find(name)
        return owner._address(levels)

    # Queries and results

    def _query(self, text: str) -> DataFrame:
        return self._catalog.sql(text, dict(self._args) or None, self._blobs)

    def _run_for(self, expressions: Sequence[str | None]) -> RunQuery:
        """Return what runs a query with some expressions: only subqueries may name tables of catalogs."""
        if any(sql.has_subquery(expression) for expression in expressions if expression is not None):
            return self._query
        return lambda text: self._spark.sql(text, dict(self._args) or None)

    def _result(self, columns: str, rows: Rows) -> DataFrame:
        schema = parse_schema(columns)
        records = [dict(zip(schema.names, row, strict=True)) for row in rows]
        return to_local_frame(self._spark, pa.Table.from_pylist(records, schema))  # which Spark collects without a job

    def _nothing(self) -> DataFrame:
        return self._spark.createDataFrame([], StructType([]))

    # Rows

    def _insert(self, statement: sql.InsertRows) -> DataFrame:
        owner, levels = self._find(statement.table)
        address = owner._address(levels)
        rows = self._query(statement.query)
        if statement.replace_where is not None:
            where, alias = sql.shorten_qualifiers(statement.replace_where, levels), statement.table[-1]
            condition = self._translate(read_columns(owner, levels), where, alias)
            plan = row_statements.plan_replace_where(
                self._spark,
                self._run_for([where]),
                alias,
                where,
                None if condition is None else condition.sql,
                lambda schema: self._fit(rows, schema, statement),
            )
            change = row_statements.change_rows(address, plan)
            counts = [change.inserted + change.deleted, change.inserted, change.deleted]
            return self._result("num_affected_rows long, num_inserted_rows long, num_deleted_rows long", [counts])
        schema: pa.Schema = address.to_ref().open().schema
        if statement.overwrite:
            version = table_writer.overwrite(self._fit(rows, schema, statement), address, WriteOptions(), schema)
        else:
            version = owner.append(self._fit(rows, schema, statement), levels)
        count = count_rows_added(address.to_ref(), version) or 0
        return self._result("num_affected_rows long, num_inserted_rows long", [[count, count]])

    def _fit(self, rows: DataFrame, schema: pa.Schema, statement: sql.InsertRows) -> DataFrame:
        """Return rows in columns of a table, by position unless the statement says otherwise; others become null.

        Args:
            rows: the rows.
            schema: columns of the table.
            statement: says which columns they are.
        """
        columns = [name for name in schema.names if not name.startswith(COMPANION)]
        if statement.by_name:
            names = [resolve_column(self._spark, schema, name) for name in rows.columns]
        elif statement.columns is not None:
            names = [resolve_column(self._spark, schema, name) for name in statement.columns]
        else:
            names = columns
        if len(names) != len(rows.columns):
            raise TableSchemaValidationError(
                f"INSERT: the query has {len(rows.columns)} columns, and {len(names)} are expected: {', '.join(names)}"
            )
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise InvalidInputError(f"INSERT: {', '.join(twice)} is named twice")
        plain = rows.toDF(*(f"__lh_{number}" for number in range(len(names))))
        return plain.select(*(assign(plain, f"__lh_{number}", schema, name) for number, name in enumerate(names)))

    def _delete(self, statement: sql.DeleteRows) -> DataFrame:
        owner, levels = self._find(statement.table)
        statement = shorten_qualifiers(statement, levels)
        where, alias = statement.where, statement.alias or statement.table[-1]
        if where is None:
            return self._report_affected(owner.delete(levels, "true").deleted)
        condition = self._translate(read_columns(owner, levels), where, alias)
        if condition is not None and condition.is_exact:
            return self._report_affected(owner.delete(levels, condition.sql).deleted)
        filter_ = None if condition is None else condition.sql
        plan = row_statements.plan_delete(self._spark, self._run_for([where]), alias, where, filter_)
        return self._report_affected(row_statements.change_rows(owner._address(levels), plan, where).deleted)

    def _update(self, statement: sql.UpdateRows) -> DataFrame:
        owner, levels = self._find(statement.table)
        statement = shorten_qualifiers(statement, levels)
        where, alias = statement.where, statement.alias or statement.table[-1]
        schema = read_columns(owner, levels)
        condition = Condition("true") if where is None else self._translate(schema, where, alias)
        columns = row_statements.resolve_assignments(
            self._spark, schema, statement.assignments, (alias, statement.table)
        )
        values = {name: self._translate_literal(schema.field(name), value) for name, value in columns.items()}
        if condition is not None and condition.is_exact and None not in values.values():
            literals = {name: value for name, value in values.items() if value is not None}
            return self._report_affected(owner.update(levels, literals, condition.sql).updated)
        filter_ = None if condition is None or where is None else condition.sql
        run = self._run_for([where, *columns.values()])
        plan = row_statements.plan_update(
            self._spark, run, alias, statement.table, statement.assignments, where, filter_
        )
        return self._report_affected(row_statements.change_rows(owner._address(levels), plan).updated)

    def _translate(self, schema: pa.Schema, where: str, alias: str, *, qualified: bool = False) -> Condition | None:
        """Translate a condition, or a part of it, on a table to Lance's SQL.

        Args:
            schema: columns of the table.
            where: the condition.
            alias: name of the table in it.
            qualified: whether only names that begin with the alias are columns of the table.
        """
        settings = read_settings(self._spark)
        query = self._parse_query(f"SELECT 1 FROM t WHERE ({where})")  # noqa: S608
        if query is None:
            return None

        def fold(name: str) -> str:
            return name if settings.is_case_sensitive else name.lower()

        names = {fold(name): name for name in schema.names}

        def resolve(column: exp.Column) -> str | None:
            qualifier = [part.name for part in column.parts[:-1]]
            is_own = not qualified if not qualifier else list(map(fold, qualifier)) == [fold(alias)]
            return names.get(fold(column.name)) if is_own else None

        constants = Constants(query.plain_strings(), self._args, settings.zone)
        return Translator(schema, resolve, constants).translate(query.tree.args["where"].this)

    def _parse_query(self, text: str) -> QueryText | None:
        """Parse a query; None if it is not certain that Spark reads it in the same way."""
        if read_settings(self._spark).is_odd:
            return None
        try:
            query = QueryText(text)
        except InvalidInputError:
            return None
        return query if query.is_plain and isinstance(query.tree.args.get("where"), exp.Where) else None

    def _translate_literal(self, column: pa.Field[Any], value: str) -> str | None:
        """Return a literal in Lance's SQL; None if the value is none, or another type than the column's."""
        query = self._parse_query(f"SELECT 1 FROM t WHERE ({value})")  # noqa: S608
        if query is None or isinstance(column.type, pa.BaseExtensionType) or is_blob(column):
            return None
        node = query.tree.args["where"].this.unnest()
        if isinstance(node, exp.Null):
            return "NULL"
        constants = Constants(query.plain_strings(), self._args, None)
        constant = constants.value(node)
        if isinstance(constant, str) and not pa.types.is_string(column.type):
            return None  # Spark stores no text as another type
        return Translator(pa.schema([column]), lambda _: None, constants)._literal(column.type, constant)

    def _report_affected(self, count: int) -> DataFrame:
        return self._result("num_affected_rows long", [[count]])

    def _merge(self, statement: sql.MergeRows) -> DataFrame:
        owner, levels = self._find(statement.table)
        statement = shorten_qualifiers(statement, levels)
        if statement.evolves:
            row_statements.add_source_columns(owner._address(levels), self._query, statement)
        expressions = [statement.on, *(clause.condition for clause in statement.clauses)]
        expressions += [value for clause in statement.clauses for _, value in clause.assignments or ()]
        # Rows that the source cannot match need not be read, unless a clause is about them.
        by_source = any(clause.rows == sql.BY_SOURCE for clause in statement.clauses)
        alias, schema = statement.alias or statement.table[-1], read_columns(owner, levels)
        condition = None if by_source else self._translate(schema, statement.on, alias, qualified=True)
        filter_ = None if condition is None else condition.sql
        plan = row_statements.plan_merge(
            self._spark, self._run_for(expressions), self._query, statement, filter_, owner.driver_bytes
        )
        change: ChangeResult = row_statements.change_rows(owner._address(levels), plan)
        counts = [change.updated, change.deleted, change.inserted]
        return self._result(
            "num_affected_rows long, num_updated_rows long, num_deleted_rows long, num_inserted_rows long",
            [[sum(counts), *counts]],
        )

    def _truncate(self, statement: sql.Truncate) -> DataFrame:
        owner, levels = self._find(statement.table)
        owner.delete(levels, "true")
        return self._nothing()

    # Tables

    def _create_table(self, statement: sql.DefineTable) -> DataFrame:
        owner, levels = new_table_levels(self._catalog, statement.table)
        exists = owner.exists(levels)
        if exists and statement.if_not_exists:
            return self._nothing()
        if exists and not statement.replaces:
            raise TableAlreadyExistsError(f"{format_levels(levels)} exists; write IF NOT EXISTS, or OR REPLACE")
        if not exists and not statement.creates:
            raise TableNotFoundError(f"there is no table {format_levels(levels)}; write CREATE OR REPLACE TABLE")
        options, properties = split_properties(statement.properties)
        if statement.comment is not None:
            properties["comment"] = statement.comment
        if statement.query is not None:
            self._create_as(owner, levels, self._query(statement.query), options, properties, replaces=exists)
            return self._nothing()
        if statement.like is not None:
            schema: pa.Schema = read_columns(*self._find(statement.like))
        else:
            struct: Any = from_ddl(f"struct<{statement.columns}>")
            schema = from_spark(struct)
        schema = apply_column_properties(schema, options)
        if not exists:
            owner.create_table(levels, schema, properties=properties)
            return self._nothing()
        empty = self._spark.createDataFrame([], to_struct(to_spark(schema)))
        table_writer.overwrite(empty, owner._address(levels), WriteOptions(), schema)
        replace_properties(owner._address(levels), properties)
        return self._nothing()

    def _create_as(
        self,
        owner: LanceCatalog,
        levels: Levels,
        rows: DataFrame,
        options: Mapping[str, Mapping[str, str]],
        properties: Mapping[str, str],
        *,
        replaces: bool,
    ) -> None:
        before = owner._address(levels).to_ref().open().schema if replaces else None
        schema = table_writer.new_table_schema(rows.schema.jsonValue(), WriteOptions(), before)
        schema = apply_column_properties(schema, options)
        write = table_writer.overwrite if replaces else table_writer.create
        write(rows, owner._address(levels), WriteOptions(), schema)
        store = replace_properties if replaces else set_properties
        store(owner._address(levels), properties)

    def _create_view(self, statement: sql.CreateView) -> DataFrame:
        frame = self._query(statement.query)
        name = quote_name(statement.name)
        if statement.replaces:
            frame.createOrReplaceTempView(name)
        else:
            frame.createTempView(name)
        return self._nothing()

    def _add_columns(self, statement: sql.AddColumns) -> DataFrame:
        owner, levels = self._find(statement.table)
        struct: Any = from_ddl(f"struct<{statement.columns}>")
        owner.add_columns(levels, from_spark(struct))
        return self._nothing()

    def _drop_columns(self, statement: sql.DropColumns) -> DataFrame:
        owner, levels = self._find(statement.table)
        columns = [self._column_of(owner, levels, name, missing_ok=statement.if_exists) for name in statement.columns]
        if existing := [name for name in columns if name is not None]:
            owner.drop_columns(levels, existing)
        return self._nothing()

    def _rename_column(self, statement: sql.RenameColumn) -> DataFrame:
        owner, levels = self._find(statement.table)
        column = self._column_of(owner, levels, statement.column)
        owner.rename_columns(levels, {column or "": statement.new_name})
        return self._nothing()

    def _alter_column(self, statement: sql.AlterColumn) -> DataFrame:
        owner, levels = self._find(statement.table)
        column = self._column_of(owner, levels, statement.column)
        change = {"type": statement.type, "nullable": statement.nullable}
        owner.alter_columns(levels, {column or "": {key: value for key, value in change.items() if value is not None}})
        return self._nothing()

    def _column_of(self, owner: LanceCatalog, levels: Levels, name: str, *, missing_ok: bool = False) -> str | None:
        """Return a column as the table spells it; fields of structs are named as they are."""
        schema = read_columns(owner, levels)
        top, dot, rest = name.partition(".")
        try:
            return resolve_column(self._spark, schema, top) + dot + rest
        except TableColumnNotFoundError:
            if missing_ok:
                return None
            raise

    def _set_properties(self, statement: sql.SetProperties) -> DataFrame:
        owner, levels = self._find(statement.table)
        options, properties = split_properties(statement.properties)
        if options:
            raise UnsupportedOperationError(
                f"ALTER TABLE: the column {next(iter(options))} keeps its type and encoding; give such properties when "
                "the table is created"
            )
        owner.set_properties(levels, properties)
        return self._nothing()

    def _unset_properties(self, statement: sql.UnsetProperties) -> DataFrame:
        owner, levels = self._find(statement.table)
        properties = owner.properties(levels)
        if not statement.if_exists and (missing := [name for name in statement.names if name not in properties]):
            raise InvalidInputError(f"the table has no property {', '.join(missing)}; write IF EXISTS to ignore that")
        owner.unset_properties(levels, list(statement.names))
        return self._nothing()

    def _rename_table(self, statement: sql.MoveTable) -> DataFrame:
        owner, levels = self._find(statement.table)
        new = statement.new_name
        if len(new) > 1:
            other, new = new_table_levels(self._catalog, new)
            if other is not owner:
                raise UnsupportedOperationError("ALTER TABLE … RENAME TO: a table stays in its catalog")
        owner.rename(levels, list(new))
        return self._nothing()

    def _drop_table(self, statement: sql.DropTable) -> DataFrame:
        if (table := self._find_if_exists(statement.table, if_exists=statement.if_exists)) is not None:
            owner, levels = table
            owner.drop(levels, missing_ok=statement.if_exists)
        return self._nothing()

    # Namespaces

    def _create_namespace(self, statement: sql.CreateNamespace) -> DataFrame:
        owner, levels = self._namespace(statement.namespace)
        owner.create_namespace(levels, dict(statement.properties), exist_ok=statement.if_not_exists)
        return self._nothing()

    def _drop_namespace(self, statement: sql.DropNamespace) -> DataFrame:
        owner, levels = self._namespace(statement.namespace)
        try:
            owner.drop_namespace(levels, cascade=statement.cascade)
        except NamespaceNotFoundError:
            if not statement.if_exists:
                raise
        return self._nothing()

    def _use(self, statement: sql.Use) -> DataFrame:
        self._catalog.use(list(statement.namespace))
        return self._nothing()

    # Showing

    def _show_names(self, statement: sql.ShowNames) -> DataFrame:
        owner, levels = self._namespace(statement.namespace)
        matches = partial(matches_pattern, statement.pattern)
        if statement.what == "namespaces":
            namespaces = owner.namespaces(list(levels)) if statement.namespace is not None else owner.namespaces()
            return self._result("namespace string", [[name] for name in namespaces if matches(parse_levels(name)[-1])])
        names = [parse_levels(name)[-1] for name in owner.tables(list(levels))]
        rows = [[format_levels(levels), name, False] for name in names if matches(name)]
        return self._result("namespace string, tableName string, isTemporary boolean", rows)

    def _show_of_table(self, statement: sql.ShowOfTable) -> DataFrame:
        owner, levels = self._find(statement.table)
        match statement.what:
            case "columns":
                return self._result("col_name string", [[name] for name in owner.schema(levels).names])
            case "create":
                return self._result("createtab_stmt string", [[format_create_table(owner, levels)]])
            case "properties":
                return self._show_properties(owner, levels, statement.key)
            case "indices":
                return self._show_indices(owner._address(levels))
            case "tags":
                with owner._address(levels).to_ref().dataset() as dataset:
                    tags = read_tags(dataset)
                rows = [[name, tag.get("branch"), tag["version"]] for name, tag in sorted(tags.items())]
                return self._result("name string, branch string, version long", rows)
        with owner._address(levels).to_ref().dataset() as dataset:
            branches = dataset.branches.list()
        rows = [
            [name, branch.get("parent_branch"), branch.get("parent_version")]
            for name, branch in sorted(branches.items())
        ]
        return self._result("name string, parent_branch string, parent_version long", rows)

    def _show_properties(self, owner: LanceCatalog, levels: Levels, key: str | None) -> DataFrame:
        properties = owner.properties(levels)
        if key is None:
            return self._result("key string, value string", sorted(properties.items()))
        absent = f"Table {format_levels(levels)} does not have property: {key}"
        return self._result("key string, value string", [[key, properties.get(key, absent)]])

    def _show_indices(self, address: TableAddress) -> DataFrame:
        rows = list[list[Any]]()
        with address.to_ref().dataset() as dataset:
            for index in dataset.describe_indices():
                stats = dataset.stats.index_stats(index.name)
                counts = ("num_indexed_fragments", "num_indexed_rows", "num_unindexed_fragments", "num_unindexed_rows")
                rows.append(
                    [
                        index.name,
                        list(index.field_names),
                        index.index_type.lower(),
                        *(stats.get(count) for count in counts),
                    ]
                )
        return self._result(
            "name string, fields array<string>, index_type string, num_indexed_fragments long, num_indexed_rows long, "
            "num_unindexed_fragments long, num_unindexed_rows long",
            rows,
        )

    def _describe(self, statement: sql.Describe) -> DataFrame:
        owner, levels = self._find(statement.table)
        columns = describe_columns(owner.schema(levels))
        if statement.column is not None:
            name = self._column_of(owner, levels, statement.column)
            rows = [row for row in columns if row[0] == name]
            if not rows:
                raise UnsupportedOperationError(f"DESCRIBE: {statement.column} is a field of a struct; name the column")
            names = ("col_name", "data_type", "comment")
            values = ["NULL" if value is None else value for value in rows[0]]
            return self._result("info_name string, info_value string", list(zip(names, values, strict=True)))
        if statement.extended:
            columns += self._details(owner, levels)
        return self._result("col_name string, data_type string, comment string", columns)

    def _details(self, owner: LanceCatalog, levels: Levels) -> list[tuple[str, str, str | None]]:
        ref = owner._address(levels).to_ref()
        with ref.dataset() as dataset:
            version, rows, storage = dataset.version, dataset.count_rows(), dataset.data_storage_version
        properties = redact_properties(owner.properties(levels))
        details = {
            "Name": format_levels(levels),
            "Type": "MANAGED",
            "Provider": "lance",
            "Location": locate_table(ref).location,
            "Version": str(version),
            "Rows": str(rows),
            "Storage Version": str(storage),
            "Comment": properties.get("comment"),
            "Table Properties": "[" + ",".join(f"{key}={value}" for key, value in sorted(properties.items())) + "]",
        }
        rows = [(name, value, "") for name, value in details.items() if value is not None]
        return [("", "", ""), ("# Detailed Table Information", "", ""), *rows]

    def _describe_namespace(self, statement: sql.DescribeNamespace) -> DataFrame:
        owner, levels = self._namespace(statement.namespace)
        id_ = list(owner._namespace_id("namespace", list(levels)))
        response = get_client(owner._connection).describe_namespace(DescribeNamespaceRequest(id=id_))
        properties = redact_properties(response.properties or {})
        rows = [("Namespace Name", format_levels(levels)), *sorted(properties.items())]
        return self._result("info_name string, info_value string", rows)

    def _describe_query(self, statement: sql.DescribeQuery) -> DataFrame:
        rows = describe_columns(self._query(statement.query).schema)
        return self._result("col_name string, data_type string, comment string", rows)

    def _describe_history(self, statement: sql.DescribeHistory) -> DataFrame:
        owner, levels = self._find(statement.table)
        history = owner.history(levels)
        return history if statement.limit is None else history.limit(min(statement.limit, MOST_ROWS))

    # Maintenance

    def _optimize(self, statement: sql.Optimize) -> DataFrame:
        owner, levels = self._find(statement.table)
        result = owner.compact(levels, **statement.options)
        counts = ("fragments_removed", "fragments_added", "files_removed", "files_added")
        return self._result(
            ", ".join(f"{count} long" for count in counts), [[getattr(result, count) for count in counts]]
        )

    def _vacuum(self, statement: sql.Vacuum) -> DataFrame:
        owner, levels = self._find(statement.table)
        hours = VACUUM_HOURS if statement.hours is None else statement.hours
        if not 0 <= hours < 24 * 365 * 1000:
            raise InvalidInputError(f"VACUUM: RETAIN {hours:g} HOURS is no age")
        result = owner.cleanup(levels, older_than=timedelta(hours=hours), dry_run=statement.dry_run)
        return self._result("bytes_removed long, old_versions long", [[result.bytes, result.versions]])

    def _create_index(self, statement: sql.CreateIndex) -> DataFrame:
        owner, levels = self._find(statement.table)
        if statement.kind is None:
            raise InvalidInputError("CREATE INDEX: name its kind with USING, such as btree, bitmap, fts or ivf_pq")
        if self._has_index(owner, levels, statement.name):
            if statement.if_not_exists:
                return self._nothing()
            raise InvalidInputError(
                f"CREATE INDEX: there is an index {statement.name}; write IF NOT EXISTS, or drop it"
            )
        column = self._column_of(owner, levels, statement.column) or statement.column
        kind = statement.kind.upper()
        index = owner.create_index(
            levels, column, INDEX_KINDS.get(kind, kind), statement.name, replace=False, **statement.options
        )
        return self._result("index_name string, version long", [[index.name, index.version]])

    def _has_index(self, owner: LanceCatalog, levels: Levels, name: str) -> bool:
        with owner._address(levels).to_ref().dataset() as dataset:
            return any(index.name == name for index in dataset.describe_indices())

    def _drop_index(self, statement: sql.DropIndex) -> DataFrame:
        owner, levels = self._find(statement.table)
        if statement.if_exists and not self._has_index(owner, levels, statement.name):
            return self._nothing()
        owner.drop_index(levels, statement.name)
        return self._nothing()

    # Versions

    def _create_ref(self, statement: sql.CreateRef) -> DataFrame:
        owner, levels = self._find(statement.table)
        version = statement.version
        with owner._address(levels).to_ref().dataset() as dataset:
            tags = read_tags(dataset)
            refs = tags if statement.kind == "tag" else dataset.branches.list()
        if statement.if_not_exists and statement.name in refs:
            return self._result("name string", [[statement.name]])
        if statement.tag is not None:
            if statement.tag not in tags or tags[statement.tag].get("branch") not in (None, "main"):
                raise InvalidInputError(f"AS OF TAG {statement.tag}: there is no such tag on the main branch")
            version = int(tags[statement.tag]["version"])
        if statement.kind == "tag":
            owner.tag(levels, statement.name, version, replace=statement.replaces)
        else:
            owner.branch(levels, statement.name, version)
        return self._result("name string", [[statement.name]])

    def _drop_ref(self, statement: sql.DropRef) -> DataFrame:
        owner, levels = self._find(statement.table)
        with owner._address(levels).to_ref().dataset() as dataset:
            refs = read_tags(dataset) if statement.kind == "tag" else dataset.branches.list()
        if statement.if_exists and statement.name not in refs:
            return self._nothing()
        drop = owner.untag if statement.kind == "tag" else owner.drop_branch
        drop(levels, statement.name)
        return self._nothing()

    def _restore(self, statement: sql.Restore) -> DataFrame:
        owner, levels = self._find(statement.table)
        as_of = None if statement.as_of is None else parse_time(self._spark.sql, _quote(statement.as_of))
        version = owner.restore(levels, statement.version, statement.tag, as_of)
        return self._result("version long", [[version]])


def shorten_qualifiers(statement: Change, levels: Levels) -> Change:
    """Return a statement that names all levels of the table, but in its expressions only the last, as Spark sees it."""
    if statement.alias is not None:
        return statement
    table = levels if levels[-len(statement.table) :] == statement.table else statement.table

    def shorten(text: Text) -> Text:
        return text if text is None else sql.shorten_qualifiers(text, table)

    def shorten_all(assignments: sql.Assignments) -> sql.Assignments:
        return tuple((column, shorten(value)) for column, value in assignments)

    if not isinstance(statement, sql.MergeRows):
        shorter = replace(statement, table=table, where=shorten(statement.where))
        if isinstance(shorter, sql.UpdateRows):
            shorter = replace(shorter, assignments=shorten_all(shorter.assignments))
        return shorter
    clauses = tuple(
        replace(
            clause,
            condition=shorten(clause.condition),
            assignments=None if clause.assignments is None else shorten_all(clause.assignments),
        )
        for clause in statement.clauses
    )
    return replace(statement, table=table, on=shorten(statement.on), clauses=clauses)


def read_columns(owner: LanceCatalog, levels: Levels) -> pa.Schema:
    """Return the columns of a table as an Arrow schema, without those that Lancehouse keeps beside computed ones."""
    schema: pa.Schema = owner._address(levels).to_ref().open().schema
    return pa.schema([field for field in schema if not field.name.startswith(COMPANION)])


def describe_columns(struct: StructType) -> list[tuple[str, str, str | None]]:
    """Return names, types and comments of columns, as DESCRIBE shows them."""
    return [(field.name, field.dataType.simpleString(), field.metadata.get("comment")) for field in struct]


def matches_pattern(pattern: str | None, name: str) -> bool:
    """Return whether a name matches a pattern of SHOW: `*` is any text, `|` separates alternatives; case is ignored."""
    if pattern is None:
        return True
    alternatives = (".*".join(map(re.escape, alternative.strip().split("*"))) for alternative in pattern.split("|"))
    return any(re.fullmatch(alternative, name, re.IGNORECASE | re.DOTALL) for alternative in alternatives)


# Properties of columns, as lance-spark names them


def split_properties(properties: Mapping[str, str]) -> tuple[dict[str, dict[str, str]], dict[str, str]]:
    """Split TBLPROPERTIES into those of columns, by column, and those of the table."""
    options, rest = dict[str, dict[str, str]](), dict[str, str]()
    for key, value in properties.items():
        if (match := _COLUMN_PROPERTY.fullmatch(key)) is None:
            rest[key] = value
        else:
            options.setdefault(match["column"], {})[match["key"]] = value
    return options, rest


def apply_column_properties(schema: pa.Schema, options: Mapping[str, Mapping[str, str]]) -> pa.Schema:
    """Return the columns of a new table with the types that lance-spark's properties give them.

    Raises:
        InvalidInputError: there is no such column or property, or it does not fit.
    """
    for column, keys in options.items():
        for key, value in keys.items():
            schema = _apply_column_property(schema, column, key, value)
    return schema


def _apply_column_property(schema: pa.Schema, column: str, key: str, value: str) -> pa.Schema:
    name = f"TBLPROPERTIES: {column}.{key}"
    if key == VECTOR:
        if not value.isascii() or not value.isdigit():
            raise InvalidInputError(f"{name} must be the number of values in a vector, not {value!r}")
        return with_vectors(schema, {column: int(value)})
    if column not in schema.names:
        raise InvalidInputError(f"{name}: there is no column {column}; there are {', '.join(schema.names)}")
    at, field = schema.names.index(column), schema.field(column)
    dtype: Any = field.type
    if key in (HALF, LARGE) and value.lower() == "false":
        return schema
    if key == HALF and value.lower() == "true" and _is_float_list(dtype):
        element = dtype.value_field.with_type(pa.float16())
        size = dtype.list_size if isinstance(dtype, pa.FixedSizeListType) else -1
        return schema.set(at, field.with_type(pa.list_(element, size)))
    if key == LARGE and value.lower() == "true" and pa.types.is_string(dtype):
        return schema.set(at, field.with_type(pa.large_string()))
    if key == ENCODING and value.lower() == "blob" and pa.types.is_binary(dtype):
        metadata: dict[Any, Any] = {**(field.metadata or {}), _BLOB: b"true"}
        return schema.set(at, field.with_type(pa.large_binary()).with_metadata(metadata))
    if key not in (HALF, LARGE, ENCODING):
        raise UnsupportedOperationError(
            f"{name} is not supported; known are {VECTOR}, {HALF}, {LARGE} and {ENCODING}='blob'"
        )
    raise InvalidInputError(f"{name} = {value!r} does not fit the column, which is {dtype}")


def _is_float_list(dtype: Any) -> bool:
    return isinstance(dtype, pa.ListType | pa.FixedSizeListType) and pa.types.is_float32(dtype.value_type)


# SHOW CREATE TABLE


def format_create_table(owner: LanceCatalog, levels: Levels) -> str:
    """Return the statement that creates a table with the same columns and properties."""
    schema, columns, options = read_columns(owner, levels), list[str](), dict[str, str]()
    for field in to_struct(to_spark(schema)):
        text = f"  {quote_name(field.name)} {format_type(field.dataType)}"
        text += "" if field.nullable else " NOT NULL"
        comment = field.metadata.get("comment")
        columns.append(text if comment is None else f"{text} COMMENT {_quote(comment)}")
        options |= _column_options(schema.field(field.name))
    properties = redact_properties(owner.properties(levels))
    comment = properties.pop("comment", None)
    lines = [f"CREATE TABLE {format_levels(levels)} (", ",\n".join(columns) + ")", "USING lance"]
    lines += [] if comment is None else [f"COMMENT {_quote(comment)}"]
    if stored := {**options, **properties}:
        pairs = ",\n".join(f"  {_quote(key)} = {_quote(value)}" for key, value in sorted(stored.items()))
        lines += [f"TBLPROPERTIES (\n{pairs})"]
    return "\n".join(lines)


def _column_options(field: pa.Field[Any]) -> dict[str, str]:
    """Return the properties that give a column its type where SQL has no name for it."""
    dtype: Any = field.type
    options = dict[str, str]()
    if isinstance(dtype, pa.FixedSizeListType):
        options[VECTOR] = str(dtype.list_size)
    if isinstance(dtype, pa.FixedSizeListType | pa.ListType) and dtype.value_type == pa.float16():
        options[HALF] = "true"
    if dtype == pa.large_string():
        options[LARGE] = "true"
    if is_blob(field):
        options[ENCODING] = "blob"
    return {f"{field.name}.{key}": value for key, value in options.items()}


def format_type(dtype: Any) -> str:
    """Return a Spark type as SQL writes it."""
    match dtype.typeName():
        case "array":
            return f"ARRAY<{format_type(dtype.elementType)}>"
        case "map":
            return f"MAP<{format_type(dtype.keyType)}, {format_type(dtype.valueType)}>"
        case "struct":
            fields = (
                f"{quote_name(field.name)}: {format_type(field.dataType)}" + ("" if field.nullable else " NOT NULL")
                for field in dtype
            )
            return f"STRUCT<{', '.join(fields)}>"
    return str(dtype.simpleString()).upper()


def _quote(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
