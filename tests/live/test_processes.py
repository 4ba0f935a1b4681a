"""A client in other processes and in many threads, and beside another package that takes the same aliases."""

from __future__ import annotations

import multiprocessing
import pickle
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from textwrap import dedent

import lance
import pyarrow as pa
import pytest
from lance_namespace import DeclareTableRequest, DescribeTableRequest, LanceNamespace, ListTablesRequest

from tests.catalogs import LiveCatalog

THREADS = 16


def append(namespace: LanceNamespace, table: list[str], rows: pa.Table) -> int:
    """What a worker does."""
    return int(lance.write_dataset(rows, namespace_client=namespace, table_id=table, mode="append").version)


def test_spawned_worker(namespace: LanceNamespace, home: list[str], vectors: pa.Table) -> None:
    table = [*home, "docs"]
    lance.write_dataset(vectors, namespace_client=namespace, table_id=table, mode="create")
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as workers:
        assert workers.submit(append, namespace, table, vectors.slice(0, 10)).result(120) == 2
    assert lance.dataset(namespace_client=namespace, table_id=table).count_rows() == 110


def test_pickle_goes_to_a_process_that_has_imported_nothing(
    catalog: LiveCatalog, namespace: LanceNamespace, home: list[str]
) -> None:
    namespace.declare_table(DeclareTableRequest(id=[*home, "docs"]))
    code = """
        import pickle, sys
        namespace, request = pickle.loads(sys.stdin.buffer.read())
        print(type(namespace).__module__, namespace.namespace_id(), *namespace.list_tables(request).tables, sep="|")
    """
    sent = pickle.dumps((namespace, ListTablesRequest(id=home)))
    done = subprocess.run([sys.executable, "-c", dedent(code)], input=sent, capture_output=True, timeout=60, check=True)
    module = type(namespace).__module__
    assert done.stdout.decode().strip().split("|") == [module, namespace.namespace_id(), "docs"]


def test_threads_share_a_client(namespace: LanceNamespace, home: list[str], vectors: pa.Table) -> None:
    def work(number: int) -> str | None:
        table = [*home, f"docs_{number:02}"]
        lance.write_dataset(vectors.slice(number, 1), namespace_client=namespace, table_id=table, mode="create")
        append(namespace, [*home, "shared"], vectors.slice(number, 1))
        assert lance.dataset(namespace_client=namespace, table_id=table).to_table()["id"].to_pylist() == [number]
        return namespace.describe_table(DescribeTableRequest(id=table)).location

    lance.write_dataset(vectors.slice(0, 0), namespace_client=namespace, table_id=[*home, "shared"], mode="create")
    with ThreadPoolExecutor(THREADS) as threads:
        locations = set(threads.map(work, range(THREADS)))
    assert len(locations) == THREADS
    assert namespace.list_tables(ListTablesRequest(id=home)).tables == [
        *(f"docs_{number:02}" for number in range(THREADS)),
        "shared",
    ]
    shared = lance.dataset(namespace_client=namespace, table_id=[*home, "shared"]).to_table()
    assert sorted(shared["id"].to_pylist()) == list(range(THREADS))


CLASHES = {
    "lancehouse alone": ("import lancehouse", "lancehouse"),
    "lancehouse last": ("import lance_namespace_impls, lancehouse", "lancehouse"),
    "the peer last": ("import lancehouse, lance_namespace_impls", "lance_namespace_impls"),
}
"""Imports, and whose the aliases are after them: the last one has them. The class paths are always ours."""


CONNECT = """
    from lance_namespace import connect
    for alias, path, properties in [
        ("iceberg", "lancehouse.IcebergNamespace", {"endpoint": "http://127.0.0.1:9"}),
        ("polaris", "lancehouse.PolarisNamespace", {"polaris.endpoint": "http://127.0.0.1:9"}),
        ("unity", "lancehouse.UnityNamespace", {"unity.endpoint": "http://127.0.0.1:9", "unity.catalog": "c"}),
    ]:
        for name in (alias, path):
            print(type(connect(name, properties)).__module__.partition(".")[0])
"""


@pytest.mark.parametrize(("imports", "owner"), CLASHES.values(), ids=list(CLASHES))
def test_class_paths_are_immune(imports: str, owner: str) -> None:
    command = [sys.executable, "-W", "ignore", "-c", f"{imports}\n{dedent(CONNECT)}"]
    done = subprocess.run(command, capture_output=True, timeout=60, check=False, text=True)
    assert (done.returncode, done.stdout.split()) == (0, [owner, "lancehouse"] * 3), done.stderr
