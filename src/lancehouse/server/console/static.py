"""Static files of the web console, with their cache and security headers."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from lancehouse.server.http import responses, system_routes
from lancehouse.server.http.responses import Header, Response
from lancehouse.server.http.routes import Route

if TYPE_CHECKING:
    from lancehouse.server.http.calls import Call

FOLDER = Path(__file__).parent / "files"
PAGE = "index.html"
BASE = "{base}"
"""Placeholder in the page for the path of the other files."""

TYPES: Mapping[str, bytes] = {
    ".html": b"text/html; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".css": b"text/css; charset=utf-8",
    ".svg": b"image/svg+xml",
}

POLICY = b"; ".join(
    (
        b"default-src 'none'",
        b"script-src 'self'",
        b"style-src 'self'",
        b"connect-src 'self'",
        b"img-src 'self' blob:",
        b"base-uri 'none'",
        b"form-action 'none'",
        b"frame-ancestors 'none'",
        b"require-trusted-types-for 'script'",
        b"trusted-types 'none'",
    )
)
SAFETY: tuple[Header, ...] = (
    (b"content-security-policy", POLICY),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
"""Security headers that every file of the console is sent with."""

FOREVER = b"public, max-age=31536000, immutable"
ASK_AGAIN = b"no-cache"


class StaticFile:
    """A file of the console, with the entity tag of its content."""

    def __init__(self, body: bytes, content_type: bytes, caching: bytes) -> None:
        self._body = body
        self._type = content_type
        self._etag = b'"%b"' % sha256(body).hexdigest()[:32].encode()
        self._headers = (*SAFETY, (b"etag", self._etag), (b"cache-control", caching))

    def respond(self, call: Call) -> Response:
        """Return the file, or 304 if the client has it."""
        if responses.is_not_modified(call.headers.get("if-none-match"), self._etag):
            return Response(304, headers=list(self._headers))
        return Response(200, self._body, list(self._headers), self._type)


def routes() -> list[Route]:
    """Return the routes of the page at `/`, and of its files below a path that changes with their content."""
    contents = {file.name: file.read_bytes() for file in sorted(FOLDER.iterdir()) if file.suffix in TYPES}
    digest = sha256(b"\0".join(part for name in contents for part in (name.encode(), contents[name]))).hexdigest()
    base = f"/console/files/{digest[:16]}"
    html = contents.pop(PAGE).replace(BASE.encode(), base.encode())
    page = StaticFile(html, TYPES[".html"], ASK_AGAIN)

    def root(call: Call) -> Response:
        """Return the page to browsers, and the list of APIs to programs."""
        is_browser = "text/html" in call.headers.get("accept", "")
        response = page.respond(call) if is_browser else system_routes.root(call)
        response.headers.append((b"vary", b"accept"))
        return response

    files = {f"{base}/{name}": StaticFile(body, TYPES[Path(name).suffix], FOREVER) for name, body in contents.items()}
    handlers = {"/": root, **{path: file.respond for path, file in files.items()}}
    return [
        Route(
            "console" if path != "/" else "root", method, path, handler, inline=True, is_public=True, quiet=path != "/"
        )
        for path, handler in handlers.items()
        for method in ("GET", "HEAD")
    ]
