"""Jars from Maven Central, brought once for each list of them: with Maven, or else with the Ivy that PySpark ships."""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from xml.sax.saxutils import quoteattr

from lancehouse.spark.java import cache_folder, find_java

ICEBERG = "1.11.0"
JETTY = "12.1.8"
HADOOP = "3.4.3"
SQLITE = "3.53.0.0"
SLF4J = "2.0.17"
LIGHT = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""For a Java that lives too short for its best compiler to pay: a fifth less processor time."""


@dataclass(frozen=True, slots=True, order=True)
class Jar:
    """Coordinates of one jar; what its own pom asks for comes with it."""

    group: str
    artifact: str
    version: str
    classifier: str = ""


COMPILER = Jar("org.eclipse.jdt", "ecj", "3.42.0")
"""Compiles our Java on a JRE too; the newest that runs on Java 17 at the time of writing."""

JETTY_12 = (
    Jar("org.eclipse.jetty.ee10", "jetty-ee10-servlet", JETTY),
    Jar("org.eclipse.jetty.compression", "jetty-compression-server", JETTY),
    Jar("org.eclipse.jetty.compression", "jetty-compression-gzip", JETTY),
)
KIT_SERVERS = {ICEBERG: JETTY_12, "1.9.0": (Jar("org.eclipse.jetty", "jetty-servlet", "11.0.25"),)}
"""The HTTP server that a version's fixtures are built on."""

REFERENCE_SERVER = (
    Jar("org.apache.iceberg", "iceberg-core", ICEBERG),
    Jar("org.apache.iceberg", "iceberg-core", ICEBERG, "tests"),
    Jar("org.apache.iceberg", "iceberg-open-api", ICEBERG, "test-fixtures"),
    *JETTY_12,
    Jar("org.apache.hadoop", "hadoop-client-api", HADOOP),
    Jar("org.apache.hadoop", "hadoop-client-runtime", HADOOP),
    Jar("org.xerial", "sqlite-jdbc", SQLITE),
    Jar("org.slf4j", "slf4j-simple", SLF4J),
    COMPILER,
)
"""What Iceberg's own REST server needs; its fixtures declare nothing themselves."""


def compatibility_kit(iceberg: str) -> tuple[Jar, ...]:
    """What Iceberg's REST Compatibility Kit of that version needs; its tests declare nothing themselves."""
    return (
        *(
            Jar("org.apache.iceberg", f"iceberg-{part}", iceberg)
            for part in ("api", "core", "data", "bundled-guava", "aws", "gcp", "azure")
        ),
        *(Jar("org.apache.iceberg", f"iceberg-{part}", iceberg, "tests") for part in ("api", "core", "open-api")),
        Jar("org.apache.iceberg", "iceberg-open-api", iceberg, "test-fixtures"),
        *KIT_SERVERS[iceberg],
        *(Jar("org.apache.hadoop", f"hadoop-client-{part}", HADOOP) for part in ("api", "runtime")),
        Jar("org.xerial", "sqlite-jdbc", SQLITE),
        Jar("org.slf4j", "slf4j-simple", SLF4J),
        Jar("org.junit.jupiter", "junit-jupiter", "5.14.4"),
        *(
            Jar("org.junit.platform", f"junit-platform-{part}", "1.14.4")
            for part in ("suite-api", "suite-engine", "console", "launcher")
        ),
        Jar("org.assertj", "assertj-core", "3.27.7"),
        Jar("org.awaitility", "awaitility", "4.3.0"),
        Jar("org.mockito", "mockito-core", "4.11.0"),
    )


SPARK_RUNTIME = (Jar("org.apache.iceberg", "iceberg-spark-runtime-4.1_2.13", ICEBERG),)
"""Iceberg's connector for Spark 4.1, the newest Spark that it has one for."""

Word = str | Path
"""Of a command line."""


class JarsNotFoundError(RuntimeError):
    """The jars could not be brought; the message ends with what the tool said."""


def bring(jars: Sequence[Jar] = REFERENCE_SERVER) -> Path:
    """A folder with these jars and all that they depend on, from the cache or from Maven Central."""
    digest = hashlib.sha256(repr(sorted(jars)).encode()).hexdigest()[:16]
    return once(cache_folder() / "jars" / digest, lambda folder: _bring(jars, folder))


def once(target: Path, make: Callable[[Path], None]) -> Path:
    """`target`, which is made if it is not there: whole or not at all, and by one process while the others wait."""
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.with_name(f"{target.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            with tempfile.TemporaryDirectory(dir=target.parent, prefix=f"{target.name}.") as scratch:
                folder = Path(scratch) / target.name
                folder.mkdir()
                make(folder)
                folder.rename(target)
    return target


def run(command: Sequence[Word], *, error: str) -> None:
    """Run a tool to its end; what it said is the error's text."""
    done = subprocess.run(
        [str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600
    )
    if done.returncode != 0:
        raise JarsNotFoundError(f"{error} (exit {done.returncode}):\n{done.stdout[-4000:]}")


def _bring(jars: Sequence[Jar], folder: Path) -> None:
    if mvn := shutil.which("mvn"):
        _with_maven(mvn, jars, folder)
    else:
        _with_ivy(jars, folder)


def _with_maven(mvn: str, jars: Sequence[Jar], folder: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "pom.xml"
        file.write_text(pom(jars))
        goal = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
        wanted = ["-DincludeScope=runtime", f"-DoutputDirectory={folder}"]
        run([mvn, "-B", "-q", "-f", file, goal, *wanted], error="Maven could not bring the jars")


def _with_ivy(jars: Sequence[Jar], folder: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "ivy.xml"
        file.write_text(ivy(jars))
        pattern = f"{folder}/[artifact]-[revision](-[classifier]).[ext]"
        java = find_java() / "bin" / "java"
        tool: list[Word] = [java, "-cp", _ivy_jar(), "org.apache.ivy.Main", "-warn", "-cache", cache_folder() / "ivy"]
        run([*tool, "-ivy", file, "-retrieve", pattern], error="Ivy could not bring the jars")


def _ivy_jar() -> Path:
    spec = find_spec("pyspark")
    found = sorted(Path(spec.origin).parent.glob("jars/ivy-*.jar")) if spec and spec.origin else []
    if not found:
        raise JarsNotFoundError("neither Maven (`mvn` on PATH) nor PySpark with its Ivy is installed")
    return found[-1]


def pom(jars: Sequence[Jar]) -> str:
    """The list as a Maven project."""
    dependencies = "\n".join(
        f"    <dependency><groupId>{jar.group}</groupId><artifactId>{jar.artifact}</artifactId>"
        f"<version>{jar.version}</version><classifier>{jar.classifier}</classifier></dependency>"
        for jar in jars
    )
    return (
        "<project>\n  <modelVersion>4.0.0</modelVersion>\n"
        "  <groupId>lancehouse</groupId><artifactId>jars</artifactId><version>1</version>\n"
        f"  <dependencies>\n{dependencies}\n  </dependencies>\n</project>\n"
    )


def ivy(jars: Sequence[Jar]) -> str:
    """The list as an Ivy module: one dependency for each version, one artifact for each classifier."""
    dependencies = "\n".join(
        f'    <dependency org="{group}" name="{name}" rev="{version}" conf="default->default">'
        + "".join(
            f'<artifact name="{name}" type="jar" m:classifier={quoteattr(jar.classifier)}/>'
            if jar.classifier
            else f'<artifact name="{name}" type="jar"/>'
            for jar in of_one_version
        )
        + "</dependency>"
        for (group, name, version), of_one_version in groupby(
            sorted(jars), key=lambda jar: (jar.group, jar.artifact, jar.version)
        )
    )
    return (
        '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">\n'
        '  <info organisation="lancehouse" module="jars"/>\n'
        '  <configurations><conf name="default"/></configurations>\n'
        f"  <dependencies>\n{dependencies}\n  </dependencies>\n</ivy-module>\n"
    )
