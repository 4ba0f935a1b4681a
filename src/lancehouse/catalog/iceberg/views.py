"""Views as Iceberg's view metadata, in JSON: made, read and changed; no database, and no storage."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import time
from types import MappingProxyType
from uuid import uuid4

import orjson
from lance_namespace.errors import ConcurrentModificationError, InvalidInputError

from lancehouse.catalog.errors import IllegalArgumentError, ValidationError
from lancehouse.catalog.iceberg import schemas, shapes
from lancehouse.catalog.iceberg.shapes import Json
from lancehouse.catalog.iceberg.tables import next_file

HISTORY_SIZE = "version.history.num-entries"
DROP_DIALECT = "replace.drop-dialect.allowed"

_LAST_ADDED = -1
_SUPPORTED = 1
_MEANING = ("summary", "representations", "default-catalog", "default-namespace", "schema-id")
"""The keys of a version that make it differ from another."""


def new_view(request: Json, location: str) -> Json:
    """The first state of a view.

    Args:
        request: of CreateView.
        location: the view's root; the request's is not looked at.

    Raises:
        InvalidInputError: the request makes no view.
    """
    given = shapes.mapping(request, "request")
    builder = _Builder(None)
    builder.take({"action": "set-location", "location": location})
    builder.take({"action": "set-properties", "updates": shapes.optional_strings(given, "properties", "request")})
    builder.take({"action": "add-schema", "schema": given.get("schema")})
    version = shapes.part(given, "view-version", "request")
    if shapes.items(version, "representations", "view-version") == []:
        raise IllegalArgumentError("Cannot create view without specifying a query")
    builder.take({"action": "add-view-version", "view-version": {**version, "schema-id": _LAST_ADDED}})
    builder.take({"action": "set-current-view-version", "view-version-id": _LAST_ADDED})
    return builder.build()


def apply(md: Json, requirements: Sequence[object], updates: Sequence[object]) -> Json:
    """The view after the updates; `md` itself where they change nothing.

    Raises:
        ConcurrentModificationError: a requirement does not hold.
        InvalidInputError: a requirement or an update that is not known, or not possible.
    """
    for item in shapes.each(requirements, "requirements", lambda value: value):
        hold, given = shapes.known(_HOLD, item, "type", "requirement")
        hold(md, given)
    builder = _Builder(md)
    for update in shapes.each(updates, "updates", lambda value: value):
        builder.take(update)
    return builder.build()


def parse(raw: bytes) -> Json:
    """A metadata file of a view.

    Raises:
        InvalidInputError: it holds no metadata of a view, or such that contradict themselves.
    """
    where = "view metadata"
    try:
        md = shapes.mapping(orjson.loads(raw), where)
    except orjson.JSONDecodeError as error:
        raise InvalidInputError(f"the metadata file is not JSON: {error}") from error
    version = shapes.integer(md, "format-version", where)
    if version != _SUPPORTED:
        raise IllegalArgumentError(f"Unsupported format version: {version}")
    found: Json = {
        "view-uuid": shapes.uuid(md, "view-uuid", where),
        "format-version": version,
        "location": shapes.text(md, "location", where),
        "schemas": [schemas.checked(item) for item in shapes.items(md, "schemas", where)],
        "current-version-id": shapes.integer(md, "current-version-id", where),
        "versions": [_version(item) for item in shapes.items(md, "versions", where)],
        "version-log": [_log_entry(item) for item in shapes.items(md, "version-log", where)],
        "properties": shapes.optional_strings(md, "properties", where),
    }
    if not any(item["version-id"] == found["current-version-id"] for item in found["versions"]):
        raise IllegalArgumentError(f"Cannot find current version {found['current-version-id']} in view versions")
    return found


def next_location(md: Json, previous: str | None) -> str:
    """Where the next metadata file goes, numbered after the previous one."""
    return next_file(md["location"], md["properties"], previous)


class _Builder:
    """A view in the making."""

    def __init__(self, base: Json | None) -> None:
        self._base = base
        self._md: Json = dict(base) if base is not None else _empty()
        self._changed = base is None
        self._last_schema: int | None = None
        self._last_version: int | None = None
        self._added: set[int] = set()
        self._logged: Json | None = None

    def take(self, update: object) -> None:
        act, given = shapes.known(_ACTIONS, update, "action", "update")
        act(self, given)

    def build(self) -> Json:
        if self._base is not None and not self._changed:
            return self._base
        md = self._md
        if self._logged is not None:
            md["version-log"] = [*md["version-log"], self._logged]
        if self._base is not None:
            self._check_dialects(self._base)
        self._expire(_history_size(md["properties"]))
        return md

    def assign_uuid(self, given: Json) -> None:
        if shapes.uuid(given, "uuid", "assign-uuid") != str(self._md["view-uuid"]).lower():
            raise IllegalArgumentError("Cannot reassign uuid")

    def upgrade(self, given: Json) -> None:
        version = shapes.integer(given, "format-version", "upgrade-format-version")
        if version < self._md["format-version"]:
            raise IllegalArgumentError(f"Cannot downgrade v{self._md['format-version']} view to v{version}")
        if version > _SUPPORTED:
            raise IllegalArgumentError(f"Unsupported format version: {version}")

    def set_location(self, given: Json) -> None:
        location = shapes.text(given, "location", "set-location")
        if location != self._md["location"]:
            self._set({"location": location})

    def set_properties(self, given: Json) -> None:
        if updates := shapes.strings(given, "updates", "set-properties"):
            self._set({"properties": {**self._md["properties"], **updates}})

    def remove_properties(self, given: Json) -> None:
        if removals := set(shapes.texts(given, "removals", "remove-properties")):
            kept = {key: value for key, value in self._md["properties"].items() if key not in removals}
            self._set({"properties": kept})

    def add_schema(self, given: Json) -> None:
        schema = schemas.checked(given.get("schema"))
        known = self._md["schemas"]
        same = next((old["schema-id"] for old in known if schemas.is_same(old, schema)), None)
        if same is None:
            new_id = max((old["schema-id"] for old in known), default=-1) + 1
            self._set({"schemas": [*known, {**schema, "schema-id": new_id}]})
        self._last_schema = new_id if same is None else same

    def add_version(self, given: Json) -> None:
        version = _version(given.get("view-version"))
        if version["schema-id"] == _LAST_ADDED:
            if self._last_schema is None:
                raise ValidationError("Cannot set last added schema: no schema has been added")
            version["schema-id"] = self._last_schema
        known = self._md["versions"]
        same = next((old["version-id"] for old in known if _is_same(old, version)), None)
        if same is None:
            if not any(schema["schema-id"] == version["schema-id"] for schema in self._md["schemas"]):
                raise IllegalArgumentError(f"Cannot add version with unknown schema: {version['schema-id']}")
            version["version-id"] = max([version["version-id"], *(old["version-id"] + 1 for old in known)])
            self._set({"versions": [*known, version]})
            self._added.add(version["version-id"])
        self._last_version = version["version-id"] if same is None else same

    def set_current_version(self, given: Json) -> None:
        chosen = shapes.integer(given, "view-version-id", "set-current-view-version")
        if chosen == _LAST_ADDED:
            if self._last_version is None:
                raise ValidationError("Cannot set last version id: no current version id has been set")
            chosen = self._last_version
        if chosen == self._md["current-version-id"]:
            return
        version = next((item for item in self._md["versions"] if item["version-id"] == chosen), None)
        if version is None:
            raise IllegalArgumentError(f"Cannot set current version to unknown version: {chosen}")
        at = version["timestamp-ms"] if chosen in self._added else int(time() * 1000)
        self._logged = {"timestamp-ms": at, "version-id": chosen}
        self._set({"current-version-id": chosen})

    def _set(self, changes: Json) -> None:
        self._md |= changes
        self._changed = True

    def _current(self, md: Json) -> Json:
        found: Json = next(item for item in md["versions"] if item["version-id"] == md["current-version-id"])
        return found

    def _check_dialects(self, base: Json) -> None:
        if self._md["properties"].get(DROP_DIALECT, "false").lower() == "true":
            return
        before, after = _dialects(self._current(base)), _dialects(self._current(self._md))
        if not set(before) <= set(after):
            raise IllegalArgumentError(
                f"Cannot replace view due to loss of view dialects ({DROP_DIALECT}=false):\n"
                f"Previous dialects: [{', '.join(before)}]\nNew dialects: [{', '.join(after)}]"
            )

    def _expire(self, size: int) -> None:
        """Forget the oldest versions, but none that is current or was just added."""
        md = self._md
        keep = max(size, len(self._added | {md["current-version-id"]}))
        if len(md["versions"]) <= keep:
            return
        ids = sorted((item["version-id"] for item in md["versions"]), reverse=True)
        others = [item for item in ids if item != md["current-version-id"]]
        kept = {md["current-version-id"], *others[: keep - 1]}
        md["versions"] = [item for item in md["versions"] if item["version-id"] in kept]
        log: list[Json] = []
        for entry in md["version-log"]:
            if entry["version-id"] in kept:
                log.append(entry)
            else:
                log.clear()
        md["version-log"] = log


def _empty() -> Json:
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
        raise IllegalArgumentError(f"{HISTORY_SIZE} must be a number but was {shapes.shown(value)}") from None
    if size <= 0:
        raise IllegalArgumentError(f"{HISTORY_SIZE} must be positive but was {size}")
    return size


def _is_same(one: Json, other: Json) -> bool:
    return all(one.get(key) == other.get(key) for key in _MEANING)


def _dialects(version: Json) -> list[str]:
    return [item["dialect"].lower() for item in version["representations"]]


def _version(value: object) -> Json:
    where = "view-version"
    given = shapes.mapping(value, where)
    version: Json = {
        "version-id": shapes.integer(given, "version-id", where),
        "timestamp-ms": shapes.integer(given, "timestamp-ms", where, bits=64),
        "schema-id": shapes.integer(given, "schema-id", where),
        "summary": shapes.strings(given, "summary", where),
        "representations": [_representation(item) for item in shapes.items(given, "representations", where)],
        "default-namespace": shapes.texts(given, "default-namespace", where),
    }
    if (catalog := shapes.optional_text(given, "default-catalog", where)) is not None:
        version["default-catalog"] = catalog
    seen: set[str] = set()
    for dialect in _dialects(version):
        if dialect in seen:
            raise IllegalArgumentError(f"Invalid view version: Cannot add multiple queries for dialect {dialect}")
        seen.add(dialect)
    return version


def _representation(value: object) -> Json:
    where = "view representation"
    given = shapes.mapping(value, where)
    kind = shapes.text(given, "type", where)
    if kind.lower() != "sql":
        raise IllegalArgumentError(f"Found unsupported view representations: [{shapes.shown(kind)}]")
    return {"type": "sql", "sql": shapes.text(given, "sql", where), "dialect": shapes.text(given, "dialect", where)}


def _log_entry(value: object) -> Json:
    given = shapes.mapping(value, "version-log")
    return {
        "timestamp-ms": shapes.integer(given, "timestamp-ms", "version-log", bits=64),
        "version-id": shapes.integer(given, "version-id", "version-log"),
    }


def _assert_uuid(md: Json, given: Json) -> None:
    expected = shapes.text(given, "uuid", "assert-view-uuid")
    if expected.lower() != str(md["view-uuid"]).lower():
        raise ConcurrentModificationError(
            f"Requirement failed: view UUID does not match: expected {md['view-uuid']} != {shapes.shown(expected)}"
        )


_HOLD: Mapping[str, Callable[[Json, Json], None]] = MappingProxyType({"assert-view-uuid": _assert_uuid})

_ACTIONS: Mapping[str, Callable[[_Builder, Json], None]] = MappingProxyType(
    {
        "assign-uuid": _Builder.assign_uuid,
        "upgrade-format-version": _Builder.upgrade,
        "add-schema": _Builder.add_schema,
        "set-location": _Builder.set_location,
        "set-properties": _Builder.set_properties,
        "remove-properties": _Builder.remove_properties,
        "add-view-version": _Builder.add_version,
        "set-current-view-version": _Builder.set_current_version,
    }
)
