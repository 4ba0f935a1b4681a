"""lance-ray reads, writes and maintains tables by their names in a catalog.

Its workers build their own client from `namespace_impl` and `namespace_properties`. With an alias, every worker would
have to import lancehouse first: give the class path.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance.optimize import CompactionOptions
from lance_namespace import LanceNamespace
from lance_namespace.errors import TableAlreadyExistsError

from tests.catalogs import CATALOGS, LiveCatalog
from tests.live import test_packages as packages
from tests.live.test_packages import bucket, server, shop  # noqa: F401 - a warehouse in S3

pytestmark = [
    # Ray starts its processes with a fork that does nothing but exec.
    pytest.mark.filterwarnings("ignore:lance is not fork-safe:UserWarning"),
    # Ray reads deprecated settings of its own, and leaves pipes and files to the garbage collector.
    pytest.mark.filterwarnings("ignore:.* is deprecated:DeprecationWarning:ray"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.timeout(300),
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A small Ray on this machine, with lance_ray on top."""
    with pytest.MonkeyPatch.context() as environment:
        # Under `uv run` Ray would start its workers with uv, in a copy of the working directory.
        environment.setenv("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
        environment.setenv("RAY_USAGE_STATS_ENABLED", "0")
        import lance_ray
        import ray

        # Sockets lie below it, and their paths must be short: not pytest's folder.
        with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder:
            ray.init(
                num_cpus=2,
                include_dashboard=False,
                object_store_memory=80 * 1024 * 1024,
                log_to_driver=False,
                logging_level="ERROR",
                _temp_dir=folder,
                _node_ip_address="127.0.0.1",
            )
            ray.data.DataContext.get_current().enable_progress_bars = False
            try:
                yield lance_ray
            finally:
                ray.shutdown()


@pytest.fixture
def address(catalog: LiveCatalog, home: list[str]) -> dict[str, Any]:
    """How lance-ray's functions are told of a table."""
    properties = dict(catalog.properties)
    return {"namespace_impl": catalog.impl, "namespace_properties": properties, "table_id": [*home, "docs"]}


def rows(table: pa.Table) -> Any:
    import ray

    return ray.data.from_arrow(table)


def test_write_and_read(cluster: Any, address: dict[str, Any], namespace: LanceNamespace, vectors: pa.Table) -> None:
    cluster.write_lance(rows(vectors), **address, mode="create")
    with pytest.raises(TableAlreadyExistsError):
        cluster.write_lance(rows(vectors), **address, mode="create")
    cluster.write_lance(rows(vectors), **address, mode="append")
    few = cluster.read_lance(**address, columns=["id"], filter="id < 3").take_all()
    assert sorted(row["id"] for row in few) == [0, 0, 1, 1, 2, 2]
    cluster.write_lance(rows(vectors.slice(0, 7)), **address, mode="overwrite")
    dataset = lance.dataset(namespace_client=namespace, table_id=address["table_id"])
    assert (dataset.version, dataset.to_table()) == (3, vectors.slice(0, 7))


@pytest.fixture
def managed_by() -> str:
    """Who decides on versions: lance-ray commits to the path of a table."""
    return "storage"


@pytest.mark.usefixtures("cluster")
def test_the_example_of_the_page(shop: str) -> None:  # noqa: F811
    found = packages.run("Ray Data", shop)
    assert sorted(row["id"] for row in found["found"]) == [1, 2]
    assert packages.ids(shop) == [1, 2, 3, 6]


def mostly_soak(short: str) -> list[Any]:
    """Each call starts processes, which takes seconds: all catalogs in the soak run, one of them always."""
    return [name if name == short else pytest.param(name, marks=pytest.mark.soak) for name in CATALOGS]


@pytest.fixture
def named_table(address: dict[str, Any], namespace: LanceNamespace, vectors: pa.Table) -> dict[str, Any]:
    """The table with two fragments, as pylance is told of it."""
    named = {"namespace_client": namespace, "table_id": address["table_id"]}
    for start in (0, 50):
        lance.write_dataset(vectors.slice(start, 50), **named, mode="append" if start else "create")
    return named


@pytest.mark.parametrize("catalog", mostly_soak("iceberg"), indirect=True)
def test_add_columns(cluster: Any, address: dict[str, Any], named_table: dict[str, Any]) -> None:
    cluster.add_columns(**address, transform={"twice": "id * 2"}, concurrency=1)
    assert lance.dataset(**named_table).count_rows("twice = id + id") == 100


@pytest.mark.parametrize("catalog", mostly_soak("polaris"), indirect=True)
def test_compact_files(cluster: Any, address: dict[str, Any], named_table: dict[str, Any]) -> None:
    options = CompactionOptions(target_rows_per_fragment=1000)
    done = cluster.compact_files(**address, compaction_options=options, num_workers=1)
    assert (done.fragments_removed, len(lance.dataset(**named_table).get_fragments())) == (2, 1)
    (again,) = cluster.compact_database(
        database=address["table_id"][:-1],
        namespace_impl=address["namespace_impl"],
        namespace_properties=address["namespace_properties"],
    )
    assert again == {"table_id": address["table_id"], "metrics": None}


@pytest.mark.parametrize("catalog", mostly_soak("unity"), indirect=True)
def test_indices(cluster: Any, address: dict[str, Any], named_table: dict[str, Any], soak: bool) -> None:
    few: dict[str, Any] = {"num_partitions": 1, "sample_rate": 64, "num_workers": 1}
    cluster.create_scalar_index(**address, column="id", index_type="BTREE", num_workers=1)
    cluster.create_index(**address, column="vector", index_type="IVF_FLAT", **few)
    indexed = {name for index in lance.dataset(**named_table).describe_indices() for name in index.field_names}
    assert indexed == {"id", "vector"}
    if soak:
        nearest = {"column": "vector", "q": [41.0] * 4, "k": 3}
        found = cluster.vector_search(**address, nearest=nearest, num_workers=1)
        assert sorted(found["id"].to_pylist()) == [40, 41, 42]
