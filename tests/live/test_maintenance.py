"""Maintenance of tables in other catalogs, behind the gateway."""

from __future__ import annotations

from pathlib import Path

import lance
import pyarrow as pa
import pytest
from lance_namespace import DeclareTableRequest, LanceNamespace, ListTableVersionsRequest

from lancehouse.maintenance.policies import change_properties
from lancehouse.server.settings import BackendSettings
from tests.catalogs import LiveCatalog
from tests.maintenance.conftest import no_least_age  # noqa: F401 - versions are old at once
from tests.maintenance.places import QUICK, Place, open_place

MANAGING = ("iceberg", "iceberg-lancehouse")
"""Catalogs that manage versions."""
POLICY = {**QUICK, "maintenance.enabled": "false", "maintenance.orphans": "false"}


@pytest.mark.parametrize("managed_by", ["storage", "impl"])
def test_a_table_of_another_catalog(
    catalog: LiveCatalog, namespace: LanceNamespace, home: list[str], tmp_path: Path, managed_by: str
) -> None:
    """It is compacted, its index completed, and cleaned up; where the catalog manages its versions, by its commits."""
    if managed_by == "impl" and catalog.name not in MANAGING:
        pytest.skip("it does not manage versions")
    table = [*home, "docs"]
    if managed_by == "impl":
        namespace.declare_table(DeclareTableRequest(id=table, properties={"managed_by": "impl"}))
    for number in range(4):
        write(namespace, table, number, "create" if number == 0 and managed_by == "storage" else "append")
    lance.dataset(namespace_client=namespace, table_id=table).create_scalar_index("id", "BTREE")
    for number in range(4, 8):
        write(namespace, table, number, "append")
    own = {"maintenance.enabled": "true", "maintenance.index.unindexed-rows": "20"}
    change_properties(namespace, table, own, [])
    with open_place(tmp_path, backends=[backend(catalog, table)]) as place:
        maintain(place, table)
        assert place.runs() == [("docs", operation, "done") for operation in ("compact", "index", "cleanup")]
        maintain(place, table)
        assert len(place.runs()) == 3  # nothing is left to do
    dataset = catalog.open(table)
    assert len(dataset.get_fragments()) <= 2  # rows that were in the index are not merged with those that were not
    assert dataset.describe_indices()[0].num_rows_indexed == dataset.count_rows() == 80
    assert sorted(dataset.to_table()["id"].to_pylist()) == list(range(80))
    versions = catalog.connect().list_table_versions(ListTableVersionsRequest(id=table)).versions
    assert [each.version for each in versions] == [dataset.version]
    write(namespace, table, 8, "append")
    assert catalog.open(table).count_rows() == 90


def write(namespace: LanceNamespace, table: list[str], number: int, mode: str) -> None:
    data = pa.table({"id": pa.array(range(number * 10, number * 10 + 10), pa.int64())})
    lance.write_dataset(data, namespace_client=namespace, table_id=table, mode=mode)


def backend(catalog: LiveCatalog, table: list[str]) -> BackendSettings:
    """The catalog as the server's file names it; its tables are maintained if they say so themselves."""
    root = str(catalog.folder(table).parent)
    return BackendSettings("other", catalog.impl, catalog.properties, (root,), maintenance=POLICY)


def maintain(place: Place, table: list[str]) -> None:
    """Work on one table: the servers have those of other tests too, so they are not listed."""
    place.maintenance.is_time("polled.other", 0)
    place.maintenance.plan_backend("other", [tuple(table)])
    place.work()
