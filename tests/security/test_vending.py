"""Readers never get credentials that can write, whichever way they ask for them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lancehouse.catalog.bootstrap import open_database
from lancehouse.catalog.callers import Grant, Role
from lancehouse.catalog.principals import Principals
from tests.live.gateways import Heard, ask, stream
from tests.servers.lancehouse import Served, start_lancehouse
from tests.servers.moto import ACCESS_KEY, ROLE, SECRET_KEY, Moto

READ_KEY, READ_SECRET = "AKIAREADONLY", "a-secret-that-reads-only"
VENDED = {"x-iceberg-access-delegation": "vended-credentials"}
PAIR = {"aws_access_key_id": READ_KEY, "aws_secret_access_key": READ_SECRET}
WAREHOUSES: dict[str, dict[str, Any]] = {
    "bare": {"vend": "static"},
    "paired": {"vend": "static", "static_read": PAIR},
    "sts": {"vend": "sts", "role_arn": ROLE},
}


@pytest.fixture(scope="module")
def server(moto: Moto, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, Callable[..., Heard]]]:
    """A server on a bucket, and how one asks it as `reader` or `writer`."""
    folder = tmp_path_factory.mktemp("vending")
    bucket = moto.bucket()
    database = open_database(f"sqlite:///{folder / 'catalog.db'}")
    principals = Principals(database)
    tokens = {}
    for name, role in (("reader", Role.READER), ("writer", Role.WRITER)):
        principals.create(name, [Grant(role)])
        tokens[name] = principals.create_token(name, "test")
    database.close()
    config = folder / "server.yaml"
    described = {name: {"storage": dict(bucket.options), **more} for name, more in WAREHOUSES.items()}
    config.write_text(json.dumps({"warehouses": described}))
    places = {name: f"{bucket.uri}/{name}" for name in WAREHOUSES}
    with start_lancehouse(folder, warehouses=places, options=["--config", str(config)]) as running:

        def send(who: str, method: str, path: str, body: bytes | None = None, **headers: str) -> Heard:
            return ask(running, method, path, body, {**headers, "authorization": f"Bearer {tokens[who]}"})

        for name in WAREHOUSES:
            assert send("writer", "POST", f"/lance/{name}/v1/namespace/db/create", b"{}").status == 200
            rows = stream(pa.table({"id": [1, 2]}))
            assert send("writer", "POST", f"/lance/{name}/v1/table/db$t/create", rows).status == 200
        yield running, send


def every_way(send: Callable[..., Heard], who: str, warehouse: str) -> list[Heard]:
    """All answers that may carry credentials to a table."""
    table = f"/iceberg/v1/{warehouse}/namespaces/db/tables/t"
    lance = f"/lance/{warehouse}/v1/table/db$t/describe"
    found = [
        send(who, "GET", table, **VENDED),
        send(who, "GET", f"{table}?snapshots=refs", **VENDED),
        send(who, "GET", f"{table}/credentials"),
        send(who, "POST", lance, b'{"vend_credentials": true}'),
        send(who, "POST", lance, b"{}", **VENDED),
        send(who, "POST", lance, b'{"vend_credentials": true, "load_detailed_metadata": true}'),
    ]
    assert [each.status for each in found] == [200] * len(found)
    return found


@pytest.mark.parametrize("warehouse", ["bare", "paired"])
def test_readers_get_the_pair_for_readers_or_nothing(
    server: tuple[Served, Callable[..., Heard]], warehouse: str
) -> None:
    for answer in every_way(server[1], "reader", warehouse):
        text = answer.body.decode()
        assert not [secret for secret in (ACCESS_KEY, SECRET_KEY) if secret in text]
        assert [secret in text for secret in (READ_KEY, READ_SECRET)] == [warehouse == "paired"] * 2
    for answer in every_way(server[1], "writer", warehouse):
        assert SECRET_KEY in answer.body.decode()
        assert READ_SECRET not in answer.body.decode()


def test_plans_of_scans_carry_no_keys(server: tuple[Served, Callable[..., Heard]]) -> None:
    for warehouse in WAREHOUSES:
        path = f"/iceberg/v1/{warehouse}/namespaces/db/tables/t/plan"
        plan = server[1]("reader", "POST", path, b'{"select": ["id"]}', **VENDED)
        assert plan.status == 200
        assert not [secret for secret in (ACCESS_KEY, SECRET_KEY) if secret in plan.body.decode()]


def test_sessions_of_readers_are_not_the_warehouses_keys(server: tuple[Served, Callable[..., Heard]]) -> None:
    for answer in every_way(server[1], "reader", "sts"):
        assert SECRET_KEY not in answer.body.decode()


def test_rows_are_still_read_for_readers(server: tuple[Served, Callable[..., Heard]]) -> None:
    for warehouse in WAREHOUSES:
        counted = server[1]("reader", "POST", f"/lance/{warehouse}/v1/table/db$t/count_rows", b"{}")
        assert (counted.status, counted.json) == (200, 2)
    assert SECRET_KEY not in Path(server[0].log).read_text()
