from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lance
import pytest
from lance_namespace import (
    CreateTableRequest,
    DeclareTableRequest,
    InvalidInputError,
    LanceNamespaceError,
    PermissionDeniedError,
    ServiceUnavailableError,
    TableBranchNotFoundError,
    TableNotFoundError,
    TableTagNotFoundError,
    TableVersionNotFoundError,
)

from lancehouse.lake.dataset import TableRef, exists, read_details
from tests.lake.folder import FolderNamespace, rows, stream
from tests.lake.store import FakeStore


@pytest.fixture
def location(tmp_path: Path) -> str:
    """A table: version 1 has 10 rows, 2 has 12 and is tagged; the branch has 13 in its version 3."""
    place = str(tmp_path / "a table")
    made = lance.write_dataset(rows(10), place)
    lance.write_dataset(rows(2, 10), place, mode="append")
    made = lance.dataset(place)
    made.tags.create("two", 2)
    branch = made.create_branch("side")
    lance.write_dataset(rows(1, 12), branch, mode="append")
    return place


@pytest.mark.parametrize(
    ("at", "count", "version"),
    [
        ({}, 12, 2),
        ({"version": 1}, 10, 1),
        ({"tag": "two"}, 12, 2),
        ({"branch": "side"}, 13, 3),
        ({"branch": "side", "version": 2}, 12, 2),
        ({"branch": "main"}, 12, 2),
        ({"branch": "main", "version": 1}, 10, 1),
    ],
)
def test_open(location: str, at: dict[str, Any], count: int, version: int) -> None:
    dataset = TableRef(location, **at).open()
    assert (dataset.count_rows(), dataset.version) == (count, version)


@pytest.mark.parametrize(
    ("at", "expected"),
    [
        ({"version": 9}, TableVersionNotFoundError),
        ({"version": 0}, TableVersionNotFoundError),
        ({"tag": "nine"}, TableTagNotFoundError),
        ({"branch": "none"}, TableBranchNotFoundError),
        ({"branch": "none", "version": 1}, TableBranchNotFoundError),
        ({"branch": "side", "version": 9}, TableVersionNotFoundError),
    ],
)
def test_open_what_is_not_there(location: str, at: dict[str, Any], expected: type[Exception]) -> None:
    with pytest.raises(LanceNamespaceError) as raised:
        TableRef(location, **at).open()
    assert type(raised.value) is expected


@pytest.mark.parametrize(
    "parts",
    [
        {},
        {"id": ("t",)},
        {"location": "/t", "namespace": FolderNamespace(Path("/")), "id": ("t",)},
        {"namespace": FolderNamespace(Path("/"))},
        {"location": "/t", "tag": "a", "version": 1},
        {"location": "/t", "tag": "a", "branch": "b"},
    ],
)
def test_an_address_must_be_one(parts: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError):
        TableRef(**parts)


def test_a_request_without_id() -> None:
    with pytest.raises(InvalidInputError, match="id is missing"):
        TableRef.in_namespace(FolderNamespace(Path("/")), None)


def test_an_address_hides_its_secrets() -> None:
    table = TableRef("s3://b/t", {"aws_secret_access_key": "hush"}, branch="side")
    assert "hush" not in repr(table)
    assert str(table) == "s3://b/t branch side"
    assert hash(table) == hash(TableRef("s3://b/t", {}, branch="side"))


def test_an_address_pickles(location: str, ours: FolderNamespace) -> None:
    ours.create_table(CreateTableRequest(id=["t"]), stream(rows(5)))
    for table in (TableRef(location, {"a": "b"}, branch="side"), TableRef.in_namespace(ours, ["t"])):
        copy = pickle.loads(pickle.dumps(table))
        assert copy.storage_options == table.storage_options
        assert copy.open().count_rows() == table.open().count_rows()


def test_details(location: str) -> None:
    lance.dataset(location).delete("id = 3")
    described = read_details(TableRef(location))
    assert described.version == 3
    assert [field.name for field in described.schema.fields] == ["id", "s", "b", "v", "l"]
    assert (described.stats.num_deleted_rows, described.stats.num_fragments) == (1, 2)
    assert described.metadata["total_rows"] == "11"
    assert read_details(TableRef(location, version=1)).stats.num_fragments == 1


def test_exists(location: str, tmp_path: Path) -> None:
    assert exists(location)
    assert exists(Path(location).as_uri())
    (tmp_path / "empty").mkdir()
    (tmp_path / "emptied" / "_versions").mkdir(parents=True)
    for nothing in ("none", "none/below", "empty", "emptied"):
        assert not exists(str(tmp_path / nothing)), nothing


def test_exists_of_what_is_no_table(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "broken" / "_versions").mkdir(parents=True)
    (tmp_path / "broken" / "_versions" / "1.manifest").write_text("garbage" * 100)
    for place in ("file", "broken"):
        with pytest.raises(LanceNamespaceError):
            exists(str(tmp_path / place))


@contextmanager
def as_nobody() -> Iterator[None]:
    """Root may read everything, so the test steps down for a moment."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_exists_without_access(location: str) -> None:
    mode = Path(location).stat().st_mode
    Path(location).chmod(0)
    try:
        with as_nobody(), pytest.raises(PermissionDeniedError):
            exists(location)
    finally:
        Path(location).chmod(mode)


def test_exists_in_a_store(store: FakeStore) -> None:
    assert not exists("s3://bucket/a/t", store.options)
    lance.write_dataset(rows(3), "s3://bucket/a/t", storage_options=store.options)
    assert exists("s3://bucket/a/t", store.options)
    assert not exists("s3://bucket/a", store.options)
    store.refusal = (403, "AccessDenied")
    with pytest.raises(PermissionDeniedError):
        exists("s3://bucket/a/t", store.options)
    store.refusal = (503, "ServiceUnavailable")
    with pytest.raises(ServiceUnavailableError):
        exists("s3://bucket/a/t", store.options)


def test_versions_in_a_store(store: FakeStore) -> None:
    made = lance.write_dataset(rows(3), "s3://bucket/t", storage_options=store.options)
    made.create_branch("side")
    for at, expected in (
        ({"version": 9}, TableVersionNotFoundError),
        ({"branch": "none"}, TableBranchNotFoundError),
        ({"branch": "side", "version": 9}, TableVersionNotFoundError),
        ({"tag": "none"}, TableTagNotFoundError),
    ):
        with pytest.raises(LanceNamespaceError) as raised:
            TableRef("s3://bucket/t", store.options, **at).open()
        assert type(raised.value) is expected, raised.value


def test_a_declared_table_does_not_open(ours: FolderNamespace) -> None:
    ours.declare_table(DeclareTableRequest(id=["t"]))
    with pytest.raises(TableNotFoundError):
        TableRef.in_namespace(ours, ["t"]).open()
