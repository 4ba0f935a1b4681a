"""The Java client of the Lance REST Namespace, which comes with lance-spark: a program of ours that uses it."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from lancehouse.spark.java import cache_folder, find_java
from tests.servers import jars
from tests.servers.lance_spark import JARS

SOURCE = Path(__file__).with_name("java") / "Tour.java"
RUN_TIMEOUT_S = 120


def run(words: Sequence[str]) -> dict[str, str]:
    """What the program says, line by line `name=value`."""
    libraries = jars.bring(JARS)
    version = hashlib.sha256(SOURCE.read_bytes() + libraries.name.encode()).hexdigest()[:16]
    classes = jars.once(cache_folder() / "classes" / version, lambda target: _compile(libraries, target))
    path = os.pathsep.join([str(classes), str(libraries / "*")])
    command = [str(find_java() / "bin" / "java"), "-Xmx256m", *jars.LIGHT, "-cp", path, SOURCE.stem, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_TIMEOUT_S)
    assert done.returncode == 0, done.stderr[-4000:]
    return dict(line.split("=", 1) for line in done.stdout.splitlines())


def _compile(libraries: Path, target: Path) -> None:
    compiler = jars.bring() / f"{jars.COMPILER.artifact}-{jars.COMPILER.version}.jar"
    others = os.pathsep.join(map(str, sorted(libraries.glob("*.jar"))))
    options = ["-source", "17", "-target", "17", "-nowarn", "-cp", others, "-d", str(target)]
    java = find_java() / "bin" / "java"
    jars.run([java, "-jar", compiler, *options, SOURCE], error=f"{SOURCE.name} does not compile")
