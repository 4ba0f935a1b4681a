"""LoadTable with credentials: from memory or 304 as without them, and never those of somebody else."""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance_namespace import CreateNamespaceRequest, DeclareTableRequest, DescribeTableRequest

from lancehouse import in_process
from lancehouse.catalog import vending
from lancehouse.catalog.callers import Grant, Role
from lancehouse.catalog.principals import Principals
from lancehouse.catalog.warehouses import Warehouse
from lancehouse.clients.iceberg import IcebergNamespace
from lancehouse.server import run
from lancehouse.server.http.application import App
from lancehouse.server.http.observability import Log
from lancehouse.server.http.responses import Response
from lancehouse.server.settings import ServerSettings
from tests.servers.moto import ROLE, SECRET_KEY, Bucket, Moto

DELEGATION = {"x-iceberg-access-delegation": "vended-credentials"}
PATH = b"/iceberg/v1/main/namespaces/db/tables/t"
READERS = {"aws_access_key_id": "READERSKEY", "aws_secret_access_key": "readerssecret"}


class House:
    """A server with authentication, a warehouse in a bucket, a managed table, and tokens of a writer and a reader."""

    def __init__(self, folder: Path, bucket: Bucket, vend: Any) -> None:
        static_read = READERS if vend == "static" else {}
        warehouse = Warehouse(
            0, "main", f"{bucket.uri}/wh", storage=bucket.options, vend=vend, role_arn=ROLE, static_read=static_read
        )
        settings = ServerSettings(db=f"sqlite:///{folder / 'catalog.db'}", warehouses=(warehouse,), auth=True)
        self.log = Log("warning")
        self.app: App = run.create_app(settings, run.prepare(settings, lambda _: None), self.log)
        principals = Principals(self.app.catalog.database, ["main"])
        self.tokens = {}
        for role in (Role.WRITER, Role.READER):
            principals.create(role.name.lower(), [Grant(role, "main")])
            self.tokens[role.name.lower()] = principals.create_token(role.name.lower(), "test")
        self.endpoint = in_process.register_server("house", self.app.answer_in_process)
        writer = self.connect("writer")
        writer.create_namespace(CreateNamespaceRequest(id=["main", "db"]))
        writer.declare_table(DeclareTableRequest(id=["main", "db", "t"], properties={"managed_by": "impl"}))
        rows = pa.table({f"a_long_name_of_a_column_{number}": [number] for number in range(600)})
        lance.write_dataset(rows, namespace_client=writer, table_id=["main", "db", "t"], mode="append")

    def connect(self, who: str) -> IcebergNamespace:
        return IcebergNamespace(endpoint=f"{self.endpoint}/iceberg", auth_token=self.tokens[who])

    def load(
        self, who: str, tag: bytes | None = None, headers: dict[str, str] | None = None
    ) -> tuple[Response | None, Response]:
        """The answer on the event loop's thread, None if it would block, after that of a thread."""
        exchange = self.app._create_exchange("GET", PATH, b"snapshots=refs", self._headers(who, tag, headers or {}))
        threaded = self.app._answer_now(exchange, blocking=True)
        return self.load_inline(who, tag, headers), threaded

    def load_inline(self, who: str, tag: bytes | None = None, headers: dict[str, str] | None = None) -> Response | None:
        """The answer on the event loop's thread, None if it would block."""
        return self.app.answer_inline("GET", PATH, b"snapshots=refs", self._headers(who, tag, headers or {}), b"")

    def _headers(self, who: str, tag: bytes | None, headers: dict[str, str]) -> dict[str, str]:
        match = {} if tag is None else {"if-none-match": tag.decode()}
        return {"authorization": f"Bearer {self.tokens[who]}", **DELEGATION, **match, **headers}


@pytest.fixture(scope="module", params=["static", "sts"])
def house(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, moto: Moto) -> Iterator[House]:
    house = House(tmp_path_factory.mktemp("house"), moto.bucket(), request.param)
    yield house
    house.app.catalog.database.close()
    house.log.close()


def etag(response: Response) -> bytes:
    return dict(response.headers)[b"etag"]


def secret(response: Response) -> str:
    answer = json.loads(response.body)
    [of_table, of_copies] = answer["storage-credentials"]
    assert of_table["config"] == of_copies["config"]
    return str(of_table["config"]["s3.secret-access-key"])


def test_it_is_answered_from_memory(house: House) -> None:
    inline, threaded = house.load("writer")
    assert inline is not None
    assert inline.body == threaded.body
    assert dict(inline.headers)[b"cache-control"] == b"private, no-cache"


def test_a_client_that_has_it_gets_304(house: House) -> None:
    tag = etag(house.load("writer")[1])
    for response in house.load("writer", tag):
        assert response is not None
        assert (response.status, response.body, etag(response)) == (304, b"", tag)
    plain = house.load("writer", tag, {"x-iceberg-access-delegation": ""})[1]
    assert plain.status == 200
    assert b"storage-credentials" not in plain.body
    assert house.load("writer", b"*")[1].status == 200


def test_a_reader_gets_nothing_of_a_writer(house: House) -> None:
    for gzipped in (dict[str, str](), {"accept-encoding": "gzip"}):
        writers, readers = house.load("writer", None, gzipped), house.load("reader", None, gzipped)
        secrets = {
            secret(replace(each, body=gzip.decompress(each.body)) if gzipped else each)
            for pair in (writers, readers)
            for each in pair
            if each is not None
        }
        assert len(secrets) == 2
        for response in (*house.load("reader", etag(writers[1])), *house.load("writer", etag(readers[1]))):
            assert response is not None
            assert response.status == 200
        answer = house.load("reader")[1].body
        assert secret(house.load("writer")[1]).encode() not in answer
        assert SECRET_KEY.encode() not in answer


def test_readers_are_told_that_they_only_read(house: House) -> None:
    table = DescribeTableRequest(id=["main", "db", "t"])
    options = {who: house.connect(who).describe_table(table).storage_options or {} for who in ("reader", "writer")}
    assert options["reader"]["lancehouse_access"] == "read"
    assert "lancehouse_access" not in options["writer"]


@pytest.mark.parametrize("house", ["sts"], indirect=True)
def test_credentials_that_expire_soon_are_replaced(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    tag = etag(house.load("writer")[1])
    assert house.load("writer", tag)[1].status == 304
    later = time.time() + 3600 - vending.EARLY_S + 1
    monkeypatch.setattr(time, "time", lambda: later)
    assert house.load_inline("writer", tag) is None, "it takes a call to STS"
    assert house.load("writer", tag)[1].status == 200


def test_the_gateway_describes_from_memory(house: House) -> None:
    path, secrets = b"/lance/main/v1/table/db$t/describe", set()
    for who in ("writer", "reader"):
        headers = {"authorization": f"Bearer {house.tokens[who]}", "content-type": "application/json"}
        for body, more in ((b'{"vend_credentials":true}', {}), (b"{}", DELEGATION)):
            sent = {**headers, **more, "content-length": str(len(body))}
            status, _, answer = house.app.answer_in_process("POST", path.decode(), sent, body)
            inline = house.app.answer_inline("POST", path, b"", dict(sent), body)
            assert (status, inline and inline.body) == (200, answer)
            options = json.loads(answer)["storage_options"]
            assert ("lancehouse_access" in options) is (who == "reader")
            secrets.add(options["aws_secret_access_key"])
        none = {**headers, **DELEGATION, "content-length": "26"}
        _, _, declined = house.app.answer_in_process("POST", path.decode(), none, b'{"vend_credentials":false}')
        assert json.loads(declined)["storage_options"] == {}
    assert len(secrets) == 2


def test_our_client_sends_the_tag(house: House) -> None:
    statuses = list[int]()

    def answer(*arguments: Any) -> Any:
        result = house.app.answer_in_process(*arguments)
        statuses.append(result[0])
        return result

    endpoint = in_process.register_server("watched", answer)
    client = IcebergNamespace(endpoint=f"{endpoint}/iceberg", auth_token=house.tokens["writer"])
    options = [client.describe_table(DescribeTableRequest(id=["main", "db", "t"])).storage_options for _ in range(3)]
    assert statuses[-3:] == [200, 304, 304]
    assert options[0] == options[1] == options[2]
    assert options[0]
    lance.write_dataset(
        lance.dataset(namespace_client=client, table_id=["main", "db", "t"]).to_table(),
        namespace_client=client,
        table_id=["main", "db", "t"],
        mode="append",
    )
    assert lance.dataset(namespace_client=client, table_id=["main", "db", "t"]).version == 2
