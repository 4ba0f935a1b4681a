"""Interface of a catalog client as the admin tools use it, and the shell commands that they suggest."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from lance_namespace import LanceNamespace

from lancehouse.catalog_walk import CatalogLister
from lancehouse.connection import Connection

OPTION = re.compile("--[a-z][a-z-]*")


class CheckedCatalog(CatalogLister, Protocol):
    """A client of a catalog. Its errors are LanceNamespaceErrors, and show no secret."""

    @property
    def namespace(self) -> LanceNamespace:
        """The namespace client itself."""

    @property
    def target(self) -> Connection:
        """How it was created."""

    @property
    def shell(self) -> Shell:
        """Start and end of shell commands on this catalog."""

    def format_id(self, id: Sequence[str]) -> str:
        """Format an id as the user types it."""

    def call(self, operation: str, id: Sequence[str], **fields: Any) -> Any:
        """Call an operation of the namespace client on a table or namespace, and return its response."""

    def translate_errors(self, id: Sequence[str], operation: str = "") -> AbstractContextManager[None]:
        """Translate exceptions raised inside the context to LanceNamespaceErrors."""


@dataclass(frozen=True, slots=True)
class Shell:
    """Start and end of shell commands on a catalog."""

    before: str = "lancehouse"
    after: str = ""

    def command(self, *words: str) -> str:
        """Return a command line for the user to type, quoted for a shell. Options come last.

        A name that begins with a dash would be taken for an option: then all options come before it, followed by `--`.
        """
        dashed = [index for index, word in enumerate(words) if word.startswith("-") and not OPTION.fullmatch(word)]
        if not dashed:
            return " ".join(filter(None, (self.before, shlex.join(words), self.after)))
        options = next((index for index, word in enumerate(words) if OPTION.fullmatch(word)), len(words))
        first = shlex.join([*words[: dashed[0]], *words[options:]])
        return " ".join(filter(None, (self.before, first, self.after, "--", shlex.join(words[dashed[0] : options]))))
