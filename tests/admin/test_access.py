"""Whether a catalog and its storage let us in, and for how long; and what a server cannot do."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lance
import pytest
from lance_namespace import connect
from lance_namespace.errors import PermissionDeniedError

from lancehouse.admin import doctor
from tests.cli.commands import TWO_ROWS, ConfiguredCatalog, configure, kinds, open_small
from tests.servers.faults import FaultProxy
from tests.servers.lancehouse import start_lancehouse
from tests.servers.loopback import Answer
from tests.servers.moto import ROLE, Moto
from tests.servers.polaris import Polaris
from tests.servers.unity import Unity

VENDED = "vended-credentials"


@pytest.fixture
def home(request: pytest.FixtureRequest, tmp_path: Path) -> ConfiguredCatalog:
    return open_small(request.param, request, tmp_path)


def in_seconds(seconds: int) -> str:
    return str(int((time.time() + seconds) * 1000))


@pytest.mark.parametrize("home", ["reference", "polaris"], indirect=True)
@pytest.mark.parametrize(("seconds", "severity"), [(-3600, "error"), (300, "warning"), (3600, None)])
def test_credentials_that_end(home: ConfiguredCatalog, seconds: int, severity: str | None) -> None:
    home.declare(**{"storage.expires_at_millis": in_seconds(seconds)})
    home.write(mode="append")
    found = home.findings_here()
    assert kinds(found) == ([(severity, "credentials")] if severity else [])


def test_credentials_that_a_server_vends(polaris: Polaris, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    home = open_small("polaris", request, tmp_path)
    lance.write_dataset(TWO_ROWS, str(tmp_path / "docs"))
    config = {"s3.session-token": "s3cr3t", "s3.session-token-expires-at-ms": in_seconds(-7200)}
    vended = [{"prefix": str(tmp_path), "config": config}]
    place = str(tmp_path / "docs")
    polaris.seed_generic("test_catalog", home.ns, "docs", format="lance", location=place, vended=vended)
    [found] = home.findings_here()
    assert kinds([found]) == [("error", "credentials")]
    assert found["what"].startswith("the credentials for its storage ended 2h ago")


@pytest.fixture
def vending(moto: Moto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ConfiguredCatalog]:
    """A server that vends keys for a bucket; its client has none of its own."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    bucket = moto.bucket()
    config = tmp_path / "server.yaml"
    warehouse = {"storage": dict(bucket.options), "vend": "sts", "role_arn": ROLE}
    config.write_text(json.dumps({"warehouses": {"main": warehouse}}))
    places, options = {"main": f"{bucket.uri}/main"}, ["--config", str(config)]
    with start_lancehouse(tmp_path / "server", warehouses=places, options=options) as served:
        home = configure("served", "iceberg", {"endpoint": served.iceberg}, tmp_path, tmp_path)
        client = connect("iceberg", {"endpoint": served.iceberg, "header.X-Iceberg-Access-Delegation": VENDED})
        lance.write_dataset(TWO_ROWS, namespace_client=client, table_id=home.id("docs"))
        yield home


def test_a_bucket_that_only_the_server_has_keys_for(
    vending: ConfiguredCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert vending.findings(f"{vending.ns}.docs") == []
    assert vending.findings() == [], "the whole catalog, with what lies below its root"

    def refuse(*_: object) -> list[str]:
        raise PermissionDeniedError("these keys are for a table")

    monkeypatch.setattr(doctor, "list_datasets", refuse)
    [found] = vending.findings()
    assert kinds([found]) == [("note", "unreadable")]
    assert "the catalog's credentials are for its tables; properties storage.<key>" in found["what"]


def jwt(ends: float) -> str:
    claims = base64.urlsafe_b64encode(json.dumps({"exp": ends}).encode()).decode().rstrip("=")
    return f"e30.{claims}.c2ln"


@pytest.mark.parametrize(("seconds", "severity"), [(-3700, "error"), (300, "warning"), (7200, None)])
def test_our_own_token_that_ends(
    unity: Unity, request: pytest.FixtureRequest, tmp_path: Path, seconds: int, severity: str | None
) -> None:
    home = open_small("unity", request, tmp_path)
    token = jwt(time.time() + seconds)
    unity.accept_token(token)
    done = home.run("--output", "json", "doctor", "--property", f"auth_token={token}")
    assert kinds(json.loads(done.stdout)["findings"]) == ([(severity, "credentials")] if severity else [])
    assert token not in done.output


def test_a_catalog_that_does_not_let_us_in(unity: Unity, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    home = open_small("unity", request, tmp_path)
    unity.accept_token("another")
    [found] = home.findings("--property", "auth_token=s3cr3t-old")
    assert kinds([found]) == [("error", "credentials")]
    assert "refuses access" in found["what"]
    assert "s3cr3t" not in str(found)


def without(call: str) -> Any:
    """A server that does not have a call, and says so."""

    def answer(request: Any, forward: Any) -> Answer:
        told = json.loads(forward(request).body)
        return Answer.json({**told, "endpoints": [each for each in told["endpoints"] if each != call]})

    return answer


def test_what_a_server_cannot_do(
    request: pytest.FixtureRequest, tmp_path: Path, faults: Callable[[str], FaultProxy]
) -> None:
    home = open_small("served", request, tmp_path)
    proxy = faults(home.properties["endpoint"].removesuffix("/iceberg"))
    there = ("--property", f"endpoint={proxy.uri}/iceberg")
    home.write()
    proxy.add(without("POST /v1/{prefix}/transactions/commit"), path="/v1/config", times=100)
    [found] = home.findings_here(*there)
    assert kinds([found]) == [("note", "features")]
    assert "commits over several tables" in found["what"]
    proxy.clear()
    update = "POST /v1/{prefix}/namespaces/{namespace}/tables/{table}"
    proxy.add(without(update), path="/v1/config", times=100)
    assert kinds(home.findings_here(*there)) == [("note", "features")]
    home.declare("managed", managed_by="impl")
    home.write("managed", mode="append")
    [found] = home.findings_here(*there)
    assert kinds([found]) == [("error", "features")]
    assert f"table manage {home.ns}.managed --by storage" in found["command"]
