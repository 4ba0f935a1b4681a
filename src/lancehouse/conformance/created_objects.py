"""Tracking and removal of the namespaces, tables and files that the conformance suite creates."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from lance_namespace import (
    DeregisterTableRequest,
    DropNamespaceRequest,
    DropTableRequest,
    LanceNamespace,
)
from lance_namespace.errors import (
    InvalidInputError,
    LanceNamespaceError,
    NamespaceNotFoundError,
    TableNotFoundError,
)
from pydantic import BaseModel

GONE = (NamespaceNotFoundError, TableNotFoundError, InvalidInputError)
"""Errors that an implementation may raise for an object that was never created, or is removed."""

Id = tuple[str, ...]


class CreatedObjects:
    """Objects to remove at the end.

    Ids are added *before* the objects are created: a create may succeed on the server although its response is lost.
    """

    def __init__(self, client: LanceNamespace, token: str) -> None:
        self._client = client
        self._token = token
        self._namespaces: dict[Id, None] = {}
        self._tables: dict[Id, str | None] = {}
        self._locations: set[str] = set()
        self._long_lived: set[Id] = set()

    def add_namespace(self, id: Sequence[str], *, keep: bool = False) -> None:
        """Add a namespace.

        Args:
            id: of the namespace.
            keep: whether to keep it until the end of the run, not only of the check.
        """
        self._namespaces[tuple(id)] = None
        if keep:
            self._long_lived.add(tuple(id))

    def add_table(self, id: Sequence[str], location: str | None = None, *, keep: bool = False) -> None:
        """Add a table, and its location as soon as it is known."""
        self._tables[tuple(id)] = location or self._tables.get(tuple(id))
        if location:
            self._locations.add(location)
        if keep:
            self._long_lived.add(tuple(id))

    def remove_entries(self, *, everything: bool = False) -> list[str]:
        """Remove the entries; return the failures, whose entries stay in the list."""
        failures: list[str] = []
        retained = set() if everything else self._long_lived
        for table in [table_id for table_id in self._tables if table_id not in retained]:
            if reason := self._remove_table(table, self._tables[table]):
                failures.append(f"table {'.'.join(table)}: {reason}")
            else:
                del self._tables[table]
        for namespace in sorted(
            (namespace_id for namespace_id in self._namespaces if namespace_id not in retained), key=len, reverse=True
        ):
            if reason := self._remove(self._client.drop_namespace, DropNamespaceRequest(id=list(namespace))):
                failures.append(f"namespace {'.'.join(namespace)}: {reason}")
            else:
                del self._namespaces[namespace]
        return failures

    def _remove_table(self, id: Id, location: str | None) -> str:
        """Remove a table's entry; data that is not on this machine can only be deleted by the implementation."""
        if location and local_path(location) is None:
            self._remove(self._client.drop_table, DropTableRequest(id=list(id)))
        return self._remove(self._client.deregister_table, DeregisterTableRequest(id=list(id)))

    def _remove(self, operation: Callable[[Any], Any], request: BaseModel) -> str:
        try:
            operation(request)
        except GONE:
            return ""
        except (LanceNamespaceError, AssertionError) as error:
            return str(error) or type(error).__name__
        return ""

    def remove_data(self) -> None:
        """Delete local folders that bear the token of this run, next to the locations of its tables.

        An implementation may encode names on disk, so the exact folder of a table is not known.
        """
        for anchor in {anchor for location in self._locations if (anchor := self._parent_of_ours(location))}:
            for folder in list(anchor.iterdir()) if anchor.is_dir() else []:
                if self._token in folder.name:
                    shutil.rmtree(folder, ignore_errors=True)

    def _parent_of_ours(self, location: str) -> Path | None:
        """Return the lowest folder above a location whose path does not contain the token of this run."""
        folder = local_path(location)
        if folder is None or self._token not in str(folder):
            return None
        return next(parent for parent in folder.parents if self._token not in str(parent))


def local_path(location: str) -> Path | None:
    """Return the local folder of a location, with links and dots resolved; None if it is elsewhere."""
    parts = urlsplit(location)
    if parts.scheme not in ("", "file"):
        return None
    path = location if not parts.scheme else unquote(parts.path)
    return Path(os.path.realpath(path))
