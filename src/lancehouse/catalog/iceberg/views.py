"""Iceberg view metadata as JSON: create, parse and update them, without database or storage."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import time
from types import MappingProxyType
from uuid import uuid4

import orjson
from lance_namespace.errors import ConcurrentModificationError, InvalidInputError

from lancehouse.catalog.errors import IllegalArgumentError, ValidationError
from lancehouse.catalog.iceberg import json_values, schemas
from lancehouse.catalog.iceberg.json_values import Json
from lancehouse.catalog.iceberg.tables import next_metadata_file

HISTORY_SIZE = "version.history.num-entries"
"""Property that limits how many versions of a view are kept."""
DROP_DIALECT = "replace.drop-dialect.allowed"
"""Property that allows a replacement to drop SQL dialects."""

_LAST_ADDED = -1
_SUPPORTED = 1
_MEANING = ("summary", "representations", "default-catalog", "default-namespace", "schema-id")
"""Keys by which two versions are compared."""


def new_view(request: Json, location: str) -> Json:
    """Return the metadata of a new view.

    Args:
        request: the body of CreateView.
        location: the view's location; that of the request is ignored.

    Raises:
        InvalidInputError: the request does not describe a valid view.
    """
    json = json_values.require_object(request, "request")
    builder = _ViewBuilder(None)
    builder.apply_update({"action": "set-location", "location": location})
    builder.apply_update(
        {"action": "set-properties", "updates": json_values.optional_string_map(json, "properties", "request")}
    )
    builder.apply_update({"action": "add-schema", "schema": json.get("schema")})
    version = json_values.inner_object(json, "view-version", "request")
    if json_values.items(version, "representations", "view-version") == []:
        raise IllegalArgumentError("Cannot create view without specifying a query")
    builder.apply_update({"action": "add-view-version", "view-version": {**version, "schema-id": _LAST_ADDED}})
    builder.apply_update({"action": "set-current-view-version", "view-version-id": _LAST_ADDED})
    return builder.build()


def apply_updates(md: Json, requirements: Sequence[object], updates: Sequence[object]) -> Json:
    """Return the view after the updates; `md` itself if they change nothing.

    Raises:
        ConcurrentModificationError: a requirement does not hold.
        InvalidInputError: a requirement or an update is unknown or not possible.
    """
    for item in json_values.parse_list(requirements, "requirements", lambda value: value):
        check_one, requirement = json_values.get_handler(_CHECKS, item, "type", "requirement")
        check_one(md, requirement)
    builder = _ViewBuilder(md)
    for update in json_values.parse_list(updates, "updates", lambda value: value):
        builder.apply_update(update)
    return builder.build()


def parse(raw: bytes) -> Json:
    """Parse a metadata file of a view.

    Raises:
        InvalidInputError: it does not hold valid metadata of a view.
    """
    where = "view metadata"
    try:
        md = json_values.require_object(orjson.loads(raw), where)
    except orjson.JSONDecodeError as error:
        raise InvalidInputError(f"the metadata file is not JSON: {error}") from error
    version = json_values.integer(md, "format-version", where)
    if version != _SUPPORTED:
        raise IllegalArgumentError(f"Unsupported format version: {version}")
    parsed: Json = {
        "view-uuid": json_values.uuid(md, "view-uuid", where),
        "format-version": version,
        "location": json_values.text(md, "location", where),
        "schemas": [schemas.parse_schema(item) for item in json_values.items(md, "schemas", where)],
        "current-version-id": json_values.integer(md, "current-version-id", where),
        "versions": [_parse_version(item) for item in json_values.items(md, "versions", where)],
        "version-log": [_parse_log_entry(item) for item in json_values.items(md, "version-log", where)],
        "properties": json_values.optional_string_map(md, "properties", where),
    }
    if not any(item["version-id"] == parsed["current-version-id"] for item in parsed["versions"]):
        raise IllegalArgumentError(f"Cannot find current version {parsed['current-version-id']} in view versions")
    return parsed


def next_metadata_location(md: Json, previous: str | None) -> str:
    """Return the location of the next metadata file, numbered after the previous one."""
    return next_metadata_file(md["location"], md["properties"], previous)


class _ViewBuilder:
    """New metadata of a view while updates are applied."""

    def __init__(self, base: Json | None) -> None:
        self._base = base
        self._md: Json = dict(base) if base is not None else _empty_metadata()
        self._changed = base is None
        self._last_schema: int | None = None
        self._last_version: int | None = None
        self._added: set[int] = set()
        self._log_entry: Json | None = None

    def apply_update(self, update: object) -> None:
        handler, fields = json_values.get_handler(_ACTIONS, update, "action", "update")
        handler(self, fields)

    def build(self) -> Json:
        if self._base is not None and not self._changed:
            return self._base
        md = self._md
        if self._log_entry is not None:
            md["version-log"] = [*md["version-log"], self._log_entry]
        if self._base is not None:
            self._check_dialects(self._base)
        self._expire(_history_size(md["properties"]))
        return md

    def assign_uuid(self, update: Json) -> None:
        if json_values.uuid(update, "uuid", "assign-uuid") != str(self._md["view-uuid"]).lower():
            raise IllegalArgumentError("Cannot reassign uuid")

    def upgrade_format_version(self, update: Json) -> None:
        version = json_values.integer(update, "format-version", "upgrade-format-version")
        if version < self._md["format-version"]:
            raise IllegalArgumentError(f"Cannot downgrade v{self._md['format-version']} view to v{version}")
        if version > _SUPPORTED:
            raise IllegalArgumentError(f"Unsupported format version: {version}")

    def set_location(self, update: Json) -> None:
        location = json_values.text(update, "location", "set-location")
        if location != self._md["location"]:
            self._update({"location": location})

    def set_properties(self, update: Json) -> None:
        if updates := json_values.string_map(update, "updates", "set-properties"):
            self._update({"properties": {**self._md["properties"], **updates}})

    def remove_properties(self, update: Json) -> None:
        if removals := set(json_values.texts(update, "removals", "remove-properties")):
            properties = {key: value for key, value in self._md["properties"].items() if key not in removals}
            self._update({"properties": properties})

    def add_schema(self, update: Json) -> None:
        schema = schemas.parse_schema(update.get("schema"))
        existing = self._md["schemas"]
        same = next((old["schema-id"] for old in existing if schemas.is_same(old, schema)), None)
        if same is None:
            new_id = max((old["schema-id"] for old in existing), default=-1) + 1
            self._update({"schemas": [*existing, {**schema, "schema-id": new_id}]})
        self._last_schema = new_id if same is None else same

    def add_version(self, update: Json) -> None:
        version = _parse_version(update.get("view-version"))
        if version["schema-id"] == _LAST_ADDED:
            if self._last_schema is None:
                raise ValidationError("Cannot set last added schema: no schema has been added")
            version["schema-id"] = self._last_schema
        existing = self._md["versions"]
        same = next((old["version-id"] for old in existing if _is_same_version(old, version)), None)
        if same is None:
            if not any(schema["schema-id"] == version["schema-id"] for schema in self._md["schemas"]):
                raise IllegalArgumentError(f"Cannot add version with unknown schema: {version['schema-id']}")
            version["version-id"] = max([version["version-id"], *(old["version-id"] + 1 for old in existing)])
            self._update({"versions": [*existing, version]})
            self._added.add(version["version-id"])
        self._last_version = version["version-id"] if same is None else same

    def set_current_version(self, update: Json) -> None:
        version_id = json_values.integer(update, "view-version-id", "set-current-view-version")
        if version_id == _LAST_ADDED:
            if self._last_version is None:
                raise ValidationError("Cannot set last version id: no current version id has been set")
            version_id = self._last_version
        if version_id == self._md["current-version-id"]:
            return
        version = next((item for item in self._md["versions"] if item["version-id"] == version_id), None)
        if version is None:
            raise IllegalArgumentError(f"Cannot set current version to unknown version: {version_id}")
        timestamp_ms = version["timestamp-ms"] if version_id in self._added else int(time() * 1000)
        self._log_entry = {"timestamp-ms": timestamp_ms, "version-id": version_id}
        self._update({"current-version-id": version_id})

    def _update(self, changes: Json) -> None:
        self._md |= changes
        self._changed = True

    def _check_dialects(self, base: Json) -> None:
        if self._md["properties"].get(DROP_DIALECT, "false").lower() == "true":
            return
        before, after = _dialects(_current_version(base)), _dialects(_current_version(self._md))
        if not set(before) <= set(after):
            raise IllegalArgumentError(
                f"Cannot replace view due to loss of view dialects ({DROP_DIALECT}=false):\n"
                f"Previous dialects: [{', '.join(before)}]\nNew dialects: [{', '.join(after)}]"
            )

    def _expire(self, size: int) -> None:
        """Remove the oldest versions beyond `size`, but not the current one or those just added."""
        md = self._md
        keep = max(size, len(self._added | {md["current-version-id"]}))
        if len(md["versions"]) <= keep:
            return
        ids = sorted((item["version-id"] for item in md["versions"]), reverse=True)
        other_ids = [item for item in ids if item != md["current-version-id"]]
        kept_ids = {md["current-version-id"], *other_ids[: keep - 1]}
        md["versions"] = [item for item in md["versions"] if item["version-id"] in kept_ids]
        log: list[Json] = []
        for entry in md["version-log"]:
            if entry["version-id"] in kept_ids:
                log.append(entry)
            else:
                log.clear()
        md["version-log"] = log


def _empty_metadata() -> Json:
    return {
        "view-uuid": str(uuid4()),
        "format-version": _SUPPORTED,
        "location": None,
        "schemas": [],
        "current-version-id": None,
        "versions": [],
        "version-log": [],
        "properties": {},
    }


def _history_size(properties: Mapping[str, str]) -> int:
    value = properties.get(HISTORY_SIZE, "10")
    try:
        size = int(value)
    except ValueError:
        raise IllegalArgumentError(
            f"{HISTORY_SIZE} must be a number but was {json_values.format_value(value)}"
        ) from None
    if size <= 0:
        raise IllegalArgumentError(f"{HISTORY_SIZE} must be positive but was {size}")
    return size


def _is_same_version(one: Json, other: Json) -> bool:
    return all(one.get(key) == other.get(key) for key in _MEANING)


def _current_version(md: Json) -> Json:
    version: Json = next(item for item in md["versions"] if item["version-id"] == md["current-version-id"])
    return version


def _dialects(version: Json) -> list[str]:
    return [item["dialect"].lower() for item in version["representations"]]


def _parse_version(value: object) -> Json:
    where = "view-version"
    json = json_values.require_object(value, where)
    version: Json = {
        "version-id": json_values.integer(json, "version-id", where),
        "timestamp-ms": json_values.integer(json, "timestamp-ms", where, bits=64),
        "schema-id": json_values.integer(json, "schema-id", where),
        "summary": json_values.string_map(json, "summary", where),
        "representations": [_parse_representation(item) for item in json_values.items(json, "representations", where)],
        "default-namespace": json_values.texts(json, "default-namespace", where),
    }
    if (catalog := json_values.optional_text(json, "default-catalog", where)) is not None:
        version["default-catalog"] = catalog
    dialects: set[str] = set()
    for dialect in _dialects(version):
        if dialect in dialects:
            raise IllegalArgumentError(f"Invalid view version: Cannot add multiple queries for dialect {dialect}")
        dialects.add(dialect)
    return version


def _parse_representation(value: object) -> Json:
    where = "view representation"
    json = json_values.require_object(value, where)
    kind = json_values.text(json, "type", where)
    if kind.lower() != "sql":
        raise IllegalArgumentError(f"Found unsupported view representations: [{json_values.format_value(kind)}]")
    return {
        "type": "sql",
        "sql": json_values.text(json, "sql", where),
        "dialect": json_values.text(json, "dialect", where),
    }


def _parse_log_entry(value: object) -> Json:
    json = json_values.require_object(value, "version-log")
    return {
        "timestamp-ms": json_values.integer(json, "timestamp-ms", "version-log", bits=64),
        "version-id": json_values.integer(json, "version-id", "version-log"),
    }


def _assert_uuid(md: Json, requirement: Json) -> None:
    expected = json_values.text(requirement, "uuid", "assert-view-uuid")
    if expected.lower() != str(md["view-uuid"]).lower():
        raise ConcurrentModificationError(
            f"Requirement failed: view UUID does not match: expected {md['view-uuid']} != "
            f"{json_values.format_value(expected)}"
        )


_CHECKS: Mapping[str, Callable[[Json, Json], None]] = MappingProxyType({"assert-view-uuid": _assert_uuid})

_ACTIONS: Mapping[str, Callable[[_ViewBuilder, Json], None]] = MappingProxyType(
    {
        "assign-uuid": _ViewBuilder.assign_uuid,
        "upgrade-format-version": _ViewBuilder.upgrade_format_version,
        "add-schema": _ViewBuilder.add_schema,
        "set-location": _ViewBuilder.set_location,
        "set-properties": _ViewBuilder.set_properties,
        "remove-properties": _ViewBuilder.remove_properties,
        "add-view-version": _ViewBuilder.add_version,
        "set-current-view-version": _ViewBuilder.set_current_version,
    }
)
