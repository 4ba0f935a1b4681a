"""Apply the updates of a commit to a draft of an Iceberg table, with the effects that Iceberg's library gives them."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Mapping
from time import time
from types import MappingProxyType
from typing import Any

from lance_namespace.errors import ConcurrentModificationError, InvalidInputError

from lancehouse.catalog.errors import IllegalArgumentError, ValidationError
from lancehouse.catalog.iceberg import json_values, manifests, schemas
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


def get_by_id(md: Json, items: str, id_key: str, id: int) -> Json:
    """Return the item of a list that has this id, or raise IllegalArgumentError."""
    result: Json | None = next((item for item in md[items] if item[id_key] == id), None)
    if result is None:
        raise IllegalArgumentError(f"Invalid table metadata: no {id_key} {id} in {items}")
    return result


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
            md["schema"] = get_by_id(md, "schemas", "schema-id", md["current-schema-id"])
            md["partition-spec"] = get_by_id(md, "partition-specs", "spec-id", md["default-spec-id"])["fields"]
        return md

    def change(self, changes: Json, *, layout: bool = False) -> None:
        """Replace parts of the metadata; with `layout`, spec and sort order are then checked against the schema."""
        self.md |= changes
        self._changed = True
        self._layout_changed |= layout

    def remove(self, key: str, id_key: str, ids: Collection[Any]) -> None:
        """Remove items from a list by their ids."""
        items = self.md.get(key, [])
        other_items = [item for item in items if item[id_key] not in ids]
        if len(other_items) < len(items):
            self.change({key: other_items})

    def replace(self, key: str, file: Json) -> None:
        """Add a statistics file, replacing the one for the same snapshot."""
        other_files = [item for item in self.md[key] if item["snapshot-id"] != file["snapshot-id"]]
        self.change({key: [*other_files, file]})

    def set_default(self, key: str, id: int, items: str, id_key: str, words: str) -> None:
        """Set the default spec or sort order to an item of a list, by its id."""
        if id != self.md[key]:
            if not any(item[id_key] == id for item in self.md[items]):
                raise IllegalArgumentError(f"Cannot set default {words} to unknown {words}: {id}")
            self.change({key: id}, layout=True)

    def current_columns(self, what: str) -> dict[int, schemas.IcebergColumn]:
        """Return the columns of the current schema by id; `what` names the part to be added, for the message."""
        if not self.md["schemas"]:
            raise ValidationError(f"Attempting to add a {what} before a schema is added")
        return schemas.columns_of(get_by_id(self.md, "schemas", "schema-id", self.md["current-schema-id"]))

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
        schemas.check_spec(get_by_id(self.md, "partition-specs", "spec-id", self.md["default-spec-id"]), columns)
        schemas.check_order(get_by_id(self.md, "sort-orders", "order-id", self.md["default-sort-order-id"]), columns)

    def _clean_snapshot_log(self) -> None:
        """Remove log entries of snapshots that were current only during this commit, and all up to an expired one."""
        current = self.md.get("current-snapshot-id")
        intermediate = {
            snapshot_id for snapshot_id in self.main_heads if snapshot_id in self.added and snapshot_id != current
        }
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


OPERATIONS = ("append", "replace", "overwrite", "delete")
"""Values that Iceberg allows for `operation` in a snapshot's summary."""


def parse_snapshot(value: object) -> Json:
    """Parse a snapshot."""
    where = "snapshot"
    json = json_values.require_object(value, where)
    parsed: Json = {
        "snapshot-id": _parse_count(json, "snapshot-id", where),
        "parent-snapshot-id": json_values.optional_integer(json, "parent-snapshot-id", where, bits=64),
        "sequence-number": _parse_optional_count(json, "sequence-number", where) or 0,
        "timestamp-ms": json_values.integer(json, "timestamp-ms", where, bits=64),
        "manifest-list": json_values.text(json, "manifest-list", where),
        "summary": _parse_summary(json),
        "schema-id": json_values.optional_integer(json, "schema-id", where),
        "first-row-id": _parse_optional_count(json, "first-row-id", where),
        "added-rows": _parse_optional_count(json, "added-rows", where),
        "key-id": json_values.optional_text(json, "key-id", where),
    }
    if parsed["first-row-id"] is not None and parsed["added-rows"] is None:
        raise IllegalArgumentError("Invalid added-rows (required when first-row-id is set): null")
    return _drop_nulls(parsed)


def parse_ref(json: Json, where: str) -> Json:
    """Parse a branch or a tag."""
    kind = json_values.text(json, "type", where).lower()
    if kind not in ("branch", "tag"):
        raise InvalidInputError(f"{where}: 'type' must be branch or tag, got {json_values.format_value(kind)}")
    parsed: Json = {
        "snapshot-id": json_values.integer(json, "snapshot-id", where, bits=64),
        "type": kind,
        "min-snapshots-to-keep": json_values.optional_integer(json, "min-snapshots-to-keep", where),
        "max-snapshot-age-ms": json_values.optional_integer(json, "max-snapshot-age-ms", where, bits=64),
        "max-ref-age-ms": json_values.optional_integer(json, "max-ref-age-ms", where, bits=64),
    }
    for key, name, words in (
        ("min-snapshots-to-keep", "minSnapshotsToKeep", "Min snapshots to keep must be greater than 0"),
        ("max-snapshot-age-ms", "maxSnapshotAgeMs", "Max snapshot age must be greater than 0 ms"),
        ("max-ref-age-ms", None, "Max reference age must be greater than 0"),
    ):
        if parsed[key] is not None and kind == "tag" and name:
            raise IllegalArgumentError(f"Tags do not support setting {name}")
        if parsed[key] is not None and parsed[key] <= 0:
            raise IllegalArgumentError(words)
    return _drop_nulls(parsed)


def parse_statistics(value: object) -> Json:
    """Parse a statistics file of a table."""
    where = "statistics"
    json = json_values.require_object(value, where)
    parsed = {
        **parse_partition_statistics(json, where),
        "file-footer-size-in-bytes": _parse_count(json, "file-footer-size-in-bytes", where),
        "key-metadata": json_values.optional_text(json, "key-metadata", where),
        "blob-metadata": [_parse_blob(item) for item in json_values.items(json, "blob-metadata", where)],
    }
    return _drop_nulls(parsed)


def parse_partition_statistics(value: object, where: str = "partition-statistics") -> Json:
    """Parse a partition statistics file."""
    json = json_values.require_object(value, where)
    return {
        "snapshot-id": json_values.integer(json, "snapshot-id", where, bits=64),
        "statistics-path": json_values.text(json, "statistics-path", where),
        "file-size-in-bytes": _parse_count(json, "file-size-in-bytes", where),
    }


def parse_encryption_key(value: object) -> Json:
    """Parse an encryption key, which is itself encrypted."""
    where = "encryption-key"
    json = json_values.require_object(value, where)
    parsed: Json = {
        "key-id": json_values.text(json, "key-id", where),
        "encrypted-key-metadata": json_values.text(json, "encrypted-key-metadata", where),
        "encrypted-by-id": json_values.optional_text(json, "encrypted-by-id", where),
        "properties": json_values.optional_string_map(json, "properties", where) or None,
    }
    return _drop_nulls(parsed)


def _parse_summary(json: Json) -> dict[str, str]:
    summary = dict(json_values.string_map(json, "summary", "snapshot"))
    operation = summary.setdefault("operation", "overwrite")
    if operation not in OPERATIONS:
        raise InvalidInputError(
            f"snapshot: operation must be one of {', '.join(OPERATIONS)}, got {json_values.format_value(operation)}"
        )
    return summary


def _parse_blob(value: object) -> Json:
    where = "blob-metadata"
    json = json_values.require_object(value, where)
    parsed: Json = {
        "type": json_values.text(json, "type", where),
        "snapshot-id": json_values.integer(json, "snapshot-id", where, bits=64),
        "sequence-number": json_values.integer(json, "sequence-number", where, bits=64),
        "fields": json_values.integers(json, "fields", where),
        "properties": json_values.optional_string_map(json, "properties", where) or None,
    }
    return _drop_nulls(parsed)


def _parse_count(json: Json, key: str, where: str) -> int:
    value = json_values.integer(json, key, where, bits=64)
    if value < 0:
        raise IllegalArgumentError(f"{where}: Invalid {key} (cannot be negative): {value}")
    return value


def _parse_optional_count(json: Json, key: str, where: str) -> int | None:
    return None if json.get(key) is None else _parse_count(json, key, where)


def _drop_nulls(json: dict[str, Any]) -> Json:
    return {key: value for key, value in json.items() if value is not None}


MAIN = "main"

_LAST_ADDED = -1
"""Id by which an update refers to the schema, spec or sort order added last."""
_CLOCK_SKEW_MS = 60_000
"""How far clocks of clients and server may differ, in milliseconds."""


def apply_update(draft: Draft, update: object) -> None:
    """Apply one update to a draft.

    Raises:
        InvalidInputError: the update is unknown, malformed, or not possible here.
        ConcurrentModificationError: the update was made for an older state of the table.
    """
    handler, fields = json_values.get_handler(_ACTIONS, update, "action", "update")
    handler(draft, fields)


def check_manifest_lists(draft: Draft) -> None:
    """Refuse new snapshots whose manifest list lies outside the table.

    Both its locations before and after the commit are allowed, because one commit may add a snapshot and move the
    table.

    Raises:
        InvalidInputError: there is such a snapshot.
    """
    added_ids = draft.added & draft.snapshots.keys()
    states = [draft.md, draft.base or draft.md] if added_ids else []
    roots = [root for md in states for root in manifests.manifest_roots(md["location"], md["properties"])]
    for snapshot_id in added_ids:
        if not manifests.is_below(roots, draft.snapshots[snapshot_id]["manifest-list"]):
            raise manifests.outside_error(snapshot_id, "manifest list")


def _assign_uuid(draft: Draft, update: Json) -> None:
    new = json_values.uuid(update, "uuid", "assign-uuid")
    if draft.base is not None and new != str(draft.base["table-uuid"]).lower():
        raise IllegalArgumentError("Cannot reassign uuid")
    if draft.base is None:
        draft.md["table-uuid"] = new


def _upgrade_format_version(draft: Draft, update: Json) -> None:
    new = json_values.integer(update, "format-version", "upgrade-format-version")
    old = draft.md["format-version"]
    if new > FORMAT_VERSIONS[-1]:
        check_format_version(new, "Cannot upgrade table to unsupported format version")
    if new < old:
        raise IllegalArgumentError(f"Cannot downgrade v{old} table to v{new}")
    if new > old:
        for key in ("schema", "partition-spec"):
            draft.md.pop(key, None)
        draft.change({"format-version": new, **{k: v for k, v in version_fields(new).items() if k not in draft.md}})


def _set_location(draft: Draft, update: Json) -> None:
    location = json_values.text(update, "location", "set-location")
    location = location.rstrip("/") or location
    if location != draft.md["location"]:
        draft.change({"location": location})


def _set_properties(draft: Draft, update: Json) -> None:
    if updates := json_values.string_map(update, "updates", "set-properties"):
        draft.change({"properties": {**draft.md["properties"], **updates}})


def _remove_properties(draft: Draft, update: Json) -> None:
    if removals := set(json_values.texts(update, "removals", "remove-properties")):
        properties = {key: value for key, value in draft.md["properties"].items() if key not in removals}
        draft.change({"properties": properties})


def _add_schema(draft: Draft, update: Json) -> None:
    schema = schemas.parse_schema(update.get("schema"))
    schemas.check_version(schema, draft.md["format-version"])
    existing = draft.md["schemas"]
    last = json_values.optional_integer(update, "last-column-id", "add-schema") or 0
    last = max(draft.md["last-column-id"], schemas.highest_id(schema), last)
    same = next((old["schema-id"] for old in existing if schemas.is_same(schemas.parse_schema(old), schema)), None)
    if same is None:
        new_id = max([draft.md["current-schema-id"] - 1, *(old["schema-id"] for old in existing)]) + 1
        draft.change({"schemas": [*existing, {**schema, "schema-id": new_id}], "last-column-id": last})
    elif last != draft.md["last-column-id"]:
        draft.change({"last-column-id": last})
    draft.last_schema = new_id if same is None else same


def _set_current_schema(draft: Draft, update: Json) -> None:
    schema_id = _resolve_last_added(
        json_values.integer(update, "schema-id", "set-current-schema"), draft.last_schema, "schema"
    )
    if schema_id != draft.md["current-schema-id"] or not draft.md["schemas"]:
        if not any(schema["schema-id"] == schema_id for schema in draft.md["schemas"]):
            raise IllegalArgumentError(f"Cannot set current schema to unknown schema: {schema_id}")
        draft.change({"current-schema-id": schema_id}, layout=True)


def _remove_schemas(draft: Draft, update: Json) -> None:
    ids = set(json_values.integers(update, "schema-ids", "remove-schemas"))
    if draft.md["current-schema-id"] in ids:
        raise IllegalArgumentError("Cannot remove the current schema")
    draft.remove("schemas", "schema-id", ids)


def _add_spec(draft: Draft, update: Json) -> None:
    spec = schemas.parse_spec(update.get("spec"))
    existing = draft.md["partition-specs"]
    same = next((old["spec-id"] for old in existing if schemas.is_same_spec(old, spec)), None)
    if same is None:
        columns = draft.current_columns("partition spec")
        spec = schemas.assign_field_ids(spec, existing, draft.md["last-partition-id"])
        schemas.check_partition_names(spec, columns)
        schemas.check_spec(spec, columns)
        if draft.md["format-version"] == 1 and not schemas.is_sequential(spec):
            raise ValidationError("Spec does not use sequential IDs that are required in v1")
        new_id = max((old["spec-id"] for old in existing), default=-1) + 1
        last = max(draft.md["last-partition-id"], schemas.last_field_id(spec))
        draft.change({"partition-specs": [*existing, {**spec, "spec-id": new_id}], "last-partition-id": last})
    draft.last_spec = new_id if same is None else same


def _set_default_spec(draft: Draft, update: Json) -> None:
    spec_id = _resolve_last_added(json_values.integer(update, "spec-id", "set-default-spec"), draft.last_spec, "spec")
    draft.set_default("default-spec-id", spec_id, "partition-specs", "spec-id", "partition spec")


def _remove_specs(draft: Draft, update: Json) -> None:
    ids = set(json_values.integers(update, "spec-ids", "remove-partition-specs"))
    if draft.md["default-spec-id"] in ids:
        raise IllegalArgumentError("Cannot remove the default partition spec")
    draft.remove("partition-specs", "spec-id", ids)


def _add_sort_order(draft: Draft, update: Json) -> None:
    order = schemas.parse_order(update.get("sort-order"))
    existing = draft.md["sort-orders"]
    same = next((old["order-id"] for old in existing if old["fields"] == order["fields"]), None)
    if same is None:
        schemas.check_order(order, draft.current_columns("sort order"))
        new_id = max([0, *(old["order-id"] for old in existing)]) + 1 if order["fields"] else 0
        draft.change({"sort-orders": [*existing, {**order, "order-id": new_id}]})
    draft.last_order = new_id if same is None else same


def _set_default_sort_order(draft: Draft, update: Json) -> None:
    order_id = _resolve_last_added(
        json_values.integer(update, "sort-order-id", "set-default-sort-order"), draft.last_order, "sort order"
    )
    draft.set_default("default-sort-order-id", order_id, "sort-orders", "order-id", "sort order")


def _add_snapshot(draft: Draft, update: Json) -> None:
    snapshot = parse_snapshot(update.get("snapshot"))
    md = draft.md
    for key, words in (("schemas", "schema"), ("partition-specs", "partition spec"), ("sort-orders", "sort order")):
        if not md[key]:
            raise ValidationError(f"Attempting to add a snapshot before a {words} is added")
    snapshot_id, sequence = snapshot["snapshot-id"], snapshot["sequence-number"]
    if snapshot_id in draft.snapshots:
        raise ValidationError(f"Snapshot already exists for id: {snapshot_id}")
    last = md.get("last-sequence-number", 0)
    changes: Json = {"snapshots": [*md["snapshots"], snapshot]}
    if md["format-version"] == 1:
        if sequence:
            raise IllegalArgumentError(f"Sequence number must be 0 in v1: {sequence}")
        del snapshot["sequence-number"]
    else:
        if sequence < last or (sequence == last and "parent-snapshot-id" in snapshot):
            raise _stale_error(
                f"Cannot add snapshot with sequence number {sequence} older than last sequence number {last}"
            )
        changes["last-sequence-number"] = sequence
    if md["format-version"] >= ROW_LINEAGE:
        changes["next-row-id"] = _next_row_id(snapshot, md["next-row-id"])
    draft.change(changes)
    draft.snapshots[snapshot_id] = snapshot
    draft.added.add(snapshot_id)


def _set_ref(draft: Draft, update: Json) -> None:
    name = json_values.text(update, "ref-name", "set-snapshot-ref")
    ref = parse_ref(update, "set-snapshot-ref")
    if draft.md["refs"].get(name) == ref:
        return
    snapshot_id = ref["snapshot-id"]
    if snapshot_id not in draft.snapshots:
        raise ValidationError(f"Cannot set {name} to unknown snapshot: {snapshot_id}")
    draft.change({"refs": {**draft.md["refs"], name: ref}})
    if name == MAIN:
        _set_main(draft, snapshot_id, ref["type"])


def _set_main(draft: Draft, snapshot_id: int, kind: str) -> None:
    if kind != "branch":
        raise ValidationError(f"Cannot set {MAIN} to a tag, it must be a branch")
    log = draft.md["snapshot-log"]
    timestamp_ms = draft.snapshots[snapshot_id]["timestamp-ms"] if snapshot_id in draft.added else draft.now
    if timestamp_ms > draft.now + _CLOCK_SKEW_MS:
        raise IllegalArgumentError(
            f"Invalid update timestamp {draft.now}: before last snapshot log entry at {timestamp_ms}"
        )
    if log and timestamp_ms < log[-1]["timestamp-ms"] - _CLOCK_SKEW_MS:
        before = log[-1]["timestamp-ms"]
        raise IllegalArgumentError(
            f"Invalid snapshot timestamp {timestamp_ms}: before last snapshot log entry at {before}"
        )
    draft.main_heads.append(snapshot_id)
    draft.change(
        {
            "current-snapshot-id": snapshot_id,
            "snapshot-log": [*log, {"timestamp-ms": timestamp_ms, "snapshot-id": snapshot_id}],
        }
    )


def _remove_ref(draft: Draft, update: Json) -> None:
    _drop_refs(draft, {json_values.text(update, "ref-name", "remove-snapshot-ref")})


def _drop_refs(draft: Draft, names: set[str]) -> None:
    if not names.isdisjoint(draft.md["refs"]):
        draft.change({"refs": {name: ref for name, ref in draft.md["refs"].items() if name not in names}})
    if MAIN in names:
        draft.md.pop("current-snapshot-id", None)


def _remove_snapshots(draft: Draft, update: Json) -> None:
    ids = set(json_values.integers(update, "snapshot-ids", "remove-snapshots", bits=64)) & draft.snapshots.keys()
    if not ids:
        return
    draft.expired = True
    for key in ("snapshots", "statistics", "partition-statistics"):
        draft.remove(key, "snapshot-id", ids)
    for snapshot_id in ids:
        del draft.snapshots[snapshot_id]
    _drop_refs(draft, {name for name, ref in draft.md["refs"].items() if ref["snapshot-id"] in ids})


def _set_statistics(draft: Draft, update: Json) -> None:
    draft.replace("statistics", parse_statistics(update.get("statistics")))


def _remove_statistics(draft: Draft, update: Json) -> None:
    snapshot_id = json_values.integer(update, "snapshot-id", "remove-statistics", bits=64)
    draft.remove("statistics", "snapshot-id", {snapshot_id})


def _set_partition_statistics(draft: Draft, update: Json) -> None:
    draft.replace("partition-statistics", parse_partition_statistics(update.get("partition-statistics")))


def _remove_partition_statistics(draft: Draft, update: Json) -> None:
    snapshot_id = json_values.integer(update, "snapshot-id", "remove-partition-statistics", bits=64)
    draft.remove("partition-statistics", "snapshot-id", {snapshot_id})


def _add_key(draft: Draft, update: Json) -> None:
    key = parse_encryption_key(update.get("encryption-key"))
    existing = draft.md.get("encryption-keys", [])
    if not any(old["key-id"] == key["key-id"] for old in existing):
        draft.change({"encryption-keys": [*existing, key]})


def _remove_key(draft: Draft, update: Json) -> None:
    draft.remove("encryption-keys", "key-id", {json_values.text(update, "key-id", "remove-encryption-key")})


def _resolve_last_added(id: int, last: int | None, words: str) -> int:
    if id != _LAST_ADDED:
        return id
    if last is None:
        raise ValidationError(f"Cannot set last added {words}: no {words} has been added")
    return last


def _next_row_id(snapshot: Json, next_row_id: int) -> int:
    first = snapshot.get("first-row-id")
    if first is None:
        raise ValidationError("Cannot add a snapshot: first-row-id is null")
    if first < next_row_id:
        raise _stale_error(f"Cannot add a snapshot, first-row-id is behind table next-row-id: {first} < {next_row_id}")
    after = int(first) + int(snapshot["added-rows"])
    if after >= 1 << 63:
        raise ValidationError("Cannot add a snapshot: its row ids are out of range")
    return after


def _stale_error(reason: str) -> ConcurrentModificationError:
    return ConcurrentModificationError(f"Validation failed, please retry: {reason}")


_ACTIONS: Mapping[str, Callable[[Draft, Json], None]] = MappingProxyType(
    {
        "assign-uuid": _assign_uuid,
        "upgrade-format-version": _upgrade_format_version,
        "add-schema": _add_schema,
        "set-current-schema": _set_current_schema,
        "add-spec": _add_spec,
        "set-default-spec": _set_default_spec,
        "add-sort-order": _add_sort_order,
        "set-default-sort-order": _set_default_sort_order,
        "add-snapshot": _add_snapshot,
        "set-snapshot-ref": _set_ref,
        "remove-snapshots": _remove_snapshots,
        "remove-snapshot-ref": _remove_ref,
        "set-location": _set_location,
        "set-properties": _set_properties,
        "remove-properties": _remove_properties,
        "set-statistics": _set_statistics,
        "remove-statistics": _remove_statistics,
        "set-partition-statistics": _set_partition_statistics,
        "remove-partition-statistics": _remove_partition_statistics,
        "remove-partition-specs": _remove_specs,
        "remove-schemas": _remove_schemas,
        "add-encryption-key": _add_key,
        "remove-encryption-key": _remove_key,
    }
)
