"""Hints on what to do about an error, printed below its message."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from lance_namespace.errors import (
    LanceNamespaceError,
    NamespaceNotEmptyError,
    NamespaceNotFoundError,
    ServiceUnavailableError,
    TableColumnNotFoundError,
    TableNotFoundError,
    TableTagAlreadyExistsError,
    TableTagNotFoundError,
    TableVersionNotFoundError,
    UnauthenticatedError,
)

BY_KIND: Mapping[type[LanceNamespaceError], str] = MappingProxyType(
    {
        NamespaceNotEmptyError: "`lancehouse table list NAMESPACE --recursive` shows the tables in it",
        NamespaceNotFoundError: "`lancehouse namespace create NAMESPACE` makes one",
        TableTagAlreadyExistsError: "`lancehouse table tag update ID TAG` lets it name another version",
        TableNotFoundError: "`lancehouse table list NAMESPACE` shows the tables that are there",
        TableColumnNotFoundError: "`lancehouse table schema ID` shows the columns",
        TableTagNotFoundError: "`lancehouse table tag list ID` shows the tags",
        TableVersionNotFoundError: "`lancehouse table history ID` shows the versions",
        UnauthenticatedError: "the property `credential` or `auth_token` says who you are: give it to the catalog in "
        "~/.lancehouse.yaml, or with --property",
        ServiceUnavailableError: "is `endpoint` right, and does the server run?",
    }
)
BY_WORDS: Mapping[str, str] = MappingProxyType(
    {
        "property 'endpoint' is required": "name a catalog of ~/.lancehouse.yaml with --catalog, or give "
        "--property endpoint=URL",
        "a namespace id is [warehouse or catalog": "an id is all levels joined by dots, such as main.db; the "
        "`parent` of a catalog in ~/.lancehouse.yaml is not typed, so that db will do there",
        "a table id is [warehouse or catalog": "an id is all levels joined by dots, such as main.db.docs; the "
        "`parent` of a catalog in ~/.lancehouse.yaml is not typed, so that db.docs will do there",
        "the catalog's database is out of reach": "is --db right, and does the database run?",
        "say it with format=": "--format NAME says it",
        "No space left on device": "free some space there, and run it again",
    }
)


def find_hints(error: Exception) -> list[str]:
    """Return the notes that were added to an error; if there are none, the hint for errors of its kind."""
    if noted := getattr(error, "__notes__", []):
        return list(map(str, noted))
    by_words = [hint for words, hint in BY_WORDS.items() if words in str(error)]
    by_kind = [hint for kind, hint in BY_KIND.items() if isinstance(error, kind)]
    return (by_words + by_kind)[:1]
