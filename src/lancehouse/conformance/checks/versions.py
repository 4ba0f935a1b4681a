"""Checks of versions, tags and branches of a table, of its columns, and of its indices."""

from __future__ import annotations

import lance
import pyarrow as pa
from lance_namespace.errors import ErrorCode
from lance_namespace_urllib3_client.models.add_columns_entry import AddColumnsEntry
from lance_namespace_urllib3_client.models.alter_columns_entry import AlterColumnsEntry
from lance_namespace_urllib3_client.models.update_field_metadata_entry import UpdateFieldMetadataEntry
from lance_namespace_urllib3_client.models.version_range import VersionRange

from lancehouse.conformance.subject import ROWS, Id, Subject

TAG = "release"
BRANCH = "experiment"


def check_versions_list(subject: Subject) -> None:
    """list_table_versions lists every version."""
    table, versions = _create_versions(subject)
    listed = sorted(_list_versions(subject, table))
    assert listed == versions, f"the versions are {listed}, not {versions}"


def check_versions_list_descending(subject: Subject) -> None:
    """list_table_versions with descending=True begins with the latest."""
    table, versions = _create_versions(subject)
    listed = _list_versions(subject, table, descending=True)
    assert listed == versions[::-1], f"the versions are {listed}, not {versions[::-1]}"


def check_versions_list_limit(subject: Subject) -> None:
    """list_table_versions with limit=1 and descending=True is the latest."""
    table, versions = _create_versions(subject)
    listed = [
        version.version for version in subject.call("list_table_versions", table, descending=True, limit=1).versions
    ]
    assert listed == versions[-1:], f"it is {listed}, not {versions[-1:]}"


def check_versions_describe(subject: Subject) -> None:
    """describe_table_version describes a version."""
    table, versions = _create_versions(subject)
    response = subject.call("describe_table_version", table, version=versions[0])
    assert response.version.version == versions[0], f"it describes {response.version.version}, not {versions[0]}"
    assert response.version.manifest_path, "it has no manifest_path"


def check_versions_describe_missing(subject: Subject) -> None:
    """Describing a missing version is error 11."""
    with subject.expect_error(ErrorCode.TABLE_VERSION_NOT_FOUND):
        subject.call("describe_table_version", subject.new_dataset(), version=999)


def check_versions_restore(subject: Subject) -> None:
    """restore_table brings back the rows of an old version."""
    table, versions = _create_versions(subject)
    subject.call("restore_table", table, version=versions[0])
    rows = subject.read(table).num_rows
    assert rows == ROWS.num_rows, f"there are {rows} rows, not {ROWS.num_rows}"


def check_versions_restore_missing(subject: Subject) -> None:
    """Restoring a missing version is error 11."""
    with subject.expect_error(ErrorCode.TABLE_VERSION_NOT_FOUND):
        subject.call("restore_table", subject.new_dataset(), version=999)


def check_versions_delete(subject: Subject) -> None:
    """batch_delete_table_versions deletes old versions only."""
    table, versions = _create_versions(subject)
    ranges = [VersionRange(start_version=versions[0], end_version=versions[1])]
    subject.call("batch_delete_table_versions", table, ranges=ranges)
    listed = sorted(_list_versions(subject, table))
    assert listed == versions[1:], f"the versions are {listed}, not {versions[1:]}"
    assert subject.read(table).num_rows == 3 * ROWS.num_rows, "the latest version has lost rows"


def check_versions_tag(subject: Subject) -> None:
    """A tag is created, listed, found, moved and deleted."""
    table, versions = _create_versions(subject)
    subject.call("create_table_tag", table, tag=TAG, version=versions[0])
    listed = subject.call("list_table_tags", table).tags
    assert {tag: contents.version for tag, contents in listed.items()} == {TAG: versions[0]}, f"the tags are {listed}"
    assert _get_tag_version(subject, table) == versions[0], (
        f"it is at {_get_tag_version(subject, table)}, not at {versions[0]}"
    )
    subject.call("update_table_tag", table, tag=TAG, version=versions[1])
    assert _get_tag_version(subject, table) == versions[1], (
        f"it is at {_get_tag_version(subject, table)}, not moved to {versions[1]}"
    )
    subject.call("delete_table_tag", table, tag=TAG)
    with subject.expect_error(ErrorCode.TABLE_TAG_NOT_FOUND):
        _get_tag_version(subject, table)
    subject.log.notes.clear()


def check_versions_tag_read(subject: Subject) -> None:
    """lance.dataset opens a table by its name at a tag."""
    table, versions = _create_versions(subject)
    subject.call("create_table_tag", table, tag=TAG, version=versions[0])
    rows = subject.read(table, version=TAG).num_rows
    assert rows == ROWS.num_rows, f"at the tag there are {rows} rows, not {ROWS.num_rows}"


def check_versions_tag_existing(subject: Subject) -> None:
    """Creating a tag that exists is error 9."""
    table, versions = _create_versions(subject)
    subject.call("create_table_tag", table, tag=TAG, version=versions[0])
    with subject.expect_error(ErrorCode.TABLE_TAG_ALREADY_EXISTS):
        subject.call("create_table_tag", table, tag=TAG, version=versions[1])


def check_versions_tag_missing(subject: Subject) -> None:
    """Deleting a missing tag is error 8."""
    with subject.expect_error(ErrorCode.TABLE_TAG_NOT_FOUND):
        subject.call("delete_table_tag", subject.new_dataset(), tag=TAG)


def check_versions_branch(subject: Subject) -> None:
    """A branch is created, listed and deleted."""
    table = subject.new_dataset()
    subject.call("create_table_branch", table, name=BRANCH)
    assert BRANCH in _list_branches(subject, table), f"the branches are {_list_branches(subject, table)}"
    subject.call("delete_table_branch", table, name=BRANCH)
    assert BRANCH not in _list_branches(subject, table), "it is listed still"


def check_versions_branch_existing(subject: Subject) -> None:
    """Creating a branch that exists is error 23."""
    table = subject.new_dataset()
    subject.call("create_table_branch", table, name=BRANCH)
    with subject.expect_error(ErrorCode.TABLE_BRANCH_ALREADY_EXISTS):
        subject.call("create_table_branch", table, name=BRANCH)


def check_versions_branch_missing(subject: Subject) -> None:
    """Deleting a missing branch is error 22."""
    with subject.expect_error(ErrorCode.TABLE_BRANCH_NOT_FOUND):
        subject.call("delete_table_branch", subject.new_dataset(), name=BRANCH)


def _create_versions(subject: Subject) -> tuple[Id, list[int]]:
    """Create a table with three versions; return its id and their numbers."""
    table = subject.new_dataset()
    subject.write(table, ROWS, "append")
    subject.write(table, ROWS, "append")
    dataset = lance.dataset(namespace_client=subject.raw_client, table_id=table)
    return table, sorted(version["version"] for version in dataset.versions())


def _list_versions(subject: Subject, table: Id, *, descending: bool | None = None) -> list[int]:
    return [version.version for version in subject.call("list_table_versions", table, descending=descending).versions]


def _get_tag_version(subject: Subject, table: Id) -> int:
    return int(subject.call("get_table_tag_version", table, tag=TAG).version)


def _list_branches(subject: Subject, table: Id) -> list[str]:
    return list(subject.call("list_table_branches", table).branches)


NO_COLUMN = (ErrorCode.TABLE_COLUMN_NOT_FOUND, ErrorCode.INVALID_INPUT)
METADATA = {"lancehouse": "conformance"}


def check_columns_add(subject: Subject) -> None:
    """alter_table_add_columns adds a computed column."""
    table = subject.new_dataset()
    column = AddColumnsEntry(name="twice", expression="id * 2")
    subject.call("alter_table_add_columns", table, new_columns=[column])
    rows = subject.read(table)
    assert "twice" in rows.column_names, f"the columns are {rows.column_names}"
    assert rows["twice"].to_pylist() == [2, 4, 6], f"it holds {rows['twice'].to_pylist()}"


def check_columns_rename(subject: Subject) -> None:
    """alter_table_alter_columns renames a column."""
    table = subject.new_dataset()
    change = AlterColumnsEntry(path="name", rename="label")
    subject.call("alter_table_alter_columns", table, alterations=[change])
    names = subject.read(table).column_names
    assert names == ["id", "label", "vector"], f"the columns are {names}"


def check_columns_drop(subject: Subject) -> None:
    """alter_table_drop_columns drops a column."""
    table = subject.new_dataset()
    subject.call("alter_table_drop_columns", table, columns=["vector"])
    names = subject.read(table).column_names
    assert names == ["id", "name"], f"the columns are {names}"


def check_columns_drop_missing(subject: Subject) -> None:
    """Dropping a missing column is error 12 or 13."""
    with subject.expect_error(*NO_COLUMN):
        subject.call("alter_table_drop_columns", subject.new_dataset(), columns=["nowhere"])


def check_columns_rename_missing(subject: Subject) -> None:
    """Renaming a missing column is error 12 or 13."""
    change = AlterColumnsEntry(path="nowhere", rename="label")
    with subject.expect_error(*NO_COLUMN):
        subject.call("alter_table_alter_columns", subject.new_dataset(), alterations=[change])


def check_columns_missing_table(subject: Subject) -> None:
    """Dropping a column of a missing table is error 4."""
    missing = subject.missing_table()
    with subject.expect_error(ErrorCode.TABLE_NOT_FOUND):
        subject.call("alter_table_drop_columns", missing, columns=["id"])


def check_columns_stats(subject: Subject) -> None:
    """get_table_stats counts rows."""
    stats = subject.call("get_table_stats", subject.new_dataset())
    assert stats.num_rows == ROWS.num_rows, f"it counts {stats.num_rows} rows, not {ROWS.num_rows}"


def check_columns_stats_missing(subject: Subject) -> None:
    """Statistics of a missing table are error 4."""
    with subject.expect_error(ErrorCode.TABLE_NOT_FOUND):
        subject.call("get_table_stats", subject.missing_table())


def check_columns_schema_metadata(subject: Subject) -> None:
    """update_table_schema_metadata sets metadata of the schema."""
    table = subject.new_dataset()
    subject.call("update_table_schema_metadata", table, metadata=METADATA)
    stored = lance.dataset(namespace_client=subject.raw_client, table_id=table).schema.metadata or {}
    assert stored.get(b"lancehouse") == b"conformance", f"the metadata are {stored}"


def check_columns_field_metadata(subject: Subject) -> None:
    """update_field_metadata sets metadata of a column."""
    table = subject.new_dataset()
    update = UpdateFieldMetadataEntry(path="name", metadata={**METADATA})
    subject.call("update_field_metadata", table, updates=[update])
    stored = lance.dataset(namespace_client=subject.raw_client, table_id=table).schema.field("name").metadata or {}
    assert stored.get(b"lancehouse") == b"conformance", f"the metadata are {stored}"


SIZE = 512
INDEXED = pa.table(
    {
        "id": pa.array(range(SIZE), pa.int64()),
        "text": pa.array([f"word{number % 7} and more" for number in range(SIZE)]),
        "vector": pa.array([[float(number % 16), 1.0] for number in range(SIZE)], pa.list_(pa.float32(), 2)),
    }
)
NAME = "lancehouse_index"


def check_indices_scalar(subject: Subject) -> None:
    """A scalar index is created and listed."""
    table = _create_indexed_table(subject)
    columns = _list_indices(subject, table)[NAME]
    assert columns == ["id"], f"it is listed for the columns {columns}"


def check_indices_vector(subject: Subject) -> None:
    """A vector index is created and listed."""
    table = subject.new_dataset(INDEXED)
    kind = {"index_type": "IVF_FLAT", "distance_type": "l2", "num_partitions": 1}
    subject.call("create_table_index", table, column="vector", name=NAME, **kind)
    assert NAME in _list_indices(subject, table), f"the indices are {list(_list_indices(subject, table))}"


def check_indices_text(subject: Subject) -> None:
    """A full-text index is created and listed."""
    table = subject.new_dataset(INDEXED)
    subject.call("create_table_scalar_index", table, column="text", index_type="FTS", name=NAME)
    assert NAME in _list_indices(subject, table), f"the indices are {list(_list_indices(subject, table))}"


def check_indices_stats(subject: Subject) -> None:
    """describe_table_index_stats counts the indexed rows."""
    table = _create_indexed_table(subject)
    rows = subject.call("describe_table_index_stats", table, index_name=NAME).num_indexed_rows
    assert rows == SIZE, f"{rows} of {SIZE} rows are indexed"


def check_indices_stats_missing(subject: Subject) -> None:
    """Statistics of a missing index are error 6."""
    with subject.expect_error(ErrorCode.TABLE_INDEX_NOT_FOUND):
        subject.call("describe_table_index_stats", subject.new_dataset(), index_name=NAME)


def check_indices_drop(subject: Subject) -> None:
    """A dropped index is gone."""
    table = _create_indexed_table(subject)
    subject.call("drop_table_index", table, index_name=NAME)
    assert NAME not in _list_indices(subject, table), "it is listed still"


def check_indices_drop_missing(subject: Subject) -> None:
    """Dropping a missing index is error 6."""
    with subject.expect_error(ErrorCode.TABLE_INDEX_NOT_FOUND):
        subject.call("drop_table_index", subject.new_dataset(), index_name=NAME)


def check_indices_missing_column(subject: Subject) -> None:
    """An index on a missing column is error 12 or 13."""
    table = subject.new_dataset()
    with subject.expect_error(*NO_COLUMN):
        subject.call("create_table_scalar_index", table, column="nowhere", index_type="BTREE")


def check_indices_missing_table(subject: Subject) -> None:
    """The indices of a missing table are error 4."""
    with subject.expect_error(ErrorCode.TABLE_NOT_FOUND):
        _list_indices(subject, subject.missing_table())


def _create_indexed_table(subject: Subject) -> Id:
    table = subject.new_dataset(INDEXED)
    subject.call("create_table_scalar_index", table, column="id", index_type="BTREE", name=NAME)
    return table


def _list_indices(subject: Subject, table: Id) -> dict[str, list[str]]:
    indices = subject.call("list_table_indices", table).indexes
    return {index.index_name: list(index.columns) for index in indices}
