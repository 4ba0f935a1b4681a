"""Packages of npm, for scripts below `npm/` that Node runs; installed once, in the user's cache folder."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any

from lancehouse.spark.java import cache_folder
from tests.servers.jars import once

HOME = Path(__file__).with_name("npm")
PACKAGES = HOME / "package.json"
OLDEST = 18
INSTALL_TIMEOUT_S = 240
RUN_TIMEOUT_S = 120
NATIVE = {
    ("Linux", "x86_64"): "linux-x64-gnu",
    ("Linux", "aarch64"): "linux-arm64-gnu",
    ("Darwin", "arm64"): "darwin-arm64",
}
"""Which of LanceDB's native packages a machine needs."""


class NpmNotFoundError(RuntimeError):
    """There is no Node, or it cannot have the packages; says why."""


def run(script: str, question: Any) -> Any:
    """What a script of ours answers to a question, both in JSON.

    Raises:
        NpmNotFoundError: it cannot be run here.
    """
    modules = packages() / "node_modules"
    done = subprocess.run(
        ["node", str(HOME / script), json.dumps(question)],
        env={**os.environ, "NODE_PATH": str(modules)},
        capture_output=True,
        text=True,
        timeout=RUN_TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout)


def packages() -> Path:
    """A folder with the packages, from the cache or installed now.

    Raises:
        NpmNotFoundError: they cannot be had.
    """
    native = NATIVE.get((platform.system(), platform.machine()))
    if native is None:
        raise NpmNotFoundError(f"LanceDB's npm package is not looked for on {platform.system()} {platform.machine()}")
    _, npm = find_npm()
    key = hashlib.sha256(PACKAGES.read_bytes() + native.encode()).hexdigest()[:16]
    return once(cache_folder() / "npm" / key, lambda folder: _install(npm, native, folder))


def find_npm() -> tuple[str, str]:
    """The programs `node` and `npm`.

    Raises:
        NpmNotFoundError: they are not there, or too old.
    """
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        raise NpmNotFoundError("node and npm are not on PATH")
    version = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    if int(version.removeprefix("v").partition(".")[0]) < OLDEST:
        raise NpmNotFoundError(f"node is {version}, and {OLDEST} is the oldest that will do")
    return node, npm


def _install(npm: str, native: str, folder: Path) -> None:
    """All but what is optional, of which only the native part is needed."""
    shutil.copy(PACKAGES, folder)
    version = json.loads(PACKAGES.read_text())["dependencies"]["@lancedb/lancedb"]
    options = ["--no-save", "--no-package-lock", "--no-audit", "--no-fund", "--ignore-scripts", "--omit=optional"]
    command = [npm, "install", *options, f"@lancedb/lancedb-{native}@{version}"]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise NpmNotFoundError(f"npm did not install the packages in {INSTALL_TIMEOUT_S} s") from None
    if done.returncode != 0:
        raise NpmNotFoundError(f"npm could not install the packages: {done.stderr[-1000:]}")
