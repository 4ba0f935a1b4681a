"""Jars are brought once, whole, from one list."""

from __future__ import annotations

import shutil
import xml.etree.ElementTree as ET
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.servers import jars
from tests.servers.jars import Jar

SMALL = (Jar("org.slf4j", "slf4j-simple", "2.0.17"),)
SMALL_FILES = ["slf4j-api-2.0.17.jar", "slf4j-simple-2.0.17.jar"]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def test_both_files_come_from_the_list() -> None:
    pom, ivy = ET.fromstring(jars.pom(jars.REFERENCE_SERVER)), ET.fromstring(jars.ivy(jars.REFERENCE_SERVER))
    classifier = "{http://ant.apache.org/ivy/maven}classifier"
    from_pom = {tuple(child.text or "" for child in dependency) for dependency in pom.iter("dependency")}
    from_ivy = {
        (dependency.get("org"), artifact.get("name"), dependency.get("rev"), artifact.get(classifier, ""))
        for dependency in ivy.iter("dependency")
        for artifact in dependency
    }
    listed = {(jar.group, jar.artifact, jar.version, jar.classifier) for jar in jars.REFERENCE_SERVER}
    assert from_pom == from_ivy == listed


@pytest.mark.soak  # goes to Maven Central
@pytest.mark.parametrize("tool", ["maven", "ivy"])
def test_bring(cache: Path, monkeypatch: pytest.MonkeyPatch, tool: str) -> None:
    if tool == "ivy":
        monkeypatch.setattr(shutil, "which", lambda name: None)
    elif not shutil.which("mvn"):
        pytest.skip("no Maven on this machine: the jars come through Ivy")
    assert sorted(file.name for file in jars.bring(SMALL).iterdir()) == SMALL_FILES


@pytest.mark.soak  # goes to Maven Central
def test_what_does_not_exist(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(jars.JarsNotFoundError, match=r"Ivy could not bring the jars(.|\n)*no-such-artifact"):
        jars.bring([Jar("org.slf4j", "no-such-artifact", "1")])
    assert [path.suffix for path in (cache / "lancehouse" / "jars").iterdir()] == [".lock"]


def test_once_is_once_for_all_threads(tmp_path: Path) -> None:
    made = []

    def make(folder: Path) -> None:
        made.append(folder)
        (folder / "file").write_text("whole")

    with ThreadPoolExecutor(8) as pool:
        folders = set(pool.map(lambda _: jars.once(tmp_path / "target", make), range(8)))
    assert folders == {tmp_path / "target"}
    assert (tmp_path / "target" / "file").read_text() == "whole"
    assert len(made) == 1


def test_once_leaves_nothing_behind_a_failure(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "half").write_text("")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        jars.once(tmp_path / "target", fail)
    assert [path.name for path in tmp_path.iterdir()] == ["target.lock"]
