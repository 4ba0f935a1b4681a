"""Named catalogs: parsing of `~/.lancehouse.yaml` and of the variables `LANCEHOUSE_CATALOG__…`.

`named_catalogs.load().catalog("prod")` returns what a name stands for: a `Connection`. Its `connect()` returns
the client, and its `parent` the levels before every id. A variable adds a key to a catalog of the file, or overrides
it. Names and keys are compared without case, and with `-` equal to `_`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lance_namespace.errors import InvalidInputError

from lancehouse.connection import Connection
from lancehouse.identifiers import parse_levels
from lancehouse.suggestions import suggest

if TYPE_CHECKING:
    import yaml

VARIABLE = "LANCEHOUSE_CONFIG"
"""Variable that names another configuration file."""
PREFIX = "LANCEHOUSE_CATALOG__"
HOME_FILE = "~/.lancehouse.yaml"

CATALOGS, DEFAULT = "catalogs", "default"
IMPL, PARENT = "impl", "parent"
ICEBERG = "iceberg"

CLASS_PATHS = {
    ICEBERG: "lancehouse.IcebergNamespace",
    "polaris": "lancehouse.PolarisNamespace",
    "unity": "lancehouse.UnityNamespace",
    "lakekeeper": "lancehouse.LakekeeperNamespace",
}
"""Class paths of our own aliases, which another package may register too."""

_REFERENCE = re.compile(r"\$(\$\{)|\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_TEXT = {f"tag:yaml.org,2002:{kind}" for kind in ("str", "int", "float", "bool", "timestamp")}
_NULL = "tag:yaml.org,2002:null"

DEEPEST = 8
"""Most levels of nested keys; only a YAML alias that contains itself has more."""


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
        return _REFERENCE.sub(self._substitute, self.text) if self.has_references else self.text

    def _substitute(self, match: re.Match[str]) -> str:
        if match[1]:
            return match[1]
        if match[2] not in os.environ:
            raise InvalidInputError(f"{self.source}: {self.key} needs {match[2]}, which the environment does not have")
        return os.environ[match[2]]


@dataclass(frozen=True, slots=True)
class NamedCatalogs:
    """All named catalogs. Its repr shows no secret."""

    file: str
    default: str | None = None
    """The catalog that is used where none is named."""
    entries: Mapping[str, tuple[str, Mapping[str, ConfigValue]]] = field(default_factory=dict)
    """By normalized name: the name as it is written, and its values by normalized key."""

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
        return Connection(CLASS_PATHS.get(impl.lower(), impl), properties, _parse_parent(values.get(PARENT)))

    def _unknown_message(self, name: str) -> str:
        if not self.names:
            variable = f"{PREFIX}{normalize_key(name).upper()}__ENDPOINT"
            return f"there is no catalog {name!r}: write it into {self.file}, or set {variable}"
        known = f"{self.file} and the environment have {', '.join(self.names)}"
        return f"there is no catalog {name!r}; {suggest(name, self.names, known)}"


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
    default, entries = _ConfigFile(display_path).read(path) if configured_path or path.exists() else (None, {})
    for key, (name, values) in _read_variables().items():
        name, before = entries.get(key, (name, {}))
        entries[key] = (
            name,
            {
                **before,
                **{
                    property_key: _with_file_spelling(before, property_key, value)
                    for property_key, value in values.items()
                },
            },
        )
    return NamedCatalogs(display_path, default, entries)


def _with_file_spelling(before: Mapping[str, ConfigValue], key: str, value: ConfigValue) -> ConfigValue:
    """Return the value of a variable under the key as the file spells it: variables have no case."""
    spelled = before[key].key if key in before else value.key
    return ConfigValue(spelled, value.text, value.source, value.has_references)


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


class _ConfigFile:
    """Parses the file. Errors name the line, and never show a value, which may be a secret."""

    def __init__(self, display_path: str) -> None:
        self._display_path = display_path

    def read(self, path: Path) -> tuple[str | None, dict[str, tuple[str, Mapping[str, ConfigValue]]]]:
        """Return the name of the default catalog, and the values of each catalog."""
        root = self._compose(path)
        default: str | None = None
        entries: dict[str, tuple[str, Mapping[str, ConfigValue]]] = {}
        for key, at, node in self._iterate_pairs(root, f"the file holds {CATALOGS} and {DEFAULT}"):
            if key == DEFAULT:
                default = self._parse_text(node, DEFAULT)
            elif key == CATALOGS:
                entries = self._parse_catalogs(node)
            else:
                raise self._error(at, f"unknown key {key!r}; {suggest(key, (CATALOGS, DEFAULT))}")
        return default, entries

    def _compose(self, path: Path) -> yaml.Node | None:
        import yaml

        try:
            root: yaml.Node | None = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
        except OSError as error:
            raise InvalidInputError(f"{self._display_path} cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise InvalidInputError(f"{self._display_path} is no YAML: it is not UTF-8") from None
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            line = mark.line + 1 if mark else 1
            raise InvalidInputError(
                f"{self._display_path}:{line}: this is no YAML: {_format_yaml_error(error)}"
            ) from None
        except yaml.reader.ReaderError as error:
            raise InvalidInputError(f"{self._display_path} is no YAML: {error.reason}") from None
        return root

    def _parse_catalogs(self, node: yaml.Node) -> dict[str, tuple[str, Mapping[str, ConfigValue]]]:
        catalogs: dict[str, tuple[str, Mapping[str, ConfigValue]]] = {}
        for name, at, body in self._iterate_pairs(node, f"{CATALOGS} are names, with what is said of each below it"):
            if normalize_key(name) in catalogs:
                raise self._error(at, f"the catalog {name} is there twice")
            values: dict[str, ConfigValue] = {}
            for value in self._iterate_values(body, f"{CATALOGS}.{name}", ()):
                if normalize_key(value.key) in values:
                    raise InvalidInputError(f"{value.source}: {CATALOGS}.{name}.{value.key} is there twice")
                values[normalize_key(value.key)] = value
            catalogs[normalize_key(name)] = name, values
        return catalogs

    def _iterate_values(self, node: yaml.Node, place: str, above: tuple[str, ...]) -> Iterator[ConfigValue]:
        for key, at, child in self._iterate_pairs(node, f"{place} has keys and values"):
            levels = (*above, key)
            if len(levels) > DEEPEST:
                raise self._error(at, f"{CATALOGS}.{'.'.join(place.split('.')[1:3])} goes too deep")
            if _is_mapping(child):
                yield from self._iterate_values(child, f"{place}.{key}", levels)
            else:
                text = self._parse_text(child, f"{place}.{key}")
                source = f"{self._display_path}:{at.start_mark.line + 1}"
                yield ConfigValue(".".join(levels), text, source, has_references=True)

    def _iterate_pairs(self, node: yaml.Node | None, words: str) -> Iterator[tuple[str, yaml.Node, yaml.Node]]:
        """Yield keys and values of a mapping; none if the node is missing or null."""
        if node is None or node.tag == _NULL:
            return
        if not _is_mapping(node):
            raise self._error(node, words)
        for key, value in node.value:
            if key.tag not in _TEXT or key.value == "<<":
                raise self._error(key, "a key is a word")
            yield key.value, key, value

    def _parse_text(self, node: yaml.Node, place: str) -> str:
        if node.tag == _NULL:
            raise self._error(node, f"{place} has no value")
        if node.tag not in _TEXT:
            kind = "a list" if node.tag.endswith(":seq") else "no text; put it in quotes"
            raise self._error(node, f"{place} is {kind}: it has one value")
        return str(node.value)

    def _error(self, node: yaml.Node, words: str) -> InvalidInputError:
        return InvalidInputError(f"{self._display_path}:{node.start_mark.line + 1}: {words}")


def _is_mapping(node: yaml.Node) -> bool:
    return node.tag.endswith(":map") and isinstance(node.value, list)


def _format_yaml_error(error: Any) -> str:
    """Return YAML's error message without the names that it quotes: one may be a secret that begins with * or !."""
    words = ", ".join(filter(None, (error.context, error.problem)))
    return re.sub(r"\b(alias|anchor|tag|handle) ['\"].*", r"\1", words)
