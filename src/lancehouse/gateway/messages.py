"""Lance REST messages: requests parsed from path, query and body; responses, headers and errors encoded."""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any
from urllib.parse import unquote_to_bytes

import orjson
from lance_namespace.errors import ErrorCode, InvalidInputError, LanceNamespaceError
from pydantic import BaseModel, ValidationError

from lancehouse.gateway.operations import Operation, RequestEncoding
from lancehouse.parsing import parse_json

DELIMITER = "$"
"""Default separator of the levels of an id in a path."""
HEADER = "header."
"""Prefix of context entries that are header fields."""
NOT_CONTEXT = frozenset(
    {"authorization", "x-api-key", "cookie", "host", "connection", "content-length", "content-type", "content-encoding"}
    | {"transfer-encoding", "accept-encoding", "expect", "te", "upgrade", "proxy-authorization"}
)
"""Header fields that do not become part of a request's context: secrets, and those about the connection."""
LARGEST = 2**63 - 1
"""Largest number in a query."""

Query = Mapping[str, Sequence[str]]
"""Parameters of a query, each with all its values."""


def parse_query(raw: bytes) -> dict[str, list[str]]:
    """Return the parameters of a query, each with all its values.

    Raises:
        InvalidInputError: one is not UTF-8. The message has its name but not its value, which may be a secret.
    """
    parameters: dict[str, list[str]] = {}
    for part in filter(None, raw.split(b"&")):
        name, _, value = part.partition(b"=")
        key = _decode(name, "a name in the query")
        parameters.setdefault(key, []).append(_decode(value, f"{key[:80]!r} in the query"))
    return parameters


def parse_id(segment: str, query: Query) -> list[str]:
    """Return the id in a path; the delimiter alone stands for the root.

    Raises:
        InvalidInputError: a level or the delimiter is empty.
    """
    delimiter = get_delimiter(query)
    if segment == delimiter:
        return []
    levels = segment.split(delimiter)
    if "" in levels:
        raise InvalidInputError(f"no level of an id may be empty, got {levels}")
    return levels


def parse_request(
    operation: Operation, path_fields: Mapping[str, Any], query: Query, body: bytes, context: Mapping[str, str]
) -> Any:
    """Build the request of an operation.

    Args:
        operation: the operation.
        path_fields: fields from the path, such as `id`.
        query: the parameters of the query.
        body: the raw body; ignored if it holds rows, or if none is expected.
        context: context entries from the header fields.

    Raises:
        InvalidInputError: it is not a valid request of the operation.
    """
    body_fields: Mapping[str, Any] = {}
    if operation.body is RequestEncoding.JSON:
        body_fields = parse_object(body)
    elif operation.body is RequestEncoding.PAIRS:
        body_fields = {"metadata": parse_object(body)}
    fields = _merge_fields({"body": body_fields, "query": _query_values(operation.model, query), "path": path_fields})
    fields["context"] = _merge_context(fields.get("context"), context)
    try:
        request = operation.model.from_dict(fields)  # type: ignore[attr-defined]
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the request"
        raise InvalidInputError(f"{operation.name}: {place}: {first['msg']}") from None
    except RecursionError:
        raise InvalidInputError(f"{operation.name}: the body is nested too deeply") from None
    # raised by the models for JSON of an unexpected shape
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InvalidInputError(f"{operation.name}: the body has not the form of the request: {error}") from None
    assert request is not None
    request.identity = None  # the caller is authenticated by now; the backend must not see their credentials
    return request


def _merge_fields(parts: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Merge the fields of body, query and path; a field that occurs twice must have the same value."""
    fields: dict[str, Any] = {}
    source_by_name: dict[str, str] = {}
    for part, part_fields in parts.items():
        for name, value in part_fields.items():
            before = fields.get(name)
            if before is not None and before != value:
                source = source_by_name[name]
                if isinstance(value, dict):  # of texts that may be secret, such as storage options
                    raise InvalidInputError(f"the {part} and the {source} have different {name}")
                words = f"the {part} says that {name} is {value!r}, and the {source} says {before!r}"
                raise InvalidInputError(words[:1000])
            fields[name], source_by_name[name] = value, part
    return fields


def get_delimiter(query: Query) -> str:
    """Return the separator of the levels of an id.

    Raises:
        InvalidInputError: it is empty.
    """
    delimiter = query.get("delimiter", [DELIMITER])[0]
    if not delimiter:
        raise InvalidInputError("the delimiter is empty; leave it out, or name the text between levels")
    return delimiter


def headers_to_context(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the context entries for header fields."""
    return {HEADER + name: value for name, value in headers.items() if name not in NOT_CONTEXT}


def identity_headers(body: bytes) -> dict[str, str]:
    """Return the header fields that are equivalent to the `identity` in a body; empty if there is none."""
    if b'"identity"' not in body:
        return {}
    try:
        identity = parse_object(body).get("identity")
    except InvalidInputError:
        return {}
    fields = identity if isinstance(identity, dict) else {}
    candidates = {"x-api-key": fields.get("api_key"), "authorization": fields.get("auth_token")}
    headers = {name: value for name, value in candidates.items() if isinstance(value, str) and value}
    return {name: f"Bearer {value}" if name == "authorization" else value for name, value in headers.items()}


def _merge_context(body_context: Any, headers: Mapping[str, str]) -> Any:
    """Merge the context of the body with that of the header fields, which take precedence."""
    if not isinstance(body_context, dict):
        return body_context if body_context is not None else dict(headers) or None
    body_entries = {key: value for key, value in body_context.items() if not _is_header(key, headers)}
    return {**body_entries, **headers} or None


def _is_header(key: str, headers: Mapping[str, str]) -> bool:
    """Return whether a context entry is a header field that was also sent as such, or that no context may have."""
    name = key.lower()
    return name in headers or (name.startswith(HEADER) and name.removeprefix(HEADER) in NOT_CONTEXT)


def parse_object(body: bytes) -> dict[str, Any]:
    """Parse a body that is a JSON object; an empty one stands for an empty object.

    Raises:
        InvalidInputError: it is not.
    """
    if not body:
        return {}
    try:
        value = parse_json(body)
    except ValueError as error:
        raise InvalidInputError(f"the body is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise InvalidInputError(f"the body must be a JSON object, not {type(value).__name__}")
    return value


def _query_values(model: type[BaseModel], query: Query) -> dict[str, Any]:
    kinds = _query_field_types(model)
    return {name: _parse_value(name, kinds[name], values) for name, values in query.items() if name in kinds}


def _parse_value(name: str, kind: type, values: Sequence[str]) -> Any:
    value = values[0]
    if kind is list:
        return list(values)
    if kind is bool:
        if value.lower() not in ("true", "false"):
            raise InvalidInputError(f"{name} must be true or false, got {value[:40]!r}")
        return value.lower() == "true"
    if kind is int:
        if not value.removeprefix("-").isdecimal() or len(value) > 20 or abs(int(value)) > LARGEST:
            raise InvalidInputError(f"{name} must be a whole number of 64 bits, got {value[:40]!r}")
        return int(value)
    if kind is dict:
        try:
            mapping = orjson.loads(value)
        except orjson.JSONDecodeError:
            raise InvalidInputError(f"{name} in the query must be a JSON object of texts") from None
        if not isinstance(mapping, dict) or not all(isinstance(item, str) for item in mapping.values()):
            raise InvalidInputError(f"{name} in the query must be a JSON object of texts")
        return mapping
    return value


@lru_cache
def _query_field_types(model: type[BaseModel]) -> dict[str, type]:
    """Return the fields of a model that a query may set, with their types."""
    kinds = {name: _base_type(field.annotation) for name, field in model.model_fields.items()}
    return {
        name: kind
        for name, kind in kinds.items()
        if kind in (str, bool, int, list, dict) and name not in ("id", "identity", "context")
    }


def _base_type(annotation: Any) -> Any:
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        return _base_type(typing.get_args(annotation)[0])
    if origin in (typing.Union, types.UnionType):
        return _base_type(next(member for member in typing.get_args(annotation) if member is not type(None)))
    return origin or annotation


def _decode(raw: bytes, what: str) -> str:
    try:
        return unquote_to_bytes(raw.replace(b"+", b" ")).decode()
    except UnicodeDecodeError:
        raise InvalidInputError(f"{what} is not UTF-8 in percent-encoding") from None


STATUSES: Mapping[int, int] = MappingProxyType(
    {
        ErrorCode.UNSUPPORTED: 406,
        **dict.fromkeys(
            (
                ErrorCode.NAMESPACE_NOT_FOUND,
                ErrorCode.TABLE_NOT_FOUND,
                ErrorCode.TABLE_INDEX_NOT_FOUND,
                ErrorCode.TABLE_TAG_NOT_FOUND,
                ErrorCode.TRANSACTION_NOT_FOUND,
                ErrorCode.TABLE_VERSION_NOT_FOUND,
                ErrorCode.TABLE_COLUMN_NOT_FOUND,
                ErrorCode.TABLE_BRANCH_NOT_FOUND,
            ),
            404,
        ),
        **dict.fromkeys(
            (
                ErrorCode.NAMESPACE_ALREADY_EXISTS,
                ErrorCode.NAMESPACE_NOT_EMPTY,
                ErrorCode.TABLE_ALREADY_EXISTS,
                ErrorCode.TABLE_INDEX_ALREADY_EXISTS,
                ErrorCode.TABLE_TAG_ALREADY_EXISTS,
                ErrorCode.TABLE_BRANCH_ALREADY_EXISTS,
                ErrorCode.CONCURRENT_MODIFICATION,
                ErrorCode.INVALID_TABLE_STATE,
            ),
            409,
        ),
        ErrorCode.INVALID_INPUT: 400,
        ErrorCode.TABLE_SCHEMA_VALIDATION_ERROR: 400,
        ErrorCode.PERMISSION_DENIED: 403,
        ErrorCode.UNAUTHENTICATED: 401,
        ErrorCode.SERVICE_UNAVAILABLE: 503,
        ErrorCode.THROTTLING: 429,
    }
)
"""HTTP status for each error code; 500 for all others."""
NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
"""Valid names of header fields."""
OWN = frozenset(
    {"connection", "content-encoding", "content-length", "content-type", "date", "keep-alive", "server", "trailer"}
    | {"transfer-encoding", "upgrade", "vary", "x-request-id"}
    | {"authorization", "proxy-authenticate", "set-cookie", "www-authenticate"}
)
"""Header fields that the server sets itself, and those that concern only backend and gateway."""


def http_status(code: int) -> int:
    """Return the HTTP status for an error code."""
    return STATUSES.get(code, 500)


def error_body(code: int, message: str, instance: str) -> bytes:
    """Return the body of an error; `instance` identifies the occurrence."""
    text = message.encode("utf-8", "backslashreplace").decode()  # it may repeat a name that is not valid Unicode
    return orjson.dumps({"error": text, "code": int(code), "instance": instance})


def error_code(error: BaseException) -> int:
    """Return the code of an error; 18 (internal) for unexpected ones."""
    return int(error.code) if isinstance(error, LanceNamespaceError) else int(ErrorCode.INTERNAL)


def split_response(response: Any) -> tuple[dict[str, Any], list[tuple[bytes, bytes]]]:
    """Return a response as JSON, and the header fields that its context asks for."""
    fields = response.to_dict() if response is not None else {}
    context = fields.pop("context", None) or {}
    headers = [
        _response_header(key.removeprefix(HEADER), value) for key, value in context.items() if key.startswith(HEADER)
    ]
    if rest := {key: value for key, value in context.items() if not key.startswith(HEADER)}:
        fields["context"] = rest
    return fields, [header for header in headers if header is not None]


def _response_header(name: str, value: str) -> tuple[bytes, bytes] | None:
    """Return a header field, or None for one that a response cannot or must not carry."""
    if not NAME.fullmatch(name) or name.lower() in OWN or not value.isprintable():
        return None
    return name.lower().encode(), value.encode("latin-1", "replace")
