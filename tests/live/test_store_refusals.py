"""What a real S3 refuses, in the words of pylance: users learn what to set, or that they may only read."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from lance_namespace import CreateNamespaceRequest, DeclareTableRequest, InsertIntoTableRequest
from lance_namespace.errors import (
    InvalidInputError,
    LanceNamespaceError,
    PermissionDeniedError,
    ServiceUnavailableError,
    UnauthenticatedError,
)

import lancehouse
from lancehouse import named_catalogs
from lancehouse.catalog.callers import Grant, Role
from lancehouse.catalog.principals import Principals
from lancehouse.jobs import LocalEngine, TableJobs
from lancehouse.lake.dataset import TableRef
from lancehouse.lake.errors import READ_ONLY_HINT, clean_message
from lancehouse.store import migrate
from lancehouse.store.database import Database
from tests.servers.faults import FaultProxy
from tests.servers.lancehouse import Served, start_lancehouse
from tests.servers.loopback import Answer
from tests.servers.moto import SECRET_KEY, Bucket
from tests.servers.unity import Unity
from tests.servers.versitygw import Versitygw, find_program, start_versitygw

pytestmark = [
    pytest.mark.engines,
    pytest.mark.skipif(find_program() is None, reason="versitygw was not built, which takes Go"),
]
ROWS = pa.table({"id": pa.array(range(3), pa.int64())})


def to_ipc(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return bytes(sink.getvalue())


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Versitygw]:
    with start_versitygw(tmp_path_factory.mktemp("s3")) as running:
        yield running


@pytest.fixture(scope="module")
def bucket(s3: Versitygw) -> Bucket:
    return s3.bucket()


@pytest.fixture(autouse=True)
def _no_options_of_our_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


WRONG: dict[str, tuple[dict[str, str | None], type[LanceNamespaceError], str]] = {
    "unknown key": ({"aws_access_key_id": "AKIDUNKNOWN"}, UnauthenticatedError, "`storage.access_key_id`"),
    "wrong secret": ({"aws_secret_access_key": "wrong"}, UnauthenticatedError, "`storage.secret_access_key`"),
    "unknown session": ({"aws_session_token": "unknown"}, UnauthenticatedError, "`storage.session_token`"),
    "no region": ({"aws_region": None}, InvalidInputError, "`storage.region`"),
    "wrong region": ({"aws_region": "eu-west-1"}, InvalidInputError, "`storage.region`"),
    "plain HTTP": ({"allow_http": None}, InvalidInputError, "`storage.allow_http` to true"),
    "no keys": (
        {"aws_access_key_id": None, "aws_secret_access_key": None},
        UnauthenticatedError,
        "`storage.access_key_id` and `storage.secret_access_key`",
    ),
    "TLS": ({"aws_endpoint": "https://"}, ServiceUnavailableError, "`storage.endpoint`"),
    "nobody there": ({"aws_endpoint": "http://127.0.0.1:9"}, ServiceUnavailableError, "`storage.endpoint`"),
}


def test_wrong_options(bucket: Bucket) -> None:
    """All at once: pylance takes two seconds to give up."""
    lance.write_dataset(ROWS, f"{bucket.uri}/t", storage_options=dict(bucket.options))

    def open_with(changes: dict[str, str | None]) -> LanceNamespaceError:
        options = {**bucket.options, "client_max_retries": "0", **changes}
        if options["aws_endpoint"] == "https://":
            options["aws_endpoint"] = bucket.endpoint.replace("http://", "https://")
        known = {key: value for key, value in options.items() if value is not None}
        with pytest.raises(LanceNamespaceError) as refused:
            TableRef(f"{bucket.uri}/t", known).open()
        return refused.value

    with ThreadPoolExecutor(len(WRONG)) as pool:
        errors = dict(zip(WRONG, pool.map(lambda case: open_with(case[0]), WRONG.values()), strict=True))
    for name, (_, kind, words) in WRONG.items():
        text = str(errors[name])
        assert type(errors[name]) is kind, (name, text)
        assert words in text, name
        assert clean_message(text) == text, "a hint is not given twice"
        assert SECRET_KEY not in text, name


# Credentials that can only read


Write = Callable[[], object]


def check_refused(write: Write) -> None:
    with pytest.raises(PermissionDeniedError) as refused:
        write()
    assert str(refused.value).count(READ_ONLY_HINT) == 1


@pytest.fixture(scope="module")
def server(s3: Versitygw, bucket: Bucket, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, str]]:
    """A server with a managed table and one that storage manages, and the token of a reader."""
    folder = tmp_path_factory.mktemp("server")
    config = folder / "server.yaml"
    warehouse = {"storage": dict(bucket.options), "vend": "static", "static_read": s3.add_reader(bucket)}
    config.write_text(json.dumps({"warehouses": {"main": warehouse}}))
    database = Database(f"sqlite:///{folder / 'catalog.db'}")
    migrate.create_if_empty(database)
    principals, tokens = Principals(database, ["main"]), {}
    for role in (Role.WRITER, Role.READER):
        principals.create(role.name.lower(), [Grant(role, "main")])
        tokens[role] = principals.create_token(role.name.lower(), "test")
    database.close()
    options = ["--config", str(config)]
    with start_lancehouse(folder, warehouses={"main": f"{bucket.uri}/main"}, options=options) as running:
        owner = lancehouse.IcebergNamespace(endpoint=running.iceberg, auth_token=tokens[Role.WRITER])
        owner.create_namespace(CreateNamespaceRequest(id=["main", "db"]))
        for name, manager in (("managed", "impl"), ("stored", "storage")):
            owner.declare_table(DeclareTableRequest(id=["main", "db", name], properties={"managed_by": manager}))
            lance.write_dataset(ROWS, namespace_client=owner, table_id=["main", "db", name], mode="append")
        yield running, tokens[Role.READER]


@pytest.mark.parametrize("name", ["managed", "stored"])
def test_a_reader_who_writes(
    server: tuple[Served, str], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running, token = server
    client, table = lancehouse.IcebergNamespace(endpoint=running.iceberg, auth_token=token), ["main", "db", name]
    assert lance.dataset(namespace_client=client, table_id=table).count_rows() == 3
    file = tmp_path / "lancehouse.yaml"
    house = {"impl": "iceberg", "endpoint": running.iceberg, "auth_token": token}
    file.write_text(json.dumps({"catalogs": {"house": house}}))
    monkeypatch.setenv(named_catalogs.VARIABLE, str(file))
    check_refused(lambda: lancehouse.write(ROWS, f"house.main.db.{name}", mode="append"))
    check_refused(lambda: client.insert_into_table(InsertIntoTableRequest(id=table, mode="append"), to_ipc(ROWS)))
    jobs = TableJobs(client, engine=LocalEngine(threads=1))
    check_refused(lambda: jobs.create_index(table, "id", "BTREE"))


def test_unity_gave_credentials_to_read(s3: Versitygw, bucket: Bucket, unity: Unity) -> None:
    lance.write_dataset(ROWS, f"{bucket.uri}/unity/t", storage_options=dict(bucket.options))
    unity.seed_schema("lance_test", "db")
    location = f"{bucket.uri}/unity/t"
    unity.seed_table("lance_test", "db", "t", format="TEXT", location=location, properties={"table_type": "lance"})
    keys = s3.add_reader(bucket)
    given = {
        "access_key_id": keys["aws_access_key_id"],
        "secret_access_key": keys["aws_secret_access_key"],
        "session_token": "",
    }

    def answer(request: object, forward: object) -> Answer:
        operation = json.loads(request.body)["operation"]  # type: ignore[attr-defined]
        return Answer.json({"aws_temp_credentials": given}) if operation == "READ" else Answer.json({}, 403)

    storage = {"storage.region": bucket.options["aws_region"], "storage.endpoint": bucket.endpoint}
    with FaultProxy(unity.uri) as proxy:
        proxy.add(answer, method="POST", path="temporary-table-credentials", times=1000)
        client = lancehouse.UnityNamespace(
            endpoint=proxy.uri, catalog="lance_test", **storage, **{"storage.allow_http": "true"}
        )
        table = TableRef.in_namespace(client, ["lance_test", "db", "t"])
        assert table.open().count_rows() == 3
        insert = InsertIntoTableRequest(id=list(table.id), mode="append")
        check_refused(lambda: client.insert_into_table(insert, to_ipc(ROWS)))
