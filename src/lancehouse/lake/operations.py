"""All operations of the Lance interface on one table, implemented once for every catalog."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from functools import wraps
from types import MappingProxyType
from typing import Any, get_type_hints

import lance
import pyarrow as pa
from lance_namespace import (
    AlterTableAddColumnsRequest,
    AlterTableAddColumnsResponse,
    AlterTableAlterColumnsRequest,
    AlterTableAlterColumnsResponse,
    AlterTableDropColumnsRequest,
    AlterTableDropColumnsResponse,
    CountTableRowsResponse,
    CreateTableBranchRequest,
    CreateTableBranchResponse,
    CreateTableIndexRequest,
    CreateTableIndexResponse,
    CreateTableScalarIndexResponse,
    CreateTableTagRequest,
    CreateTableTagResponse,
    DeleteTableBranchRequest,
    DeleteTableBranchResponse,
    DeleteTableTagRequest,
    DeleteTableTagResponse,
    DescribeTableIndexStatsRequest,
    DescribeTableIndexStatsResponse,
    DropTableIndexRequest,
    DropTableIndexResponse,
    GetTableStatsRequest,
    GetTableStatsResponse,
    GetTableTagVersionRequest,
    GetTableTagVersionResponse,
    LanceNamespace,
    ListTableBranchesRequest,
    ListTableBranchesResponse,
    ListTableIndicesRequest,
    ListTableIndicesResponse,
    ListTableTagsRequest,
    ListTableTagsResponse,
    QueryTableResponse,
    UpdateFieldMetadataRequest,
    UpdateFieldMetadataResponse,
    UpdateTableSchemaMetadataRequest,
    UpdateTableSchemaMetadataResponse,
    UpdateTableTagRequest,
    UpdateTableTagResponse,
)
from lance_namespace.errors import (
    InvalidInputError,
    LanceNamespaceError,
    NamespaceNotEmptyError,
    TableBranchAlreadyExistsError,
    TableColumnNotFoundError,
    TableIndexNotFoundError,
    TableNotFoundError,
    TableTagNotFoundError,
    UnsupportedOperationError,
)
from lance_namespace_urllib3_client.models.add_columns_entry import AddColumnsEntry
from lance_namespace_urllib3_client.models.alter_columns_entry import AlterColumnsEntry
from lance_namespace_urllib3_client.models.branch_contents import BranchContents
from lance_namespace_urllib3_client.models.fragment_stats import FragmentStats
from lance_namespace_urllib3_client.models.fragment_summary import FragmentSummary
from lance_namespace_urllib3_client.models.index_content import IndexContent
from lance_namespace_urllib3_client.models.tag_contents import TagContents
from lance_namespace_urllib3_client.models.update_field_metadata_entry import UpdateFieldMetadataEntry
from pydantic import BaseModel, ValidationError

from lancehouse.lake.chunked_scan import batch_rows
from lancehouse.lake.confinement import Confinement
from lancehouse.lake.dataset import MAIN, TableRef, enclose_sql, read_tags, require_storable_names
from lancehouse.lake.query_operations import QueryOperations
from lancehouse.lake.row_operations import RowOperations
from lancehouse.lake.versions import VersionOperations, transaction_id
from lancehouse.paging import paginate
from lancehouse.schema.jsonarrow import type_from_jsonarrow

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
            indexes=[to_index_content(index, rows) for index in index_page.items.values()], page_token=index_page.token
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


def to_index_content(index: Any, rows: int) -> IndexContent:
    """Return an index, as pylance describes it, as the Lance interface does; the table has so many rows."""
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


class ColumnOperations(LanceNamespace):
    """Operations on columns."""

    def alter_table_add_columns(self, request: AlterTableAddColumnsRequest) -> AlterTableAddColumnsResponse:
        """Add columns with values from SQL expressions over existing columns.

        Raises:
            UnsupportedOperationError: a computed or virtual column, which a job would have to fill.
        """
        transforms = {entry.name: enclose_sql(_require_expression(entry)) for entry in request.new_columns}
        require_storable_names(transforms)
        if len(transforms) < len(request.new_columns):
            raise InvalidInputError("a column is added twice")
        with TableRef.in_namespace(self, request.id, branch=request.branch).dataset() as dataset:
            dataset.add_columns(transforms, batch_size=batch_rows(dataset))
        return AlterTableAddColumnsResponse(version=dataset.version)

    def alter_table_alter_columns(self, request: AlterTableAlterColumnsRequest) -> AlterTableAlterColumnsResponse:
        """Rename columns, allow or forbid nulls, or change types; all in one commit."""
        alterations = [_parse_alteration(entry) for entry in request.alterations]
        require_storable_names(entry.rename for entry in request.alterations if entry.rename is not None)
        with TableRef.in_namespace(self, request.id, branch=request.branch).dataset() as dataset:
            dataset.alter_columns(*alterations)
        return AlterTableAlterColumnsResponse(version=dataset.version)

    def alter_table_drop_columns(self, request: AlterTableDropColumnsRequest) -> AlterTableDropColumnsResponse:
        """Drop columns, in one commit."""
        with TableRef.in_namespace(self, request.id, branch=request.branch).dataset() as dataset:
            dataset.drop_columns(request.columns)
        return AlterTableDropColumnsResponse(version=dataset.version)

    def update_table_schema_metadata(
        self, request: UpdateTableSchemaMetadataRequest
    ) -> UpdateTableSchemaMetadataResponse:
        """Set keys of the schema's metadata; other keys stay."""
        with TableRef.in_namespace(self, request.id, branch=request.branch).dataset() as dataset:
            metadata = dataset.update_schema_metadata(request.metadata or {})
            return UpdateTableSchemaMetadataResponse(metadata=metadata, transaction_id=transaction_id(dataset))

    def update_field_metadata(self, request: UpdateFieldMetadataRequest) -> UpdateFieldMetadataResponse:
        """Set, delete (null) or replace the metadata of fields, in one commit."""
        paths = [entry.path for entry in request.updates]
        if len(set(paths)) < len(paths):
            raise InvalidInputError("a field is updated twice")
        with TableRef.in_namespace(self, request.id, branch=request.branch).dataset() as dataset:
            # Lance replaces the metadata of all fields or merges all, so if any is replaced, the merge is done here.
            replace = any(entry.replace for entry in request.updates)
            updates = {
                entry.path: _merge_metadata(dataset, entry) if replace else entry.metadata for entry in request.updates
            }
            dataset.update_field_metadata(updates, replace=replace)
        return UpdateFieldMetadataResponse(
            version=dataset.version, fields={path: _field_metadata(dataset, path) for path in paths}
        )


def _require_expression(entry: AddColumnsEntry) -> str:
    if entry.computed is not None or entry.virtual_column is not None:
        raise UnsupportedOperationError(
            f"column {entry.name}: computed and virtual columns are filled by jobs, such as `lancehouse table backfill "
            "--define`; give an `expression`"
        )
    if entry.expression is None:
        raise InvalidInputError(f"column {entry.name} needs an expression")
    return entry.expression


def _parse_alteration(entry: AlterColumnsEntry) -> dict[str, Any]:
    if entry.virtual_column is not None:
        raise UnsupportedOperationError(f"column {entry.path}: virtual columns are filled by jobs")
    changes = {
        "name": entry.rename,
        "nullable": entry.nullable,
        "data_type": None if entry.data_type is None else type_from_jsonarrow(entry.data_type, (entry.path,)),
    }
    return {"path": entry.path, **{key: value for key, value in changes.items() if value is not None}}


def _merge_metadata(dataset: lance.LanceDataset, entry: UpdateFieldMetadataEntry) -> dict[str, str]:
    merged = entry.metadata if entry.replace else {**_field_metadata(dataset, entry.path), **entry.metadata}
    return {key: value for key, value in merged.items() if value is not None}


def _field_metadata(dataset: lance.LanceDataset, path: str) -> dict[str, str]:
    field = dataset.lance_schema.field(path)
    return {} if field is None else {_decode(key): _decode(value) for key, value in field.metadata.items()}


def _decode(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


class ReferenceOperations(LanceNamespace):
    """Operations on tags and branches, which are not commits in Lance."""

    def list_table_tags(self, request: ListTableTagsRequest) -> ListTableTagsResponse:
        """List the tags by name."""
        with TableRef.in_namespace(self, request.id).dataset() as dataset:
            tag_page = paginate(read_tags(dataset), request.limit, request.page_token)
        tags = {
            name: TagContents(branch=tag["branch"], version=tag["version"], manifestSize=tag["manifest_size"])
            for name, tag in tag_page.items.items()
        }
        return ListTableTagsResponse(tags=tags, page_token=tag_page.token)

    def get_table_tag_version(self, request: GetTableTagVersionRequest) -> GetTableTagVersionResponse:
        """Return the version that a tag points to, and its branch if that is not main."""
        table = TableRef.in_namespace(self, request.id)
        with table.dataset() as dataset:
            tag = read_tags(dataset).get(request.tag)
        if tag is None:
            raise TableTagNotFoundError(f"{table} has no tag {request.tag}")
        return GetTableTagVersionResponse(version=tag["version"], branch=tag["branch"])

    def create_table_tag(self, request: CreateTableTagRequest) -> CreateTableTagResponse:
        """Create a tag of a version, by default of the main branch."""
        if not request.tag.isascii():
            raise InvalidInputError(f"a tag has letters of ASCII, got {request.tag!r}: pylance cannot list others")
        with TableRef.in_namespace(self, request.id, branch=request.branch).dataset() as dataset:
            dataset.tags.create(request.tag, (request.branch or MAIN, request.version))
        return CreateTableTagResponse()

    def update_table_tag(self, request: UpdateTableTagRequest) -> UpdateTableTagResponse:
        """Point a tag to another version."""
        with TableRef.in_namespace(self, request.id, branch=request.branch).dataset() as dataset:
            dataset.tags.update(request.tag, (request.branch or MAIN, request.version))
        return UpdateTableTagResponse()

    def delete_table_tag(self, request: DeleteTableTagRequest) -> DeleteTableTagResponse:
        """Delete a tag; its version stays."""
        with TableRef.in_namespace(self, request.id).dataset() as dataset:
            dataset.tags.delete(request.tag)
        return DeleteTableTagResponse()

    def list_table_branches(self, request: ListTableBranchesRequest) -> ListTableBranchesResponse:
        """List the branches by name, without main."""
        with TableRef.in_namespace(self, request.id).dataset() as dataset:
            branch_page = paginate(dataset.branches.list(), request.limit, request.page_token)
        branches = {
            name: BranchContents(
                parentBranch=branch["parent_branch"],
                parentVersion=branch["parent_version"],
                createAt=branch["create_at"],
                manifestSize=branch["manifest_size"],
                metadata=branch["metadata"] or None,
            )
            for name, branch in branch_page.items.items()
        }
        return ListTableBranchesResponse(branches=branches, page_token=branch_page.token)

    def create_table_branch(self, request: CreateTableBranchRequest) -> CreateTableBranchResponse:
        """Create a branch from a version of another branch, by default the latest of main."""
        table = TableRef.in_namespace(self, request.id, branch=request.from_branch, version=request.from_version)
        with table.dataset() as dataset:
            if request.name in dataset.branches.list():
                raise TableBranchAlreadyExistsError(f"{table} already has a branch {request.name}")
            dataset.create_branch(request.name, (request.from_branch or MAIN, dataset.version))
        return CreateTableBranchResponse()

    def delete_table_branch(self, request: DeleteTableBranchRequest) -> DeleteTableBranchResponse:
        """Delete a branch, unless another branch was created from it."""
        with TableRef.in_namespace(self, request.id).dataset() as dataset:
            dataset.branches.delete(request.name)
        return DeleteTableBranchResponse()


Operation = Callable[..., Any]

LANCEDB_ERROR_PREFIXES: Mapping[type[LanceNamespaceError], str] = MappingProxyType(
    {TableNotFoundError: "Table not found", NamespaceNotEmptyError: "Namespace not empty"}
)
"""Words by which lancedb recognizes an error, which reaches it as text."""


class TableOperations(
    RowOperations, QueryOperations, ColumnOperations, IndexOperations, ReferenceOperations, VersionOperations
):
    """A namespace whose tables can be read, written and altered.

    A catalog adds `describe_table`, `declare_table`, `deregister_table` and `drop_table`. Each operation opens the
    table by name, through the catalog: credentials are renewed, and commits go through the catalog if it manages
    versions. No state is kept between calls.

    The behaviour is that of Lance's own directory namespace. What that one ignores in a request is honoured here: the
    branch of every operation, options of indices, pages of tags and branches, several query vectors. In addition,
    `batch_delete_table_versions` never deletes the current version or tagged ones, and statistics do not count deleted
    rows.
    """

    confinement: Confinement | None = None
    """What may be opened for its tables; None means whatever they refer to. A server sets it, for tables of others."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Let every operation be called from Rust too, as lancedb and pylance do: with a dict as its request."""
        super().__init_subclass__(**kwargs)
        _accept_dicts(cls)


def _accept_dicts(namespace: type[LanceNamespace]) -> None:
    """Let each operation of a class accept a dict as its request; then its response is plain data too."""
    for name, model in _request_models().items():
        operation = getattr(namespace, name)
        if not hasattr(operation, "__wrapped__"):
            setattr(namespace, name, _wrap_operation(operation, model))


def _request_models() -> dict[str, type[BaseModel]]:
    operations = inspect.getmembers(LanceNamespace, inspect.isfunction)
    hints = {name: get_type_hints(operation) for name, operation in operations if not name.startswith("_")}
    return {name: types["request"] for name, types in hints.items() if "request" in types}


def _wrap_operation(operation: Operation, model: type[BaseModel]) -> Operation:
    @wraps(operation)
    def call(self: LanceNamespace, request: Any, *data: bytes, **named: Any) -> Any:
        if not isinstance(request, dict):
            return operation(self, request, *data, **named)
        typed_request = _parse_request(model, request)
        try:
            return _to_plain(operation(self, typed_request, *data, **named))
        except (TableNotFoundError, NamespaceNotEmptyError) as error:
            raise type(error)(f"{LANCEDB_ERROR_PREFIXES[type(error)]}: {error}") from error

    return call


def _parse_request(model: type[BaseModel], request: dict[str, Any]) -> BaseModel:
    try:
        return model.model_validate(request)
    except ValidationError as error:
        # Without the input, which may be secret, such as a storage option.
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        field = ".".join(map(str, first["loc"])) or "the request"
        raise InvalidInputError(f"{model.__name__}: {field}: {first['msg']}") from None


def _to_plain(answer: Any) -> Any:
    match answer:
        case QueryTableResponse():
            return answer.data
        case CountTableRowsResponse():
            return answer.count
        case BaseModel():
            return answer.model_dump(mode="json", by_alias=True, exclude_none=True)
    return answer
