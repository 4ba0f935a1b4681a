"""What the suite has made, and how it goes away again."""

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
"""What may be answered about a thing that never came to be, or is no more."""

Id = tuple[str, ...]


class CreatedObjects:
    """Ids are entered *before* they are created: a create may succeed on the server and fail on the way back."""

    def __init__(self, client: LanceNamespace, token: str) -> None:
        self._client = client
        self._token = token
        self._namespaces: dict[Id, None] = {}
        self._tables: dict[Id, str | None] = {}
        self._locations: set[str] = set()
        self._long_lived: set[Id] = set()

    def add_namespace(self, id: Sequence[str], *, keep: bool = False) -> None:
        """Enter a namespace.

        Args:
            id: of the namespace.
            keep: over the end of the check, until everything goes.
        """
        self._namespaces[tuple(id)] = None
        if keep:
            self._long_lived.add(tuple(id))

    def add_table(self, id: Sequence[str], location: str | None = None, *, keep: bool = False) -> None:
        """Enter a table, and where it lies as soon as that is known."""
        self._tables[tuple(id)] = location or self._tables.get(tuple(id))
        if location:
            self._locations.add(location)
        if keep:
            self._long_lived.add(tuple(id))

    def remove_entries(self, *, everything: bool = False) -> list[str]:
        """Remove the entries; what could not be removed is said, and stays in the ledger."""
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
        """Remove the entry; of data that lies elsewhere only the implementation can dispose."""
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
        """Remove what lies on this machine and bears the name of this run, beside any table that was seen.

        An implementation may encode names on their way to the disk, so the exact folder of a table is not known.
        """
        for anchor in {anchor for location in self._locations if (anchor := self._parent_of_ours(location))}:
            for folder in list(anchor.iterdir()) if anchor.is_dir() else []:
                if self._token in folder.name:
                    shutil.rmtree(folder, ignore_errors=True)

    def _parent_of_ours(self, location: str) -> Path | None:
        """The lowest folder above a location whose path is not ours."""
        folder = local_path(location)
        if folder is None or self._token not in str(folder):
            return None
        return next(parent for parent in folder.parents if self._token not in str(parent))


def local_path(location: str) -> Path | None:
    """The folder at a location on this machine, links and dots resolved; None if it is elsewhere."""
    parts = urlsplit(location)
    if parts.scheme not in ("", "file"):
        return None
    path = location if not parts.scheme else unquote(parts.path)
    return Path(os.path.realpath(path))
