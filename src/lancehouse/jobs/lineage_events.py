"""Report runs of jobs: OpenLineage events where they are configured, a span of a trace, and the table in the log.

A receiver that fails or is slow never fails a job: events are sent by a thread, for which the job's end waits seconds.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from queue import SimpleQueue
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa

from lancehouse import tracing
from lancehouse.identifiers import format_levels
from lancehouse.jobs.address import TableAddress
from lancehouse.lake.commits import locate_table
from lancehouse.log_lines import log_about

logger = logging.getLogger(__name__)

SETTINGS = ("OPENLINEAGE_URL", "OPENLINEAGE_CONFIG")
TRANSPORT = "OPENLINEAGE__TRANSPORT"
"""Start of the variables that describe another receiver, such as a file."""
PARENT = "OPENLINEAGE_PARENT_ID"
"""Variable with the run that started this program, as `namespace/job/run id`; schedulers set it."""
DEFAULT_NAMESPACE = "lancehouse"
PATIENCE_S = 5.0
"""Seconds for which the end of a job waits until its events are sent."""
MOST_INPUTS = 100

DatasetName = tuple[str, str]
"""Namespace and name, as OpenLineage has them."""
Inputs = Sequence[str | TableAddress | DatasetName]
"""Paths, tables, or names of other sources."""


@dataclass(slots=True)
class RunSummary:
    """What a run has done, filled in by the job."""

    rows: int | None = None
    failure: str | None = None
    """Why the run counts as failed though it raised nothing."""


@dataclass(frozen=True, slots=True)
class RunId:
    """A run of a job."""

    namespace: str
    job: str
    id: str


_current: ContextVar[RunId | None] = ContextVar("lineage_run", default=None)


@contextmanager
def observe_run(kind: str, job: str, inputs: Inputs, output: TableAddress) -> Iterator[RunSummary]:
    """Report the run of a job in the block; a run inside of another is its child.

    Args:
        kind: `ingest` or `pipeline`.
        job: name of the job, the same in each of its runs.
        inputs: what it reads.
        output: the table that it writes.
    """
    summary, table = RunSummary(), output.path or format_levels(output.id)
    with log_about(table=table), tracing.span(kind, {"lancehouse.table": table, "lancehouse.job": job}):
        events = _Events(kind, job, inputs, output) if is_configured() else None
        if events is None:
            yield summary
            return
        token = _current.set(events.run)
        try:
            events.emit("START", summary)
            yield summary
        except BaseException as error:
            summary.failure = type(error).__name__  # its message may show values of rows
            raise
        finally:
            _current.reset(token)
            events.emit("FAIL" if summary.failure else "COMPLETE", summary)
            events.wait()


def is_configured() -> bool:
    """Return whether the variables of OpenLineage name a receiver, and its client is installed."""
    if os.environ.get("OPENLINEAGE_DISABLED", "").lower() == "true":
        return False
    if not any(map(os.environ.get, SETTINGS)) and not any(name.startswith(TRANSPORT) for name in os.environ):
        return False
    if find_spec("openlineage") is None:
        logger.warning("OPENLINEAGE_… variables ask for events, which need pip install 'lancehouse[lineage]'")
        return False
    return True


@dataclass(slots=True)
class _Events:
    """The events of one run."""

    kind: str
    job: str
    inputs: Inputs
    output: TableAddress
    run: RunId = field(init=False)
    parent: RunId | None = field(init=False)
    _queue: SimpleQueue[Any] = field(init=False)
    _thread: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        from openlineage.client.uuid import generate_new_uuid

        namespace = os.environ.get("OPENLINEAGE_NAMESPACE", DEFAULT_NAMESPACE)
        self.run = RunId(namespace, self.job, str(generate_new_uuid()))
        self.parent = _current.get() or _parse_parent(os.environ.get(PARENT, ""))
        self._queue = SimpleQueue()
        self._thread = threading.Thread(target=_send_events, args=(self._queue,), name="lineage", daemon=True)
        self._thread.start()

    def emit(self, state: str, summary: RunSummary) -> None:
        """Have an event sent."""
        try:
            self._queue.put(self._describe(state, summary))
        except Exception as error:  # noqa: BLE001 - nothing about events must harm the job
            logger.warning("an OpenLineage event is not sent: %s", type(error).__name__)

    def wait(self) -> None:
        """Wait for a while until all events are sent."""
        self._queue.put(None)
        self._thread.join(PATIENCE_S)
        if self._thread.is_alive():
            logger.warning("the receiver of OpenLineage events is slow: the job does not wait for it")

    def _describe(self, state: str, summary: RunSummary) -> Any:
        from openlineage.client import event_v2
        from openlineage.client.facet_v2 import error_message_run, job_type_job, parent_run

        facets: dict[str, Any] = {}
        if self.parent is not None:
            facets["parent"] = parent_run.ParentRunFacet(
                run=parent_run.Run(self.parent.id), job=parent_run.Job(self.parent.namespace, self.parent.job)
            )
        if summary.failure:
            facets["errorMessage"] = error_message_run.ErrorMessageRunFacet(summary.failure, "Python")
        kind = job_type_job.JobTypeJobFacet("BATCH", "LANCEHOUSE", self.kind.upper())
        return event_v2.RunEvent(
            eventTime=datetime.now(UTC).isoformat(),
            producer=f"lancehouse/{version('lancehouse')}",
            eventType=event_v2.RunState[state],
            run=event_v2.Run(self.run.id, facets),
            job=event_v2.Job(self.run.namespace, self.run.job, {"jobType": kind}),
            inputs=[event_v2.InputDataset(*_name_input(source)) for source in self.inputs[:MOST_INPUTS]],
            outputs=[self._describe_output(state, summary)],
        )

    def _describe_output(self, state: str, summary: RunSummary) -> Any:
        from openlineage.client.event_v2 import OutputDataset
        from openlineage.client.facet_v2 import (
            output_statistics_output_dataset,
            schema_dataset,
            symlinks_dataset,
        )

        name = name_table(self.output)
        if state != "COMPLETE":
            return OutputDataset(*name)
        table = self.output.to_ref()
        identifier = symlinks_dataset.Identifier(*name_dataset(locate_table(table).location), "LOCATION")
        facets = {
            "schema": schema_dataset.SchemaDatasetFacet(_describe_fields(table.open().schema)),
            "symlinks": symlinks_dataset.SymlinksDatasetFacet([identifier]),
        }
        statistics = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(rowCount=summary.rows)
        return OutputDataset(*name, {"outputStatistics": statistics} if summary.rows is not None else {}, facets=facets)


def _send_events(queue: SimpleQueue[Any]) -> None:
    try:
        from openlineage.client import OpenLineageClient

        client = OpenLineageClient()
        while (event := queue.get()) is not None:
            client.emit(event)
    except Exception as error:  # noqa: BLE001 - whatever the receiver does must not harm the job
        logger.warning("OpenLineage events are not sent: %s", type(error).__name__)


def _describe_fields(schema: pa.Schema) -> list[Any]:
    from openlineage.client.facet_v2 import schema_dataset

    return [schema_dataset.SchemaDatasetFacetFields(column.name, str(column.type)) for column in schema]


def _parse_parent(text: str) -> RunId | None:
    namespace, _, rest = text.partition("/")
    job, _, run = rest.rpartition("/")
    return RunId(namespace, job, run) if namespace and job and run else None


def _name_input(source: str | TableAddress | DatasetName) -> DatasetName:
    if isinstance(source, tuple):
        return source
    return name_dataset(source) if isinstance(source, str) else name_table(source)


def name_dataset(location: str) -> DatasetName:
    """Return namespace and name of a file or folder as OpenLineage has them; without user, password and query."""
    if "://" not in location and not location.startswith("file:/"):
        return "file", str(Path(location).absolute())  # no URL: `?` and `#` belong to the name of a file, or to a glob
    parts = urlsplit(location)
    if parts.scheme == "file":
        return "file", str(Path(parts.path).absolute())
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}", parts.path.strip("/") or "/"


def name_table(address: TableAddress) -> DatasetName:
    """Return namespace and name of a table: its catalog's address, and its id; or its location if it has no catalog."""
    if address.path is not None or not address.id:
        return name_dataset(address.path or "")
    properties = getattr(address.connection, "properties", None) or getattr(address.connection, "_properties", None)
    endpoint = urlsplit(dict(properties or {}).get("endpoint", ""))
    host = f"{endpoint.scheme}://{endpoint.netloc.rpartition('@')[2]}" if endpoint.netloc else DEFAULT_NAMESPACE
    return host, format_levels(address.id)
