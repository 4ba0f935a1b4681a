"""The catalogs that the gateway stands in front of in the benchmark, and the ways to them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
from lance_namespace import (
    CreateNamespaceRequest,
    CreateTableRequest,
    DeclareTableRequest,
    LanceNamespace,
    connect,
)

from bench.catalogs import family
from tests.servers.lancehouse import start_lancehouse
from tests.servers.reference import start_reference

DIRECT, GATEWAY, ADAPTER, WIRE = "direct", "gateway", "adapter", "wire"
WAREHOUSE, REFERENCE, FOLDER = "warehouse", "reference", "folder"
TITLES = {
    WAREHOUSE: "a warehouse of the server",
    REFERENCE: "Iceberg's reference server",
    FOLDER: "`dir`",
}
ADAPTER_TAKES = 2 * 2**20
"""Bytes of a request that pylance's adapter accepts."""
DIMENSION = 128
BATCH_ROWS = 8192
MANY, TABLE = "many", "t"
"""The namespace with many tables, and the table that is described and queried."""
DESCRIPTION = json.dumps(
    {
        "location": "/tmp/bench-12345678/reference/tables/wh/bench/t",
        "storage_options": {},
        "properties": {"created_at": "1763451234567", "table_type": "lance", "write.format.default": "lance"},
        "managed_versioning": True,
    }
).encode()
"""What a description of a table looks like on the wire."""


@dataclass(frozen=True, slots=True)
class CatalogSide:
    """One way to a catalog."""

    namespace: LanceNamespace
    levels: Sequence[str]
    """What its ids begin with."""
    pids: Sequence[int] = ()
    """The processes between."""

    def table(self, name: str) -> list[str]:
        """The id of a table."""
        return [*self.levels, name]


@dataclass(frozen=True, slots=True)
class CatalogSides:
    """One catalog, and all ways to it."""

    name: str
    sides: Mapping[str, CatalogSide]
    many: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The id of the namespace with many tables, by side."""


@dataclass(frozen=True, slots=True)
class Rows:
    """What is inserted and found."""

    count: int
    stream: bytes
    """As an Arrow IPC stream."""

    @classmethod
    def make(cls, count: int) -> Rows:
        """Numbers, short texts and vectors."""
        return cls(count, as_stream(table_of(count)))


def table_of(count: int) -> pa.Table:
    """Rows of 550 bytes."""
    numbers = np.arange(count)
    vectors = np.random.default_rng(7).random(count * DIMENSION, dtype=np.float32)
    return pa.table(
        {
            "id": numbers,
            "text": pa.array(np.char.add("row number ", numbers.astype("U9"))),
            "vector": pa.FixedSizeListArray.from_arrays(pa.array(vectors), DIMENSION),
        }
    )


def as_stream(rows: pa.Table) -> bytes:
    """In batches of the size that Lance uses."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows, BATCH_ROWS)
    return sink.getvalue().to_pybytes()


def as_file(rows: pa.Table, file: Path) -> None:
    """As a query is answered."""
    with pa.ipc.new_file(str(file), rows.schema) as writer:
        writer.write_table(rows, BATCH_ROWS)


@contextmanager
def start(folder: Path, rows: Rows, tables: int) -> Iterator[list[CatalogSides]]:
    """All catalogs, filled, until the block ends."""
    with ExitStack() as stack:
        reference = stack.enter_context(start_reference(folder / "reference", java=()))
        root = folder / "folder"
        properties: dict[str, dict[str, Any]] = {
            REFERENCE: {
                "impl": "iceberg",
                "properties": {"endpoint": reference.uri, "root": str(folder / "reference" / "tables")},
            },
            FOLDER: {"impl": "dir", "properties": {"root": str(root)}},
        }
        config = folder / "gateway.yaml"
        config.write_text(json.dumps({"backends": properties}))
        quiet = ["--config", str(config), "--log-level", "warning"]
        server = stack.enter_context(start_lancehouse(folder / "server", options=quiet))
        _fill_folder(root, rows, tables)
        answers = folder / "answers"
        answers.mkdir()
        as_file(table_of(rows.count), answers / "query")
        (answers / "describe").write_bytes(DESCRIPTION)
        adapter = stack.enter_context(_peer("adapter", str(root)))
        wire = stack.enter_context(_peer("wire", str(answers)))

        def gateway(backend: str, levels: Sequence[str]) -> CatalogSide:
            return CatalogSide(connect("rest", {"uri": f"{server.uri}/lance/{backend}"}), levels, family(server.pid))

        def direct(endpoint: str, catalog: str) -> CatalogSide:
            given = dict(properties[REFERENCE]["properties"]) if catalog == "wh" else {}
            return CatalogSide(
                connect("lancehouse.IcebergNamespace", {**given, "endpoint": endpoint}), [catalog, "bench"]
            )

        bare = CatalogSide(connect("rest", {"uri": wire[0]}), ["bench"], [wire[1]])
        found = [
            CatalogSides(
                WAREHOUSE,
                {DIRECT: direct(server.iceberg, "main"), GATEWAY: gateway("main", ["bench"]), WIRE: bare},
                {DIRECT: ["main", MANY], GATEWAY: [MANY]},
            ),
            CatalogSides(
                REFERENCE,
                {DIRECT: direct(reference.uri, "wh"), GATEWAY: gateway(REFERENCE, ["wh", "bench"]), WIRE: bare},
                {DIRECT: ["wh", MANY], GATEWAY: ["wh", MANY]},
            ),
            CatalogSides(
                FOLDER,
                {
                    DIRECT: CatalogSide(connect("dir", {"root": str(root)}), []),
                    GATEWAY: gateway(FOLDER, []),
                    ADAPTER: CatalogSide(connect("rest", {"uri": adapter[0]}), [], [adapter[1]]),
                    WIRE: bare,
                },
                {DIRECT: [], GATEWAY: [], ADAPTER: []},
            ),
        ]
        for catalog in found[:2]:
            _fill(catalog, rows, tables)
        yield found


def _fill(catalog: CatalogSides, rows: Rows, tables: int) -> None:
    side = catalog.sides[DIRECT]
    many = list(catalog.many[DIRECT])
    for levels in (list(side.levels), many):
        side.namespace.create_namespace(CreateNamespaceRequest(id=levels))
    side.namespace.create_table(CreateTableRequest(id=side.table(TABLE)), rows.stream)
    for number in range(tables):
        side.namespace.declare_table(DeclareTableRequest(id=[*many, f"t{number:05}"]))


def _fill_folder(root: Path, rows: Rows, tables: int) -> None:
    """Folders are what this namespace lists: a thousand calls would take it minutes."""
    small = root.with_name("small.lance")
    lance.write_dataset(pa.table({"id": [1]}), small)
    for number in range(tables):
        shutil.copytree(small, root / f"t{number:05}.lance")
    lance.write_dataset(pa.ipc.open_stream(rows.stream), root / f"{TABLE}.lance")


@contextmanager
def _peer(kind: str, argument: str) -> Iterator[tuple[str, int]]:
    """Address and process."""
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.gateway_peers", kind, argument],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout
        address = process.stdout.readline().strip()
        if not address:
            raise RuntimeError(f"{kind} did not come up")
        yield address, process.pid
    finally:
        process.communicate()
