"""Secrets among properties: which property is one, and how its value is kept out of messages, logs and output."""

from __future__ import annotations

import logging
import re
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from urllib.parse import quote, quote_plus

from lance_namespace.errors import InternalError, LanceNamespaceError

from lancehouse import CATALOGS
from lancehouse.credentials import EXPIRES, LANCE_NAMES, PROOFS, REGIONS, SECRETS, SPELLINGS, TUNING
from lancehouse.properties import STORAGE_PREFIX
from lancehouse.settings import CLIENT_SETTINGS

logger = logging.getLogger(__name__)

HIDDEN = "***"
"""Replaces a secret."""
SHORTEST = 4
"""Characters from which on a secret is hidden inside words too; shorter ones occur in texts by chance."""
NO_SECRETS = frozenset({"", "true", "false", "none", "null"})
"""Values that are never secret."""

KNOWN: Mapping[str, bool] = MappingProxyType(
    dict.fromkeys((*TUNING, *REGIONS, *SECRETS, EXPIRES), False)
    | {name: names[0] in PROOFS for names in SPELLINGS for name in names}
    | {name: option in PROOFS for name, option in LANCE_NAMES.items()}
    | dict.fromkeys(PROOFS, True)
    | {setting.name: setting.secret for setting in CLIENT_SETTINGS}
)
"""Whether a property that we know is secret: the settings of the clients, and storage options of Lance and Iceberg."""
UNKNOWN = re.compile(r"token|credential|secret|passw|key|authorization|header|sas|signature|cookie", re.IGNORECASE)
"""Names of other properties that are treated as secret: it is better to hide too much."""
POSTGRES = frozenset({"sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key"})
"""Connection parameters of Postgres that are secret, besides the password."""
# Narrower than `UNKNOWN`, because Spark also hides every setting whose value matches, such as a path with "key" in it.
SPARK = "(?i)secret|password|token|credential|authorization|api.?key|access.?key|account.?key|sas.?key"
"""Pattern for `spark.redaction.regex`: Spark's own does not cover header fields."""

_PREFIXES = re.compile(rf"^(?:(?:{'|'.join(CATALOGS)})\.)?(?:{re.escape(STORAGE_PREFIX)})?")
_URL = re.compile(r"^https?://[^?]*$", re.IGNORECASE)
_USER = re.compile(r"(?<=://)([^/@\s]+)@")
_ECHOES = re.compile(
    r"(?<=://)[^\s/@:]+:[^\s/@]+@"
    r"|(?<=[\w/])\?[\w.-]+=\S*"
    r"|<(\w*Signature\w*|StringToSign\w*|CanonicalRequest\w*|\w*KeyId|Token\w*)>.*?(?:</\1>|\Z)",
    re.DOTALL,
)
"""Secrets that a store may echo: a signed query, a user in a URL, the signature that it refused.

It is searched for in the whole text, so the pattern must not backtrack over the same part again and again.
"""


def is_secret(name: str) -> bool:
    """Return whether the value of a property must not be shown: by the tables above, else by its name."""
    is_listed_secret = KNOWN.get(_PREFIXES.sub("", name.lower()))
    return is_listed_secret if is_listed_secret is not None else UNKNOWN.search(name) is not None


def redact_properties(properties: Mapping[str, str] | None) -> dict[str, str]:
    """Return properties as they may be shown, sorted by name."""
    return {
        key: HIDDEN if is_secret(key) else _USER.sub(f"{HIDDEN}@", value)
        for key, value in sorted((properties or {}).items())
    }


def redact(text: str, properties: Mapping[str, str]) -> str:
    """Return a message of a store or catalog without the secrets among the properties, and without signatures."""
    return _ECHOES.sub("", Secrets(properties).redact(text))


def mask(text: str, secrets: Iterable[str]) -> str:
    """Return the text with each secret replaced: short ones as whole words, others anywhere."""
    for secret in secrets:
        if len(secret) >= SHORTEST:
            text = text.replace(secret, HIDDEN)
        elif secret:
            text = re.sub(rf"(?<!\w){re.escape(secret)}(?!\w)", HIDDEN, text)
    return text


class Secrets:
    """The secrets among some properties, in all spellings in which they may appear in a text."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        parts = {part for key, value in properties.items() for part in _secret_parts(key, value)}
        spellings = {
            spelling
            for part in parts
            if part.lower() not in NO_SECRETS
            for spelling in (part, quote(part, safe=""), quote_plus(part))
        }
        # Longest first: a secret that is part of another one must not break it up before it is replaced.
        self.values = sorted(spellings, key=lambda text: (-len(text), text))

    def __repr__(self) -> str:
        return f"Secrets({len(self.values)})"

    def are_in(self, text: str) -> bool:
        """Return whether a text contains a secret; very short ones do not count."""
        return any(value in text for value in self.values if len(value) >= SHORTEST)

    def redact(self, text: str) -> str:
        """Return the text with secrets replaced."""
        return mask(text, self.values)

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


def _secret_parts(key: str, value: str) -> Iterator[str]:
    """Yield the secrets in a property: all of it and its last part, or the user and password in a URL."""
    if is_secret(key) and not _URL.match(value):
        yield value
        yield value.partition(":")[2].strip()  # client_id:client_secret
        yield value.rpartition(" ")[2]  # Bearer TOKEN
    if user := _USER.search(value):
        yield user[1]
        yield user[1].partition(":")[2]


def _error_texts(error: BaseException | None) -> Iterator[str]:
    """Yield what a log would show of an error: its text, its notes, and those of all its causes."""
    while error is not None:
        yield str(error)
        yield from getattr(error, "__notes__", ())
        error = error.__cause__ or error.__context__
