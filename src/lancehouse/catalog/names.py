"""Names of namespaces, tables and views, as Iceberg's messages write them, and which of them are taken."""

from __future__ import annotations

import re
from collections.abc import Sequence

from lance_namespace.errors import (
    InvalidInputError,
    LanceNamespaceError,
    NamespaceNotFoundError,
    TableAlreadyExistsError,
    TableNotFoundError,
)

from lancehouse.catalog.errors import ViewAlreadyExistsError, ViewNotFoundError
from lancehouse.store.rows import Kind

Levels = tuple[str, ...]

MAX_BYTES = 255
"""Of one level or name, in UTF-8: what every file system takes."""

MAX_DEPTH = 32

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def check_levels(levels: Sequence[str]) -> Levels:
    """The levels of a namespace that is to be made.

    Raises:
        InvalidInputError: none at all, too many, or one that is no name.
    """
    if not levels:
        raise InvalidInputError("a namespace has at least one level")
    if len(levels) > MAX_DEPTH:
        raise InvalidInputError(f"a namespace has at most {MAX_DEPTH} levels, not {len(levels)}")
    return tuple(check_name("level of a namespace", level) for level in levels)


def check_name(what: str, name: str) -> str:
    """A name that is to be taken.

    Raises:
        InvalidInputError: empty, too long, or with control characters, which no path of the protocol can carry.
    """
    if not name:
        raise InvalidInputError(f"a {what} must not be empty")
    if _CONTROL.search(name):
        raise InvalidInputError(f"a {what} must not contain control characters, got {name!r}")
    if len(name.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        raise InvalidInputError(f"a {what} has at most {MAX_BYTES} bytes in UTF-8: {name[:40]!r}… is longer")
    return name


def format_name(levels: Levels, name: str | None = None) -> str:
    """A name as messages have it."""
    return ".".join(levels if name is None else (*levels, name))


def namespace_not_found(levels: Levels) -> NamespaceNotFoundError:
    """The error about a namespace that is not there."""
    return NamespaceNotFoundError(f"Namespace does not exist: {format_name(levels)}")


def table_not_found(levels: Levels, name: str) -> TableNotFoundError:
    """The error about a table that is not there."""
    return TableNotFoundError(f"Table does not exist: {format_name(levels, name)}")


def view_not_found(levels: Levels, name: str) -> ViewNotFoundError:
    """The error about a view that is not there."""
    return ViewNotFoundError(f"View does not exist: {format_name(levels, name)}")


def already_exists(levels: Levels, name: str, *, by: Kind, wanted: Kind) -> LanceNamespaceError:
    """The error about a name that a table or a view has already, when another was `wanted`."""
    is_same_kind = (by == "view") == (wanted == "view")
    text = "already exists" if is_same_kind else "with same name already exists"
    if by == "view":
        return ViewAlreadyExistsError(f"View {text}: {format_name(levels, name)}")
    return TableAlreadyExistsError(f"Table {text}: {format_name(levels, name)}")
