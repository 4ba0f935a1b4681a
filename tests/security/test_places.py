"""A writer's dataset names files of others; the server opens none of them, whoever asks and however."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import lance
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lance import DatasetBasePath
from lance_namespace import (
    CreateNamespaceRequest,
    DropTableRequest,
    RegisterTableRequest,
    connect,
)
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from lancehouse.catalog.callers import Grant, Role
from tests.live.gateways import ask
from tests.security.house import PNG, SECRET, ServerWithPrincipals, every_way, principals, stream, with_blob
from tests.servers.lancehouse import start_lancehouse
from tests.servers.reference import Reference


@pytest.mark.parametrize("scheme", ["file://{}", "file:{}"])
def test_external_blobs_outside_of_the_table_stay_closed(house: ServerWithPrincipals, scheme: str) -> None:
    name = f"outside{len(scheme)}"
    with_blob(house, name, b"own", scheme.format(house.secret))
    for who in ("alice", "root"):
        for what, (status, body) in every_way(house, who, name).items():
            assert SECRET not in body, what
            if what == "plan":
                assert (status, b"external blob" in body) == (403, True)
        for what in ("image", "value"):
            status, body = house.console(who, what, name, column="b", row=1)
            assert (status, SECRET in body) == (403, False)
    assert house.console("alice", "value", name, column="b", row=0)[0] == 200


def test_external_blobs_may_lie_where_the_operator_says(house: ServerWithPrincipals) -> None:
    (house.folder / "blobs" / "ä %41.png").write_bytes(PNG + b"an image")
    address = f"file://{house.folder}/blobs/{quote('ä %41.png')}"
    with_blob(house, "allowed", b"own", address, None)
    status, rows = house.plan("alice", "a", "allowed")
    assert (status, b"an image" in rows, b"own" in rows) == (200, True, True)
    assert house.console("alice", "image", "allowed", column="b", row=1) == (200, PNG + b"an image")


@pytest.mark.parametrize("path", ["../secret.png", "x/../../secret.png", "%2e%2e/secret.png"])
def test_no_path_leads_out_of_the_places_of_external_blobs(house: ServerWithPrincipals, path: str) -> None:
    name = f"leads{abs(hash(path))}"
    with_blob(house, name, f"file://{house.folder}/blobs/{path}")
    assert house.plan("alice", "a", name)[0] in (400, 403)
    status, body = house.console("alice", "image", name, column="b", row=0)
    assert (status in (400, 403, 404), SECRET in body) == (True, False)


def test_blobs_of_the_tables_own_are_read_as_lance_reads_them(house: ServerWithPrincipals) -> None:
    packed, dedicated = b"p" * 300_000, PNG + b"d" * 6_000_000
    with_blob(house, "own", b"inline", packed, None, dedicated, b"", b"second")
    dataset = lance.dataset(house.place("a", "own"))
    dataset.delete("id = 0")
    expected = dataset.scanner(blob_handling="all_binary").to_table().to_pylist()
    status, rows = house.plan("alice", "a", "own")
    assert status == 200
    assert rows == str([expected]).encode()
    assert house.console("alice", "image", "own", column="b", row=3) == (200, dedicated)
    assert b"null" in house.console("alice", "value", "own", column="b", row=2)[1]


def test_base_paths_of_others_stay_closed(house: ServerWithPrincipals) -> None:
    victim = lance.dataset(house.place("b", "victim"))
    victim.shallow_clone(house.place("a", "clone"), victim.version)
    house.register("alice", "a", "clone")
    for what, (status, body) in every_way(house, "alice", "clone").items():
        assert (status, b"rows of bob" in body) == (403, False), what
    for what, (status, _) in every_way(house, "root", "clone").items():
        assert status == 200, what


def test_base_paths_outside_of_the_warehouse_stay_closed_to_all(house: ServerWithPrincipals) -> None:
    outside = lance.write_dataset(pa.table({"id": [1], "text": ["rows of nobody"]}), str(house.folder / "elsewhere"))
    outside.shallow_clone(house.place("a", "stray"), 1)
    house.register("alice", "a", "stray")
    for who in ("alice", "root"):
        for what, (status, body) in every_way(house, who, "stray").items():
            assert (status, b"rows of nobody" in body) == (403, False), what


def test_a_copy_that_one_reader_had_made_is_not_shown_to_another(house: ServerWithPrincipals) -> None:
    victim = lance.dataset(house.place("b", "victim"))
    victim.shallow_clone(house.place("a", "shared"), victim.version)
    house.register("alice", "a", "shared")
    assert house.plan("root", "a", "shared")[0] == 200
    assert house.plan("alice", "a", "shared")[0] == 403


def test_clones_and_branches_of_ones_own_are_read(house: ServerWithPrincipals) -> None:
    own = lance.write_dataset(pa.table({"id": [1, 2], "text": ["mine", "too"]}), house.place("a", "base"))
    own.create_branch("dev")
    house.register("alice", "a", "base")
    own.shallow_clone(house.place("a", "copy"), 1)
    house.register("alice", "a", "copy")
    for table in ("base", "copy"):
        assert {status for status, _ in every_way(house, "alice", table).values()} == {200}
    query = {"k": 9, "vector": {}, "branch": "dev"}
    assert house.send("alice", "POST", "/lance/main/v1/table/a$base/query", query)[0] == 200


def test_more_bases_are_places_too(house: ServerWithPrincipals) -> None:
    rows = pa.table({"id": [1], "text": ["far"]})
    bases = [DatasetBasePath(str(house.folder / "far"), name="far")]
    lance.write_dataset(rows, house.place("a", "bases"), initial_bases=bases, target_bases=["far"])
    house.register("alice", "a", "bases")
    assert {status for status, _ in every_way(house, "root", "bases").values()} == {403}


@pytest.mark.parametrize("part", ["data", "file"])
def test_links_in_a_table_are_not_followed(house: ServerWithPrincipals, part: str) -> None:
    victim = lance.dataset(house.place("b", "victim"))
    folder = Path(house.place("a", f"link_{part}"))
    folder.mkdir(parents=True)
    (file,) = victim.get_fragments()[0].data_files()
    if part == "data":
        (folder / "data").symlink_to(Path(house.place("b", "victim")) / "data")
    else:
        (folder / "data").mkdir()
        (folder / "data" / file.path).symlink_to(Path(house.place("b", "victim")) / "data" / file.path)
    fragments = [fragment.metadata for fragment in victim.get_fragments()]
    lance.LanceDataset.commit(str(folder), lance.LanceOperation.Overwrite(victim.schema, fragments))
    house.register("alice", "a", folder.name)
    for what, (status, body) in every_way(house, "alice", folder.name).items():
        assert (status, b"rows of bob" in body) == (403, False), what


def test_a_file_of_blobs_that_is_a_link_is_not_followed(house: ServerWithPrincipals) -> None:
    with_blob(house, "linked_blob", PNG + b"x" * 6_000_000)
    (blob, other) = sorted(Path(house.place("a", "linked_blob", "data")).rglob("*.blob"))
    for file in (blob, other):
        file.unlink()
        file.symlink_to(house.secret)
    for status, body in (
        house.plan("alice", "a", "linked_blob"),
        house.console("alice", "image", "linked_blob", column="b", row=0),
    ):
        assert (status, SECRET in body) == (403, False)


@pytest.mark.parametrize("there", [True, False])
def test_places_of_others_are_not_looked_at_to_register_them(house: ServerWithPrincipals, there: bool) -> None:
    place = house.folder / f"foreign_{there}"
    if there:
        lance.write_dataset(pa.table({"id": [1]}), str(place))
    path = "/lance/main/v1/table/a$foreign/register"
    for location in (str(place), f"file://{place}", house.place("b", place.name)):
        status, body = house.send("alice", "POST", path, {"location": location})
        assert (status, b"no Lance dataset" in body) in ((400, False), (403, False))


# Iceberg's tables


@pytest.fixture(scope="module")
def iceberg_table(house: ServerWithPrincipals) -> Callable[[str, str], str]:
    """Makes a table of Alice's that has a data file, or statistics, at some address; its name."""
    catalog = house.pyiceberg("root")

    def make(name: str, file: str) -> str:
        table = catalog.create_table(f"a.{name}", Schema(NestedField(1, "id", LongType(), required=False)))
        pq.write_table(pa.table({"id": pa.array([7], pa.int64())}), file)
        table.add_files([file])
        return name

    return make


def test_data_files_of_others_are_not_named(
    house: ServerWithPrincipals, iceberg_table: Callable[[str, str], str]
) -> None:
    name = iceberg_table("stolen", house.place("b", "victim", "x.parquet"))
    assert house.plan("alice", "a", name)[0] == 403
    assert house.plan("root", "a", name)[0] == 200


def test_data_files_outside_of_the_warehouse_are_not_named(
    house: ServerWithPrincipals, iceberg_table: Callable[[str, str], str]
) -> None:
    name = iceberg_table("outer", str(house.folder / "outer.parquet"))
    assert house.plan("alice", "a", name)[0] == 403


def test_data_files_of_ones_own_are_named(
    house: ServerWithPrincipals, iceberg_table: Callable[[str, str], str]
) -> None:
    Path(house.place("a", "mine", "data")).mkdir(parents=True)
    name = iceberg_table("mine", house.place("a", "mine", "data", "x.parquet"))
    assert house.plan("alice", "a", name) == (200, b"[[{'id': 7}]]")


@pytest.mark.parametrize("action", ["set-statistics", "set-partition-statistics"])
def test_statistics_of_others_are_not_taken(
    house: ServerWithPrincipals, iceberg_table: Callable[[str, str], str], action: str
) -> None:
    part = action.removeprefix("set-")
    name = action.replace("-", "_")
    Path(house.place("a", name, "data")).mkdir(parents=True)
    iceberg_table(name, house.place("a", name, "data", "x.parquet"))
    snapshot = house.pyiceberg("root").load_table(f"a.{name}").current_snapshot()
    assert snapshot is not None
    given = {
        "snapshot-id": snapshot.snapshot_id,
        "file-size-in-bytes": 1,
        "file-footer-size-in-bytes": 1,
        "blob-metadata": [],
    }

    def commit(path: str) -> int:
        update = {"action": action, "snapshot-id": snapshot.snapshot_id, part: {**given, "statistics-path": path}}
        body = {"requirements": [], "updates": [update]}
        return house.send("alice", "POST", f"/iceberg/v1/main/namespaces/a/tables/{name}", body)[0]

    assert commit(house.place("b", "victim", "s.puffin")) == 403
    assert commit(house.place("a", name, "metadata", "s.puffin")) == 200


# Backends of the gateway


@pytest.mark.parametrize(
    "name",
    [
        *("..%2Fprivate%2Fvictim", "..", "%2Fetc", "a%2F..%2F..%2Fprivate%2Fvictim", "..%5Cvictim", "a%5Cb", "a%00b"),
        *(".", "..%252Fprivate%252Fvictim", "%252e%252e", "a%255Cb"),
    ],
)
@pytest.mark.parametrize(
    ("operation", "body"),
    [
        ("create", b""),
        ("insert", b""),
        ("describe", b"{}"),
        ("declare", b"{}"),
        ("drop", b"{}"),
        ("register", b'{"location": "x"}'),
        ("query", b'{"k": 1, "vector": {}}'),
        ("count_rows", b"{}"),
        ("version/list", b"{}"),
    ],
)
def test_names_do_not_lead_out_of_a_folder(house: ServerWithPrincipals, name: str, operation: str, body: bytes) -> None:
    private = house.folder / "private" / "victim.lance"
    if not private.exists():
        lance.write_dataset(pa.table({"text": ["private rows"]}), str(private))
    data = stream(pa.table({"text": ["written"]})) if operation in ("create", "insert") else body
    kind = "application/vnd.apache.arrow.stream" if operation in ("create", "insert") else "application/json"
    headers = {"authorization": f"Bearer {house.tokens['root']}", "content-type": kind}
    heard = ask(house.served, "POST", f"/lance/files/v1/table/{name}/{operation}", data, headers)
    assert (heard.status, heard.json["code"]) == (400, 13), heard.body
    assert lance.dataset(str(private)).to_table().to_pylist() == [{"text": "private rows"}]


@pytest.mark.parametrize("id", [[""], ["a", ""], [".."], ["..%2Fx"], ["a/b"]])
def test_names_in_a_batch_do_not_lead_out_of_a_folder(house: ServerWithPrincipals, id: list[str]) -> None:
    for path, body in (
        ("batch-commit", {"operations": [{"declare_table": {"id": id}}]}),
        ("batch-commit", {"operations": [{"deregister_table": {"id": id}}]}),
        ("version/batch-create", {"entries": [{"id": id, "version": 2, "manifest_path": "x"}]}),
    ):
        status, answer = house.send("root", "POST", f"/lance/files/v1/table/{path}", body)
        assert (status, b"cannot be a name" in answer) == (400, True)


@pytest.mark.parametrize("how", ["version", "batch", "commit"])
@pytest.mark.parametrize("slash", ["/", ""])
def test_a_backend_moves_no_files_of_others(house: ServerWithPrincipals, how: str, slash: str) -> None:
    mine = f"mine_{how}_{len(slash)}"
    lance.write_dataset(pa.table({"id": [1]}), str(house.folder / "files" / f"{mine}.lance"))
    theirs = house.folder / "theirs" / mine / "_versions" / f"{2**64 - 3}.manifest-x"
    theirs.parent.mkdir(parents=True)
    theirs.write_bytes(b"theirs")
    given = {"id": [mine], "version": 2, "manifest_path": f"{slash}{str(theirs).strip('/')}", "naming_scheme": "V2"}
    path, body = {
        "version": (f"{mine}/version/create", given),
        "batch": ("version/batch-create", {"entries": [given]}),
        "commit": ("batch-commit", {"operations": [{"create_table_version": given}]}),
    }[how]
    status, answer = house.send("root", "POST", f"/lance/files/v1/table/{path}", body)
    assert (status, b"does not lie in the table" in answer) == (400, True)
    assert theirs.read_bytes() == b"theirs"


def test_names_in_the_console_do_not_lead_out_of_a_folder(house: ServerWithPrincipals) -> None:
    lance.write_dataset(pa.table({"text": ["aside"]}), str(house.folder / "aside.lance"))
    status, body = house.send("root", "GET", "/console/v1/rows?in=files&level=../aside")
    assert (status, b"aside" in body.replace(b"../aside", b"")) == (400, False)


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory, reference_server: Reference) -> Iterator[ServerWithPrincipals]:
    """A server in front of Iceberg's own, by two names: with roots, and with a root of the client's."""
    folder = tmp_path_factory.mktemp("foreign")
    properties = {"endpoint": reference_server.uri}
    backends = {
        "rooted": {"impl": "iceberg", "properties": {**properties, "root": str(folder / "root")}},
        "listed": {"impl": "iceberg", "properties": properties, "roots": [str(folder / "root"), "s3://bucket/x"]},
        "bare": {"impl": "iceberg", "properties": properties},
    }
    config = folder / "server.yaml"
    config.write_text(json.dumps({"backends": backends}))
    db = f"sqlite:///{folder / 'catalog.db'}"
    tokens = principals(db, root=Grant(Role.ADMIN))
    with start_lancehouse(folder, db=db, options=["--config", str(config)]) as served:
        tokens |= principals(db, alice=Grant(Role.WRITER, "rooted", ("wh", "fa")))
        yield ServerWithPrincipals(served, folder, tokens)


def test_a_backend_opens_nothing_outside_of_its_roots(
    foreign: ServerWithPrincipals, reference_server: Reference
) -> None:
    ours = connect("iceberg", {"endpoint": reference_server.uri, "root": str(foreign.folder / "root")})
    ours.create_namespace(CreateNamespaceRequest(id=["wh", "fa"], mode="ExistOk"))
    rows = pa.table({"id": [1], "text": ["of the machine"]})
    outside = str(foreign.folder / "outside")
    lance.write_dataset(rows, outside)
    ours.register_table(RegisterTableRequest(id=["wh", "fa", "outside"], location=outside))
    lance.write_dataset(rows, namespace_client=ours, table_id=["wh", "fa", "inside"], mode="create")
    for backend in ("rooted", "listed"):
        assert foreign.query("root", "wh$fa$inside", backend)[0] == 200
    for backend in ("rooted", "listed", "bare"):
        status, body = foreign.query("root", "wh$fa$outside", backend)
        assert (status, b"roots of backend" in body) == (403, True)
        assert foreign.send("root", "POST", f"/lance/{backend}/v1/table/wh$fa$outside/drop", {})[0] == 403
        status, body = foreign.send("root", "GET", f"/lance/{backend}/v1/namespace/wh$fa/table/list")
        assert (status, b"outside" in body) == (200, True)
    assert foreign.query("root", "wh$fa$inside", "bare")[0] == 403
    assert Path(outside).exists()
    ours.drop_table(DropTableRequest(id=["wh", "fa", "inside"]))


@pytest.mark.parametrize("verb", ["register", "declare"])
def test_locations_that_callers_choose_for_a_backend(foreign: ServerWithPrincipals, verb: str) -> None:
    secret = foreign.folder / "chosen"
    lance.write_dataset(pa.table({"id": [1]}), str(secret), mode="overwrite")
    root = foreign.folder / "root"

    def make(who: str, location: Path) -> int:
        path = f"/lance/rooted/v1/table/wh$fa$x/{verb}"
        status, body = foreign.send(who, "POST", path, {"location": str(location)})
        assert status in (200, 400, 403, 404, 409), body
        return status

    assert make("root", secret) == 403
    assert make("alice", secret) == 403
    assert make("alice", root / "wh" / "other" / "t") == 403
    assert make("alice", root / "wh" / "fa" / ".." / "other" / "t") == 403
    assert make("alice", root / "wh" / "fa" / "t") != 403


def test_a_clone_behind_a_backend_takes_a_grant_on_all_of_it(
    foreign: ServerWithPrincipals, reference_server: Reference
) -> None:
    ours = connect("iceberg", {"endpoint": reference_server.uri, "root": str(foreign.folder / "root")})
    for name in ("fa", "fb"):
        ours.create_namespace(CreateNamespaceRequest(id=["wh", name], mode="ExistOk"))
    victim = lance.write_dataset(
        pa.table({"text": ["of b"]}), namespace_client=ours, table_id=["wh", "fb", "victim"], mode="create"
    )
    place = foreign.folder / "root" / "wh" / "fa" / "clone"
    victim.shallow_clone(str(place), 1)
    ours.register_table(RegisterTableRequest(id=["wh", "fa", "clone"], location=str(place)))
    assert foreign.query("alice", "wh$fa$clone", "rooted")[0] == 403
    assert foreign.query("root", "wh$fa$clone", "rooted")[0] == 200
