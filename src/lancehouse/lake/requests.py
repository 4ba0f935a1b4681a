"""Requests that come from inside pylance: a kind of dict, where everyone else sends a model."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from pydantic import BaseModel

Request = TypeVar("Request", bound=BaseModel)
Response = TypeVar("Response", bound=BaseModel)
Operation = Callable[[Any, Request], Response]


def as_model(model: type[Request], request: Request | dict[str, Any]) -> Request:
    """The request as everyone else sends it."""
    return model.model_validate(request) if isinstance(request, dict) else request


def in_kind(request: object, response: Response) -> Response:
    """The response as whoever sent the request expects it."""
    return response.model_dump(exclude_none=True) if isinstance(request, dict) else response  # type: ignore[return-value]


def taking(model: type[Request], operation: Operation[Request, Response]) -> Operation[Request, Response]:
    """An operation that is only given models."""

    @wraps(operation)
    def converted(self: Any, request: Request) -> Response:
        return operation(self, as_model(model, request))

    return converted
