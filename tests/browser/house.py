"""A catalog that people might have: documents with embeddings, pictures, orders, a view, and many empty tables.

Everybody is asked who they are. `ada` may do everything and fills it, `robin` appends, `guest` reads the shop alone,
`clerk` the archive in the library, `public` the views in `words.public`.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import lance
import numpy as np
import pyarrow as pa
from lance.blob import blob_array, blob_field
from lance_namespace import CreateNamespaceRequest, DeclareTableRequest, DropTableRequest, LanceNamespace, connect
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.rest import RestCatalog

from lancehouse.catalog import bootstrap
from lancehouse.catalog.callers import Grant, Role
from lancehouse.catalog.principals import Principals
from lancehouse.catalog.warehouses import Warehouse
from lancehouse.connection import Connection
from lancehouse.jobs import LocalEngine, TableJobs
from lancehouse.row_policy import Restriction
from lancehouse.store import repository
from lancehouse.store.database import Database
from lancehouse.store.statements import Tx
from tests.browser import features
from tests.servers.lancehouse import start_lancehouse
from tests.servers.unity import Unity

TOPICS = {
    "astronomy": ("a star", "a comet", "the moon", "a galaxy", "the orbit of Mars"),
    "cooking": ("bread", "an onion soup", "a plum cake", "pickled beets", "black tea"),
    "sailing": ("a reef knot", "the tide", "a spinnaker", "the lee shore", "an anchor"),
    "gardens": ("a pear tree", "compost", "a hedge", "early peas", "the greenhouse"),
    "music": ("a fugue", "the viola", "a slow waltz", "counterpoint", "a choir"),
}
DIMENSION = 32
START = datetime(2026, 3, 1, 9, tzinfo=UTC)
GRANTS = {
    "ada": Grant(Role.ADMIN),
    "robin": Grant(Role.WRITER, "main"),
    "guest": Grant(Role.READER, "main", ("shop",)),
    "clerk": Grant(Role.READER, "main", ("library", "archive")),
    "public": Grant(Role.READER, "main", ("words", "public")),
    "vera": Grant(Role.READER, "main", ("library",), "docs", Restriction("id < 30", ("id",), (("title", "hash"),))),
}


class PrincipalClient:
    """A server, seen as a client sees it; `token` is whose name it acts in."""

    def __init__(self, uri: str, token: str | None = None, warehouse: str = "main") -> None:
        self.uri = uri
        self.warehouse = warehouse
        self._token = token

    def call(self, method: str, path: str, body: Any = None) -> Any:
        headers = {"content-type": "application/json"}
        if self._token:
            headers["authorization"] = f"Bearer {self._token}"
        data = None if body is None else json.dumps(body).encode()
        with urlopen(Request(f"{self.uri}{path}", data, headers, method=method)) as reply:
            raw = reply.read()
            return json.loads(raw) if raw else None

    def namespace(self, *levels: str, **properties: str) -> None:
        path = f"/iceberg/v1/{self.warehouse}/namespaces"
        self.call("POST", path, {"namespace": list(levels), "properties": properties})

    def lance(self, **properties: str) -> LanceNamespace:
        known = {"auth_token": self._token} if self._token else {}
        return connect("lancehouse.IcebergNamespace", {"endpoint": f"{self.uri}/iceberg", **known, **properties})

    def connection(self, **properties: str) -> Connection:
        known = {"auth_token": self._token} if self._token else {}
        return Connection("iceberg", {"endpoint": f"{self.uri}/iceberg", **known, **properties})

    def iceberg(self) -> Catalog:
        known = {"token": self._token} if self._token else {}
        return RestCatalog("house", uri=f"{self.uri}/iceberg", warehouse=self.warehouse, **known)

    def write(self, rows: pa.Table, *levels: str, mode: str = "create", managed: bool = False, **more: Any) -> Any:
        ns = self.lance(**({"managed_by": "impl"} if managed else {}))
        table = [self.warehouse, *levels]
        return lance.write_dataset(rows, namespace_client=ns, table_id=table, mode=mode, **more)


def png(width: int, height: int, colour: tuple[int, int, int], shape: int = 0) -> bytes:
    """A picture of a shape on a ground, without a library for pictures."""
    ys, xs = np.mgrid[0:height, 0:width]
    ground = np.stack([(40 + ys * 60 // height) + each // 5 for each in colour], axis=-1)
    x, y = (xs - width / 2) / width * 2, (ys - height / 2) / height * 2
    shapes = (
        x**2 + y**2 < 0.4,
        np.abs(x) + np.abs(y) < 0.75,
        (np.abs(x) < 0.55) & (np.abs(y) < 0.4),
        y > np.abs(x) - 0.4,
    )
    ground[shapes[shape % 4]] = colour
    lines = b"".join(b"\0" + line.astype(np.uint8).tobytes() for line in ground)

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b"")


def documents(first: int, count: int) -> pa.Table:
    """Texts of a few topics, with embeddings that lie near to others of their topic."""
    rng = np.random.default_rng(first)
    names = list(TOPICS)
    centres = np.random.default_rng(0).standard_normal((len(names), DIMENSION)) * 2.2
    topics = rng.integers(0, len(names), count)
    vectors = (centres[topics] + rng.standard_normal((count, DIMENSION))).astype(np.float32)
    things = [TOPICS[names[topic]][rng.integers(0, 5)] for topic in topics]
    return pa.table(
        {
            "id": pa.array(range(first, first + count), pa.int64()),
            "title": [f"On {thing}" for thing in things],
            "topic": [names[topic] for topic in topics],
            "body": [f"What there is to say of {thing}. " * 12 for thing in things],
            "score": pa.array(rng.random(count).round(4), pa.float32()),
            "seen_at": pa.array([START + timedelta(minutes=7 * each) for each in range(first, first + count)]),
            "tags": pa.array([[names[topic], "new"] if topic % 2 else [] for topic in topics], pa.list_(pa.string())),
            "embedding": pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), DIMENSION),
        }
    )


def pictures(count: int) -> pa.Table:
    """Rows with a picture as a blob, a small one as bytes, and one that is no picture."""
    rng = np.random.default_rng(1)
    colours = [tuple(int(each) for each in rng.integers(60, 250, 3)) for _ in range(count)]
    shapes = ("disc", "diamond", "card", "wedge")
    schema = pa.schema(
        [
            pa.field("name", pa.string()),
            pa.field("shape", pa.string()),
            blob_field("picture"),
            pa.field("icon", pa.binary()),
        ]
    )
    whole = [png(160, 120, colour, at) for at, colour in enumerate(colours)]  # type: ignore[arg-type]
    whole[-1] = b"<svg onload=alert(1)>"
    icons = [png(24, 24, colour, at) for at, colour in enumerate(colours)]  # type: ignore[arg-type]
    names = [f"{shapes[at % 4]}-{at:03}.png" for at in range(count)]
    return pa.table(
        {"name": names, "shape": [shapes[at % 4] for at in range(count)], "picture": blob_array(whole), "icon": icons},
        schema=schema,
    )


@dataclass(frozen=True)
class Open:
    """A running server with everything in it, and a token for each principal."""

    uri: str
    tokens: Mapping[str, str]
    credential: str
    """Of guest, as client_id:client_secret."""
    folder: Path

    def as_(self, name: str) -> PrincipalClient:
        return PrincipalClient(self.uri, self.tokens[name])


@contextmanager
def open_house(folder: Path, *, many: int = 0, count: int = 600, shots: int = 12) -> Iterator[Open]:
    """A server, furnished.

    Args:
        folder: for everything.
        many: tables without data in one namespace.
        count: documents.
        shots: pictures.
    """
    folder.mkdir(parents=True, exist_ok=True)
    url, places = f"sqlite:///{folder / 'catalog.db'}", {"main": folder / "warehouse", "attic": folder / "attic"}
    database = bootstrap.open_database(url)
    try:
        wanted = [Warehouse(0, name, str(place)) for name, place in places.items()]
        warehouse, _ = bootstrap.record_warehouses(database, wanted, wanted[0])
        principals = Principals(database)
        credentials = {name: principals.create(name, [] if grant.levels else [grant]) for name, grant in GRANTS.items()}
        tokens = {name: principals.create_token(name, "tests") for name in GRANTS}
        fill(database, warehouse, many)
    finally:
        database.close()
    lance.write_dataset(documents(0, 20).select(["id", "title"]), str(folder / "laptop" / "notes.lance"))
    config = folder / "lancehouse.json"
    laptop = {"impl": "dir", "properties": {"root": str(folder / "laptop")}}
    far = {"impl": "iceberg", "properties": {"endpoint": "http://127.0.0.1:9", "max_retries": "0"}}
    with ExitStack() as stack:
        server = stack.enter_context(Unity("lake"))
        properties = {"endpoint": server.uri, "catalog": "lake", "root": str(folder)}
        shared = {"impl": "unity", "properties": properties}
        config.write_text(json.dumps({"backends": {"laptop": laptop, "far": far, "shared": shared}}))
        unity = connect("lancehouse.UnityNamespace", properties)
        unity.create_namespace(CreateNamespaceRequest(id=["lake", "maps"]))
        unity.declare_table(DeclareTableRequest(id=["lake", "maps", "roads"]))
        options = ("--auth", "--config", str(config))
        up = stack.enter_context(start_lancehouse(folder, db=url, warehouses=places, options=options))
        guest = credentials["guest"]
        assert guest is not None
        house = Open(up.uri, tokens, f"{guest.client_id}:{guest.client_secret}", folder)
        furnish(house, count, shots)
        grant_namespaces(url)
        yield house


def grant_namespaces(url: str) -> None:
    """Give the roles on namespaces, which exist by now."""
    database = bootstrap.open_database(url)
    for name, grant in GRANTS.items():
        if grant.levels:
            Principals(database).grant(name, grant)
    database.close()


def fill(database: Database, warehouse: Warehouse, count: int) -> None:
    """Entries of tables without data, in one go."""

    def work(tx: Tx) -> None:
        space = repository.insert_namespace(tx, warehouse.id, ("many",), {})
        assert space is not None
        for number in range(count):
            name, location = f"t{number:05}", f"{warehouse.location}/many/t{number:05}"
            repository.insert_entry(
                tx,
                space.id,
                name=name,
                kind="lance",
                uuid=f"00000000-0000-0000-0000-{number:012}",
                location=location,
                location_key=location + "/",
                properties={"table_type": "lance", "managed_by": "storage"},
                now_ms=int(START.timestamp() * 1000),
            )

    if count:
        database.write(work)


def furnish(open_: Open, count: int, shots: int) -> None:
    """Put all of it into a server."""
    house, robin = open_.as_("ada"), open_.as_("robin")
    house.namespace("library", owner="the librarians", comment="what everybody reads")
    house.namespace("library", "archive")
    house.namespace("shop")
    house.namespace("empty")
    house.write(documents(0, count), "library", "docs", managed=True, max_rows_per_file=max(100, count // 4))
    robin.write(documents(count, count // 3), "library", "docs", mode="append")
    docs = lance.dataset(namespace_client=house.lance(), table_id=["main", "library", "docs"])
    docs.delete("id % 17 = 3")
    docs.update({"score": "score / 2"}, where="topic = 'music'")
    docs.create_scalar_index("id", "BTREE")
    docs.create_index("embedding", "IVF_FLAT", num_partitions=4, metric="l2")
    docs.tags.create("spring", 2)
    said: dict[str, Any] = {"commit_message": "More of the same, by hand", "transaction_properties": {"job": "nightly"}}
    robin.write(documents(count * 2, 40), "library", "docs", mode="append", **said)
    house.write(pictures(shots), "library", "pictures", data_storage_version="2.2")
    odd = pa.table({"a": pa.array([1, None], pa.int64()), "<b>": ["<img src=x onerror=alert(1)>", None]})
    house.write(odd, "library", "a.b <odd> name")
    house.write(documents(0, 10).select(["id", "title"]), "library", "archive", "old")
    house.call("POST", "/iceberg/v1/main/namespaces/library/tables", DECLARED)
    shop(house)
    compute(house)


def compute(house: PrincipalClient) -> None:
    """Texts with computed columns, and views of them; names are attacks, and one view is where its source is not."""
    house.namespace("words")
    house.namespace("words", "public")
    texts = ["one two", None, "three", None, *("four five six" for _ in range(8))]
    rows = pa.table({"id": pa.array(range(12), pa.int64()), "text": texts})
    house.write(rows, "words", "texts", managed=True, enable_stable_row_ids=True)
    jobs = TableJobs(house.connection(managed_by="impl"), LocalEngine(threads=1))
    jobs.add_columns("main.words.texts", {"length": features.length}, on_error="null")
    jobs.define_columns("main.words.texts", {"loud": "upper(text)"})
    views = [["main", "words", "split"], ["main", "words", ODD_VIEW], ["main", "words", "public", "ids"]]
    how: dict[str, Any] = {"columns": ["id"], "where": "id < 9", "on_error": "skip"}
    jobs.create_materialized_view(views[0], "main.words.texts", features.words, **how)
    jobs.define_columns(views[0], {"long": "place > 1"})
    jobs.create_materialized_view(views[1], views[0], columns={"up": "upper(word)"})
    jobs.create_materialized_view(views[2], "main.words.texts", columns=["id"])


@contextmanager
def indexed_table(house: Open) -> Iterator[lance.LanceDataset]:
    """A table with a vector index, `library.archive.measured`, which is gone afterwards."""
    writer, levels = house.as_("ada"), ("library", "archive", "measured")
    writer.write(documents(0, 200), *levels, managed=True)
    dataset = lance.dataset(namespace_client=writer.lance(), table_id=["main", *levels])
    dataset.create_index("embedding", "IVF_FLAT", num_partitions=4)
    yield dataset
    writer.lance().drop_table(DropTableRequest(id=["main", *levels]))


def measure_recall(house: Open, name: str) -> pa.Table:
    """Measure the recall of that table as a principal."""
    jobs = TableJobs(house.as_(name).connection(managed_by="impl"), LocalEngine(threads=1))
    measured = jobs.recall("main.library.archive.measured", None, 20, 5, [1, 2, 4], [1, 5])
    assert isinstance(measured, pa.Table)
    return measured


ODD_INDEX = "<img src=x onerror=alert(1)>"
ODD_NOTE = json.dumps(
    {
        "version": 0,
        "measured_ms": 2**52 - 1,
        "k": 2**31 - 1,
        "queries": 1,
        "index": "0" * 32,
        "points": [{"nprobes": 2**31 - 1, "refine_factor": None, "recall": 0.5, "median_ms": 0, "p95_ms": 1e9}],
    }
)
"""A note of measured recall that nobody has measured; with a text for the recall it is none."""
ODD_VIEW = "<img src=x onerror=alert(1)>&amp; a view with quite a long name"

DECLARED = {"name": "later", "schema": {"type": "struct", "fields": []}, "properties": {"table_type": "lance"}}
"""A Lance table without data."""


def shop(house: PrincipalClient) -> None:
    """An Iceberg table with snapshots, and a view on it."""
    rows = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "item": ["pen", "ink", "paper"], "price": [1.5, 7.0, 3.25]})
    table = house.iceberg().create_table("shop.orders", rows.schema)
    table.append(rows)
    table.append(rows)
    sql = "SELECT item, sum(price) AS total\nFROM shop.orders\nGROUP BY item"
    version = {
        "version-id": 1,
        "timestamp-ms": int(START.timestamp() * 1000),
        "schema-id": 0,
        "summary": {"engine-name": "tests"},
        "representations": [{"type": "sql", "sql": sql, "dialect": "spark"}],
        "default-namespace": ["shop"],
    }
    item = {"id": 1, "name": "item", "required": False, "type": "string"}
    total = {"id": 2, "name": "total", "required": False, "type": "double"}
    schema = {"type": "struct", "schema-id": 0, "fields": [item, total]}
    view = {"name": "sales", "schema": schema, "view-version": version, "properties": {}}
    house.call("POST", "/iceberg/v1/main/namespaces/shop/views", view)
