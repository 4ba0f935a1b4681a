"""Checks of versions, tags and branches of a table."""

from __future__ import annotations

import lance
from lance_namespace import (
    BatchDeleteTableVersionsRequest,
    CreateTableBranchRequest,
    CreateTableTagRequest,
    DeleteTableBranchRequest,
    DeleteTableTagRequest,
    DescribeTableVersionRequest,
    GetTableTagVersionRequest,
    ListTableBranchesRequest,
    ListTableTagsRequest,
    ListTableVersionsRequest,
    RestoreTableRequest,
    UpdateTableTagRequest,
)
from lance_namespace.errors import ErrorCode
from lance_namespace_urllib3_client.models.version_range import VersionRange

from lancehouse.conformance.subject import ROWS, Id, Subject

TAG = "release"
BRANCH = "experiment"


def check_list(subject: Subject) -> None:
    """list_table_versions lists every version."""
    table, versions = _create_versions(subject)
    listed = sorted(_list_versions(subject, table))
    assert listed == versions, f"the versions are {listed}, not {versions}"


def check_list_descending(subject: Subject) -> None:
    """list_table_versions with descending=True begins with the latest."""
    table, versions = _create_versions(subject)
    listed = _list_versions(subject, table, descending=True)
    assert listed == versions[::-1], f"the versions are {listed}, not {versions[::-1]}"


def check_list_limit(subject: Subject) -> None:
    """list_table_versions with limit=1 and descending=True is the latest."""
    table, versions = _create_versions(subject)
    request = ListTableVersionsRequest(id=table, descending=True, limit=1)
    listed = [one.version for one in subject.client.list_table_versions(request).versions]
    assert listed == versions[-1:], f"it is {listed}, not {versions[-1:]}"


def check_describe(subject: Subject) -> None:
    """describe_table_version describes a version."""
    table, versions = _create_versions(subject)
    response = subject.client.describe_table_version(DescribeTableVersionRequest(id=table, version=versions[0]))
    assert response.version.version == versions[0], f"it describes {response.version.version}, not {versions[0]}"
    assert response.version.manifest_path, "it has no manifest_path"


def check_describe_missing(subject: Subject) -> None:
    """Describing a missing version is error 11."""
    with subject.expect_error(ErrorCode.TABLE_VERSION_NOT_FOUND):
        request = DescribeTableVersionRequest(id=subject.new_dataset(), version=999)
        subject.client.describe_table_version(request)


def check_restore(subject: Subject) -> None:
    """restore_table brings back the rows of an old version."""
    table, versions = _create_versions(subject)
    subject.client.restore_table(RestoreTableRequest(id=table, version=versions[0]))
    rows = subject.read(table).num_rows
    assert rows == ROWS.num_rows, f"there are {rows} rows, not {ROWS.num_rows}"


def check_restore_missing(subject: Subject) -> None:
    """Restoring a missing version is error 11."""
    with subject.expect_error(ErrorCode.TABLE_VERSION_NOT_FOUND):
        subject.client.restore_table(RestoreTableRequest(id=subject.new_dataset(), version=999))


def check_delete(subject: Subject) -> None:
    """batch_delete_table_versions deletes old versions only."""
    table, versions = _create_versions(subject)
    ranges = [VersionRange(start_version=versions[0], end_version=versions[1])]
    subject.client.batch_delete_table_versions(BatchDeleteTableVersionsRequest(id=table, ranges=ranges))
    listed = sorted(_list_versions(subject, table))
    assert listed == versions[1:], f"the versions are {listed}, not {versions[1:]}"
    assert subject.read(table).num_rows == 3 * ROWS.num_rows, "the latest version has lost rows"


def check_tag(subject: Subject) -> None:
    """A tag is created, listed, found, moved and deleted."""
    table, versions = _create_versions(subject)
    subject.client.create_table_tag(CreateTableTagRequest(id=table, tag=TAG, version=versions[0]))
    listed = subject.client.list_table_tags(ListTableTagsRequest(id=table)).tags
    assert {tag: contents.version for tag, contents in listed.items()} == {TAG: versions[0]}, f"the tags are {listed}"
    assert _get_tag_version(subject, table) == versions[0], (
        f"it is at {_get_tag_version(subject, table)}, not at {versions[0]}"
    )
    subject.client.update_table_tag(UpdateTableTagRequest(id=table, tag=TAG, version=versions[1]))
    assert _get_tag_version(subject, table) == versions[1], (
        f"it is at {_get_tag_version(subject, table)}, not moved to {versions[1]}"
    )
    subject.client.delete_table_tag(DeleteTableTagRequest(id=table, tag=TAG))
    with subject.expect_error(ErrorCode.TABLE_TAG_NOT_FOUND):
        _get_tag_version(subject, table)
    subject.log.notes.clear()


def check_tag_read(subject: Subject) -> None:
    """lance.dataset opens a table by its name at a tag."""
    table, versions = _create_versions(subject)
    subject.client.create_table_tag(CreateTableTagRequest(id=table, tag=TAG, version=versions[0]))
    rows = subject.read(table, version=TAG).num_rows
    assert rows == ROWS.num_rows, f"at the tag there are {rows} rows, not {ROWS.num_rows}"


def check_tag_existing(subject: Subject) -> None:
    """Creating a tag that exists is error 9."""
    table, versions = _create_versions(subject)
    subject.client.create_table_tag(CreateTableTagRequest(id=table, tag=TAG, version=versions[0]))
    with subject.expect_error(ErrorCode.TABLE_TAG_ALREADY_EXISTS):
        subject.client.create_table_tag(CreateTableTagRequest(id=table, tag=TAG, version=versions[1]))


def check_tag_missing(subject: Subject) -> None:
    """Deleting a missing tag is error 8."""
    with subject.expect_error(ErrorCode.TABLE_TAG_NOT_FOUND):
        subject.client.delete_table_tag(DeleteTableTagRequest(id=subject.new_dataset(), tag=TAG))


def check_branch(subject: Subject) -> None:
    """A branch is created, listed and deleted."""
    table = subject.new_dataset()
    subject.client.create_table_branch(CreateTableBranchRequest(id=table, name=BRANCH))
    assert BRANCH in _list_branches(subject, table), f"the branches are {_list_branches(subject, table)}"
    subject.client.delete_table_branch(DeleteTableBranchRequest(id=table, name=BRANCH))
    assert BRANCH not in _list_branches(subject, table), "it is listed still"


def check_branch_existing(subject: Subject) -> None:
    """Creating a branch that exists is error 23."""
    table = subject.new_dataset()
    subject.client.create_table_branch(CreateTableBranchRequest(id=table, name=BRANCH))
    with subject.expect_error(ErrorCode.TABLE_BRANCH_ALREADY_EXISTS):
        subject.client.create_table_branch(CreateTableBranchRequest(id=table, name=BRANCH))


def check_branch_missing(subject: Subject) -> None:
    """Deleting a missing branch is error 22."""
    with subject.expect_error(ErrorCode.TABLE_BRANCH_NOT_FOUND):
        subject.client.delete_table_branch(DeleteTableBranchRequest(id=subject.new_dataset(), name=BRANCH))


def _create_versions(subject: Subject) -> tuple[Id, list[int]]:
    """Create a table with three versions; return its id and their numbers."""
    table = subject.new_dataset()
    subject.write(table, ROWS, "append")
    subject.write(table, ROWS, "append")
    opened = lance.dataset(namespace_client=subject.raw_client, table_id=table)
    return table, sorted(version["version"] for version in opened.versions())


def _list_versions(subject: Subject, table: Id, *, descending: bool | None = None) -> list[int]:
    request = ListTableVersionsRequest(id=table, descending=descending)
    return [one.version for one in subject.client.list_table_versions(request).versions]


def _get_tag_version(subject: Subject, table: Id) -> int:
    return subject.client.get_table_tag_version(GetTableTagVersionRequest(id=table, tag=TAG)).version


def _list_branches(subject: Subject, table: Id) -> list[str]:
    return list(subject.client.list_table_branches(ListTableBranchesRequest(id=table)).branches)
