"""Named catalogs: parsing of `~/.lancehouse.yaml` and of the variables `LANCEHOUSE_CATALOG__…`.

`named_catalogs.load().catalog("prod")` returns what a name stands for: a `Connection`. Its `connect()` returns
the client, and its `parent` the levels before every id. A variable adds a key to a catalog of the file, or overrides
it. Names and keys are compared without case, and with `-` equal to `_`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lance_namespace import LanceNamespace
from lance_namespace.errors import InvalidInputError

from lancehouse import CATALOGS
from lancehouse.connection import Connection
from lancehouse.documents import Document, Loc, find_line, read_yaml, substitute_variables
from lancehouse.identifiers import parse_levels
from lancehouse.suggestions import suggest

VARIABLE = "LANCEHOUSE_CONFIG"
"""Variable that names another configuration file."""
PREFIX = "LANCEHOUSE_CATALOG__"
HOME_FILE = "~/.lancehouse.yaml"

CATALOGS_KEY, DEFAULT = "catalogs", "default"
IMPL, PARENT = "impl", "parent"
ICEBERG = "iceberg"


@dataclass(frozen=True, slots=True)
class ConfigValue:
    """The value of one key of a catalog, and where it comes from."""

    key: str
    text: str = field(repr=False)
    source: str
    """The file and line, or the name of a variable."""
    has_references: bool
    """Whether `${NAME}` in it is replaced by an environment variable."""

    def resolve(self) -> str:
        """Return the text with environment variables substituted.

        Raises:
            InvalidInputError: a variable is not set.
        """
        return str(substitute_variables(self.text, self._missing_variable)) if self.has_references else self.text

    def _missing_variable(self, name: str, _: Loc) -> InvalidInputError:
        return InvalidInputError(f"{self.source}: key '{self.key}' needs {name} in the environment")


CatalogEntry = tuple[str, Mapping[str, ConfigValue]]
"""A catalog's name as it is written, and its values by normalized key."""


@dataclass(frozen=True, slots=True)
class NamedCatalogs:
    """All named catalogs. Its repr shows no secret."""

    file: str
    default: str | None = None
    """The catalog that is used where none is named."""
    entries: Mapping[str, CatalogEntry] = field(default_factory=dict)
    """By normalized name."""

    @property
    def names(self) -> list[str]:
        """The names of all catalogs."""
        return sorted(name for name, _ in self.entries.values())

    def catalog(self, name: str) -> Connection:
        """Return a catalog by its name: `connect()` creates its client, `parent` comes before all ids.

        Raises:
            InvalidInputError: there is no such catalog, or its configuration is invalid; the message shows no secret.
        """
        if normalize_key(name) not in self.entries:
            raise InvalidInputError(self._unknown_message(name))
        _, values = self.entries[normalize_key(name)]
        properties = {value.key: value.resolve() for key, value in values.items() if key not in (IMPL, PARENT)}
        impl = values[IMPL].resolve() if IMPL in values else ICEBERG
        return Connection(CATALOGS.get(impl.lower(), impl), properties, _parse_parent(values.get(PARENT)))

    def _unknown_message(self, name: str) -> str:
        if not self.names:
            variable = f"{PREFIX}{normalize_key(name).upper()}__ENDPOINT"
            return f"there is no catalog {name!r}: write it into {self.file}, or set {variable}"
        all_names = f"{self.file} and the environment have {', '.join(self.names)}"
        return f"there is no catalog {name!r}; {suggest(name, self.names, all_names)}"


def connect(name: str | None = None, **changes: str) -> LanceNamespace:
    """Connect to a catalog by its name in `~/.lancehouse.yaml`, by default to the file's `default`.

    Its `parent`, if it has one, is not added to ids: those of a client are whole.

    Args:
        name: of the catalog.
        changes: properties that override those of the file.

    Raises:
        InvalidInputError: there is no such catalog, or its configuration is invalid.
    """
    catalogs = load()
    name = name or catalogs.default
    if name is None:
        raise InvalidInputError(f"name a catalog, or set `{DEFAULT}` in {catalogs.file}")
    return catalogs.catalog(name).connect(**changes)


def normalize_key(word: str) -> str:
    """Return a name or key in the form in which it is compared."""
    return word.lower().replace("-", "_")


def load() -> NamedCatalogs:
    """Read the catalogs of the file and the environment.

    Raises:
        InvalidInputError: the file cannot be read, or the file or a variable is invalid; the message names the line,
            and
            shows no value.
    """
    configured_path = os.environ.get(VARIABLE)
    display_path = configured_path or HOME_FILE
    path = Path(os.path.expanduser(display_path))  # noqa: PTH111 - Path.expanduser fails where there is no home
    default, entries = _read_file(path, display_path) if configured_path or path.exists() else (None, {})
    for key, (name, values) in _read_variables().items():
        name, before = entries.get(key, (name, {}))
        # A key is spelled as in the file: variables have no case.
        new_values = {key: replace(value, key=before.get(key, value).key) for key, value in values.items()}
        entries[key] = (name, {**before, **new_values})
    return NamedCatalogs(display_path, default, entries)


def _parse_parent(value: ConfigValue | None) -> tuple[str, ...]:
    try:
        return parse_levels(value.resolve()) if value else ()
    except InvalidInputError as error:
        raise InvalidInputError(f"{value.source if value else ''}: {PARENT}: {error}") from None


def _read_variables() -> dict[str, tuple[str, dict[str, ConfigValue]]]:
    catalogs: dict[str, tuple[str, dict[str, ConfigValue]]] = {}
    for variable in sorted(os.environ):
        if not variable.startswith(PREFIX):
            continue
        name, *parts = map(normalize_key, variable.removeprefix(PREFIX).split("__"))
        if not name or not parts or not all(parts):
            raise InvalidInputError(f"the variable {variable} names no property of a catalog: {PREFIX}NAME__KEY does")
        key = ".".join(parts)
        _, values = catalogs.setdefault(name, (name, {}))
        if key in values:
            raise InvalidInputError(f"the variables {values[key].source} and {variable} say the same; unset one")
        values[key] = ConfigValue(key, os.environ[variable], variable, has_references=False)
    return catalogs


def _read_file(path: Path, display_path: str) -> tuple[str | None, dict[str, CatalogEntry]]:
    """Return the name of the default catalog, and the values of each catalog."""
    document = read_yaml(path, display_path, f"{CATALOGS_KEY} and {DEFAULT}")
    document.check_keys(document.values, (CATALOGS_KEY, DEFAULT))
    default = _check_text(document, document.values[DEFAULT], DEFAULT) if DEFAULT in document.values else None
    entries: dict[str, CatalogEntry] = {}
    for name, fields in _check_mapping(document, document.values.get(CATALOGS_KEY), CATALOGS_KEY).items():
        if normalize_key(name) in entries:
            raise document.error(f"the catalog {name} occurs twice", CATALOGS_KEY, name)
        values: dict[str, ConfigValue] = {}
        for value in _iterate_values(document, fields, (CATALOGS_KEY, name)):
            if normalize_key(value.key) in values:
                raise InvalidInputError(f"{value.source}: the key '{CATALOGS_KEY}.{name}.{value.key}' occurs twice")
            values[normalize_key(value.key)] = value
        entries[normalize_key(name)] = name, values
    return default, entries


def _iterate_values(document: Document, fields: Any, loc: Loc) -> Iterator[ConfigValue]:
    """Yield the values of a catalog; keys of nested mappings are joined with dots."""
    for key, value in _check_mapping(document, fields, *loc).items():
        if isinstance(value, dict):
            yield from _iterate_values(document, value, (*loc, key))
        else:
            text = _check_text(document, value, *loc, key)
            source = f"{document.file}:{find_line(document.lines, (*loc, key))}"
            yield ConfigValue(".".join((*loc[2:], key)), text, source, has_references=True)


def _check_mapping(document: Document, value: Any, *loc: Any) -> dict[str, Any]:
    """Return a mapping, or an empty one for null."""
    if not isinstance(value or {}, dict):
        raise document.key_error("must hold keys and values", *loc)
    return value or {}


def _check_text(document: Document, value: Any, *loc: Any) -> str:
    if not isinstance(value, str):
        raise document.key_error("has no value" if value is None else "must be a single value", *loc)
    return str(value)
