"""Read a table as a caller with a row filter and column masks sees it.

What a caller sends runs on visible rows with masked values, and on nothing else. Lance evaluates all parts of a
condition for all rows, in any order: `visible AND 1 / (salary - 5000) > 0` fails if a hidden row has that salary. So
Lance gets the policy's filter first, its result is masked, and what the caller sent is evaluated by Lance again, over a
dataset in memory that holds the masked rows. Only comparisons of unmasked columns with literals, which fail for no row,
go with the policy's filter.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from typing import Any
from uuid import uuid4

import lance
import pyarrow as pa
from lance_namespace import CountTableRowsRequest, QueryTableRequest
from lance_namespace.errors import (
    InvalidInputError,
    LanceNamespaceError,
    PermissionDeniedError,
    ServiceUnavailableError,
    TableBranchNotFoundError,
    TableColumnNotFoundError,
    TableNotFoundError,
    TableVersionNotFoundError,
    ThrottlingError,
)
from lance_namespace_urllib3_client.models.query_table_request_columns import QueryTableRequestColumns

from lancehouse.lake import chunked_scan
from lancehouse.lake.chunked_scan import PlainScan, has_blobs
from lancehouse.lake.dataset import TableRef
from lancehouse.lake.errors import translate_errors
from lancehouse.lake.query_operations import (
    DISTANCE,
    create_scanner,
    default_vector_column,
    without_dictionaries,
    write_parts,
)
from lancehouse.row_policy import HASH, NULL, TEXT, RowPolicy
from lancehouse.schema.definitions import COMPANION, shown_columns

log = logging.getLogger(__name__)

CHUNK_BYTES = 8 << 20
"""Bytes of masked rows that are held in memory at once to evaluate what a caller sent."""
SEARCH_BYTES = 64 << 20
"""Most bytes of masked rows that a search holds at once, if Lance cannot search the table itself."""
EXTENSION = b"ARROW:extension:"
"""Prefix of the metadata of a field that belongs to its type; other metadata are not shown."""
QUERY_INDEX = "query_index"
SCORES = frozenset({DISTANCE, QUERY_INDEX})
"""Columns that a search adds."""

PASSED_ON = (ServiceUnavailableError, ThrottlingError)
NOT_FOUND = (TableNotFoundError, TableVersionNotFoundError, TableBranchNotFoundError)

KINDS: Mapping[str, frozenset[pa.DataType]] = {
    "text": frozenset({pa.string(), pa.large_string()}),
    "number": frozenset(
        {pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32()}
        | {pa.float32(), pa.float64()}
    ),
    "bool": frozenset({pa.bool_()}),
}
"""Types that Lance compares with a kind of literal without a conversion that could fail for some rows."""


@dataclass(frozen=True, slots=True)
class CallerSql:
    """What is known of the SQL in a caller's request."""

    filter_columns: frozenset[str] = frozenset()
    """Columns that the filter names."""
    comparisons: tuple[tuple[str, str], ...] | None = None
    """Columns that the filter compares, each with a kind of literal, if it does nothing else."""
    value_columns: frozenset[str] = frozenset()
    """Columns that computed columns name."""


@dataclass(frozen=True, slots=True)
class VisiblePart:
    """The part of a table that a caller sees."""

    name: str
    """The table, for messages."""
    policy: RowPolicy
    key: bytes = field(repr=False)
    """Key of the hashes."""

    def open(self, table: TableRef) -> RestrictedRows:
        """Open a version of the table.

        Raises:
            PermissionDeniedError: the policy cannot be applied to this version: it lacks a column, or a mask does not
                fit the type of one.
        """
        with hide_errors(self.name):
            rows = RestrictedRows(self, table.open())
        _ = rows.schema  # refuses what does not fit
        return rows

    @property
    def digest(self) -> str:
        """Digest of all that decides what is visible."""
        return self.policy.digest(self.key)

    def restrict_schema(self, schema: dict[str, Any]) -> dict[str, Any]:
        """Return what is shown of an Iceberg schema; no column is required, since masks and blobs are null."""
        fields = [column for column in schema["fields"] if not column["name"].startswith(COMPANION)]
        shown = [
            {key: column[key] for key in ("id", "name", "type", "doc") if key in column} | {"required": False}
            for column in fields
        ]
        return {"type": "struct", "schema-id": schema["schema-id"], "fields": shown}


@dataclass(frozen=True)
class RestrictedRows:
    """A version of a table, as far as a caller sees it."""

    part: VisiblePart
    dataset: lance.LanceDataset = field(repr=False)

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns that the caller may name.

        Not among them are blobs, since Lance returns where in its files they lie, and what Lancehouse keeps beside
        computed columns. Dictionaries become plain values: one holds values of hidden rows, too.
        """
        whole: pa.Schema = self.dataset.schema
        policy = self.part.policy
        if missing := sorted(policy.masks.keys() - set(whole.names)):
            raise self._misfit_error(f"it has no column {', '.join(missing)}")
        if missing := sorted(policy.filter_columns - set(whole.names)):
            # The caller does not know which columns decide what is visible, and shall not learn it from old versions.
            log.warning("%s: a row filter names columns that it lacks: %s", self.part.name, ", ".join(missing))
            raise self._misfit_error("it lacks a column that the row filter names")
        if len({name.lower() for name in whole.names}) < len(whole.names):
            # Lance finds a column by its name in any case: it might take a masked one for another.
            raise self._misfit_error("names of its columns differ by case alone")
        fields = [whole.field(name) for name in shown_columns(whole)]
        shown = pa.schema([column for column in fields if not has_blobs(column)])
        return pa.schema([self._mask_field(column) for column in without_dictionaries(shown)])

    def _mask_field(self, column: pa.Field[Any]) -> pa.Field[Any]:
        mask = self.part.policy.masks.get(column.name)
        metadata: Any = {key: value for key, value in (column.metadata or {}).items() if key.startswith(EXTENSION)}
        column = column.with_metadata(metadata)
        if not can_mask(column.type, mask):
            raise self._misfit_error(f"column {column.name} has the type {column.type}, which its mask does not fit")
        return column.with_nullable(True) if mask == NULL else column

    def _misfit_error(self, why: str) -> PermissionDeniedError:
        return PermissionDeniedError(
            f"{self.part.name}: the row filter or masks of your grant do not fit this version of the table: {why}"
        )

    def count_in(self, fragment: lance.LanceFragment) -> int:
        """Count the visible rows of a fragment."""
        with hide_errors(self.part.name):
            return int(fragment.count_rows(self.part.policy.where))

    def read_fragment(
        self, fragment: lance.LanceFragment, columns: Sequence[str], rows: range
    ) -> Iterator[pa.RecordBatch]:
        """Yield some of the visible rows of a fragment, masked; `rows` counts visible ones."""
        with hide_errors(self.part.name):
            scanner = fragment.scanner(
                columns=list(columns),
                filter=self.part.policy.where,
                offset=rows.start,
                limit=len(rows),
                batch_size=chunked_scan.batch_rows(self.dataset),
                batch_readahead=1,
                io_buffer_size=chunked_scan.READ_AHEAD,
                use_scalar_index=False,  # it might return rows in another order, of which parts are read one by one
            )
            for batch in scanner.to_batches():
                yield self.mask(batch)

    def read(
        self, columns: Sequence[str], condition: str | None = None, limit: int | None = None, offset: int = 0
    ) -> Iterator[pa.RecordBatch]:
        """Yield the visible rows, masked; `condition` is one that `can_push` allows."""
        with hide_errors(self.part.name):
            scan = PlainScan(join_conditions(self.part.policy.where, condition), limit, offset)
            more = {"columns": list(columns), "io_buffer_size": chunked_scan.READ_AHEAD, "batch_readahead": 2}
            for batch in chunked_scan.read_batches(self.dataset, scan, more):
                yield self.mask(batch)

    def mask(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a batch with masked values, and the metadata of this schema."""
        arrays, fields = [], []
        for column, array in zip(batch.schema, batch.columns, strict=True):
            shown = column if column.name in SCORES else self.schema.field(column.name)
            plain = array if array.type == shown.type else array.cast(shown.type)
            mask = self.part.policy.masks.get(column.name)
            arrays.append(plain if mask is None else mask_values(plain, mask, self.part.key))
            fields.append(shown)
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))

    def can_push(self, sql: CallerSql) -> bool:
        """Return whether a caller's filter may be evaluated together with the policy's."""
        return sql.comparisons is not None and all(
            column in self.schema.names
            and column not in self.part.policy.masks
            and (kind == "null" or self.schema.field(column).type in KINDS[kind])
            for column, kind in sql.comparisons
        )

    def require_columns(self, names: Iterable[str]) -> list[str]:
        """Return columns of this schema, each once, and at least one.

        Raises:
            TableColumnNotFoundError: there is none of a name; one that is spelled in another case does not count.
        """
        unique = list(dict.fromkeys(names))
        if missing := [name for name in unique if name not in self.schema.names]:
            raise TableColumnNotFoundError(
                f"{self.part.name} has no column {', '.join(missing)[:200]} that your grant shows; it shows"
                f" {', '.join(self.schema.names)}"
            )
        if not self.schema.names:
            raise self._misfit_error("it has no column that can be shown")
        return unique or self.schema.names[:1]

    def count(self, request: CountTableRowsRequest, sql: CallerSql) -> int:
        """Count the visible rows that match the caller's condition.

        Raises:
            InvalidInputError, TableColumnNotFoundError: the condition is not valid.
        """
        condition = (request.predicate or "").strip() or None
        columns = self.require_columns(sql.filter_columns)
        if condition is not None:
            self._probe(lambda probe: probe.scanner(filter=condition, columns=[], with_row_id=True), columns)
        if condition is None or self.can_push(sql):
            with hide_errors(self.part.name):
                where = join_conditions(self.part.policy.where, condition)
                return chunked_scan.count_rows(self.dataset, where) if where else int(self.dataset.count_rows())
        rows = self.read(columns)
        return sum(batch.num_rows for batch in self._evaluate(rows, {"filter": condition, "columns": columns[:1]}))

    def query(self, request: QueryTableRequest, sql: CallerSql) -> Iterator[bytes]:
        """Yield the rows of a query as the parts of an Arrow IPC file; it is validated before the first part.

        Raises:
            PermissionDeniedError, InvalidInputError, TableColumnNotFoundError: as for `read_query`.
        """
        return write_parts(*self.read_query(request, sql))

    def read_query(self, request: QueryTableRequest, sql: CallerSql) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """Return the schema of a query, and its rows.

        Raises:
            PermissionDeniedError: it asks for row ids, which tell how many rows there are.
            InvalidInputError, TableColumnNotFoundError: it is not valid.
        """
        request = request.model_copy(update={"filter": (request.filter or "").strip() or None})
        if request.with_row_id:
            raise PermissionDeniedError(f"{self.part.name}: a grant with a row filter or masks shows no row ids")
        projected = self.require_columns([*self._find_projected_columns(request), *sql.value_columns])
        searched = self._find_searched_columns(request)
        columns = self.require_columns([*projected, *searched, *sql.filter_columns])
        if request.columns is None or not (request.columns.column_names or request.columns.column_aliases):
            scores = [DISTANCE] if _has_vector(request) else ["_score"] if request.full_text_query else []
            named = QueryTableRequestColumns(column_names=[*self.schema.names, *scores])
            request = request.model_copy(update={"columns": named})
        schema = self._probe(lambda probe: create_scanner(probe, request, self._texts), columns)
        is_pushed = request.filter is None or self.can_push(sql)
        if not searched:
            batches = self._scan(request, columns, is_pushed=is_pushed)
        elif (
            _has_vector(request)
            and request.full_text_query is None
            and self._can_search(request, searched, is_pushed=is_pushed)
        ):
            batches = self._search(request, projected)
        else:
            batches = self._search_in_memory(request, columns)
        return schema, (batch.select(schema.names) for batch in batches)

    def _find_projected_columns(self, request: QueryTableRequest) -> list[str]:
        """Return the columns that a query returns as they are or by their fields; by default all."""
        if request.columns is None or not (request.columns.column_names or request.columns.column_aliases):
            return list(self.schema.names)
        names = request.columns.column_names or ()
        scores = {DISTANCE, "_score", QUERY_INDEX} if self._find_searched_columns(request) else set[str]()
        return [name if name in self.schema.names else name.partition(".")[0] for name in names if name not in scores]

    def _find_searched_columns(self, request: QueryTableRequest) -> list[str]:
        columns = []
        if _has_vector(request):
            column = request.vector_column or default_vector_column(self.schema)
            columns.append(column if column in self.schema.names else column.partition(".")[0])
        if request.full_text_query is not None:
            for text in _text_columns(request.full_text_query.model_dump()):
                if text is None and not self._texts:
                    raise InvalidInputError(f"{self.part.name} has no column of texts that your grant shows")
                columns += self._texts if text is None else [text]
        return columns

    @cached_property
    def _texts(self) -> list[str]:
        """The columns that a search by words without a column looks at: which have an index is not shown."""
        return [column.name for column in self.schema if column.type in KINDS["text"]]

    def _probe(self, scan: Any, columns: Sequence[str]) -> pa.Schema:
        """Return the schema of a caller's scan; one that is not valid fails here, where there are no rows."""
        empty = pa.schema([self.schema.field(name) for name in columns]).empty_table()
        with translate_errors(self.part.name):
            schema: pa.Schema = scan(_write_to_memory(empty)).projected_schema
            return schema

    def _scan(self, request: QueryTableRequest, columns: list[str], *, is_pushed: bool) -> Iterator[pa.RecordBatch]:
        limit, offset = request.k or None, request.offset or 0
        projection, is_plain = self._projection(request)
        if not is_pushed:
            rows = self._evaluate(self.read(columns), {"filter": request.filter, "columns": projection})
            return chunked_scan.slice_batches(rows, offset, limit)
        rows = self.read(columns, request.filter, limit, offset)
        return rows if is_plain else self._evaluate(rows, {"columns": projection})

    def _projection(self, request: QueryTableRequest) -> tuple[list[str] | dict[str, str], bool]:
        """Return the columns that a query names, and whether all of them are columns of the table or scores."""
        columns = request.columns
        assert columns is not None
        if columns.column_names:
            return columns.column_names, {*columns.column_names} <= {*self.schema.names, DISTANCE, QUERY_INDEX}
        return columns.column_aliases or {}, False

    def _evaluate(self, rows: Iterator[pa.RecordBatch], scan: Mapping[str, Any]) -> Iterator[pa.RecordBatch]:
        """Run a caller's scan over masked rows, some megabytes of them at a time."""
        for group in chunked_scan.group_up_to(rows, lambda batch: batch.nbytes, CHUNK_BYTES):
            with translate_errors(self.part.name):
                yield from _write_to_memory(pa.Table.from_batches(group)).scanner(**scan).to_batches()

    def _can_search(self, request: QueryTableRequest, searched: list[str], *, is_pushed: bool) -> bool:
        """Return whether Lance can search the table itself: by unmasked vectors, the rows selected before."""
        is_selected = request.filter is None or (is_pushed and bool(request.prefilter))
        return is_selected and not any(column in self.part.policy.masks for column in searched)

    def _search(self, request: QueryTableRequest, projected: list[str]) -> Iterator[pa.RecordBatch]:
        """Let Lance search the visible rows, by an index if there is one."""
        more = {
            "filter": join_conditions(self.part.policy.where, request.filter),
            "prefilter": True,
            "columns": QueryTableRequestColumns(column_names=[*projected, DISTANCE]),
            "vector_column": request.vector_column or default_vector_column(self.schema),
        }
        with hide_errors(self.part.name):
            rows: pa.Table = create_scanner(self.dataset, request.model_copy(update=more)).to_table()
        masked = [self.mask(batch) for batch in rows.to_batches()]
        projection, is_plain = self._projection(request)
        if is_plain:
            yield from masked
            return
        scores = [name for name in (DISTANCE, QUERY_INDEX) if name in rows.column_names and name not in projection]
        if isinstance(projection, list):
            yield from self._evaluate(iter(masked), {"columns": [*projection, *scores]})
        else:
            yield from self._evaluate(iter(masked), {"columns": {**projection, **{name: name for name in scores}}})

    def _search_in_memory(self, request: QueryTableRequest, columns: list[str]) -> Iterator[pa.RecordBatch]:
        """Search the masked rows, held in memory: by masked vectors, by words, or with any filter.

        Words are searched like this because the scores of an index tell how many hidden rows have a word.
        """
        held, size = [], 0
        for batch in self.read(columns):
            held.append(batch)
            size += batch.nbytes
            if size > SEARCH_BYTES:
                raise InvalidInputError(
                    f"{self.part.name}: your grant has a row filter or masks, and such a search then reads all visible"
                    f" rows, {SEARCH_BYTES >> 20} MB of them at most: search by an unmasked vector column, with a"
                    " filter that only compares unmasked columns with literals, and with prefilter"
                )
        schema = pa.schema([self.schema.field(name) for name in columns])
        with translate_errors(self.part.name):
            rows = _write_to_memory(pa.Table.from_batches(held, schema))
            # Rows in memory have no index, and so none would be found among the indexed rows alone.
            everything = request.model_copy(update={"fast_search": None})
            yield from create_scanner(rows, everything, self._texts).to_batches()


def can_mask(dtype: pa.DataType, mask: str | None) -> bool:
    """Return whether a mask fits the values of a type: the type stays."""
    if mask is None or mask == NULL:
        return True
    return dtype in KINDS["text"] or (mask == HASH and dtype == pa.int64())


def mask_values(array: Any, mask: str, key: bytes) -> Any:
    """Return masked values of the same type; only a hash of null is null, as is its value."""
    if mask == NULL:
        return _nulls(array.type, len(array))
    if mask.startswith(TEXT):
        return pa.repeat(pa.scalar(mask.removeprefix(TEXT), array.type), len(array))
    distinct = array.dictionary_encode()
    hashed = pa.array([_hash(value, key) for value in distinct.dictionary.to_pylist()], array.type)
    return hashed.take(distinct.indices)


def _nulls(dtype: Any, count: int) -> Any:
    storage: Any = dtype.storage_type if isinstance(dtype, pa.BaseExtensionType) else dtype
    nulls: Any = pa.nulls(count, storage)
    return nulls if storage is dtype else pa.ExtensionArray.from_storage(dtype, nulls)


def _hash(value: str | int, key: bytes) -> str | int:
    """Return 32 hexadecimal digits for a text, and a number from 0 for a number."""
    if isinstance(value, str):
        return blake2b(b"t" + value.encode(), key=key, digest_size=16).hexdigest()
    digest = blake2b(b"n" + str(value).encode(), key=key, digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def join_conditions(*conditions: str | None) -> str | None:
    """Return a condition that holds where all of the given ones do; None if there are none."""
    terms = [condition for condition in conditions if condition]
    return " AND ".join(f"({condition})" for condition in terms) if terms else None


@contextmanager
def hide_errors(name: str) -> Iterator[None]:
    """Run a block that reads hidden values: its errors may contain them, so the caller learns only that it failed.

    Raises:
        PermissionDeniedError: the policy cannot be evaluated.
        ServiceUnavailableError, ThrottlingError: the storage cannot be reached.
        TableNotFoundError, TableVersionNotFoundError, TableBranchNotFoundError: it does not exist.
    """
    try:
        with translate_errors(name):
            yield
    except PASSED_ON as error:
        raise type(error)(f"{name}: the storage cannot be read now; try again") from None
    except NOT_FOUND as error:
        raise type(error)(f"{name}: there is no such table, version or branch") from None
    except LanceNamespaceError as error:
        log.warning("%s: a row filter or mask of a grant cannot be applied: %s", name, type(error).__name__)
        raise PermissionDeniedError(
            f"{name}: the row filter of your grant cannot be evaluated in this version of the table; ask an admin"
        ) from None


def _write_to_memory(rows: pa.Table) -> lance.LanceDataset:
    """Return a dataset that holds some rows, and nothing outside of this process; it is freed with its last user."""
    return lance.write_dataset(rows, f"memory://{uuid4().hex}")


def _has_vector(request: QueryTableRequest) -> bool:
    return bool(request.vector.single_vector or request.vector.multi_vector)


def _text_columns(query: Any) -> list[str | None]:
    """Return the columns that the parts of a full-text query name, at any depth; None for a part that names none."""
    match query:
        case {"query": str()}:
            return list(query.get("columns") or [None])
        case {"terms": str()}:
            return [query.get("column")]
        case dict():
            return [name for part in query.values() for name in _text_columns(part)]
        case list():
            return [name for part in query for name in _text_columns(part)]
    return []
