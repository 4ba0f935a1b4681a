"""Errors that Iceberg's REST protocol distinguishes and Lance does not, as subclasses of Lance's errors."""

from __future__ import annotations

from lance_namespace.errors import (
    InvalidInputError,
    NamespaceNotFoundError,
    TableAlreadyExistsError,
    TableNotFoundError,
)


class WarehouseNotFoundError(NamespaceNotFoundError):
    """The server has no warehouse of that name."""


class ViewNotFoundError(TableNotFoundError):
    """There is no view of that name."""


class ViewAlreadyExistsError(TableAlreadyExistsError):
    """A view of that name exists already."""


class MetadataNotFoundError(TableNotFoundError):
    """The catalog has the table, but its metadata file no longer exists."""


class PlanNotFoundError(TableNotFoundError):
    """There is no scan plan with that id."""


class PlanTaskNotFoundError(TableNotFoundError):
    """There is no scan plan task with that id."""


class IllegalArgumentError(InvalidInputError):
    """An argument that Iceberg's own library would refuse with IllegalArgumentException."""


class ValidationError(InvalidInputError):
    """Metadata that contradict each other; Iceberg's own library raises ValidationException."""


class UnprocessableError(InvalidInputError):
    """A request that is well-formed but contradicts itself (HTTP 422)."""


class AlreadyDoneError(Exception):
    """A request with this idempotency key was carried out before: repeat its response, and change nothing."""


class WouldBlockError(Exception):
    """Whoever asked must not block, and the answer needs storage, a network or a thread; ask again and block."""
