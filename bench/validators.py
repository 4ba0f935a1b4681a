"""Our validation of Iceberg metadata beside strict pydantic models of the same shape: `python -m bench.validators`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import Annotated, Any, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field

from lancehouse.catalog.iceberg import tables

Int = Annotated[int, Field(ge=-(2**31), lt=2**31)]
Long = Annotated[int, Field(ge=-(2**63), lt=2**63)]
Primitive = Annotated[
    str,
    Field(
        pattern=r"^(boolean|int|long|float|double|string|uuid|binary|date|time|timestamp(tz)?(_ns)?|unknown|variant|"
        r"decimal\(\s*\d+\s*,\s*\d+\s*\)|fixed\[\s*\d+\s*\]|geo(metry|graphy).*)$"
    ),
]


class Strict(BaseModel):
    """No conversion of values; fields that the model does not know are kept."""

    model_config = ConfigDict(
        strict=True, extra="allow", alias_generator=lambda name: name.replace("_", "-"), populate_by_name=True
    )


class NestedField(Strict):
    """A field of a struct."""

    id: Int
    name: str
    required: bool
    type: Primitive | Struct | List | Map
    doc: str | None = None


class Struct(Strict):
    """A struct type."""

    type: Literal["struct"]
    fields: list[NestedField]


class List(Strict):
    """A list type."""

    type: Literal["list"]
    element_id: Int
    element: Primitive | Struct | List | Map
    element_required: bool


class Map(Strict):
    """A map type."""

    type: Literal["map"]
    key_id: Int
    key: Primitive | Struct | List | Map
    value_id: Int
    value: Primitive | Struct | List | Map
    value_required: bool


class StrictSchema(Struct):
    """A schema."""

    schema_id: Int = 0
    identifier_field_ids: list[Int] | None = None


class LayoutField(Strict):
    """A field of a partition spec or a sort order."""

    source_id: Int
    transform: str


class Layout(Strict):
    """A partition spec or a sort order."""

    fields: list[LayoutField]


class TableSnapshot(Strict):
    """A snapshot."""

    snapshot_id: Long
    timestamp_ms: Long
    sequence_number: Long = 0
    manifest_list: str
    summary: dict[str, str]


class Ref(Strict):
    """A branch or a tag."""

    snapshot_id: Long
    type: Literal["branch", "tag"]


class SnapshotLogEntry(Strict):
    """When a snapshot was the current one."""

    snapshot_id: Long
    timestamp_ms: Long


class StrictTableMetadata(Strict):
    """The metadata of a table."""

    format_version: Literal[1, 2, 3]
    table_uuid: str
    location: str
    last_sequence_number: Long
    last_updated_ms: Long
    last_column_id: Int
    schemas: list[StrictSchema]
    current_schema_id: Int
    partition_specs: list[Layout]
    default_spec_id: Int
    last_partition_id: Int
    sort_orders: list[Layout]
    default_sort_order_id: Int
    properties: dict[str, str] = {}
    current_snapshot_id: Long | None = None
    snapshots: list[TableSnapshot] = []
    snapshot_log: list[SnapshotLogEntry] = []
    refs: dict[str, Ref] = {}


def document(columns: int, snapshots: int) -> bytes:
    """Return the metadata file of a table, every tenth column of which is nested."""
    nested = {"type": "list", "element-id": 100_000, "element": "string", "element-required": False}
    fields = [
        {
            "id": number,
            "name": f"c{number}",
            "required": False,
            "type": nested | {"element-id": 100_000 + number} if number % 10 == 0 else "long",
        }
        for number in range(1, columns + 1)
    ]
    history = [
        {
            "snapshot-id": number,
            "sequence-number": number,
            "timestamp-ms": 1_700_000_000_000 + number,
            "manifest-list": f"s3://bucket/warehouse/db/t/metadata/snap-{number}.avro",
            "summary": {"operation": "append", "added-records": "10", "total-records": str(10 * number)},
            "schema-id": 0,
        }
        for number in range(1, snapshots + 1)
    ]
    keys = ("snapshot-id", "timestamp-ms")
    return orjson.dumps(
        {
            "format-version": 2,
            "table-uuid": "017f22e2-79b0-7cc3-98c4-dc0c0c07398f",
            "location": "s3://bucket/warehouse/db/t",
            "last-sequence-number": snapshots,
            "last-updated-ms": 1_700_000_000_000,
            "last-column-id": 200_000,
            "schemas": [{"type": "struct", "schema-id": 0, "fields": fields}],
            "current-schema-id": 0,
            "partition-specs": [{"spec-id": 0, "fields": []}],
            "default-spec-id": 0,
            "last-partition-id": 999,
            "sort-orders": [{"order-id": 0, "fields": []}],
            "default-sort-order-id": 0,
            "properties": {},
            "current-snapshot-id": snapshots,
            "snapshots": history,
            "snapshot-log": [{key: snapshot[key] for key in keys} for snapshot in history],
            "refs": {"main": {"snapshot-id": snapshots, "type": "branch"}},
        }
    )


def with_pydantic(raw: bytes) -> dict[str, Any]:
    """Validate, and return JSON again, on which the updates of a commit work."""
    return StrictTableMetadata.model_validate_json(raw).model_dump(by_alias=True, exclude_none=True)


def measure_ms(call: Callable[[bytes], object], raw: bytes, rounds: int) -> float:
    """Return the median time of a call in milliseconds."""
    times = []
    for _ in range(rounds):
        started = perf_counter()
        call(raw)
        times.append(perf_counter() - started)
    return median(times) * 1000


def main() -> None:
    """Print a row of a table for each size of document."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    rounds = parser.parse_args().rounds
    print("| columns | snapshots | KB | ours, ms | pydantic, ms | of which to JSON again | ours / pydantic |")
    print("|---|---|---|---|---|---|---|")
    for columns, snapshots in ((10, 1), (10, 100), (100, 100), (10, 1000), (1000, 1000)):
        raw = document(columns, snapshots)
        count = max(10, rounds * 10_000 // len(raw))
        ours, theirs, shape = (
            measure_ms(call, raw, count)
            for call in (tables.parse_metadata, with_pydantic, StrictTableMetadata.model_validate_json)
        )
        again = max(0, theirs - shape)
        cells = (columns, snapshots, f"{len(raw) / 1000:.0f}", f"{ours:.2f}", f"{theirs:.2f}", f"{again:.2f}")
        print("|", " | ".join(map(str, cells)), f"| {ours / theirs:.2f} |")


if __name__ == "__main__":
    main()
