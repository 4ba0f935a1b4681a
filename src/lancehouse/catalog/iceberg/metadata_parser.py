"""Parse metadata files of Iceberg tables, of every format version, into one form."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from uuid import NAMESPACE_URL, uuid5

import orjson
from lance_namespace.errors import InvalidInputError

from lancehouse.catalog.errors import IllegalArgumentError
from lancehouse.catalog.iceberg import json_values, schemas, updates
from lancehouse.catalog.iceberg.json_values import Json
from lancehouse.catalog.iceberg.updates import MAIN, check_format_version, empty_metadata
from lancehouse.catalog.warehouse_files import MAX_BYTES

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


def get_by_id(md: Json, items: str, id_key: str, chosen: int) -> Json:
    """Return the item of a list that has this id, or raise IllegalArgumentError."""
    result: Json | None = next((item for item in md[items] if item[id_key] == chosen), None)
    if result is None:
        raise IllegalArgumentError(f"Invalid table metadata: no {id_key} {chosen} in {items}")
    return result


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
            for index, item in enumerate(json.get("partition-spec") or [])
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
        name: updates.parse_ref(json_values.require_object(ref, "ref"), f"ref {json_values.format_value(name)}")
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
        md["encryption-keys"] = [
            updates.parse_encryption_key(item) for item in json_values.items(md, "encryption-keys", where)
        ]
