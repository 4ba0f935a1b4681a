"""Ingest JSON documents into a Lance table of a catalog, compute embeddings, build indices, and search.

Run it with `python -m examples.documents`. It starts a catalog server and Spark, needs no network, and leaves nothing
behind.
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from rich.table import Table

from examples.telling import Story, telling
from lancehouse.spark import LanceCatalog

DIMENSION = 128
TABLE = "main.library.documents"
SUBJECTS = {
    "storage": ["object store", "column file", "row group", "snapshot", "manifest", "deleted row", "page of a column"],
    "search": ["vector index", "inverted index", "nearest neighbour", "full text query", "ranking", "tokenizer"],
    "catalog": ["namespace", "table entry", "commit", "branch", "tag", "access token", "warehouse"],
    "kitchen": ["sourdough bread", "tomato soup", "apple pie", "roasted pepper", "lentil stew", "green tea"],
    "garden": ["rose bush", "cherry tree", "vegetable bed", "compost heap", "lavender", "garden pond"],
}
SAYINGS = [
    "how a {} is made, step by step",
    "what to do when a {} is broken",
    "the history of the {} in ten minutes",
    "a {} for beginners",
    "why every team needs a {}",
    "five mistakes with a {} and how to avoid them",
    "keeping a {} small and fast",
    "the best time of the year for a {}",
]
PLACES = ["Berlin", "Lagos", "Lima", "Osaka", "Oslo", "Pune", "Quito", "Riga", "Sydney", "Tunis"]
QUESTIONS = ["my vector index is broken", "how do I bake bread", "old snapshots in a table"]


def embed(text: str) -> np.ndarray:
    """Return the counts of hashed words and groups of three letters; similar texts have similar vectors."""
    words = text.lower().split()
    triples = [word[start : start + 3] for word in words for start in range(max(1, len(word) - 2))]
    vector = np.zeros(DIMENSION, dtype=np.float32)
    for part in words * 2 + triples:
        vector[zlib.crc32(part.encode()) % DIMENSION] += 1
    return vector / np.linalg.norm(vector)


def embeddings(batch: pa.RecordBatch) -> pa.Array[Any]:
    """Return the vectors of a batch of documents. This runs in Spark's tasks, in Arrow."""
    texts: list[Any] = batch["text"].to_pylist()
    vectors = np.concatenate([embed(text) for text in texts] or [np.zeros(0, np.float32)])
    return pa.FixedSizeListArray.from_arrays(pa.array(vectors, pa.float32()), DIMENSION)


def write_files(folder: Path) -> int:
    """Write the documents as JSON files, in a folder for each subject; return how many."""
    count = 0
    for subject, things in SUBJECTS.items():
        documents = [
            {"id": f"{subject}-{number}", "text": f"{saying.format(thing)}, seen in {place}"}
            for number, (thing, saying, place) in enumerate(
                (thing, saying, place) for thing in things for saying in SAYINGS for place in PLACES
            )
        ]
        file = folder / f"subject={subject}" / "documents.json"
        file.parent.mkdir(parents=True)
        file.write_text("\n".join(map(json.dumps, documents)))
        count += len(documents)
    return count


def main() -> None:
    """Run the example, from a folder of files to search results."""
    with telling("Documents: from a folder of JSON to answers, in a catalog") as story:
        with story.step("Write a folder of documents, one file for each subject"):
            count = write_files(story.folder / "files")
        story.say(f"{count} documents")
        tell(story, story.catalog("library"))


def tell(story: Story, catalog: LanceCatalog) -> None:
    """Run the steps that need the catalog."""
    with story.step("Ingest the files: tasks read and write in Arrow, one commit"):
        version = catalog.ingest(story.folder / "files", TABLE)
    story.say(f"version {version} of {TABLE} has {catalog.count(TABLE)} rows; the folders' names are a column")

    with story.step(f"Add a column of {DIMENSION}-dimensional embeddings; what is there is not written again"):
        version = catalog.add_columns(TABLE, {"embedding": embeddings}, read_columns=["text"])
    story.say(f"version {version}; any function from an Arrow batch to an array will do, also that of a model")

    with story.step("Build a vector index and one of words"):
        vectors = catalog.create_index(TABLE, "embedding", "IVF_FLAT", num_partitions=8, metric="cosine")
        words = catalog.create_index(TABLE, "text", "INVERTED")
    story.say(f"{vectors.name} and {words.name}")

    found = Table("question", "distance", "subject", "text")
    with story.step("Ask"):
        for question in QUESTIONS:
            hits = catalog.search(TABLE, embed(question), k=2, columns=["subject", "text"]).collect()
            for number, hit in enumerate(hits):
                found.add_row("" if number else question, f"{hit['_distance']:.2f}", hit["subject"], hit["text"])
            found.add_section()
    story.show(found)

    with story.step("What happened, version by version"):
        versions = catalog.history(TABLE).collect()
    shown = Table("version", "operation", "rows", "files")
    for each in versions:
        shown.add_row(*(str(each[name]) for name in ("version", "operation", "rows", "files")))
    story.show(shown)


if __name__ == "__main__":
    main()
