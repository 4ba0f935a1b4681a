"""References to blobs are data: who reads them sees no more than the catalog lets them see."""

from __future__ import annotations

import lance
import pyarrow as pa
import pytest
from lance_namespace.errors import PermissionDeniedError

from lancehouse.connection import Connection
from lancehouse.jobs.address import PinnedVersion, TableAddress
from lancehouse.jobs.blob_references import ReferencedBlobs
from lancehouse.lake.dataset import VersionSelector
from lancehouse.lake.scans import FragmentRange, Scan
from tests.security.house import SECRET, ServerWithPrincipals


def test_a_reference_to_a_table_of_somebody_else(house: ServerWithPrincipals) -> None:
    rows = pa.table({"image": lance.blob_array([SECRET])}, pa.schema([lance.blob_field("image")]))
    lance.write_dataset(rows, house.place("b", "images"), data_storage_version="2.2")
    house.register("bob", "b", "images")
    bob, alice = (
        Connection("iceberg", {"endpoint": house.served.iceberg, "auth_token": house.tokens[who]})
        for who in ("bob", "alice")
    )
    table, dataset = PinnedVersion.resolve(TableAddress.parse(bob, "main.b.images"), VersionSelector()).open()
    [batch] = Scan(blobs="reference").batches(table, dataset, [FragmentRange(0)])
    [reference] = batch.column(0).to_pylist()
    assert house.tokens["bob"] not in str(reference)
    assert ReferencedBlobs(bob).read([reference])[0].as_py() == SECRET
    with pytest.raises(PermissionDeniedError):
        ReferencedBlobs(alice).read([reference])
    with pytest.raises(PermissionDeniedError):
        ReferencedBlobs(alice).open(reference)
