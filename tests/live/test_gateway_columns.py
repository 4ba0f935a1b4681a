"""Columns of every kind over HTTP: what Lance cannot keep is the caller's mistake, never a failure of the server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest

from tests.live.gateways import ALL, ask, insert, post
from tests.servers.lancehouse import Served

UNIONS: list[pa.DataType] = [
    pa.sparse_union([pa.field("a", pa.int32()), pa.field("b", pa.string())]),
    pa.dense_union([pa.field("a", pa.int32()), pa.field("b", pa.string())]),
]
RUNS: list[pa.DataType] = [pa.run_end_encoded(pa.int32(), pa.string()), pa.run_end_encoded(pa.int16(), pa.int64())]
FLAT: list[pa.DataType] = [
    *(pa.null(), pa.bool_(), pa.float16(), pa.float32(), pa.float64()),
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
    *(pa.date32(), pa.date64(), pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")),
    *(pa.timestamp(unit) for unit in ("s", "ms", "us", "ns")),
    *(pa.timestamp("us", "UTC"), pa.timestamp("us", "Not/AZone"), pa.timestamp("us", "")),
    *(pa.duration(unit) for unit in ("s", "ms", "us", "ns")),
    pa.month_day_nano_interval(),
    *(pa.string(), pa.large_string(), pa.string_view()),
    *(pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(4)),
    *(pa.decimal32(5, 2), pa.decimal64(10, 2), pa.decimal128(20, 3), pa.decimal128(10, -2), pa.decimal256(60, 3)),
]
NESTED: list[pa.DataType] = [
    *(make(pa.int32()) for make in (pa.list_, pa.large_list, pa.list_view, pa.large_list_view)),
    *(pa.list_(pa.float32(), 4), pa.list_(pa.float32(), 0), pa.list_(pa.string(), 2)),
    pa.list_(pa.list_(pa.float32(), 2), 2),
    *(pa.list_(pa.null()), pa.list_(pa.month_day_nano_interval()), pa.list_(UNIONS[1]), pa.list_(RUNS[0])),
    *(pa.struct([]), pa.struct([("n", pa.null())]), pa.struct([("r", RUNS[0])])),
    *(pa.struct([(name, pa.int32())]) for name in ("a", "", "a.b", "a`b")),
    pa.struct([("a", pa.int32()), ("a", pa.int32())]),
    *(pa.map_(pa.string(), pa.int32()), pa.map_(pa.struct([("a", pa.int32())]), pa.int32())),
    *(pa.dictionary(pa.int32(), pa.string()), pa.dictionary(pa.int8(), pa.int64())),
    pa.dictionary(pa.uint64(), pa.string()),
    pa.dictionary(pa.int32(), pa.list_(pa.int32())),  # type: ignore[call-overload]
]
NAMES = ["", ".", "a.b", "..", "a`b", "a'b", 'a"b', "a/b", "a\\b", "数据", "🚀", "a\x00b", "\n", " ", "*", "%41", "a$b"]
NAMES += ["_rowid", "_rowaddr", "_distance", "_score", "id", "ID", "select", "x" * 300, "x" * 70_000]
STORAGES: list[pa.DataType] = [
    *(pa.int32(), pa.string(), pa.large_binary(), pa.binary(2), pa.list_(pa.int32()), pa.list_(pa.float32(), 4)),
    *(pa.struct([("a", pa.int32())]), pa.struct([("data", pa.large_binary()), ("uri", pa.string())])),
]
EXTENSIONS = [
    *("lance.blob.v2", "lance.json", "arrow.json", "lance.bfloat16", "arrow.uuid", "arrow.fixed_shape_tensor"),
    *("arrow.bool8", "lance.arrow.fixed_shape_image_tensor", "geoarrow.wkb", "nobody.knows"),
]
KEYS = [
    *("lance-encoding:blob", "lance-encoding:packed", "lance-schema:unenforced-primary-key"),
    *("lance-encoding:compression", "lance-encoding:structural-encoding", "lance-encoding:minichunk-size"),
]


def extension_field(storage: pa.DataType, extension: str) -> pa.Field[Any]:
    return pa.field("x", storage, metadata={"ARROW:extension:name": extension, "ARROW:extension:metadata": ""})


def fields(*, whole: bool) -> Iterator[pa.Field[Any]]:
    """Columns of every type, with odd names, with extensions on storage that is not theirs, with odd metadata."""
    yield from (pa.field("x", dtype) for dtype in [*FLAT, *NESTED, *UNIONS, *RUNS])
    yield from (pa.field(name, pa.int64()) for name in NAMES)
    extensions = EXTENSIONS if whole else EXTENSIONS[:2]
    yield from (extension_field(storage, extension) for extension in extensions for storage in STORAGES)
    storages = STORAGES if whole else STORAGES[:1]
    for key in KEYS if whole else KEYS[:3]:
        for value in ("true", "nonsense", "0"):
            yield from (pa.field("x", storage, metadata={key: value}) for storage in storages)


def nulls(dtype: Any, count: int) -> Any:
    """So many nulls; None where pyarrow has none of the type."""
    if isinstance(dtype, pa.RunEndEncodedType):
        values = pa.array([None], dtype.value_type)
        return pa.RunEndEncodedArray.from_arrays(pa.array([count], dtype.run_end_type), values, dtype)
    try:
        made = pa.nulls(count, dtype)
        made.validate(full=True)
        return made
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
        return None


def rows(column: pa.Field[Any]) -> bytes:
    """Three rows of an id and nulls; no row at all where there are no such nulls."""
    schema = pa.schema([pa.field("id", pa.int64()), column])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        if (values := nulls(column.type, 3)) is not None:
            writer.write_batch(pa.RecordBatch.from_arrays([pa.array([1, 2, 3], pa.int64()), values], schema=schema))
    return sink.getvalue().to_pybytes()


@pytest.fixture
def db(gateway: Served) -> str:
    name = f"db_{uuid4().hex[:8]}"
    assert post(gateway, f"namespace/{name}/create")[0] == 200
    return name


def test_no_column_is_a_failure_of_the_server(gateway: Served, db: str, soak: bool) -> None:
    failures: list[str] = []
    refused = 0
    for number, column in enumerate(fields(whole=soak)):
        table, body = f"{db}$t{number}", rows(column)
        shown = f"{column.name[:20]!r} {column.type} {column.metadata or ''}"
        iceberg = f"/iceberg/v1/{gateway.warehouse}/namespaces/{db}/tables/t{number}"
        lance = f"/lance/main/v1/table/{table}"
        status, said = insert(gateway, table, body, verb="create")
        refused += status == 400
        if status not in (200, 400) or (status == 400 and said["code"] not in (13, 20)):
            failures.append(f"create {shown}: {status} {said}")
        calls: dict[str, Callable[[], Any]] = {
            "insert": lambda: ask(gateway, "POST", f"{lance}/insert", body),  # noqa: B023
            "describe": lambda: ask(gateway, "POST", f"{lance}/describe", b'{"load_detailed_metadata": true}'),  # noqa: B023
            "query": lambda: ask(gateway, "POST", f"{lance}/query", ALL),  # noqa: B023
            "load": lambda: ask(gateway, "GET", iceberg),  # noqa: B023
            "plan": lambda: ask(gateway, "POST", f"{iceberg}/plan", b"{}"),  # noqa: B023
        }
        for name, call in calls.items() if status == 200 else ():
            heard = call()
            if heard.status >= 500:
                failures.append(f"{name} {shown}: {heard.status} {heard.body[:300]!r}")
    assert failures == []
    assert refused > 20


@pytest.mark.parametrize(
    ("column", "code", "words"),
    [
        (pa.field("x", RUNS[0]), 20, "RunEndEncoded"),
        (pa.field("a.b", pa.int64()), 20, "a.b cannot contain `.`"),
        (extension_field(pa.int32(), "lance.blob.v2"), 13, "BlobType storage type must be a struct"),
    ],
    ids=["runs", "dot", "blob"],
)
def test_what_lance_cannot_keep_is_said(gateway: Served, db: str, column: pa.Field[Any], code: int, words: str) -> None:
    for verb, other in (("create", "t"), ("insert", "u"), ("merge_insert?on=id&when_not_matched_insert_all=true", "u")):
        if verb == "insert":
            assert insert(gateway, f"{db}$u", rows(pa.field("y", pa.int64())), verb="create")[0] == 200
        status, said = insert(gateway, f"{db}${other}", rows(column), verb=verb)
        assert status == 400
        assert said["code"] in (code, 20), f"{verb}: {said}"
        if verb == "create":
            assert words in said["error"]
    assert post(gateway, f"table/{db}$t/exists")[0] == 404
