"""The tables of types, proven on pylance, and the walk over them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from lance_namespace.errors import TableSchemaValidationError

from lancehouse.schema import walk
from lancehouse.schema.walk import FoldedField, Node, arrow_field, field_ids, fold
from tests.schema.storable import BLOB, CHANGED, LEGACY_BLOB, REFUSED, STORABLE, label, schemas


def create_table(schema: pa.Schema, at: Path, **options: Any) -> lance.LanceDataset:
    lance.write_dataset(pa.Table.from_batches([], schema), str(at), mode="overwrite", **options)
    return lance.dataset(str(at))


class Everything:
    """Folds back to the Arrow type, and notes the order of the way down."""

    def __init__(self) -> None:
        self.entered: list[tuple[str, ...]] = []

    def enter(self, node: Node) -> pa.DataType | None:
        self.entered.append(node.path)
        return None

    def leaf(self, node: Node) -> pa.DataType:
        return node.type

    def dictionary(self, node: Node, values: pa.DataType) -> pa.DataType:
        assert isinstance(node.type, pa.DictionaryType)
        assert node.type.value_type == values
        return node.type

    def list(self, node: Node, element: FoldedField[pa.DataType]) -> pa.DataType:
        match dtype := node.type:
            case pa.FixedSizeListType():
                return pa.list_(field_of(element), dtype.list_size)
            case pa.LargeListType():
                return pa.large_list(field_of(element))
        return pa.list_(field_of(element))

    def map(self, node: Node, key: FoldedField[pa.DataType], value: FoldedField[pa.DataType]) -> pa.DataType:
        return walk.map_type(field_of(key), field_of(value))

    def struct(self, node: Node, fields: Sequence[FoldedField[pa.DataType]]) -> pa.DataType:
        return pa.struct([field_of(field) for field in fields])


def field_of(folded: FoldedField[pa.DataType]) -> pa.Field[Any]:
    node = folded.node
    made = arrow_field(node.path, folded.type, nullable=node.nullable, metadata=node.metadata)
    return made.with_name(node.name)


def test_every_type_of_the_table_is_stored_by_lance(tmp_path: Path) -> None:
    schema = pa.schema([field.with_name(f"{at}{field.name}") for at, field in enumerate(STORABLE)])
    assert create_table(schema, tmp_path / "t").schema.equals(schema, check_metadata=True)


@pytest.mark.parametrize("field", STORABLE, ids=label)
def test_rows_of_every_type_are_stored_by_lance(tmp_path: Path, field: pa.Field[Any]) -> None:
    schema = pa.schema([pa.field("c", field.type, metadata=field.metadata)])
    rows = pa.Table.from_arrays([pa.nulls(2, field.type)], schema=schema)
    dataset = lance.write_dataset(rows, str(tmp_path / "t"))
    assert dataset.schema.equals(schema, check_metadata=True)
    assert dataset.to_table().num_rows == 2


def test_a_legacy_blob_is_stored_by_lance(tmp_path: Path) -> None:
    schema = pa.schema([LEGACY_BLOB])
    assert create_table(schema, tmp_path / "t", data_storage_version="2.1").schema.equals(schema, check_metadata=True)
    assert create_table(schema, tmp_path / "u").schema.field("c").type.extension_name == BLOB.extension_name


@pytest.mark.parametrize(("given_type", "kept"), CHANGED, ids=label)
def test_what_lance_changes(tmp_path: Path, given_type: pa.DataType, kept: pa.DataType) -> None:
    assert create_table(pa.schema([("c", given_type)]), tmp_path / "t").schema.field("c").type == kept


@pytest.mark.parametrize("dtype", REFUSED, ids=label)
def test_what_lance_refuses(tmp_path: Path, dtype: pa.DataType) -> None:
    with pytest.raises((OSError, pa.ArrowNotImplementedError)):
        create_table(pa.schema([("c", dtype)]), tmp_path / "t")


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(schema=schemas())
def test_random_schemas_are_stored_by_lance(tmp_path: Path, schema: pa.Schema) -> None:
    assert create_table(schema, tmp_path / "t").schema.equals(schema, check_metadata=True)


@pytest.mark.parametrize("field", [*STORABLE, LEGACY_BLOB], ids=label)
def test_the_walk_loses_nothing(field: pa.Field[Any]) -> None:
    (folded,) = fold([field], Everything())
    assert field_of(folded).equals(field, check_metadata=True)


@settings(deadline=None)
@given(schema=schemas())
def test_the_walk_loses_nothing_of_random_schemas(schema: pa.Schema) -> None:
    back = pa.schema([field_of(folded) for folded in fold(schema, Everything())])
    assert back.equals(schema, check_metadata=True)


@pytest.mark.parametrize("dtype", REFUSED, ids=label)
def test_the_error_names_type_and_path(dtype: pa.DataType) -> None:
    nested = pa.schema([("top", pa.list_(pa.struct([("below", dtype)])))])
    with pytest.raises(TableSchemaValidationError) as raised:
        fold(nested, Everything())
    assert "top.element.below" in str(raised.value)
    assert str(dtype) in str(raised.value)


def test_parents_come_before_their_children() -> None:
    visitor = Everything()
    fold(pa.schema([("s", pa.struct([("l", pa.list_(pa.int8()))])), ("m", pa.map_(pa.string(), pa.int8()))]), visitor)
    assert [".".join(path) for path in visitor.entered] == ["s", "s.l", "s.l.element", "m", "m.key", "m.value"]


@pytest.mark.parametrize("metadata", [{b"k": b"\xff"}, {b"\xff": b"v"}])
def test_metadata_must_be_text(metadata: dict[bytes, bytes]) -> None:
    with pytest.raises(TableSchemaValidationError, match="column c: "):
        fold([pa.field("c", pa.int8(), metadata={**metadata})], Everything())


def test_an_extension_that_does_not_fit_its_storage() -> None:
    with pytest.raises(TableSchemaValidationError, match=r"column c: int8 cannot hold arrow\.uuid"):
        arrow_field(("c",), pa.int8(), nullable=True, metadata={walk.EXTENSION: "arrow.uuid"})


def test_a_field_of_an_unknown_extension_keeps_its_name() -> None:
    metadata = {walk.EXTENSION: "nobody.knows", walk.EXTENSION_METADATA: "x"}
    assert arrow_field(("c",), pa.int8(), nullable=True, metadata=metadata).equals(
        pa.field("c", pa.int8(), metadata={**metadata}), check_metadata=True
    )


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        (pa.decimal128(38, 10), (38, 10)),
        (pa.decimal128(2, 5), (5, 5)),
        (pa.decimal256(38, 38), (38, 38)),
        (pa.decimal256(39, 1), None),
        (pa.decimal256(2, 39), None),
        (pa.decimal128(10, -2), None),
    ],
    ids=label,
)
def test_narrow_decimal(dtype: pa.Decimal128Type[Any, Any], expected: tuple[int, int] | None) -> None:
    assert walk.narrow_decimal(dtype) == expected


def test_field_ids_are_those_of_lance(tmp_path: Path) -> None:
    schema = pa.schema(
        [
            pa.field("i", pa.int32()),
            pa.field("l", pa.list_(pa.field("other", pa.struct([("a", pa.int8()), ("b", pa.list_(pa.int8()))])))),
            pa.field("v", pa.list_(pa.float32(), 4)),
            pa.field("sv", pa.list_(pa.struct([("a", pa.int8())]), 4)),
            pa.field("m", pa.map_(pa.field("k", pa.string(), nullable=False), pa.struct([("x", pa.int8())]))),  # type: ignore[call-overload]
            pa.field("d", pa.dictionary(pa.int8(), pa.string())),
            pa.field("last", pa.json_()),
        ]
    )
    ids = field_ids(create_table(schema, tmp_path / "t").lance_schema.fields())
    assert " ".join(f"{'.'.join(path)}={lance_id}" for path, lance_id in ids.items()) == (
        "i=0 l=1 l.element=2 l.element.a=3 l.element.b=4 l.element.b.element=5 v=6 sv=7 sv.element=8 sv.element.a=9 "
        "m=10 m.key=12 m.value=13 m.value.x=14 d=15 last=16"
    )


def test_field_ids_stay_when_a_column_goes(tmp_path: Path) -> None:
    dataset = create_table(pa.schema([("a", pa.int8()), ("b", pa.list_(pa.int8())), ("c", pa.int8())]), tmp_path / "t")
    dataset.drop_columns(["b"])
    assert field_ids(dataset.lance_schema.fields()) == {("a",): 0, ("c",): 3}


def test_without_lance_its_extensions_are_their_storage() -> None:
    code = (
        "import sys, pyarrow as pa\n"
        "from lancehouse.schema import iceberg, jsonarrow, spark, unity, walk\n"
        "assert 'lance' not in sys.modules\n"
        "field = pa.field('c', pa.binary(2), metadata={walk.EXTENSION: 'lance.bfloat16', 'k': 'v'})\n"
        "back = spark.from_spark(spark.to_spark(pa.schema([field]))).field('c')\n"
        "assert back.equals(field, check_metadata=True), back\n"
        "assert iceberg.to_iceberg(pa.schema([field]))['fields'][0]['type'] == 'float'\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
