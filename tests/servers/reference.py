"""Iceberg's own REST catalog server, on 127.0.0.1."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import Literal

from lancehouse.spark.java import cache_folder, find_java
from tests.servers import jars

SOURCE = Path(__file__).with_name("reference") / "LoopbackServer.java"
MAIN = "org.apache.iceberg.rest.LoopbackServer"
READY = "listening on "
START_TIMEOUT_S = 60
SMALL = ("-Xmx512m", *jars.LIGHT)

Backend = Literal["jdbc", "memory"]


class ReferenceServerError(RuntimeError):
    """The server did not come up; the message ends with its log."""


@dataclass(frozen=True, slots=True)
class Reference:
    """A running server."""

    uri: str
    warehouse: str
    pid: int


@contextmanager
def start_reference(
    folder: Path,
    *,
    catalog: Backend = "jdbc",
    port: int = 0,
    properties: Mapping[str, str] | None = None,
    java: Sequence[str] = SMALL,
) -> Iterator[Reference]:
    """Run the server until the block ends.

    Args:
        folder: where its warehouse, its database and its log go.
        catalog: what is behind it: SQLite through JDBC, or memory.
        port: 0 for a free one.
        properties: more properties of the catalog.
        java: options of the virtual machine.

    Raises:
        ReferenceServerError: it did not come up.
    """
    folder = folder.absolute()
    warehouse = (folder / "warehouse").as_uri()
    settings = {**_backend(catalog, folder), "warehouse": warehouse, **(properties or {})}
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "server.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*_command(java), str(port), *(f"{key}={value}" for key, value in settings.items())],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=folder,
        )
    try:
        yield Reference(_wait(process, log), warehouse, process.pid)
    finally:
        process.kill()
        process.communicate()


def class_path() -> str:
    """The jars and our compiled class, for `java -cp`."""
    libraries = jars.bring()
    version = hashlib.sha256(SOURCE.read_bytes() + libraries.name.encode()).hexdigest()[:16]
    classes = jars.once(cache_folder() / "classes" / version, lambda target: _compile(libraries, target))
    return os.pathsep.join([str(classes), str(libraries / "*")])


def _backend(catalog: Backend, folder: Path) -> dict[str, str]:
    if catalog == "memory":
        return {"catalog-impl": "org.apache.iceberg.inmemory.InMemoryCatalog"}
    return {
        "catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
        "uri": f"jdbc:sqlite:{folder / 'catalog.db'}",
        "jdbc.schema-version": "V1",
        "clients": "1",
    }


def _command(options: Sequence[str]) -> list[str]:
    java = find_java() / "bin" / "java"
    return [str(java), *options, "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", class_path(), MAIN]


def _compile(libraries: Path, target: Path) -> None:
    compiler = libraries / f"{jars.COMPILER.artifact}-{jars.COMPILER.version}.jar"
    others = os.pathsep.join(str(jar) for jar in sorted(libraries.glob("*.jar")) if jar != compiler)
    java = find_java() / "bin" / "java"
    options = ["-source", "17", "-target", "17", "-nowarn", "-cp", others, "-d", str(target)]
    jars.run([java, "-jar", compiler, *options, SOURCE], error=f"{SOURCE.name} does not compile")


def _wait(process: subprocess.Popen[bytes], log: Path) -> str:
    """The address, as soon as the server says it."""
    deadline = monotonic() + START_TIMEOUT_S
    while monotonic() < deadline and process.poll() is None:
        for line in log.read_text(errors="replace").splitlines(keepends=True):
            if line.startswith(READY) and line.endswith("\n"):
                return line.removeprefix(READY).strip()
        sleep(0.02)
    tail = "\n".join(log.read_text(errors="replace").splitlines()[-40:])
    raise ReferenceServerError(f"the reference server did not come up (exit {process.poll()}); its log ends:\n{tail}")
