from __future__ import annotations

from typing import Any

import orjson
import pytest
from lance_namespace import DescribeTableResponse, errors
from lance_namespace.errors import ErrorCode

from lancehouse.errors import CommitStateUnknownError
from lancehouse.gateway import messages


@pytest.mark.parametrize(
    ("context", "left", "headers"),
    [
        (None, None, []),
        ({"header.X-Team": "eng", "trace": "7"}, {"trace": "7"}, [(b"x-team", b"eng")]),
        ({"header.x-umlaut": "ü"}, None, [(b"x-umlaut", b"\xfc")]),
        ({"header.x-split": "a\r\nset-cookie: b"}, None, []),
        ({"header.x split": "a", "header.": "b", "header.x:y": "c"}, None, []),
        ({"header.Content-Length": "7", "header.Set-Cookie": "a=b", "header.date": "now"}, None, []),
    ],
)
def test_context_becomes_header_fields(
    context: dict[str, str] | None, left: dict[str, str] | None, headers: list[tuple[bytes, bytes]]
) -> None:
    fields, found = messages.split_response(DescribeTableResponse(location="l", context=context))
    assert fields == {"location": "l", **({"context": left} if left else {})}
    assert found == headers


@pytest.mark.parametrize("code", ErrorCode)
def test_every_code_has_a_status(code: ErrorCode) -> None:
    assert messages.http_status(code) in (400, 401, 403, 404, 406, 409, 429, 500, 503)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.TableNotFoundError("t"), 4),
        (CommitStateUnknownError("t"), 18),
        (errors.LanceNamespaceError("t"), 18),
        (KeyError("t"), 18),
    ],
)
def test_the_code_of_an_error(error: BaseException, code: int) -> None:
    assert messages.error_code(error) == code


def test_the_body_of_an_error() -> None:
    said: dict[str, Any] = orjson.loads(messages.error_body(4, "no \udc80", "r1"))
    assert said == {"error": "no \\udc80", "code": 4, "instance": "r1"}
