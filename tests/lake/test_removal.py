from __future__ import annotations

import shutil
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from lance_namespace.errors import PermissionDeniedError

from lancehouse.lake.dataset import TableRef, exists
from lancehouse.lake.dataset_files import is_table_file, list_staged_manifests, remove_dataset
from tests.lake.folder import rows
from tests.lake.store import FakeStore

THEIRS = ("notes.txt", "metadata/notes.json", "data/raw.csv", "tree/oak.txt", "mine/t.lance", "_mine/x.txt")
ICEBERG = (
    "metadata/00000-1.metadata.json",
    "metadata/.00000-1.metadata.json.crc",
    "metadata/snap-1.avro",
    "metadata/1-m0.avro",
    "metadata/version-hint.text",
)


def fill(location: str) -> None:
    """Everything that Lance and a catalog leave at a table's place."""
    made = lance.write_dataset(
        pa.table(
            {"id": [1, 2], "b": lance.blob_array([b"x", b"y" * 5_000_000])},
            schema=pa.schema([pa.field("id", pa.int64()), lance.blob_field("b")]),
        ),
        location,
        data_storage_version="2.2",
    )
    made.create_scalar_index("id", "BTREE")
    made.delete("id = 1")
    made.tags.create("one", 1)
    made.create_branch("a/b").delete("id = 2")


@pytest.mark.parametrize("form", ["{}", "file://{}", "file:{}"])
def test_drop(tmp_path: Path, form: str) -> None:
    place = tmp_path / "a_table"
    fill(str(place))
    (place / "metadata").mkdir()
    for file in ICEBERG:
        (place / file).write_text("x")
    (tmp_path / "sibling").write_text("stays")
    location = form.format(place)
    remove_dataset(location, metadata=True)
    assert not place.exists()
    assert (tmp_path / "sibling").exists()
    remove_dataset(location, metadata=True)


def test_drop_of_a_table_whose_first_rows_were_never_committed(tmp_path: Path) -> None:
    (tmp_path / "t" / "data").mkdir(parents=True)
    (tmp_path / "t" / ".lance-reserved").touch()
    remove_dataset(str(tmp_path / "t"))
    assert not (tmp_path / "t").exists()


def test_drop_leaves_what_is_not_ours(tmp_path: Path) -> None:
    place = tmp_path / "t"
    fill(str(place))
    for file in (*THEIRS, *ICEBERG):
        (place / file).parent.mkdir(exist_ok=True)
        (place / file).write_text("x")
    (place / "empty").mkdir()
    remove_dataset(str(place), metadata=True)
    assert {str(path.relative_to(place)) for path in place.rglob("*") if path.is_file()} == set(THEIRS)
    assert (place / "empty").is_dir()
    assert not exists(str(place))


def test_drop_of_an_empty_folder_leaves_it(tmp_path: Path) -> None:
    remove_dataset(str(tmp_path))
    assert tmp_path.is_dir()


def test_drop_in_a_store(store: FakeStore) -> None:
    made = lance.write_dataset(rows(3), "s3://bucket/a/t", storage_options=store.options)
    made.create_branch("a/b").delete("id = 2")
    lance.write_dataset(rows(3), "s3://bucket/a/t2", storage_options=store.options)
    store.objects |= {f"a/t/{file}": b"x" for file in (*THEIRS, *ICEBERG)}
    neighbours = {key for key in store.objects if key.startswith("a/t2/")}
    remove_dataset("s3://bucket/a/t", store.options, metadata=True)
    assert set(store.objects) == neighbours | {f"a/t/{file}" for file in THEIRS}
    remove_dataset("s3://bucket/a/t", store.options, metadata=True)
    remove_dataset("s3://bucket/none", store.options)


def test_drop_that_is_refused(store: FakeStore) -> None:
    lance.write_dataset(rows(3), "s3://bucket/t", storage_options=store.options)
    store.refusal = (403, "AccessDenied")
    with pytest.raises(PermissionDeniedError):
        remove_dataset("s3://bucket/t", store.options)


@pytest.mark.parametrize(
    "file",
    [
        "../data/x.lance",
        "x/data/y.lance",
        "data/x.parquet",
        "data/other.lance/data/x.lance",
        "data/other.lance/_versions/1.manifest",
        "metadata/x/y.avro",
        "versions/1",
        "tree/side/data/x.lance",
    ],
)
def test_files_of_others(file: str) -> None:
    assert not is_table_file(file, ["main", "a/b"], metadata=True)


@pytest.mark.parametrize("branches", [["a", "a/b"], ["a/b", "a"]])
def test_a_branch_below_another(branches: list[str]) -> None:
    assert is_table_file("tree/a/b/data/1.lance", branches)
    assert is_table_file("tree/a/data/1.lance", branches)


def test_metadata_is_removed_only_where_the_catalog_wrote_it() -> None:
    assert [is_table_file(file) for file in ICEBERG] == [False] * len(ICEBERG)
    assert [is_table_file(file, metadata=True) for file in ICEBERG] == [True] * len(ICEBERG)


def test_datasets_below_the_dropped_one_stay(tmp_path: Path) -> None:
    place = tmp_path / "t"
    below = [place / "data" / "other.lance", place / "tree" / "second"]
    for path in (place, *below):
        fill(str(path))
    remove_dataset(str(place))
    assert not exists(str(place))
    assert [lance.dataset(str(path)).count_rows() for path in below] == [1, 1]


def test_two_that_drop_at_the_same_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one removes each folder just before this one does."""
    remove = Path.rmdir

    def remove_twice(path: Path) -> None:
        remove(path)
        remove(path)

    fill(str(tmp_path / "t"))
    monkeypatch.setattr(Path, "rmdir", remove_twice)
    remove_dataset(str(tmp_path / "t"))
    assert not (tmp_path / "t").exists()


def test_a_second_try_finds_the_branches(tmp_path: Path) -> None:
    place = tmp_path / "t"
    fill(str(place))
    shutil.rmtree(place / "_versions")
    remove_dataset(str(place))
    assert not place.exists()


def test_a_staged_manifest_that_goes_while_it_is_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "_staging").mkdir()
    (tmp_path / "_staging" / "left").touch()
    (tmp_path / "_staging" / "published").symlink_to("nowhere")
    monkeypatch.setattr(Path, "is_file", lambda _: True)
    left, published = list_staged_manifests(TableRef(str(tmp_path)))
    assert (left.modified is None, published.modified) == (False, None)
