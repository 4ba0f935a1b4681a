"""Parse and format Spark types as DDL text, such as `struct<id:bigint,tags:array<string>>`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from lance_namespace.errors import TableSchemaValidationError

SparkType = str | dict[str, Any]
"""A type inside the JSON of a Spark StructType."""

_TEXTS = MappingProxyType({"byte": "tinyint", "short": "smallint", "integer": "int", "long": "bigint"})
"""Names that differ between JSON and DDL."""

_ALIASES: Mapping[str, str] = MappingProxyType(
    {
        **{text: name for name, text in _TEXTS.items()},
        "real": "float",
        "timestamp_ltz": "timestamp",
        "dec": "decimal",
        "numeric": "decimal",
        "null": "void",
    }
)

_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TOKEN = re.compile(r"\s*(`(?:[^`]|``)*`|'(?:[^'\\]|\\.)*'|[<>(),:]|[^\s<>(),:`']+)")
_DEFAULT_PARAMETERS = MappingProxyType({"decimal": "(10,0)", "time": "(6)"})


def to_ddl(type_: SparkType) -> str:
    """Return the DDL text of a type; names that are not plain words are quoted. Nullability is left out."""
    if isinstance(type_, str):
        return _TEXTS.get(type_, type_)
    match type_["type"]:
        case "array":
            return f"array<{to_ddl(type_['elementType'])}>"
        case "map":
            return f"map<{to_ddl(type_['keyType'])},{to_ddl(type_['valueType'])}>"
        case "struct":
            fields = (f"{_quote(field['name'])}:{to_ddl(field['type'])}" for field in type_["fields"])
            return f"struct<{','.join(fields)}>"
    raise TableSchemaValidationError(f"no text for the Spark type {type_!r}")


def from_ddl(text: str) -> SparkType:
    """Parse DDL text to the JSON of a type; case does not matter, and Spark's synonyms are accepted.

    Raises:
        TableSchemaValidationError: the text is not one type. Unknown names of types are left to `from_spark`.
    """
    parser = _DdlParser(text)
    type_ = parser.parse_type()
    parser.expect_end()
    return type_


def _quote(name: str) -> str:
    return name if _PLAIN_NAME.fullmatch(name) else "`" + name.replace("`", "``") + "`"


class _DdlParser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[str] = []
        at, stripped = 0, text.rstrip()
        while at < len(stripped):
            if (match := _TOKEN.match(stripped, at)) is None:
                raise self._error()
            self._tokens.append(match[1])
            at = match.end()
        self._tokens.reverse()

    def parse_type(self) -> SparkType:
        match name := self._take_word():
            case "array":
                self._expect("<")
                element = self.parse_type()
                self._expect(">")
                return {"type": "array", "elementType": element, "containsNull": True}
            case "map":
                self._expect("<")
                key = self.parse_type()
                self._expect(",")
                value = self.parse_type()
                self._expect(">")
                return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}
            case "struct":
                return {"type": "struct", "fields": self._parse_fields()}
            case "interval":
                return " ".join([name, *self._take_words()])
            case "string":
                if self._next_is("collate"):
                    self._take_word()
                    self._take_word()
                return name
        name = _ALIASES.get(name, name)
        return name + (self._parse_parameters() or _DEFAULT_PARAMETERS.get(name, ""))

    def expect_end(self) -> None:
        if self._tokens:
            raise self._error()

    def _parse_fields(self) -> list[dict[str, Any]]:
        self._expect("<")
        fields: list[dict[str, Any]] = []
        while not self._next_is(">"):
            if fields:
                self._expect(",")
            fields.append(self._parse_field())
        self._expect(">")
        return fields

    def _parse_field(self) -> dict[str, Any]:
        name = self._take()
        if name.startswith("`"):
            name = name[1:-1].replace("``", "`")
        if self._next_is(":"):
            self._expect(":")
        type_, nullable, metadata = self.parse_type(), True, {}
        if self._next_is("not"):
            self._take_word()
            self._expect("null")
            nullable = False
        if self._next_is("comment"):
            self._take_word()
            metadata = {"comment": re.sub(r"\\(.)", r"\1", self._take()[1:-1])}
        return {"name": name, "type": type_, "nullable": nullable, "metadata": metadata}

    def _parse_parameters(self) -> str:
        if not self._next_is("("):
            return ""
        tokens = [self._take()]
        while tokens[-1] != ")":
            tokens.append(self._take())
        return "".join(tokens)

    def _take_words(self) -> list[str]:
        words = []
        while self._tokens and self._tokens[-1][0].isalpha() and self._tokens[-1].lower() not in ("not", "comment"):
            words.append(self._take_word())
        return words

    def _take_word(self) -> str:
        return self._take().lower()

    def _next_is(self, token: str) -> bool:
        return bool(self._tokens) and self._tokens[-1].lower() == token

    def _expect(self, token: str) -> None:
        if self._take().lower() != token:
            raise self._error()

    def _take(self) -> str:
        if not self._tokens:
            raise self._error()
        return self._tokens.pop()

    def _error(self) -> TableSchemaValidationError:
        return TableSchemaValidationError(f"{self._text!r} is not the text of a Spark type")
