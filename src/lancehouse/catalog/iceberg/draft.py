"""The `Draft` of an Iceberg table's new metadata, on which the updates of a commit work.

The metadata are JSON. A change replaces parts of them and never modifies a part in place, so that old and new metadata
share what is the same.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping
from time import time
from typing import Any

from lancehouse.catalog.errors import IllegalArgumentError, ValidationError
from lancehouse.catalog.iceberg import schemas, specs_and_orders
from lancehouse.catalog.iceberg.json_values import Json

FORMAT_VERSIONS = (1, 2, 3)
DEFAULT_FORMAT_VERSION = 2
ROW_LINEAGE = 3
"""First format version that assigns row ids."""

METADATA_VERSIONS_MAX = "write.metadata.previous-versions-max"
"""Property that limits the metadata log."""


def empty_metadata(format_version: int) -> Json:
    """Return the metadata from which a new table starts."""
    check_format_version(format_version, "Unsupported format version")
    return {
        "format-version": format_version,
        "table-uuid": str(uuid.uuid4()),
        "location": None,
        "last-updated-ms": 0,
        "last-column-id": 0,
        "schemas": [],
        "current-schema-id": 0,
        "partition-specs": [],
        "default-spec-id": 0,
        "last-partition-id": 0,
        "sort-orders": [],
        "default-sort-order-id": 0,
        "properties": {},
        "refs": {},
        "snapshots": [],
        "statistics": [],
        "partition-statistics": [],
        "snapshot-log": [],
        "metadata-log": [],
        **version_fields(format_version),
    }


def check_format_version(version: int, words: str) -> None:
    """Refuse a format version that is not supported."""
    if version not in FORMAT_VERSIONS:
        raise IllegalArgumentError(f"{words}: v{version} (supported: v{FORMAT_VERSIONS[-1]})")


class Draft:
    """New metadata of a table while the updates of one commit are applied."""

    def __init__(self, base: Json | None, format_version: int = DEFAULT_FORMAT_VERSION) -> None:
        self.base = base
        self.md = dict(base) if base is not None else empty_metadata(format_version)
        self.now = int(time() * 1000)
        self.last_schema: int | None = None
        self.last_spec: int | None = None
        self.last_order: int | None = None
        self.snapshots = {snapshot["snapshot-id"]: snapshot for snapshot in self.md["snapshots"]}
        self.added: set[int] = set()
        """Ids of the snapshots that this commit adds."""
        self.main_heads: list[int] = []
        """Ids of the snapshots to which this commit sets the main branch, in order."""
        self.expired = False
        """Whether this commit removes snapshots."""
        self._changed = base is None
        self._layout_changed = base is None

    def build(self, metadata_location: str | None) -> Json:
        """Return the new metadata; the base itself if nothing changed.

        Args:
            metadata_location: the metadata file of the base, for the metadata log.
        """
        if self.base is not None and not self._changed:
            return self.base
        md = self.md
        if self._layout_changed:
            self._check_layout()
        if self.base is not None and metadata_location is not None:
            entry = {"timestamp-ms": self.base["last-updated-ms"], "metadata-file": metadata_location}
            keep_count = metadata_versions_max(md["properties"]) - 1
            md["metadata-log"] = [*(md["metadata-log"][-keep_count:] if keep_count else []), entry]
        self._clean_snapshot_log()
        last_entries = (*md["snapshot-log"][-1:], *md["metadata-log"][-1:])
        md["last-updated-ms"] = max([self.now, *(entry["timestamp-ms"] for entry in last_entries)])
        if md["format-version"] == 1:
            md["schema"] = self.get_by_id("schemas", "schema-id", md["current-schema-id"])
            md["partition-spec"] = self.get_by_id("partition-specs", "spec-id", md["default-spec-id"])["fields"]
        return md

    def change(self, changes: Json, *, layout: bool = False) -> None:
        """Replace parts of the metadata; with `layout`, spec and sort order are then checked against the schema."""
        self.md |= changes
        self._changed = True
        self._layout_changed |= layout

    def remove(self, key: str, id_key: str, removed: Collection[Any]) -> None:
        """Remove items from a list by their ids."""
        items = self.md.get(key, [])
        remaining = [item for item in items if item[id_key] not in removed]
        if len(remaining) < len(items):
            self.change({key: remaining})

    def replace(self, key: str, file: Json) -> None:
        """Add a statistics file, replacing the one for the same snapshot."""
        others = [item for item in self.md[key] if item["snapshot-id"] != file["snapshot-id"]]
        self.change({key: [*others, file]})

    def set_default(self, key: str, chosen: int, items: str, id_key: str, words: str) -> None:
        """Set the default spec or sort order to an item of a list, by its id."""
        if chosen != self.md[key]:
            if not any(item[id_key] == chosen for item in self.md[items]):
                raise IllegalArgumentError(f"Cannot set default {words} to unknown {words}: {chosen}")
            self.change({key: chosen}, layout=True)

    def get_by_id(self, items: str, id_key: str, chosen: int) -> Json:
        """Return the item of a list that has this id, or raise IllegalArgumentError."""
        result: Json | None = next((item for item in self.md[items] if item[id_key] == chosen), None)
        if result is None:
            raise IllegalArgumentError(f"Invalid table metadata: no {id_key} {chosen} in {items}")
        return result

    def current_columns(self, what: str) -> dict[int, schemas.IcebergColumn]:
        """Return the columns of the current schema by id; `what` names the part to be added, for the message."""
        if not self.md["schemas"]:
            raise ValidationError(f"Attempting to add a {what} before a schema is added")
        return schemas.columns_of(self.get_by_id("schemas", "schema-id", self.md["current-schema-id"]))

    def _check_layout(self) -> None:
        if self.md["location"] is None:
            raise IllegalArgumentError(f"Table location is required in format v{self.md['format-version']}")
        for key, words in (
            ("schemas", "Schemas"),
            ("partition-specs", "Partition specs"),
            ("sort-orders", "Sort orders"),
        ):
            if not self.md[key]:
                raise IllegalArgumentError(f"{words} cannot be null or empty")
        columns = self.current_columns("table")
        specs_and_orders.check_spec(self.get_by_id("partition-specs", "spec-id", self.md["default-spec-id"]), columns)
        specs_and_orders.check_order(
            self.get_by_id("sort-orders", "order-id", self.md["default-sort-order-id"]), columns
        )

    def _clean_snapshot_log(self) -> None:
        """Remove log entries of snapshots that were current only during this commit, and all up to an expired one."""
        current = self.md.get("current-snapshot-id")
        intermediate = {chosen for chosen in self.main_heads if chosen in self.added and chosen != current}
        if not intermediate and not self.expired:
            return
        log: list[Json] = []
        for entry in self.md["snapshot-log"]:
            if entry["snapshot-id"] not in self.snapshots:
                if self.expired:
                    log.clear()  # a gap would make time travel before it return wrong rows
            elif entry["snapshot-id"] not in intermediate:
                log.append(entry)
        if current is not None and (not log or log[-1]["snapshot-id"] != current):
            raise ValidationError("Cannot set invalid snapshot log: latest entry is not the current snapshot")
        self.md["snapshot-log"] = log


def version_fields(format_version: int) -> Json:
    fields = {"last-sequence-number": 0} if format_version > 1 else {}
    return {**fields, "next-row-id": 0} if format_version >= ROW_LINEAGE else fields


def metadata_versions_max(properties: Mapping[str, str]) -> int:
    """Return how many earlier metadata files the metadata log keeps, at least 1.

    Raises:
        ValidationError: the property is not a number.
    """
    value = properties.get(METADATA_VERSIONS_MAX, "100")
    try:
        return max(1, int(value))
    except ValueError:
        raise ValidationError(f"Table property {METADATA_VERSIONS_MAX} must have integer value") from None
