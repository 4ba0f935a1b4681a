"""Lance tables by their catalog name, on a real Iceberg REST server that this program starts and stops.

Run it with `make demo`. It needs no network once its parts are there, and leaves nothing behind.
"""

from __future__ import annotations

import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
from lance_namespace import (
    CreateNamespaceRequest,
    DescribeTableRequest,
    DropTableRequest,
    ListTablesRequest,
    RenameTableRequest,
    TableNotFoundError,
    connect,
)
from pyiceberg.catalog.rest import RestCatalog
from rich.console import Console
from rich.table import Table

import lancehouse  # noqa: F401  registers iceberg, polaris and unity
from tests.servers.reference import start_reference

DIMENSION = 256
TOPICS = {
    "storage": ["a bucket keeps every object", "columns are laid out in pages", "old versions are cleaned up"],
    "search": ["an index finds the nearest vectors", "words are matched by a full text query", "rank what was found"],
    "catalog": ["a warehouse holds namespaces", "a table is found by its name", "commits are arbitrated in one place"],
}
PLACES = ["in Berlin", "in Lagos", "in Lima", "in Osaka", "at night", "on two cores", "for a team of five"]

console = Console(highlight=False)


def embed(text: str) -> np.ndarray:
    """A small honest embedding: counts of hashed words and letter triples; similar texts are near each other."""
    words = text.lower().split()
    triples = [word[start : start + 3] for word in words for start in range(max(1, len(word) - 2))]
    vector = np.zeros(DIMENSION, dtype=np.float32)
    for part in words * 2 + triples:
        vector[zlib.crc32(part.encode()) % DIMENSION] += 1
    return vector / np.linalg.norm(vector)


def documents() -> pa.Table:
    """Texts with their topic and embedding."""
    rows = [(topic, f"{text} {place}") for topic, texts in TOPICS.items() for text in texts for place in PLACES]
    vectors = np.concatenate([embed(text) for _, text in rows])
    return pa.table(
        {
            "id": pa.array(range(len(rows)), pa.int64()),
            "topic": [topic for topic, _ in rows],
            "text": [text for _, text in rows],
            "embedding": pa.FixedSizeListArray.from_arrays(pa.array(vectors), DIMENSION),
        }
    )


@contextmanager
def step(number: int, title: str) -> Iterator[None]:
    """Say what happens, and show that it is under way."""
    console.print(f"\n[bold cyan]{number}[/] [bold]{title}[/]")
    with console.status("working …"):
        yield


def main() -> None:
    """Tell the story from an empty catalog to a dropped table."""
    console.print("[bold]Lancehouse[/]: Lance tables in the catalog you already run.")
    with tempfile.TemporaryDirectory(prefix="lancehouse-demo-") as folder:
        with step(1, "Start Iceberg's own REST server (the first time, its jars are fetched)"):
            server = start_reference(Path(folder))
            reference = server.__enter__()
        try:
            console.print(f"  ready at {reference.uri}, on SQLite, data in a temporary folder")
            tell(reference.uri, Path(folder) / "lance")
        finally:
            server.__exit__(None, None, None)
    console.print("\nThe server is stopped and its folder is gone. Next:")
    console.print("  .venv/bin/lancehouse conformance -h    check any catalog of yours")
    console.print("  make bench-clients                     side by side with lance-namespace-impls")
    console.print("  docs/iceberg.md, polaris.md, unity.md  every property, mapping and error")


def tell(endpoint: str, root: Path) -> None:
    """Everything that needs the server."""
    table_id = ["demo", "library", "documents"]
    with step(2, "Connect, make a namespace, write a table by its catalog name"):
        catalog = connect("iceberg", {"endpoint": endpoint, "root": str(root)})
        catalog.create_namespace(CreateNamespaceRequest(id=table_id[:2], properties={"owner": "demo"}))
        data = documents()
        lance.write_dataset(data, namespace_client=catalog, table_id=table_id, mode="create")
        tables = catalog.list_tables(ListTablesRequest(id=table_id[:2])).tables
    console.print(f"  {data.num_rows} rows with {DIMENSION}-dimensional vectors; demo.library has {tables}")

    question = "how do I find a table by name"
    with step(3, f"Open it by name and search: {question!r}"):
        dataset = lance.dataset(namespace_client=catalog, table_id=table_id)
        nearest = {"column": "embedding", "q": embed(question), "k": 3}
        hits = dataset.to_table(columns=["topic", "text", "_distance"], nearest=nearest)
    shown = Table("distance", "topic", "text")
    for hit in hits.to_pylist():
        shown.add_row(f"{hit['_distance']:.2f}", hit["topic"], hit["text"])
    console.print(shown)

    with step(4, "Upsert through the catalog, and look at the versions"):
        changed = data.slice(0, 2).set_column(1, "topic", [["archive", "archive"]])
        dataset.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(changed)
        detail = catalog.describe_table(DescribeTableRequest(id=table_id, load_detailed_metadata=True))
        newest = lance.dataset(namespace_client=catalog, table_id=table_id)
        archived = newest.count_rows("topic = 'archive'")
        before = lance.dataset(namespace_client=catalog, table_id=table_id, version=1).count_rows("topic = 'archive'")
    console.print(f"  version {detail.version} has {archived} archived rows, version 1 has {before}")

    with step(5, "The same entry, seen by pyiceberg"):
        entry = RestCatalog("demo", uri=endpoint).load_table(("library", "documents"))
    console.print(f"  {entry.name()} table_type={entry.properties['table_type']} at {entry.location()}")

    with step(6, "Rename it, ask for the old name, drop it with its data"):
        catalog.rename_table(RenameTableRequest(id=table_id, new_table_name="books"))
        try:
            catalog.describe_table(DescribeTableRequest(id=table_id))
        except TableNotFoundError as error:
            answer = f"error {int(error.code)}: {error}"
        dropped = catalog.drop_table(DropTableRequest(id=[*table_id[:2], "books"]))
    console.print(f"  {answer}")
    console.print(f"  data left: {Path(dropped.location or '').exists()}")


if __name__ == "__main__":
    main()
