from __future__ import annotations

import gzip
import os
from pathlib import Path
from typing import Any
from uuid import uuid4

import orjson
import pytest
import yaml
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.rest import RestCatalog

from lancehouse.lake.dataset import snapshot_id
from lancehouse.server.api.iceberg import ENDPOINTS
from tests.server.serving import ServerAnswer, ServerClient, serving

SCHEMA = {"type": "struct", "fields": [{"id": 1, "name": "a", "required": False, "type": "long"}]}
LANCE = {"table_type": "lance"}


def create(client: ServerClient, namespace: str, name: str, **more: Any) -> ServerAnswer:
    return client.iceberg("POST", f"main/namespaces/{namespace}/tables", {"name": name, "schema": SCHEMA, **more})


def view(name: str) -> dict[str, Any]:
    version = {
        "version-id": 1,
        "timestamp-ms": 1,
        "schema-id": 0,
        "summary": {},
        "default-namespace": ["n"],
        "representations": [{"type": "sql", "sql": "select 1", "dialect": "spark"}],
    }
    return {"name": name, "schema": SCHEMA, "view-version": version, "properties": {}}


def set_property(key: str, value: str) -> dict[str, Any]:
    return {"requirements": [], "updates": [{"action": "set-properties", "updates": {key: value}}]}


@pytest.mark.parametrize(
    ("query", "warehouse"), [("", "main"), ("?warehouse=main", "main"), ("?warehouse=other", "other")]
)
def test_config(client: ServerClient, query: str, warehouse: str) -> None:
    found = client.iceberg("GET", "config" + query).json
    root = found["defaults"]["root"]
    assert root.endswith(f"/{warehouse}")
    assert found["overrides"] == {"prefix": warehouse, "namespace-separator": "%1F"}
    assert found["idempotency-key-lifetime"] == "PT24H"
    for form in (root, root + "/", "file://" + root, "file:" + root):
        assert client.iceberg("GET", f"config?warehouse={form}").json["overrides"]["prefix"] == warehouse


@pytest.mark.parametrize(
    ("settings", "mode"), [({}, "server"), ({"scan-planning-mode": "client"}, "client")], ids=["default", "chosen"]
)
def test_who_plans_scans(client: ServerClient, namespace: str, settings: dict[str, str], mode: str) -> None:
    """The server, unless the client says otherwise; of a Lance table the server, whatever the client says."""
    config = client.iceberg("GET", "config").json
    merged = {**config["defaults"], **settings, **config["overrides"]}
    assert merged["scan-planning-mode"] == mode
    catalog = load_catalog(
        "lancehouse", type="rest", uri=f"http://127.0.0.1:{client.port}/iceberg", warehouse="main", **settings
    )
    assert isinstance(catalog, RestCatalog)
    assert catalog.supports_server_side_planning() is (mode == "server")
    modes = []
    for name, properties in {"lance": LANCE, "iceberg": {}}.items():
        create(client, namespace, name, properties=properties)
        modes.append(client.iceberg("GET", f"main/namespaces/{namespace}/tables/{name}").json["config"])
    assert modes == [{"scan-planning-mode": "server"}, {}]


def test_config_of_a_warehouse_that_is_not_there(client: ServerClient) -> None:
    assert client.iceberg("GET", "config?warehouse=nope").error == (404, "NoSuchWarehouseException")


def test_a_warehouse_name_is_encoded_in_the_prefix(tmp_path: Path) -> None:
    with serving(tmp_path, names=["my house"]) as client:
        prefix = client.iceberg("GET", "config").json["overrides"]["prefix"]
        assert prefix == "my%20house"
        assert client.iceberg("GET", f"{prefix}/namespaces").json["namespaces"] == []


def test_the_endpoints_are_the_specification_s(specs: dict[str, Any]) -> None:
    known = {
        f"{method.upper()} {path}"
        for path, operations in specs["paths"].items()
        for method in operations
        if method != "parameters" and "{prefix}" in path
    }
    ours = {each for each in ENDPOINTS if "/lancehouse/" in each}
    assert set(ENDPOINTS) - ours == {each for each in known if not each.endswith("/sign")}
    assert {each.rpartition("/")[2] for each in ours} == {"dropped", "undrop", "purge", "events"}


@pytest.fixture(scope="module")
def specs() -> dict[str, Any]:
    folder = os.environ.get("LANCEHOUSE_SPECS", "")
    if not folder:
        pytest.skip("LANCEHOUSE_SPECS names no folder with OpenAPI documents")
    loaded: dict[str, Any] = yaml.safe_load((Path(folder) / "iceberg-rest-1.11.0.yaml").read_text())
    return loaded


def test_namespaces(client: ServerClient) -> None:
    made = client.iceberg("POST", "other/namespaces", {"namespace": ["x"], "properties": {"k": "v"}})
    assert made.json == {"namespace": ["x"], "properties": {"k": "v"}}
    assert client.iceberg("POST", "other/namespaces", {"namespace": ["x"]}).error == (409, "AlreadyExistsException")
    assert client.iceberg("POST", "other/namespaces", {"namespace": ["x", "y z"]}).status == 200
    assert client.iceberg("GET", "other/namespaces").json == {"namespaces": [["x"]], "next-page-token": None}
    assert client.iceberg("GET", "main/namespaces/x").error == (404, "NoSuchNamespaceException")
    for parent in ("x", "x%1Fy%20z", "x%251Fy%2520z"):
        expected = [["x", "y z"]] if parent == "x" else []
        assert client.iceberg("GET", f"other/namespaces?parent={parent}").json["namespaces"] == expected
    assert client.iceberg("HEAD", "other/namespaces/x%1Fy%20z").status == 204
    assert client.iceberg("HEAD", "other/namespaces/x%1Fz").status == 404
    change = {"updates": {"a": "1"}, "removals": ["k", "gone"]}
    assert client.iceberg("POST", "other/namespaces/x/properties", change).json == {
        "updated": ["a"],
        "removed": ["k"],
        "missing": ["gone"],
    }
    assert client.iceberg("GET", "other/namespaces/x").json["properties"] == {"a": "1"}
    both = {"updates": {"a": "1"}, "removals": ["a"]}
    assert client.iceberg("POST", "other/namespaces/x/properties", both).error == (422, "UnprocessableEntityException")
    assert client.iceberg("DELETE", "other/namespaces/x").error == (409, "NamespaceNotEmptyException")
    assert client.iceberg("DELETE", "other/namespaces/x%1Fy%20z").status == 204
    assert client.iceberg("DELETE", "other/namespaces/x").status == 204


@pytest.mark.parametrize("kind", ["tables", "views"])
def test_lists_in_pages(client: ServerClient, namespace: str, kind: str) -> None:
    names = ["a", "b", "c/d", "é"]
    for name in names:
        body = {"name": name, "schema": SCHEMA} if kind == "tables" else view(name)
        assert client.iceberg("POST", f"main/namespaces/{namespace}/{kind}", body).status == 200
    path = f"main/namespaces/{namespace}/{kind}"
    whole = client.iceberg("GET", path).json
    assert whole["next-page-token"] is None
    assert whole["identifiers"] == [{"namespace": [namespace], "name": name} for name in names]
    found, token = [], ""
    while token is not None:
        page = client.iceberg("GET", f"{path}?pageToken={token}&pageSize=3").json
        found += [each["name"] for each in page["identifiers"]]
        token = page["next-page-token"]
    assert found == names
    assert client.iceberg("GET", f"{path}?pageToken=%21%21&pageSize=3").error[0] == 400
    assert client.iceberg("GET", f"{path}?pageToken=&pageSize=0").error[0] == 400


@pytest.mark.parametrize("properties", [{}, LANCE], ids=["iceberg", "lance"])
def test_a_table_s_life(client: ServerClient, namespace: str, properties: dict[str, str]) -> None:
    made = create(client, namespace, "t/x", properties=properties)
    assert made.status == 200
    assert ("metadata-location" in made.json) == (not properties)
    path = f"main/namespaces/{namespace}/tables/t%2Fx"
    loaded = client.iceberg("GET", path)
    assert loaded.json["metadata"]["table-uuid"] == made.json["metadata"]["table-uuid"]
    assert ("metadata-location" in loaded.json) == (not properties)
    assert client.iceberg("HEAD", path).status == 204
    assert create(client, namespace, "t/x").error == (409, "AlreadyExistsException")
    done = client.iceberg("POST", path, set_property("k", "v"))
    assert done.status == 200
    assert done.json["metadata-location"]
    assert done.json["metadata"]["properties"]["k"] == "v"
    assert done.headers["etag"] != made.headers["etag"]
    report = {"report-type": "commit-report", "table-name": "t", "snapshot-id": 1}
    assert client.iceberg("POST", path + "/metrics", report).status == 204
    assert client.iceberg("GET", path + "/credentials").json == {"storage-credentials": []}
    names = {
        "source": {"namespace": [namespace], "name": "t/x"},
        "destination": {"namespace": [namespace], "name": "u"},
    }
    assert client.iceberg("POST", "main/tables/rename", names).status == 204
    assert client.iceberg("GET", path).error == (404, "NoSuchTableException")
    assert client.iceberg("DELETE", f"main/namespaces/{namespace}/tables/u?purgeRequested=perhaps").error[0] == 400
    assert client.iceberg("DELETE", f"main/namespaces/{namespace}/tables/u?purgeRequested=TRUE").status == 204
    assert client.iceberg("HEAD", f"main/namespaces/{namespace}/tables/u").status == 404


@pytest.mark.parametrize("properties", [{}, LANCE], ids=["iceberg", "lance"])
def test_etags(client: ServerClient, namespace: str, properties: dict[str, str]) -> None:
    create(client, namespace, "t", properties=properties)
    path = f"main/namespaces/{namespace}/tables/t"
    tag = client.iceberg("GET", path).headers["etag"]
    assert tag.startswith('"')
    assert client.iceberg("GET", path + "?snapshots=refs").headers["etag"] != tag
    for known in (tag, f"W/{tag}", f'"other", {tag}', "*"):
        answer = client.iceberg("GET", path, headers={"If-None-Match": known})
        assert (answer.status, answer.body, answer.headers["etag"]) == (304, b"", tag)
    assert client.iceberg("GET", path + "?snapshots=refs", headers={"If-None-Match": tag}).status == 200
    assert client.iceberg("GET", path, headers={"If-None-Match": '"other"'}).status == 200
    committed = client.iceberg("POST", path, set_property("a", "b")).headers["etag"]
    assert client.iceberg("GET", path, headers={"If-None-Match": tag}).status == 200
    assert client.iceberg("GET", path, headers={"If-None-Match": committed}).status == 304


def test_a_wrong_snapshots_mode(client: ServerClient, namespace: str) -> None:
    create(client, namespace, "t")
    for query in ("snapshots=some", "snapshots="):
        assert client.iceberg("GET", f"main/namespaces/{namespace}/tables/t?{query}").error[0] == 400


def test_a_large_answer_is_compressed_for_who_takes_it(client: ServerClient, namespace: str) -> None:
    create(client, namespace, "t", properties={f"key-{number}": "x" * 100 for number in range(400)})
    path = f"main/namespaces/{namespace}/tables/t"
    plain = client.iceberg("GET", path)
    for _ in range(2):
        packed = client.iceberg("GET", path, headers={"Accept-Encoding": "br;q=1, gzip;q=0.5"})
        assert packed.headers["content-encoding"] == "gzip"
        assert len(packed.body) < len(plain.body) / 5
        assert gzip.decompress(packed.body) == plain.body
    assert "content-encoding" not in client.iceberg("GET", path, headers={"Accept-Encoding": "gzip;q=0"}).headers


def test_staged_tables_share_no_compressed_answer(client: ServerClient, namespace: str) -> None:
    """They have no metadata file by which they could be told apart, and are of one size here."""
    path = f"main/namespaces/{namespace}/tables"
    body = {"schema": SCHEMA, "stage-create": True, "properties": {f"key-{number}": "x" * 100 for number in range(400)}}
    answers = [
        client.iceberg("POST", path, {"name": name, **body}, headers={"Accept-Encoding": "gzip"})
        for name in ("t1", "t2")
    ]
    assert [answer.headers["content-encoding"] for answer in answers] == ["gzip", "gzip"]
    found = [orjson.loads(gzip.decompress(answer.body))["metadata"] for answer in answers]
    assert "/t1" in found[0]["location"]
    assert "/t2" in found[1]["location"]
    assert found[0]["table-uuid"] != found[1]["table-uuid"]
    assert answers[0].headers["etag"] != answers[1].headers["etag"]


def test_views(client: ServerClient, namespace: str) -> None:
    path = f"main/namespaces/{namespace}/views"
    made = client.iceberg("POST", path, view("v"))
    assert made.status == 200
    assert made.json["metadata-location"]
    assert client.iceberg("GET", path + "/v").json["metadata"] == made.json["metadata"]
    assert client.iceberg("HEAD", path + "/v").status == 204
    assert client.iceberg("GET", path + "/w").error == (404, "NoSuchViewException")
    done = client.iceberg("POST", path + "/v", set_property("k", "v"))
    assert done.json["metadata"]["properties"] == {"k": "v"}
    names = {"source": {"namespace": [namespace], "name": "v"}, "destination": {"namespace": [namespace], "name": "w"}}
    assert client.iceberg("POST", "main/views/rename", names).status == 204
    assert client.iceberg("DELETE", path + "/w").status == 204
    register = {"name": "again", "metadata-location": done.json["metadata-location"]}
    assert client.iceberg("POST", f"main/namespaces/{namespace}/register-view", register).status == 200


def test_a_transaction_is_all_or_nothing(client: ServerClient, namespace: str) -> None:
    create(client, namespace, "a")
    create(client, namespace, "b", properties=LANCE)

    def change(name: str, **more: Any) -> dict[str, Any]:
        return {"identifier": {"namespace": [namespace], "name": name}, **set_property("k", "v"), **more}

    def properties(name: str) -> Any:
        return client.iceberg("GET", f"main/namespaces/{namespace}/tables/{name}").json["metadata"]["properties"]

    stale = [{"type": "assert-table-uuid", "uuid": str(uuid4())}]
    failing = {"table-changes": [change("b"), change("a", requirements=stale)]}
    assert client.iceberg("POST", "main/transactions/commit", failing).error == (409, "CommitFailedException")
    assert "k" not in properties("b")
    assert (
        client.iceberg("POST", "main/transactions/commit", {"table-changes": [change("a"), change("b")]}).status == 204
    )
    assert properties("a")["k"] == properties("b")["k"] == "v"


def test_commits_on_a_branch(client: ServerClient, namespace: str) -> None:
    create(client, namespace, "t", properties={**LANCE, "managed_by": "impl"})
    path = f"main/namespaces/{namespace}/tables/t"

    def commit(before: int | None, after: int) -> dict[str, Any]:
        parent = None if before is None else snapshot_id("dev", before)
        snapshot = {
            "snapshot-id": snapshot_id("dev", after),
            **({} if parent is None else {"parent-snapshot-id": parent}),
            "sequence-number": after,
            "timestamp-ms": 1_700_000_000_000,
            "manifest-list": f"lance://t/tree/dev/_versions/{after}.manifest",
            "summary": {"operation": "append", "lance.branch": "dev", "lance.version": str(after)},
        }
        ref = {"ref-name": "dev", "type": "branch", "snapshot-id": snapshot["snapshot-id"]}
        return {
            "requirements": [{"type": "assert-ref-snapshot-id", "ref": "dev", "snapshot-id": parent}],
            "updates": [{"action": "add-snapshot", "snapshot": snapshot}, {"action": "set-snapshot-ref", **ref}],
        }

    assert client.iceberg("POST", path, commit(None, 1)).status == 200
    first = client.iceberg("GET", path).headers["etag"]
    change = {"identifier": {"namespace": [namespace], "name": "t"}, **commit(1, 2)}
    assert client.iceberg("POST", "main/transactions/commit", {"table-changes": [change]}).status == 204
    lost = client.iceberg("POST", path, commit(1, 2))
    assert lost.error == (409, "CommitFailedException")
    assert "branch dev has changed" in lost.message
    refused = client.iceberg("POST", path, {**commit(2, 3), "requirements": []})
    assert refused.error == (400, "BadRequestException")
    assert "assert-ref-snapshot-id on dev" in refused.message
    loaded = client.iceberg("GET", path, headers={"If-None-Match": first})
    heads = {"dev": {"snapshot-id": snapshot_id("dev", 2), "type": "branch"}}
    assert (loaded.status, loaded.json["metadata"]["refs"]) == (200, heads)
    for query, versions in {"": ["1", "2"], "?snapshots=refs": ["2"]}.items():
        told = client.iceberg("GET", path + query).json["metadata"]["snapshots"]
        assert [snapshot["summary"]["lance.version"] for snapshot in told] == versions
    catalog = load_catalog("lancehouse", type="rest", uri=f"http://127.0.0.1:{client.port}/iceberg", warehouse="main")
    table = catalog.load_table((namespace, "t"))
    assert table.current_snapshot() is None
    assert table.snapshot_by_name("dev") == table.snapshot_by_id(snapshot_id("dev", 2))


def test_a_commit_names_the_table_of_its_path(client: ServerClient, namespace: str) -> None:
    create(client, namespace, "t")
    body = {"identifier": {"namespace": [namespace], "name": "other"}, **set_property("k", "v")}
    answer = client.iceberg("POST", f"main/namespaces/{namespace}/tables/t", body)
    assert answer.error == (400, "BadRequestException")
    assert "other" in answer.message


@pytest.fixture
def key() -> dict[str, str]:
    return {"Idempotency-Key": str(uuid4())}


def test_a_create_sent_twice_is_made_once(client: ServerClient, namespace: str, key: dict[str, str]) -> None:
    path, body = f"main/namespaces/{namespace}/tables", {"name": "t", "schema": SCHEMA, "properties": LANCE}
    first = client.iceberg("POST", path, body, key)
    again = client.iceberg("POST", path, body, key)
    assert (first.status, again.status) == (200, 200)
    assert again.json["metadata"]["table-uuid"] == first.json["metadata"]["table-uuid"]
    assert client.iceberg("POST", path, body).error[0] == 409
    other = client.iceberg("POST", path, {**body, "name": "u"}, key)
    assert other.error == (400, "BadRequestException")


@pytest.mark.parametrize("properties", [{}, LANCE], ids=["iceberg", "lance"])
def test_a_commit_sent_twice_is_made_once(
    client: ServerClient, namespace: str, key: dict[str, str], properties: dict[str, str]
) -> None:
    create(client, namespace, "t", properties=properties)
    path = f"main/namespaces/{namespace}/tables/t"
    first = client.iceberg("POST", path, set_property("k", "1"), key)
    assert client.iceberg("POST", path, set_property("k", "2")).status == 200
    again = client.iceberg("POST", path, set_property("k", "1"), key)
    assert first.json["metadata"]["properties"]["k"] == "1"
    assert again.status == 200
    assert again.json["metadata-location"]
    assert again.json["metadata"]["properties"]["k"] == "2"  # as it is now, and not changed back


def test_what_ends_without_a_body_does_so_again(client: ServerClient, namespace: str, key: dict[str, str]) -> None:
    create(client, namespace, "t")
    path = f"main/namespaces/{namespace}/tables/t"
    assert [client.iceberg("DELETE", path, headers=key).status for _ in range(2)] == [204, 204]
    assert client.iceberg("DELETE", path).status == 404


def test_the_answer_to_a_property_update_is_kept(client: ServerClient, namespace: str, key: dict[str, str]) -> None:
    path = f"main/namespaces/{namespace}/properties"
    body = {"updates": {"a": "1"}, "removals": ["b"]}
    first = client.iceberg("POST", path, body, key)
    assert (
        client.iceberg("POST", path, body, key).json
        == first.json
        == {"updated": ["a"], "removed": [], "missing": ["b"]}
    )


def test_a_refusal_is_kept(client: ServerClient, namespace: str, key: dict[str, str]) -> None:
    path = f"main/namespaces/{namespace}/tables/t"
    first = client.iceberg("DELETE", path, headers=key)
    create(client, namespace, "t")
    again = client.iceberg("DELETE", path, headers=key)
    assert first.error == again.error == (404, "NoSuchTableException")
    assert client.iceberg("HEAD", path).status == 204


@pytest.mark.parametrize(
    "value", ["", "x", "017F22E2-79B0-7CC3-98C4-DC0C0C07398", "{017F22E2-79B0-7CC3-98C4-DC0C0C07398F}"]
)
def test_a_key_is_a_uuid(client: ServerClient, value: str) -> None:
    answer = client.iceberg("POST", "main/namespaces", {"namespace": ["never"]}, {"Idempotency-Key": value})
    assert answer.error == (400, "BadRequestException")
    assert client.iceberg("HEAD", "main/namespaces/never").status == 404


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("main/namespaces", {"namespace": []}),
        ("main/namespaces", {"namespace": [""]}),
        ("main/namespaces", {"namespace": ["a\x1fb"]}),
        ("main/namespaces", {"namespace": ["a"] * 100}),
        ("main/namespaces", {"namespace": {"a": 1}}),
        ("main/tables/rename", {"source": {}, "destination": {}}),
        ("main/transactions/commit", {"table-changes": [{"identifier": {"namespace": [], "name": ""}}]}),
    ],
)
def test_a_client_s_mistake_is_a_400(client: ServerClient, path: str, body: Any) -> None:
    assert client.iceberg("POST", path, body).error[0] in (400, 404)
