"""Run queries in SQL over tables of catalogs: each scan reads what it needs, Spark runs the text as it was written."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from lance_namespace.errors import InvalidInputError
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import AnalysisException, ParseException, PySparkException
from pyspark.sql import DataFrame, SparkSession, functions
from sqlglot.tokenizer_core import TokenType

from lancehouse.identifiers import format_levels, parse_levels, quote_name
from lancehouse.jobs.address import PinnedVersion
from lancehouse.lake.dataset import VersionSelector
from lancehouse.lake.scans import Scan
from lancehouse.lake.search import QUERY, RANK, SCORE
from lancehouse.lake.vector_search import DISTANCE
from lancehouse.schema.definitions import COMPANION
from lancehouse.spark.aggregates import Measure, aggregate_version, parse_aggregation
from lancehouse.spark.conditions import is_one_of
from lancehouse.spark.query_scans import (
    Columns,
    Planner,
    ScanPlan,
    Settings,
    TableMention,
    WholeAggregate,
    find_tables,
    qualifier_replacements,
    replacements,
)
from lancehouse.spark.query_text import (
    STRINGS,
    TOO_DEEP,
    QueryText,
    SearchCall,
    TimeTravel,
    name_positional,
    search_name,
    shorten,
    tokenize,
)
from lancehouse.spark.session import is_set, to_local_frame
from lancehouse.spark.table_names import find_table, resolve_table
from lancehouse.spark.table_reader import read_small_version, read_version
from lancehouse.suggestions import suggest

if TYPE_CHECKING:
    from lancehouse.spark.catalog import LanceCatalog

Arguments = Mapping[str, Any] | Sequence[Any]

SMALL_BYTES = 8 * 2**20
"""Tables of which no more is read are read before Spark begins."""
ODD_SETTINGS = ("parser.quotedRegexColumnNames", "legacy.typeCoercion.datetimeToString.enabled")
"""Settings that give names or comparisons another meaning."""
MOST_KEYS = 10_000
"""Number of keys of a table that are given to the scan of another which it joins, as IN. Lance takes 20,000 terms of an
IN, while 5,000 nested operators overflow its stack."""
_OWN_NAMES = re.compile(r"(?:, )?(?:`[^`]+`\.)?`__lh_\w+`")
"""Columns beside those of a table, among the names that Spark proposes."""
_PLACE = re.compile(r"; line \d+ pos \d+$")
"""A place in the text that Spark has got, which is not the user's."""
_EXACT_BITS = 53
"""Integers of so many bits are exact as doubles."""

_ARGUMENT_ORDER = {
    "vector_search": ("table", "vector", "k"),
    "text_search": ("table", "text", "k"),
    "hybrid_search": ("table", "vector", "text", "k"),
}
"""What the first arguments of a search mean if they have no name. The names are those of `LanceCatalog.search`."""
_MEASURES = {"vector_search": (DISTANCE,), "text_search": (SCORE,), "hybrid_search": (DISTANCE, SCORE)}
"""Columns that say how good a row is."""
_SEARCH_OPTIONS = ("k", "filter", "columns", "version", "tag", "as_of", "prefilter")
_VECTOR_OPTIONS = ("column", "metric", "nprobes", "refine_factor", "ef")
_ARGUMENT_NAMES = {
    "vector_search": ("table", "vector", "queries", *_SEARCH_OPTIONS, *_VECTOR_OPTIONS),
    "text_search": ("table", "text", "queries", "text_column", *_SEARCH_OPTIONS),
    "hybrid_search": (
        *("table", "vector", "text", "queries", "text_column", "hybrid"),
        *_SEARCH_OPTIONS,
        *_VECTOR_OPTIONS,
    ),
}


@dataclass(frozen=True, slots=True)
class FoundTable:
    """A table that a query names, at the version that it reads."""

    name: str
    pinned: PinnedVersion
    schema: pa.Schema
    rows: int


class PlannedQuery:
    """A query whose tables are found and whose scans are planned; nothing has been read.

    Args:
        catalog: whose names come first.
        text: the query.
        args: values of its parameters, by name or in order.
        blobs: how tables of catalogs give blobs, see `Scan`.
        frames: relations that the query may name, in small letters; they come before all tables and views.

    Raises:
        InvalidInputError: the query cannot be parsed.
        TableNotFoundError: it names a table that nobody knows.
    """

    def __init__(
        self,
        catalog: LanceCatalog,
        text: str,
        args: Arguments | None = None,
        blobs: str = "bytes",
        frames: Mapping[str, DataFrame] | None = None,
    ) -> None:
        self.catalog, self._spark, self._blobs = catalog, catalog.spark, blobs
        self._frames = frames or {}
        named, self._args = name_positional(text, args)
        self.query = QueryText(named)
        self.tables: dict[TableMention, FoundTable] = {}
        self._versions: dict[tuple[Any, ...], FoundTable | None] = {}
        uses = find_tables(self.query)
        self._searches = {
            use: prepare_search(self, self.query.searches[use.search]) for use in uses if use.search is not None
        }
        self._search_results: dict[str, DataFrame] = {}
        """Results of searches, by the names that stand for these."""
        self._frame_uses = {use: frame for use in uses if (frame := self._find_frame(use.parts)) is not None}
        self._spark_uses = []
        for use in uses:
            if use in self._frame_uses and use.travel is not None:
                raise InvalidInputError(f"{use.parts[0]} has no versions: only tables of a catalog have")
            if use.search is not None or use in self._frame_uses:
                continue
            if (table := self._find(use)) is None:
                self._spark_uses.append(use)
            else:
                self.tables[use] = table
        schemas = {use: table.schema for use, table in self.tables.items()}
        settings = read_settings(self._spark)
        # Without a table of ours there is nothing to plan, and to ask Spark for columns of files takes long.
        columns_of = self._columns_of if schemas else lambda _: None
        self.planner = Planner(self.query, schemas, columns_of, settings, self._args)
        self._settings = settings

    def _find_frame(self, parts: tuple[str, ...]) -> DataFrame | None:
        return self._frames.get(parts[0].lower()) if len(parts) == 1 else None

    def _find(self, use: TableMention) -> FoundTable | None:
        travel = use.travel
        key = (use.parts, travel and (travel.version, travel.tag, travel.time, travel.parameter))
        if key not in self._versions:  # a table that is named twice is read at one version
            selector = self._selector(travel)
            table = find_table(
                self.catalog,
                use.parts,
                lambda owner, levels: PinnedVersion.resolve(owner._address(levels), selector),
            )
            self._versions[key] = None if table is None else _open(format_levels(table[1]), table[2])
        return self._versions[key]

    def _selector(self, travel: TimeTravel | None) -> VersionSelector:
        if travel is None:
            return VersionSelector()
        if travel.parameter is not None:
            value = (self._args or {}).get(travel.parameter)
            if isinstance(value, bool) or not isinstance(value, int | str):
                raise InvalidInputError(
                    f"VERSION AS OF :{travel.parameter} needs the number of a version, or the name of a tag, "
                    f"not {value!r}"
                )
            return VersionSelector(tag=value) if isinstance(value, str) else VersionSelector(value)
        if travel.time is None:
            return VersionSelector(travel.version, travel.tag)
        return VersionSelector(as_of=parse_time(self._sql, travel.time))

    def _columns_of(self, parts: tuple[str, ...]) -> Columns:
        """Return the columns of a table or view of Spark, or of a search."""
        for use, search in self._searches.items():
            if parts == (search_name(use.search or 0),):
                return search.columns()
        if (frame := self._find_frame(parts)) is not None:
            return tuple(frame.columns)
        try:
            return tuple(self._spark.table(".".join(map(quote_name, parts))).columns)
        except PySparkException:
            return None

    def _sql(self, text: str, frames: Mapping[str, DataFrame] | None = None) -> DataFrame:
        try:
            return self._spark.sql(text, args=self._args, **(frames or {}))
        except (ParseException, AnalysisException) as error:
            raise InvalidInputError(spark_message(error)) from error

    def run(self) -> DataFrame:
        """Return the result."""
        frame = self._run_in_spark()  # also where Arrow aggregates: it has the names and types of the columns
        whole = self.whole_aggregate()
        return frame if whole is None else self._aggregate(whole, frame)

    def _run_in_spark(self) -> DataFrame:
        self._search_results = {search_name(use.search or 0): search.run() for use, search in self._searches.items()}
        try:
            return self._run_over(to_scan)
        except InvalidInputError:
            if all(scan.columns is None for scan in self.planner.scans):
                raise
            # Spark proposes names of columns that it sees, so that it has to see all.
            return self._run_over(lambda scan: replace(to_scan(scan), columns=None, with_row_id=scan.with_row_id))

    def _run_over(self, choose: Callable[[ScanPlan], Scan]) -> DataFrame:
        frames, changes = {}, list(qualifier_replacements(self.query, list(self.tables)))
        for number, (scan, frame) in enumerate(zip(self.planner.scans, self._read_tables(choose), strict=True)):
            frames[f"t{number}"] = frame
            changes += replacements(self.query, scan.use, f"t{number}")
        for use in self._searches:
            name = search_name(use.search or 0)
            frames[name] = self._search_results[name]
            changes += replacements(self.query, use, name)
        for number, (use, frame) in enumerate(self._frame_uses.items()):
            frames[f"f{number}"] = frame
            changes += replacements(self.query, use, f"f{number}")
        return self._sql(self.query.replace(changes), frames) if frames else self._sql(self.query.whole_text)

    def _read_tables(self, choose: Callable[[ScanPlan], Scan]) -> Iterator[DataFrame]:
        """Yield the rows of each scan.

        Small tables are read now, as tasks would take longer to start than to read them, and Spark knows their size
        then: it sends the smaller side of a join to all tasks, instead of sorting both. Of the others, tasks leave out
        rows that join none of those.
        """
        most = min(SMALL_BYTES, self.catalog.driver_bytes)
        scans = [replace(choose(plan), blobs=self._blobs) for plan in self.planner.scans]
        pinned = [self.tables[plan.use].pinned for plan in self.planner.scans]
        small = [read_small_version(version, scan, most) for version, scan in zip(pinned, scans, strict=True)]
        links = _KeyLinks(self.planner, small, [self.tables[plan.use].rows for plan in self.planner.scans])
        links.narrow()
        for number, (version, scan, rows) in enumerate(zip(pinned, scans, links.rows, strict=True)):
            if rows is None:
                # Whether keys are a valid filter need not be asked: with thousands of them Lance takes long to tell.
                narrowed = replace(scan, filter=links.filter(number, scan.filter), is_checked=True)
                yield read_version(self._spark, version, narrowed)
            else:
                frame = to_local_frame(self._spark, rows)
                yield frame if scan.limit is None else frame.limit(scan.limit)

    def evaluate(self, texts: Mapping[str, str]) -> dict[str, Any]:
        """Return the values of constant expressions."""
        values = {
            name: (self._args or {}).get(text[1:].strip(), text) for name, text in texts.items() if text[0] == ":"
        }
        rest = {name: text for name, text in texts.items() if values.get(name, text) is text}
        if rest:
            columns = (f"{text} AS {quote_name(name)}" for name, text in rest.items())
            values |= self._sql(f"SELECT {', '.join(columns)}").first().asDict()
        return {name: values[name] for name in texts}

    def run_text(self, text: str) -> DataFrame:
        """Return the result of another query that has the same parameters."""
        return run_query(self.catalog, text, self._args, self._blobs, self._frames)

    def explain(self) -> str:
        """Return what is read of each table, which indices are used, and what is left to Spark."""
        lines = []
        for scan in self.planner.scans:
            lines += self._explain_scan(scan)
        for use, search in self._searches.items():
            how = search.catalog.explain_search(search.table, **search.arguments)
            lines += [f"{use.parts[-1]} of {format_levels(search.table)} AS {use.alias}:", *_indent(how)]
        others = sorted({format_levels(use.parts) for use in self._spark_uses})
        if others:
            lines.append(f"of Spark: {', '.join(others)}")
        whole = self.whole_aggregate()
        if whole is not None:
            how = "the number of rows in the manifest" if _counts_all(whole) else "aggregated by the tasks"
            lines.append(f"result: {how}")
        return "\n".join(lines or ["no tables"])

    def _explain_scan(self, plan: ScanPlan) -> list[str]:
        table, scan = self.tables[plan.use], to_scan(plan)
        names = table.schema.names if scan.columns is None else scan.columns
        columns = ", ".join([*names, "_rowid"] if scan.with_row_id else names)
        lines = [
            f"{table.name} AS {plan.use.alias}: version {table.pinned.version}, {table.rows:,} rows",
            f"  columns: {columns} ({len(names)} of {len(table.schema.names)})",
            f"  filter: {scan.filter or 'none'}",
        ]
        if scan.filter is not None:
            lines.append(f"  index: {', '.join(scan.indices(*table.pinned.open())) or 'none'}")
        if scan.limit is not None:
            lines.append(f"  limit: {scan.limit}")
        return lines + [f"  left to Spark: {text} ({reason})" for text, reason in plan.not_pushed.items()]

    # Aggregates

    def whole_aggregate(self) -> WholeAggregate | None:
        """Return the aggregates that tasks compute in Arrow, if the query is nothing else and the result the same."""
        whole = self.planner.whole_aggregate()
        if whole is None or self.query.is_explained:
            return None
        table = self.tables[whole.scan.use]
        types = {name: table.schema.field(name).type for name in table.schema.names}
        can_group = all(_is_groupable(types[key]) for key in whole.keys)
        can_compute = all(
            function == "key" or self._is_same(function, types.get(column), table.rows)
            for function, column in whole.items
        )
        return whole if can_group and can_compute else None

    def _is_same(self, function: str, dtype: Any, rows: int) -> bool:
        """Return whether an aggregate of a column in Arrow is certainly what Spark computes."""
        if function == "count":
            return True
        if function in ("min", "max"):
            return _is_groupable(dtype) and dtype != pa.bool_()
        if pa.types.is_signed_integer(dtype):
            if function == "sum":
                return dtype.bit_width < 64 or self._settings.is_ansi
            return int(dtype.bit_width) + rows.bit_length() <= _EXACT_BITS
        is_small = pa.types.is_decimal128(dtype) and dtype.precision <= 28 and 0 <= dtype.scale <= dtype.precision
        return function == "sum" and bool(is_small) and rows < 10**10

    def _aggregate(self, whole: WholeAggregate, expected: DataFrame) -> DataFrame:
        """Return aggregates with the names and types of Spark's result."""
        table = self.tables[whole.scan.use]
        fields = expected.schema.fields
        if _counts_all(whole):
            counts = [functions.lit(table.rows).cast("bigint").alias(column.name) for column in fields]
            return self._spark.range(1).select(*counts)
        measures: dict[str, list[str]] = {}
        for function, column in whole.items:
            if function != "key" and column not in measures.setdefault(function, []):
                measures[function].append(column)
        aggregation = parse_aggregation(whole.keys, measures, whole.scan.filter)
        frame = aggregate_version(self._spark, table.pinned, aggregation, self.catalog.driver_bytes)
        names = [column if function == "key" else Measure(function, column).name for function, column in whole.items]
        if len(set(frame.columns)) != len(frame.columns):
            return expected
        return frame.select(
            *(
                functions.col(quote_name(name)).cast(field.dataType).alias(field.name)
                for name, field in zip(names, fields, strict=True)
            )
        )


class _KeyLinks:
    """Tables of a query that are joined by equal keys, of which some have been read.

    Args:
        planner: has the scans and how they are joined.
        rows: of each scan, None if it has not been read.
        counts: how many rows the table of each scan has.
    """

    def __init__(self, planner: Planner, rows: Sequence[pa.Table | None], counts: Sequence[int]) -> None:
        self._plans, self.rows, self._counts = planner.scans, list(rows), counts
        number = {id(plan): place for place, plan in enumerate(planner.scans)}
        self._links = [
            (number[id(link.scan)], link.column, number[id(link.other)], link.other_column) for link in planner.links
        ]

    def narrow(self) -> None:
        """Drop rows that join no row of another table, as far as a few passes find them."""
        # Rows of a table that is joined with itself may go one by one: as many passes as it has rows.
        for _ in range(len(self._links) + 1):
            changed = False
            for place, column, other, other_column in self._links:
                rows, others = self.rows[place], self.rows[other]
                if rows is None or others is None:
                    continue
                keys = pc.unique(others.column(other_column)).drop_null()
                values = rows.column(column)
                if values.type != keys.type:
                    values, keys = values.cast(pa.int64()), keys.cast(pa.int64())
                joined = rows.filter(pc.is_in(values, value_set=keys))
                changed = changed or joined.num_rows < rows.num_rows
                self.rows[place] = joined
            if not changed:
                return

    def filter(self, place: int, condition: str | None) -> str | None:
        """Return the condition of a scan, and that its rows join tables of which only some rows are left."""
        conditions = []
        for linked, column, other, other_column in self._links:
            others = self.rows[other]
            if linked != place or others is None or others.num_rows == self._counts[other]:
                continue  # all rows of a table usually are the keys of all rows that refer to it
            keys = pc.unique(others.column(other_column)).drop_null()
            if len(keys) > MOST_KEYS:
                continue
            has_key = is_one_of(self._plans[place].schema.field(column), keys.to_pylist())
            conditions += [] if has_key is None else [has_key.sql]
        if not conditions:
            return condition
        return " AND ".join(conditions if condition is None else [f"({condition})", *conditions])


# Searches


@dataclass(frozen=True, slots=True)
class SearchRelation:
    """A search whose arguments are known."""

    catalog: Any
    table: tuple[str, ...]
    arguments: dict[str, Any]
    function: str

    def run(self) -> Any:
        """Return the rows that are found."""
        return self.catalog.search(self.table, **self.arguments)

    def columns(self) -> tuple[str, ...] | None:
        """Return the columns of the result, without a search; None if they are not certain."""
        arguments, table = self.arguments, self.table
        query = arguments.get("text" if self.function == "text_search" else "vector")
        if arguments.get("as_of") is not None or any("." in name for name in arguments.get("columns") or ()):
            return None
        columns = arguments.get("columns")
        columns = columns or self.catalog.schema(table, arguments.get("version"), arguments.get("tag")).names
        is_single = isinstance(query, str) or (
            isinstance(query, list) and not any(isinstance(value, str | list) for value in query)
        )
        measures = _MEASURES[self.function]
        return (*columns, *measures) if is_single else (QUERY, RANK, *measures, *columns)


def prepare_search(query: PlannedQuery, call: SearchCall) -> SearchRelation:
    """Return the search that a call in FROM means: `vector_search(…)`, `text_search(…)` or `hybrid_search(…)`.

    `queries` is a subquery, or the name of a table or view, with the columns `query_id` and `vector`, `text` or both.

    Raises:
        InvalidInputError: an argument is missing, or has an unknown name.
    """
    texts = _parse_arguments(call)
    if "table" not in texts:
        raise InvalidInputError(f"{call.function} needs the table: {call.function}(table => 'main.ml.docs', …)")
    parts = _parse_table_name(query, texts.pop("table"))
    table = resolve_table(query.catalog, parts)
    if table is None:
        raise InvalidInputError(
            f"{'.'.join(parts)} is a table or view of Spark: {call.function} takes one of a catalog"
        )
    queries = texts.pop("queries", None)
    arguments = query.evaluate(texts)
    if call.function == "hybrid_search":
        arguments.setdefault("hybrid", True)
    if isinstance(arguments.get("columns"), str):
        arguments["columns"] = [arguments["columns"]]
    if isinstance(arguments.get("vector"), list):
        arguments["vector"] = _to_floats(arguments["vector"])
    if queries is not None:
        name = "text" if call.function == "text_search" else "vector"
        arguments[name] = query.run_text(_to_query_text(query, queries))
    return SearchRelation(*table, arguments, call.function)


def _parse_arguments(call: SearchCall) -> dict[str, str]:
    """Return the text of each argument by its name."""
    arguments: dict[str, str] = {}
    order, names = iter(_ARGUMENT_ORDER[call.function]), _ARGUMENT_NAMES[call.function]
    for name, text in _split_arguments(call.arguments):
        if name is None:
            name = next(order, None)
            if name is None:
                raise InvalidInputError(f"{call.function}: name the arguments after the first, such as k => 10")
        if name not in names:
            raise InvalidInputError(f"{call.function} has no argument {name}; {suggest(name, names)}")
        if name in arguments:
            raise InvalidInputError(f"{call.function}: {name} is given twice")
        arguments[name] = text
    return arguments


def _split_arguments(text: str) -> Iterator[tuple[str | None, str]]:
    """Yield name, if there is one, and text of each argument."""
    tokens, depth, first, name = tokenize(text), 0, 0, None
    for index, token in enumerate(tokens):
        depth += (token.text in ("(", "[")) - (token.text in (")", "]")) if token.token_type not in STRINGS else 0
        if token.token_type is TokenType.FARROW and depth == 0 and index == first + 1:
            name, first = tokens[first].text.lower(), index + 1
        is_last = index == len(tokens) - 1
        if (token.token_type is TokenType.COMMA and depth == 0) or is_last:
            end = token.end + 1 if is_last else token.start
            if first < len(tokens):
                yield name, text[tokens[first].start : end].strip()
            first, name = index + 1, None


def _parse_table_name(query: PlannedQuery, text: str) -> tuple[str, ...]:
    """Return the parts of a table's name, which is a text, a parameter, or `TABLE` and a name."""
    tokens = tokenize(text)
    if tokens[0].token_type in STRINGS or tokens[0].text == ":":
        return parse_levels(str(query.evaluate({"table": text})["table"]))
    names = [token.text for token in tokens if token.text not in (".", "(", ")")]
    return tuple(names[1:] if names[0].upper() == "TABLE" and len(names) > 1 else names)


def _to_query_text(query: PlannedQuery, text: str) -> str:
    if text.startswith("("):
        return text
    tokens = tokenize(text)
    if tokens[0].token_type in STRINGS:
        levels = parse_levels(str(query.evaluate({"queries": text})["queries"]))
        return f"TABLE {'.'.join(map(quote_name, levels))}"
    return text if tokens[0].text.upper() == "TABLE" else f"TABLE {text}"


def _to_floats(values: list[Any]) -> list[Any]:
    """Return a vector as floats, since literals such as 0.1 are decimals to Spark."""
    return [_to_floats(value) if isinstance(value, list) else float(value) for value in values]


# Statements


def parse_time(run: Callable[[str], DataFrame], expression: str) -> datetime:
    """Return the value of an expression as a time; without a zone, it is in that of the session.

    Raises:
        InvalidInputError: it has none.
    """
    moment = run(f"SELECT unix_micros(TRY_CAST({expression} AS TIMESTAMP))").first()[0]
    if moment is None:
        raise InvalidInputError(f"TIMESTAMP AS OF {expression} is no time, such as '2026-01-31 12:00:00'")
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=moment)


@contextmanager
def limit_nesting() -> Iterator[None]:
    """Refuse a statement that is nested too deeply for sqlglot, at some 100 parentheses, or for Spark's parser.

    Raises:
        InvalidInputError: it is.
    """
    try:
        yield
    except RecursionError:
        raise InvalidInputError(TOO_DEEP) from None
    except Py4JJavaError as error:
        if "StackOverflowError" not in str(error):
            raise
        raise InvalidInputError(TOO_DEEP) from None


def run_query(
    catalog: LanceCatalog,
    text: str,
    args: Arguments | None = None,
    blobs: str = "bytes",
    frames: Mapping[str, DataFrame] | None = None,
) -> DataFrame:
    """Run a query; see `LanceCatalog.sql` and `PlannedQuery`."""
    return PlannedQuery(catalog, text, args, blobs, frames).run()


def read_settings(spark: SparkSession) -> Settings:
    """Return the settings of a session that decide what a query means."""
    is_ansi = is_set(spark, "ansi.enabled")
    has_quoted_names = is_ansi and is_set(spark, "ansi.doubleQuotedIdentifiers")
    return Settings(
        is_case_sensitive=is_set(spark, "caseSensitive"),
        is_ansi=is_ansi,
        zone=spark.conf.get("spark.sql.session.timeZone", None),
        is_odd=has_quoted_names or any(is_set(spark, name) for name in ODD_SETTINGS),
    )


def to_scan(plan: ScanPlan) -> Scan:
    """Return the scan that reads what a query needs."""
    return Scan(plan.columns, plan.filter, plan.limit, plan.with_row_id or plan.columns == ())


def _open(name: str, pinned: PinnedVersion) -> FoundTable:
    _, dataset = pinned.open()
    columns = [column for column in dataset.schema if not column.name.startswith(COMPANION)]
    return FoundTable(name, pinned, pa.schema(columns), int(dataset.count_rows()))


def _indent(text: str) -> list[str]:
    return [f"  {line}" for line in text.splitlines()]


def _counts_all(whole: WholeAggregate) -> bool:
    return not whole.keys and whole.scan.filter is None and all(item == ("count", "*") for item in whole.items)


def _is_groupable(dtype: Any) -> bool:
    """Return whether Arrow and Spark agree on which values of a type are equal, and on their order."""
    types = pa.types
    if types.is_timestamp(dtype):
        return dtype.unit == "us" and dtype.tz in (None, "UTC")
    is_plain = types.is_signed_integer(dtype) or dtype in (pa.date32(), pa.string(), pa.bool_())
    return bool(is_plain or (types.is_decimal128(dtype) and 0 <= dtype.scale <= dtype.precision))


def spark_message(error: PySparkException) -> str:
    """Return the message of Spark without what follows it, and without columns and places that the user cannot see."""
    text = str(error)
    for end in (
        ";\n",
        "\n\n== SQL",
        "\n\nJVM stacktrace",
    ):  # plans, and the text with names that the user did not write
        text = text.partition(end)[0]
    return shorten(_PLACE.sub("", _OWN_NAMES.sub("", text)).replace("[, ", "[").strip())
