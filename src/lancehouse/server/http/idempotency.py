"""The `Idempotency-Key` header: a change that is requested again is made once, and answered as before."""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace

from lance_namespace.errors import InvalidInputError, LanceNamespaceError

from lancehouse.catalog import transactions
from lancehouse.catalog.callers import IdempotencyKey
from lancehouse.catalog.errors import AlreadyDoneError
from lancehouse.server.http.calls import Call
from lancehouse.server.http.errors import error_response
from lancehouse.server.http.responses import Response
from lancehouse.server.http.routes import Handler, Route

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
    if (recorded := transactions.find_response(database, key)) is not None:
        return _replay(recorded, route.replay, call)
    try:
        return route.handler(call)
    # A request with the same key was committed in the meantime: the transaction found the key taken.
    except AlreadyDoneError:
        outcome = transactions.find_response(database, key) or transactions.IdempotentResponse(0, None)
        return _replay(outcome, route.replay, call)
    except LanceNamespaceError as error:
        answer = error_response(error)
        if answer.status in FINAL:
            transactions.record_response(database, key, answer.status, answer.body)
        raise


def _replay(outcome: transactions.IdempotentResponse, replay: Handler, call: Call) -> Response:
    if outcome.body is not None:
        return Response(outcome.status, outcome.body)
    return replay(replace(call, caller=replace(call.caller, key=None)))
