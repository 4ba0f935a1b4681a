"""Errors that Iceberg tells apart and Lance does not: each is a Lance error with a name of its own on the wire."""

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
    """There is no such view."""


class ViewAlreadyExistsError(TableAlreadyExistsError):
    """The name is a view's already."""


class MetadataNotFoundError(TableNotFoundError):
    """The catalog knows the table, but its metadata file is gone."""


class PlanNotFoundError(TableNotFoundError):
    """No plan of that id is held."""


class PlanTaskNotFoundError(TableNotFoundError):
    """No plan gave out that task."""


class IllegalArgumentError(InvalidInputError):
    """An argument that Iceberg's own library would refuse with its IllegalArgumentException."""


class ValidationError(InvalidInputError):
    """Metadata that contradict themselves, which Iceberg's own library calls a ValidationException."""


class UnprocessableError(InvalidInputError):
    """A request that is well formed and makes no sense."""


class AlreadyDoneError(Exception):
    """A request with this idempotency key was carried out before: answer as then, and do nothing."""
