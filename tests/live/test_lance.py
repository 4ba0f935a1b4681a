"""pylance opens and writes tables by their names in a catalog."""

from __future__ import annotations

from collections.abc import Iterator

import lance
import pyarrow as pa
import pytest
from lance_namespace import (
    DeclareTableRequest,
    DescribeTableRequest,
    DropTableRequest,
    LanceNamespace,
    ListTablesRequest,
    RegisterTableRequest,
)
from lance_namespace.errors import InvalidInputError, TableAlreadyExistsError, TableNotFoundError

from tests.catalogs import LiveCatalog


def test_write_and_read(namespace: LanceNamespace, home: list[str], vectors: pa.Table) -> None:
    table = [*home, "docs"]
    written = lance.write_dataset(vectors, namespace_client=namespace, table_id=table, mode="create")
    assert (written.version, written.count_rows()) == (1, 100)
    more = vectors.slice(0, 10)
    assert lance.write_dataset(more, namespace_client=namespace, table_id=table, mode="append").count_rows() == 110
    assert lance.write_dataset(more, namespace_client=namespace, table_id=table, mode="overwrite").count_rows() == 10

    found = lance.dataset(namespace_client=namespace, table_id=table)
    assert (found.version, found.schema, found.count_rows()) == (3, vectors.schema, 10)
    for version, count in ((1, 100), (2, 110)):
        assert lance.dataset(namespace_client=namespace, table_id=table, version=version).count_rows() == count
    before_the_second = found.versions()[1]["timestamp"]
    assert lance.dataset(namespace_client=namespace, table_id=table, asof=before_the_second).version == 1


def test_search_and_tags(namespace: LanceNamespace, home: list[str], vectors: pa.Table) -> None:
    table = [*home, "docs"]
    lance.write_dataset(vectors, namespace_client=namespace, table_id=table, mode="create")
    dataset = lance.dataset(namespace_client=namespace, table_id=table)
    nearest = dataset.to_table(nearest={"column": "vector", "q": [41.0] * 4, "k": 3}, columns=["id"])
    assert sorted(nearest["id"].to_pylist()) == [40, 41, 42]
    dataset.tags.create("first", 1)
    dataset.delete("id >= 50")
    dataset.create_scalar_index("id", "BTREE")
    assert lance.dataset(namespace_client=namespace, table_id=table).count_rows("id < 60") == 50
    assert lance.dataset(namespace_client=namespace, table_id=table, version="first").count_rows("id < 60") == 60


def test_create_does_not_harm_what_is_there(namespace: LanceNamespace, home: list[str], vectors: pa.Table) -> None:
    table = [*home, "docs"]
    lance.write_dataset(vectors, namespace_client=namespace, table_id=table, mode="create")
    with pytest.raises(TableAlreadyExistsError):
        lance.write_dataset(vectors.slice(0, 1), namespace_client=namespace, table_id=table, mode="create")
    left = lance.dataset(namespace_client=namespace, table_id=table)
    assert (left.version, left.to_table()) == (1, vectors)
    assert namespace.list_tables(ListTablesRequest(id=home)).tables == ["docs"]


def test_no_table_and_no_data(namespace: LanceNamespace, home: list[str]) -> None:
    table = [*home, "docs"]
    with pytest.raises(TableNotFoundError):
        lance.dataset(namespace_client=namespace, table_id=table)
    namespace.declare_table(DeclareTableRequest(id=table))
    with pytest.raises(ValueError, match="not found"):
        lance.dataset(namespace_client=namespace, table_id=table)


ODD_NAMES = {
    "a table of mine": {"unity", "iceberg-polaris"},
    "täble-日本": {"unity"},
    "t.1+2": {"unity", "iceberg-polaris"},
    "a%2Fb": {"unity", "iceberg", "iceberg-polaris"},
    "50%": {"unity", "iceberg", "iceberg-polaris"},
}
"""Names, and the catalogs whose servers refuse them."""


@pytest.mark.parametrize("name", ODD_NAMES)
def test_odd_names(
    catalog: LiveCatalog, namespace: LanceNamespace, home: list[str], vectors: pa.Table, name: str
) -> None:
    table = [*home, name]
    if catalog.name in ODD_NAMES[name]:
        with pytest.raises(InvalidInputError):
            lance.write_dataset(vectors, namespace_client=namespace, table_id=table, mode="create")
    else:
        lance.write_dataset(vectors, namespace_client=namespace, table_id=table, mode="create")
        assert lance.dataset(namespace_client=namespace, table_id=table).count_rows() == 100
        assert namespace.list_tables(ListTablesRequest(id=home)).tables == [name]
        namespace.drop_table(DropTableRequest(id=table))
    assert namespace.list_tables(ListTablesRequest(id=home)).tables == []


def test_register_a_dataset_with_an_odd_location(namespace: LanceNamespace, home: list[str], vectors: pa.Table) -> None:
    """Where a table lies is not what it is called."""
    first = [*home, "docs"]
    lance.write_dataset(vectors, namespace_client=namespace, table_id=first, mode="create")
    location = namespace.describe_table(DescribeTableRequest(id=first)).location
    assert location
    beside = f"{location}%20zwei" if "://" in location else f"{location} zwei"
    lance.write_dataset(vectors.slice(0, 7), beside)
    second = [*home, "other"]
    namespace.register_table(RegisterTableRequest(id=second, location=beside))
    assert lance.dataset(namespace_client=namespace, table_id=second).count_rows() == 7
    assert lance.dataset(namespace_client=namespace, table_id=first).count_rows() == 100


def test_drop_leaves_nothing(namespace: LanceNamespace, home: list[str], vectors: pa.Table) -> None:
    table = [*home, "docs"]
    dataset = lance.write_dataset(vectors, namespace_client=namespace, table_id=table, mode="create")
    namespace.drop_table(DropTableRequest(id=table))
    with pytest.raises(ValueError, match="not found"):
        lance.dataset(dataset.uri)
    again = lance.write_dataset(vectors.slice(0, 1), namespace_client=namespace, table_id=table, mode="create")
    assert (again.version, again.count_rows()) == (1, 1)


def test_create_again_after_a_write_that_failed(namespace: LanceNamespace, home: list[str], vectors: pa.Table) -> None:
    """The first one left a declared table: the error is still 5, and says what to do about it."""
    table = [*home, "docs"]

    def fail() -> Iterator[pa.RecordBatch]:
        yield from vectors.slice(0, 1).to_batches()
        raise RuntimeError("the source is gone")

    with pytest.raises(OSError, match="the source is gone"):
        lance.write_dataset(fail(), schema=vectors.schema, namespace_client=namespace, table_id=table, mode="create")
    with pytest.raises(TableAlreadyExistsError, match=r"declared.* no data.* append .*deregister") as refused:
        lance.write_dataset(vectors, namespace_client=namespace, table_id=table, mode="create")
    assert refused.value.code == 5
    lance.write_dataset(vectors, namespace_client=namespace, table_id=table, mode="append")
    with pytest.raises(TableAlreadyExistsError) as refused:
        lance.write_dataset(vectors, namespace_client=namespace, table_id=table, mode="create")
    assert "no data" not in str(refused.value)
    assert lance.dataset(namespace_client=namespace, table_id=table).count_rows() == 100
