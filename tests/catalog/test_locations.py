from __future__ import annotations

import os
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from lance_namespace.errors import InvalidInputError
from pyiceberg.io.pyarrow import PyArrowFileIO

from lancehouse.catalog.location_access import (
    cache_location,
    check_location,
    default_location,
    prepare_warehouse_location,
)
from lancehouse.catalog.warehouses import Warehouse
from lancehouse.locations import key
from lancehouse.store.model import Kind

ABFSS = "abfss://box@acc.dfs.core.windows.net"


def warehouse(location: str, **more: object) -> Warehouse:
    return Warehouse(1, "main", location, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("root", "location"),
    [
        ("/data", "/data/t"),
        ("/data", "/data/a/b/t/"),
        ("/data", "file:/data/t"),
        ("/data", "file:///data/t"),
        ("file:///data", "/data/t"),
        ("/data/", "/data/a b"),
        ("/data", "/data/a#b?c"),
        ("/data", "/data/100%"),
        ("/data", "/data/%2e%2e/t"),
        ("/data", "/data/..."),
        ("/data", "/data/.hidden"),
        ("/data", "/data/x/.lancehouse"),
        ("/data", "/data/ü😀"),
        ("s3://bucket", "s3://bucket/t"),
        ("s3://bucket/wh", "s3://bucket/wh/a/t"),
        ("gs://bucket/wh", "gs://bucket/wh/t"),
        (ABFSS, f"{ABFSS}/a/t"),
    ],
)
def test_allowed_for_every_kind(root: str, location: str) -> None:
    assert check_location(warehouse(root), location) == location.rstrip("/")


@pytest.mark.parametrize(
    ("root", "location", "reason"),
    [
        ("/data", "/data", "lie below /data"),
        ("/data", "/data/", "lie below /data"),
        ("/data", "/database/t", "lie below /data"),
        ("/data", "/etc/t", "lie below /data"),
        ("/data", "t", "neither an absolute path nor a URI"),
        ("/data", "", "neither an absolute path nor a URI"),
        ("/data", " /data/t", "neither an absolute path nor a URI"),
        ("/data", "/data/../etc", "goes over"),
        ("/data", "/data/a/../t", "goes over"),
        ("/data", "/data/./t", "goes over"),
        ("/data", "/data/t/..", "goes over"),
        ("/data", "file:///data/%2e%2e/etc", "goes over"),
        ("/data", "file:///data/%2E./etc", "goes over"),
        ("/data", "file:///data/a%2f..%2f..%2fetc", "goes over"),
        ("/data", "//data/t", "empty name"),
        ("/data", "/data//t", "empty name"),
        ("/data", "file:////data/t", "empty name"),
        ("/data", "file:///data/a%2f%2ft", "empty name"),
        ("/data", "/data/a\nb", "control character"),
        ("/data", "/data/a\0b", "control character"),
        ("/data", "file:///data/a%00b", "control character"),
        ("/data", "file:///data/a\tb", "control character"),
        ("/data", "/data/a\\b", "backslash"),
        ("/data", "file:///data/..\\..\\etc", "backslash"),
        ("/data", "file:///data/%5c", "backslash"),
        ("/data", "file:///data/%ff", "not UTF-8"),
        ("/data", "/data/\ud800", "not Unicode"),
        ("/data", "file:///data/t?x=1", "query"),
        ("/data", "file:///data/t#x", "fragment"),
        ("/data", "file:///data/t ", "space at its end"),
        ("/data", "file://host/data/t", "no host"),
        ("/data", "file://localhost/data/t", "no host"),
        ("/data", "file:data/t", "neither an absolute path nor a URI"),
        ("/data", "File:///data/t", "small letters"),
        ("/data", "s3://data/t", "lie below /data"),
        ("/data", "http://data/t", "the schemes are"),
        ("/data", "memory://t", "the schemes are"),
        ("/data", "file-object-store:///data/t", "the schemes are"),
        ("/data", "C:/data/t", "small letters"),
        ("/data", "/data/.lancehouse", "files of its own"),
        ("/data", "/data/.lancehouse/scans/t", "files of its own"),
        ("/data", "file:///data/%2elancehouse/t", "files of its own"),
        ("/data", "/data/" + "e" * 256, "more than 255 bytes"),
        ("/data", "/data/" + "é" * 128, "more than 255 bytes"),
        ("/data", "/data" + "/long" * 1000, "too long"),
        ("s3://bucket", "s3://bucket", "lie below"),
        ("s3://bucket", "s3://bucket/", "lie below"),
        ("s3://bucket", "s3://other/t", "lie below"),
        ("s3://bucket", "s3://bucket2/t", "lie below"),
        ("s3://bucket", "gs://bucket/t", "lie below"),
        ("s3://bucket", "/bucket/t", "lie below"),
        ("s3://bucket/wh", "s3://bucket/whale/t", "lie below"),
        ("s3://bucket/wh", "s3://bucket/wh/../t", "goes over"),
        ("s3://bucket/wh", "s3://bucket/wh/%2e%2e/t", "goes over"),
        ("s3://bucket", "s3://bucket//t", "empty name"),
        ("s3://bucket", "s3://bucket/.lancehouse/t", "files of its own"),
        ("s3://bucket", "s3:///t", "names no bucket"),
        ("s3://bucket", "s3://bucket:80/t", "names no bucket"),
        ("s3://bucket", "s3://bucket/" + "e" * 1000, "too long"),
        (ABFSS, "abfss://box@other.dfs.core.windows.net/t", "lie below"),
        (ABFSS, "abfss://box/t", "write abfss://container@account"),
    ],
)
def test_refused(root: str, location: str, reason: str) -> None:
    with pytest.raises(InvalidInputError, match="is not allowed: .*" + reason):
        check_location(warehouse(root), location)


def test_a_refusal_shows_no_secret() -> None:
    with pytest.raises(InvalidInputError, match="credentials do not belong") as refusal:
        check_location(warehouse("s3://bucket"), "s3://AKID:verysecret@bucket/t")
    assert "verysecret" not in str(refusal.value)
    assert "//***@bucket/t" in str(refusal.value)


@pytest.mark.parametrize(
    ("root", "location", "kind", "allowed"),
    [
        ("s3://b", "s3a://b/t", "iceberg", True),
        ("s3://b", "s3n://b/t", "view", True),
        ("s3://b", "s3a://b/t", "lance", False),
        ("s3a://b", "s3://b/t", "iceberg", True),
        (ABFSS, "abfs://box@acc.dfs.core.windows.net/t", "iceberg", True),
        (ABFSS, "wasbs://box@ACC.blob.core.windows.net/t", "iceberg", True),
        (ABFSS, "wasbs://box@acc.blob.core.windows.net/t", "lance", False),
        ("az://box", "az://box/t", "lance", True),
        ("az://box", "az://box/t", "iceberg", False),
        ("/d of 100 %", "file:///d%20of%20100%20%25/t", "lance", True),
        ("/d of 100 %", "file:///d%20of%20100%20%25/t", "iceberg", False),
        ("/d%20", "file:///d%20/t", "iceberg", True),
        ("/d%20", "file:///d%20/t", "lance", False),
        ("/d", "file:///d/%252e%252e/t", "lance", True),
        ("/d", "file:///d/%252e%252e/t", "iceberg", True),
    ],
)
def test_each_kind_as_its_own_readers_read_it(root: str, location: str, kind: Kind, allowed: bool) -> None:
    if allowed:
        assert check_location(warehouse(root), location, kind) == location
    else:
        with pytest.raises(InvalidInputError):
            check_location(warehouse(root), location, kind)


def test_more_roots_and_a_cache_elsewhere() -> None:
    place = warehouse("/data", roots=("/more", "s3://bucket/x"), cache="/more/cache/scans")
    assert check_location(place, "/more/t") == "/more/t"
    assert check_location(place, "s3://bucket/x/t") == "s3://bucket/x/t"
    for location in ("/more/cache/scans/t", "/more/cache", "/data/.lancehouse/t"):
        with pytest.raises(InvalidInputError, match="files of its own"):
            check_location(place, location)
    with pytest.raises(InvalidInputError, match="lie below /data or /more or s3://bucket/x"):
        check_location(place, "s3://bucket/y")


def test_symlinks(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    (root / "inside").mkdir(parents=True)
    outside.mkdir()
    (root / "out").symlink_to(outside)
    (root / "in").symlink_to(root / "inside")
    (root / "up").symlink_to("..")
    (root / "loop").symlink_to("loop")
    (root / "broken").symlink_to(tmp_path / "nothing")
    (tmp_path / "link").symlink_to(root)
    for name in ("out", "out/t", "in/t", "up/t", "loop/t", "broken", "broken/t"):
        for form in (f"{root}/{name}", f"file://{root}/{name}", f"{tmp_path}/link/{name}"):
            with pytest.raises(InvalidInputError, match="symlink"):
                check_location(warehouse(str(root), roots=(str(tmp_path / "link"),)), form)
    linked = warehouse(str(tmp_path / "link"))
    assert check_location(linked, f"{tmp_path}/link/t") == f"{tmp_path}/link/t"
    assert check_location(linked, f"{root}/inside/t") == f"{root}/inside/t"
    assert key(f"{tmp_path}/link/t") == key(f"{root}/t") == f"{os.path.realpath(root)}/t/"
    assert check_location(warehouse(str(root)), f"{root}/new") == f"{root}/new"
    (root / "new").symlink_to(outside)
    with pytest.raises(InvalidInputError, match="symlink"):
        check_location(warehouse(str(root)), f"{root}/new")


@pytest.mark.parametrize(
    ("same", "expected"),
    [
        (["/d/x", "/d/x/", "/d/x//", "file:/d/x", "file:///d/x", "file:///d/x/", "file:///d/%78"], "/d/x/"),
        (["/d/a b", "file:///d/a b", "file:///d/a%20b"], "/d/a b/"),
        (["/d/a%20b", "file:///d/a%2520b"], "/d/a%20b/"),
        (["s3://b", "s3://b/"], "s3://b/"),
        (["s3://b/x/y", "s3://b/x%2Fy"], "s3://b/x/y/"),
        (["s3://B/x"], "s3://B/x/"),
        (["/"], "/"),
    ],
)
def test_one_key_for_all_forms(same: list[str], expected: str) -> None:
    assert {key(location) for location in same} == {expected}


def test_keys_of_iceberg_tables() -> None:
    assert key("file:///d/a%20b", "iceberg") == key("/d/a%20b") == "/d/a%20b/"
    assert key("s3a://b/x", "iceberg") == key("s3n://b/x/", "iceberg") == key("s3://b/x") == "s3://b/x/"
    assert key("wasb://c@Acc.blob.core.windows.net/x", "iceberg") == key("abfss://c@acc.dfs.core.windows.net/x")


NAMES = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20),
    st.sampled_from(["..", ".", ".lancehouse", "%2e%2e", "a/b", "a\\b", "/", "%", "*", " ", "t ", "~", "C|", "\0"]),
)
PIECES = st.lists(st.sampled_from(["..", ".", "", "a", "out", "in", "%2e", "%2f", "%2F..", "\\", "?", "#", "%", "%25"]))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(NAMES, min_size=1, max_size=4), NAMES, st.sampled_from(["{}", "file://{}", "s3://bucket", ABFSS]))
@example([".lancehouse"], ".lancehouse", "s3://bucket")
def test_every_name_has_a_place_of_its_own(tmp_path: Path, levels: list[str], name: str, form: str) -> None:
    place = warehouse(form.format(tmp_path))
    location = default_location(place, levels, name)
    for kind in ("lance", "iceberg"):
        root = key(place.location, kind)
        assert check_location(place, location, kind) == location
        assert key(location, kind).startswith(root)
        assert key(location, kind).count("/") == root.count("/") + len(levels) + 1
        assert not key(location, kind).startswith(key(cache_location(place), kind))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(*[st.lists(NAMES, min_size=1, max_size=2)] * 2, st.sampled_from(["/data", "file:///data", "s3://bucket"]))
@example([".lancehouse", "t"], ["%2Elancehouse", "t"], "/data")
@example([".lancehouse", "t"], ["%2Elancehouse", "t"], "s3://bucket")
@example(["a", "b"], ["a/b", "b"], "/data")
def test_no_two_names_share_a_place(one: list[str], other: list[str], root: str) -> None:
    keys = {key(default_location(warehouse(root), levels[:-1], levels[-1])) for levels in (one, other)}
    assert len(keys) == (1 if one == other else 2)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=300)
@given(PIECES, st.sampled_from(["", "file:", "file://"]), st.sampled_from(["lance", "iceberg"]))
def test_what_is_allowed_is_inside(tmp_path: Path, pieces: list[str], form: str, kind: Kind) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    root.mkdir(exist_ok=True)
    outside.mkdir(exist_ok=True)
    for name, target in (("out", outside), ("in", root)):
        if not (root / name).is_symlink():
            (root / name).symlink_to(target)
    location = f"{form}{root}/{'/'.join(pieces)}"
    try:
        allowed = check_location(warehouse(str(root)), location, kind)
    except InvalidInputError:
        return
    path = key(allowed, kind)
    assert Path(path).resolve().is_relative_to(root.resolve())
    assert Path(path).resolve() != root.resolve()
    assert path == f"{os.path.realpath(path)}/"


@pytest.mark.parametrize("text", ["s3://b", "s3://b/wh", "gs://b/x/", "az://c/x", ABFSS, f"{ABFSS}/x"])
def test_a_warehouse_elsewhere(text: str) -> None:
    assert prepare_warehouse_location(text) == text.rstrip("/")


def test_a_warehouse_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    rows = {
        f"{tmp_path}/a/b/": f"{tmp_path}/a/b",
        f"file://{tmp_path}/c": f"file://{tmp_path}/c",
        f"file://{tmp_path}/d%20e": f"{tmp_path}/d e",
        "f": f"{tmp_path}/f",
        "./f/../g": f"{tmp_path}/g",
        "~/h": f"{tmp_path}/home/h",
    }
    assert {text: prepare_warehouse_location(text) for text in rows} == rows
    for name in ("a/b", "c", "d e", "f", "g", "home/h"):
        assert (tmp_path / name).is_dir()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "neither an absolute path nor a URI"),
        (" ", "neither an absolute path nor a URI"),
        ("/", "whole disk"),
        ("file:///", "whole disk"),
        ("file:///a/../b", "goes over"),
        ("s3://b/a%20b", "disagree"),
        ("s3://", "names no bucket"),
        ("http://b/x", "the schemes are"),
        ("s3a://b/x", "the schemes are"),
        ("{file}", "cannot be made"),
        ("{file}/below", "cannot be made"),
        ("~nobody-of-that-name/x", "no such home folder"),
    ],
)
def test_no_warehouse(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InvalidInputError, match=reason):
        prepare_warehouse_location(text.format(file=tmp_path / "file"))


@pytest.mark.parametrize("form", ["{}/x y", "{}/100%", "{}/a%20b", "file://{}/a%20b", "file://{}/ü%25", "file:{}/%23"])
def test_a_key_is_the_folder_that_readers_use(tmp_path: Path, form: str) -> None:
    location = check_location(warehouse(str(tmp_path)), form.format(tmp_path), "lance")
    lance.write_dataset(pa.table({"n": [1]}), location)
    assert Path(key(location), "_versions").is_dir()
    with PyArrowFileIO().new_output(f"{location}/metadata.json").create() as file:
        file.write(b"{}")
    assert Path(key(location, "iceberg"), "metadata.json").read_bytes() == b"{}"
