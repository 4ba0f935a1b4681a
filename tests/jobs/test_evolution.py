from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from lance_namespace.errors import TableSchemaValidationError

from lancehouse.jobs.table_changes import is_widening, plan_evolution
from lancehouse.schema.spark import parse_schema

WIDENED = [
    (pa.int8(), pa.int64()),
    (pa.uint8(), pa.int16()),
    (pa.uint32(), pa.uint64()),
    (pa.float16(), pa.float32()),
    (pa.float32(), pa.float64()),
    (pa.decimal128(5, 2), pa.decimal128(10, 2)),
    (pa.decimal128(5, 2), pa.decimal128(10, 4)),
    (pa.string(), pa.large_string()),
    (pa.binary(), pa.large_binary()),
    (pa.list_(pa.int32()), pa.list_(pa.int64())),
    (pa.list_(pa.float32(), 2), pa.list_(pa.float64(), 2)),
]
NOT_WIDENED = [
    (pa.int64(), pa.int32()),
    (pa.int32(), pa.uint64()),
    (pa.uint32(), pa.int32()),
    (pa.int32(), pa.float64()),
    (pa.float64(), pa.float32()),
    (pa.decimal128(5, 2), pa.decimal128(5, 4)),
    (pa.decimal128(5, 2), pa.decimal256(50, 2)),
    (pa.int32(), pa.string()),
    (pa.date32(), pa.timestamp("us")),
    (pa.list_(pa.float32(), 2), pa.list_(pa.float64(), 3)),
]


@pytest.mark.parametrize(("before", "after"), WIDENED, ids=str)
def test_types_that_widen(before: pa.DataType, after: pa.DataType) -> None:
    assert is_widening(before, after)
    assert not is_widening(after, before)


@pytest.mark.parametrize(("before", "after"), WIDENED, ids=str)
def test_lance_widens_them(before: pa.DataType, after: pa.DataType) -> None:
    """No value is lost, and null stays null."""
    import lance

    value: Any = [1, 2] if isinstance(before, pa.ListType | pa.FixedSizeListType) else 1
    is_text = before in (pa.string(), pa.binary())
    values: Any = pa.array(["a", None], pa.string()).cast(before) if is_text else pa.array([value, None], before)
    dataset = lance.write_dataset(pa.table({"a": values}), "memory://")
    dataset.alter_columns({"path": "a", "data_type": after})
    assert dataset.schema.field("a").type == after
    assert dataset.to_table()["a"].to_pylist() == values.to_pylist()


@pytest.mark.parametrize(("before", "after"), NOT_WIDENED, ids=str)
def test_types_that_do_not(before: pa.DataType, after: pa.DataType) -> None:
    assert not is_widening(before, after)


TABLE = "id int NOT NULL, word string, s struct<a: int, t: struct<u: int>>, l array<struct<x: int>>"


@pytest.mark.parametrize(
    ("incoming", "target", "new", "wider"),
    [
        ("id int, word string", TABLE, "", {}),
        ("word string", TABLE, "", {}),
        ("id smallint", TABLE, "", {}),
        ("n int NOT NULL", f"{TABLE}, n int", "n int", {}),
        ("id bigint", TABLE.replace("id int", "id bigint"), "", {"id": pa.int64()}),
        ("s struct<b: int>", TABLE.replace("u: int>", "u: int>, b: int"), "s struct<b: int>", {}),
        ("s struct<t: struct<v: int>>", TABLE.replace("u: int", "u: int, v: int"), "s struct<t: struct<v: int>>", {}),
        ("s struct<a: bigint>", TABLE.replace("a: int", "a: bigint"), "", {"s.a": pa.int64()}),
        ("s struct<t: struct<u: bigint>>", TABLE.replace("u: int", "u: bigint"), "", {"s.t.u": pa.int64()}),
        ("l array<struct<y: int>>", TABLE.replace("x: int", "x: int, y: int"), "l array<struct<y: int>>", {}),
    ],
)
def test_what_changes(incoming: str, target: str, new: str, wider: dict[str, pa.DataType]) -> None:
    evolution = plan_evolution(parse_schema(TABLE), parse_schema(incoming))
    assert evolution.target == parse_schema(target)
    assert evolution.new == (parse_schema(new) if new else pa.schema([]))
    assert evolution.wider == wider
    assert bool(evolution) == bool(new or wider)
    assert not plan_evolution(evolution.target, parse_schema(incoming)), "once is enough"


@pytest.mark.parametrize(
    ("incoming", "says"),
    [
        ("ID int, Word string", "column ID differs from id by case alone; column Word differs from word by case alone"),
        ("s struct<A: int>", "column s.A differs from a by case alone"),
        ("n void", "column n has the type null"),
        ("id string", "column id is int32 and cannot hold string"),
        ("id double, s struct<a: decimal(5,2)>", "column id is int32 and cannot hold double; column s.a is int32 and"),
        ("l array<struct<x: bigint>>", "column l.element.x is int32 in a list of structs, and cannot become int64"),
    ],
)
def test_what_cannot_evolve_is_named(incoming: str, says: str) -> None:
    with pytest.raises(TableSchemaValidationError, match=says):
        plan_evolution(parse_schema(TABLE), parse_schema(incoming))


def test_some_columns_stay_as_they_are() -> None:
    assert not plan_evolution(parse_schema("id int"), parse_schema("id bigint"), fixed=["id"])
    floats, doubles = (pa.schema([pa.field("v", pa.list_(each, 2))]) for each in (pa.float32(), pa.float64()))
    assert not plan_evolution(floats, doubles)
    blob = pa.field("b", pa.struct([("data", pa.large_binary())]), metadata={"ARROW:extension:name": "lance.blob.v2"})
    assert not plan_evolution(pa.schema([blob]), parse_schema("b struct<other: int>"))
