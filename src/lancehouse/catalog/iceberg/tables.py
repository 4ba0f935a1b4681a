"""Metadata of Iceberg tables: create, parse and change them, check requirements, list the files of a purge.

The metadata stay JSON throughout: pyiceberg's models cover less than the format (no variant, no encryption keys, few
kinds of statistics) and would lose what they do not know. Each step follows Iceberg's own library.
"""

from __future__ import annotations

import logging
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import TypeVar
from uuid import NAMESPACE_URL, uuid4, uuid5

import orjson
from lance_namespace.errors import (
    ConcurrentModificationError,
    InvalidInputError,
    LanceNamespaceError,
    UnsupportedOperationError,
)
from pyiceberg.exceptions import ValidationError as PyicebergValidationError
from pyiceberg.table.metadata import TableMetadata as PyicebergMetadata
from pyiceberg.table.metadata import TableMetadataUtil

from lancehouse.catalog.errors import IllegalArgumentError, ValidationError
from lancehouse.catalog.iceberg import json_values, schemas
from lancehouse.catalog.iceberg.json_values import Json
from lancehouse.catalog.iceberg.manifests import METADATA_PATH, ManifestReader, is_below
from lancehouse.catalog.iceberg.updates import (
    DEFAULT_FORMAT_VERSION,
    MAIN,
    Draft,
    apply_update,
    check_format_version,
    check_manifest_lists,
    empty_metadata,
    get_by_id,
    parse_encryption_key,
    parse_ref,
)
from lancehouse.catalog.warehouse_files import MAX_BYTES, WarehouseFiles
from lancehouse.locations import key as location_key
from lancehouse.properties import GC_ENABLED

CREATE = "assert-create"


def check_requirements(md: IcebergTableMetadata | None, requirements: object) -> None:
    """Check a commit's requirements against a table, or against None if there is no table.

    Raises:
        ConcurrentModificationError: one does not hold; the message is that of Iceberg's own library.
        InvalidInputError: one is unknown, or there is no table and one is not `assert-create`.
    """
    for item in json_values.parse_list(requirements, "requirements", lambda value: value):
        check_one, requirement = json_values.get_handler(_CHECKS, item, "type", "requirement")
        if md is not None:
            check_one(md.json, requirement)
        elif requirement["type"] != CREATE:
            raise IllegalArgumentError(f"Invalid create requirements: {requirement['type']}")


def _check_create(_md: Json, _requirement: Json) -> None:
    raise ConcurrentModificationError("Requirement failed: table already exists")


def _check_uuid(md: Json, requirement: Json) -> None:
    expected = json_values.text(requirement, "uuid", "assert-table-uuid")
    if expected.lower() != str(md["table-uuid"]).lower():
        raise ConcurrentModificationError(
            f"Requirement failed: UUID does not match: expected {md['table-uuid']} != "
            f"{json_values.format_value(expected)}"
        )


def _check_ref(md: Json, requirement: Json) -> None:
    name = json_values.text(requirement, "ref", "assert-ref-snapshot-id")
    expected = json_values.optional_integer(requirement, "snapshot-id", "assert-ref-snapshot-id", bits=64)
    ref = md["refs"].get(name)
    if ref is None:
        if expected is not None:
            raise ConcurrentModificationError(
                f"Requirement failed: branch or tag {name} is missing, expected {expected}"
            )
    elif expected is None:
        raise ConcurrentModificationError(f"Requirement failed: {ref['type']} {name} was created concurrently")
    elif expected != ref["snapshot-id"]:
        raise ConcurrentModificationError(
            f"Requirement failed: {ref['type']} {name} has changed: expected id {expected} != {ref['snapshot-id']}"
        )


def _check_number(key: str, name: str, words: str, md: Json, requirement: Json) -> None:
    expected = json_values.integer(requirement, name, f"assert-{name}")
    if expected != md[key]:
        raise ConcurrentModificationError(f"Requirement failed: {words} changed: expected id {expected} != {md[key]}")


_CHECKS: Mapping[str, Callable[[Json, Json], None]] = MappingProxyType(
    {
        CREATE: _check_create,
        "assert-table-uuid": _check_uuid,
        "assert-ref-snapshot-id": _check_ref,
        **{
            f"assert-{name}": partial(_check_number, key, name, words)
            for key, name, words in (
                ("last-column-id", "last-assigned-field-id", "last assigned field id"),
                ("current-schema-id", "current-schema-id", "current schema"),
                ("last-partition-id", "last-assigned-partition-id", "last assigned partition id"),
                ("default-spec-id", "default-spec-id", "default partition spec"),
                ("default-sort-order-id", "default-sort-order-id", "default sort order"),
            )
        },
    }
)


logger = logging.getLogger(__name__)

_T = TypeVar("_T")

MAX_PURGED = 2_000_000
"""Most files that one purge removes."""


def list_purge_files(md: IcebergTableMetadata, files: WarehouseFiles) -> Iterator[str]:
    """Yield every file of a table but its newest metadata file, each once: data and delete files first, then metadata.

    Only files below the table's location are returned, and only manifests there are read: what a client wrote into a
    manifest must not make the server delete files of others. Data files are left out where `gc.enabled` is false, and
    manifests that cannot be read are skipped.
    """
    digests: set[int] = set()
    root = location_key(md.location, "iceberg")
    for file in _list_all_files(md.json, files, root):
        # Hashes take less memory than names: a manifest may name millions of files.
        if (digest := hash(file)) not in digests and is_below((root,), file):
            if len(digests) == MAX_PURGED:
                logger.warning("table %s has more than %d files: the others are not removed", md.location, MAX_PURGED)
                return
            digests.add(digest)
            yield file


def _list_all_files(md: Json, files: WarehouseFiles, root: str) -> Iterator[str]:
    lists = dict.fromkeys(path for snapshot in md["snapshots"] if (path := snapshot.get("manifest-list")))
    manifests: dict[str, None] = {}
    for path in lists:
        for manifest in _read_below(path, files, root, ManifestReader.read_list):
            if len(manifests) == MAX_PURGED:
                break
            manifests[manifest.manifest_path] = None
    if md["properties"].get(GC_ENABLED, "true").lower() != "false":
        for path in manifests:
            yield from _read_below(path, files, root, ManifestReader.read_paths)
    yield from manifests
    yield from lists
    for snapshot in md["snapshots"]:
        yield from snapshot.get("manifests", ())
    for file in (*md["statistics"], *md["partition-statistics"]):
        yield file["statistics-path"]
    for entry in md["metadata-log"]:
        yield entry["metadata-file"]


def _read_below(
    path: str, files: WarehouseFiles, root: str, read: Callable[[ManifestReader, str], Iterator[_T]]
) -> Iterator[_T]:
    """Yield what a manifest or manifest list names, if it is below the table's location, as far as it can be read."""
    if not is_below((root,), path):
        return
    try:
        yield from read(ManifestReader(files.read), path)
    except LanceNamespaceError as error:
        logger.warning("manifest %s cannot be read: %s", path, error)


FORMAT_VERSION = "format-version"
DELETE_OBSOLETE = "write.metadata.delete-after-commit.enabled"

RESERVED = frozenset(
    {
        *(FORMAT_VERSION, "uuid", "snapshot-count", "current-schema", "default-partition-spec", "default-sort-order"),
        *("current-snapshot-id", "current-snapshot-summary", "current-snapshot-timestamp-ms"),
    }
)
"""Properties that belong to a request or a response, and are not stored."""

_RETRIES = tuple(f"commit.retry.{name}" for name in ("num-retries", "min-wait-ms", "max-wait-ms", "total-timeout-ms"))
_VERSION = re.compile(r"(?:.*/)?(\d{1,9})-[^/]*")


@dataclass(frozen=True, slots=True)
class IcebergTableMetadata:
    """One state of an Iceberg table. Its JSON is shared with other states, so it must not be modified."""

    json: Json = field(repr=False)

    @property
    def location(self) -> str:
        """The table's location."""
        return str(self.json["location"])

    @property
    def table_uuid(self) -> str:
        """The table's UUID, which survives commits and renames."""
        return str(self.json["table-uuid"])

    @property
    def format_version(self) -> int:
        """The format version: 1, 2 or 3."""
        return int(self.json["format-version"])

    @property
    def properties(self) -> dict[str, str]:
        """The table's properties."""
        properties: dict[str, str] = self.json["properties"]
        return properties

    @property
    def current_snapshot_id(self) -> int | None:
        """Id of the current snapshot; None for an empty table."""
        current: int | None = self.json.get("current-snapshot-id")
        return current

    def schema(self) -> Json:
        """Return the current schema."""
        return get_by_id(self.json, "schemas", "schema-id", self.json["current-schema-id"])

    def to_pyiceberg(self) -> PyicebergMetadata:
        """Return the metadata as pyiceberg's model.

        Raises:
            UnsupportedOperationError: they contain something that pyiceberg cannot parse.
        """
        try:
            return TableMetadataUtil.parse_raw(dump(self).decode())
        except (PyicebergValidationError, ValueError, LookupError, TypeError) as error:
            raise UnsupportedOperationError(
                f"the server cannot read this table, {self.location}, itself: {_one_line(error)}"
            ) from error


def new_table(request: Json, location: str) -> IcebergTableMetadata:
    """Return the metadata of a new table, with all ids assigned anew.

    Args:
        request: the body of CreateTable.
        location: the table's location; that of the request is ignored.

    Raises:
        InvalidInputError: the request does not describe a valid table.
    """
    json = json_values.require_object(request, "request")
    properties = json_values.optional_string_map(json, "properties", "request")
    version = _parse_format_version(properties)
    _check_retries(properties)
    schema, ids = schemas.assign_fresh_ids(schemas.parse_schema(json.get("schema")))
    table_properties = {key: value for key, value in properties.items() if key not in RESERVED}
    draft = Draft(None, version)
    schemas.check_version(schema, version)
    for update in (
        {"action": "set-location", "location": location},
        {"action": "add-schema", "schema": schema},
        {"action": "set-current-schema", "schema-id": -1},
        {"action": "add-spec", "spec": _parse_fresh_spec(json.get("partition-spec"), ids)},
        {"action": "set-default-spec", "spec-id": -1},
        {"action": "add-sort-order", "sort-order": _parse_fresh_order(json.get("write-order"), ids)},
        {"action": "set-default-sort-order", "sort-order-id": -1},
        {"action": "set-properties", "updates": table_properties},
    ):
        apply_update(draft, update)
    return IcebergTableMetadata(draft.build(None))


def parse(raw: bytes) -> IcebergTableMetadata:
    """Parse a metadata file, compressed or not.

    Raises:
        InvalidInputError: it does not hold valid metadata of an Iceberg table.
    """
    return IcebergTableMetadata(parse_metadata(raw))


def dump(md: IcebergTableMetadata) -> bytes:
    """Return the metadata as JSON, for files and responses."""
    return orjson.dumps(md.json)


def keep_ref_snapshots(raw: bytes) -> bytes:
    """Return a metadata file with only those snapshots that a branch or a tag points to."""
    md = parse(raw).json
    ref_ids = {ref["snapshot-id"] for ref in md["refs"].values()}
    return orjson.dumps({**md, "snapshots": [item for item in md["snapshots"] if item["snapshot-id"] in ref_ids]})


def apply_updates(
    md: IcebergTableMetadata | None, updates: Sequence[object], metadata_location: str | None
) -> IcebergTableMetadata:
    """Return the table after the updates; `md` itself if they change nothing.

    Args:
        md: the state before; None for a staged table that is now created.
        updates: the updates, in their order.
        metadata_location: the metadata file of `md`, for the metadata log.

    Raises:
        InvalidInputError: an update is unknown or not possible.
        ConcurrentModificationError: a snapshot was made for an older state of the table.
    """
    parsed = json_values.parse_list(
        updates, "updates", lambda update: json_values.require_object(update, "each update")
    )
    draft = Draft(md.json) if md else Draft(None, _staged_format_version(parsed))
    for update in parsed:
        apply_update(draft, update)
    after = draft.build(metadata_location)
    check_manifest_lists(draft)
    return md if md is not None and after is md.json else IcebergTableMetadata(after)


def next_metadata_location(md: IcebergTableMetadata, previous: str | None) -> str:
    """Return the location of the next metadata file, numbered after the previous one."""
    return next_metadata_file(md.location, md.properties, previous)


def next_metadata_file(location: str, properties: dict[str, str], previous: str | None) -> str:
    """Return the location of the next metadata file, for a table or a view."""
    match = _VERSION.fullmatch(previous) if previous else None
    number = int(match[1]) + 1 if match else 0
    folder = properties.get(METADATA_PATH) or f"{location.rstrip('/')}/metadata"
    return f"{folder.rstrip('/')}/{number:05d}-{uuid4()}.metadata.json"


def obsolete_metadata_files(before: IcebergTableMetadata, after: IcebergTableMetadata) -> list[str]:
    """Return metadata files that left the metadata log, if the table wants them deleted after a commit."""
    if after.properties.get(DELETE_OBSOLETE, "false").lower() != "true":
        return []
    logged_files = {entry["metadata-file"] for entry in after.json["metadata-log"]}
    return [file for entry in before.json["metadata-log"] if (file := entry["metadata-file"]) not in logged_files]


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


def _parse_format_version(properties: dict[str, str]) -> int:
    value = properties.get(FORMAT_VERSION, str(DEFAULT_FORMAT_VERSION))
    if not re.fullmatch(r"\d{1,4}", value, re.ASCII):
        raise InvalidInputError(f"property {FORMAT_VERSION} must be a number, got {json_values.format_value(value)}")
    return int(value)


def _staged_format_version(updates: list[Json]) -> int:
    for update in updates:
        if update.get("action") == "upgrade-format-version":
            return json_values.integer(update, "format-version", "upgrade-format-version")
    return DEFAULT_FORMAT_VERSION


def _check_retries(properties: dict[str, str]) -> None:
    for name in _RETRIES:
        if (value := properties.get(name)) is None:
            continue
        if not re.fullmatch(r"[+-]?\d{1,10}", value, re.ASCII):
            raise ValidationError(f"Table property {name} must have integer value")
        if int(value) < 0:
            raise ValidationError(f"Table property {name} must have non negative integer value")


def _parse_fresh_spec(json: object, ids: dict[int, int]) -> Json:
    spec = schemas.parse_spec(json) if json is not None else {"fields": []}
    fields = [{**item, "field-id": None} for item in spec["fields"]]
    return schemas.remap_sources({"fields": fields}, ids, "partition")


def _parse_fresh_order(json: object, ids: dict[int, int]) -> Json:
    order = schemas.parse_order(json) if json is not None else schemas.UNSORTED
    return schemas.remap_sources(order, ids, "sort")


_PIECE = 1 << 20
"""Bytes that are decompressed at a time."""


def parse_metadata(raw: bytes) -> Json:
    """Parse a metadata file, compressed or not.

    Raises:
        InvalidInputError: it does not hold valid metadata of an Iceberg table.
    """
    try:
        json = json_values.require_object(orjson.loads(_decompress(raw)), "table metadata")
    except orjson.JSONDecodeError as error:
        raise InvalidInputError(f"the metadata file is not JSON: {error}") from error
    version = json_values.integer(json, "format-version", "table metadata")
    check_format_version(version, "Cannot read unsupported version")
    md = {**empty_metadata(version), **{key: value for key, value in json.items() if value is not None}}
    _check_scalars(json, md, version)
    _read_layout(json, md, version)
    _read_history(md)
    return md


def _decompress(raw: bytes) -> bytes:
    if not raw.startswith(b"\x1f\x8b"):
        return raw
    pieces, size = [], 0
    try:
        for piece in _decompress_chunks(raw):
            size += len(piece)
            if size > MAX_BYTES:
                raise InvalidInputError(
                    f"the metadata file is larger than {MAX_BYTES} bytes when unpacked, which is the most that is read"
                )
            pieces.append(piece)
    except zlib.error as error:
        raise InvalidInputError(f"the metadata file cannot be unpacked: {error}") from error
    return b"".join(pieces)


def _decompress_chunks(raw: bytes) -> Iterator[bytes]:
    """Yield the decompressed content in small pieces, because a small file may decompress to any size."""
    decompressor = zlib.decompressobj(wbits=31)
    for start in range(0, len(raw), _PIECE):
        packed = raw[start : start + _PIECE]
        while packed and not decompressor.eof:
            yield decompressor.decompress(packed, _PIECE)
            packed = decompressor.unconsumed_tail
    if not decompressor.eof:
        raise InvalidInputError("the metadata file is cut off")


def _check_scalars(json: Json, md: Json, version: int) -> None:
    where = "table metadata"
    json_values.text(json, "location", where)
    if version > 1:
        json_values.uuid(json, "table-uuid", where)
        json_values.integer(json, "last-sequence-number", where, bits=64)
    elif json.get("table-uuid") is None:
        md["table-uuid"] = str(uuid5(NAMESPACE_URL, md["location"]))
    if version > 2:
        json_values.integer(json, "next-row-id", where, bits=64)
    json_values.integer(json, "last-updated-ms", where, bits=64)
    json_values.integer(json, "last-column-id", where)
    json_values.string_map(md, "properties", where)
    for key, bits in (("default-spec-id", 32), ("last-partition-id", 32), ("default-sort-order-id", 32)):
        json_values.integer(md, key, where, bits=bits)


def _read_layout(json: Json, md: Json, version: int) -> None:
    where = "table metadata"
    if version == 1 and not json.get("schemas"):
        schema = schemas.parse_schema(json.get("schema"))
        md |= {"schemas": [schema], "current-schema-id": schema["schema-id"]}
    if version == 1 and not json.get("partition-specs"):
        fields = [
            {"field-id": schemas.FIRST_FIELD_ID + index, **json_values.require_object(item, "partition field")}
            for index, item in enumerate(
                json_values.items(json, "partition-spec", where) if json.get("partition-spec") else []
            )
        ]
        md |= {"partition-specs": [{"spec-id": 0, "fields": fields}], "default-spec-id": 0}
    if version == 1 and not json.get("sort-orders"):
        md |= {"sort-orders": [schemas.UNSORTED], "default-sort-order-id": 0}
    md["schemas"] = [schemas.parse_schema(item) for item in json_values.items(md, "schemas", where)]
    specs = [schemas.parse_spec(item) for item in json_values.items(md, "partition-specs", where)]
    md["partition-specs"] = [schemas.assign_field_ids(item, [], 0) for item in specs]
    md["sort-orders"] = [schemas.parse_order(item) for item in json_values.items(md, "sort-orders", where)]
    if version == 1 and json.get("last-partition-id") is None:
        md["last-partition-id"] = max((schemas.last_field_id(item) for item in specs), default=0)
    json_values.integer(md, "current-schema-id", where)
    for items, id_key, current in (
        ("schemas", "schema-id", "current-schema-id"),
        ("partition-specs", "spec-id", "default-spec-id"),
        ("sort-orders", "order-id", "default-sort-order-id"),
    ):
        get_by_id(md, items, id_key, md[current])


def _read_history(md: Json) -> None:
    where = "table metadata"
    snapshot_ids = set()
    for item in json_values.items(md, "snapshots", where):
        snapshot = json_values.require_object(item, "snapshot")
        snapshot_ids.add(json_values.integer(snapshot, "snapshot-id", "snapshot", bits=64))
        json_values.integer(snapshot, "timestamp-ms", "snapshot", bits=64)
        if "sequence-number" in snapshot:
            json_values.integer(snapshot, "sequence-number", "snapshot", bits=64)
        if "manifest-list" in snapshot:
            json_values.text(snapshot, "manifest-list", "snapshot")
    current = json_values.optional_integer(md, "current-snapshot-id", where, bits=64)
    if current == -1 or current is None:
        md.pop("current-snapshot-id", None)
    elif current not in snapshot_ids:
        raise IllegalArgumentError("Invalid table metadata: Cannot find current version")
    elif MAIN not in json_values.inner_object(md, "refs", where):
        md["refs"] = {**md["refs"], MAIN: {"snapshot-id": current, "type": "branch"}}
    refs = json_values.inner_object(md, "refs", where)
    md["refs"] = {
        name: parse_ref(json_values.require_object(ref, "ref"), f"ref {json_values.format_value(name)}")
        for name, ref in refs.items()
    }
    for name, ref in md["refs"].items():
        if ref["snapshot-id"] not in snapshot_ids or (
            name == MAIN and ref["snapshot-id"] != md.get("current-snapshot-id")
        ):
            raise IllegalArgumentError(f"Invalid table metadata: ref {name} names snapshot {ref['snapshot-id']}")
    for key, id_key, bits in (
        ("snapshot-log", "snapshot-id", 64),
        ("statistics", "snapshot-id", 64),
        ("partition-statistics", "snapshot-id", 64),
    ):
        for item in json_values.items(md, key, where):
            json_values.integer(json_values.require_object(item, key), id_key, key, bits=bits)
    for key in ("snapshot-log", "metadata-log"):
        for item in json_values.items(md, key, where):
            json_values.integer(json_values.require_object(item, key), "timestamp-ms", key, bits=64)
    for entry in md["metadata-log"]:
        json_values.text(entry, "metadata-file", "metadata-log")
    for item in (*md["statistics"], *md["partition-statistics"]):
        json_values.text(item, "statistics-path", "statistics")
    if "encryption-keys" in md:
        md["encryption-keys"] = [parse_encryption_key(item) for item in json_values.items(md, "encryption-keys", where)]
