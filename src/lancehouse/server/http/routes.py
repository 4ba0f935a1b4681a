"""Routing of undecoded paths (a table `t/x` is `t%2Fx`), requests as handlers see them, and idempotency keys."""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote_to_bytes

from lance_namespace.errors import InvalidInputError, LanceNamespaceError
from pydantic import BaseModel, ValidationError

from lancehouse.catalog import entries
from lancehouse.catalog.callers import Caller, IdempotencyKey
from lancehouse.catalog.errors import AlreadyDoneError
from lancehouse.identifiers import format_levels
from lancehouse.parsing import parse_json
from lancehouse.server.http.bodies import JSON
from lancehouse.server.http.errors import MethodError, NoRouteError, error_response
from lancehouse.server.http.pools import PoolKey, PoolKind
from lancehouse.server.http.responses import Response
from lancehouse.wire.iceberg_requests import format_validation_error

if TYPE_CHECKING:
    from lancehouse.catalog.catalog import Catalog

M = TypeVar("M", bound=BaseModel)
Handler = Callable[["Call"], Response]

BASE = b"/iceberg/v1/"
LANCE = b"/lance/"
MANAGEMENT = b"/lancehouse/v1/"
OF_ALL_TABLES: tuple[list[bytes], ...] = ([b"version", b"batch-create"], [b"batch-commit"], [])
"""Paths of the Lance protocol that follow `table` without an id: they concern several tables."""
TOP = frozenset({b"namespaces", b"tables", b"views", b"transactions"})
SEPARATOR = "\x1f"
LONGEST_REMEMBERED = 1024
"""Most bytes of a path whose match is cached: callers choose the paths, and the cache has thousands of them."""
_BROKEN = re.compile(rb"%(?![0-9A-Fa-f]{2})")


@dataclass(frozen=True, slots=True)
class Route:
    """One operation of the server. `name` and `template` are those of the specification."""

    name: str
    method: str
    template: str
    handler: Handler
    inline: bool = False
    """Whether `handler` is tried on the event loop's thread first, where the database is a local file.

    Requests that wait for another server (`group`) are not.

    It must not block there: where it would, it raises `WouldBlockError`, and runs again in a thread.
    """
    replay: Handler | None = None
    """Builds the response for a change that was made before with the same idempotency key."""
    commits: bool = False
    """Whether a failure leaves it unknown whether a commit was made."""
    pool: PoolKind = "requests"
    limit_s: float | None = None
    """Time limit in seconds, where it differs from that of its pool."""
    group: Callable[[Match, Mapping[str, str]], str] | None = None
    """Returns the other server that a request waits for, from its path and query."""
    alters: bool = False
    """Whether it changes something, though it accepts no idempotency key."""
    streams: bool = False
    """Whether the body is read while the request is handled."""
    content_type: str = JSON
    """Content type of the request's body."""
    max_body: int | None = None
    """Largest body in bytes, where it is less than the server's limit."""
    is_public: bool = False
    """Whether it needs no authentication."""
    quiet: bool = False
    """Whether it is called often, by machines: it is logged at level debug only, and served under full load."""

    @property
    def endpoint(self) -> str:
        """The route as `/v1/config` announces it."""
        return f"{self.method} {self.template}"

    @property
    def takes_idempotency_key(self) -> bool:
        """Whether it takes an idempotency key."""
        return self.replay is not None

    def pool_key(self, match: Match, query: Mapping[str, str]) -> PoolKey:
        """Return the thread pool of a request."""
        return PoolKey(self.pool, self.group(match, query) if self.group else "")


@dataclass(frozen=True, slots=True)
class Match:
    """The decoded parts of a path, and its pattern."""

    pattern: str
    prefix: str | None = None
    levels: tuple[str, ...] = ()
    name: str = ""
    plan_id: str = ""
    index: str = ""


class RouteTable:
    """All routes, by pattern and method."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._by_pattern: dict[str, dict[str, Route]] = {}
        for route in routes:
            self._by_pattern.setdefault(route.template, {})[route.method] = route

    def find(self, match: Match, method: str) -> Route:
        """Return the route of a path and a method.

        Raises:
            NoRouteError: no route has this path.
            MethodError: one has, but not with this method.
        """
        routes = self._by_pattern.get(match.pattern)
        if routes is None:
            raise NoRouteError(f"No route for request: {method} {match.pattern}")
        route = routes.get(method)
        if route is None:
            raise MethodError(method, ", ".join(sorted(routes)))
        return route


def match_path(raw_path: bytes) -> Match:
    """Parse a path. Percent-encoding is decoded once, segment by segment.

    Raises:
        NoRouteError: no route has such a path.
        InvalidInputError: a name in it is empty, or is not percent-encoded UTF-8.
    """
    return _match_cached(raw_path) if len(raw_path) < LONGEST_REMEMBERED else _match_uncached(raw_path)


def _match_uncached(raw_path: bytes) -> Match:
    if not raw_path.startswith(BASE):
        return _match_other(raw_path)
    segments = raw_path[len(BASE) :].split(b"/")
    if b"" in segments:
        raise InvalidInputError(f"the path {_format_raw(raw_path)} has an empty segment: is a name missing?")
    if segments == [b"config"] or segments == [b"oauth", b"tokens"]:
        return Match("/v1/" + b"/".join(segments).decode())
    prefix = None if segments[0] in TOP else _decode_segment(segments.pop(0))
    return _match_iceberg(raw_path, prefix, segments)


_match_cached = lru_cache(8192)(_match_uncached)


def _match_other(raw_path: bytes) -> Match:
    if raw_path.startswith(LANCE):
        return _match_gateway(raw_path)
    if raw_path.startswith(MANAGEMENT):
        return _match_management(raw_path)
    if raw_path.startswith((b"/v1", b"/iceberg")):
        raise NoRouteError(f"No route for request: {_format_raw(raw_path)}; Iceberg REST is below /iceberg/v1/ here")
    return Match(_decode_segment(raw_path))


def _match_management(raw_path: bytes) -> Match:
    """Parse `/lancehouse/v1/{words}/{name}/{words}/{item}`: every second segment is a name."""
    match raw_path[len(MANAGEMENT) :].split(b"/"):
        case [word]:
            return Match(f"/lancehouse/v1/{_format_raw(word)}")
        case [kind, name] if name:
            return Match(f"/lancehouse/v1/{_format_raw(kind)}/{{name}}", name=_decode_segment(name))
        case [kind, name, word] if name:
            return Match(f"/lancehouse/v1/{_format_raw(kind)}/{{name}}/{_format_raw(word)}", name=_decode_segment(name))
        case [kind, name, word, item] if name and item:
            pattern = f"/lancehouse/v1/{_format_raw(kind)}/{{name}}/{_format_raw(word)}/{{item}}"
            return Match(pattern, name=_decode_segment(name), index=_decode_segment(item))
    raise NoRouteError(f"No route for request: {_format_raw(raw_path)}")


def _match_iceberg(raw_path: bytes, prefix: str | None, segments: list[bytes]) -> Match:
    fixed = "/v1/{prefix}/"
    match segments:
        case [b"namespaces"]:
            return Match(fixed + "namespaces", prefix)
        case [b"namespaces", namespace]:
            return Match(fixed + "namespaces/{namespace}", prefix, split_namespace(_decode_segment(namespace)))
        case [b"namespaces", namespace, word]:
            return Match(
                f"{fixed}namespaces/{{namespace}}/{_format_raw(word)}",
                prefix,
                split_namespace(_decode_segment(namespace)),
            )
        case [b"namespaces", namespace, (b"tables" | b"views") as kind, name, *more]:
            what = "table" if kind == b"tables" else "view"
            pattern = f"{fixed}namespaces/{{namespace}}/{what}s/{{{what}}}"
            return _match_entry(
                raw_path,
                Match(pattern, prefix, split_namespace(_decode_segment(namespace)), _decode_segment(name)),
                more,
            )
        case [(b"tables" | b"views" | b"transactions" | b"lancehouse"), _]:
            return Match(fixed + b"/".join(segments).decode("latin-1"), prefix)
    raise NoRouteError(f"No route for request: {_format_raw(raw_path)}")


def _match_entry(raw_path: bytes, entry: Match, more: list[bytes]) -> Match:
    match more:
        case []:
            return entry
        case [word]:
            return Match(f"{entry.pattern}/{_format_raw(word)}", entry.prefix, entry.levels, entry.name)
        case [b"plan", plan_id]:
            return Match(
                f"{entry.pattern}/plan/{{plan-id}}", entry.prefix, entry.levels, entry.name, _decode_segment(plan_id)
            )
    raise NoRouteError(f"No route for request: {_format_raw(raw_path)}")


def _match_gateway(raw_path: bytes) -> Match:
    """Parse `/lance/{backend}/v1/table/{id}/…`; the id is split later, by the delimiter that the query names."""
    segments = raw_path[len(LANCE) :].split(b"/")
    if b"" in segments:
        raise InvalidInputError(f"the path {_format_raw(raw_path)} has an empty segment: is a name missing?")
    match segments:
        case [backend, b"v1", b"table", *rest] if rest in OF_ALL_TABLES:
            return Match("/".join(("/lance/{backend}/v1/table", *map(_format_raw, rest))), _decode_segment(backend))
        case [backend, b"v1", kind, id_, b"index", index, word]:
            pattern = f"/lance/{{backend}}/v1/{_format_raw(kind)}/{{id}}/index/{{index_name}}/{_format_raw(word)}"
            return Match(
                pattern, _decode_segment(backend), name=_decode_gateway_name(id_), index=_decode_gateway_name(index)
            )
        case [backend, b"v1", kind, id_, *rest]:
            words = "/".join(map(_format_raw, rest))
            return Match(
                f"/lance/{{backend}}/v1/{_format_raw(kind)}/{{id}}/{words}",
                _decode_segment(backend),
                name=_decode_gateway_name(id_),
            )
    raise NoRouteError(
        f"No route for request: {_format_raw(raw_path)}; the Lance protocol is below /lance/NAME/v1/ here"
    )


def _decode_gateway_name(segment: bytes) -> str:
    """Decode a name of the Lance API, in which `+` means a space.

    Lance's own clients, in Rust, encode a space that way, and no client sends a literal plus unencoded.
    """
    return _decode_segment(segment.replace(b"+", b"%20"))


def split_namespace(namespace: str) -> tuple[str, ...]:
    """Split a namespace that came as one text into its levels.

    Raises:
        InvalidInputError: a level is empty.
    """
    levels = tuple(namespace.split(SEPARATOR))
    if "" in levels:
        raise InvalidInputError(f"no level of a namespace may be empty, got {list(levels)}")
    return levels


def _decode_segment(segment: bytes) -> str:
    return (
        segment.decode("ascii")
        if b"%" not in segment
        else percent_decode(segment, f"{_format_raw(segment)} in the path")
    )


def percent_decode(raw: bytes, what: str) -> str:
    """Decode percent-encoding, once; `what` describes the text in errors.

    Raises:
        InvalidInputError: it is not percent-encoded UTF-8, or has a NUL character.
    """
    if _BROKEN.search(raw):
        raise InvalidInputError(f"{what} has a % that is no percent-encoding; send it as %25")
    try:
        text = unquote_to_bytes(raw).decode()
    except UnicodeDecodeError:
        raise InvalidInputError(f"{what} is not UTF-8 in percent-encoding") from None
    if "\0" in text:
        raise InvalidInputError(f"{what} has a NUL character")
    return text


def _format_raw(raw: bytes) -> str:
    return raw[:300].decode("latin-1")


HEADER = "idempotency-key"
LIFETIME = "PT24H"
KEPT_S = 25 * 3600
"""Seconds for which keys are kept: an hour longer than announced, for clocks that differ and retries on their way."""

FINAL = frozenset({400, 404, 409, 422})
"""Statuses of refusals that stay the same when the request is repeated; permissions and load may change."""

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)


def parse_key(value: str, principal: str, method: str, target: bytes, body: bytes) -> IdempotencyKey:
    """Return the key of a request, with a digest of the whole request.

    Raises:
        InvalidInputError: the key is not a UUID.
    """
    if not _UUID.fullmatch(value):
        raise InvalidInputError(
            f"Idempotency-Key must be a UUID such as 017f22e2-79b0-7cc3-98c4-dc0c0c07398f, got {value[:40]!r}"
        )
    digest = hashlib.sha256()
    # Each part is preceded by its length, so that no two different requests give the same digest.
    for part in (principal.encode("utf-8", "surrogatepass"), method.encode(), target, body):
        digest.update(b"%d:" % len(part))
        digest.update(part)
    return IdempotencyKey(value.lower(), digest.hexdigest())


def run_once(route: Route, call: Call) -> Response:
    """Run the handler of a change, or answer for the change that was made with this key before."""
    key = call.caller.key
    if key is None or route.replay is None:
        return route.handler(call)
    database = call.catalog.database
    if (first_response := entries.find_response(database, key)) is not None:
        return _replay(first_response, route.replay, call)
    try:
        return route.handler(call)
    # A request with the same key was committed in the meantime: the transaction found the key taken.
    except AlreadyDoneError:
        outcome = entries.find_response(database, key) or entries.IdempotentResponse(0, None)
        return _replay(outcome, route.replay, call)
    except LanceNamespaceError as error:
        answer = error_response(error)
        if answer.status in FINAL:
            entries.record_response(database, key, answer.status, answer.body)
        raise


def _replay(outcome: entries.IdempotentResponse, replay: Handler, call: Call) -> Response:
    if outcome.body is not None:
        return Response(outcome.status, outcome.body)
    return replay(replace(call, caller=replace(call.caller, key=None)))


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
        _validate(model, value)
        return value

    def parse_model(self, model: type[M]) -> M:
        """Return the body as an instance of a model.

        Raises:
            InvalidInputError: it is no JSON object, or does not fit the model.
        """
        return _validate(model, parse_json_object(self.body))

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


def _validate(model: type[M], value: Json) -> M:
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise InvalidInputError(format_validation_error(error)) from None


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
