"""What a backend is given to do its work, and nobody else may hear: kept out of answers, errors and logs."""

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
SHORTEST = 4
"""Characters of a secret: what is shorter stands in texts by chance."""
NO_SECRETS = frozenset({"true", "false", "none", "null"})
HIDDEN = "***"
PASSWORD = re.compile(r"://[^/@\s]*?:([^/@\s]+)@")
"""In a URL."""


class Secrets:
    """The secrets among the properties of a backend."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        values = {
            form
            for key, value in properties.items()
            for secret in _property_secrets(key, value)
            for form in _secret_spellings(secret)
        }
        self._values = sorted(values, key=lambda each: (-len(each), each))

    def __repr__(self) -> str:
        return f"Secrets({len(self._values)})"

    def are_in(self, text: str) -> bool:
        """Whether a text repeats one of them."""
        return any(value in text for value in self._values)

    def redact(self, text: str) -> str:
        """The text without them."""
        for value in self._values:
            text = text.replace(value, HIDDEN)
        return text

    @contextmanager
    def redact_errors(self, about: str) -> Iterator[None]:
        """Let no error out that repeats one, not even as its cause: the log has the text of causes.

        Raises:
            LanceNamespaceError: as it was raised inside, without the secret.
            InternalError: in the place of what nobody foresaw and what repeats one; the log has the rest.
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
    """What of a property is a secret: all of it, a part of it, or the password of a URL."""
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
    """A secret as it is, and as URLs and forms have it."""
    if len(secret) >= SHORTEST and secret.lower() not in NO_SECRETS:
        yield from (secret, quote(secret, safe=""), quote_plus(secret))


def _error_texts(error: BaseException | None) -> Iterator[str]:
    """What a log would have of an error: its own text, its notes, and those of all that it came from."""
    while error is not None:
        yield str(error)
        yield from getattr(error, "__notes__", ())
        error = error.__cause__ or error.__context__
