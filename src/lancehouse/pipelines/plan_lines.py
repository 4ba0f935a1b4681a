"""Describe a plan of a pipeline in words, one line for each step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from lancehouse.pipelines.spec import PipelineSpec, SinkPart, StepPart
from lancehouse.pipelines.target_table import TargetState

ARROW, SPARK, DRIVER = "Arrow", "Spark", "driver"
"""Where a step runs."""


@dataclass(frozen=True, slots=True)
class PlanLine:
    """One step of a plan."""

    step: str
    where: str
    does: str
    columns: str = ""
    """The columns after the step."""


def describe_step(part: StepPart, where: str, schema: pa.Schema) -> PlanLine:
    """Describe a step that transforms rows."""
    return PlanLine(part.kind, where, _format_step(part), format_columns(schema))


def describe_end(shape: PipelineSpec, state: TargetState, where: str) -> Iterator[PlanLine]:
    """Describe what is done with the rows: sink, indices, compaction, expectations, publishing."""
    yield PlanLine("sink", where, _format_sink(shape.sink, state))
    for index in shape.indices:
        yield PlanLine("index", ARROW, f"{index.kind.upper()} of {index.column}, called {index.index_name}")
    if shape.compact is not None:
        yield PlanLine("compact", ARROW, "make fewer, larger fragments")
    if expectations := [name for name in ("rows", "not_null", "unique", "where") if getattr(shape.expect, name)]:
        yield PlanLine("expect", ARROW, f"{', '.join(expectations)}; else {shape.expect.on_failure}")
    if shape.publish is not None:
        yield PlanLine("publish", DRIVER, f"tag {shape.publish.tag}")


def format_columns(schema: pa.Schema) -> str:
    """Return columns with their types as text."""
    return ", ".join(f"{field.name} {_format_type(field.type)}" for field in schema)


def _format_type(dtype: Any) -> str:
    return f"{dtype.value_type}[{dtype.list_size}]" if isinstance(dtype, pa.FixedSizeListType) else str(dtype)


def _format_step(part: StepPart) -> str:
    if part.embed is not None:
        return f"{part.embed.into} = {part.embed.function}({', '.join(part.embed.from_)})"
    if part.select is None:
        return " ".join(str(getattr(part, part.kind)).split())
    selected = (name if said == name else f"{said} AS {name}" for name, said in part.select.items())
    return ", ".join(selected) + (f" WHERE {part.where}" if part.where else "")


def _format_sink(sink: SinkPart, state: TargetState) -> str:
    if state.run_version is not None:
        return f"nothing: this run has made version {state.run_version} of {sink.table}"
    if state.dataset is None:
        return f"create {sink.table}"
    by = f" by {', '.join(sink.on)}" if sink.on else ""
    return f"{sink.mode} {sink.table}{by}, at version {state.version}"
