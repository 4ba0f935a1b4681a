"""The files for containers, as far as they can be checked without an engine."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from lance_namespace import connect

from lancehouse.server.settings import ServerSettings

ROOT = Path(__file__).parent.parent
FILES = ("compose.yml", "compose.catalogs.yml")
SECRET = re.compile(r"pass|secret|credential|user", re.I)
RUNS_ONCE = {"bucket"}


def read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / name).read_text())
    return found


SERVICES = [(file, name) for file in FILES for name in read(file)["services"]]


@pytest.fixture(params=SERVICES, ids=[name for _, name in SERVICES])
def service(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    file, name = request.param
    return name, read(file)["services"][name]


def test_which_services_there_are() -> None:
    assert set(read("compose.yml")["services"]) == {"postgres", "minio", "bucket", "lancehouse"}
    assert set(read("compose.catalogs.yml")["services"]) == {"polaris", "unity"}


def test_images_are_pinned(service: tuple[str, dict[str, Any]]) -> None:
    _, _, tag = service[1]["image"].rpartition(":")
    assert re.search(r"\d+\.\d+|\d{4}-\d\d-\d\d", tag), service[1]["image"]


def test_ports_are_on_this_machine_only(service: tuple[str, dict[str, Any]]) -> None:
    for port in service[1].get("ports", []):
        assert re.fullmatch(r"127\.0\.0\.1:\d+:\d+", port)


def test_what_stays_up_says_whether_it_is_well(service: tuple[str, dict[str, Any]]) -> None:
    name, described = service
    assert ("healthcheck" in described) is (name not in RUNS_ONCE)
    for condition in (each["condition"] for each in described.get("depends_on", {}).values()):
        assert condition in ("service_healthy", "service_completed_successfully")


def test_secrets_are_obviously_local(service: tuple[str, dict[str, Any]]) -> None:
    for key, value in service[1].get("environment", {}).items():
        if SECRET.search(key):
            assert value in ("local-only", "lancehouse", "POLARIS,root,local-only"), key


def test_services_that_are_named_are_there() -> None:
    for file in FILES:
        found = read(file)
        volumes = set(found.get("volumes", {}))
        for described in found["services"].values():
            assert set(described.get("depends_on", {})) <= set(found["services"])
            for volume in described.get("volumes", []):
                source = volume.split(":")[0]
                assert (ROOT / source).is_file() if source.startswith(".") else source in volumes


def test_the_server_takes_its_file(monkeypatch: pytest.MonkeyPatch) -> None:
    described = read("compose.yml")["services"]["lancehouse"]
    for key, value in described["environment"].items():
        monkeypatch.setenv(key, value)
    given = {"db": described["environment"]["LANCEHOUSE_DB"]}
    settings = ServerSettings.parse(given, file=str(ROOT / "deploy" / "lancehouse.yaml"))
    assert settings.db == "postgresql://lancehouse:local-only@postgres/lancehouse"
    assert (settings.host, settings.port) == ("0.0.0.0", 8181)
    assert (settings.auth, settings.insecure) == (True, False)  # a page in a browser reaches ports of this machine too
    (warehouse,) = settings.warehouses
    minio = read("compose.yml")["services"]["minio"]["environment"]
    assert warehouse.storage["aws_access_key_id"] == minio["MINIO_ROOT_USER"]
    assert warehouse.storage["aws_secret_access_key"] == minio["MINIO_ROOT_PASSWORD"]
    assert warehouse.storage["allow_http"] == "true"
    bucket = warehouse.location.removeprefix("s3://").split("/")[0]
    assert read("compose.yml")["services"]["bucket"]["command"][0].endswith(f"/{bucket}")


def test_the_dockerfile() -> None:
    lines = (ROOT / "Dockerfile").read_text().replace("\\\n", " ").splitlines()
    said = {line.split()[0]: line.split(None, 1)[1] for line in lines if line and not line.startswith("#")}
    assert said["USER"] == "10001"
    assert "/health/ready" in said["HEALTHCHECK"]
    assert json.loads(said["ENTRYPOINT"]) == ["lancehouse"]
    assert json.loads(said["CMD"]) == ["serve"]
    assert all(re.search(r":\d+\.\d+\.\d+", line) for line in lines if line.startswith("FROM"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (synced,) = {tuple(re.findall(r"--extra (\w+)", line)) for line in lines if "uv sync" in line}
    assert set(synced) <= set(project["optional-dependencies"])
    assert all("--frozen" in line for line in lines if "uv sync" in line)
    copied = {word for line in lines if line.startswith("COPY") and "--from" not in line for word in line.split()[1:-1]}
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert copied == kept
    assert all((ROOT / name).exists() for name in copied)


def test_what_the_page_says() -> None:
    page = (ROOT / "docs" / "deploy.md").read_text()
    (block,) = re.findall(r"```python\n(.*?)```", page, re.S)
    found: dict[str, Any] = {}
    exec(block, {"connect": connect}, found)
    minio = read("compose.yml")["services"]["minio"]
    assert found["properties"]["storage.aws_secret_access_key"] == minio["environment"]["MINIO_ROOT_PASSWORD"]
    assert found["properties"]["storage.aws_endpoint"].removeprefix("http://") in minio["ports"][0]
    assert "credential" in found["properties"]  # the server asks who calls
    assert "were not run here" in page
    polaris, unity = (read("compose.catalogs.yml")["services"][name] for name in ("polaris", "unity"))
    assert f"localhost:{polaris['ports'][0].split(':')[1]},credential=root:local-only" in page
    assert f"localhost:{unity['ports'][0].split(':')[1]}" in page
