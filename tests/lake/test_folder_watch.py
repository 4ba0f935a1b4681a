from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from lancehouse.lake import folder_watch as watching
from lancehouse.lake.folder_watch import SETTLED_NS, FolderWatch, start_watch
from tests.waiting import PATIENCE_S

ROWS = pa.table({"id": [1, 2, 3]})

Change = Callable[[str], object]


def append(at: str | lance.LanceDataset) -> lance.LanceDataset:
    return lance.write_dataset(ROWS, at, mode="append")


def await_watch(location: str, **more: bool) -> FolderWatch:
    """Wait until the dataset can be watched."""
    deadline = time.monotonic() + PATIENCE_S
    while (found := start_watch(location, **more)) is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return found


@pytest.fixture
def location(tmp_path: Path) -> str:
    """Four versions, a tag, and a branch whose name has a slash."""
    location = f"{tmp_path}/a dataset"
    for _ in range(4):
        append(location)
    dataset = lance.dataset(location)
    dataset.tags.create("first", 1)
    dataset.create_branch("try/1", 2)
    return location


def again(location: str) -> None:
    shutil.rmtree(location)
    for _ in range(3):
        append(location)


CHANGES: dict[str, Change] = {
    "append": append,
    "delete": lambda at: lance.dataset(at).delete("id = 1"),
    "overwrite": lambda at: lance.write_dataset(ROWS, at, mode="overwrite"),
    "compaction": lambda at: lance.dataset(at).optimize.compact_files(),
    "restore": lambda at: lance.dataset(at, version=1).restore(),
    "config": lambda at: lance.dataset(at).update_config({"a": "b"}),
    "cleanup": lambda at: lance.dataset(at).cleanup_old_versions(
        older_than=timedelta(0), error_if_tagged_old_versions=False
    ),
    "tag created": lambda at: lance.dataset(at).tags.create("second", 2),
    "tag moved": lambda at: lance.dataset(at).tags.update("first", 2),
    "tag deleted": lambda at: lance.dataset(at).tags.delete("first"),
    "branch created": lambda at: lance.dataset(at).create_branch("try2", 3),
    "branch committed": lambda at: append(lance.dataset(at).checkout_version(("try/1", None))),
    "branch deleted": lambda at: lance.dataset(at).branches.delete("try/1"),
    "made again": again,
    "removed": shutil.rmtree,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_sees_every_change(location: str, change: Change) -> None:
    watched = await_watch(location)
    assert watched.is_unchanged()
    lance.dataset(location).to_table()
    assert watched.is_unchanged()
    change(location)
    assert not watched.is_unchanged()


@pytest.mark.parametrize(("change", "is_seen"), [("append", False), ("tag created", True), ("branch committed", True)])
def test_without_versions(location: str, change: str, is_seen: bool) -> None:
    watched = await_watch(location, versions=False)
    CHANGES[change](location)
    assert watched.is_unchanged() is not is_seen


FIRSTS: dict[str, tuple[Change, Change]] = {
    "dataset": (lambda at: None, append),
    "dataset in a folder": (lambda at: Path(at).mkdir(), append),
    "tag": (append, lambda at: lance.dataset(at).tags.create("x", 1)),
    "branch": (append, lambda at: lance.dataset(at).create_branch("x", 1)),
    "branch after a tag": (
        lambda at: append(at).tags.create("x", 1),
        lambda at: lance.dataset(at).create_branch("y", 1),
    ),
    "tag after a branch": (
        lambda at: append(at).create_branch("x", 1),
        lambda at: lance.dataset(at).tags.create("y", 1),
    ),
}


@pytest.mark.parametrize(("before", "first"), FIRSTS.values(), ids=FIRSTS)
def test_sees_what_was_not_there(tmp_path: Path, before: Change, first: Change) -> None:
    location = str(tmp_path / "t")
    before(location)
    watched = await_watch(location)
    first(location)
    assert not watched.is_unchanged()


def test_what_changed_just_now_is_not_trusted(location: str) -> None:
    await_watch(location)
    append(location)
    assert start_watch(location) is None
    assert start_watch(f"file://{location.replace(' ', '%20')}") is None
    assert await_watch(location).is_unchanged()
    changed = (Path(location) / "_versions").stat().st_ctime_ns
    assert time.time_ns() - changed > SETTLED_NS


def test_two_changes_in_one_tick(tmp_path: Path) -> None:
    """A watch that begins between two changes is either refused or sees the second."""
    versions = tmp_path / "_versions"
    versions.mkdir()
    for n in range(2_000):
        (versions / "x").write_text("")
        watched = start_watch(str(tmp_path))
        (versions / "x").rename(versions / f"{n}.manifest")
        assert watched is None or not watched.is_unchanged()


def test_whole_seconds_are_trusted_later() -> None:
    now = 1_800_000_000_000_000_000
    assert watching.is_settled(now - 51_000_000, now)
    assert not watching.is_settled(now - 49_000_000, now)
    assert not watching.is_settled(now + 1, now)
    assert not watching.is_settled(now - 2_000_000_000, now)
    assert watching.is_settled(now - 3_000_000_000, now)


MOUNTINFO = r"""
22 1 254:0 / / rw - ext4 /dev/vda rw
23 22 0:5 / /mnt/shared rw,relatime shared:1 - nfs4 server:/x rw
24 22 0:6 / /mnt/my\040disk rw - xfs /dev/b rw
25 23 0:7 / /mnt/shared/fast rw - tmpfs tmpfs rw
"""


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/data", "ext4"),
        ("/mnt/shared/x", "nfs4"),
        ("/mnt/sharedx", "ext4"),
        ("/mnt/my disk/x", "xfs"),
        ("/mnt/shared/fast", "tmpfs"),
    ],
)
def test_file_systems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str, kind: str) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(MOUNTINFO.strip())
    monkeypatch.setattr(watching, "MOUNTS", mounts)
    assert watching._file_system_type(Path(folder)) == kind


@pytest.mark.parametrize("location", ["s3://bucket/t", "gs://bucket/t", "az://container/t"])
def test_object_stores_cannot_be_watched(location: str) -> None:
    assert start_watch(location) is None


def test_network_disks_cannot_be_watched(location: str, monkeypatch: pytest.MonkeyPatch) -> None:
    await_watch(location)
    monkeypatch.setitem(watching._DEVICES, Path(location).stat().st_dev, False)
    assert start_watch(location) is None
