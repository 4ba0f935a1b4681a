"""Keep secrets of a backend's properties out of responses, errors and logs."""

from __future__ import annotations

import logging
import re
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import quote, quote_plus

from lance_namespace.errors import InternalError, LanceNamespaceError

from lancehouse.lake.errors import SECRET_KEYS

logger = logging.getLogger(__name__)

HEADER = "header."
"""Part of the names of properties that are header fields."""
SHORTEST = 4
"""Shortest secret in characters: shorter ones occur in texts by chance."""
NO_SECRETS = frozenset({"true", "false", "none", "null"})
"""Values that are never secret."""
HIDDEN = "***"
"""Replaces a secret."""
PASSWORD = re.compile(r"://[^/@\s]*?:([^/@\s]+)@")
"""The password in a URL."""


class Secrets:
    """The secrets among the properties of a backend."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        values = {
            form
            for key, value in properties.items()
            for secret in _property_secrets(key, value)
            for form in _secret_spellings(secret)
        }
        # Longest first: a secret that is part of another one must not break it up before it is replaced.
        self._values = sorted(values, key=lambda each: (-len(each), each))

    def __repr__(self) -> str:
        return f"Secrets({len(self._values)})"

    def are_in(self, text: str) -> bool:
        """Return whether a text contains a secret."""
        return any(value in text for value in self._values)

    def redact(self, text: str) -> str:
        """Return the text with secrets replaced."""
        for value in self._values:
            text = text.replace(value, HIDDEN)
        return text

    @contextmanager
    def redact_errors(self, about: str) -> Iterator[None]:
        """Run a block whose errors must not contain secrets, not even in their causes, which the log shows.

        Raises:
            LanceNamespaceError: the error of the block, without secrets.
            InternalError: in place of an unexpected error that contains a secret; the log has the redacted trace.
        """
        try:
            yield
        except LanceNamespaceError as error:
            if not any(map(self.are_in, _error_texts(error))):
                raise
            error.args = (self.redact(str(error)),)
            error.__notes__ = []
            raise error from None
        except Exception as error:
            if not any(map(self.are_in, _error_texts(error))):
                raise
            trace = "".join(traceback.format_exception(error))
            logger.error("%s failed: %s", about, self.redact(trace))
            raise InternalError(f"{about}: {self.redact(str(error))}") from None


def _property_secrets(key: str, value: str) -> Iterator[str]:
    """Yield the secrets in a property: all of it, a part of it, or the password in a URL."""
    name = key.lower()
    if SECRET_KEYS.search(name) or HEADER in name:
        yield value
    if "credential" in name:
        yield value.partition(":")[2]
    if "authorization" in name:
        yield value.rpartition(" ")[2]
    if password := PASSWORD.search(value):
        yield password[1]


def _secret_spellings(secret: str) -> Iterator[str]:
    """Yield a secret as it is, and as it appears in URLs and forms."""
    if len(secret) >= SHORTEST and secret.lower() not in NO_SECRETS:
        yield from (secret, quote(secret, safe=""), quote_plus(secret))


def _error_texts(error: BaseException | None) -> Iterator[str]:
    """Yield what a log would show of an error: its text, its notes, and those of all its causes."""
    while error is not None:
        yield str(error)
        yield from getattr(error, "__notes__", ())
        error = error.__cause__ or error.__context__
