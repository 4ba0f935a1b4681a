"""Operations of the Lance interface on indices, and statistics of a table."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import lance
import pyarrow as pa
from lance_namespace import (
    CreateTableIndexRequest,
    CreateTableIndexResponse,
    CreateTableScalarIndexResponse,
    DescribeTableIndexStatsRequest,
    DescribeTableIndexStatsResponse,
    DropTableIndexRequest,
    DropTableIndexResponse,
    GetTableStatsRequest,
    GetTableStatsResponse,
    LanceNamespace,
    ListTableIndicesRequest,
    ListTableIndicesResponse,
)
from lance_namespace.errors import InvalidInputError, TableColumnNotFoundError, TableIndexNotFoundError
from lance_namespace_urllib3_client.models.fragment_stats import FragmentStats
from lance_namespace_urllib3_client.models.fragment_summary import FragmentSummary
from lance_namespace_urllib3_client.models.index_content import IndexContent

from lancehouse.lake.dataset import TableRef
from lancehouse.lake.versions import transaction_id
from lancehouse.paging import paginate

VECTOR = ("IVF_FLAT", "IVF_PQ", "IVF_SQ", "IVF_RQ", "IVF_HNSW_FLAT", "IVF_HNSW_PQ", "IVF_HNSW_SQ")
SCALAR = ("BTREE", "BITMAP", "LABEL_LIST", "NGRAM", "ZONEMAP", "BLOOMFILTER", "RTREE", "FTS")
ALIASES: Mapping[str, str] = MappingProxyType({"INVERTED": "FTS", "SCALAR": "BTREE", "VECTOR": "IVF_PQ"})

_VECTOR_OPTIONS: Mapping[str, str] = MappingProxyType(
    {
        "num_partitions": "num_partitions",
        "num_sub_vectors": "num_sub_vectors",
        "num_bits": "num_bits",
        "sample_rate": "sample_rate",
        "max_iterations": "max_iters",
        "target_partition_size": "target_partition_size",
        "m": "m",
        "ef_construction": "ef_construction",
        "distance_type": "metric",
    }
)
"""Options of vector indices: their names in a request and in pylance."""
_TEXT_OPTIONS = (
    "with_position",
    "base_tokenizer",
    "language",
    "max_token_length",
    "lower_case",
    "stem",
    "remove_stop_words",
    "ascii_folding",
)

_SMALL_ROWS = 1024 * 1024
"""Number of rows below which compaction would merge a fragment."""


class IndexOperations(LanceNamespace):
    """Operations on indices, and statistics."""

    def create_table_index(self, request: CreateTableIndexRequest) -> CreateTableIndexResponse:
        """Build an index of any kind, and wait until it is done."""
        return CreateTableIndexResponse(transaction_id=self._create_index(request, VECTOR + SCALAR))

    def create_table_scalar_index(self, request: CreateTableIndexRequest) -> CreateTableScalarIndexResponse:
        """Build an index on scalar values or on text, and wait until it is done."""
        return CreateTableScalarIndexResponse(transaction_id=self._create_index(request, SCALAR))

    def list_table_indices(self, request: ListTableIndicesRequest) -> ListTableIndicesResponse:
        """List the indices by name, with the number of rows that they cover."""
        with TableRef.in_namespace(
            self, request.id, version=request.version, branch=request.branch
        ).dataset() as dataset:
            index_page = paginate(
                {index.name: index for index in dataset.describe_indices()}, request.limit, request.page_token
            )
            rows = dataset.count_rows()
        return ListTableIndicesResponse(
            indexes=[_to_index_content(index, rows) for index in index_page.items.values()], page_token=index_page.token
        )

    def describe_table_index_stats(self, request: DescribeTableIndexStatsRequest) -> DescribeTableIndexStatsResponse:
        """Return how many rows an index covers, and its distance metric."""
        table = TableRef.in_namespace(self, request.id, version=request.version, branch=request.branch)
        name = _require_index_name(request.index_name)
        with table.dataset() as dataset:
            index = next((index for index in dataset.describe_indices() if index.name == name), None)
            rows = dataset.count_rows()
        if index is None:
            raise TableIndexNotFoundError(f"{table} has no index {name}")
        return DescribeTableIndexStatsResponse(
            distance_type=(index.details or {}).get("metric_type", "").lower() or None,
            index_type=index.index_type,
            num_indexed_rows=index.num_rows_indexed,
            num_unindexed_rows=rows - index.num_rows_indexed,
            num_indices=len(index.segments),
        )

    def drop_table_index(self, request: DropTableIndexRequest) -> DropTableIndexResponse:
        """Drop an index; its files are deleted together with the versions that use it."""
        with TableRef.in_namespace(self, request.id, branch=request.branch).dataset() as dataset:
            dataset.drop_index(_require_index_name(request.index_name))
            return DropTableIndexResponse(transaction_id=transaction_id(dataset))

    def get_table_stats(self, request: GetTableStatsRequest) -> GetTableStatsResponse:
        """Return rows, bytes and fragments. Deleted rows are not counted."""
        with TableRef.in_namespace(self, request.id, branch=request.branch).dataset() as dataset:
            return GetTableStatsResponse(
                total_bytes=sum(column.bytes_on_disk for column in dataset.stats.data_stats().fields),
                num_rows=dataset.count_rows(),
                num_indices=len(dataset.describe_indices()),
                fragment_stats=_fragment_stats(dataset),
            )

    def _create_index(self, request: CreateTableIndexRequest, kinds: tuple[str, ...]) -> str | None:
        kind = ALIASES.get(request.index_type.upper(), request.index_type.upper())
        if kind not in kinds:
            raise InvalidInputError(f"index_type {request.index_type!r} is none of {', '.join(kinds)}")
        with TableRef.in_namespace(self, request.id, branch=request.branch).dataset() as dataset:
            if dataset.lance_schema.field_case_insensitive(request.column) is None:
                raise TableColumnNotFoundError(f"column {request.column} does not exist")
            if kind in VECTOR:
                dataset.create_index(request.column, kind, name=request.name, **_vector_options(dataset, kind, request))
            else:
                text = {option: getattr(request, option) for option in _TEXT_OPTIONS} if kind == "FTS" else {}
                dataset.create_scalar_index(request.column, kind, name=request.name, replace=False, **_drop_none(text))
            return transaction_id(dataset)


def _vector_options(dataset: lance.LanceDataset, kind: str, request: CreateTableIndexRequest) -> dict[str, Any]:
    options = _drop_none({ours: getattr(request, theirs) for theirs, ours in _VECTOR_OPTIONS.items()})
    if "PQ" not in kind:
        options.pop("num_sub_vectors", None)
    elif "num_sub_vectors" not in options:
        dtype = dataset.lance_schema.field_case_insensitive(request.column).to_arrow().type
        options["num_sub_vectors"] = default_sub_vectors(dtype)
    return options


def default_sub_vectors(dtype: pa.DataType) -> int:
    """Return the default number of sub-vectors for product quantization: of 16 dimensions each, else of 8, else 1."""
    while isinstance(dtype, pa.ListType):
        dtype = dtype.value_type
    dimension = dtype.list_size if isinstance(dtype, pa.FixedSizeListType) else 0
    return next((dimension // size for size in (16, 8) if dimension and dimension % size == 0), 1)


def _to_index_content(index: Any, rows: int) -> IndexContent:
    first = index.segments[0]
    return IndexContent(
        index_name=index.name,
        index_uuid=first.uuid,
        columns=index.field_names,
        status="SUCCEEDED",
        index_type=index.index_type,
        type_url=index.type_url,
        num_indexed_rows=index.num_rows_indexed,
        num_unindexed_rows=rows - index.num_rows_indexed,
        size_bytes=index.total_size_bytes,
        num_segments=len(index.segments),
        created_at=first.created_at,
        index_version=first.index_version,
        index_details=json.dumps(index.details, separators=(",", ":")),
    )


def _fragment_stats(dataset: lance.LanceDataset) -> FragmentStats:
    lengths = sorted(fragment.count_rows() for fragment in dataset.get_fragments()) or [0]
    count = dataset.stats.dataset_stats()["num_fragments"]
    return FragmentStats(
        num_fragments=count,
        num_small_fragments=sum(length < _SMALL_ROWS for length in lengths) if count else 0,
        lengths=FragmentSummary(
            min=lengths[0],
            max=lengths[-1],
            mean=sum(lengths) // len(lengths),
            **{f"p{percent}": lengths[percent * (len(lengths) - 1) // 100] for percent in (25, 50, 75, 99)},
        ),
    )


def _require_index_name(index: str | None) -> str:
    if not index:
        raise InvalidInputError("the request names no index: index_name is missing")
    return index


def _drop_none(options: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in options.items() if value is not None}
