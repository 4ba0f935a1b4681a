"""A catalog as it is looked after: whatever asks one, as the commands do, and the words to type in a shell."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from lance_namespace import LanceNamespace

from lancehouse.catalog_walk import CatalogLister, Id

OPTION = re.compile("--[a-z][a-z-]*")


class CatalogConnection(Protocol):
    """What a client was made of."""

    @property
    def properties(self) -> Mapping[str, str]:
        """Of the client."""

    @property
    def parent(self) -> Id:
        """The levels that stand in front of every id."""

    def redact(self, text: str) -> str:
        """The text without the secrets in the properties."""


class CheckedCatalog(CatalogLister, Protocol):
    """What asks a catalog. Its errors are Lance's, and show no secret."""

    @property
    def namespace(self) -> LanceNamespace:
        """The client itself."""

    @property
    def target(self) -> CatalogConnection:
        """What it was made of."""

    @property
    def shell(self) -> Shell:
        """How commands that reach it begin and end."""

    def format_id(self, id: Sequence[str]) -> str:
        """An id as it is typed."""

    def ask(self, operation: str, request: Any) -> Any:
        """Have an operation carried out."""

    def translate_errors(self, id: Sequence[str], operation: str = "") -> AbstractContextManager[None]:
        """Turn what is raised inside into Lance's errors."""


@dataclass(frozen=True, slots=True)
class Shell:
    """How commands that reach a catalog begin and end."""

    before: str = "lancehouse"
    after: str = ""

    def command(self, *words: str) -> str:
        """What to type; ids and places are quoted as a shell wants it. Options come last.

        A name that begins with a dash would be taken for an option: all options go before it then, and `--`.
        """
        dashed = [index for index, word in enumerate(words) if word.startswith("-") and not OPTION.fullmatch(word)]
        if not dashed:
            return " ".join(filter(None, (self.before, shlex.join(words), self.after)))
        options = next((index for index, word in enumerate(words) if OPTION.fullmatch(word)), len(words))
        first = shlex.join([*words[: dashed[0]], *words[options:]])
        return " ".join(filter(None, (self.before, first, self.after, "--", shlex.join(words[dashed[0] : options]))))
