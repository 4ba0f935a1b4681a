"""Sample data of the demo: deterministic documents on five topics, and a simple embedding."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet

DIMENSION = 128
TOPICS = {
    "storage": ["object store", "column file", "old snapshot", "manifest"],
    "search": ["vector index", "inverted index", "full text query", "tokenizer"],
    "catalog": ["namespace", "table entry", "commit", "access token"],
    "kitchen": ["sourdough bread", "tomato soup", "apple pie", "lentil stew"],
    "garden": ["rose bush", "cherry tree", "compost heap", "garden pond"],
}
SAYINGS = [
    "how a {} is made, step by step",
    "what to do when a {} is broken",
    "the history of the {} in ten minutes",
    "five mistakes with a {} and how to avoid them",
    "keeping a {} small and tidy",
]
PLACES = ["Berlin", "Lagos", "Lima", "Osaka", "Oslo", "Pune", "Quito", "Riga", "Sydney", "Tunis"]


def write_files(folder: Path) -> int:
    """Write the documents as one Parquet file for each topic, and return their number."""
    folder.mkdir()
    number = 0
    for topic, things in TOPICS.items():
        texts = list(_texts(things))
        ids = pa.array(range(number, number + len(texts)), pa.int64())
        parquet.write_table(
            pa.table({"id": ids, "topic": [topic] * len(texts), "text": texts}), folder / f"{topic}.parquet"
        )
        number += len(texts)
    return number


def _texts(things: Iterable[str]) -> Iterator[str]:
    for thing, saying, place in product(things, SAYINGS, PLACES):
        yield f"{saying.format(thing)}, seen in {place}"


def rows(ids: Iterable[int], topic: str, texts: Iterable[str]) -> pa.Table:
    """Return documents as rows of the pipeline's table."""
    ids, text_array = list(ids), pa.array(texts, pa.string())
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(embed(text_array).reshape(-1)), DIMENSION)
    return pa.table(
        {"id": pa.array(ids, pa.int64()), "topic": [topic] * len(ids), "text": text_array, "embedding": vectors}
    )


def embed(text: pa.Array[Any]) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return a vector for each text: counts of hashed words and letter triples. A real pipeline would call a model."""
    return np.array([vector(str(value)) for value in text.to_pylist()], np.float32).reshape(-1, DIMENSION)


def vector(text: str) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return the vector of one text; similar texts have vectors near each other."""
    words = text.lower().replace(",", "").split()
    triples = [word[start : start + 3] for word in words for start in range(max(1, len(word) - 2))]
    counts = np.zeros(DIMENSION, np.float32)
    for part in words * 2 + triples:
        counts[zlib.crc32(part.encode()) % DIMENSION] += 1
    return counts / max(float(np.linalg.norm(counts)), 1.0)
