"""A catalog in a folder: the smallest that `TableOperations` needs; and rows to put into its tables."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pyarrow as pa
from lance_namespace import (
    DeclareTableRequest,
    DeclareTableResponse,
    DeregisterTableRequest,
    DeregisterTableResponse,
    DescribeTableRequest,
    DescribeTableResponse,
    DropTableRequest,
    DropTableResponse,
    TableAlreadyExistsError,
    TableNotFoundError,
)

from lancehouse.lake.dataset_files import remove_dataset
from lancehouse.lake.operations import TableOperations


class FolderNamespace(TableOperations):
    """Entries are `<name>.json`, data lies in `<name>`. It pickles, as every client does."""

    def __init__(self, root: Path, storage_options: dict[str, str] | None = None, location: str | None = None) -> None:
        self.root = root
        self.storage_options = storage_options
        self.location = location or str(root)

    def namespace_id(self) -> str:
        return f"FolderNamespace {self.root}"

    def describe_table(self, request: DescribeTableRequest) -> DescribeTableResponse:
        entry = self._entry(request.id)
        if not entry.exists():
            raise TableNotFoundError(f"no table {request.id}")
        return DescribeTableResponse(**json.loads(entry.read_text()), storage_options=self.storage_options)

    def declare_table(self, request: DeclareTableRequest) -> DeclareTableResponse:
        entry = self._entry(request.id)
        if entry.exists():
            raise TableAlreadyExistsError(f"there is a table {request.id}")
        location = f"{self.location}/{entry.stem}"
        entry.write_text(json.dumps({"location": location, "properties": request.properties}))
        return DeclareTableResponse(
            location=location, properties=request.properties, storage_options=self.storage_options
        )

    def deregister_table(self, request: DeregisterTableRequest) -> DeregisterTableResponse:
        described = self.describe_table(DescribeTableRequest(id=request.id))
        self._entry(request.id).unlink()
        return DeregisterTableResponse(id=request.id, location=described.location)

    def drop_table(self, request: DropTableRequest) -> DropTableResponse:
        gone = self.deregister_table(DeregisterTableRequest(id=request.id))
        remove_dataset(str(gone.location), self.storage_options)
        return DropTableResponse(id=request.id, location=gone.location)

    def entries(self) -> list[str]:
        """The names of the tables."""
        return sorted(entry.stem for entry in self.root.glob("*.json"))

    def _entry(self, id: list[str] | None) -> Path:
        assert id is not None
        return self.root / f"{id[-1]}.json"


DIMENSION = 8


def rows(count: int = 300, first: int = 0) -> pa.Table:
    """Rows with a key, words, a flag, a vector and labels."""
    random = Random(first)
    ids = range(first, first + count)
    vectors = pa.array((random.random() for _ in range(count * DIMENSION)), pa.float32())
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "s": pa.array([f"word{i % 7} text number {i}" for i in ids], pa.string()),
            "b": pa.array([i % 2 == 0 for i in ids], pa.bool_()),
            "v": pa.FixedSizeListArray.from_arrays(vectors, DIMENSION),
            "l": pa.array([[f"t{i % 3}", "x"] for i in ids], pa.list_(pa.string())),
        }
    )


def stream(table: pa.Table) -> bytes:
    """The table as an Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()
