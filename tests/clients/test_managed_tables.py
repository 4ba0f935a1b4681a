"""Tables that a catalog takes over, hands back and keeps in step with: on Iceberg's own server and on ours."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance_namespace import (
    BatchDeleteTableVersionsRequest,
    CreateTableBranchRequest,
    CreateTableRequest,
    CreateTableTagRequest,
    CreateTableVersionRequest,
    DeclareTableRequest,
    DeleteTableBranchRequest,
    DeleteTableTagRequest,
    DeregisterTableRequest,
    DescribeTableRequest,
    DescribeTableVersionRequest,
    InsertIntoTableRequest,
    ListTablesRequest,
    ListTableVersionsRequest,
    RegisterTableRequest,
    UpdateTableTagRequest,
    errors,
)
from lance_namespace_urllib3_client.models.version_range import VersionRange

from lancehouse import IcebergNamespace
from lancehouse.clients.transactions import Transaction
from lancehouse.identifiers import TableId
from lancehouse.lake.dataset import snapshot_id
from tests.clients.managed import (
    NO,
    Id,
    ManagedCatalog,
    count,
    killed_before_the_manifest_is_final,
    rows,
    stage_commit,
    versions,
)
from tests.lake.folder import stream
from tests.servers.faults import ALWAYS, FaultProxy, answer_always, lost_answer, passes

Faults = Callable[[str], FaultProxy]
NONE = timedelta(0)


def insert(house: ManagedCatalog, table: Id, branch: str | None = None, client: IcebergNamespace | None = None) -> None:
    (client or house.namespace).insert_into_table(InsertIntoTableRequest(id=table, branch=branch), stream(rows(1)))


def plain_table(house: ManagedCatalog, name: str = "t", versions: int = 3) -> Id:
    """A table that storage manages."""
    table = [*house.levels, name]
    house.namespace.declare_table(DeclareTableRequest(id=table, properties={"managed_by": "storage"}))
    for number in range(versions):
        lance.write_dataset(rows(1, number), house.location(table), mode="append" if number else "create")
    return table


def plain_data(house: ManagedCatalog) -> str:
    """Where three versions lie that no catalog knows of."""
    table = plain_table(house, "other")
    location = house.namespace.deregister_table(DeregisterTableRequest(id=table)).location
    assert location is not None
    return location


def refs(house: ManagedCatalog, table: Id) -> dict[str, int]:
    return {name: ref["snapshot-id"] for name, ref in house.entry(table)["refs"].items()}


# From storage to the catalog and back


def test_there_and_back(house: ManagedCatalog) -> None:
    table = plain_table(house)
    assert house.namespace.manage_table(table, "impl") == house.check(table) == 3
    assert house.entry(table)["properties"]["managed_by"] == "impl"
    described = house.connect().describe_table(DescribeTableRequest(id=table))
    assert described.managed_versioning is True
    house.append(table)
    assert house.check(table) == 4
    assert versions(house.connect(), table) == [1, 2, 3, 4]  # those from before are still there
    assert [house.open(table, version).count_rows() for version in (1, 2, 3, 4)] == [1, 2, 3, 4]

    assert house.namespace.manage_table(table, "storage") == 4
    assert house.connect().describe_table(DescribeTableRequest(id=table)).managed_versioning is None
    lance.write_dataset(rows(1), house.location(table), mode="append")
    insert(house, table)
    assert house.open(table).version == 6
    assert versions(house.connect(), table) == [1, 2, 3, 4, 5, 6]

    assert house.namespace.manage_table(table, "impl") == house.check(table) == 6
    assert versions(house.connect(), table) == [1, 2, 3, 4, 5, 6]
    insert(house, table)
    assert house.check(table) == 7
    assert house.open(table).count_rows() == 7


@pytest.mark.parametrize("by", ["impl", "IMPL", "storage"])
def test_nothing_to_do(house: ManagedCatalog, by: str) -> None:
    table = house.table() if by != "storage" else plain_table(house, versions=1)
    before = house.entry(table)
    assert house.namespace.manage_table(table, by) == 1
    assert house.entry(table) == before


def test_a_table_without_data(house: ManagedCatalog) -> None:
    table = plain_table(house, versions=0)
    assert house.namespace.manage_table(table, "impl") is None
    house.append(table)
    assert house.check(table) == 1
    empty = [*house.levels, "empty"]
    house.namespace.declare_table(DeclareTableRequest(id=empty))
    assert house.namespace.manage_table(empty, "storage") is None
    assert house.entry(empty)["properties"]["managed_by"] == "storage"


def test_wrong_words_and_names(house: ManagedCatalog) -> None:
    with pytest.raises(errors.InvalidInputError, match="expected 'storage' or 'impl'"):
        house.namespace.manage_table(house.table(), "catalog")
    with pytest.raises(errors.TableNotFoundError):
        house.namespace.manage_table([*house.levels, "none"], "impl")


def test_what_the_user_has_set_stays(house: ManagedCatalog) -> None:
    """How many metadata files the server keeps, as in `declare_table`."""
    table = [*house.levels, "t"]
    properties = {"managed_by": "storage", "write.metadata.previous-versions-max": "99"}
    house.namespace.declare_table(DeclareTableRequest(id=table, properties=properties))
    lance.write_dataset(rows(), house.location(table))
    house.namespace.manage_table(table, "impl")
    told = house.entry(table)["properties"]
    assert told["write.metadata.previous-versions-max"] == "99"
    assert told["write.metadata.delete-after-commit.enabled"] == "true"


def test_the_schema_is_taken_over(house: ManagedCatalog) -> None:
    table = plain_table(house)
    lance.dataset(house.location(table)).add_columns({"twice": "id * 2"})
    house.namespace.manage_table(table, "impl")
    assert house.columns(table) == ["id", "word", "twice"]
    assert [field.name for field in house.iceberg().load_table((table[1], "t")).schema().fields] == house.columns(table)


def test_branches_are_taken_over(house: ManagedCatalog) -> None:
    table = plain_table(house)
    branch = lance.dataset(house.location(table)).create_branch("dev")
    lance.write_dataset(rows(2, 50), branch, mode="append")
    house.namespace.manage_table(table, "impl")
    assert house.at(table, "dev") == snapshot_id("dev", 4)
    namespace = house.connect()
    assert versions(namespace, table, branch="dev") == [3, 4]
    described = namespace.describe_table_version(DescribeTableVersionRequest(id=table, branch="dev")).version
    assert described.version == 4
    assert count(namespace, table, "dev") == 5
    insert(house, table, "dev", namespace)
    assert house.at(table, "dev") == snapshot_id("dev", 5)
    assert count(house.connect(), table, "dev") == 6


def test_a_pending_manifest_is_put_in_its_place_first(house: ManagedCatalog) -> None:
    table = house.table()
    request = CreateTableVersionRequest(**stage_commit(house.namespace, table))
    with killed_before_the_manifest_is_final():
        house.namespace.create_table_version(request)
    assert house.connect().manage_table(table, "storage") == 2
    assert lance.dataset(house.location(table)).count_rows() == 11


# Where they disagree


@pytest.fixture
def stray_table(house: ManagedCatalog) -> Id:
    """A table at version 2, to which a plain writer has added two."""
    table = house.table()
    house.append(table)
    for number in range(2):
        lance.write_dataset(rows(1, 5000 + number), house.location(table), mode="append")
    lance.dataset(house.location(table)).add_columns({"twice": "id * 2"})
    return table


@pytest.mark.parametrize("by", ["impl", "storage"])
def test_a_writer_went_past_the_catalog(house: ManagedCatalog, stray_table: Id, by: str) -> None:
    for adopt in (False, *((True,) if by == "storage" else ())):
        with pytest.raises(errors.InvalidTableStateError) as error:
            house.namespace.manage_table(stray_table, by, adopt=adopt)
        words = str(error.value)
        assert f"table {'.'.join(stray_table)}" in words
        assert "version 2" in words
        assert "version 5" in words or "at 5" in words
        assert "`lancehouse table manage --by impl --adopt`" in words
    assert house.at(stray_table) == 2
    assert house.open(stray_table).count_rows() == 11


def test_what_they_wrote_is_adopted(house: ManagedCatalog, stray_table: Id) -> None:
    assert house.namespace.manage_table(stray_table, "impl", adopt=True) == house.check(stray_table) == 5
    assert versions(house.connect(), stray_table) == [1, 2, 3, 4, 5]
    assert [house.open(stray_table, version).count_rows() for version in (2, 3, 4, 5)] == [11, 12, 13, 13]
    assert sorted(house.snapshots(stray_table)) == [1, 2, 3, 4, 5]
    lance.dataset(namespace_client=house.namespace, table_id=stray_table).delete("id = 5000")
    assert house.check(stray_table) == 6
    assert house.namespace.manage_table(stray_table, "storage") == 6


def test_what_was_described_before_an_adoption_does_not_count_after_it(house: ManagedCatalog, stray_table: Id) -> None:
    client = house.connect()
    client.describe_table(DescribeTableRequest(id=stray_table))
    client.manage_table(stray_table, "impl", adopt=True)
    assert versions(client, stray_table, limit=1, descending=True) == [5]


def test_a_stray_first_version(house: ManagedCatalog) -> None:
    """Somebody wrote to the place of a table that was only declared."""
    table = [*house.levels, "t"]
    house.namespace.declare_table(DeclareTableRequest(id=table))
    lance.write_dataset(rows(), house.location(table))
    with pytest.raises(errors.InvalidTableStateError, match="bypassed the catalog"):
        house.namespace.manage_table(table, "storage")
    with pytest.raises(errors.LanceNamespaceError):
        insert(house, table)
    assert house.namespace.manage_table(table, "impl", adopt=True) == house.check(table) == 1
    insert(house, table)
    assert house.check(table) == 2


def test_the_first_version_is_accepted_on_demand(house: ManagedCatalog) -> None:
    """As Lance 4 creates tables; what comes after a first version is not accepted so."""
    table = [*house.levels, "t"]
    house.namespace.declare_table(DeclareTableRequest(id=table))
    assert house.namespace.accept_first(table) is False
    lance.write_dataset(rows(), house.location(table))
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda _: house.connect().accept_first(table), range(4))) == [True] * 4
    assert house.check(table) == 1
    lance.write_dataset(rows(), house.location(table), mode="append")
    assert house.namespace.accept_first(table) is False
    assert house.at(table) == 1


def test_more_than_a_first_version_is_not_accepted_on_demand(house: ManagedCatalog) -> None:
    table = [*house.levels, "t"]
    house.namespace.declare_table(DeclareTableRequest(id=table))
    for mode in ("create", "append"):
        lance.write_dataset(rows(), house.location(table), mode=mode)
    assert house.namespace.accept_first(table) is False
    with pytest.raises(ValueError, match="bypassed the catalog"):  # of pylance, with what it was told
        house.open(table)


def test_a_lost_manifest(house: ManagedCatalog) -> None:
    """Of the version that the catalog is at: nothing is done, and the text says what to do."""
    table = house.table()
    house.append(table)
    lost = house.folder(table) / "_versions" / f"{2**64 - 3}.manifest"
    data = lost.read_bytes()
    lost.unlink()
    for client in (house.namespace, house.connect()):
        for by in ("impl", "storage"):
            for adopt in (True, False):
                with pytest.raises(errors.InvalidTableStateError, match="from a backup"):
                    client.manage_table(table, by, adopt=adopt)
    with pytest.raises(errors.InvalidTableStateError, match="from a backup"):
        count(house.connect(), table)
    assert house.at(table) == 2
    lost.write_bytes(data)
    assert house.check(table) == 2


def test_storage_went_back_while_it_managed(house: ManagedCatalog) -> None:
    table = house.table()
    house.append(table)
    house.append(table)
    house.namespace.manage_table(table, "storage")
    (house.folder(table) / "_versions" / f"{2**64 - 4}.manifest").unlink()
    if house.is_ours:
        assert house.namespace.manage_table(table, "impl") == house.check(table) == 2  # it kept nothing of its own
    else:
        with pytest.raises(errors.InvalidTableStateError, match="version 3"):
            house.namespace.manage_table(table, "impl")


def test_another_version_was_written_where_one_was_pending(house: ManagedCatalog) -> None:
    """Two versions 2: the one that the catalog accepted, and one of a plain writer. The text says how to go on."""
    table = house.table()
    request = CreateTableVersionRequest(**stage_commit(house.namespace, table))
    with killed_before_the_manifest_is_final():
        house.namespace.create_table_version(request)
    lance.write_dataset(rows(3, 5000), house.location(table), mode="append")
    with pytest.raises(errors.InvalidTableStateError, match=r"bypassed the catalog.*(table manage|move|remove)"):
        count(house.connect(), table)
    with pytest.raises(errors.InvalidTableStateError, match=r"bypassed the catalog.*(table manage|move|remove)"):
        house.connect().manage_table(table, "impl")


def test_an_answer_that_is_lost(house: ManagedCatalog, proxy: FaultProxy) -> None:
    table = plain_table(house)
    proxy.add(lost_answer, method="POST", path="/tables/t$")
    assert house.behind(proxy).manage_table(table, "impl") == house.check(table) == 3
    proxy.add(lost_answer, method="POST", path="/tables/t$")
    assert house.behind(proxy).manage_table(table, "storage") == 3
    assert house.entry(table)["properties"]["managed_by"] == "storage"


# Tables that are there already


@pytest.mark.parametrize("as_property", [True, False], ids=["table", "client"])
def test_register(house: ManagedCatalog, as_property: bool) -> None:
    location, table = plain_data(house), [*house.levels, "t"]
    client = house.connect(managed_by="storage") if as_property else house.namespace
    properties = {"managed_by": "impl"} if as_property else None
    registered = client.register_table(RegisterTableRequest(id=table, location=location, properties=properties))
    assert (registered.properties or {})["managed_by"] == "impl"
    assert house.check(table) == 3
    assert versions(house.connect(), table) == [1, 2, 3]
    assert [house.open(table, version).count_rows() for version in (1, 2, 3)] == [1, 2, 3]
    for version in (1, 3):
        asked = DescribeTableVersionRequest(id=table, version=version)
        described = house.connect().describe_table_version(asked).version
        assert (described.version, described.timestamp_millis is not None) == (version, True)
    insert(house, table)
    assert house.check(table) == 4


def test_register_that_is_not_accepted(house: ManagedCatalog, proxy: FaultProxy) -> None:
    location, table = plain_data(house), [*house.levels, "t"]
    proxy.add(answer_always(403, NO), method="POST", path="/tables/t$", times=ALWAYS)
    request = RegisterTableRequest(id=table, location=location)
    if house.is_ours:
        house.behind(proxy).register_table(request)  # this server accepts the version when it makes the entry
        assert house.check(table) == 3
        return
    with pytest.raises(errors.PermissionDeniedError):
        house.behind(proxy).register_table(request)
    assert house.namespace.list_tables(ListTablesRequest(id=house.levels)).tables == []
    assert lance.dataset(location).count_rows() == 3


@pytest.mark.parametrize("step", ["entry", "version"])
def test_an_old_entry_is_put_back_with_its_versions(house: ManagedCatalog, proxy: FaultProxy, step: str) -> None:
    """Registering over a table fails half way: the table is as it was."""
    table, location = house.table(), plain_data(house)
    insert(house, table)
    if step == "entry":
        proxy.add(passes, method="POST", path="/tables$")  # the table exists
        proxy.add(passes, method="POST", path="/tables$")  # where would the server put it?
        proxy.add(answer_always(403, NO), method="POST", path="/tables$")
    elif house.is_ours:
        pytest.skip("this server accepts the version when it makes the entry")
    else:
        proxy.add(answer_always(403, NO), method="POST", path="/tables/t$")
    client = house.behind(proxy)
    with pytest.raises(errors.PermissionDeniedError):
        client.register_table(RegisterTableRequest(id=table, location=location, mode="Overwrite"))
    assert house.namespace.list_tables(ListTablesRequest(id=house.levels)).tables == ["t"]
    assert house.location(table) != location
    assert house.check(table) == 2
    insert(house, table)
    assert house.check(table) == 3


def test_register_over_a_managed_table(house: ManagedCatalog) -> None:
    table, location = house.table(), plain_data(house)
    old = house.location(table)
    house.namespace.register_table(RegisterTableRequest(id=table, location=location, mode="Overwrite"))
    assert house.check(table) == 3
    assert house.location(table) == location
    assert lance.dataset(old).count_rows() == 10


# Tags and branches


def test_tags_are_refs(house: ManagedCatalog) -> None:
    table = house.table()
    for _ in range(3):
        house.append(table)
    namespace = house.namespace
    namespace.create_table_tag(CreateTableTagRequest(id=table, tag="one", version=1))
    namespace.create_table_tag(CreateTableTagRequest(id=table, tag="two", version=2))
    assert refs(house, table) == {"main": 4, "one": 1, "two": 2}
    assert house.entry(table)["refs"]["one"]["type"] == "tag"
    namespace.update_table_tag(UpdateTableTagRequest(id=table, tag="two", version=3))
    assert refs(house, table) == {"main": 4, "one": 1, "two": 3}
    assert house.open(table, "two").version == 3
    namespace.delete_table_tag(DeleteTableTagRequest(id=table, tag="one"))
    assert refs(house, table) == {"main": 4, "two": 3}
    assert sorted(house.snapshots(table)) == [1, 2, 3, 4]
    insert(house, table)
    assert refs(house, table) == {"main": 5, "two": 3}
    if house.is_ours:
        scan = house.iceberg().load_table((table[1], "t")).scan().use_ref("two")
        assert scan.to_arrow().num_rows == 12


def test_tags_of_a_branch(house: ManagedCatalog) -> None:
    table = house.table()
    house.namespace.create_table_branch(CreateTableBranchRequest(id=table, name="dev"))
    insert(house, table, "dev")
    house.namespace.create_table_tag(CreateTableTagRequest(id=table, tag="mine", branch="dev", version=2))
    assert refs(house, table) == {
        "main": 1,
        "dev": snapshot_id("dev", 2),
        "mine": snapshot_id("dev", 2),
    }


@pytest.mark.parametrize("name", ["dev", "main"])
def test_a_tag_with_the_name_of_a_branch(house: ManagedCatalog, name: str) -> None:
    """Lance has both, Iceberg has one name for either; and no branch goes with a tag."""
    table = house.table()
    house.append(table)
    house.namespace.create_table_branch(CreateTableBranchRequest(id=table, name="dev"))
    insert(house, table, "dev")
    before = refs(house, table)
    house.namespace.create_table_tag(CreateTableTagRequest(id=table, tag=name, version=1))
    assert refs(house, table) == {**before, f"tag:{name}": 1}
    house.namespace.delete_table_tag(DeleteTableTagRequest(id=table, tag=name))
    assert refs(house, table) == before
    assert len(house.snapshots(table)) == 4
    insert(house, table, "dev")
    insert(house, table)
    assert house.check(table) == 3


def test_a_branch_that_is_deleted(house: ManagedCatalog) -> None:
    table = house.table()
    house.namespace.create_table_branch(CreateTableBranchRequest(id=table, name="dev"))
    insert(house, table, "dev")
    house.namespace.delete_table_branch(DeleteTableBranchRequest(id=table, name="dev"))
    assert refs(house, table) == {"main": 1}
    assert sorted(house.snapshots(table)) == [1]
    with pytest.raises(errors.TableBranchNotFoundError):
        versions(house.namespace, table, branch="dev")
    house.append(table)
    house.namespace.create_table_branch(CreateTableBranchRequest(id=table, name="dev"))  # and made again
    insert(house, table, "dev")
    assert refs(house, table) == {"main": 2, "dev": snapshot_id("dev", 3)}
    assert count(house.connect(), table, "dev") == 12


def test_a_branch_that_pylance_deleted(house: ManagedCatalog) -> None:
    """It asks no namespace. The name can be used again."""
    table = house.table()
    house.namespace.create_table_branch(CreateTableBranchRequest(id=table, name="dev"))
    insert(house, table, "dev")
    lance.dataset(namespace_client=house.namespace, table_id=table).branches.delete("dev")
    house.append(table)
    house.namespace.create_table_branch(CreateTableBranchRequest(id=table, name="dev"))
    insert(house, table, "dev")
    assert count(house.connect(), table, "dev") == 12
    assert refs(house, table) == {"main": 2, "dev": snapshot_id("dev", 3)}


def test_a_tag_that_the_catalog_refuses(
    house: ManagedCatalog, proxy: FaultProxy, caplog: pytest.LogCaptureFixture
) -> None:
    """What was asked for is done; the catalog learns of it later."""
    if house.is_ours:
        pytest.skip("this server sees the tags in storage")
    table = house.table()
    proxy.add(answer_always(403, NO), method="POST", path="/tables/t$", times=ALWAYS)
    client = house.behind(proxy)
    client.create_table_tag(CreateTableTagRequest(id=table, tag="one", version=1))
    assert "cannot tell the catalog the table's latest version" in caplog.text
    assert (refs(house, table), house.open(table, "one").version) == ({"main": 1}, 1)
    proxy.clear()
    client.create_table_tag(CreateTableTagRequest(id=table, tag="uno", version=1))
    assert refs(house, table) == {"main": 1, "one": 1, "uno": 1}


# Old versions


def many(house: ManagedCatalog, number: int) -> Id:
    table = house.table()
    dataset = lance.dataset(namespace_client=house.namespace, table_id=table)
    for turn in range(1, number):
        dataset.update_config({"n": str(turn)})
    return table


def test_versions_that_are_deleted(house: ManagedCatalog) -> None:
    table = many(house, 6)
    house.namespace.create_table_tag(CreateTableTagRequest(id=table, tag="two", version=2))
    ranges = [VersionRange(start_version=1, end_version=2), VersionRange(start_version=3, end_version=5)]
    answer = house.namespace.batch_delete_table_versions(BatchDeleteTableVersionsRequest(id=table, ranges=ranges))
    assert answer.deleted_count == 3
    assert sorted(house.snapshots(table)) == versions(house.connect(), table) == [2, 5, 6]
    assert house.check(table) == 6
    for client in (house.namespace, house.connect()):
        with pytest.raises(errors.TableVersionNotFoundError):
            client.describe_table_version(DescribeTableVersionRequest(id=table, version=3))
    assert house.open(table, 2).count_rows() == house.open(table).count_rows() == 10


def test_the_current_version_stays(house: ManagedCatalog) -> None:
    table = many(house, 3)
    everything = BatchDeleteTableVersionsRequest(id=table, ranges=[VersionRange(start_version=1, end_version=-1)])
    with pytest.raises(errors.InvalidInputError, match="current"):
        house.namespace.batch_delete_table_versions(everything)
    assert versions(house.namespace, table) == [1, 2, 3]


def test_the_catalogs_current_version_stays(house: ManagedCatalog) -> None:
    """Even if storage has a later one, which the catalog never accepted."""
    table = many(house, 2)
    lance.write_dataset(rows(1), house.location(table), mode="append")
    ranges = [VersionRange(start_version=1, end_version=3)]
    with pytest.raises((errors.InvalidInputError, errors.InvalidTableStateError)):
        house.namespace.batch_delete_table_versions(BatchDeleteTableVersionsRequest(id=table, ranges=ranges))
    assert house.versions(table) == [1, 2, 3]
    assert house.open(table).version == 2


def test_versions_that_pylance_cleaned_up(house: ManagedCatalog) -> None:
    """The catalog is not told; it finds out at the 20th version."""
    table = many(house, 10)
    dataset = lance.dataset(namespace_client=house.namespace, table_id=table)
    dataset.cleanup_old_versions(older_than=NONE)
    for client in (house.namespace, house.connect()):
        assert versions(client, table) == [10]
        with pytest.raises(errors.TableVersionNotFoundError):
            client.describe_table_version(DescribeTableVersionRequest(id=table, version=4))
    assert house.open(table).version == 10
    for turn in range(9):
        dataset.update_config({"n": str(turn)})
    assert len(house.snapshots(table)) == 19
    insert(house, table)
    assert sorted(house.snapshots(table)) == versions(house.connect(), table) == list(range(10, 21))
    assert house.check(table) == 20


def test_a_tagged_version_is_not_forgotten(house: ManagedCatalog) -> None:
    table = many(house, 10)
    dataset = lance.dataset(namespace_client=house.namespace, table_id=table)
    dataset.tags.create("three", 3)
    dataset.cleanup_old_versions(older_than=NONE, error_if_tagged_old_versions=False)
    for turn in range(10):
        dataset.update_config({"n": str(turn)})
    assert sorted(house.snapshots(table)) == [3, *range(10, 21)]
    assert refs(house, table) == {"main": 20, "three": 3}
    assert house.open(table, "three").version == 3


def test_a_tag_of_iceberg_is_not_ours_to_remove(house: ManagedCatalog) -> None:
    """Lance does not know it, and cleans its version up; the catalog keeps both, and forgets the others."""
    table = many(house, 10)
    house.iceberg().load_table((table[1], "t")).manage_snapshots().create_tag(3, "theirs").commit()
    assert refs(house, table) == {"main": 10, "theirs": 3}
    dataset = lance.dataset(namespace_client=house.namespace, table_id=table)
    dataset.cleanup_old_versions(older_than=NONE)
    for turn in range(10):
        dataset.update_config({"n": str(turn)})
    assert sorted(house.snapshots(table)) == [3, *range(10, 21)]
    assert refs(house, table) == {"main": 20, "theirs": 3}
    assert versions(house.connect(), table) == list(range(10, 21))


def test_a_catalog_that_cannot_be_brought_in_step(
    house: ManagedCatalog, proxy: FaultProxy, caplog: pytest.LogCaptureFixture
) -> None:
    """The commit was made all the same."""
    table = many(house, 19)
    lance.dataset(namespace_client=house.namespace, table_id=table).cleanup_old_versions(older_than=NONE)
    proxy.add(passes, method="POST", path="/tables/t$")
    proxy.add(answer_always(403, NO), method="POST", path="/tables/t$", times=ALWAYS)
    insert(house, table, client=house.behind(proxy))
    assert "cannot tell the catalog the table's latest version" in caplog.text
    assert house.check(table) == 20
    assert len(house.snapshots(table)) == 20


def test_somebody_commits_while_the_catalog_is_brought_in_step(house: ManagedCatalog, proxy: FaultProxy) -> None:
    table = many(house, 5)
    lance.dataset(namespace_client=house.namespace, table_id=table).cleanup_old_versions(older_than=NONE)

    def other_is_faster(request: Any, forward: Any) -> Any:
        house.append(table)
        return forward(request)

    proxy.add(other_is_faster, method="POST", path="/tables/t$", times=2)
    house.behind(proxy).create_table_tag(CreateTableTagRequest(id=table, tag="now", version=5))
    assert sorted(house.snapshots(table)) == [5, 6, 7]
    assert house.check(table) == 7


def test_somebody_commits_while_versions_are_deleted(house: ManagedCatalog, proxy: FaultProxy) -> None:
    """That is no version without the catalog."""
    table = many(house, 5)

    def other_is_faster(request: Any, forward: Any) -> Any:
        told = forward(request)
        house.append(table)
        return told

    client = house.behind(proxy)
    assert versions(client, table, limit=1, descending=True) == [5]
    proxy.add(other_is_faster, method="GET", path="/tables/t[?]")
    ranges = [VersionRange(start_version=1, end_version=4)]
    client.batch_delete_table_versions(BatchDeleteTableVersionsRequest(id=table, ranges=ranges))
    assert sorted(house.snapshots(table)) == versions(house.connect(), table) == [4, 5, 6]
    assert house.check(table) == 6


def test_versions_on_their_way_were_not_cleaned_up(house: ManagedCatalog) -> None:
    """The writer of a transaction is between the catalog's yes and its last step."""
    table = many(house, 2)
    tx = Transaction(house.namespace)
    for _ in range(3):
        tx.append(table, rows(1))
    with killed_before_the_manifest_is_final():
        tx.commit()
    client = house.connect()
    client._managed.sync(TableId.parse(table))
    assert sorted(house.snapshots(table)) == [1, 2, 3, 4, 5]
    assert versions(house.connect(), table) == house.versions(table) == [1, 2, 3, 4, 5]


def test_a_branch_keeps_its_versions(house: ManagedCatalog) -> None:
    table = house.table()
    house.namespace.create_table_branch(CreateTableBranchRequest(id=table, name="dev"))
    for _ in range(2):
        insert(house, table, "dev")
        insert(house, table)
    ranges = [VersionRange(start_version=1, end_version=2)]
    request = BatchDeleteTableVersionsRequest(id=table, branch="dev", ranges=ranges)
    house.namespace.batch_delete_table_versions(request)
    assert versions(house.connect(), table, branch="dev") == [2, 3]
    assert versions(house.connect(), table)[-1] == 3
    assert count(house.connect(), table, "dev") == 12


def test_create_table_in_place_of_another(house: ManagedCatalog, tmp_path: Path) -> None:
    """An entry that was removed with its data kept: made again, the catalog does not take old data for a new table."""
    table = house.table()
    location = house.location(table)
    house.connect()._tables.delete(TableId.parse(table))
    with pytest.raises(errors.LanceNamespaceError):
        house.namespace.create_table(CreateTableRequest(id=table), stream(rows(3)))
    assert lance.dataset(location).count_rows() == 10


def test_an_iceberg_client_has_written_to_the_table(reference: str, tmp_path: Path) -> None:
    """Servers that do not know Lance accept that for a table that was only declared."""
    properties = {"endpoint": reference, "managed_by": "impl", "root": str(tmp_path)}
    house = ManagedCatalog("reference", "iceberg", properties, ("wh",)).create_namespace()
    table = house.id("t")
    house.namespace.declare_table(DeclareTableRequest(id=table))
    house.iceberg().load_table((table[1], "t")).append(pa.table({"dummy": ["a"]}))
    with pytest.raises(
        errors.InvalidTableStateError, match=r"of branch main is no version of Lance: an Iceberg client"
    ):
        house.namespace.list_table_versions(ListTableVersionsRequest(id=table, limit=1, descending=True))
    with pytest.raises(errors.InvalidTableStateError, match="is no version of Lance"):
        house.namespace.describe_table_version(DescribeTableVersionRequest(id=table))
