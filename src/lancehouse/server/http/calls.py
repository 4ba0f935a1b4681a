"""One request as handlers see it: caller, path, query parameters and body, validated when they are read."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lance_namespace.errors import InvalidInputError
from pydantic import BaseModel, ValidationError

from lancehouse.catalog.callers import Caller
from lancehouse.identifiers import format_levels
from lancehouse.parsing import parse_json
from lancehouse.server.http.routes import SEPARATOR, Match, percent_decode, split_namespace
from lancehouse.wire.iceberg_requests import format_validation_error

if TYPE_CHECKING:
    from lancehouse.catalog.catalog import Catalog

Json = dict[str, Any]

DEFAULT_PAGE = 1000
LARGEST_PAGE = 10_000
_ENCODED = re.compile(r"%[0-9A-Fa-f]{2}")


@dataclass(slots=True)
class Call:
    """A request as a handler receives it."""

    catalog: Catalog
    caller: Caller
    match: Match
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    raw_query: bytes = b""
    upload: io.IOBase | None = None
    """The body as a file, on routes that read it while the request is handled; else None."""
    peer: str = ""
    """The address at the other end of the connection."""
    blocking: bool = True
    """Whether the handler may block; if not, it raises `WouldBlockError` where it would."""
    tables: list[str] = field(default_factory=list)
    """The tables that the body names; handlers add them, for the log."""

    def note_tables(self, *ids: Iterable[str]) -> None:
        """Note the ids of tables and views that the body names, for the log."""
        self.tables += map(format_levels, ids)

    def parse_body(self, model: type[BaseModel]) -> Json:
        """Return the body as JSON, after validating it against `model`; fields that `model` does not know are kept.

        Raises:
            InvalidInputError: it is not JSON, not an object, or a field has a wrong type.
        """
        value = parse_json_object(self.body)
        try:
            model.model_validate(value)
        except ValidationError as error:
            raise InvalidInputError(format_validation_error(error)) from None
        return value

    def page_request(self) -> tuple[str | None, int | None]:
        """Return token and size of the page that is requested; without a token the list is not paginated.

        Raises:
            InvalidInputError: the size is not a whole number from 1.
        """
        size = self.query.get("pageSize")
        if size is not None and not re.fullmatch(r"0{0,9}[1-9][0-9]{0,9}", size, re.ASCII):
            raise InvalidInputError(f"pageSize must be a whole number from 1, got {size[:40]!r}")
        token = self.query.get("pageToken")
        if token is None:
            return None, None
        return token, min(int(size), LARGEST_PAGE) if size else DEFAULT_PAGE

    def parent_candidates(self) -> list[tuple[str, ...]]:
        """Return the namespaces that `parent` may mean, the likelier first: some clients encode it once, some twice.

        Raises:
            InvalidInputError: a level is empty.
        """
        once = self.query.get("parent", "")
        if not once:
            return [()]
        twice = percent_decode(once.encode(), "'parent' in the query") if _ENCODED.search(once) else once
        # Iceberg's Java client encodes the separator once, pyiceberg twice.
        if SEPARATOR not in once and SEPARATOR in twice:
            return [split_namespace(twice)]
        return list(dict.fromkeys((split_namespace(once), split_namespace(twice))))

    def choice(self, name: str, choices: tuple[str, ...], default: str) -> str:
        """Return a query parameter that has one of a few values.

        Raises:
            InvalidInputError: it has another value.
        """
        value = self.query.get(name, default)
        if value not in choices:
            raise InvalidInputError(f"{name} must be {' or '.join(choices)}, got {value[:40]!r}")
        return value

    def flag(self, name: str) -> bool:
        """Return a query parameter that is `true` or `false`, in any case; False if it is absent.

        Raises:
            InvalidInputError: it has another value.
        """
        value = self.query.get(name, "false")
        if value.lower() not in ("true", "false"):
            raise InvalidInputError(f"{name} must be true or false, got {value[:40]!r}")
        return value.lower() == "true"


def parse_json_object(body: bytes) -> Json:
    """Parse a body that is a JSON object.

    Raises:
        InvalidInputError: it is not.
    """
    try:
        value = parse_json(body)
    except ValueError as error:
        raise InvalidInputError(f"the body is not JSON: {error}" if body else "the body is missing") from None
    if not isinstance(value, dict):
        raise InvalidInputError(f"the body must be a JSON object, not {type(value).__name__}")
    if b"\\u0000" in body and _has_nul(value):
        raise InvalidInputError("the body has a NUL character (\\u0000), which cannot be stored")
    return value


def _has_nul(value: object) -> bool:
    match value:
        case str():
            return "\0" in value
        case dict():
            return any(_has_nul(key) or _has_nul(part) for key, part in value.items())
        case list():
            return any(map(_has_nul, value))
    return False


def parse_query(raw: bytes) -> dict[str, str]:
    """Parse a query string; if a parameter occurs twice, the first one counts.

    Raises:
        InvalidInputError: it is not percent-encoded UTF-8. The message names the parameter, not its value, which may be
            a secret.
    """
    parameters: dict[str, str] = {}
    for part in raw.split(b"&"):
        raw_name, _, value = part.partition(b"=")
        if part:
            name = percent_decode(raw_name, "a name in the query")
            parameters.setdefault(name, percent_decode(value.replace(b"+", b" "), f"{name[:80]!r} in the query"))
    return parameters
