"""Iceberg's clients with a row filter and masks: copies of their own, credentials for these alone, or nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog

from lancehouse.catalog.bootstrap import open_database
from lancehouse.catalog.callers import Grant, Role
from lancehouse.catalog.principals import Principals
from lancehouse.gateway.restricted import parse_restriction
from tests.live.gateways import Heard, ask, stream
from tests.security.test_vending import READ_SECRET, VENDED, WAREHOUSES
from tests.servers.lancehouse import start_lancehouse
from tests.servers.moto import SECRET_KEY, Bucket, Moto

HIDDEN, MASKED = "hidden-row", "behind-a-mask"
ROWS = pa.table(
    {
        "id": pa.array(range(6), pa.int64()),
        "text": ["seen" if number % 2 else HIDDEN for number in range(6)],
        "secret": [MASKED] * 6,
        "kind": pa.array(["seen" if number % 2 else HIDDEN for number in range(6)]).dictionary_encode(),
    }
)
Send = Callable[..., Heard]


@pytest.fixture(scope="module")
def store(moto: Moto, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, dict[str, str], Bucket, Send]]:
    """A server on a bucket: `root`, `part` and `other`, who see other parts, and `whole`, who sees all."""
    folder = tmp_path_factory.mktemp("copies")
    bucket = moto.bucket()
    db = f"sqlite:///{folder / 'catalog.db'}"
    database = open_database(db)
    Principals(database).create("root", [Grant(Role.ADMIN)])
    tokens = {"root": Principals(database).create_token("root", "test")}
    config = folder / "server.yaml"
    described = {name: {"storage": dict(bucket.options), **more} for name, more in WAREHOUSES.items()}
    described["unvended"] = {"storage": dict(bucket.options), "vend": "none"}
    config.write_text(json.dumps({"warehouses": described}))
    places = {name: f"{bucket.uri}/{name}" for name in described}
    with start_lancehouse(folder, db=db, warehouses=places, options=["--config", str(config)]) as running:

        def send(who: str, method: str, path: str, body: bytes | None = None, **headers: str) -> Heard:
            return ask(running, method, path, body, {**headers, "authorization": f"Bearer {tokens[who]}"})

        principals = Principals(database)
        parts = {"part": parse_restriction("text = 'seen'", {"secret": "hash"}), "whole": None}
        parts["other"] = parse_restriction("id = 0", {"secret": "null", "text": "text:-", "kind": "null"})
        for name in described:
            assert send("root", "POST", f"/lance/{name}/v1/namespace/db/create", b"{}").status == 200
            for rows in (ROWS.slice(0, 3), ROWS.slice(3)):
                kind = "create" if rows["id"][0].as_py() == 0 else "insert"
                assert send("root", "POST", f"/lance/{name}/v1/table/db$t/{kind}", stream(rows)).status == 200
        for who, restriction in parts.items():
            principals.create(who, [Grant(Role.READER, name, ("db",), "t", restriction) for name in described])
            tokens[who] = principals.create_token(who, "test")
        yield running.iceberg, tokens, bucket, send
        database.close()


def load(store: tuple[str, dict[str, str], Bucket, Send], who: str, table: str = "t") -> Any:
    uri, tokens, *_ = store
    header = {f"header.{key}": value for key, value in VENDED.items()}
    catalog = load_catalog("c", type="rest", uri=uri, token=tokens[who], warehouse="sts", **header)
    return catalog.load_table(("db", table))


def test_a_part_is_read_by_pyiceberg(store: Any) -> None:
    rows = load(store, "part").scan().to_arrow().sort_by("id").to_pydict()
    assert (rows["id"], rows["text"], rows["kind"]) == ([1, 3, 5], ["seen"] * 3, ["seen"] * 3)
    assert len(set(rows["secret"])) == 1
    assert MASKED not in rows["secret"]
    filtered = load(store, "part").scan(row_filter="secret == 'behind-a-mask'", selected_fields=("id",))
    assert filtered.to_arrow().num_rows == 0
    other = load(store, "other").scan().to_arrow().to_pylist()
    assert other == [{"id": 0, "text": "-", "secret": None, "kind": None}]
    assert load(store, "whole").scan().to_arrow().num_rows == 6


def test_copies_and_credentials_are_for_one_part(store: Any) -> None:
    """Each part has a folder; what is planned lies there, and what is vended is for it alone."""
    _, _, bucket, send = store
    table = "/iceberg/v1/sts/namespaces/db/tables/t"
    folders = {}
    for who in ("part", "other", "whole"):
        loaded = send(who, "GET", table, **VENDED).json
        files = [task["data-file"] for task in send(who, "POST", f"{table}/plan", b"{}").json["file-scan-tasks"]]
        folders[who] = {file["file-path"].rpartition("/")[0] for file in files}
        if who != "whole":
            (folder,) = folders[who]
            assert [each["prefix"] for each in loaded["storage-credentials"]] == [folder]
            assert loaded["metadata"]["location"] == folder
            renewed = send(who, "GET", f"{table}/credentials").json["storage-credentials"]
            assert [each["prefix"] for each in renewed] == [folder]
            assert sum(file["record-count"] for file in files) == (3 if who == "part" else 1)
            assert not any(secret in json.dumps(loaded) for secret in (SECRET_KEY, f"{bucket.uri}/sts/db"))
            assert '"total-' not in json.dumps(loaded)
    assert len(set.union(*folders.values())) == 3
    key = next(iter(folders["part"])).removeprefix(f"{bucket.uri}/")
    assert len(bucket.keys(key)) >= 2


def test_a_filter_prunes_no_file_of_a_part(store: Any) -> None:
    """Which files a plan names must not tell of values behind masks or of hidden rows."""
    plan = "/iceberg/v1/sts/namespaces/db/tables/t/plan"
    wanted = {"filter": {"type": "eq", "term": "secret", "value": MASKED}}
    names = [
        sorted(task["data-file"]["file-path"] for task in store[3]("part", "POST", plan, body).json["file-scan-tasks"])
        for body in (b"{}", json.dumps(wanted).encode())
    ]
    assert names[0] == names[1]


@pytest.mark.parametrize("warehouse", ["bare", "paired", "unvended"])
def test_where_copies_cannot_be_kept_apart_nothing_is_planned(store: Any, warehouse: str) -> None:
    send = store[3]
    table = f"/iceberg/v1/{warehouse}/namespaces/db/tables/t"
    plan = send("part", "POST", f"{table}/plan", b"{}")
    assert (plan.status, "query it through the gateway" in plan.json["error"]["message"]) == (403, True)
    assert send("part", "POST", f"{table}/tasks", b'{"plan-task": "x"}').status == 403
    answers = [send("part", "GET", table, **VENDED), send("part", "GET", f"{table}/credentials")]
    assert [each.status for each in answers] == [200, 200]
    for answer in answers:
        assert not any(secret in answer.body.decode() for secret in (SECRET_KEY, READ_SECRET))
        assert not answer.json.get("storage-credentials")
    counted = send("part", "POST", f"/lance/{warehouse}/v1/table/db$t/count_rows", b"{}")
    assert (counted.status, counted.json) == (200, 3)


def test_copies_do_not_survive_a_column_that_takes_the_name_of_another(store: Any) -> None:
    """A grant is by names: after a rename the files of the table are the same, and the copies must not be."""
    _, tokens, _, send = store
    swapped = pa.table(
        {
            "id": pa.array(range(4), pa.int64()),
            "a": ["seen" if number % 2 else HIDDEN for number in range(4)],
            "b": [HIDDEN if number % 2 else "seen" for number in range(4)],
            "secret": [MASKED] * 4,
            "shown": ["plain"] * 4,
        }
    )
    assert send("root", "POST", "/lance/sts/v1/table/db$swapped/create", stream(swapped)).status == 200
    grant = {"role": "reader", "warehouse": "sts", "namespace": ["db"], "table": "swapped"}
    limits = {"where": "a = 'seen'", "masks": {"secret": "null", "shown": "hash"}}
    body = json.dumps({"principals": [{"name": "swapper", "grants": [{**grant, **limits}]}]}).encode()
    made = send("root", "POST", "/lancehouse/v1/principals", body, **{"content-type": "application/json"})
    assert made.status in (200, 201), made.body
    issued = send("root", "POST", "/lancehouse/v1/principals/swapper/tokens", b'{"label": "test"}')
    tokens["swapper"] = issued.json["token"]

    def read() -> Any:
        return load(store, "swapper", "swapped").scan().to_arrow().sort_by("id").to_pydict()

    first = read()
    assert (first["id"], first["secret"]) == ([1, 3], [None, None])
    for before, after in (("a", "x"), ("b", "a"), ("secret", "y"), ("shown", "secret"), ("y", "shown")):
        body = json.dumps({"alterations": [{"path": before, "rename": after}]}).encode()
        altered = send("root", "POST", "/lance/sts/v1/table/db$swapped/alter_columns", body)
        assert altered.status == 200, altered.body
    second = read()
    assert (second["id"], second["a"], second["secret"]) == ([0, 2], ["seen"] * 2, [None, None])
    assert MASKED not in str(second)
    assert "plain" not in str(second)
    assert second["shown"] != first["shown"]  # the hash of what was secret


def test_additions_are_not_scanned_alone(store: Any) -> None:
    body = json.dumps({"start-snapshot-id": 1, "end-snapshot-id": 2}).encode()
    assert store[3]("part", "POST", "/iceberg/v1/sts/namespaces/db/tables/t/plan", body).status == 403
