"""The steps of the demo: a pipeline, reads by lance, pyiceberg and Spark SQL, an upsert, a commit conflict."""

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

from lancehouse.cli.demo import sample_data
from lancehouse.cli.output import output_columns
from lancehouse.clients.transactions import transaction
from lancehouse.jobs.engine import TaskProgress
from lancehouse.pipelines import load
from lancehouse.spark import LanceCatalog
from lancehouse.spark.engine import watch_tasks

if TYPE_CHECKING:
    from lancehouse.cli.demo.command import DemoOutput
    from lancehouse.cli.output import ProgressDisplay

IMPL = "lancehouse.IcebergNamespace"
NAMESPACE = ["main", "library"]
ID = [*NAMESPACE, "documents"]
TABLE = ".".join(ID)
PIPELINE = "pipeline.yml"
QUESTION = "my vector index is broken"
NEAREST = 200
QUERY = (
    "SELECT topic, count(*) AS documents, min(_distance) AS distance "  # noqa: S608
    f"FROM vector_search('documents', :question, k => {NEAREST}) GROUP BY topic ORDER BY distance"
)

HITS = output_columns(distance="Distance", topic="Topic", text="Text", numbers=("distance",))
GROUPS = output_columns(topic="Topic", documents="Documents", distance="Distance", numbers=("documents", "distance"))
VERSIONS = output_columns(
    version="Version", operation="Operation", rows="Rows", tags="Tags", numbers=("version", "rows")
)
PATIENCE_S = 60.0
"""Seconds for which one writer waits until the other is ready."""


@dataclass(frozen=True, slots=True)
class DemoEnvironment:
    """Server, folder and Spark session of the demo."""

    story: DemoOutput
    endpoint: str
    """URL of the Iceberg REST catalog."""
    folder: Path
    spark: Any

    @property
    def properties(self) -> dict[str, str]:
        """Properties of the demo's clients; the catalog manages the versions of the tables that they create."""
        return {"endpoint": self.endpoint, "managed_by": "impl"}

    def client(self) -> LanceNamespace:
        """Create a client."""
        return connect(IMPL, self.properties)

    def catalog(self) -> LanceCatalog:
        """Create a LanceCatalog on Spark."""
        return LanceCatalog(self.spark, IMPL, self.properties)

    def dataset(self, version: int | None = None) -> Any:
        """Open the table by its id."""
        return lance.dataset(namespace_client=self.client(), table_id=ID, version=version)


def run_all(stage: DemoEnvironment) -> None:
    """Run all steps."""
    for act in (pipeline, search, scan, query, upsert, race):
        act(stage)


def pipeline(stage: DemoEnvironment) -> None:
    """Run a pipeline that writes files into a table."""
    story = stage.story
    with story.step("Run a pipeline on Spark: Parquet files, embeddings, a Lance table") as progress:
        sample_data.write_files(stage.folder / "documents")
        file = Path(shutil.copy(Path(__file__).with_name(PIPELINE), stage.folder))
        stage.client().create_namespace(CreateNamespaceRequest(id=NAMESPACE))
        on_step = _step_callback(progress) if progress.is_seen else None
        report = load(file, {"endpoint": stage.endpoint}).run(stage.spark, said=on_step)
        if not report.has_passed:
            raise InternalError(f"the pipeline failed: {'; '.join(report.failures)}")
    story.facts["pipeline"] = {"table": TABLE, "rows": report.rows, "version": report.version_after, "tag": report.tag}
    story.say(f"{report.rows:,} documents with {sample_data.DIMENSION}-dimensional vectors are in {TABLE}.")
    story.say(f"Version {report.version_after} was checked, and got the tag {report.tag}.")


def _step_callback(progress: ProgressDisplay) -> Callable[[str, TaskProgress | None], None]:
    def report_step(step: str, tasks: TaskProgress | None) -> None:
        if tasks is None:
            progress.say(step)
        progress.count(*(tasks.done, tasks.total) if tasks else (0, 0))

    return report_step


def search(stage: DemoEnvironment) -> None:
    """Search the nearest vectors with lance."""
    with stage.story.step(f"Search it with lance: “{QUESTION}”"):
        nearest = {"column": "embedding", "q": sample_data.vector(QUESTION), "k": 3}
        matches = stage.dataset().to_table(columns=["topic", "text", "_distance"], nearest=nearest).to_pylist()
    hits = [{"distance": f"{row['_distance']:.2f}", "topic": row["topic"], "text": row["text"]} for row in matches]
    stage.story.facts["search"] = hits
    stage.story.show(HITS, hits, "lance.dataset(namespace_client=…, table_id=…).to_table(nearest=…)")


def scan(stage: DemoEnvironment) -> None:
    """Scan the table with pyiceberg."""
    from pyiceberg.catalog import load_catalog

    with stage.story.step("Scan it with pyiceberg, as if it were an Iceberg table"):
        table = load_catalog("demo", type="rest", uri=stage.endpoint).load_table(tuple(ID[1:]))
        fields = ("id", "topic")
        rows = table.scan(row_filter="topic in ('kitchen', 'garden')", selected_fields=fields).to_arrow()
        counts = Counter(rows["topic"].to_pylist())
    stage.story.facts["pyiceberg"] = {"rows": rows.num_rows, "columns": table.schema().column_names}
    words = ", ".join(f"{count} of {topic}" for topic, count in sorted(counts.items()))
    stage.story.say(f"scan(row_filter=…) gives {rows.num_rows} rows: {words}.")
    stage.story.say(f"It knows {len(table.snapshots())} snapshots; each is a version of Lance.")


def query(stage: DemoEnvironment) -> None:
    """Ask the same question in SQL."""
    catalog, question = stage.catalog(), sample_data.vector(QUESTION).tolist()
    with (
        stage.story.step(f"Ask in SQL of what topics the {NEAREST} nearest are") as progress,
        watch_tasks(stage.spark, _task_callback(progress)),
    ):
        catalog.use(NAMESPACE)
        answer = [row.asDict() for row in catalog.sql(QUERY, {"question": question}).collect()]
    groups = [{**row, "distance": f"{row['distance']:.2f}"} for row in answer]
    stage.story.facts["sql"] = groups
    stage.story.show(GROUPS, groups, f"cat.sql({QUERY!r})")


def _task_callback(progress: ProgressDisplay) -> Callable[[TaskProgress], None] | None:
    return (lambda now: progress.count(now.done, now.total)) if progress.is_seen else None


def upsert(stage: DemoEnvironment) -> None:
    """Upsert rows, and read the versions before and after."""
    story = stage.story
    with (
        story.step("Upsert three documents, and look at both versions") as progress,
        watch_tasks(stage.spark, _task_callback(progress)),
    ):
        table = stage.dataset()
        before, new = table.version, table.count_rows()
        changed = sample_data.rows([0, 1, new], "archive", ["a first text", "a second text", "a text that is new"])
        table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(changed)
        after = stage.dataset().version
        counts = {version: stage.dataset(version).count_rows("topic = 'archive'") for version in (before, after)}
        columns = ("version", "operation", "rows", "tags")
        history = [{name: row[name] for name in columns} for row in stage.catalog().history(TABLE).collect()]
    story.facts["upsert"] = {"archived": counts, "versions": history}
    words = ", ".join(f"version {version} has {count}" for version, count in counts.items())
    story.show(VERSIONS, history, f"Of the topic archive, {words}.")


def race(stage: DemoEnvironment) -> None:
    """Let two transactions start from the same version: the catalog accepts one, and the other retries."""
    story = stage.story
    with story.step("Let two writers commit at the same moment"), ThreadPoolExecutor(2) as threads:
        before, ready = stage.dataset(), Barrier(2)
        rows = before.count_rows()
        names = ("Ann", "Ben")
        refusals = list(
            threads.map(lambda name: _append_with_retries(stage, name, rows + names.index(name), ready), names)
        )
        after = stage.dataset()
    writers = [{"writer": name, "told": refusal} for name, refusal in zip(names, refusals, strict=True)]
    row_count = after.count_rows()
    story.facts["race"] = {"writers": writers, "version": after.version, "rows": row_count}
    for writer in sorted(writers, key=lambda writer: writer["told"] is not None):
        result = "committed." if writer["told"] is None else f"had to retry: {writer['told']}"
        story.say(f"{writer['writer']} {result}")
    story.say(
        f"Version {before.version} had {rows:,} rows; after the second try version {after.version} has {row_count:,}."
    )


def _append_with_retries(stage: DemoEnvironment, name: str, number: int, ready: Barrier) -> str | None:
    """Append a document in a transaction until the catalog accepts it; return the last refusal, or None."""
    client, refusal = stage.client(), None
    while True:
        try:
            with transaction(client) as tx:
                tx.append(ID, sample_data.rows([number], "race", [f"written by {name}"]))
                if refusal is None:
                    ready.wait(PATIENCE_S)
        except ConcurrentModificationError as error:
            refusal = f"error {int(error.code)}, {error}"
        else:
            return refusal
