"""List the files of an Iceberg table that a purge deletes."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

from pyiceberg.manifest import read_manifest_list

from lancehouse.catalog import locations
from lancehouse.catalog.iceberg.json_values import Json
from lancehouse.catalog.iceberg.manifests import UNREADABLE, is_below
from lancehouse.catalog.warehouse_files import WarehouseFiles

logger = logging.getLogger(__name__)

GC_ENABLED = "gc.enabled"


def list_table_files(md: Json, files: WarehouseFiles) -> Iterator[str]:
    """Yield every file of a table below its location, each once: data and delete files first, then metadata."""
    seen: set[str] = set()
    root = locations.key(md["location"], "iceberg")
    for file in _list_all_files(md, files, root):
        if file not in seen and is_below((root,), file):
            seen.add(file)
            yield file


def _list_all_files(md: Json, files: WarehouseFiles, root: str) -> Iterator[str]:
    manifests: dict[str, Any] = {}
    for snapshot in md["snapshots"]:
        manifests |= _read_manifests(snapshot.get("manifest-list"), files, root)
    if md["properties"].get(GC_ENABLED, "true").lower() != "false":
        for path, manifest in manifests.items():
            yield from _read_data_files(path, manifest, files, root)
    yield from manifests
    for snapshot in md["snapshots"]:
        yield from [path for path in (snapshot.get("manifest-list"), *snapshot.get("manifests", ())) if path]
    for file in (*md["statistics"], *md["partition-statistics"]):
        yield file["statistics-path"]
    for entry in md["metadata-log"]:
        yield entry["metadata-file"]


def _read_manifests(path: str | None, files: WarehouseFiles, root: str) -> dict[str, Any]:
    if path is None or not is_below((root,), path):
        return {}
    try:
        return {manifest.manifest_path: manifest for manifest in read_manifest_list(files.file_io().new_input(path))}
    except UNREADABLE as error:
        logger.warning("manifest list %s cannot be read: %s", path, error)
        return {}


def _read_data_files(path: str, manifest: Any, files: WarehouseFiles, root: str) -> list[str]:
    if not is_below((root,), path):
        return []
    try:
        return [entry.data_file.file_path for entry in manifest.fetch_manifest_entry(files.file_io())]
    except UNREADABLE as error:
        logger.warning("manifest %s cannot be read: %s", path, error)
        return []
