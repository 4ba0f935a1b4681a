"""Metadata files: read once, and gone again if what they were written for did not come to be."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from lance_namespace.errors import ConcurrentModificationError

from lancehouse.catalog import metadata_loader as documents_module
from lancehouse.catalog.errors import MetadataNotFoundError
from lancehouse.catalog.iceberg import tables
from lancehouse.catalog.metadata_loader import DocumentCache, MetadataDocument, discard_on_failure
from lancehouse.catalog.warehouses import Warehouse
from lancehouse.errors import CommitStateUnknownError
from tests.from_memory import from_memory

SCHEMA = {"type": "struct", "fields": [{"id": 1, "name": "a", "required": False, "type": "long"}]}


@pytest.fixture
def warehouse(tmp_path: Path) -> Warehouse:
    return Warehouse(1, "main", str(tmp_path))


def document(warehouse: Warehouse, number: int = 0) -> MetadataDocument:
    table = tables.new_table({"name": "t", "schema": SCHEMA}, f"{warehouse.location}/t")
    return MetadataDocument.from_table(f"{warehouse.location}/{number:05}-x.metadata.json", table)


def test_a_file_is_read_once_and_missed_when_it_is_gone(warehouse: Warehouse) -> None:
    written = document(warehouse)
    Path(written.location).write_bytes(written.full_json)
    documents = DocumentCache()
    assert from_memory(documents.load, warehouse, written.location) is None
    first = documents.load(warehouse, written.location)
    assert first == written
    assert documents.load(warehouse, written.location) is first
    assert first.table.json == written.table.json
    Path(written.location).unlink()
    with pytest.raises(MetadataNotFoundError):
        documents.load(warehouse, written.location)


def test_a_packed_file_is_shown_unpacked(warehouse: Warehouse) -> None:
    written = document(warehouse)
    Path(written.location).write_bytes(gzip.compress(written.full_json))
    assert DocumentCache().load(warehouse, written.location).full_json == written.full_json


def test_what_was_not_used_for_long_is_forgotten(warehouse: Warehouse) -> None:
    held = [document(warehouse, number) for number in range(3)]
    documents = DocumentCache(limit_bytes=2 * len(held[0].full_json) + 100)
    for each in held:
        Path(each.location).write_bytes(each.full_json)
        documents.add(each)
    assert [from_memory(documents.load, warehouse, each.location) is None for each in held] == [True, False, False]


@pytest.mark.parametrize(
    ("error", "kept"),
    [(ConcurrentModificationError("late"), False), (KeyboardInterrupt(), False), (CommitStateUnknownError("?"), True)],
)
def test_files_stay_only_if_they_may_be_needed(warehouse: Warehouse, error: BaseException, kept: bool) -> None:
    written = document(warehouse)
    Path(written.location).write_bytes(written.full_json)
    with pytest.raises(type(error)), discard_on_failure(warehouse, [written.location, f"{warehouse.location}/never"]):
        raise error
    assert Path(written.location).exists() is kept


def test_only_the_last_ones_are_held_parsed(warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents_module, "_PARSED", documents_module._ParsedDocuments(limit_bytes=1))
    first, second = document(warehouse, 1), document(warehouse, 2)
    assert "table" not in vars(first)
    assert "table" in vars(second)
    assert first.table.json["location"] == second.table.json["location"]
    assert ["table" in vars(each) for each in (first, second)] == [False, True]
