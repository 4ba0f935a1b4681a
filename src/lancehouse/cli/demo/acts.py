"""One table from every side: written by a pipeline, then seen by lance, pyiceberg and Spark, changed, and raced for."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Barrier
from typing import TYPE_CHECKING, Any

import lance
from lance_namespace import CreateNamespaceRequest, LanceNamespace, connect
from lance_namespace.errors import ConcurrentModificationError, InternalError

from lancehouse.cli.demo import library
from lancehouse.cli.output import Column
from lancehouse.clients.transactions import transaction
from lancehouse.spark import LanceCatalog
from lancehouse.spark.pipelines import load
from lancehouse.spark.watching import Done, watch

if TYPE_CHECKING:
    from lancehouse.cli.demo.story import Story
    from lancehouse.cli.output import Progress

IMPL = "lancehouse.IcebergNamespace"
NAMESPACE = ["main", "library"]
ID = [*NAMESPACE, "documents"]
TABLE = ".".join(ID)
PIPELINE = "pipeline.yml"
QUESTION = "my vector index is broken"
QUERY = "SELECT topic, count(*) AS documents, max(length(text)) AS longest FROM documents GROUP BY topic ORDER BY topic"

HITS = (Column("distance", "Distance", is_number=True), Column("topic", "Topic"), Column("text", "Text"))
GROUPS = (
    Column("topic", "Topic"),
    Column("documents", "Documents", is_number=True),
    Column("longest", "Longest", is_number=True),
)
VERSIONS = (
    Column("version", "Version", is_number=True),
    Column("operation", "Operation"),
    Column("rows", "Rows", is_number=True),
    Column("tags", "Tags"),
)
PATIENCE_S = 60.0
"""How long one writer waits for the other to be ready."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Where it happens."""

    story: Story
    endpoint: str
    """Of the Iceberg REST catalog."""
    folder: Path
    spark: Any

    @property
    def properties(self) -> dict[str, str]:
        """What every client of the demo is given; the catalog decides the commits of the tables that they make."""
        return {"endpoint": self.endpoint, "managed_by": "impl"}

    def client(self) -> LanceNamespace:
        """A new client."""
        return connect(IMPL, self.properties)

    def catalog(self) -> LanceCatalog:
        """The same on Spark."""
        return LanceCatalog(self.spark, IMPL, self.properties)

    def dataset(self, version: int | None = None) -> Any:
        """The table, opened by its name."""
        return lance.dataset(namespace_client=self.client(), table_id=ID, version=version)


def tell(stage: Stage) -> None:
    """All of it."""
    for act in (pipeline, search, scan, query, upsert, race):
        act(stage)


def pipeline(stage: Stage) -> None:
    """Files become a table."""
    story = stage.story
    with story.step("Run a pipeline on Spark: Parquet files, embeddings, a Lance table") as progress:
        library.write_files(stage.folder / "documents")
        file = Path(shutil.copy(Path(__file__).with_name(PIPELINE), stage.folder))
        stage.client().create_namespace(CreateNamespaceRequest(id=NAMESPACE))
        said = _steps(progress) if progress.is_seen else None
        report = load(file, {"endpoint": stage.endpoint}).run(stage.spark, said=said)
        if not report.has_passed:
            raise InternalError(f"the pipeline failed: {'; '.join(report.failures)}")
    story.facts["pipeline"] = {"table": TABLE, "rows": report.rows, "version": report.version_after, "tag": report.tag}
    story.say(f"{report.rows:,} documents with {library.DIMENSION}-dimensional vectors are in {TABLE}.")
    story.say(f"Version {report.version_after} was checked, and got the tag {report.tag}.")


def _steps(progress: Progress) -> Callable[[str, Done | None], None]:
    def said(step: str, tasks: Done | None) -> None:
        if tasks is None:
            progress.say(step)
        progress.count(*(tasks.done, tasks.total) if tasks else (0, 0))

    return said


def search(stage: Stage) -> None:
    """The nearest vectors."""
    with stage.story.step(f"Search it with lance: “{QUESTION}”"):
        nearest = {"column": "embedding", "q": library.vector(QUESTION), "k": 3}
        found = stage.dataset().to_table(columns=["topic", "text", "_distance"], nearest=nearest).to_pylist()
    hits = [{"distance": f"{each['_distance']:.2f}", "topic": each["topic"], "text": each["text"]} for each in found]
    stage.story.facts["search"] = hits
    stage.story.show(HITS, hits, "lance.dataset(namespace_client=…, table_id=…).to_table(nearest=…)")


def scan(stage: Stage) -> None:
    """Iceberg's own client reads it."""
    from pyiceberg.catalog import load_catalog

    with stage.story.step("Scan it with pyiceberg, as if it were an Iceberg table"):
        table = load_catalog("demo", type="rest", uri=stage.endpoint).load_table(tuple(ID[1:]))
        fields = ("id", "topic")
        found = table.scan(row_filter="topic in ('kitchen', 'garden')", selected_fields=fields).to_arrow()
        counts = Counter(found["topic"].to_pylist())
    stage.story.facts["pyiceberg"] = {"rows": found.num_rows, "columns": table.schema().column_names}
    words = ", ".join(f"{count} of {topic}" for topic, count in sorted(counts.items()))
    stage.story.say(f"scan(row_filter=…) gives {found.num_rows} rows: {words}.")
    stage.story.say(f"It knows {len(table.snapshots())} snapshots; each is a version of Lance.")


def query(stage: Stage) -> None:
    """SQL over the same rows."""
    catalog = stage.catalog()
    with stage.story.step("Ask Spark SQL") as progress, watch(stage.spark, _tasks(progress)):
        catalog.register_views(".".join(NAMESPACE))
        groups = [row.asDict() for row in stage.spark.sql(QUERY).collect()]
    stage.story.facts["sql"] = groups
    stage.story.show(GROUPS, groups, QUERY)


def _tasks(progress: Progress) -> Callable[[Done], None] | None:
    return (lambda now: progress.count(now.done, now.total)) if progress.is_seen else None


def upsert(stage: Stage) -> None:
    """What a version was, it stays."""
    story = stage.story
    with (
        story.step("Upsert three documents, and look at both versions") as progress,
        watch(stage.spark, _tasks(progress)),
    ):
        table = stage.dataset()
        before, new = table.version, table.count_rows()
        changed = library.rows([0, 1, new], "archive", ["a first text", "a second text", "a text that is new"])
        table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(changed)
        after = stage.dataset().version
        counts = {each: stage.dataset(each).count_rows("topic = 'archive'") for each in (before, after)}
        found = ("version", "operation", "rows", "tags")
        history = [{name: row[name] for name in found} for row in stage.catalog().history(TABLE).collect()]
    story.facts["upsert"] = {"archived": counts, "versions": history}
    words = ", ".join(f"version {version} has {count}" for version, count in counts.items())
    story.show(VERSIONS, history, f"Of the topic archive, {words}.")


def race(stage: Stage) -> None:
    """Two transactions begin at one version: the catalog lets one of them through."""
    story = stage.story
    with story.step("Let two writers commit at the same moment"), ThreadPoolExecutor(2) as threads:
        before, ready = stage.dataset(), Barrier(2)
        rows = before.count_rows()
        names = ("Ann", "Ben")
        told = list(threads.map(lambda name: _write(stage, name, rows + names.index(name), ready), names))
        after = stage.dataset()
    writers = [{"writer": name, "told": said} for name, said in zip(names, told, strict=True)]
    found = after.count_rows()
    story.facts["race"] = {"writers": writers, "version": after.version, "rows": found}
    for each in sorted(writers, key=lambda writer: writer["told"] is not None):
        story.say(f"{each['writer']} {'committed.' if each['told'] is None else 'was told to retry: ' + each['told']}")
    story.say(
        f"Version {before.version} had {rows:,} rows; after the second try version {after.version} has {found:,}."
    )


def _write(stage: Stage, name: str, number: int, ready: Barrier) -> str | None:
    """Append a document in a transaction, until the catalog accepts it; what it said when it did not."""
    client, told = stage.client(), None
    while True:
        try:
            with transaction(client) as tx:
                tx.append(ID, library.rows([number], "race", [f"written by {name}"]))
                if told is None:
                    ready.wait(PATIENCE_S)
        except ConcurrentModificationError as error:
            told = f"error {int(error.code)}, {error}"
        else:
            return told
