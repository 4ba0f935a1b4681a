"""Validate a requested index: column, kind and parameters, before any work is done."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import Any, Self

import lance
import pyarrow as pa
from lance.indices import IndexConfig
from lance_namespace.errors import InvalidInputError, TableColumnNotFoundError, TableIndexAlreadyExistsError

from lancehouse.lake.dataset import TableRef
from lancehouse.lake.errors import clean_message, find_error_class
from lancehouse.lake.index_operations import ALIASES, SCALAR, VECTOR, default_sub_vectors
from lancehouse.lake.scans import empty_dataset

PQ_BITS = 8
"""Lance's default number of bits for product quantization."""

_MOST_PARTITIONS = 4096
_PARTITION_ROWS: Mapping[str, int] = MappingProxyType({"IVF_FLAT": 4096, "IVF_RQ": 4096, "IVF_PQ": 8192})
_HNSW_PARTITION_ROWS = 1 << 20
"""Number of rows that Lance itself would put into a partition of an HNSW index."""

_VECTOR_PARAMS = ("metric", "num_partitions", "target_partition_size", "sample_rate", "max_iters")
_PARAMS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "BTREE": ("zone_size",),
        "ZONEMAP": ("rows_per_zone",),
        "BLOOMFILTER": ("number_of_items", "probability"),
        "PQ": ("num_sub_vectors", "num_bits"),
        "RQ": ("num_bits",),
        "HNSW": ("m", "ef_construction", "max_level"),
    }
)
"""Parameters by kind, or by a part of the kind's name. pylance silently ignores all others, except for full text."""
_FAILURES = (ValueError, TypeError, KeyError, RuntimeError, OSError, ArithmeticError)
"""What pylance raises for parameters that it rejects."""
_FIRST_LEVEL = re.compile(r"`([^`]+)`|([^.`]+)")


@dataclass(frozen=True, slots=True)
class IndexBuild:
    """An index to build, or the part of it that covers some fragments of a version."""

    version: int
    column: str
    kind: str
    name: str
    replace: bool
    params: dict[str, Any]
    fragments: list[int] = field(default_factory=list)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse what `text` returned."""
        return cls(**json.loads(text))

    @property
    def text(self) -> str:
        """The build as JSON text."""
        return json.dumps(asdict(self))

    @property
    def metric(self) -> str:
        """The distance metric of a vector index, in lower case."""
        metric = str(self.params.get("metric", "l2")).lower()
        return "l2" if metric == "euclidean" else metric

    @property
    def is_vector(self) -> bool:
        """Whether it is a vector index."""
        return self.kind in VECTOR

    @property
    def can_be_split(self) -> bool:
        """Whether the index can be built in parts without losing recall.

        pylance cannot give the parts of the others one scale.
        """
        return not self.kind.endswith("SQ") and not (self.kind.endswith("PQ") and self.metric == "dot")

    @property
    def arguments(self) -> dict[str, Any]:
        """Keyword arguments for pylance, which ignores parameters of scalar indices outside an `IndexConfig`."""
        if self.is_vector or self.kind == "FTS":
            return {"index_type": self.kind, **self.params}
        return {"index_type": IndexConfig(self.kind.lower(), self.params) if self.params else self.kind}


def resolve_build(table: TableRef, dataset: lance.LanceDataset, requested: IndexBuild) -> IndexBuild:
    """Return the build with normalized kind and all defaults filled in, checked against the table as it is now.

    Raises:
        TableColumnNotFoundError: there is no such column.
        TableIndexAlreadyExistsError: there is an index of this name, and it is not to be replaced.
        InvalidInputError: the kind is unknown, or does not fit the column's type or the parameters.
    """
    build = _normalize_build(table, dataset, requested)
    _check_name(table, dataset, build)
    rows = dataset.count_rows()
    if build.kind == "BITMAP" and not rows:
        raise InvalidInputError(f"{table} has no rows yet, without which there can be no index BITMAP")
    return _complete_build(table, dataset, build, rows)


def check_buildable(
    table: TableRef, schema: pa.Schema, column: str, kind: str, name: str, params: Mapping[str, Any]
) -> None:
    """Check that an index can be built on a table of this schema, provided that it has enough rows.

    Raises:
        TableColumnNotFoundError: there is no such column.
        InvalidInputError: the kind is unknown, or does not fit the column's type or the parameters.
    """
    dataset = empty_dataset(schema)
    requested = IndexBuild(dataset.version, column, kind, name, False, dict(params))
    _complete_build(table, dataset, _normalize_build(table, dataset, requested), rows=0)


def _normalize_build(table: TableRef, dataset: lance.LanceDataset, requested: IndexBuild) -> IndexBuild:
    """Return the build with its kind as pylance calls it, after checking that kind, parameters and column exist."""
    kind = ALIASES.get(requested.kind.upper(), requested.kind.upper())
    if kind not in VECTOR + SCALAR:
        raise InvalidInputError(f"an index {requested.kind!r} is none of {', '.join(VECTOR + SCALAR)}")
    build = dataclasses.replace(requested, kind=kind)
    _check_column(table, dataset, build)
    _check_params(build)
    if build.kind == "RTREE" and not _is_geometry(dataset.lance_schema.field_case_insensitive(build.column)):
        raise InvalidInputError(f"{table}: column {build.column} has no geometries, of which an index RTREE is")
    return build


def _complete_build(table: TableRef, dataset: lance.LanceDataset, build: IndexBuild, rows: int) -> IndexBuild:
    """Return the build with all defaults filled in, after a trial build on a tiny table."""
    if build.is_vector:
        build = _with_defaults(table, build, column_type(dataset, build), rows)
    _try_build(table, dataset, build)
    return build


def column_type(dataset: lance.LanceDataset, build: IndexBuild) -> Any:
    """Return the Arrow type of the column to index."""
    return dataset.lance_schema.field_case_insensitive(build.column).to_arrow().type


def vector_dimension(dtype: Any) -> int:
    """Return the dimension of a vector type; 0 if it is no vector type."""
    if isinstance(dtype, pa.ListType):
        dtype = dtype.value_type
    if isinstance(dtype, pa.FixedShapeTensorType):
        dtype = dtype.storage_type
    is_vector = isinstance(dtype, pa.FixedSizeListType) and (
        pa.types.is_floating(dtype.value_type) or pa.types.is_uint8(dtype.value_type)
    )
    return int(dtype.list_size) if is_vector else 0


def _check_column(table: TableRef, dataset: lance.LanceDataset, build: IndexBuild) -> None:

    # The path of a full-text index may go through lists, which pylance resolves only while it builds the index.
    is_there = dataset.lance_schema.field_case_insensitive(build.column) is not None or build.kind == "FTS"
    if not is_there or _top_level_column(dataset, build) is None:
        raise TableColumnNotFoundError(f"{table} has no column {build.column}")


def _top_level_column(dataset: lance.LanceDataset, build: IndexBuild) -> Any:
    """Return the top-level column where the path begins, or None."""
    first = _FIRST_LEVEL.match(build.column)
    name = "" if first is None else (first[1] or first[2]).lower()
    return next((each for each in dataset.schema if each.name.lower() == name), None)


def _check_name(table: TableRef, dataset: lance.LanceDataset, build: IndexBuild) -> None:
    existing = next((index for index in dataset.describe_indices() if index.name == build.name), None)
    if existing is None:
        return
    if not build.replace:
        raise TableIndexAlreadyExistsError(f"{table} has an index {build.name}; replace=True builds it anew")
    column = dataset.lance_schema.field_case_insensitive(build.column)
    if column is not None and existing.fields != [column.id()]:
        raise InvalidInputError(
            f"{table}: the index {build.name} is one of {', '.join(existing.field_names)}, not of {build.column}; "
            "drop it "
            "or choose another name"
        )


def _check_params(build: IndexBuild) -> None:
    parts = build.kind.split("_") if build.is_vector else [build.kind]
    allowed = [
        *(_VECTOR_PARAMS if build.is_vector else ()),
        *(each for part in parts for each in _PARAMS.get(part, ())),
    ]
    unknown = sorted(set(build.params) - set(allowed))
    if unknown and build.kind != "FTS":
        has = f"it has {', '.join(allowed)}" if allowed else "it has none"
        raise InvalidInputError(f"an index {build.kind} has no parameter {', '.join(unknown)}; {has}")
    for key, value in build.params.items() if build.is_vector else ():
        if key != "metric" and (not isinstance(value, int) or value < 1):
            raise InvalidInputError(f"{key} must be 1 or more, not {value!r}")


def _is_geometry(column: Any) -> bool:
    """Return whether a column may hold geometries: WKB, WKT or a GeoArrow type."""
    arrow_field = column.to_arrow()
    is_plain = any(
        is_it(arrow_field.type) for is_it in (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_string)
    )
    named = (arrow_field.metadata or {}).get(b"ARROW:extension:name", b"")
    return is_plain or named.startswith(b"geoarrow.") or isinstance(arrow_field.type, pa.BaseExtensionType)


def _with_defaults(table: TableRef, build: IndexBuild, dtype: Any, rows: int) -> IndexBuild:
    """Return a vector index with every parameter set on which its parts have to agree."""
    if not vector_dimension(dtype):
        raise InvalidInputError(
            f"{table}: column {build.column} is {dtype}; an index {build.kind} is of fixed-size lists of numbers"
        )
    params = dict(build.params)
    if build.kind.endswith("PQ"):
        params.setdefault("num_sub_vectors", default_sub_vectors(dtype))
    if build.can_be_split:
        target_rows = params.pop("target_partition_size", _PARTITION_ROWS.get(build.kind, _HNSW_PARTITION_ROWS))
        params.setdefault("num_partitions", min(max(rows // target_rows, 1), _MOST_PARTITIONS))
    needed = max(params.get("num_partitions", 1), 2 ** params.get("num_bits", PQ_BITS) if "PQ" in build.kind else 1)
    if 0 < rows < needed:
        raise InvalidInputError(f"{table} has {rows} rows; an index {build.kind} like this takes at least {needed}")
    return dataclasses.replace(build, params=params)


def _try_build(table: TableRef, dataset: lance.LanceDataset, build: IndexBuild) -> None:
    """Build the index on a tiny table in memory, so that pylance's own checks run before the real work."""
    try:
        if build.is_vector:
            rows = pa.table({"v": _sample_vectors(column_type(dataset, build), 2**PQ_BITS)})
            trial = dataclasses.replace(build, params=build.params | {"num_partitions": 1, "max_iters": 1})
            lance.write_dataset(rows, "memory://").create_index("v", **trial.arguments)
        else:
            empty = pa.schema([_top_level_column(dataset, build)]).empty_table()
            trial_dataset = lance.write_dataset(empty, "memory://", data_storage_version=dataset.data_storage_version)
            trial_dataset.create_scalar_index(build.column, **build.arguments)
    except _FAILURES as error:
        kind = (
            TableColumnNotFoundError if find_error_class(str(error)) is TableColumnNotFoundError else InvalidInputError
        )
        described = f"an index {build.kind}" + (f" with {build.params}" if build.params else "")
        message = " ".join(map(str, error.args)) if isinstance(error, TypeError) else str(error)
        raise kind(f"{table}: column {build.column} cannot have {described}: {clean_message(message)}") from error


def _sample_vectors(dtype: Any, count: int) -> Any:
    if isinstance(dtype, pa.ListType):
        return pa.ListArray.from_arrays(
            pa.array(range(count + 1), pa.int32()), _sample_vectors(dtype.value_type, count)
        )
    if isinstance(dtype, pa.FixedShapeTensorType):
        return pa.ExtensionArray.from_storage(dtype, _sample_vectors(dtype.storage_type, count))
    mixed = (float(number * number % 7919 % 100) for number in range(count * dtype.list_size))
    numbers = pa.array(mixed, pa.float64())
    return pa.FixedSizeListArray.from_arrays(numbers.cast(dtype.value_type), type=dtype)
