"""Turn responses of the Lance interface into JSON and headers, and errors into status codes and bodies."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import orjson
from lance_namespace.errors import ErrorCode, LanceNamespaceError

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
HEADER = "header."
"""Prefix of context entries that are header fields."""
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
