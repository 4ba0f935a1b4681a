from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lance_namespace.errors import InvalidInputError, InvalidTableStateError, PermissionDeniedError

from lancehouse.lake.dataset import TableRef, manifest_folder
from lancehouse.lake.history import read_schema
from lancehouse.lake.manifests import (
    DISCARD,
    STAGING,
    Manifest,
    ManifestStore,
    find_missed_conflict,
    manifest_of_version,
    parse_staged_path,
    previous_manifest,
)
from lancehouse.lake.row_changes import MERGE_MARKER
from lancehouse.lake.versions import list_manifests
from lancehouse.locations import local_folder
from tests.lake.folder import rows
from tests.lake.store import FakeStore

# What a manifest says


def parse_manifest(location: str, version: int, branch: str | None = None) -> Manifest:
    file = list_manifests(TableRef(location, branch=branch))[version]
    return Manifest.parse((Path(location) / file).read_bytes())


@pytest.fixture
def location(tmp_path: Path) -> str:
    """A dataset with 20 rows, in two files."""
    place = str(tmp_path / "dätä of 100 %")
    lance.write_dataset(rows(10), place)
    lance.write_dataset(rows(10, first=10), place, mode="append")
    return place


Commit = Callable[[lance.LanceDataset], object]

COMMITS: dict[str, tuple[Commit, str | None, bool]] = {
    "append": (lambda dataset: lance.write_dataset(rows(1), dataset, mode="append"), "Append", False),
    "overwrite": (
        lambda dataset: lance.write_dataset(pa.table({"id": ["other"]}), dataset, mode="overwrite"),
        "Overwrite",
        True,
    ),
    "delete": (lambda dataset: dataset.delete("id = 3"), "Delete", False),
    "update": (lambda dataset: dataset.update({"s": "'x'"}, where="id = 3"), "Update", False),
    "merge": (
        lambda dataset: dataset.merge_insert("id").when_matched_update_all().execute(rows(3)),
        "Update",
        False,
    ),
    "add columns": (lambda dataset: dataset.add_columns({"twice": "id * 2"}), "Merge", True),
    "rename a column": (lambda dataset: dataset.alter_columns({"path": "s", "name": "words"}), "Project", True),
    "drop columns": (lambda dataset: dataset.drop_columns(["s"]), "Project", True),
    "compact": (lambda dataset: dataset.optimize.compact_files(), "Rewrite", False),
    "index": (lambda dataset: dataset.create_scalar_index("id", "BTREE"), "CreateIndex", False),
    "restore": (lambda dataset: dataset.checkout_version(1).restore(), "Restore", False),
    "config": (lambda dataset: dataset.update_config({"a": "b"}), "UpdateConfig", False),
}
"""A commit, Lance's word for it, and whether it changes the columns."""


@pytest.mark.parametrize("commit", COMMITS)
def test_what_a_manifest_says(location: str, commit: str) -> None:
    make, operation, changes_columns = COMMITS[commit]
    make(lance.dataset(location))
    after = lance.dataset(location)
    found = parse_manifest(location, after.version)
    made = after.read_transaction(after.version)
    assert (found.version, found.operation, found.transaction_uuid) == (after.version, operation, made.uuid)
    assert found.transaction_file in {path.name for path in (Path(location) / "_transactions").iterdir()}
    assert (found.columns != parse_manifest(location, 2).columns) is changes_columns
    assert found.schema() == read_schema(TableRef(location))


def test_what_pylance_has_no_word_for(location: str) -> None:
    lance.dataset(location).optimize.compact_files()
    assert parse_manifest(location, 3).operation == "ReserveFragments"
    lance.dataset(location).create_branch("dev")
    assert parse_manifest(location, 4, "dev").operation == "Clone"


def test_columns_that_come_back(location: str) -> None:
    dataset = lance.dataset(location)
    dataset.alter_columns({"path": "s", "name": "words"})
    dataset.alter_columns({"path": "words", "name": "s"})
    assert (
        parse_manifest(location, 3).columns
        != parse_manifest(location, 2).columns
        == parse_manifest(location, 4).columns
    )


def test_no_version_of_the_file_is_needed_to_read_its_schema(location: str, tmp_path: Path) -> None:
    """A staged manifest is no version yet: nobody can open it."""
    lance.dataset(location).add_columns({"twice": "id * 2"})
    file = Path(location) / list_manifests(TableRef(location))[3]
    found = Manifest.parse(file.read_bytes())
    file.rename(tmp_path / "elsewhere")
    assert lance.dataset(location).version == 2
    assert [field["name"] for field in found.schema()["fields"]] == ["id", "s", "b", "v", "l", "twice"]


def stored_files(location: str) -> set[str]:
    """The files of a dataset but for its manifests, and for the hint where the newest of them is."""
    place = Path(location)
    files = {str(path.relative_to(place)) for path in place.rglob("*") if path.is_file()}
    return {file for file in files if "_versions/" not in file}


@pytest.mark.parametrize("commit", ["append", "overwrite", "delete", "update", "add columns", "compact"])
def test_the_files_of_a_version(location: str, commit: str) -> None:
    """All that it made for its rows, and nothing that is not there."""
    before = stored_files(location)
    COMMITS[commit][0](lance.dataset(location))
    files = parse_manifest(location, lance.dataset(location).version).files(location, {})
    assert files <= stored_files(location)
    reserved = {
        f"_transactions/{parse_manifest(location, 3).transaction_file}"
    }  # by the version before, of a compaction
    assert stored_files(location) - before - reserved <= files


def test_the_files_of_a_version_with_blobs(tmp_path: Path) -> None:
    place = str(tmp_path / "t")
    fields = pa.schema([pa.field("id", pa.int64()), lance.blob_field("b")])
    table = pa.table({"id": [1, 2], "b": lance.blob_array([b"x", b"y" * 5_000_000])}, schema=fields)
    lance.write_dataset(table, place, data_storage_version="2.2")
    assert any(file.endswith(".blob") for file in stored_files(place))
    assert parse_manifest(place, 1).files(place, {}) == stored_files(place)


def test_the_files_of_a_version_of_a_branch(location: str) -> None:
    branch = lance.dataset(location).create_branch("dev")
    before = stored_files(location)
    lance.write_dataset(rows(1), branch, mode="append")
    lance.dataset(location).checkout_version(("dev", None)).delete("id = 3")
    made = stored_files(location) - before
    files = parse_manifest(location, 4, "dev").files(location, {})
    assert files <= stored_files(location)
    assert {file for file in made if not file.startswith("tree/dev/_transactions/2-")} <= files


# What is no manifest


def frame(message: bytes, *, at: int = 0) -> bytes:
    """A message, as a manifest holds it."""
    return len(message).to_bytes(4, "little") + message + at.to_bytes(8, "little", signed=True) + b"\0\0\0\0LANC"


GARBAGE = {
    "nothing": b"",
    "short": b"short",
    "no mark": b"x" * 100,
    "only a mark": b"\0" * 8 + b"LANC",
    "begins behind the end": frame(b"", at=10_000),
    "begins before the beginning": frame(b"", at=-1_000),
    "a number that does not begin": frame(b"\x18"),
    "a number that does not end": frame(b"\x18\xff\xff"),
    "a file name that is no text": frame(b"\x62\x02\xff\xfe"),
    "a transaction behind the end": frame(b"\xb8\x01\x7f"),
    "a transaction further than anything": frame(b"\xb8\x01" + b"\xff" * 12 + b"\x01"),
}


def frame_transaction(transaction: bytes) -> bytes:
    """A manifest with a transaction in it."""
    held = len(transaction).to_bytes(4, "little") + transaction
    return held + frame(b"\xb8\x01\x00", at=len(held))


GARBAGE |= {
    "an index with an id that is none": frame_transaction(b"\xba\x06\x07\x0a\x05\x0a\x03\x0a\x01x"),
    "an index that is a number": frame_transaction(b"\xba\x06\x02\x08\x05"),
    "indices that are a number": frame_transaction(b"\xb8\x06" + b"\xff" * 8 + b"\x01"),
}


@pytest.mark.parametrize("data", GARBAGE)
def test_what_is_no_manifest(data: str) -> None:
    with pytest.raises(InvalidInputError, match="no manifest of Lance"):
        Manifest.parse(GARBAGE[data])


@given(st.binary(max_size=200), st.integers(-300, 300), st.binary(max_size=40))
def test_any_bytes_are_a_manifest_or_none(message: bytes, at: int, more: bytes) -> None:
    for data in (
        frame(message, at=at),
        frame_transaction(message),
        frame_transaction(b"\xba\x06" + bytes([len(more)]) + more),
    ):
        with suppress(InvalidInputError):
            Manifest.parse(data)


def test_a_manifest_that_was_cut_off(location: str) -> None:
    file = Path(location) / list_manifests(TableRef(location))[2]
    data = file.read_bytes()
    with pytest.raises(InvalidInputError):
        Manifest.parse(data[:-1])


def test_the_smallest_manifest() -> None:
    found = Manifest.parse(frame(b""))
    assert (found.version, found.operation, found.transaction_uuid) == (0, None, "")
    assert Manifest.parse(frame(b"\x18\xac\x02")).version == 300


# Manifests as files

FINAL, STAGED = "_versions/9.manifest", "_versions/9.manifest-a-b"
KEPT = f"{STAGING}/some-transaction/_versions/9.manifest"


@dataclass
class ManifestFolder:
    """A table's place, and its files without the help of what is tested."""

    manifests: ManifestStore
    folder: Path | None
    store: FakeStore | None

    def put(self, file: str, data: bytes) -> None:
        if self.folder:
            (self.folder / file).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / file).write_bytes(data)
        elif self.store:
            self.store.objects[f"a b/t/{file}"] = data

    def all(self) -> dict[str, bytes]:
        if self.folder:
            found = (path for path in self.folder.rglob("*") if path.is_file())
            return {str(path.relative_to(self.folder)): path.read_bytes() for path in found}
        assert self.store
        for thread in threading.enumerate():
            if thread.name == DISCARD:
                thread.join()
        return {key.removeprefix("a b/t/"): data for key, data in self.store.objects.items()}


@pytest.fixture(params=["path", "uri", "store", "no links"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ManifestFolder]:
    folder = tmp_path / "dätä of 100 %"
    (folder / "_versions").mkdir(parents=True)
    if request.param == "store":
        with FakeStore() as store:
            yield ManifestFolder(ManifestStore("s3://bucket/a b/t", store.options), None, store)
        return
    if request.param == "no links":

        def refuse(self: Path, target: Path) -> None:
            """In the order of the kernel."""
            target.stat()
            if self.exists():
                raise FileExistsError(errno.EEXIST, "File exists")
            raise PermissionError(errno.EPERM, "Operation not permitted")

        monkeypatch.setattr(Path, "hardlink_to", refuse)
    yield ManifestFolder(ManifestStore(folder.as_uri() if request.param == "uri" else str(folder)), folder, None)


def test_reading(place: ManifestFolder) -> None:
    assert place.manifests.find(FINAL) is None
    assert not place.manifests.exists(FINAL)
    with pytest.raises(InvalidTableStateError, match=r"no manifest at .*9\.manifest"):
        place.manifests.read(FINAL)
    place.put(FINAL, b"data")
    assert place.manifests.find(FINAL) == place.manifests.read(FINAL) == b"data"
    assert place.manifests.exists(FINAL)


@pytest.mark.parametrize("staged", [STAGED, KEPT])
def test_finishing(place: ManifestFolder, staged: str) -> None:
    place.put(staged, b"data")
    place.put("_versions/8.manifest", b"older")
    place.manifests.publish(staged, FINAL)
    assert place.all() == {FINAL: b"data", "_versions/8.manifest": b"older"}
    place.manifests.publish(staged, FINAL)
    assert place.all() == {FINAL: b"data", "_versions/8.manifest": b"older"}
    if place.folder:
        assert not (place.folder / STAGING).exists()


def test_finishing_what_somebody_has_half_finished(place: ManifestFolder) -> None:
    """It was linked or copied, and the writer died before it removed what was staged."""
    place.put(STAGED, b"data")
    place.put(FINAL, b"data")
    place.manifests.publish(STAGED, FINAL)
    assert place.all() == {FINAL: b"data"}


def test_what_was_read_before_is_put_in_its_place(place: ManifestFolder) -> None:
    place.put(STAGED, b"data")
    place.manifests.publish(STAGED, FINAL, b"data")
    assert place.all() == {FINAL: b"data"}


def test_a_staged_file_that_cannot_be_removed(caplog: pytest.LogCaptureFixture) -> None:
    """The version is published; the file is left to whoever opens the table next."""
    with FakeStore() as store:
        place = ManifestFolder(ManifestStore("s3://bucket/a b/t", store.options), None, store)
        place.put(STAGED, b"data")
        upload = ManifestStore._upload

        def refuse_later(self: ManifestStore, data: bytes, file: str) -> None:
            upload(self, data, file)
            store.refusal = (403, "AccessDenied")

        with pytest.MonkeyPatch.context() as patch, caplog.at_level("INFO"):
            patch.setattr(ManifestStore, "_upload", refuse_later)
            place.manifests.publish(STAGED, FINAL, b"data")
            assert place.all() == {STAGED: b"data", FINAL: b"data"}
    assert "stays until `lancehouse doctor --fix` removes it" in caplog.text


def test_finishing_over_another_version(place: ManifestFolder) -> None:
    """Neither is lost: what was accepted, and what somebody wrote without the catalog."""
    place.put(STAGED, b"accepted")
    place.put(FINAL, b"stray")
    with pytest.raises(InvalidTableStateError, match="a writer bypassed the catalog"):
        place.manifests.publish(STAGED, FINAL)
    assert place.all() == {STAGED: b"accepted", FINAL: b"stray"}


def test_finishing_what_is_lost(place: ManifestFolder) -> None:
    with pytest.raises(InvalidTableStateError, match=r"9\.manifest"):
        place.manifests.publish(STAGED, FINAL)
    assert place.all() == {}


def test_many_finish_at_once(place: ManifestFolder) -> None:
    """The writer, and every reader that sees that it was accepted."""
    for number in range(5):
        place.put(f"{STAGED}{number}", b"data")
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda _, n=number: place.manifests.publish(f"{STAGED}{n}", f"{FINAL}{n}"), range(8)))
    assert place.all() == {f"{FINAL}{number}": b"data" for number in range(5)}


def test_somebody_else_finishes_in_between(place: ManifestFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Just after it was seen that the final one is missing, before the staged one is read or moved."""
    place.put(STAGED, b"data")
    exists, rename = ManifestStore.exists, Path.rename

    def overtaken(self: ManifestStore, file: str) -> bool:
        found = exists(self, file)
        if file == FINAL and not found:
            monkeypatch.setattr(ManifestStore, "exists", exists)
            self.publish(STAGED, FINAL)
        return found

    def overtaken_too(self: Path, target: Path) -> Path:
        monkeypatch.setattr(Path, "rename", rename)
        place.manifests.publish(STAGED, FINAL)
        return rename(self, target)

    monkeypatch.setattr(ManifestStore, "exists", overtaken)
    monkeypatch.setattr(Path, "rename", overtaken_too)
    place.manifests.publish(STAGED, FINAL)
    assert place.all() == {FINAL: b"data"}


def test_moving(place: ManifestFolder) -> None:
    place.put(STAGED, b"data")
    place.manifests.move(STAGED, KEPT)
    assert place.all() == {KEPT: b"data"}


def test_discarding(place: ManifestFolder) -> None:
    place.put(KEPT, b"data")
    place.put(f"{STAGING}/another/_versions/9.manifest", b"another transaction's")
    place.manifests.discard(KEPT)
    place.manifests.discard(KEPT)
    place.manifests.discard("_versions/none.manifest")
    assert place.all() == {f"{STAGING}/another/_versions/9.manifest": b"another transaction's"}
    if place.folder:
        assert [path.name for path in (place.folder / STAGING).iterdir()] == ["another"]
        assert (place.folder / "_versions").is_dir()


def test_a_store_that_refuses() -> None:
    with FakeStore() as store:
        store.refusal = (403, "AccessDenied")
        refused = ManifestStore("s3://bucket/t", store.options)
        calls: list[Callable[[], Any]] = [
            lambda: refused.find(FINAL),
            lambda: refused.exists(FINAL),
            lambda: refused.publish(STAGED, FINAL),
            lambda: refused.move(STAGED, KEPT),
            lambda: refused.discard(STAGED),
        ]
        for call in calls:
            with pytest.raises(PermissionDeniedError) as error:
                call()
            assert "verysecretvalue" not in str(error.value)
        assert "verysecretvalue" not in repr(refused)


# Names

LAST = 2**64 - 1


@pytest.mark.parametrize(
    ("path", "branch", "version", "found"),
    [
        (
            f"a/t/_versions/{LAST - 3}.manifest-1f-2e",
            None,
            3,
            ("a/t", f"_versions/{LAST - 3}.manifest-1f-2e", f"_versions/{LAST - 3}.manifest"),
        ),
        ("a/t/_versions/3.manifest-x", "main", 3, ("a/t", "_versions/3.manifest-x", "_versions/3.manifest")),
        ("_versions/3.manifest-x", None, 3, ("", "_versions/3.manifest-x", "_versions/3.manifest")),
        (
            "a/t/tree/x/y/_versions/3.manifest-x",
            "x/y",
            3,
            ("a/t", "tree/x/y/_versions/3.manifest-x", "tree/x/y/_versions/3.manifest"),
        ),
    ],
)
def test_the_path_of_a_staged_manifest(path: str, branch: str | None, version: int, found: tuple[str, ...]) -> None:
    assert parse_staged_path(path, branch, version) == found


@pytest.mark.parametrize(
    ("path", "branch", "version"),
    [
        ("", None, 3),
        ("a/t/_versions/3.manifest", None, 3),  # in its place
        ("a/t/_versions/3.manifest-", None, 3),
        ("a/t/_versions/4.manifest-x", None, 3),
        (f"a/t/_versions/{LAST - 4}.manifest-x", None, 3),
        ("a/t/_versions/3.manifest-x/y", None, 3),
        ("a/t/_versions/three.manifest-x", None, 3),
        ("a/t/data/3.manifest-x", None, 3),
        ("a/t/my_versions/3.manifest-x", None, 3),
        ("a/t/_versions/3.manifest-x", "dev", 3),
        ("a/t/tree/other/_versions/3.manifest-x", "dev", 3),
        ("a/t/tree/dev/_versions/../3.manifest-x", "dev", 3),
    ],
)
def test_no_path_of_a_staged_manifest(path: str, branch: str | None, version: int) -> None:
    with pytest.raises(InvalidInputError, match=f"is no staged manifest of version {version}"):
        parse_staged_path(path, branch, version)


def test_where_manifests_lie(location: str) -> None:
    lance.dataset(location).create_branch("a/b")
    folder = local_folder(location)
    assert folder is not None
    for branch in (None, "main", "a/b"):
        assert any((folder / manifest_folder(branch)).glob("*.manifest"))


@pytest.mark.parametrize(
    "file", ["../other/_versions/1.manifest", "_versions/../../x", "/etc/passwd", "", "_versions//x"]
)
def test_no_name_leads_out_of_the_table(tmp_path: Path, file: str) -> None:
    theirs = tmp_path / "other" / "_versions" / "1.manifest"
    theirs.parent.mkdir(parents=True)
    theirs.write_bytes(b"theirs")
    (tmp_path / "own" / "_versions").mkdir(parents=True)
    files = ManifestStore(str(tmp_path / "own"))
    for call in (
        lambda: files.find(file),
        lambda: files.exists(file),
        lambda: files.publish(file, "_versions/2.manifest"),
        lambda: files.publish("_versions/2.manifest", file),
        lambda: files.move(file, "_staging/x"),
        lambda: files.discard(file),
    ):
        with pytest.raises(InvalidInputError, match="is no file below"):
            call()
    assert theirs.read_bytes() == b"theirs"


# Conflicts that Lance missed; tests/clients/test_managed_commits.py has the commits


def find_missed(location: str, version: int, monkeypatch: pytest.MonkeyPatch) -> tuple[str | None, list[str]]:
    """What is found of a version as if it were staged, and the files that were looked for."""
    looked_for: list[str] = []

    def record(method: Callable[..., Any]) -> Callable[..., Any]:
        def look(files: ManifestStore, file: str) -> Any:
            looked_for.append(file)
            return method(files, file)

        return look

    for name in ("exists", "read"):
        monkeypatch.setattr(ManifestStore, name, record(getattr(ManifestStore, name)))
    file = list_manifests(TableRef(location))[version]
    return find_missed_conflict(ManifestStore(location), parse_manifest(location, version), file), looked_for


@pytest.mark.parametrize("commit", ["append", "delete", "update", "compact"])
def test_alone_a_commit_needs_no_look(location: str, commit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    changes: dict[str, Commit] = {
        "append": lambda dataset: lance.write_dataset(rows(1), dataset, mode="append"),
        "delete": lambda dataset: dataset.delete("id = 1"),
        "update": lambda dataset: dataset.update({"id": "100"}, where="id = 1"),
        "compact": lambda dataset: dataset.optimize.compact_files(),
    }
    changes[commit](lance.dataset(location))
    assert find_missed(location, lance.dataset(location).version, monkeypatch) == (None, [])


def test_deletions_that_were_there_before_do_not_count(location: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An update of a column in place names the deletions of its fragments, whose versions may be gone for long."""
    lance.dataset(location).delete("id = 1")
    for number in range(5):
        lance.write_dataset(rows(1, first=100 + number), location, mode="append")
    latest = lance.dataset(location)
    latest.cleanup_old_versions(older_than=timedelta(0))
    [fragment] = [each for each in latest.get_fragments() if each.metadata.num_deletions]
    changed, fields = fragment.update_columns(pa.table({"id": [2], "s": ["new"]}), "id")
    operation = lance.LanceOperation.Update(updated_fragments=[changed], fields_modified=fields)
    made = lance.LanceDataset.commit(location, operation, read_version=latest.version)
    assert find_missed(location, made.version, monkeypatch)[0] is None


@pytest.mark.parametrize("removed", [[], [0]])
def test_the_fragment_that_merges_claim_to_remove_does_not_count(
    location: str, removed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    operation = lance.LanceOperation.Update(removed_fragment_ids=[*removed, MERGE_MARKER])
    made = lance.LanceDataset.commit(location, operation, read_version=2)
    missed, looked_for = find_missed(location, made.version, monkeypatch)
    assert (missed, len(looked_for)) == (None, len(removed))


@pytest.mark.parametrize("body", [b"\x0a\x02\x12\xff", b"\x0a\x03\x1a\x01\x10", b"\x12\x02\xff\xff"])
def test_a_transaction_that_is_malformed(tmp_path: Path, body: bytes) -> None:
    manifest = Manifest(9, "0-x.txn", "Delete", "", b"", transaction=bytes([0xAA, 0x06, len(body)]) + body)
    with pytest.raises(InvalidInputError, match="no manifest of Lance"):
        find_missed_conflict(ManifestStore(str(tmp_path)), manifest, "_versions/9.manifest")


def test_a_version_of_any_number_is_looked_for_by_one_list(tmp_path: Path) -> None:
    (tmp_path / "_versions").mkdir()
    (tmp_path / "_versions" / "7.manifest").touch()
    files = ManifestStore(str(tmp_path))
    assert files.count_missing("_versions/9.manifest", range(1, 2**62), {8}) == 2**62 - 3


@pytest.mark.parametrize(
    ("file", "before"),
    [
        ("_versions/10.manifest", "_versions/9.manifest"),
        ("_versions/18446744073709551605.manifest", "_versions/18446744073709551606.manifest"),
    ],
)
def test_the_manifest_before(file: str, before: str) -> None:
    assert previous_manifest(file) == manifest_of_version(file, 9) == before
