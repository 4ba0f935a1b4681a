"""Spark 4.1 reads and writes Iceberg tables of a REST catalog, and says what it refuses."""

from __future__ import annotations

from uuid import uuid4

import pytest

from tests.servers.spark41 import Spark, SparkError


def test_on_the_reference_server(spark41: Spark, reference: str) -> None:
    name = f"c_{uuid4().hex[:8]}"
    spark41.catalog(name, {"uri": reference})
    spark41.sql(f"CREATE NAMESPACE {name}.{name}")
    spark41.sql(f"CREATE TABLE {name}.{name}.t (id BIGINT, word STRING)")
    spark41.sql(f"INSERT INTO {name}.{name}.t VALUES (1, 'ä'), (2, NULL)")
    assert spark41.sql(f"SELECT * FROM {name}.{name}.t ORDER BY id") == [
        {"id": 1, "word": "ä"},
        {"id": 2, "word": None},
    ]
    assert spark41.sql("SELECT version() v")[0]["v"].startswith("4.1.")
    with pytest.raises(SparkError, match="TABLE_OR_VIEW_NOT_FOUND"):
        spark41.sql(f"SELECT * FROM {name}.{name}.other")
    spark41.sql(f"DROP TABLE {name}.{name}.t")
