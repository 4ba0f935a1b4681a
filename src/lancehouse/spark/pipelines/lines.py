"""A plan in words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from lancehouse.spark.pipelines.shape import Shape, SinkPart, StepPart
from lancehouse.spark.pipelines.tables import State

ARROW, SPARK, DRIVER = "Arrow", "Spark", "driver"
"""Where a step runs."""


@dataclass(frozen=True, slots=True)
class Line:
    """One step of a plan."""

    step: str
    where: str
    does: str
    columns: str = ""
    """Those that there are after it."""


def of_step(part: StepPart, where: str, schema: pa.Schema) -> Line:
    """What a step does."""
    return Line(part.kind, where, _does(part), columns(schema))


def of_end(shape: Shape, state: State, where: str) -> Iterator[Line]:
    """What is done with the rows."""
    yield Line("sink", where, _goes(shape.sink, state))
    for index in shape.indices:
        yield Line("index", ARROW, f"{index.kind.upper()} of {index.column}, called {index.called}")
    if shape.compact is not None:
        yield Line("compact", ARROW, "make fewer, larger fragments")
    if asked := [name for name in ("rows", "not_null", "unique", "where") if getattr(shape.expect, name)]:
        yield Line("expect", ARROW, f"{', '.join(asked)}; else {shape.expect.on_failure}")
    if shape.publish is not None:
        yield Line("publish", DRIVER, f"tag {shape.publish.tag}")


def columns(schema: pa.Schema) -> str:
    """Columns with their types."""
    return ", ".join(f"{field.name} {_short(field.type)}" for field in schema)


def _short(dtype: Any) -> str:
    return f"{dtype.value_type}[{dtype.list_size}]" if isinstance(dtype, pa.FixedSizeListType) else str(dtype)


def _does(part: StepPart) -> str:
    if part.embed is not None:
        return f"{part.embed.into} = {part.embed.function}({', '.join(part.embed.from_)})"
    if part.select is None:
        return " ".join(str(getattr(part, part.kind)).split())
    chosen = (name if said == name else f"{said} AS {name}" for name, said in part.select.items())
    return ", ".join(chosen) + (f" WHERE {part.where}" if part.where else "")


def _goes(sink: SinkPart, state: State) -> str:
    if state.made is not None:
        return f"nothing: this run has made version {state.made} of {sink.table}"
    if state.dataset is None:
        return f"create {sink.table}"
    by = f" by {', '.join(sink.on)}" if sink.on else ""
    return f"{sink.mode} {sink.table}{by}, at version {state.version}"
