from __future__ import annotations

from pathlib import Path

import lance
import pyarrow as pa
import pytest

from lancehouse.locations import child_location, is_same


@pytest.mark.parametrize(
    ("root", "levels", "location"),
    [
        ("/data", ["wh", "db", "t"], "/data/wh/db/t"),
        ("/data/", ["wh", "t"], "/data/wh/t"),
        ("s3://bucket/x", ["wh", "db", "t"], "s3://bucket/x/wh/db/t"),
        ("/data", ["a/b"], "/data/a%2Fb"),
        ("/data", ["a\\b"], "/data/a%5Cb"),
        ("/data", [".."], "/data/%2E%2E"),
        ("/data", ["."], "/data/%2E"),
        ("/data", ["a.b"], "/data/a.b"),
        ("/data", ["a%2Fb"], "/data/a%252Fb"),
        ("/data", ["a b", "ü"], "/data/a b/ü"),
        ("/data", ["a\nb"], "/data/a%0Ab"),
        ("file:///data", ["a b"], "file:///data/a%20b"),
        ("file:///data", [".."], "file:///data/%252E%252E"),
        ("file:///data", ["a/b"], "file:///data/a%252Fb"),
        ("s3://bucket", ["a?b#c"], "s3://bucket/a%3Fb%23c"),
    ],
)
def test_one_segment_a_level(root: str, levels: list[str], location: str) -> None:
    assert child_location(root, levels) == location


NAMES = [
    "t",
    "a/b",
    "a\\b",
    ".",
    "..",
    "...",
    "a%2Fb",
    "a%b",
    "a b",
    "ü",
    "😀",
    "a?b",
    "a#b",
    "it's",
    "a+b",
    "a$b",
    "e" * 255,
]


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_lance_keeps_every_name_in_its_own_folder_below_root(tmp_path: Path, scheme: str) -> None:
    root = tmp_path / "root"
    for number, name in enumerate(NAMES):
        lance.write_dataset(pa.table({"n": [number]}), child_location(f"{scheme}{root}", ["db", name]))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["root"]
    assert len(list((root / "db").iterdir())) == len(NAMES)
    for number, name in enumerate(NAMES):
        assert lance.dataset(child_location(f"{scheme}{root}", ["db", name])).to_table()["n"].to_pylist() == [number]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("/a/b", "file:///a/b", True),
        ("/a/b", "file:/a/b/", True),
        ("s3://b/x/", "s3://b/x", True),
        ("/a/b", "/a/c", False),
        ("s3://b/x", "gs://b/x", False),
    ],
)
def test_is_same(one: str, other: str, same: bool) -> None:
    assert is_same(one, other) is same
