from __future__ import annotations

import io
from pathlib import Path

import pyarrow as pa
import pytest
from lance_namespace import (
    CountTableRowsRequest,
    CreateTableRequest,
    InsertIntoTableRequest,
    ListTablesRequest,
    MergeInsertIntoTableRequest,
    connect,
)
from lance_namespace.errors import ConcurrentModificationError, InvalidInputError, LanceNamespaceError

from lancehouse.lake.foreign_tables import ForeignTables
from lancehouse.lake.row_streams import RowStream, raise_stream_error, read_stream

FIELDS: dict[str, pa.DataType] = {"id": pa.int64(), "text": pa.string()}
SCHEMA = pa.schema(FIELDS)


def stream(*batches: range) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA) as writer:
        for numbers in batches:
            texts = [f"row {number}" for number in numbers]
            writer.write_batch(pa.record_batch([pa.array(numbers, pa.int64()), pa.array(texts)], schema=SCHEMA))
    return sink.getvalue().to_pybytes()


@pytest.fixture
def namespace(tmp_path: Path) -> ForeignTables:
    return ForeignTables(connect("dir", {"root": str(tmp_path)}))


def count(namespace: ForeignTables) -> int | None:
    return namespace.count_table_rows(CountTableRowsRequest(id=["t"])).count


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def test_rows_that_come_as_a_stream_are_created_inserted_and_merged(namespace: ForeignTables) -> None:
    namespace.create_table(CreateTableRequest(id=["t"]), io.BytesIO(stream(range(3), range(3, 5))))
    added = namespace.insert_into_table(InsertIntoTableRequest(id=["t"]), io.BytesIO(stream(range(5, 7))))
    assert (added.num_inserted_rows, count(namespace)) == (2, 7)
    request = MergeInsertIntoTableRequest(
        id=["t"], on=["id"], when_matched_update_all=True, when_not_matched_insert_all=True
    )
    merged = namespace.merge_insert_into_table(request, io.BytesIO(stream(range(6, 9))))
    assert (merged.num_updated_rows, merged.num_inserted_rows, count(namespace)) == (1, 2, 9)
    over = InsertIntoTableRequest(id=["t"], mode="overwrite")
    assert namespace.insert_into_table(over, io.BytesIO(stream(range(2)))).num_inserted_rows == 2
    assert count(namespace) == 2


@pytest.mark.parametrize("missing", [1, 60, 400])
def test_a_stream_that_breaks_off_changes_nothing_and_leaves_nothing(
    namespace: ForeignTables, tmp_path: Path, missing: int
) -> None:
    namespace.create_table(CreateTableRequest(id=["t"]), io.BytesIO(stream(range(3))))
    before = files(tmp_path)
    broken = stream(range(20_000), range(20_000))[:-missing]
    with pytest.raises(InvalidInputError, match="no Arrow IPC stream"):
        namespace.insert_into_table(InsertIntoTableRequest(id=["t"]), io.BytesIO(broken))
    assert count(namespace) == 3
    assert files(tmp_path) == before
    with pytest.raises(InvalidInputError, match="no Arrow IPC stream"):
        namespace.create_table(CreateTableRequest(id=["u"]), io.BytesIO(broken))
    assert namespace._namespace.list_tables(ListTablesRequest(id=[])).tables == ["t"]


def test_what_the_source_of_a_stream_raises_is_what_the_caller_hears(namespace: ForeignTables) -> None:
    class Slow(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            if self.tell() > 1000:
                raise ConcurrentModificationError("the client went away")
            return super().read(size)

    namespace.create_table(CreateTableRequest(id=["t"]), io.BytesIO(stream(range(3))))
    with pytest.raises(LanceNamespaceError, match="the client went away"):
        namespace.insert_into_table(InsertIntoTableRequest(id=["t"]), Slow(stream(range(20_000), range(20_000))))
    assert count(namespace) == 3


def test_a_stream_can_be_read_once() -> None:
    rows = read_stream(io.BytesIO(stream(range(3), range(2))), ["db", "t"])
    assert isinstance(rows, RowStream)
    assert rows.to_reader().read_all().num_rows == rows.num_rows == 5
    with pytest.raises(ConcurrentModificationError, match=r"table db.t: .*send the rows again"):
        rows.to_reader()


def test_bytes_are_all_there_before_anything_is_written() -> None:
    assert isinstance(read_stream(stream(range(3)), ["t"]), pa.Table)
    for broken in (b"", b"no arrow", stream(range(3))[:-40]):
        with pytest.raises(InvalidInputError, match="table t: "):
            read_stream(broken, ["t"])


def test_other_errors_pass() -> None:
    rows = read_stream(stream(range(3)), ["t"])
    with pytest.raises(ConcurrentModificationError, match="mine"), raise_stream_error(rows):
        raise ConcurrentModificationError("mine")
