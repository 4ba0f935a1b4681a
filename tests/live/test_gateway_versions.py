"""Versions that the catalog manages, made through the gateway: one by one, over several tables, and by many at once."""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import lance
import pyarrow as pa
import pytest
from lance_namespace import CreateNamespaceRequest, DeclareTableRequest, DescribeTableRequest, LanceNamespace, connect
from lance_namespace_urllib3_client.api.table_api import TableApi
from lance_namespace_urllib3_client.api_client import ApiClient
from lance_namespace_urllib3_client.configuration import Configuration
from lance_namespace_urllib3_client.models.batch_commit_tables_request import BatchCommitTablesRequest
from lance_namespace_urllib3_client.models.describe_table_version_request import DescribeTableVersionRequest

from lancehouse.locations import local_folder
from tests.clients.managed import Staging, files_in, on_the_way, rows, stage_commit
from tests.live.gateways import client, post, send, stream
from tests.servers.lancehouse import Served

HOMES = {"main": [], "reference": ["wh"]}
"""What ids begin with at each backend that manages versions."""


@dataclass(frozen=True)
class ManagedNamespace:
    """A new namespace at a backend, where the catalog manages the tables."""

    server: Served
    backend: str
    levels: list[str]

    def connect(self) -> LanceNamespace:
        """Pylance's own client."""
        return client(self.server, self.backend)

    def table(self, name: str) -> list[str]:
        """A table with ten rows and one version."""
        table = [*self.levels, name]
        made = self.connect().declare_table(DeclareTableRequest(id=table, properties={"managed_by": "impl"}))
        assert made.managed_versioning is True
        path = f"/lance/{self.backend}/v1/table/{'$'.join(table)}/insert"
        assert send(self.server, "POST", path, stream(rows()))[0] == 200
        return table

    def ask(self, path: str, body: Any = None) -> tuple[int, Any]:
        """An operation by plain HTTP."""
        return post(self.server, path, body, self.backend)

    def create(self, request: dict[str, Any]) -> tuple[int, Any]:
        """Have a version accepted."""
        return self.ask(f"table/{'$'.join(request['id'])}/version/create", request)

    def stage_commit(self, id: list[str]) -> dict[str, Any]:
        """What pylance would ask for to add a row."""
        return stage_commit(self.connect(), id)  # type: ignore[arg-type]

    def versions(self, id: list[str], query: str = "") -> list[int]:
        """As the gateway lists them."""
        status, listed = self.ask(f"table/{'$'.join(id)}/version/list{query}")
        assert status == 200, listed
        return [each["version"] for each in listed["versions"]]

    def folder(self, id: list[str]) -> Path:
        """Where a table lies."""
        found = local_folder(str(self.connect().describe_table(DescribeTableRequest(id=id)).location))
        assert found is not None
        return found

    def check(self, id: list[str], count: int, staged: set[str] | None = None) -> int:
        """Catalog and storage agree, and nothing is left on its way but what was staged and never sent; the version."""
        named, plain = lance.dataset(namespace_client=self.connect(), table_id=id), lance.dataset(str(self.folder(id)))
        assert (named.version, named.count_rows()) == (plain.version, plain.count_rows())
        assert named.count_rows() == count
        assert self.versions(id, "?descending=true&limit=1") == [plain.version]
        assert on_the_way(files_in(self.folder(id))) <= (staged or set())
        return int(named.version)


@pytest.fixture(params=HOMES)
def home(request: pytest.FixtureRequest, gateway: Served) -> ManagedNamespace:
    levels = [*HOMES[request.param], f"versions_{uuid4().hex[:8]}"]
    made = ManagedNamespace(gateway, request.param, levels)
    made.connect().create_namespace(CreateNamespaceRequest(id=levels))
    return made


def test_a_version_is_made_once(home: ManagedNamespace) -> None:
    table = home.table("t")
    first, second = home.stage_commit(table), home.stage_commit(table)
    status, made = home.create(first)
    assert (status, made["version"]["version"]) == (200, 2)
    assert home.create(first)[0] == 200  # an answer may get lost
    status, refused = home.create(second)
    assert (status, refused["code"]) == (409, 14)
    assert home.check(table, 11) == 2
    path = f"table/{'$'.join(table)}/version"
    assert home.versions(table) == [1, 2]
    assert home.versions(table, "?descending=true") == [2, 1]
    _, page = home.ask(f"{path}/list?limit=1")
    assert ([each["version"] for each in page["versions"]], bool(page["page_token"])) == ([1], True)
    assert home.versions(table, f"?limit=1&page_token={page['page_token']}") == [2]
    assert home.ask(f"{path}/describe", {"version": 1})[1]["version"]["version"] == 1
    assert home.ask(f"{path}/describe")[1]["version"]["version"] == 2
    status, missing = home.ask(f"{path}/describe", {"version": 7})
    assert (status, missing["code"]) == (404, 11)
    assert home.ask(f"{path}/delete", {"ranges": [{"start_version": 1, "end_version": 2}]})[0] == 200
    assert home.versions(table) == [2]


def test_what_is_no_version_is_refused(home: ManagedNamespace) -> None:
    table = home.table("t")
    request = home.stage_commit(table)
    for wrong, status, code in (
        ({**request, "manifest_path": f"{request['manifest_path']}x"}, 400, 13),
        ({**request, "version": 3}, 400, 13),
        ({**request, "id": [*home.levels, "missing"]}, 404, 4),
    ):
        seen, error = home.create(wrong)
        assert (seen, error["code"]) == (status, code), error
    plain = [*home.levels, "plain"]
    home.connect().declare_table(DeclareTableRequest(id=plain))
    status, error = home.create({**request, "id": plain})
    assert (status, error["code"]) == (400, 13)
    assert "lancehouse table manage" in error["error"]
    assert home.create(request)[0] == 200
    assert home.check(table, 11) == 2


def as_batch_commit(requests: list[dict[str, Any]]) -> tuple[str, dict[str, Any]]:
    return "table/batch-commit", {"operations": [{"create_table_version": each} for each in requests]}


def as_batch_create(requests: list[dict[str, Any]]) -> tuple[str, dict[str, Any]]:
    return "table/version/batch-create", {"entries": requests}


Batch = Callable[[list[dict[str, Any]]], tuple[str, dict[str, Any]]]


@pytest.mark.parametrize("batch", [as_batch_commit, as_batch_create])
def test_versions_of_several_tables_are_made_all_or_none(home: ManagedNamespace, batch: Batch) -> None:
    tables = [home.table(name) for name in ("a", "b", "c")]
    late = [home.stage_commit(table) for table in tables]
    assert home.create(home.stage_commit(tables[2]))[0] == 200  # somebody is faster, with one of them
    status, error = home.ask(*batch(late))
    assert (status, error["code"]) == (409, 14)
    assert [home.check(table, count) for table, count in zip(tables, (10, 10, 11), strict=True)] == [1, 1, 2]
    again = [home.stage_commit(table) for table in tables]
    status, made = home.ask(*batch(again))
    assert status == 200, made
    found = made.get("versions") or [each["create_table_version"]["version"] for each in made["results"]]
    assert [each["version"] for each in found] == [2, 2, 3]
    assert [home.check(table, count) for table, count in zip(tables, (11, 11, 12), strict=True)] == [2, 2, 3]


def test_other_operations_of_a_batch_are_sent_on_their_own(home: ManagedNamespace) -> None:
    kept, table = home.table("kept"), [*home.levels, "t"]
    declare = {"declare_table": {"id": table, "properties": {"managed_by": "impl"}}}
    status, error = home.ask("table/batch-commit", {"operations": [declare, {"deregister_table": {"id": kept}}]})
    assert (status, error["code"]) == (406, 0)
    status, error = home.ask("table/batch-commit", {"operations": [{**declare, "deregister_table": {"id": kept}}]})
    assert (status, error["code"]) == (400, 13)
    status, error = home.ask("table/batch-commit", {"operations": []})
    assert (status, error["code"]) == (400, 13)
    status, made = home.ask("table/batch-commit", {"operations": [declare]})
    assert (status, made["results"][0]["declare_table"]["managed_versioning"]) == (200, True)
    status, made = home.ask("table/batch-commit", {"operations": [{"deregister_table": {"id": table}}]})
    assert (status, made["results"][0]["deregister_table"]["id"]) == (200, table)
    assert home.ask(f"table/{'$'.join(kept)}/count_rows") == (200, 10)


def test_the_generated_client_commits_several_tables(home: ManagedNamespace) -> None:
    """The one that is made from the specification, as in Java and in Rust."""
    tables = [home.table(name) for name in ("a", "b")]
    there = Configuration(host=f"{home.server.uri}/lance/{home.backend}")
    operations = [{"create_table_version": home.stage_commit(table)} for table in tables]
    with ApiClient(there) as connection:
        api = TableApi(connection)
        request = BatchCommitTablesRequest.model_validate({"operations": operations})
        made = api.batch_commit_tables(request)
        assert [each.create_table_version.version.version for each in made.results] == [2, 2]  # type: ignore[union-attr]
        found = api.describe_table_version("$".join(tables[0]), DescribeTableVersionRequest())
        assert found.version.version == 2
    assert [home.check(table, 11) for table in tables] == [2, 2]


def test_writers_race_in_every_way_there_is(home: ManagedNamespace, soak: bool) -> None:
    """Pylance by name, through the gateway and past it, LanceDB's kind of insert, and two tables at once.

    Iceberg's own server commits table after table, and may stay at a half when others write: then who asked is told
    which half, and it is the truth.
    """
    steps = 60 if soak else 5
    one, two = home.table("one"), home.table("two")
    expected = {"one": set(range(10)), "two": set(range(10))}
    unsent: set[str] = set()

    def append(table: list[str], namespace: LanceNamespace, number: int) -> None:
        lance.write_dataset(rows(1, number), namespace_client=namespace, table_id=table, mode="append")
        expected["one"].add(number)

    def by_name(first: int) -> None:
        namespace = home.connect()
        for number in range(first, first + steps):
            append(one, namespace, number)

    def past_it(first: int) -> None:
        if home.backend != "main":
            return by_name(first)
        namespace = connect("lancehouse.IcebergNamespace", {"endpoint": home.server.iceberg})
        for number in range(first, first + steps):
            append(["main", *one], namespace, number)
        return None

    def insert(first: int) -> None:
        path = f"/lance/{home.backend}/v1/table/{'$'.join(one)}/insert"
        for number in range(first, first + steps):
            assert send(home.server, "POST", path, stream(rows(1, number)))[0] == 200
            expected["one"].add(number)

    def both(first: int) -> None:
        for number in range(first, first + steps):
            while True:
                requests = [staged_row(home, table, number, unsent) for table in (one, two)]
                status, answer = home.ask(*as_batch_commit(requests))
                if status != 409:
                    break
                assert answer["code"] == 14, answer
            if status == 200:
                made = {"one", "two"}
            else:
                assert (home.backend, answer["code"]) == ("reference", 18), answer
                half = HALF.search(answer["error"])
                assert half is not None, answer
                made = {half[1]}
                unsent.update(file_of(request) for request in requests if request["id"][-1] == half[2])
            for name in made:
                expected[name].add(number)

    work = [by_name, by_name, past_it, insert, both, both]
    with ThreadPoolExecutor(len(work)) as pool:
        done = [pool.submit(each, 1000 * number) for number, each in enumerate(work, 1)]
        for each in done:
            each.result()
    for table in (one, two):
        wanted = expected[table[-1]]
        assert numbers(home, table) == sorted(wanted)
        version = home.check(table, len(wanted), unsent)
        assert home.versions(table) == list(range(1, version + 1)) == list(range(1, len(wanted) - 8))
    assert len(expected["one"] | expected["two"]) == 10 + len(work) * steps


HALF = re.compile(r"made half of a transaction.*: table \S+\.(\w+) without table \S+\.(\w+);")


def staged_row(home: ManagedNamespace, table: list[str], number: int, unsent: set[str]) -> dict[str, Any]:
    """What pylance asks for to add a row; what it had asked for before it was overtaken stays where it is."""
    kept = Staging(home.connect())  # type: ignore[arg-type]
    dataset = lance.dataset(namespace_client=kept, table_id=table)
    with suppress(OSError):
        lance.write_dataset(rows(1, number), dataset, mode="append")
    *early, last = kept.requests
    unsent |= {file_of(each) for each in early}
    return last


def file_of(request: dict[str, Any]) -> str:
    """Where a manifest was staged, below its table's location."""
    return str(request["manifest_path"]).partition(f"/{request['id'][-1]}/")[2]


def numbers(home: ManagedNamespace, table: list[str]) -> list[int]:
    found = lance.dataset(namespace_client=home.connect(), table_id=table).to_table(columns=["id"])
    return sorted(found["id"].to_pylist())


def test_a_folder_that_tracks_its_versions(gateway: Served) -> None:
    """Lance's own namespace manages versions too, if it is told to; its methods take other things than ours."""
    namespace, table = client(gateway, "tracked"), [f"t_{uuid4().hex[:8]}"]
    lance.write_dataset(pa.table({"id": [0]}), namespace_client=namespace, table_id=table, mode="create")

    def add(number: int) -> None:
        mine = client(gateway, "tracked")
        lance.write_dataset(pa.table({"id": [number]}), namespace_client=mine, table_id=table, mode="append")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(add, range(1, 9)))
    dataset = lance.dataset(namespace_client=namespace, table_id=table)
    assert sorted(dataset.to_table()["id"].to_pylist()) == list(range(9))
    path = f"table/{table[0]}"
    assert post(gateway, f"{path}/describe", {}, "tracked")[1]["managed_versioning"] is True
    assert post(gateway, f"{path}/version/describe", {}, "tracked")[1]["version"]["version"] == dataset.version
    assert post(gateway, f"{path}/version/describe", {"version": 1}, "tracked")[1]["version"]["version"] == 1
    status, deleted = post(
        gateway, f"{path}/version/delete", {"ranges": [{"start_version": 1, "end_version": 3}]}, "tracked"
    )
    assert (status, deleted["deleted_count"]) == (200, 2)
