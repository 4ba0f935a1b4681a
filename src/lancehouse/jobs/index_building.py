"""Build and optimize the indices of one table, split into tasks that can run in any process.

`create_index` is the whole job: `plan` splits the work, `train` computes the model that the tasks of a vector index
share, `execute` builds one part in any process, and `commit` makes one index of all results.

Each part becomes a segment of the index, and a search looks into all segments. Two kinds are not split: scalar
quantization (SQ), and product quantization (PQ) by dot product. pylance 14 has no way to give their parts a common
scale, without which searches miss much of what they should find.
"""

from __future__ import annotations

import dataclasses
import heapq
import json
import re
import tempfile
from base64 import b64decode, b64encode
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any
from uuid import uuid4

import lance
import pyarrow as pa
from lance.dataset import Index, IndexFile
from lance.indices import IndexConfig
from lance.lance import indices as native
from lance_namespace.errors import (
    ConcurrentModificationError,
    InvalidInputError,
    TableColumnNotFoundError,
    TableIndexAlreadyExistsError,
    TableIndexNotFoundError,
)

from lancehouse.jobs.address import TableAddress
from lancehouse.jobs.compaction import explain_conflict
from lancehouse.jobs.engine import Engine
from lancehouse.jobs.job import Job
from lancehouse.jobs.orphans import require_latest
from lancehouse.lake.commits import locate_table
from lancehouse.lake.dataset import TableRef, empty_dataset, open_files
from lancehouse.lake.errors import clean_message, find_error_class, translate_errors
from lancehouse.lake.manifests import STAGING
from lancehouse.lake.operations import ALIASES, SCALAR, VECTOR, default_sub_vectors
from lancehouse.schema.definitions import shown_columns
from lancehouse.schema.walk import no_column_error
from lancehouse.suggestions import suggest

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
        hint = suggest(requested.kind, [*VECTOR, *SCALAR, *ALIASES])
        raise InvalidInputError(f"there is no kind of index {requested.kind!r}; {hint}")
    build = dataclasses.replace(requested, kind=kind)
    _check_column(table, dataset, build)
    _check_params(build)
    if build.kind == "RTREE" and not _is_geometry(dataset.lance_schema.field_case_insensitive(build.column)):
        raise InvalidInputError(f"{table}: column {build.column} has no geometries, of which an index RTREE is")
    return build


def _complete_build(table: TableRef, dataset: lance.LanceDataset, build: IndexBuild, rows: int) -> IndexBuild:
    """Return the build with all defaults filled in, after a trial build on a tiny table."""
    if build.is_vector:
        build = _set_defaults(table, build, column_type(dataset, build), rows)
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
        raise no_column_error(table, [build.column], shown_columns(dataset.schema))


def _top_level_column(dataset: lance.LanceDataset, build: IndexBuild) -> Any:
    """Return the top-level column where the path begins, or None."""
    first = _FIRST_LEVEL.match(build.column)
    name = "" if first is None else (first[1] or first[2]).lower()
    return next((field for field in dataset.schema if field.name.lower() == name), None)


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
        *(name for part in parts for name in _PARAMS.get(part, ())),
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
    extension_name = (arrow_field.metadata or {}).get(b"ARROW:extension:name", b"")
    return is_plain or extension_name.startswith(b"geoarrow.") or isinstance(arrow_field.type, pa.BaseExtensionType)


def _set_defaults(table: TableRef, build: IndexBuild, dtype: Any, rows: int) -> IndexBuild:
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


TASKS = 8
"""Default for the largest number of tasks of an index build."""
ROWS_PER_TASK = 100_000
"""Default for the least number of rows that are worth a task."""

_SAMPLE_RATE, _MAX_ITERS = 256, 50
"""Lance's defaults."""


@dataclass(frozen=True, slots=True)
class BuiltIndex:
    """An index that was built and committed."""

    version: int
    """The version of the table that the commit has made."""
    name: str
    segments: int


def _format_segment(index: Index) -> str:
    """Return a segment of an index that is not committed yet, as JSON text."""
    fields = {field.name: getattr(index, field.name) for field in dataclasses.fields(Index)} | {
        "fragment_ids": sorted(index.fragment_ids),
        "created_at": index.created_at.isoformat() if index.created_at else None,
        "files": None if index.files is None else [(file.path, file.size_bytes) for file in index.files],
        "index_details": (index.index_details[0], b64encode(index.index_details[1]).decode()),
    }
    return json.dumps(fields)


def _parse_segment(text: str) -> Index:
    """Parse what `_format_segment` returned."""
    fields = json.loads(text)
    fields |= {
        "fragment_ids": set(fields["fragment_ids"]),
        "created_at": datetime.fromisoformat(fields["created_at"]) if fields["created_at"] else None,
        "files": None if fields["files"] is None else [IndexFile(*file) for file in fields["files"]],
        "index_details": (fields["index_details"][0], b64decode(fields["index_details"][1])),
    }
    return Index(**fields)


def create_index(
    engine: Engine,
    address: TableAddress,
    column: str,
    kind: str,
    name: str | None,
    replace: bool,
    params: dict[str, Any],
) -> BuiltIndex:
    """Build an index. The model that its parts share is trained first. If it fails, its files are removed.

    Raises:
        ConcurrentModificationError: others have rewritten what was indexed, changed the column or made such an index.
    """
    table, job, used = address.to_ref(), Job(address), list[str]()
    tasks = plan(table, column, kind, name, replace=replace, tasks=engine.parallelism, **params)

    def train_model(build: IndexBuild) -> list[str]:
        model = train(job.to_ref(), build)
        job.record_written([model])
        return [model]

    with job.clean_up_after(used):
        [model] = engine.run(tasks[:1], train_model) if needs_model(tasks) else [None]

        def build_segment(task: IndexBuild) -> list[str]:
            result = execute(job.to_ref(), task, model)
            job.record_written([_folder(result)])
            return [result]

        results = engine.run(tasks, build_segment)
        used += map(_folder, results)
        return commit(table, tasks[0], results)


def _folder(result: str) -> str:
    return f"_indices/{json.loads(result)['uuid']}"


def optimize_indices(
    engine: Engine, address: TableAddress, names: Sequence[str] | None, *, retrain: bool = False
) -> int:
    """Add new rows to indices; pylance does that in one step, which is one piece here. Return the new version."""
    [version] = engine.run([0], lambda _: [str(optimize(address.to_ref(), names, retrain=retrain))])
    return int(version)


def optimize_stale_indices(engine: Engine, address: TableAddress, columns: Collection[str] | None = None) -> int:
    """Add rows to those indices on some columns, or on any, that do not have all; return the version afterwards."""
    with address.to_ref().dataset() as dataset:
        rows = dataset.count_rows()
        stale = [
            index.name
            for index in dataset.describe_indices()
            if index.num_rows_indexed < rows and (columns is None or not set(columns).isdisjoint(index.field_names))
        ]
    return optimize_indices(engine, address, stale) if stale else int(dataset.version)


def plan(
    table: TableRef,
    column: str,
    kind: str,
    name: str | None = None,
    *,
    replace: bool = False,
    tasks: int = TASKS,
    rows_per_task: int = ROWS_PER_TASK,
    **params: Any,
) -> list[IndexBuild]:
    """Check that an index can be built, by building it on a tiny table in memory, and split the work into tasks.

    Tasks that share a model, see `needs_model`, are executed after `train`.

    Args:
        table: the table, or a branch of it.
        column: path of the column.
        kind: any of `VECTOR`, `SCALAR` and `ALIASES` in `lake.operations`, in upper or lower case.
        name: name of the index; by default that of the column followed by `_idx`.
        replace: rebuild an index of that name if there is one.
        tasks: largest number of tasks; each gets about the same number of rows.
        rows_per_task: least number of rows for a task; a small table gets fewer tasks.
        params: parameters of this kind of index, under pylance's names.

    Raises:
        TableColumnNotFoundError: there is no such column.
        TableIndexAlreadyExistsError: there is an index of this name, and `replace` is False.
        InvalidInputError: the kind is unknown, or does not fit the column's type or the parameters.
    """
    require_latest(table)
    set_params = {key: value for key, value in params.items() if value is not None}
    with table.dataset() as dataset:
        requested = IndexBuild(dataset.version, column, kind, name or f"{column}_idx", replace, set_params)
        build = resolve_build(table, dataset, requested)
        max_groups = min(tasks, dataset.count_rows() // max(rows_per_task, 1)) if build.can_be_split else 1
        groups = _group_fragments(dataset, max_groups)
    return [dataclasses.replace(build, fragments=group) for group in groups]


def needs_model(tasks: Sequence[IndexBuild]) -> bool:
    """Return whether the tasks of a plan share a model."""
    return len(tasks) > 1 and tasks[0].is_vector


def train(table: TableRef, build: IndexBuild) -> str:
    """Train the centroids, and the code book, that all parts of a vector index share; return a model for `execute`.

    The model is a file below the table's location, which is not needed any more once the index is committed.
    """
    with dataclasses.replace(table, version=build.version).dataset() as dataset:
        width = vector_dimension(column_type(dataset, build))
        effort = (build.params.get("sample_rate", _SAMPLE_RATE), build.params.get("max_iters", _MAX_ITERS))
        at = (dataset._ds, build.column, width)
        partitions, metric = build.params["num_partitions"], build.metric
        centroids = native.train_ivf_model(*at, partitions, metric, *effort, None)
        codebook = rotation = None
        if build.kind.endswith("PQ"):
            parts, bits = build.params["num_sub_vectors"], build.params.get("num_bits", PQ_BITS)
            codebook = native.train_pq_model(*at, parts, metric, *effort, centroids, None, bits)
        if build.kind.endswith("RQ"):
            bits = {"num_bits": build.params["num_bits"]} if "num_bits" in build.params else {}
            rotation = native.build_rq_model(dimension=width, **bits)
    return _store_model(table, centroids, codebook, rotation)


def execute(table: TableRef, task: IndexBuild, model: str | None = None) -> str:
    """Build the index over the fragments of a task; return a result for `commit`.

    Args:
        table: the same as that of the plan.
        task: one of the plan's tasks.
        model: what `train` returned, if the tasks share a model.
    """
    arguments = task.arguments if model is None else task.arguments | _load_model(table, model)
    with dataclasses.replace(table, version=task.version).dataset() as dataset:
        index = dataset.create_index_uncommitted(
            task.column, name=task.name, replace=task.replace, fragment_ids=task.fragments, **arguments
        )
    return _format_segment(index)


def commit(table: TableRef, build: IndexBuild, results: Sequence[str]) -> BuiltIndex:
    """Commit one index made of the results of all tasks of a plan, any of which is `build`.

    Rows that others append or delete meanwhile are no obstacle; new rows are not in the index until `optimize`.

    Raises:
        ConcurrentModificationError: others have rewritten what was indexed, changed the column or made such an index.
    """
    segments = list(map(_parse_segment, results))
    column = _require_column(table, build, segments[0].fields[0])
    base = dataclasses.replace(table, version=build.version)
    with explain_conflict(table, f"the index {build.name}"), base.dataset() as dataset:
        dataset.commit_existing_index_segments(build.name, column, segments)
    return BuiltIndex(version=dataset.version, name=build.name, segments=len(segments))


def optimize(table: TableRef, names: Sequence[str] | None = None, *, retrain: bool = False) -> int:
    """Add rows to indices that were built before the rows came; return the version of the table afterwards.

    pylance does this in one step, including the commit: there is nothing to distribute.

    Args:
        table: the table, or a branch of it.
        names: names of the indices; all by default.
        retrain: rebuild the indices from scratch.

    Raises:
        TableIndexNotFoundError: there is no such index.
        ConcurrentModificationError: others have rewritten what was indexed.
    """
    require_latest(table)
    chosen = {} if names is None else {"index_names": list(names)}
    with explain_conflict(table, "the optimized indices"), table.dataset() as dataset:
        existing = {index.name for index in dataset.describe_indices()}
        if unknown := sorted(set(names or ()) - existing):
            raise TableIndexNotFoundError(f"{table} has no index {', '.join(unknown)}")
        dataset.optimize.optimize_indices(retrain=retrain, **chosen)
        return int(dataset.version)


@dataclass(frozen=True, slots=True)
class ExistingIndex:
    """An index that a table has."""

    name: str
    columns: tuple[str, ...]
    kind: str
    unindexed: int
    """Number of rows that the index does not cover yet."""

    def is_same_kind(self, column: str, kind: str) -> bool:
        """Return whether this is an index of that kind on that column."""
        return self.columns == (column,) and _normalize_kind(self.kind) == _normalize_kind(kind)


def find_index(table: TableRef, name: str) -> ExistingIndex | None:
    """Return the index of a name, or None."""
    with table.dataset() as dataset:
        lance_index = next((index for index in dataset.describe_indices() if index.name == name), None)
        if lance_index is None:
            return None
        rows = dataset.count_rows() - lance_index.num_rows_indexed
    return ExistingIndex(name, tuple(lance_index.field_names), lance_index.index_type, max(rows, 0))


def _normalize_kind(kind: str) -> str:
    """Return one spelling for a kind of index, for which pylance uses several."""
    upper = kind.upper()
    return ALIASES.get(upper, upper).replace("_", "")


# Tasks, and the model that they share


def _group_fragments(dataset: lance.LanceDataset, most: int) -> list[list[int]]:
    """Split the fragments into at most `most` groups of about the same number of rows.

    Without fragments, there is one empty group.
    """
    sizes = [(fragment.metadata.physical_rows, fragment.fragment_id) for fragment in dataset.get_fragments()]
    groups: list[tuple[int, int, list[int]]] = [(0, number, []) for number in range(max(most, 1))]
    for rows, fragment in sorted(sizes, reverse=True):
        group_rows, number, group = heapq.heappop(groups)
        heapq.heappush(groups, (group_rows + rows, number, [*group, fragment]))
    return [sorted(group) for _, _, group in groups if group] or [[]]


def _store_model(table: TableRef, centroids: Any, codebook: Any, rotation: str | None) -> str:
    at, name = locate_table(table), f"{STAGING}/{uuid4()}.model"
    columns = {
        "ivf_centroids": _to_single_row(centroids),
        "pq_codebook": _to_single_row(codebook),
        "rabitq_model": [rotation],
    }
    model = pa.table({key: value for key, value in columns.items() if value[0] is not None})
    with translate_errors(table, at.storage_options), tempfile.TemporaryDirectory() as scratch:
        with pa.ipc.new_file(f"{scratch}/model", model.schema) as writer:
            writer.write_table(model)
        session = open_files(at.location, at.storage_options)
        session.upload_file(f"{scratch}/model", name)
    return name


def _load_model(table: TableRef, model: str) -> dict[str, Any]:
    at = locate_table(table)
    with translate_errors(table, at.storage_options), tempfile.TemporaryDirectory() as scratch:
        session = open_files(at.location, at.storage_options)
        session.download_file(model, f"{scratch}/model")
        shared = pa.ipc.open_file(Path(f"{scratch}/model").read_bytes()).read_all()
    return {
        name: column[0].values if pa.types.is_list(column.type) else column[0].as_py()
        for name, column in zip(shared.column_names, shared.columns, strict=True)
    }


def _to_single_row(values: Any) -> Any:
    return [None] if values is None else pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values)


def _require_column(table: TableRef, build: IndexBuild, indexed: int) -> str:
    """Check that the indexed column still exists, and return its full path, which includes list items.

    Committing an index of a column that is gone would break the table: pylance does not check it.
    """
    with table.dataset() as dataset:
        paths = _column_paths(dataset.lance_schema.fields())
    if indexed not in paths:
        raise ConcurrentModificationError(
            f"{table}: column {build.column} was changed since version {build.version}; plan the index again"
        )
    return paths[indexed]


def _column_paths(fields: Sequence[Any], above: str = "") -> dict[int, str]:
    """Return the paths of all columns, nested ones included, by field id."""
    paths: dict[int, str] = {}
    for column in fields:
        path = above + (f"`{column.name()}`" if "." in column.name() else column.name())
        paths |= {column.id(): path, **_column_paths(column.children(), f"{path}.")}
    return paths
