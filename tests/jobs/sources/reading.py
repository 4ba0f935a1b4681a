"""A source read as tasks read it: in another process's memory, unit by unit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle

from lancehouse.jobs.sources.ingest_source import IngestSource, open_source


def read(source: IngestSource, schema: pa.Schema | None = None) -> pa.Table:
    """All rows, in the source's schema or another."""
    wanted = source.schema if schema is None else schema
    batches = []
    for unit in source.units:
        sent = cloudpickle.loads(cloudpickle.dumps(unit))
        assert sent.key == unit.key
        batches += list(sent.batches(wanted))
    for batch in batches:
        assert batch.schema.equals(wanted, check_metadata=True)
        batch.validate(full=True)
    return pa.Table.from_batches(batches, schema=wanted)


def rows(source: Any, options: Mapping[str, str] | None = None, **arguments: Any) -> list[Any]:
    """All rows of a source that is opened for them."""
    return read(open_source(source, options=options or {}, **arguments)).to_pylist()
