"""Secrets of a backend stay in the gateway, whatever is asked and however much the backend talks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote
from uuid import uuid4

import pyarrow as pa
import pytest

from lancehouse.gateway.operations import OPERATIONS, Operation
from tests.gateway.calls import IN_ORDER, call, rows
from tests.gateway.talkative import ERRORS
from tests.live.gateways import Heard, ask, post, start_gateway, stream
from tests.servers.faults import ALWAYS, FaultProxy
from tests.servers.lancehouse import Served, start_lancehouse
from tests.servers.loopback import Answer, Loopback, Request
from tests.servers.moto import ACCESS_KEY, ROLE, SECRET_KEY, Bucket, Moto
from tests.servers.polaris import Polaris

API_KEY, PASSWORD, TOKEN, HEADER = "api-k3y/of+ours", "pa55-of-url", "t0ken-of-ours", "h3ader-of-ours"
SOME = {"ListTables", "DescribeTable", "InsertIntoTable"}
DEAD = "http://127.0.0.1:9"
IMPATIENT = {"storage.client_max_retries": "0", "storage.client_retry_timeout": "1"}
ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def bucket(moto: Moto) -> Bucket:
    return moto.bucket()


@pytest.fixture(scope="module")
def polaris() -> Iterator[Polaris]:
    with Polaris("test_catalog") as server:
        yield server


@pytest.fixture(scope="module")
def echo(polaris: Polaris) -> Iterator[FaultProxy]:
    with FaultProxy(polaris.uri) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def secrets(polaris: Polaris) -> list[str]:
    """All that the gateway knows and nobody else may."""
    return [
        API_KEY,
        "api-k3y%2Fof%2Bours",
        PASSWORD,
        TOKEN,
        HEADER,
        SECRET_KEY,
        ACCESS_KEY,
        polaris.credential.partition(":")[2],
    ]


@pytest.fixture(scope="module")
def server(
    tmp_path_factory: pytest.TempPathFactory, bucket: Bucket, polaris: Polaris, echo: FaultProxy
) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("secrets")
    storage = {f"storage.{key}": value for key, value in bucket.options.items()}
    talkative = {
        "api_key": API_KEY,
        "endpoint": f"http://ada:{PASSWORD}@127.0.0.1:1",
        "auth_token": TOKEN,
        "header.X-Secret": HEADER,
        "location": str(folder / "t.lance"),
        **storage,
    }
    kind = "tests.gateway.talkative.Talkative"
    backends = {
        "talkative": (kind, talkative),
        "never": (kind, {**talkative, "start": "never"}),
        "bucket": ("dir", {"root": f"{bucket.uri}/dir", **storage}),
        "gone": ("dir", {"root": "s3://no-such-bucket/dir", **storage, **IMPATIENT}),
        "away": ("dir", {"root": "s3://bucket/dir", **storage, **IMPATIENT, "storage.aws_endpoint": DEAD}),
        "polaris": (
            "polaris",
            {
                "endpoint": echo.uri,
                "credential": polaris.credential,
                "header.X-Secret": HEADER,
                "root": f"{bucket.uri}/polaris",
                "max_retries": "0",
                **storage,
            },
        ),
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        with start_gateway(folder, backends, ["--log-level", "debug"]) as running:
            yield running


def assert_discreet(heard: list[Heard], server: Served, secrets: list[str]) -> None:
    said = [repr(each) for each in heard] + [server.log.read_text()]
    for secret in secrets:
        assert not [text for text in said if secret in text], f"{secret} is told"


def everything(server: Served, backend: str, id: str) -> list[Heard]:
    """All operations, one after the other, on one id."""
    heard = [once(server, backend, id, operation) for operation in IN_ORDER]
    assert len(heard) == len(OPERATIONS)
    return heard


def once(server: Served, backend: str, id: str, operation: Operation) -> Heard:
    method, path, body = call(operation, id)
    return ask(server, method, f"/lance/{backend}/v1/{path}", body)


@pytest.mark.parametrize("number", range(len(ERRORS)), ids=[kind.__name__ for kind in ERRORS])
def test_errors_that_repeat_them(server: Served, secrets: list[str], number: int) -> None:
    heard = everything(server, "talkative", str(number))
    assert min(each.status for each in heard if each.status != 200) >= 400
    assert all(set(each.json) == {"error", "code", "instance"} for each in heard if each.status >= 400)
    assert "***" in ask(server, "POST", f"/lance/talkative/v1/table/{number}/describe", b"{}").json["error"]
    assert_discreet(heard, server, secrets)


def test_answers_that_repeat_them(server: Served, secrets: list[str]) -> None:
    described = ask(server, "POST", "/lance/talkative/v1/table/t/describe", b'{"vend_credentials": true}')
    declared = ask(server, "POST", "/lance/talkative/v1/table/t/declare", b"{}")
    listed = ask(server, "GET", "/lance/talkative/v1/namespace/$/list")
    assert [each.status for each in (described, declared, listed)] == [200, 200, 200]
    assert described.json["location"] == declared.json["location"]
    batch = ask(server, "POST", "/lance/talkative/v1/table/batch-commit", b'{"operations": [{"declare_table": {}}]}')
    heard = [described, declared, listed, batch, *everything(server, "talkative", "t")]
    assert_discreet(heard, server, secrets)


def test_a_backend_that_never_starts(server: Served, secrets: list[str]) -> None:
    heard = everything(server, "never", "t")
    assert {each.status for each in heard} == {400, 403}  # it has no roots: a location is refused before it is asked
    assert_discreet(heard, server, secrets)


def test_a_folder_in_a_bucket(server: Served, secrets: list[str]) -> None:
    """What reads and writes rows has the keys, and what describes them tells them to nobody."""
    table = f"t_{uuid4().hex[:8]}"
    made = ask(server, "POST", f"/lance/bucket/v1/table/{table}/create", rows())
    assert made.status == 200, made.body
    assert post(server, f"table/{table}/count_rows", {}, "bucket") == (200, 3)
    described = ask(server, "POST", f"/lance/bucket/v1/table/{table}/describe", b'{"vend_credentials": true}')
    assert described.status == 200
    assert_discreet([described, *everything(server, "bucket", table)], server, secrets)


@pytest.mark.parametrize(("backend", "refused"), [("gone", (400, 13)), ("away", (503, 17))])
def test_a_store_that_refuses(server: Served, secrets: list[str], backend: str, refused: tuple[int, int]) -> None:
    """Each asks it anew: it may come back."""
    heard = [once(server, backend, "t", operation) for operation in IN_ORDER if operation.name in SOME]
    assert [each.refused for each in heard] == [refused] * len(SOME)
    assert_discreet(heard, server, secrets)


def test_a_catalog_that_repeats_what_it_was_sent(server: Served, echo: FaultProxy, secrets: list[str]) -> None:
    def echoing(request: Request, forward: object) -> Answer:
        words = f"{request.target} {dict(request.headers)} {request.body!r} {SECRET_KEY}"
        error = {"error": {"message": words, "type": "ForbiddenException", "code": 403}}
        return Answer.json(error, 403, {"X-Echo": words.encode("ascii", "replace").decode().replace("\n", " ")[:1000]})

    everything(server, "polaris", "test_catalog$db$t")  # a token is there now
    echo.add(echoing, times=ALWAYS)
    heard = everything(server, "polaris", "test_catalog$db$t")
    echo.clear()
    echo.add(echoing, path="oauth/tokens", times=ALWAYS)
    heard += everything(server, "polaris", "test_catalog$db$t")
    echo.clear()
    assert any("Bearer ***" in repr(each) or "***" in repr(each) for each in heard)
    assert_discreet(heard, server, secrets)


def test_a_table_in_a_bucket_behind_another_catalog(server: Served, secrets: list[str]) -> None:
    assert post(server, "namespace/test_catalog$s3/create", {}, "polaris")[0] == 200
    path = "/lance/polaris/v1/table/test_catalog$s3$t"
    made = ask(server, "POST", f"{path}/create", rows())
    assert made.status == 200, made.body
    looks = [
        ask(server, "POST", f"{path}/describe?{query}", b"{}")
        for query in ("load_detailed_metadata=true", "check_declared=true", "with_table_uri=true")
    ]
    assert [each.status for each in looks] == [200, 200, 200]
    assert looks[0].json["version"] == 1
    assert_discreet([made, *looks, *everything(server, "polaris", "test_catalog$s3$t")], server, secrets)


class Listener(Loopback):
    """Somebody who would like to hear them."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[str] = []

    def answer(self, request: Request) -> Answer:
        self.heard.append(request.target)
        return Answer(403)


def test_no_option_of_a_caller_or_a_table_leads_them_elsewhere(server: Served, secrets: list[str]) -> None:
    assert post(server, "namespace/test_catalog$led/create", {}, "polaris")[0] == 200
    path = "/lance/polaris/v1/table/test_catalog$led$t/create"
    with Listener() as listener:
        for key in ("proxy_url", "aws_endpoint", "AWS_ENDPOINT_URL", "aws_region"):
            given = quote(json.dumps({key: listener.uri, "timeout": "5s"}))
            refused = ask(server, "POST", f"{path}?storage_options={given}", rows())
            assert refused.refused == (400, 13)
            assert key in refused.json["error"]
        own = quote(json.dumps({"storage.proxy_url": listener.uri, "storage.timeout": "5s"}))
        made = ask(server, "POST", f"{path}?properties={own}&storage_options=%7B%22timeout%22%3A%225s%22%7D", rows())
        assert made.status == 200, made.body
        assert post(server, "table/test_catalog$led$t/count_rows", {}, "polaris") == (200, 3)
        assert listener.heard == []
        described = ask(server, "POST", "/lance/polaris/v1/table/test_catalog$led$t/describe", b"{}")
        assert described.json["storage_options"]["proxy_url"] == listener.uri  # whose keys are his own may follow it
    assert_discreet([made, described], server, secrets)


@pytest.mark.parametrize("vend", ["none", "static", "sts"])
def test_a_warehouse_tells_only_what_it_vends(bucket: Bucket, tmp_path: Path, vend: str) -> None:
    config = tmp_path / "server.yaml"
    described = {"storage": dict(bucket.options), "vend": vend, "role_arn": ROLE}
    config.write_text(json.dumps({"warehouses": {"lake": described}}))
    places = {"lake": f"{bucket.uri}/{vend}"}
    options = ["--config", str(config), "--log-level", "debug"]
    with start_lancehouse(tmp_path, warehouses=places, options=options) as server:
        assert post(server, "namespace/db/create", {}, "lake")[0] == 200
        table = "/lance/lake/v1/table/db$t"
        made = ask(server, "POST", f"{table}/create", stream(pa.table({"id": [1, 2]})))
        looked = ask(server, "POST", f"{table}/describe?load_detailed_metadata=true", b"{}")
        assert (made.status, looked.status, looked.json["version"]) == (200, 200, 1)
        asked = ask(server, "POST", f"{table}/describe", b'{"vend_credentials": true}')
        header = {"x-iceberg-access-delegation": "vended-credentials"}
        by_header = ask(server, "POST", f"{table}/describe", b"{}", header)
        for each in (asked, by_header):
            options_told = each.json.get("storage_options") or {}
            assert bool(options_told.get("aws_secret_access_key")) is (vend != "none")
            assert (options_told.get("aws_secret_access_key") == SECRET_KEY) is (vend == "static")
        operations = [{"declare_table": {"id": ["db", "u"], "vend_credentials": True}}]
        batch = ask(
            server, "POST", "/lance/lake/v1/table/batch-commit", json.dumps({"operations": operations}).encode()
        )
        assert batch.status == 200
        heard = [made, looked, batch, *everything(server, "lake", "db$t")]
        assert_discreet(heard, server, [SECRET_KEY])
