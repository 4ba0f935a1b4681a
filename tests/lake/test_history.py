from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from lance_namespace.errors import (
    InvalidInputError,
    InvalidTableStateError,
    LanceNamespaceError,
    PermissionDeniedError,
    TableVersionNotFoundError,
)

from lancehouse.lake import history
from lancehouse.lake.dataset import TableRef, VersionSelector, from_snapshot_id, snapshot_id
from lancehouse.lake.history import History, extend_history, is_consistent, read_history
from lancehouse.lake.version_records import read_refs
from lancehouse.lake.versions import list_manifests, list_tags
from tests.lake.store import BUCKET, FakeStore

ROWS = pa.table({"id": [1, 2, 3], "s": ["a", "b", "c"]})


def append(at: str | lance.LanceDataset) -> lance.LanceDataset:
    return lance.write_dataset(ROWS, at, mode="append")


def read_known_history(location: str, known: History | None = None, at: int | None = None) -> History:
    found = read_history(TableRef(location), known=known, at=at)
    assert found is not None
    return found


@pytest.fixture
def location(tmp_path: Path) -> str:
    return str(tmp_path / "t")


@pytest.fixture
def opened_versions(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The versions whose manifests are read, one after the other, besides the latest."""
    versions: list[int] = []
    checkout = lance.LanceDataset.checkout_version

    def note_version(dataset: lance.LanceDataset, version: tuple[str, int]) -> lance.LanceDataset:
        versions.append(version[1])
        return checkout(dataset, version)

    monkeypatch.setattr(lance.LanceDataset, "checkout_version", note_version)
    return versions


STEPS: list[tuple[str, Callable[[str], object], int]] = [
    ("Overwrite", lambda at: lance.write_dataset(ROWS, at), 3),
    ("Append", append, 6),
    ("Delete", lambda at: lance.dataset(at).delete("id = 1"), 4),
    ("Update", lambda at: lance.dataset(at).update({"s": "'z'"}, where="id = 2"), 4),
    ("Merge", lambda at: lance.dataset(at).add_columns({"x": "id * 2"}), 4),
    ("Project", lambda at: lance.dataset(at).drop_columns(["x"]), 4),
    ("CreateIndex", lambda at: lance.dataset(at).create_scalar_index("id", "BTREE"), 4),
    ("DropIndex", lambda at: lance.dataset(at).drop_index("id_idx"), 4),
    ("UpdateConfig", lambda at: lance.dataset(at).update_config({"a": "b"}), 4),
    ("Restore", lambda at: lance.dataset(at, version=2).restore(), 6),
    ("Overwrite", lambda at: lance.write_dataset(ROWS, at, mode="overwrite"), 3),
]


def test_operations(location: str) -> None:
    known = None
    for number, (operation, step, rows) in enumerate(STEPS, 1):
        step(location)
        known = read_known_history(location, known)
        newest = known.versions[-1]
        assert (known.version, newest.version, newest.operation, newest.rows) == (number, number, operation, rows)
    assert known == read_known_history(location)


def test_compaction_keeps_books(location: str) -> None:
    append(location)
    append(location)
    lance.dataset(location).optimize.compact_files()
    made = read_known_history(location).versions
    assert [version.operation for version in made] == ["Overwrite", "Append", "Other", "Rewrite"]
    assert [version.files for version in made] == [1, 2, 2, 1]


def test_versions_are_as_lance_tells(location: str) -> None:
    for _ in range(20):
        append(location)
    found = read_known_history(location)
    versions = lance.dataset(location).versions()
    assert [(v.version, v.timestamp_ms, v.rows, v.files, v.bytes) for v in found.versions] == [
        (
            v["version"],
            int(v["timestamp"].timestamp() * 1000),
            int(v["metadata"]["total_rows"]),
            int(v["metadata"]["total_data_files"]),
            int(v["metadata"]["total_files_size"]),
        )
        for v in versions
    ]
    assert all((Path(location) / version.manifest).exists() for version in found.versions)


def test_old_names_of_manifests(location: str) -> None:
    lance.write_dataset(ROWS, location, enable_v2_manifest_paths=False)
    append(location)
    assert [version.manifest for version in read_known_history(location).versions] == [
        "_versions/1.manifest",
        "_versions/2.manifest",
    ]
    known = read_known_history(location)
    lance.dataset(location).migrate_manifest_paths_v2()
    moved = read_known_history(location, known)
    assert [version.version for version in moved.versions] == [1, 2]
    assert all((Path(location) / version.manifest).exists() for version in moved.versions)


def test_a_new_version_costs_one_manifest(location: str, opened_versions: list[int]) -> None:
    for _ in range(30):
        append(location)
    known = read_known_history(location)
    assert sorted(opened_versions) == list(range(1, 30))
    opened_versions.clear()
    assert read_known_history(location, known) == known
    assert opened_versions == []
    append(location)
    opened_versions.clear()
    assert read_known_history(location, known).version == 31
    assert opened_versions == [30]  # it is still the dataset that is known


def test_a_dataset_made_again_is_another(location: str) -> None:
    append(location)
    append(location)
    known = read_known_history(location)
    shutil.rmtree(location)
    lance.write_dataset(ROWS.slice(1), location)
    append(location)
    append(location)
    found = read_known_history(location, known)
    assert [version.rows for version in found.versions] == [2, 5, 8]
    assert found == read_known_history(location)


def test_a_branch_made_again_is_another(location: str) -> None:
    append(location)
    append(location)
    lance.dataset(location).create_branch("b", 1)
    known = read_known_history(location)
    lance.dataset(location).branches.delete("b")
    assert not read_known_history(location, known).branches
    lance.dataset(location).create_branch("b", 2)
    append(lance.dataset(location).checkout_version(("b", None)))
    found = read_known_history(location, known)
    assert [(v.version, v.rows) for v in found.versions if v.branch] == [(2, 6), (3, 9)]
    assert found == read_known_history(location)


def test_cleaned_up_versions_are_gone(location: str) -> None:
    for _ in range(4):
        append(location)
    lance.dataset(location).tags.create("kept", 2)
    known = read_known_history(location)
    lance.dataset(location).cleanup_old_versions(older_than=timedelta(0), error_if_tagged_old_versions=False)
    assert [version.version for version in read_known_history(location, known).versions] == [2, 4]


@pytest.mark.parametrize("folder", ["t", "a/tree/b c ä/t"])
def test_tags_that_pylance_cannot_list(tmp_path: Path, folder: str) -> None:
    """One such tag must not make a table unreadable, nor the others of its namespace unlisted."""
    location = str(tmp_path / folder)
    append(location)
    append(location).tags.create("ok", 2)
    lance.dataset(location).tags.create("geprüft", 1)
    lance.dataset(location).create_branch("b")
    lance.dataset(location).tags.create("größer", ("b", None))
    version = lance.dataset(location).version
    tags = {"ok": 2, "geprüft": 1, "größer": snapshot_id("b", version)}
    assert read_known_history(location).tags == tags
    refs = read_refs(TableRef(location))
    assert refs.tags == {"ok": (None, 2), "geprüft": (None, 1), "größer": ("b", version)}
    assert list_tags(TableRef(location)) == refs.tags
    for name, (branch, version) in refs.tags.items():
        address, dataset = VersionSelector(tag=name).open(TableRef(location))
        assert (address.branch, address.version, dataset.version) == (branch, version, version)


def test_tags_and_branches(location: str) -> None:
    append(location)
    append(location)
    dataset = lance.dataset(location)
    dataset.tags.create("one", 1)
    dataset.create_branch("a/b", 1)
    append(lance.dataset(location).checkout_version(("a/b", None)))
    lance.dataset(location).checkout_version(("a/b", 2)).create_branch("c", ("a/b", 2))
    dataset.tags.create("branched", ("a/b", 2))
    found = read_known_history(location)
    assert [(v.branch, v.version, v.operation, v.rows) for v in found.versions] == [
        (None, 1, "Overwrite", 3),
        (None, 2, "Append", 6),
        ("a/b", 1, "Clone", 3),
        ("a/b", 2, "Append", 6),
        ("c", 2, "Clone", 6),
    ]
    assert found.tags == {"branched": snapshot_id("a/b", 2), "one": 1}
    assert {name: branch.parent for name, branch in found.branches.items()} == {
        "a/b": 1,
        "c": snapshot_id("a/b", 2),
    }
    assert all((Path(location) / version.manifest).exists() for version in found.versions)


@pytest.mark.parametrize("branch", [None, "main", "b", "a/b", "é"])
@pytest.mark.parametrize("version", [1, 300, 2**32 - 1])
def test_snapshot_ids(branch: str | None, version: int) -> None:
    number = snapshot_id(branch, version)
    assert 0 < number < 2**63
    assert from_snapshot_id(number, ["x", "b", "a/b", "é"]) == (None if branch == "main" else branch, version)
    assert len({snapshot_id(name, version) for name in (None, "b", "a/b", "é")}) == 4


def test_an_unknown_branch_is_no_branch() -> None:
    assert from_snapshot_id(snapshot_id("gone", 7), ["b"]) == (None, snapshot_id("gone", 7))


def test_at_a_version(location: str) -> None:
    append(location)
    lance.dataset(location).add_columns({"x": "id * 2"})
    manifest = Path(location) / read_known_history(location).versions[1].manifest
    assert len(read_known_history(location).schema["fields"]) == 3
    assert [version.version for version in read_known_history(location, at=1).versions] == [1]
    assert len(read_known_history(location, at=1).schema["fields"]) == 2
    assert read_known_history(location, at=9).version == 2
    manifest.rename(manifest.with_suffix(".staged"))
    assert read_known_history(location, at=2).version == 1
    assert read_history(TableRef(location), at=0) is None


# One more


@pytest.fixture
def extend_without_list(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, History, int], History | None]:
    """`extend_history`, which lists no versions of the main branch."""

    def without_a_list(table: TableRef) -> dict[int, str]:
        assert table.branch is not None
        return list_manifests(table)

    def call(location: str, known: History, at: int) -> History | None:
        with monkeypatch.context() as patched:
            patched.setattr(history, "list_manifests", without_a_list)
            return extend_history(TableRef(location), known, at)

    return call


Extended = Callable[[str, History, int], History | None]


def create_old_names(location: str) -> lance.LanceDataset:
    """A dataset with old names, which can become new ones."""
    return lance.write_dataset(ROWS, location, enable_v2_manifest_paths=False)


def remove_folder(location: str) -> str:
    shutil.rmtree(location)
    return location


def moved_away(location: str, version: int) -> Path:
    """The manifest of a version, which is not in its place any more."""
    manifest = Path(location) / read_known_history(location).versions_on(None)[version].manifest
    return manifest.rename(manifest.with_suffix(".staged"))


LATER: list[tuple[str, Callable[[str], object]]] = [
    ("nothing", lambda at: at),
    ("a version", append),
    ("columns", lambda at: lance.dataset(at).add_columns({"x": "id * 2"})),
    ("several", lambda at: [append(at) for _ in range(3)]),
    ("a tag", lambda at: lance.dataset(at).tags.create("x", 2)),
    ("a branch", lambda at: append(lance.dataset(at).create_branch("b", 2))),
    ("another version of it", lambda at: append(lance.dataset(at).checkout_version(("b", None)))),
    (
        "the branch made again",
        lambda at: (lance.dataset(at).branches.delete("b"), lance.dataset(at).create_branch("b")),
    ),
    ("no tag", lambda at: lance.dataset(at).tags.delete("x")),
]


@pytest.mark.parametrize("names", ["new", "old"])
def test_extended_is_as_read(
    location: str, extend_without_list: Extended, opened_versions: list[int], names: str
) -> None:
    lance.write_dataset(ROWS, location, enable_v2_manifest_paths=names == "new")
    for _ in range(19):
        append(location)
    known = read_known_history(location)
    for name, step in LATER:
        step(location)
        before, at = known.version, lance.dataset(location).version
        opened_versions.clear()
        found = extend_without_list(location, known, at)
        assert found is not None, name
        assert len(opened_versions) <= at - before + len(known.branches) + 2, name
        assert found == read_known_history(location, at=at), name
        known = found


def test_extended_up_to_a_version(location: str, extend_without_list: Extended) -> None:
    """Later ones do not count, and one that is not in its place is not there."""
    append(location)
    known = read_known_history(location)
    for _ in range(4):
        append(location)
    assert extend_without_list(location, known, 3) == read_known_history(location, at=3)
    moved_away(location, 4)
    for at in (4, 5, 7):
        assert extend_without_list(location, known, at) == read_known_history(location, at=at)


UNTOLD: dict[str, tuple[Callable[[str], object], int]] = {
    "another dataset": (lambda at: [create_old_names(remove_folder(at)), *map(append, [at] * 5)], 6),
    "cleaned up": (lambda at: lance.dataset(at).cleanup_old_versions(older_than=timedelta(0)), 5),
    "cleaned up but for a tag": (
        lambda at: (
            lance.dataset(at).tags.create("x", 1),
            lance.dataset(at).cleanup_old_versions(timedelta(0), error_if_tagged_old_versions=False),
        ),
        5,
    ),
    "the newest is gone": (lambda at: moved_away(at, 5), 5),
    "other names": (lambda at: lance.dataset(at).migrate_manifest_paths_v2(), 5),
    "gone": (remove_folder, 5),
    "an older one": (lambda _: None, 4),
    "many more": (lambda at: [append(at) for _ in range(9)], 14),
}


@pytest.mark.parametrize(("change", "at"), UNTOLD.values(), ids=UNTOLD)
def test_what_only_a_list_can_tell(location: str, change: Callable[[str], object], at: int) -> None:
    create_old_names(location)
    for _ in range(4):
        append(location)
    known = read_known_history(location)
    assert extend_history(TableRef(location), known, 5) == known
    change(location)
    assert extend_history(TableRef(location), known, at) is None


def test_an_object_store_is_listed(store: FakeStore) -> None:
    table = TableRef(f"s3://{BUCKET}/t", store.options)
    lance.write_dataset(ROWS, table.location, storage_options=store.options)
    known = read_history(table)
    assert known is not None
    assert extend_history(table, known, 1) is None


def test_holds(location: str) -> None:
    """A snapshot tells which version was before it, so that this one has to be right too."""
    for _ in range(4):
        append(location)
    known = read_known_history(location)
    assert is_consistent(TableRef(location), known, [1, 2, 4, 9])
    moved = moved_away(location, 2)
    assert is_consistent(TableRef(location), known, [1, 4, 9])
    assert not is_consistent(TableRef(location), known, [2])
    assert not is_consistent(TableRef(location), known, [3])
    without = read_known_history(location)
    assert is_consistent(TableRef(location), without, [1, 2, 3, 4])
    moved_away(location, 1)
    assert not is_consistent(TableRef(location), without, [3])
    moved.rename(moved.with_suffix(".manifest"))
    assert not is_consistent(TableRef(location), without, [2])
    assert not is_consistent(TableRef(location), without, [3])


def test_ids_of_fields_stay(location: str) -> None:
    append(location)
    lance.dataset(location).add_columns({"x": "id * 2"})
    lance.dataset(location).drop_columns(["s"])
    lance.dataset(location).add_columns({"y": "id * 2"})
    lance.dataset(location).drop_columns(["y"])
    found = read_known_history(location)
    assert {field["name"]: field["id"] for field in found.schema["fields"]} == {"id": 1, "x": 3}
    assert found.schema["schema-id"] == 1
    assert found.last_column_id >= 3
    assert history.read_schema(TableRef(location)) == found.schema
    assert [field["name"] for field in history.read_schema(TableRef(location, version=1))["fields"]] == ["id", "s"]


def test_nothing(tmp_path: Path) -> None:
    assert read_history(TableRef(str(tmp_path / "nothing"))) is None
    assert history.find_latest_version(TableRef(str(tmp_path / "nothing"))) is None
    (tmp_path / "file").write_text("")
    for mistake in ("file", "x" * 300):
        with pytest.raises(InvalidInputError):
            read_history(TableRef(str(tmp_path / mistake)))


def test_broken(location: str) -> None:
    append(location)
    (manifest,) = Path(location, "_versions").glob("*.manifest")
    manifest.write_bytes(manifest.read_bytes()[:50])
    with pytest.raises(InvalidTableStateError, match=rf"the dataset cannot be read: {location}"):
        read_history(TableRef(location))
    with pytest.raises(InvalidTableStateError, match="cannot be read"):
        history.read_schema(TableRef(location))
    with pytest.raises(TableVersionNotFoundError):
        history.read_schema(TableRef(location, version=7))


class CountingStore(FakeStore):
    """An object store that remembers what it is asked for."""

    asked: list[str]


@pytest.fixture
def counting() -> Iterator[CountingStore]:
    store = CountingStore()
    store.asked = []
    handler = store._server.RequestHandlerClass
    answer = handler.do_GET  # type: ignore[attr-defined]

    def note_request(request: object) -> None:
        store.asked.append(f"{request.command} {request.path}")  # type: ignore[attr-defined]
        answer(request)

    handler.do_GET = handler.do_HEAD = note_request  # type: ignore[attr-defined]
    with store:
        yield store


def test_requests(counting: CountingStore) -> None:
    """An object store is listed and asked for the latest manifest, and for no other that is known."""
    location, options = f"s3://{BUCKET}/a/t", counting.options
    for _ in range(12):
        lance.write_dataset(ROWS, location, mode="append", storage_options=options)
    table = TableRef(location, options)
    known = read_history(table)
    assert known is not None
    counting.asked.clear()
    assert read_history(table, known=known) == known
    unchanged = len(counting.asked)
    assert unchanged <= 5, counting.asked  # three lists, and one manifest
    lance.write_dataset(ROWS, location, mode="append", storage_options=options)
    counting.asked.clear()
    newer = read_history(table, known=known)
    assert newer is not None
    assert newer.version == 13
    assert len(counting.asked) <= unchanged + 3, counting.asked


@pytest.mark.parametrize(
    ("status", "code", "expected"), [(403, "AccessDenied", PermissionDeniedError), (500, "InternalError", None)]
)
def test_an_object_store_that_refuses(
    store: FakeStore, status: int, code: str, expected: type[LanceNamespaceError] | None
) -> None:
    table = TableRef(f"s3://{BUCKET}/t", store.options)
    assert read_history(table) is None
    store.refusal = (status, code)
    with pytest.raises(expected or LanceNamespaceError):
        read_history(table)
    with pytest.raises(expected or LanceNamespaceError):
        history.find_latest_version(table)
