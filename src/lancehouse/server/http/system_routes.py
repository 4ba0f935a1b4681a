"""Routes beside the catalog's APIs: `/`, health, metrics, and the OAuth2 token endpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

import orjson
from lance_namespace.errors import InvalidInputError

from lancehouse.catalog.callers import Identity
from lancehouse.server.http import responses
from lancehouse.server.http.bodies import FORM
from lancehouse.server.http.health import Health
from lancehouse.server.http.oauth import SlowDownError
from lancehouse.server.http.observability import Metrics
from lancehouse.server.http.responses import Response
from lancehouse.server.http.routes import Call, Route

if TYPE_CHECKING:
    from lancehouse.server.http.application import RequestAuthenticator

TOKEN = "getToken"  # noqa: S105
"""Name of the token endpoint's route."""
LARGEST_FORM = 8192
MOST_FIELDS = 20
"""Most fields of a form that asks for a token."""
NOBODY = Identity("", ())
"""Identity of callers on routes that need no authentication."""

PLACES = {
    "console": "/",
    "iceberg": "/iceberg",
    "lance": "/lance/NAME",
    "health": ["/health/live", "/health/ready"],
    "metrics": "/metrics",
    "maintenance": "/maintenance/v1/status",
}


def routes(
    metrics: Metrics,
    authentication: RequestAuthenticator,
    health: Health,
    find_identity: Callable[[Mapping[str, str]], Identity],
) -> list[Route]:
    """Return the routes of a server.

    Args:
        metrics: of the server.
        authentication: answers requests for tokens.
        health: of the server.
        find_identity: returns the identity of a caller who need not have one; `NOBODY` if they have none.
    """

    def token(call: Call) -> Response:
        form = _parse_form(call.body)
        status, body = authentication.answer_token_request(form, call.headers, call.caller.peer)
        response = responses.json(body, status)
        if "error" in body:
            response.why = body["error"], body["error_description"]
        response.headers += ((b"cache-control", b"no-store"), (b"pragma", b"no-cache"))
        return response

    def ready(call: Call) -> Response:
        report = health.report()
        response = responses.json(report.to_json(find_identity(call.headers)), 200 if report.is_ready else 503)
        if not report.is_ready:
            failed_parts = [part for part in report.parts if part.state != "ok"]
            reasons = [f"{part.kind} {part.name}: {part.reason or part.state}" for part in failed_parts]
            response.why = "ServiceUnavailableException", "; ".join(reasons)
        return response

    def metrics_page(call: Call) -> Response:  # noqa: ARG001
        # Not public: it shows who works how much, and when. Any principal may read it.
        body, content_type = metrics.to_prometheus()
        return Response(200, body, content_type=content_type.encode())

    reads = [
        ("root", "/", root, True),
        ("live", "/health/live", live, True),
        ("ready", "/health/ready", ready, False),
        ("metrics", "/metrics", metrics_page, False),
    ]
    return [
        Route(
            TOKEN,
            "POST",
            "/v1/oauth/tokens",
            token,
            content_type=FORM,
            max_body=LARGEST_FORM,
            is_public=True,
            pool="secrets",
        ),
        *(
            Route(name, method, path, handler, inline=inline, is_public=name != "metrics", quiet=path != "/")
            for name, path, handler, inline in reads
            for method in ("GET", "HEAD")
        ),
    ]


def _parse_form(body: bytes) -> dict[str, str]:
    """Parse a form, with a limit on its fields: the sender is not authenticated."""
    try:
        fields = parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=MOST_FIELDS)
    except ValueError:
        raise InvalidInputError(f"the form has more than {MOST_FIELDS} fields") from None
    return dict(fields)


def token_error_body(error: BaseException) -> bytes:
    """Return the token endpoint's error body for a client that must wait, or for a form that could not be read."""
    word = "invalid_client" if isinstance(error, SlowDownError) else "invalid_request"
    return orjson.dumps({"error": word, "error_description": str(error)})


def root(call: Call) -> Response:  # noqa: ARG001
    """List the paths of the server's APIs."""
    return responses.json({"name": "lancehouse", **PLACES})


def live(call: Call) -> Response:  # noqa: ARG001
    """Report that the process responds."""
    return responses.json({"status": "live"})
