"""Errors that Iceberg's REST protocol distinguishes and Lance does not; checks of names, and the errors about them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from lance_namespace.errors import (
    InvalidInputError,
    InvalidTableStateError,
    LanceNamespaceError,
    NamespaceNotFoundError,
    TableAlreadyExistsError,
    TableNotFoundError,
)

if TYPE_CHECKING:
    from lancehouse.store.model import Kind


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


class WarehouseFencedError(InvalidTableStateError):
    """The warehouse takes no changes: the database is older than its storage, or another copy of it is at work.

    On the wire it is 403: clients of Iceberg neither repeat that, nor doubt that nothing was committed. A 503 would be
    repeated, and the newer ones among them then no longer know.
    """


class IllegalArgumentError(InvalidInputError):
    """An argument that Iceberg's own library would refuse with IllegalArgumentException."""


class ValidationError(InvalidInputError):
    """Metadata that contradict each other; Iceberg's own library raises ValidationException."""


class UnprocessableError(InvalidInputError):
    """A request that is well-formed but contradicts itself (HTTP 422)."""


class CommitConflictError(Exception):
    """Another commit changed the entry after this one had read it: decide again."""


ATTEMPTS = 8
"""Most attempts at a commit when others change the entry first; each attempt checks the requirements again."""


class AlreadyDoneError(Exception):
    """A request with this idempotency key was carried out before: repeat its response, and change nothing."""


class WouldBlockError(Exception):
    """Whoever asked must not block, and the answer needs storage, a network or a thread; ask again and block."""


Levels = tuple[str, ...]
"""The levels of a namespace, outermost first."""

MAX_BYTES = 255
"""Longest level or name, in bytes of UTF-8: the limit of common file systems."""

MAX_DEPTH = 32
"""Most levels of a namespace."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def check_levels(levels: Sequence[str]) -> Levels:
    """Return the levels of a namespace that is about to be created, after a check of each.

    Raises:
        InvalidInputError: there are no levels, too many, or one is not a valid name.
    """
    if not levels:
        raise InvalidInputError("a namespace has at least one level")
    if len(levels) > MAX_DEPTH:
        raise InvalidInputError(f"a namespace has at most {MAX_DEPTH} levels, not {len(levels)}")
    return tuple(check_name("level of a namespace", level) for level in levels)


def check_name(what: str, name: str) -> str:
    """Return a name that is about to be used, after a check.

    Raises:
        InvalidInputError: the name is empty, too long, or has control characters, which the protocol's URLs
            cannot carry.
    """
    if not name:
        raise InvalidInputError(f"a {what} must not be empty")
    if _CONTROL.search(name):
        raise InvalidInputError(f"a {what} must not contain control characters, got {name!r}")
    if len(name.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        raise InvalidInputError(f"a {what} has at most {MAX_BYTES} bytes in UTF-8: {name[:40]!r}… is longer")
    return name


def format_name(levels: Levels, name: str | None = None) -> str:
    """Return a dotted name for messages: levels, then the name if given."""
    return ".".join(levels if name is None else (*levels, name))


def namespace_not_found(levels: Levels) -> NamespaceNotFoundError:
    """Build the error for a namespace that does not exist."""
    return NamespaceNotFoundError(f"Namespace does not exist: {format_name(levels)}")


def table_not_found(levels: Levels, name: str) -> TableNotFoundError:
    """Build the error for a table that does not exist."""
    return TableNotFoundError(f"Table does not exist: {format_name(levels, name)}")


def view_not_found(levels: Levels, name: str) -> ViewNotFoundError:
    """Build the error for a view that does not exist."""
    return ViewNotFoundError(f"View does not exist: {format_name(levels, name)}")


def already_exists(levels: Levels, name: str, *, by: Kind, wanted: Kind) -> LanceNamespaceError:
    """Build the error for a name that is taken by an entry of kind `by`, when one of kind `wanted` was requested."""
    is_same_kind = (by == "view") == (wanted == "view")
    text = "already exists" if is_same_kind else "with same name already exists"
    if by == "view":
        return ViewAlreadyExistsError(f"View {text}: {format_name(levels, name)}")
    return TableAlreadyExistsError(f"Table {text}: {format_name(levels, name)}")


class PrincipalNotFoundError(InvalidInputError):
    """There is no such principal, group, grant or token."""


class PrincipalExistsError(InvalidInputError):
    """A principal, group or token of that name exists already."""
