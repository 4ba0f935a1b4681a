"""The wheel, as a user gets it: installed into an empty environment it imports, connects and runs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parent.parent
OURS = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "UV_PROJECT_ENVIRONMENT", "UV_FROZEN", "UV_NO_SYNC")
"""What the test run has in its environment, and a user has not."""

USE = """
import lancehouse
from lance_namespace import connect

endpoint = {"endpoint": "http://127.0.0.1:9"}
for alias, name, more in [
    ("iceberg", "IcebergNamespace", {}),
    ("polaris", "PolarisNamespace", {}),
    ("unity", "UnityNamespace", {"catalog": "c"}),
]:
    named, called = connect(f"lancehouse.{name}", {**endpoint, **more}), connect(alias, {**endpoint, **more})
    assert type(named) is type(called) is getattr(lancehouse, name), name
print(lancehouse.__file__)
"""


def uv() -> list[str]:
    """The command for uv: the one that runs this, one on the path, or the one that `make` brought."""
    places = (os.environ.get("UV"), shutil.which("uv"), ROOT / ".cache" / "uv" / "bin" / "uv")
    if found := next((str(place) for place in places if place and Path(place).is_file()), None):
        return [found]
    module = [sys.executable, "-m", "uv"]
    if subprocess.run([*module, "--version"], capture_output=True, check=False).returncode:
        pytest.fail("there is no uv: `make test` brings one")
    return module


def run(*command: str | Path, cwd: Path) -> str:
    """What a command prints, in an environment without ours."""
    environment = {key: value for key, value in os.environ.items() if key not in OURS}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built wheel."""
    folder = tmp_path_factory.mktemp("dist")
    run(*uv(), "build", "--quiet", "--wheel", "--out-dir", folder, cwd=ROOT)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with the wheel and what it needs, in the versions of our lock, and nothing else."""
    folder = tmp_path_factory.mktemp("environment")
    versions, environment = folder / "versions.txt", folder / "venv"
    export = ["export", "--quiet", "--frozen", "--no-dev", "--no-hashes", "--no-emit-project", "--output-file"]
    run(*uv(), *export, versions, cwd=ROOT)
    run(*uv(), "venv", "--quiet", "--python", sys.executable, environment, cwd=folder)
    install = ["pip", "install", "--quiet", "--python", str(environment), "--constraints", str(versions), str(wheel)]
    run(*uv(), *install, cwd=folder)
    return environment / "bin" / "python"


def test_contents(wheel: Path) -> None:
    with ZipFile(wheel) as archive:
        names = archive.namelist()
        (entry_points,) = (name for name in names if name.endswith(".dist-info/entry_points.txt"))
        assert "lancehouse = lancehouse.cli.main:main" in archive.read(entry_points).decode()
    assert "lancehouse/py.typed" in names
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
    assert {name.partition("/")[0] for name in names} == {"lancehouse", "pyspark_lance", entry_points.partition("/")[0]}
    sources = {str(file.relative_to(ROOT / "src")) for file in (ROOT / "src").rglob("*.py")}
    assert {name for name in names if name.endswith(".py")} == sources
    page = ROOT / "src" / "lancehouse" / "server" / "console" / "files"
    assert {f"lancehouse/server/console/files/{file.name}" for file in page.iterdir()} <= set(names)


def test_import_and_connect(python: Path, tmp_path: Path) -> None:
    where = run(python, "-W", "error", "-c", USE, cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(python.parent.parent)


def test_command(python: Path, tmp_path: Path) -> None:
    command = python.with_name("lancehouse")
    assert "conformance" in run(command, "--help", cwd=tmp_path)
    assert "pylance" in run(command, "version", cwd=tmp_path)
