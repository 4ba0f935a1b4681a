"""Translate pyarrow's read errors into Lance errors that name the file."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pyarrow as pa
from lance_namespace.errors import (
    InvalidInputError,
    LanceNamespaceError,
    PermissionDeniedError,
    ServiceUnavailableError,
    TableColumnNotFoundError,
    ThrottlingError,
    UnauthenticatedError,
)

from lancehouse.secrets import redact

_BY_TEXT: tuple[tuple[re.Pattern[str], type[LanceNamespaceError]], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), kind)
    for pattern, kind in (
        (r"INVALID_ACCESS_KEY_ID|SIGNATURE_DOES_NOT_MATCH|EXPIRED_?TOKEN|UNRECOGNIZED_CLIENT", UnauthenticatedError),
        (r"HTTP status 401|InvalidAccessKeyId|SignatureDoesNotMatch|AuthenticationFailed", UnauthenticatedError),
        (r"ACCESS_DENIED|HTTP status 403|Permission denied|AuthorizationFailure", PermissionDeniedError),
        (r"SLOW_DOWN|THROTTL|HTTP status 429", ThrottlingError),
        (r"NETWORK_CONNECTION|SERVICE_UNAVAILABLE|INTERNAL_FAILURE|curlCode", ServiceUnavailableError),
        (r"timed out|timeout|HTTP status 50\d", ServiceUnavailableError),
    )
)
"""The first pattern that is found in an error's text decides; if none is, the file itself is taken to be invalid."""


@contextmanager
def translate_read_errors(name: str, options: Mapping[str, str]) -> Iterator[None]:
    """Turn what pyarrow raises inside into a Lance error that names the file.

    Args:
        name: the file's address, as the user knows it.
        options: storage options, whose secrets are removed from the message in case the store echoes them.
    """
    try:
        yield
    except FileNotFoundError as error:
        raise InvalidInputError(f"there is no file at {name}") from error
    except UnicodeDecodeError as error:
        raise InvalidInputError(wrong_encoding_message(name, error.encoding)) from error
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, MemoryError):
            raise
        text = str(error)
        message = redact(text, options)
        kind = next((kind for pattern, kind in _BY_TEXT if pattern.search(text)), InvalidInputError)
        # The cause is printed with its own, unredacted text, so it is only attached where there is nothing to hide.
        raise kind(f"{name} cannot be read: {message}") from (error if message == text else None)


def wrong_encoding_message(name: str, encoding: str) -> str:
    """Return the error message for a file that is not in an encoding."""
    return f"{name} is not in the encoding {encoding}: name its own, such as options={{'encoding': 'latin-1'}}"


def require_columns(wanted: list[str], available: list[str], about: str) -> None:
    """Check that each requested column exists, and is requested once.

    Raises:
        TableColumnNotFoundError: a column does not exist; the message lists those that do.
        InvalidInputError: no column is requested, or one twice.
    """
    missing = [name for name in wanted if name not in available]
    if missing:
        names = ", ".join(missing)
        raise TableColumnNotFoundError(f"{about} has no column {names}; it has {', '.join(available) or 'none'}")
    if not wanted or len(set(wanted)) < len(wanted):
        raise InvalidInputError(f"columns must name at least one column, and each once, not {wanted!r}")
