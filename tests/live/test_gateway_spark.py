"""Spark SQL by lance-spark 0.4.0, as it is, on the gateway: tables of our own catalog and of Iceberg's server.

What it does not do is told in docs/gateway.md, and tested here as it is.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import lance
import pyarrow as pa
import pytest
from lance_namespace import DescribeTableRequest, LanceNamespace
from lance_namespace.errors import TableNotFoundError

from lancehouse import IcebergNamespace
from lancehouse.catalog.callers import Role
from lancehouse.spark import sql_config
from tests.live.engines import BACKENDS, above, is_managed, principal, start_engines_gateway
from tests.live.gateways import client
from tests.servers.lance_spark import start_lance_spark
from tests.servers.lancehouse import Served, start_lancehouse
from tests.servers.reference import Reference
from tests.servers.spark41 import Row, Spark, SparkError

TOKEN = "t0p-of-the-secrets"
AT_START = ("spark.sql.extensions", "spark.redaction.regex")
"""What Spark takes only when it starts."""


@dataclass(frozen=True)
class GatewaySparkNamespace:
    """A namespace of a catalog, seen from Spark and from Python."""

    spark: Spark
    catalog: str
    namespace: LanceNamespace
    """Pylance's own client of the gateway."""
    direct: IcebergNamespace
    """Our client of the catalog itself."""
    levels: tuple[str, ...]
    """What the direct client's ids begin with."""
    above: tuple[str, ...]
    """What ids in the gateway begin with, besides the namespace."""
    is_managed: bool

    @property
    def db(self) -> str:
        return self.levels[-1]

    def sql(self, text: str) -> list[Row]:
        """Run a statement in which `HOME` stands for the namespace."""
        return self.spark.sql(text.replace("HOME", f"{self.catalog}.{self.db}"))

    def id(self, name: str) -> list[str]:
        return [*self.above, self.db, name]

    def dataset(self, name: str) -> lance.LanceDataset:
        """The table as Python sees it through the gateway."""
        return lance.dataset(namespace_client=self.namespace, table_id=self.id(name))

    def location(self, name: str) -> str:
        return str(self.namespace.describe_table(DescribeTableRequest(id=self.id(name))).location)

    def open_stored(self, name: str) -> lance.LanceDataset:
        """The table as storage has it."""
        return lance.dataset(self.location(name))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, reference_server: Reference) -> Iterator[Served]:
    with start_engines_gateway(tmp_path_factory.mktemp("gateway"), reference_server) as served:
        yield served


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory, server: Served) -> Iterator[Spark]:
    """The one session of all these tests."""
    settings = sql_config(server.uri, "main", catalog="main")
    folder = tmp_path_factory.mktemp("lance-spark")
    with start_lance_spark(folder, {**settings, "spark.ui.enabled": "false"}) as session:
        yield session


def add_catalog(spark: Spark, settings: dict[str, str]) -> None:
    spark.set({key: value for key, value in settings.items() if key not in AT_START})


@pytest.fixture(scope="module", params=BACKENDS)
def home(
    request: pytest.FixtureRequest, spark: Spark, server: Served, reference_server: Reference
) -> GatewaySparkNamespace:
    backend: str = request.param
    if backend != "main":
        add_catalog(spark, sql_config(server.uri, backend, catalog=backend, parent=above(backend)))
    db = f"db_{uuid4().hex[:8]}"
    spark.sql(f"CREATE NAMESPACE {backend}.{db}")
    direct = IcebergNamespace(endpoint=reference_server.uri if above(backend) else server.iceberg)
    levels = (*(above(backend) or [backend]), db)
    there = client(server, backend)
    return GatewaySparkNamespace(spark, backend, there, direct, levels, tuple(above(backend)), is_managed(backend))


def test_namespaces(home: GatewaySparkNamespace) -> None:
    assert {"namespace": home.db} in home.spark.sql(f"SHOW NAMESPACES IN {home.catalog}")
    with pytest.raises(SparkError, match="SCHEMA_ALREADY_EXISTS"):
        home.sql("CREATE NAMESPACE HOME")
    home.sql("CREATE NAMESPACE IF NOT EXISTS HOME")
    home.sql("CREATE NAMESPACE HOME.inner WITH DBPROPERTIES ('colour' = 'red')")
    assert home.sql("SHOW NAMESPACES IN HOME") == [{"namespace": f"{home.db}.inner"}]
    described = {row["info_name"]: row["info_value"] for row in home.sql("DESCRIBE NAMESPACE EXTENDED HOME.inner")}
    assert described["Properties"] == "((colour,red))"
    home.sql("CREATE TABLE HOME.inner.t (id BIGINT)")
    with pytest.raises(SparkError, match=r'"code":3,'):
        home.sql("DROP NAMESPACE HOME.inner")
    with pytest.raises(SparkError, match=r"status=406 .*drops empty namespaces only.*\"code\":0,"):
        home.sql("DROP NAMESPACE HOME.inner CASCADE")
    home.sql("DROP TABLE HOME.inner.t PURGE")
    home.sql("DROP NAMESPACE HOME.inner")
    assert home.sql("SHOW NAMESPACES IN HOME") == []


def test_tables_come_and_go(home: GatewaySparkNamespace) -> None:
    home.sql("CREATE TABLE HOME.come (id BIGINT NOT NULL, word STRING)")
    home.sql("CREATE TABLE IF NOT EXISTS HOME.come (other INT)")
    with pytest.raises(SparkError, match="TABLE_OR_VIEW_ALREADY_EXISTS"):
        home.sql("CREATE TABLE HOME.come (id BIGINT)")
    assert home.sql("SELECT * FROM HOME.come") == []
    described = {row["col_name"]: row["data_type"] for row in home.sql("DESCRIBE TABLE HOME.come")}
    assert described.items() >= {"id": "bigint", "word": "string"}.items()
    assert home.dataset("come").version == home.open_stored("come").version == 1
    names = [row["tableName"] for row in home.sql("SHOW TABLES IN HOME")]
    assert "come" in names
    location = home.location("come")
    home.sql("DROP TABLE HOME.come")
    with pytest.raises(TableNotFoundError):
        home.location("come")
    assert lance.dataset(location).count_rows() == 0  # the data stays
    home.sql("DROP TABLE IF EXISTS HOME.come")
    home.sql("CREATE TABLE HOME.go AS SELECT 1 id")
    location = home.location("go")
    home.sql("DROP TABLE HOME.go PURGE")
    assert not list(Path(location).rglob("*.lance"))
    assert "go" not in [row["tableName"] for row in home.sql("SHOW TABLES IN HOME")]


def test_rows(home: GatewaySparkNamespace) -> None:
    home.sql("CREATE TABLE HOME.t (id BIGINT, word STRING)")
    home.sql("INSERT INTO HOME.t VALUES (1, 'a'), (2, 'b'), (3, NULL)")
    assert home.sql("SELECT word FROM HOME.t WHERE id IN (2, 9) OR word IS NULL ORDER BY id") == [
        {"word": "b"},
        {"word": None},
    ]
    home.sql("UPDATE HOME.t SET word = 'B' WHERE id = 2")
    home.sql("DELETE FROM HOME.t WHERE id = 1")
    home.sql(
        "MERGE INTO HOME.t t USING (SELECT 3 id, 'C' word UNION SELECT 4, 'd') s ON t.id = s.id "
        "WHEN MATCHED THEN UPDATE SET word = s.word WHEN NOT MATCHED THEN INSERT (id, word) VALUES (s.id, s.word)"
    )
    rows = [{"id": 2, "word": "B"}, {"id": 3, "word": "C"}, {"id": 4, "word": "d"}]
    assert home.sql("SELECT * FROM HOME.t ORDER BY id") == rows
    assert home.sql("SELECT count(*) n, max(word) m FROM HOME.t") == [{"n": 3, "m": "d"}]
    assert home.dataset("t").to_table().sort_by("id").to_pylist() == rows
    assert home.dataset("t").version == home.open_stored("t").version == 5
    # time travel
    for version, count in ((1, 0), (2, 3), (4, 2)):
        assert home.sql(f"SELECT count(*) n FROM HOME.t VERSION AS OF {version}") == [{"n": count}]
    assert home.sql("SELECT count(*) n FROM HOME.t TIMESTAMP AS OF current_timestamp()") == [{"n": 3}]
    home.sql("INSERT OVERWRITE HOME.t SELECT id, 'new' FROM HOME.t WHERE id > 3")
    assert home.sql("SELECT * FROM HOME.t") == [{"id": 4, "word": "new"}]
    assert home.dataset("t").version == 6


def test_tables_from_queries(home: GatewaySparkNamespace) -> None:
    home.sql("CREATE TABLE HOME.q AS SELECT id, concat('w', id) word FROM range(5)")
    assert home.sql("SELECT sum(id) s FROM HOME.q WHERE word > 'w2'") == [{"s": 7}]
    home.sql("CREATE OR REPLACE TABLE HOME.q AS SELECT 'only' text")
    assert home.sql("SELECT * FROM HOME.q") == [{"text": "only"}]
    assert (home.dataset("q").version, home.dataset("q").schema.names) == (2, ["text"])


def test_indices_columns_and_old_versions(home: GatewaySparkNamespace) -> None:
    home.sql("CREATE TABLE HOME.i AS SELECT id FROM range(4)")
    assert home.sql("ALTER TABLE HOME.i CREATE INDEX by_id USING btree (id)")[0]["index_name"] == "by_id"
    assert [row["name"] for row in home.sql("SHOW INDEXES IN HOME.i")] == ["by_id"]
    home.sql("CREATE OR REPLACE TEMPORARY VIEW more AS SELECT _rowaddr, _fragid, id * 2 AS twice FROM HOME.i")
    home.sql("ALTER TABLE HOME.i ADD COLUMNS twice FROM more")
    assert home.sql("SELECT twice FROM HOME.i WHERE id = 3") == [{"twice": 6}]
    assert home.dataset("i").version == home.open_stored("i").version == 3
    assert home.sql("VACUUM HOME.i WITH (before_version = 2)")[0]["old_versions"] == 1
    assert [each["version"] for each in home.dataset("i").versions()] == [2, 3]


def test_optimize(home: GatewaySparkNamespace) -> None:
    """It opens the path: where the catalog decides on versions it goes past it, which is found out and healed."""
    home.sql("CREATE TABLE HOME.o AS SELECT id FROM range(3)")
    home.sql("INSERT INTO HOME.o VALUES (7)")
    before = home.dataset("o").version
    done = home.sql("OPTIMIZE HOME.o")
    assert (done[0]["fragments_added"], done[0]["fragments_removed"] > 1) == (1, True)
    assert home.open_stored("o").version == before + 2
    assert home.sql("SELECT count(*) n FROM HOME.o") == [{"n": 4}]
    if home.is_managed:
        assert home.dataset("o").version == before  # as if nothing had been
        assert home.direct.manage_table([*home.levels, "o"], "impl", adopt=True) == before + 2
    assert (home.dataset("o").version, len(home.dataset("o").get_fragments())) == (before + 2, 1)
    home.sql("INSERT INTO HOME.o VALUES (8)")
    assert home.sql("SELECT count(*) n FROM HOME.o") == [{"n": 5}]


def test_vectors_and_other_engines(home: GatewaySparkNamespace) -> None:
    home.sql("CREATE TABLE HOME.v (id BIGINT, emb ARRAY<FLOAT>) TBLPROPERTIES ('emb.arrow.fixed-size-list.size' = '2')")
    home.sql("INSERT INTO HOME.v VALUES (1, array(float(1), float(2)))")
    more = pa.table({"id": pa.array([2], pa.int64()), "emb": pa.array([[3.0, 4.0]], pa.list_(pa.float32(), 2))})
    lance.write_dataset(more, namespace_client=home.namespace, table_id=home.id("v"), mode="append")
    assert home.sql("SELECT * FROM HOME.v ORDER BY id") == [{"id": 1, "emb": [1.0, 2.0]}, {"id": 2, "emb": [3.0, 4.0]}]
    nearest = home.dataset("v").to_table(nearest={"column": "emb", "q": [3.0, 4.1], "k": 1})
    assert nearest["id"].to_pylist() == [2]


def test_writers_at_once(home: GatewaySparkNamespace) -> None:
    home.sql("CREATE TABLE HOME.w (id BIGINT)")
    home.sql("INSERT INTO HOME.w VALUES (0)")

    def add(number: int) -> None:
        rows = pa.table({"id": pa.array([number], pa.int64())})
        lance.write_dataset(rows, namespace_client=home.namespace, table_id=home.id("w"), mode="append")

    with ThreadPoolExecutor(2) as pool:
        others = pool.map(add, range(1, 7))
        for number in range(7, 10):
            home.sql(f"INSERT INTO HOME.w VALUES ({number})")
        list(others)
    assert sorted(row["id"] for row in home.sql("SELECT id FROM HOME.w")) == list(range(10))
    assert home.dataset("w").version == home.open_stored("w").version == 11


def test_names(home: GatewaySparkNamespace) -> None:
    for name in ("my table", "a.b"):
        home.sql(f"CREATE TABLE HOME.`{name}` AS SELECT 1 id")
        assert home.sql(f"SELECT * FROM HOME.`{name}`") == [{"id": 1}]
        assert home.dataset(name).count_rows() == 1


def test_names_beyond_ascii(home: GatewaySparkNamespace) -> None:
    """Lance 4 encodes the path of a manifest that the catalog names once more, and then looks for another folder."""
    home.sql("CREATE TABLE HOME.`ä` (id BIGINT)")
    if home.is_managed:
        with pytest.raises(SparkError, match=r"%C3%A4/_versions/\d+.manifest was not found"):
            home.sql("SELECT * FROM HOME.`ä`")
    else:
        home.sql("INSERT INTO HOME.`ä` VALUES (1)")
        assert home.sql("SELECT * FROM HOME.`ä`") == [{"id": 1}]


@pytest.fixture(scope="module")
def db(spark: Spark) -> str:
    """A namespace in our own catalog, with a table `t`."""
    name = f"main.db_{uuid4().hex[:8]}"
    spark.sql(f"CREATE NAMESPACE {name}")
    spark.sql(f"CREATE TABLE {name}.t AS SELECT 1 id")
    return name


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("SELECT * FROM DB.missing", "TABLE_OR_VIEW_NOT_FOUND"),
        ("DROP TABLE DB.missing", "TABLE_OR_VIEW_NOT_FOUND"),
        ("SHOW TABLES IN main.missing", r'status=404 .*Namespace does not exist: missing.*"code":1,'),
        ("SELECT * FROM DB.t VERSION AS OF 99", "99.manifest was not found"),
        ("ALTER TABLE DB.t RENAME TO DB.u", "Table renaming is not supported"),
        ("ALTER TABLE DB.t ADD COLUMN x INT", "Table alteration is not supported"),
        ("ALTER TABLE DB.t SET TBLPROPERTIES ('a' = 'b')", "Table alteration is not supported"),
        ("TRUNCATE TABLE DB.t", "Table does not support truncates: t"),
        ("CREATE TABLE DB.`a$b` (id BIGINT)", r'the path says that id is \[.*\], and the body says .*"code":13,'),
        ("SELEC 1", r'\[INTERNAL_ERROR\] .*because "plan" is null'),
    ],
)
def test_what_it_refuses(spark: Spark, db: str, statement: str, words: str) -> None:
    with pytest.raises(SparkError, match=words):
        spark.sql(statement.replace("DB", db))
    assert spark.sql(f"SELECT * FROM {db}.t") == [{"id": 1}]


def test_what_it_passes_over(spark: Spark, db: str, server: Served, tmp_path: Path) -> None:
    """It asks the gateway for a table without properties and without a place."""
    spark.sql(f"CREATE TABLE {db}.p (id BIGINT) TBLPROPERTIES ('managed_by' = 'impl') LOCATION '{tmp_path / 'p'}'")
    described = client(server).describe_table(DescribeTableRequest(id=[db.removeprefix("main."), "p"]))
    assert str(tmp_path) not in str(described.location)
    assert (described.properties or {})["managed_by"] == "storage"


def test_who_calls(spark: Spark, tmp_path: Path) -> None:
    token = principal(f"sqlite:///{tmp_path / 'catalog.db'}", "ada", Role.WRITER)
    with start_lancehouse(tmp_path) as guarded:
        add_catalog(spark, sql_config(guarded.uri, "main", catalog="ours", token=token))
        add_catalog(spark, sql_config(guarded.uri, "main", catalog="theirs", token=TOKEN))
        add_catalog(spark, sql_config(guarded.uri, "main", catalog="keyed", headers={"x-api-key": token}))
        spark.sql("CREATE NAMESPACE ours.db")
        spark.sql("CREATE TABLE ours.db.t AS SELECT 1 id")
        assert spark.sql("SELECT * FROM ours.db.t") == spark.sql("SELECT * FROM keyed.db.t") == [{"id": 1}]
        with pytest.raises(SparkError, match=r'status=401 .*"code":16,') as refused:
            spark.sql("SELECT * FROM theirs.db.t")
        assert TOKEN not in str(refused.value)
        shown = {row["key"]: row["value"] for row in spark.sql("SET")}
        assert shown["spark.sql.catalog.ours.uri"].endswith("/lance/main")
        told = [shown, spark.sql("EXPLAIN EXTENDED SELECT * FROM ours.db.t"), spark.sql("DESCRIBE EXTENDED ours.db.t")]
        for text in (json.dumps(told), spark.log.read_text(), guarded.log.read_text()):
            assert not [secret for secret in (token, TOKEN) if secret in text]
