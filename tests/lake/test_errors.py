"""One row for each text of pylance that means something: pylance itself has to say it."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance_namespace import (
    ConcurrentModificationError,
    DescribeTableRequest,
    DescribeTableResponse,
    InternalError,
    InvalidInputError,
    LanceNamespaceError,
    ListTableVersionsRequest,
    PermissionDeniedError,
    ServiceUnavailableError,
    TableAlreadyExistsError,
    TableBranchNotFoundError,
    TableColumnNotFoundError,
    TableIndexAlreadyExistsError,
    TableIndexNotFoundError,
    TableNotFoundError,
    TableSchemaValidationError,
    TableTagAlreadyExistsError,
    TableTagNotFoundError,
    TableVersionNotFoundError,
    ThrottlingError,
    UnauthenticatedError,
    UnsupportedOperationError,
)

from lancehouse.errors import CommitStateUnknownError
from lancehouse.lake.dataset import TableRef
from lancehouse.lake.errors import find_error_class, translate_errors
from tests.lake.folder import DIMENSION, FolderNamespace, rows
from tests.lake.store import FakeStore

Dataset = Any
ONES = [1.0] * DIMENSION


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    made = lance.write_dataset(rows(40), str(tmp_path / "t"))
    made.tags.create("old", 1)
    made.create_branch("side")
    made.create_scalar_index("id", "BTREE")
    return made


def search(**options: Any) -> Callable[[Dataset], object]:
    return lambda d: d.to_table(nearest={"column": "v", "q": ONES, "k": 3, **options})


def merge(data: Callable[[], pa.Table] = lambda: rows(3), on: str = "id", condition: str | None = None) -> Any:
    return lambda d: d.merge_insert(on).when_matched_update_all(condition).execute(data())


def overtaken(d: Dataset) -> object:
    late = lance.dataset(d.uri)
    d.drop_columns(["b"])
    return late.alter_columns({"path": "l", "name": "labels"})


def outrun(d: Dataset) -> object:
    late = lance.dataset(d.uri)
    d.delete("id < 5")
    return late.update({"s": "'x'"}, where="id < 9", conflict_retries=0, retry_timeout=timedelta(seconds=5))


KEY = {"lance-schema:unenforced-primary-key": "true"}
NESTED_DICTIONARY: Any = pa.dictionary(pa.int32(), pa.list_(pa.int32()))


def make(column: pa.Field[Any]) -> Callable[[Dataset], object]:
    """Make a table with a column."""
    schema = pa.schema([pa.field("id", pa.int64()), column])
    return lambda d: lance.write_dataset(pa.RecordBatchReader.from_batches(schema, []), f"{d.uri}-new", schema=schema)


def append_to(column: pa.Field[Any]) -> Callable[[Dataset], object]:
    """Make a table with a column, and add rows to it."""
    rows = pa.schema([column]).empty_table()
    return lambda d: lance.write_dataset(rows, lance.write_dataset(rows, f"{d.uri}-new"), mode="append")


def nested_update(d: Dataset) -> object:
    return lance.write_dataset(pa.table({"s": [{"a": 1}]}), f"{d.uri}-new").update({"s.a": "2"})


def stale(d: Dataset) -> object:
    d.delete("id = 1")
    operation = lance.LanceOperation.Overwrite(d.schema, [])
    return lance.LanceDataset.commit(d.uri, operation, read_version=1, max_retries=0)


FACTS: list[tuple[str, Callable[[Dataset], object], type[LanceNamespaceError]]] = [
    ("no dataset", lambda d: lance.dataset(d.uri + "/none"), TableNotFoundError),
    ("no parent", lambda d: lance.dataset("/nonexistent/a/b"), TableNotFoundError),
    ("dataset there", lambda d: lance.write_dataset(rows(1), d.uri), TableAlreadyExistsError),
    ("no version", lambda d: lance.dataset(d.uri, version=99), TableVersionNotFoundError),
    ("version 0", lambda d: lance.dataset(d.uri, version=0), TableVersionNotFoundError),
    ("no version, checkout", lambda d: d.checkout_version(99), TableVersionNotFoundError),
    ("no version, tag", lambda d: d.tags.create("x", 99), TableVersionNotFoundError),
    ("no version, branch", lambda d: d.create_branch("x", 99), TableVersionNotFoundError),
    ("no tag", lambda d: lance.dataset(d.uri, version="none"), TableTagNotFoundError),
    ("no tag, delete", lambda d: d.tags.delete("none"), TableTagNotFoundError),
    ("no tag, update", lambda d: d.tags.update("none", 1), TableTagNotFoundError),
    ("tag there", lambda d: d.tags.create("old", 1), TableTagAlreadyExistsError),
    ("tag that is not ASCII", lambda d: d.tags.create("ä", 1) or d.tags.list(), UnsupportedOperationError),
    ("tag's name", lambda d: d.tags.create("a b", 1), InvalidInputError),
    ("no branch", lambda d: d.checkout_version(("none", None)), TableBranchNotFoundError),
    ("no branch, delete", lambda d: d.branches.delete("none"), TableBranchNotFoundError),
    ("no branch, from", lambda d: d.create_branch("x", ("none", None)), TableBranchNotFoundError),
    ("branch's name", lambda d: d.create_branch("a b"), InvalidInputError),
    ("branch's name, a step", lambda d: d.create_branch("."), InvalidInputError),
    ("branch main", lambda d: d.branches.delete("main"), InvalidInputError),
    (
        "branch in use",
        lambda d: (d.create_branch("leaf", ("side", None)), d.branches.delete("side")),
        InvalidInputError,
    ),
    ("no index", lambda d: d.drop_index("none"), TableIndexNotFoundError),
    ("index there", lambda d: d.create_scalar_index("id", "BTREE", replace=False), TableIndexAlreadyExistsError),
    ("index, no column", lambda d: d.create_scalar_index("zz", "BTREE"), TableColumnNotFoundError),
    ("index, btree of a vector", lambda d: d.create_scalar_index("v", "BTREE"), InvalidInputError),
    ("index, text of a number", lambda d: d.create_scalar_index("id", "FTS"), InvalidInputError),
    ("index, labels of a number", lambda d: d.create_scalar_index("id", "LABEL_LIST"), InvalidInputError),
    ("index, vectors of numbers", lambda d: d.create_index("id", "IVF_FLAT"), InvalidInputError),
    ("index, metric", lambda d: d.create_index("v", "IVF_FLAT", metric="zz"), InvalidInputError),
    ("index, parts", lambda d: d.create_index("v", "IVF_PQ", num_sub_vectors=3), InvalidInputError),
    ("index, tokenizer", lambda d: d.create_scalar_index("s", "FTS", base_tokenizer="zz"), InvalidInputError),
    ("index, language", lambda d: d.create_scalar_index("s", "FTS", language="Klingon"), InvalidInputError),
    ("filter, SQL", lambda d: d.count_rows("id <<< 1"), InvalidInputError),
    ("filter, column", lambda d: d.count_rows("zz = 1"), TableColumnNotFoundError),
    ("filter, type", lambda d: d.count_rows("id = 'abc'"), InvalidInputError),
    ("filter, no condition", lambda d: d.count_rows("id + 1"), InvalidInputError),
    ("filter, aggregate", lambda d: d.count_rows("max(id) = 1"), InvalidInputError),
    ("filter, window", lambda d: d.count_rows("sum(id) OVER () > 1"), InvalidInputError),
    ("filter, unnest", lambda d: d.count_rows("unnest(l) = 'x'"), InvalidInputError),
    ("filter, subquery", lambda d: d.count_rows("abs((SELECT 1)) = 1"), InvalidInputError),
    ("filter, cast", lambda d: d.count_rows("cast(s as int) = 1"), InvalidInputError),
    ("filter, argument", lambda d: d.count_rows("date_part('zz', cast(id as timestamp)) = 1"), InvalidInputError),
    ("filter, division", lambda d: d.count_rows("id / (id - id) = 1"), InvalidInputError),
    ("columns, literal", lambda d: d.to_table(columns={"x": "1"}), InvalidInputError),
    ("columns, cast", lambda d: d.to_table(columns={"x": "cast('x' as int)"}), InvalidInputError),
    ("columns, division", lambda d: d.to_table(columns={"x": "id / (id - id)"}), InvalidInputError),
    ("columns, number", lambda d: d.scanner(limit=1 << 63), InvalidInputError),
    ("columns", lambda d: d.to_table(columns=["zz"]), TableColumnNotFoundError),
    ("columns, expression", lambda d: d.to_table(columns={"x": "zz + 1"}), TableColumnNotFoundError),
    ("search, column", search(column="zz"), TableColumnNotFoundError),
    ("search, no vector", search(column="id"), InvalidInputError),
    ("search, size", search(q=[1.0]), InvalidInputError),
    ("search, sizes", search(q=[ONES, [1.0]]), InvalidInputError),
    ("search, metric", search(metric="zz"), InvalidInputError),
    ("search, probes", search(minimum_nprobes=3, maximum_nprobes=2), InvalidInputError),
    ("search, no probes", search(nprobes=0), InvalidInputError),
    ("search, ef", search(ef=0), InvalidInputError),
    ("search, refine too much", search(refine_factor=1 << 40), InvalidInputError),
    ("search, refine", search(refine_factor=0), InvalidInputError),
    ("text, no index", lambda d: d.to_table(full_text_query="word"), InvalidInputError),
    ("text, column", lambda d: d.to_table(full_text_query={"query": "a", "columns": ["zz"]}), TableColumnNotFoundError),
    ("text, path", lambda d: d.to_table(full_text_query={"query": "a", "columns": ["."]}), InvalidInputError),
    ("text, number", lambda d: d.to_table(full_text_query={"query": "a", "columns": ["id"]}), InvalidInputError),
    ("update, column", lambda d: d.update({"zz": "1"}), TableColumnNotFoundError),
    ("update, division", lambda d: d.update({"id": "id / (id - id)"}), InvalidInputError),
    ("update, in a struct", nested_update, UnsupportedOperationError),
    ("update, expression", lambda d: d.update({"id": "1 +"}), InvalidInputError),
    ("update, type", lambda d: d.update({"id": "'abc'"}), InvalidInputError),
    ("update, filter", lambda d: d.update({"id": "1"}, where="zz = 1"), TableColumnNotFoundError),
    ("delete, column", lambda d: d.delete("zz = 1"), TableColumnNotFoundError),
    ("delete, SQL", lambda d: d.delete("id (("), InvalidInputError),
    ("add, there", lambda d: d.add_columns({"id": "1"}), TableSchemaValidationError),
    ("add, column", lambda d: d.add_columns({"c": "zz + 1"}), TableColumnNotFoundError),
    ("add, SQL", lambda d: d.add_columns({"c": "id (("}), InvalidInputError),
    ("alter, column", lambda d: d.alter_columns({"path": "zz", "name": "y"}), TableColumnNotFoundError),
    ("alter, name taken", lambda d: d.alter_columns({"path": "s", "name": "id"}), TableSchemaValidationError),
    ("alter, cast", lambda d: d.alter_columns({"path": "s", "data_type": pa.int32()}), TableSchemaValidationError),
    ("alter, nothing", lambda d: d.alter_columns({"path": "s"}), InvalidInputError),
    ("drop, column", lambda d: d.drop_columns(["zz"]), TableColumnNotFoundError),
    ("drop, long column", lambda d: d.drop_columns(["z" * 400]), TableColumnNotFoundError),
    ("drop, all", lambda d: d.drop_columns(["id", "s", "b", "v", "l"]), InvalidInputError),
    ("metadata, column", lambda d: d.update_field_metadata({"zz": {"a": "b"}}), TableColumnNotFoundError),
    ("append, type", lambda d: d.insert(pa.table({"id": ["a"]})), TableSchemaValidationError),
    ("append, column", lambda d: d.insert(pa.table({"id": [1], "zz": [1]})), TableSchemaValidationError),
    ("merge, key", merge(on="zz"), TableColumnNotFoundError),
    ("merge, nothing to do", lambda d: d.merge_insert("id").execute(rows(1)), InvalidInputError),
    ("merge, condition", merge(condition="source.zz > 1"), TableColumnNotFoundError),
    ("merge, type", merge(lambda: pa.table({"id": ["a"]})), TableSchemaValidationError),
    ("merge, twice", merge(lambda: pa.concat_tables([rows(3), rows(3)])), InvalidInputError),
    ("cleanup, tagged", lambda d: d.cleanup_old_versions(versions=[1]), InvalidInputError),
    ("commit, overtaken", overtaken, ConcurrentModificationError),
    ("commit, outrun", outrun, ConcurrentModificationError),
    ("commit, stale", stale, ConcurrentModificationError),
    ("column, runs", make(pa.field("x", pa.run_end_encoded(pa.int32(), pa.string()))), TableSchemaValidationError),
    ("column, union", make(pa.field("x", pa.dense_union([pa.field("a", pa.int8())]))), TableSchemaValidationError),
    ("column, dot", make(pa.field("a.b", pa.int8())), TableSchemaValidationError),
    ("column, no vector", make(pa.field("x", pa.list_(pa.float32(), 0))), TableSchemaValidationError),
    ("column, dictionary", make(pa.field("x", NESTED_DICTIONARY)), TableSchemaValidationError),
    ("column, nullable key", make(pa.field("x", pa.int8(), metadata=KEY)), TableSchemaValidationError),
    (
        "column, key of many",
        make(pa.field("x", pa.struct([("a", pa.int8())]), metadata=KEY)),
        TableSchemaValidationError,
    ),
    ("column, a name it cannot append to", append_to(pa.field("a`b", pa.int8())), TableColumnNotFoundError),
    ("scheme", lambda d: lance.dataset("zzz://a/b"), InvalidInputError),
    ("account", lambda d: lance.dataset("az://a/b"), InvalidInputError),
    ("a file", lambda d: lance.dataset(str(next(Path(d.uri).rglob("*.manifest")))), InvalidInputError),
]


@pytest.mark.parametrize(("act", "expected"), [fact[1:] for fact in FACTS], ids=[fact[0] for fact in FACTS])
def test_texts_of_pylance(dataset: Dataset, act: Callable[[Dataset], object], expected: type[Exception]) -> None:
    with pytest.raises(LanceNamespaceError) as raised, translate_errors("table wh.t"):
        act(dataset)
    assert type(raised.value) is expected, raised.value
    assert str(raised.value).startswith("table wh.t: ")
    assert ".rs:" not in str(raised.value)
    assert raised.value.__cause__ is not None


@pytest.mark.parametrize(
    "act",
    [
        lambda strict: strict.insert(pa.table({"id": pa.array([None], pa.int64())})),
        lambda strict: strict.update({"id": "NULL"}),
    ],
    ids=["append", "update"],
)
def test_a_null_that_a_column_does_not_allow(tmp_path: Path, act: Callable[[Dataset], object]) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    strict = lance.write_dataset(pa.table({"id": [1]}, schema=schema), tmp_path / "strict")
    with pytest.raises(TableSchemaValidationError) as refused, translate_errors("table wh.t"):
        act(strict)
    assert "ALTER COLUMN id DROP NOT NULL in SQL, or alter_columns(table, {'id': {'nullable': True}})" in str(
        refused.value
    )
    strict.alter_columns({"path": "id", "nullable": True})  # as it says
    act(strict)


def test_a_name_that_arrow_cannot_hand_over(dataset: Dataset) -> None:
    """Rust panics of it, and the caller has named it."""
    with pytest.raises(InvalidInputError, match="NulError"), translate_errors("table wh.t"):
        _ = dataset.scanner({"a\0b": "id"}).projected_schema


REFUSALS = [
    (403, "AccessDenied", PermissionDeniedError),
    (403, "InvalidAccessKeyId", UnauthenticatedError),
    (403, "SignatureDoesNotMatch", UnauthenticatedError),
    (400, "ExpiredToken", UnauthenticatedError),
    (401, "Unauthorized", UnauthenticatedError),
    (404, "NoSuchBucket", InvalidInputError),
    (404, "NoSuchKey", InternalError),  # a listing never answers so: this is no missing table
    (301, "PermanentRedirect", InvalidInputError),
    (429, "TooManyRequests", ThrottlingError),
    (503, "SlowDown", ThrottlingError),
    (503, "ServiceUnavailable", ServiceUnavailableError),
    (500, "InternalError", ServiceUnavailableError),
    (408, "RequestTimeout", ServiceUnavailableError),
]


def store_error(status: int, code: str) -> Exception | None:
    with FakeStore() as store:
        store.refusal = (status, code)
        try:
            TableRef("s3://bucket/t", store.options).open()
        except LanceNamespaceError as error:
            return error
    return None


def test_refusals_of_a_store() -> None:
    # pylance takes two seconds to give up, so all are asked at once
    with ThreadPoolExecutor(len(REFUSALS)) as pool:
        errors = pool.map(store_error, *zip(*((status, code) for status, code, _ in REFUSALS), strict=True))
    for (status, code, expected), error in zip(REFUSALS, errors, strict=True):
        assert type(error) is expected, f"{status} {code}: {error!r}"


def test_secrets_of_a_refusal_are_not_shown(store: FakeStore) -> None:
    store.refusal = (403, "SignatureDoesNotMatch")
    table = TableRef("s3://bucket/t", store.options)
    with pytest.raises(UnauthenticatedError) as raised:
        table.open()
    shown = "".join(traceback.format_exception(raised.value)) + repr(table) + str(table)
    for secret in ("AKIDEXAMPLE00", "verysecretvalue", "<StringToSign>"):
        assert secret not in shown
    assert "SignatureDoesNotMatch" in shown


def test_a_store_that_is_not_there(store: FakeStore) -> None:
    options = {**store.options, "aws_endpoint": "http://127.0.0.1:9"}
    with pytest.raises(ServiceUnavailableError):
        TableRef("s3://bucket/t", options).open()


@pytest.mark.parametrize("error", [TypeError("x"), AttributeError("x"), KeyError("x"), IndexError("x")], ids=repr)
def test_programming_errors_pass(error: Exception) -> None:
    with pytest.raises(type(error)) as raised, translate_errors("t"):
        raise error
    assert raised.value is error


@pytest.mark.parametrize("error", [OSError("what?"), ValueError("what?"), RuntimeError("what?")], ids=repr)
def test_what_nobody_knows_is_internal(error: Exception) -> None:
    with pytest.raises(InternalError, match=r"^t: what\?$") as raised, translate_errors("t"):
        raise error
    assert raised.value.__cause__ is error


class PanicException(BaseException):
    """What Rust's panics are in Python."""


def test_a_panic_is_an_error_and_tells_no_secret() -> None:
    words = r"^t: Lance met a case that it does not know: index out of \*\*\*"
    with pytest.raises(InternalError, match=words), translate_errors("t", {"aws_secret_access_key": "bounds"}):
        raise PanicException("index out of bounds")
    with pytest.raises(KeyboardInterrupt), translate_errors("t"):
        raise KeyboardInterrupt


def test_lance_errors_pass() -> None:
    error = TableNotFoundError("x")
    with pytest.raises(TableNotFoundError) as raised, translate_errors("t"):
        raise error
    assert raised.value is error


def test_a_lost_commit_is_not_called_failed() -> None:
    text = "Wrapped error: Commit result for version 2 is unknown: the commit may or may not have been applied"
    assert find_error_class(text) is CommitStateUnknownError


class Failing(FolderNamespace):
    """Manages versions, and fails when pylance asks for them from inside Rust."""

    failure: Exception = InternalError("")

    def describe_table(self, request: DescribeTableRequest) -> DescribeTableResponse:
        return DescribeTableResponse(location=str(self.root / "t"), managed_versioning=True)

    def list_table_versions(self, request: ListTableVersionsRequest) -> Any:
        raise self.failure


# pylance takes the last two for "no versions yet"
KINDS = sorted(set(LanceNamespaceError.__subclasses__()) - {TableNotFoundError, TableBranchNotFoundError}, key=str)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_errors_of_a_namespace_come_back_as_they_were(tmp_path: Path, kind: type[LanceNamespaceError]) -> None:
    namespace = Failing(tmp_path)
    namespace.failure = kind("what it said")
    with pytest.raises(LanceNamespaceError, match=r"^table t: (Namespace not empty: )?what it said$") as raised:
        TableRef.in_namespace(namespace, ["t"]).open()
    assert type(raised.value) is kind


def test_a_decimal_beside_a_float(tmp_path: Path) -> None:
    """The sentence says what to write, and that is right."""
    column = pa.array([Decimal("0.05"), Decimal("0.08")], pa.decimal128(15, 2))
    made = lance.write_dataset(pa.table({"d": column}), str(tmp_path / "t"))
    with pytest.raises(InvalidInputError) as refused, translate_errors("table t"):
        made.count_rows("d <= 0.07")
    assert str(refused.value).endswith("write decimal(15,2) '0.07'")
    assert made.count_rows("d <= decimal(15,2) '0.07'") == 1


def test_a_bucket_without_a_region(monkeypatch: pytest.MonkeyPatch) -> None:
    """pylance asks AWS where the bucket is, and says nothing of storage options when it hears nothing."""
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    for name in ("HTTPS_PROXY", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    options = {"aws_access_key_id": "AKIDEXAMPLE00", "aws_secret_access_key": "verysecretvalue"}
    with pytest.raises(InvalidInputError, match="Failed to resolve region for bucket 'b-e-e'") as raised:
        TableRef("s3://b-e-e/t", options).open()
    shown = "".join(traceback.format_exception(raised.value))
    assert "`storage.region`" in shown
    assert "catalog that vends credentials" in shown
    assert not any(secret in shown for secret in options.values())


@pytest.mark.parametrize("words", ["No space left on device (os error 28)", "Disk quota exceeded (os error 122)"])
def test_a_full_disk_is_unavailable(words: str) -> None:
    with pytest.raises(ServiceUnavailableError, match="t: "), translate_errors("t"):
        raise OSError(f"LanceError(IO): Generic LocalFileSystem error: Unable to copy data to file: {words}")


@pytest.mark.parametrize(
    "filler", ["x", "9", "<Token>", "://a:a", "Received literal a(", "column ", "a.rs ", "?a", "Schema "]
)
def test_a_long_text_is_read_and_shown_in_part(filler: str) -> None:
    """pylance repeats filters in its errors. Before, such a text took minutes, in which no other thread ran."""
    text = f"Invalid user input: {filler * (1_000_000 // len(filler))}"
    with pytest.raises(InvalidInputError) as raised, translate_errors("table t"):
        raise ValueError(f"{text} and why")
    assert len(str(raised.value)) < 4_000


def test_secrets_are_hidden_also_where_a_text_is_cut() -> None:
    for place in range(960, 1_010):
        text = f"Invalid user input: {'x ' * place} verysecret s3://me:mine@b <Signature>abcdef {'y ' * 5_000}"
        with pytest.raises(InvalidInputError) as raised, translate_errors("table t", {"secret": "verysecret"}):
            raise ValueError(text)
        assert not any(secret in str(raised.value) for secret in ("verysec", "mine", "abcdef"))
