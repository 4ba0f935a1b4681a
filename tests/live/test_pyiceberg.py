"""pyiceberg sees a Lance table in its catalog for what it is: an entry, and not a table to clean up."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import lance
import pyarrow as pa
import pytest
from lance_namespace import CreateNamespaceRequest, DeregisterTableRequest, ListTablesRequest
from lance_namespace.errors import InvalidInputError
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType

from tests.catalogs import Shared, open_catalog


def test_lance_beside_iceberg(shared_servers: Shared, tmp_path: Path, vectors: pa.Table) -> None:
    theirs = RestCatalog("theirs", uri=shared_servers.reference.uri)
    with open_catalog("iceberg", shared_servers, tmp_path) as catalog:
        ours = catalog.connect()
        level = f"db_{uuid4().hex[:8]}"
        home = [*catalog.parent, level]
        ours.create_namespace(CreateNamespaceRequest(id=home))
        dataset = lance.write_dataset(vectors, namespace_client=ours, table_id=[*home, "docs"], mode="create")
        theirs.create_table((level, "plain"), Schema(NestedField(1, "id", LongType())))

        assert sorted(theirs.list_tables(level)) == [(level, "docs"), (level, "plain")]
        seen = theirs.load_table((level, "docs"))
        assert seen.properties | {"table_type": "lance", "gc.enabled": "false"} == seen.properties
        assert seen.schema().fields == (NestedField(1, "dummy", StringType(), required=False),)
        assert seen.location() == dataset.uri
        assert seen.current_snapshot() is None

        assert ours.list_tables(ListTablesRequest(id=home)).tables == ["docs"]
        with pytest.raises(InvalidInputError):
            ours.deregister_table(DeregisterTableRequest(id=[*home, "plain"]))
        ours.deregister_table(DeregisterTableRequest(id=[*home, "docs"]))
        assert theirs.list_tables(level) == [(level, "plain")]
        assert dataset.checkout_version(1).count_rows() == 100
