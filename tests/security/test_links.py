"""A writer who reaches the disk puts links into the folders of their tables; the server follows none of them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from lance import DatasetBasePath
from lance.blob import blob_array, blob_field
from lance_namespace import CreateNamespaceRequest, RegisterTableRequest

from tests.security.house import PNG, SECRET, ServerWithPrincipals, every_way, with_blob

STOLEN = b"rows of bob"
MINE = pa.table({"id": list(range(300)), "text": ["mine"] * 300})


def victim(house: ServerWithPrincipals, *names: str) -> Path:
    return Path(house.place("b", "victim", *names))


def link_to_victim(house: ServerWithPrincipals, folder: Path) -> None:
    """Make a folder that looks like the victim's dataset."""
    folder.mkdir(parents=True)
    for part in ("data", "_versions"):
        (folder / part).symlink_to(victim(house, part))


def assert_refused(answers: dict[str, tuple[int, bytes]]) -> None:
    for what, (status, body) in answers.items():
        assert (status, STOLEN in body, SECRET in body) == (403, False, False), (what, body)


def test_a_base_path_in_the_table_itself(house: ServerWithPrincipals) -> None:
    place = Path(house.place("a", "links_in_base"))
    link_to_victim(house, place / "sub")
    lance.dataset(str(place / "sub")).shallow_clone(str(place), 1)
    house.register("alice", "a", place.name)
    assert_refused(every_way(house, "alice", place.name))


def test_a_base_path_without_a_dataset(house: ServerWithPrincipals) -> None:
    place = Path(house.place("a", "flat_base"))
    bases = [DatasetBasePath(str(place / "flat"), name="flat")]
    lance.write_dataset(MINE, str(place), initial_bases=bases, target_bases=["flat"])
    house.register("alice", "a", place.name)
    assert house.query("alice", "a$flat_base")[0] == 200
    (data,) = (place / "flat").rglob("*.lance")
    data.unlink()
    data.symlink_to(next(victim(house, "data").iterdir()))
    assert_refused(every_way(house, "alice", place.name))


def test_a_clone_of_a_table_that_has_links(house: ServerWithPrincipals) -> None:
    own = lance.write_dataset(MINE, house.place("a", "linked_base"))
    house.register("alice", "a", "linked_base")
    own.shallow_clone(house.place("a", "linked_clone"), 1)
    house.register("alice", "a", "linked_clone")
    assert house.query("alice", "a$linked_clone")[0] == 200
    data = Path(house.place("a", "linked_base", "data"))
    shutil.rmtree(data)
    data.symlink_to(victim(house, "data"))
    assert_refused(every_way(house, "alice", "linked_clone"))


def test_manifests_of_others_are_not_shown(house: ServerWithPrincipals) -> None:
    place = Path(house.place("a", "linked_manifests"))
    lance.write_dataset(MINE, str(place))
    house.register("alice", "a", place.name)
    shutil.rmtree(place / "_versions")
    (place / "_versions").symlink_to(victim(house, "_versions"))
    path = f"/lance/main/v1/table/a${place.name}"
    assert_refused(
        {
            "load": house.send("alice", "GET", f"/iceberg/v1/main/namespaces/a/tables/{place.name}"),
            "versions": house.console("alice", "versions", place.name),
            "describe": house.send("alice", "POST", f"{path}/describe", {"load_detailed_metadata": True}),
            "list": house.send("alice", "POST", f"{path}/version/list", {}),
        }
    )


def test_a_single_manifest_of_others_is_not_shown(house: ServerWithPrincipals) -> None:
    place = Path(house.place("a", "linked_manifest"))
    lance.write_dataset(MINE, str(place))
    house.register("alice", "a", place.name)
    (manifest,) = (place / "_versions").glob("*.manifest")
    (theirs,) = victim(house, "_versions").glob("*.manifest")
    manifest.unlink()
    manifest.symlink_to(theirs)
    assert_refused({"load": house.send("alice", "GET", f"/iceberg/v1/main/namespaces/a/tables/{place.name}")})


def test_a_dataset_of_links_cannot_be_registered(house: ServerWithPrincipals) -> None:
    place = Path(house.place("a", "all_links"))
    link_to_victim(house, place)
    status, body = house.send("alice", "POST", "/lance/main/v1/table/a$all_links/register", {"location": str(place)})
    assert (status, b"symbolic link" in body) == (403, True)


def test_a_branch_in_a_folder_of_folders(house: ServerWithPrincipals) -> None:
    lance.write_dataset(MINE, house.place("a", "deep")).create_branch("x/y")
    house.register("alice", "a", "deep")
    branch = Path(house.place("a", "deep", "tree", "x", "y"))
    shutil.rmtree(branch)
    branch.symlink_to(victim(house))
    query = {"k": 9, "vector": {}, "branch": "x/y"}
    path = "/lance/main/v1/table/a$deep"
    assert_refused(
        {
            "query": house.send("alice", "POST", f"{path}/query", query),
            "list": house.send("alice", "POST", f"{path}/version/list?branch=x/y", {}),
        }
    )


@pytest.mark.parametrize("part", ["data", "_indices", "_transactions", "_refs"])
def test_links_that_come_after_a_look(house: ServerWithPrincipals, part: str) -> None:
    name = f"later{part}"
    own = lance.write_dataset(MINE, house.place("a", name))
    own.create_scalar_index("id", "BTREE")
    own.tags.create("first", 1)
    house.register("alice", "a", name)
    file = next(each for each in Path(house.place("a", name, part)).rglob("*") if each.is_file())
    was = file.parent.stat()
    os.utime(file.parent, ns=(was.st_atime_ns, was.st_mtime_ns - 10**10))
    was = file.parent.stat()
    assert house.query("alice", f"a${name}")[0] == 200
    other = file.rename(house.folder / f"{name}.moved")
    file.symlink_to(other)
    os.utime(file.parent, ns=(was.st_atime_ns, was.st_mtime_ns))
    assert_refused(every_way(house, "alice", name))


def test_the_folder_of_a_namespace(house: ServerWithPrincipals) -> None:
    folder = Path(house.place("a", "n"))
    ours = house.client("alice")
    ours.create_namespace(CreateNamespaceRequest(id=["main", "a", "n"]))
    lance.write_dataset(MINE, str(folder / "victim"))
    ours.register_table(RegisterTableRequest(id=["main", "a", "n", "victim"], location=str(folder / "victim")))
    assert house.query("alice", "a$n$victim")[0] == 200
    folder.rename(house.place("a", "n_before"))
    folder.symlink_to(house.place("b"))
    for status, body in (
        house.query("alice", "a$n$victim"),
        house.plan("alice", "a%1Fn", "victim"),
        house.send("alice", "GET", "/iceberg/v1/main/namespaces/a%1Fn/tables/victim"),
    ):
        assert (status, b"symlink on the way" in body) == (400, True)


def test_external_blobs_below_a_base_path(house: ServerWithPrincipals) -> None:
    place = Path(house.place("a", "blob_base"))
    blobs = place / "blobs"
    blobs.mkdir(parents=True)
    (blobs / "x.png").write_bytes(PNG + b"fine")
    schema = pa.schema([blob_field("b")])
    rows = pa.table([blob_array([f"file://{blobs}/x.png"])], schema=schema)
    bases = [DatasetBasePath(str(blobs), name="blobs")]
    lance.write_dataset(rows, str(place), data_storage_version="2.2", initial_bases=bases)
    house.register("alice", "a", place.name)
    assert house.console("alice", "image", place.name, column="b", row=0) == (200, PNG + b"fine")
    (blobs / "x.png").unlink()
    (blobs / "x.png").symlink_to(house.secret)
    assert_refused(
        {
            "image": house.console("alice", "image", place.name, column="b", row=0),
            "value": house.console("alice", "value", place.name, column="b", row=0),
            "plan": house.plan("alice", "a", place.name),
        }
    )


def test_blobs_are_not_copied_through_links(house: ServerWithPrincipals) -> None:
    with_blob(house, "copied_blob", PNG + b"x" * 6_000_000)
    for file in Path(house.place("a", "copied_blob", "data")).rglob("*.blob"):
        file.unlink()
        file.symlink_to(house.secret)
    update = {"predicate": "true", "updates": [["id", "7"]]}
    assert_refused({"update": house.send("alice", "POST", "/lance/main/v1/table/a$copied_blob/update", update)})


@pytest.fixture
def in_files(house: ServerWithPrincipals) -> Callable[[str], Path]:
    """Makes a table of the backend `files`."""

    def make(name: str) -> Path:
        place = house.folder / "files" / f"{name}.lance"
        lance.write_dataset(MINE, str(place))
        return place

    return make


def test_a_table_of_a_backend_that_is_a_link(house: ServerWithPrincipals, in_files: Callable[[str], Path]) -> None:
    place = in_files("one")
    assert house.query("root", "one", "files")[0] == 200
    (place.parent / "two.lance").symlink_to(place)
    path = "/lance/files/v1/table/two"
    assert_refused(
        {
            "query": house.query("root", "two", "files"),
            "describe": house.send("root", "POST", f"{path}/describe", {"load_detailed_metadata": True}),
            "versions": house.send("root", "POST", f"{path}/version/list", {}),
            "version": house.send("root", "POST", f"{path}/version/describe", {}),
        }
    )


def test_a_table_of_a_backend_that_has_links(house: ServerWithPrincipals, in_files: Callable[[str], Path]) -> None:
    place = in_files("three")
    shutil.rmtree(place / "data")
    (place / "data").symlink_to(victim(house, "data"))
    assert_refused({"query": house.query("root", "three", "files")})
