"""How many of the truly nearest rows a search by an index finds: `python -m bench.recall`.

The rows are clustered vectors, because those are hard for product quantization: all rows of a cluster get nearly the
same code, so that only a comparison of the vectors themselves (`refine_factor`) tells them apart.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import lance
import numpy as np
import pyarrow as pa

from lancehouse.lake.dataset import TableRef
from lancehouse.lake.vector_search import SearchEffort, VectorSearch

PYLANCE = "pylance's defaults"
EFFORTS = {
    "default": SearchEffort(),
    "nprobes=1, refine_factor=1": SearchEffort(1, 1),
    "nprobes=20, refine_factor=1": SearchEffort(20, 1),
    "nprobes=20, refine_factor=4": SearchEffort(20, 4),
    "nprobes=20, refine_factor=10": SearchEffort(20, 10),
    "nprobes=64, refine_factor=50": SearchEffort(64, 50),
}


@dataclass(frozen=True)
class RecallCase:
    """Clustered vectors, an index of them, and queries whose answer is known."""

    rows: int = 50_000
    clusters: int = 100
    queries: int = 100
    dimension: int = 64
    k: int = 10
    kind: str = "IVF_PQ"
    params: dict[str, Any] = field(default_factory=lambda: {"num_partitions": 64, "num_sub_vectors": 16})
    spread: float = 0.4
    """Standard deviation inside a cluster; that of the centres is 1."""

    def write(self, place: str) -> lance.LanceDataset:
        """Write the table, columns `id` and `emb`, and build its index."""
        flat = pa.array(self._vectors()[0].ravel())
        columns = {"id": np.arange(self.rows), "emb": pa.FixedSizeListArray.from_arrays(flat, self.dimension)}
        lance.write_dataset(pa.table(columns), place).create_index("emb", self.kind, **self.params)
        return lance.dataset(place)

    def questions(self) -> Iterable[tuple[tuple[float, ...], set[int]]]:
        """Vectors, each with the ids of the `k` rows nearest to it, found by comparing all."""
        vectors, queries = self._vectors()
        for query in queries:
            nearest = np.argsort(((vectors - query) ** 2).sum(axis=1))[: self.k]
            yield tuple(map(float, query)), set(map(int, nearest))

    def recall(self, search: Callable[[tuple[float, ...]], Iterable[int]]) -> float:
        """The share of the nearest rows that a search finds, over all queries."""
        hits = sum(len(nearest.intersection(search(query))) for query, nearest in self.questions())
        return hits / (self.queries * self.k)

    def _vectors(self) -> tuple[Any, Any]:
        random = np.random.default_rng(17)
        centres = random.normal(size=(self.clusters, self.dimension))
        chosen = centres[random.integers(0, self.clusters, self.rows + self.queries)]
        vectors = (chosen + random.normal(scale=self.spread, size=chosen.shape)).astype(np.float32)
        return vectors[: self.rows], vectors[self.rows :]


def measure(case: RecallCase, search: Callable[[tuple[float, ...]], list[Any]]) -> tuple[float, float]:
    """Recall, and the median time of a query in milliseconds."""
    times: list[float] = []

    def timed_search(query: tuple[float, ...]) -> list[Any]:
        started = time.perf_counter()
        found = search(query)
        times.append(time.perf_counter() - started)
        return found

    return case.recall(timed_search), median(times) * 1000


def main() -> None:
    """Print the recall of each effort."""
    case = RecallCase()
    with tempfile.TemporaryDirectory() as folder:
        table = TableRef(str(Path(folder) / "t.lance"))
        dataset = case.write(str(table.location))

        def plain(query: tuple[float, ...]) -> list[Any]:
            nearest = {"column": "emb", "q": list(query), "k": case.k}
            found: list[int] = (
                dataset.scanner(columns=["id", "_distance"], nearest=nearest).to_table()["id"].to_pylist()
            )
            return found

        def by(effort: SearchEffort) -> Callable[[tuple[float, ...]], list[Any]]:
            return lambda query: (
                VectorSearch(query, case.k, "emb", columns=("id",), effort=effort)
                .search_index(table, dataset)["id"]
                .to_pylist()
            )

        print(f"| effort | recall@{case.k} | ms |\n|---|---|---|")
        for name, search in {PYLANCE: plain, **{name: by(effort) for name, effort in EFFORTS.items()}}.items():
            recall, ms = measure(case, search)
            print(f"| {name} | {recall:.3f} | {ms:.1f} |")


if __name__ == "__main__":
    main()
