"""`Connection`: an implementation of `lance_namespace` with its properties; how a catalog is named everywhere."""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import lance_namespace
from lance_namespace import LanceNamespace, connect
from lance_namespace.errors import InvalidInputError

from lancehouse.secrets import Secrets
from lancehouse.suggestions import suggest

URL = re.compile(r"^https?://", re.IGNORECASE)


@dataclass(frozen=True)
class Connection:
    """A catalog: enough to make a client of it, in any process.

    Args:
        impl: alias or full class path, as `lance_namespace.connect` takes it.
        properties: of the implementation; they may hold secrets, so they appear in no repr.
        parent: the levels in front of every id.
    """

    impl: str
    properties: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)
    parent: tuple[str, ...] = ()

    def connect(self, **changes: str) -> LanceNamespace:
        """Create a client, with some properties changed.

        Raises:
            InvalidInputError: there is no such implementation, or it does not accept these properties.
        """
        _check_implementation(self.impl)
        try:
            return connect(self.impl, {**self.properties, **changes})
        except ValueError as error:
            raise InvalidInputError(self.redact(str(error))) from None

    @property
    def urls(self) -> list[str]:
        """Keys of the properties that are URLs of a server."""
        return [key for key, value in self.properties.items() if URL.match(value)]

    @property
    def secrets(self) -> list[str]:
        """Texts that must not appear in any output, the longest first."""
        return Secrets(self.properties).values

    def redact(self, text: str) -> str:
        """Return the text without the secrets of the properties."""
        return Secrets(self.properties).redact(text)


def _check_implementation(impl: str) -> None:
    """Raise if a name is neither an alias nor the path of a class that implements `LanceNamespace`."""
    names = sorted({*lance_namespace.NATIVE_IMPLS, *lance_namespace._REGISTERED_IMPLS})
    if impl in names:
        return
    module, _, name = impl.rpartition(".")
    if not module:
        hint = suggest(impl, names, f"expected one of {', '.join(names)}, or the full path of a class")
        raise InvalidInputError(f"unknown implementation {impl!r}: {hint}")
    try:
        implementation = getattr(importlib.import_module(module), name)
    except Exception as error:  # any that the module raises
        raise InvalidInputError(f"unknown implementation {impl!r}: {error}") from error
    if not (isinstance(implementation, type) and issubclass(implementation, LanceNamespace)):
        raise InvalidInputError(f"unknown implementation {impl!r}: this is not a class that implements LanceNamespace")


def parse_property(text: str) -> tuple[str, str]:
    """Parse `key=value`.

    Raises:
        InvalidInputError: there is no `=`, or nothing before it. The message does not repeat the text, which may hold a
            secret.
    """
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise InvalidInputError("a property is key=value")
    return key, value
