from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from lance_namespace import (
    CreateTableBranchRequest,
    CreateTableTagRequest,
    DeleteFromTableRequest,
    DeleteTableBranchRequest,
    DeleteTableTagRequest,
    GetTableTagVersionRequest,
    InvalidInputError,
    LanceNamespace,
    LanceNamespaceError,
    ListTableBranchesRequest,
    ListTableTagsRequest,
    TableBranchAlreadyExistsError,
    TableBranchNotFoundError,
    TableTagAlreadyExistsError,
    TableTagNotFoundError,
    TableVersionNotFoundError,
    UpdateTableTagRequest,
)

from lancehouse.lake.dataset import TableRef
from lancehouse.paging import encode_token
from tests.lake.folder import FolderNamespace

Both = tuple[LanceNamespace, list[str]]


def tag(namespace: LanceNamespace, table: list[str], name: str, version: int, **at: Any) -> None:
    namespace.create_table_tag(CreateTableTagRequest(id=table, tag=name, version=version, **at))


def branch(namespace: LanceNamespace, table: list[str], name: str, **source: Any) -> None:
    namespace.create_table_branch(CreateTableBranchRequest(id=table, name=name, **source))


@pytest.fixture
def versions(both: Both) -> Both:
    """A table with three versions."""
    namespace, table = both
    for row in (1, 2):
        namespace.delete_from_table(DeleteFromTableRequest(id=table, predicate=f"id = {row}"))
    return both


def test_no_tag_that_cannot_be_listed(ours: FolderNamespace, table: list[str]) -> None:
    with pytest.raises(InvalidInputError, match="letters of ASCII"):
        tag(ours, table, "geprüft", 1)
    TableRef.in_namespace(ours, table).open().tags.create("geprüft", 1)
    assert list(ours.list_table_tags(ListTableTagsRequest(id=table)).tags) == ["geprüft"]
    assert ours.get_table_tag_version(GetTableTagVersionRequest(id=table, tag="geprüft")).version == 1
    ours.delete_table_tag(DeleteTableTagRequest(id=table, tag="geprüft"))
    assert not ours.list_table_tags(ListTableTagsRequest(id=table)).tags


def test_tags(versions: Both) -> None:
    namespace, table = versions
    tag(namespace, table, "one", 1)
    tag(namespace, table, "two", 2)
    assert namespace.get_table_tag_version(GetTableTagVersionRequest(id=table, tag="two")).version == 2
    namespace.update_table_tag(UpdateTableTagRequest(id=table, tag="two", version=3))
    listed = namespace.list_table_tags(ListTableTagsRequest(id=table)).tags
    assert {name: (each.version, each.branch) for name, each in listed.items()} == {"one": (1, None), "two": (3, None)}
    assert all(each.manifest_size > 0 for each in listed.values())
    namespace.delete_table_tag(DeleteTableTagRequest(id=table, tag="one"))
    assert list(namespace.list_table_tags(ListTableTagsRequest(id=table)).tags) == ["two"]


def test_branches(versions: Both) -> None:
    namespace, table = versions
    branch(namespace, table, "latest")
    branch(namespace, table, "first", from_version=1)
    branch(namespace, table, "a/b", from_branch="first")
    branch(namespace, table, "main-too", from_branch="main")
    listed = namespace.list_table_branches(ListTableBranchesRequest(id=table)).branches
    assert {name: (each.parent_branch, each.parent_version) for name, each in listed.items()} == {
        "latest": (None, 3),
        "first": (None, 1),
        "a/b": ("first", 1),
        "main-too": (None, 3),
    }
    assert all(each.manifest_size > 0 and each.create_at > 0 for each in listed.values())
    namespace.delete_table_branch(DeleteTableBranchRequest(id=table, name="a/b"))
    assert "a/b" not in namespace.list_table_branches(ListTableBranchesRequest(id=table)).branches


def test_a_tag_on_a_branch(ours: FolderNamespace, table: list[str]) -> None:
    branch(ours, table, "side")
    ours.delete_from_table(DeleteFromTableRequest(id=table, branch="side", predicate="id = 1"))
    tag(ours, table, "mark", 2, branch="side")
    found = ours.get_table_tag_version(GetTableTagVersionRequest(id=table, tag="mark"))
    assert (found.version, found.branch) == (2, "side")
    ours.update_table_tag(UpdateTableTagRequest(id=table, tag="mark", version=1))
    assert ours.get_table_tag_version(GetTableTagVersionRequest(id=table, tag="mark")).branch is None


def test_pages(ours: FolderNamespace, table: list[str]) -> None:
    for name in ("d", "b", "a", "c", "e"):
        tag(ours, table, name, 1)
        branch(ours, table, name)
    seen: list[str] = []
    token = None
    while True:
        tags = ours.list_table_tags(ListTableTagsRequest(id=table, limit=2, page_token=token))
        branches = ours.list_table_branches(ListTableBranchesRequest(id=table, limit=2, page_token=token))
        assert list(tags.tags) == list(branches.branches)
        seen += tags.tags
        token = tags.page_token
        if token is None:
            break
    assert seen == ["a", "b", "c", "d", "e"]
    ours.delete_table_tag(DeleteTableTagRequest(id=table, tag="b"))
    after = ListTableTagsRequest(id=table, page_token=encode_token("b"))
    assert list(ours.list_table_tags(after).tags) == ["c", "d", "e"]


REFUSED: list[tuple[Callable[[FolderNamespace, list[str]], object], type[Exception]]] = [
    (lambda n, t: tag(n, t, "old", 1), TableTagAlreadyExistsError),
    (lambda n, t: tag(n, t, "new", 99), TableVersionNotFoundError),
    (lambda n, t: tag(n, t, "a b", 1), InvalidInputError),
    (lambda n, t: tag(n, t, "", 1), InvalidInputError),
    (lambda n, t: tag(n, t, "new", 1, branch="none"), TableBranchNotFoundError),
    (lambda n, t: n.update_table_tag(UpdateTableTagRequest(id=t, tag="none", version=1)), TableTagNotFoundError),
    (lambda n, t: n.update_table_tag(UpdateTableTagRequest(id=t, tag="old", version=99)), TableVersionNotFoundError),
    (lambda n, t: n.delete_table_tag(DeleteTableTagRequest(id=t, tag="none")), TableTagNotFoundError),
    (lambda n, t: n.get_table_tag_version(GetTableTagVersionRequest(id=t, tag="none")), TableTagNotFoundError),
    (lambda n, t: branch(n, t, "side"), TableBranchAlreadyExistsError),
    (lambda n, t: branch(n, t, "main"), InvalidInputError),
    (lambda n, t: branch(n, t, "a b"), InvalidInputError),
    (lambda n, t: branch(n, t, "new", from_version=99), TableVersionNotFoundError),
    (lambda n, t: branch(n, t, "new", from_branch="none"), TableBranchNotFoundError),
    (lambda n, t: branch(n, t, "new", from_branch="side", from_version=99), TableVersionNotFoundError),
    (lambda n, t: n.delete_table_branch(DeleteTableBranchRequest(id=t, name="none")), TableBranchNotFoundError),
    (lambda n, t: n.delete_table_branch(DeleteTableBranchRequest(id=t, name="main")), InvalidInputError),
    (lambda n, t: n.delete_table_branch(DeleteTableBranchRequest(id=t, name="side")), InvalidInputError),
    (lambda n, t: n.list_table_tags(ListTableTagsRequest(id=t, limit=-1)), InvalidInputError),
]


@pytest.mark.parametrize(("act", "expected"), REFUSED)
def test_what_cannot_be(
    ours: FolderNamespace,
    table: list[str],
    act: Callable[[FolderNamespace, list[str]], object],
    expected: type[Exception],
) -> None:
    tag(ours, table, "old", 1)
    branch(ours, table, "side")
    branch(ours, table, "leaf", from_branch="side")
    with pytest.raises(LanceNamespaceError) as raised:
        act(ours, table)
    assert type(raised.value) is expected, raised.value
