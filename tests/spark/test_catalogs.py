"""`LanceCatalog` on Polaris and Unity: what tasks ask of the catalog, and credentials that end before the job does."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest

from lancehouse.spark import LanceCatalog
from tests.clients.managed import managed_by_lancehouse
from tests.servers.faults import FaultProxy
from tests.servers.lancehouse import Served
from tests.servers.loopback import Answer, Request
from tests.servers.moto import ACCESS_KEY, REGION, SECRET_KEY, Bucket
from tests.servers.nessie import Nessie
from tests.servers.polaris import Polaris
from tests.servers.unity import Unity

LIFE_S = 3
GRACE_S = 2
AHEAD_S = 60
"""Lance renews credentials so long before they end."""
VENDED = "vended-credentials"

EXPIRED = "<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>"


def polaris_catalog(spark: Any, server: Polaris) -> LanceCatalog:
    server.seed_namespace("test_catalog", "db", properties={"location": f"{server._root}/test_catalog/db"})
    delegation = {"header.X-Iceberg-Access-Delegation": VENDED}
    return LanceCatalog(spark, "polaris", {"endpoint": server.uri, "credential": server.credential, **delegation})


def unity_catalog(spark: Any, server: Unity, root: Path) -> LanceCatalog:
    server.seed_schema("lance_test", "db")
    server.accept_token("good")
    return LanceCatalog(
        spark,
        "unity",
        {"endpoint": server.uri, "catalog": "lance_test", "root": str(root), "auth_token": "good"},
    )


@pytest.fixture(params=["polaris", "unity"])
def catalog(request: pytest.FixtureRequest, spark: Any, tmp_path: Path) -> Iterator[tuple[LanceCatalog, str]]:
    """A catalog and the name of a table there."""
    if request.param == "polaris":
        with Polaris("test_catalog", root=tmp_path.as_uri()) as server:
            yield polaris_catalog(spark, server), "test_catalog.db.docs"
    else:
        yield unity_catalog(spark, request.getfixturevalue("unity"), tmp_path), "lance_test.db.docs"


def test_a_table_from_its_first_row_to_its_last(catalog: tuple[LanceCatalog, str]) -> None:
    cat, docs = catalog
    rows = cat.spark.range(0, 100, 1, 2).selectExpr("id", "id AS v")
    assert cat.create(rows, docs) == 1
    assert cat.append(rows.selectExpr("id + 100 AS id", "v"), docs) == 2
    merged = cat.merge(rows.selectExpr("id + 150 AS id", "-id AS v"), docs, on="id")
    assert (merged.inserted, merged.updated) == (50, 50)
    assert cat.read(docs, filter="v < 0").count() == 99
    assert cat.update(docs, {"v": "0"}, "id < 10").updated == 10
    assert cat.delete(docs, "id >= 200").deleted == 50
    assert cat.aggregate(docs, sum="id", count="*").collect()[0]["count"] == cat.count(docs) == 200
    cat.create_index(docs, "id", "BTREE")
    assert cat.compact(docs).fragments_added == 1
    assert cat.register_views(docs.rpartition(".")[0], replace=True) == ["docs"]
    assert cat.remove_orphans(docs, dry_run=True).files == 0
    for namespace in (docs.rpartition(".")[0], docs.partition(".")[0]):
        assert list(cat.cleanup(namespace=namespace, dry_run=True)) == [docs]


def test_a_server_that_chooses_where_tables_lie(spark: Any, lancehouse_server: Served, tmp_path: Path) -> None:
    """What it answers counts for the tasks that write the first files, and for the commits."""
    managed = managed_by_lancehouse(lancehouse_server)
    chosen = lancehouse_server.location / "chosen by nessie"
    with Nessie(managed.endpoint, str(chosen), lancehouse_server.warehouse) as server:
        cat = LanceCatalog(
            spark, "iceberg", {**managed.properties, "endpoint": server.uri, "root": str(tmp_path / "guess")}
        )
        docs = managed.id("docs")
        assert cat.create(spark.range(0, 10, 1, 2), docs) == 1
        assert cat.append(spark.range(10, 20, 1, 2), docs) == 2
        assert cat.merge(spark.range(15, 25, 1, 2), docs, on="id").inserted == 5
    assert (managed.check(docs), managed.open(docs).count_rows()) == (3, 25)
    assert managed.folder(docs).parent == chosen
    assert not (tmp_path / "guess").exists()


def test_a_folder_in_a_bucket(spark: Any, s3: Bucket) -> None:
    """Lance's `dir` does not tell how to reach its tables; tasks know it from the properties."""
    storage = {f"storage.{key}": value for key, value in s3.options.items()}
    cat = LanceCatalog(spark, "dir", {"root": f"{s3.uri}/folder", **storage})
    rows = spark.range(0, 100, 1, 2)
    assert (cat.create(rows, "t"), cat.append(rows, "t"), cat.count("t", filter="id < 10")) == (1, 2, 20)
    assert cat.compact("t").fragments_added == 1
    assert [row["operation"] for row in cat.history("t").collect()][-1] == "Overwrite"


class Lending(Polaris):
    """A Polaris that lends a key to its storage, for some seconds."""

    def __init__(self, store: Guard, bucket: Bucket) -> None:
        self._store = store
        super().__init__("test_catalog", root=bucket.uri)

    def answer(self, request: Request) -> Answer:
        answer = super().answer(request)
        if request.method == "GET" and request.segments[-2] == "generic-tables" and answer.status == 200:
            body = json.loads(answer.body)
            body["storage-access-configs"] = [{"prefix": "s3://", "config": self._store.lend()}]
            return Answer.json(body)
        return answer


class Guard(FaultProxy):
    """A store that knows when a key ends."""

    def __init__(self, upstream: str) -> None:
        self._ends: dict[str, float] = {}
        self.life_s, self.refused = LIFE_S, 0
        super().__init__(upstream)

    def lend(self) -> dict[str, str]:
        """A new key, in Iceberg's words."""
        token = uuid4().hex
        self._ends[token] = monotonic() + self.life_s + GRACE_S
        return {
            "s3.access-key-id": ACCESS_KEY,
            "s3.secret-access-key": SECRET_KEY,
            "s3.session-token": token,
            "s3.session-token-expires-at-ms": str(int((time.time() + AHEAD_S + self.life_s) * 1000)),
            "s3.endpoint": self.uri,
            "client.region": REGION,
            "s3.path-style-access": "true",
        }

    @property
    def lent(self) -> int:
        """How many keys there were."""
        return len(self._ends)

    def answer(self, request: Request) -> Answer:
        if self._ends.get(request.headers.get("x-amz-security-token", ""), 0) < monotonic():
            self.refused += 1
            return Answer.text(EXPIRED, 400, "application/xml")
        return super().answer(request)


@pytest.fixture
def lending(spark: Any, s3: Bucket) -> Iterator[tuple[LanceCatalog, Lending, Guard]]:
    with Guard(s3.endpoint) as store, Lending(store, s3) as server:
        yield polaris_catalog(spark, server), server, store


def slowly(seconds: float) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Rows that take so long to come."""

    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for row in range(batch.num_rows):
                time.sleep(seconds / batch.num_rows)
                yield batch.slice(row, 1)

    return rows


def test_a_job_outlives_its_credentials(lending: tuple[LanceCatalog, Lending, Guard]) -> None:
    cat, _, store = lending
    docs = "test_catalog.db.docs"
    rows = cat.spark.range(0, 20, 1, 2)
    cat.create(rows, docs)
    begun, lent = monotonic(), store.lent
    cat.append(rows.mapInArrow(slowly(2.5 * LIFE_S), "id long"), docs, max_rows_per_file=1)
    slow = cat.read(docs).mapInArrow(slowly(1.5 * LIFE_S), "id long")
    assert slow.count() == cat.count(docs) == 40
    assert monotonic() - begun > 2 * (LIFE_S + GRACE_S)
    assert store.lent > lent
    assert store.refused == 0


def test_tasks_ask_the_catalog_once_in_a_process(lending: tuple[LanceCatalog, Lending, Guard]) -> None:
    """However many tasks there are."""
    cat, server, store = lending
    store.life_s = 3600

    def count_requests(tasks: int) -> int:
        docs, before = f"test_catalog.db.docs_{uuid4().hex}", len(server.requests)
        rows = cat.spark.range(0, 100, 1, tasks).selectExpr("id", "id AS v")
        cat.create(rows, docs)
        cat.append(rows, docs)
        cat.read(docs).count()
        return len(server.requests) - before

    count_requests(2)
    assert abs(count_requests(16) - count_requests(2)) <= 4
