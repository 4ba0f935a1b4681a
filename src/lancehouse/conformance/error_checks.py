"""Calls of an implementation, judged: what it raises must be an error of the interface, with the right code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

from lance_namespace import LanceNamespace
from lance_namespace.errors import ErrorCode, LanceNamespaceError

BASIC = frozenset(
    {
        "create_namespace",
        "list_namespaces",
        "describe_namespace",
        "drop_namespace",
        "declare_table",
        "list_tables",
        "describe_table",
        "deregister_table",
    }
)
"""The operations that every implementation must have."""


@dataclass
class CheckLog:
    """What one check saw."""

    notes: list[str] = field(default_factory=list)
    operation: str = ""
    """The last one that was called."""
    errors: list[str] = field(default_factory=list)
    """The texts of all errors of the run, for the check that no secret is in them."""

    def clear(self) -> None:
        """Before the next check."""
        self.notes.clear()
        self.operation = ""

    def note(self, text: str) -> None:
        """Say something about what was seen, once."""
        if text not in self.notes:
            self.notes.append(text)


class ErrorCheckingClient:
    """Stands before a client. Errors of the interface pass; any other is a failure that names its class."""

    def __init__(self, client: LanceNamespace, evidence: CheckLog) -> None:
        self._client = client
        self._evidence = evidence

    def __getattr__(self, operation: str) -> Callable[..., Any]:
        call = getattr(self._client, operation)

        def call_checked(*arguments: Any) -> Any:
            self._evidence.operation = operation
            try:
                return call(*arguments)
            except LanceNamespaceError as error:
                self._evidence.errors.append(str(error))
                raise
            except Exception as error:  # whatever an implementation raises is what is judged here
                self._evidence.errors.append(str(error))
                raise AssertionError(
                    f"{operation} raised {class_name(error)}, no LanceNamespaceError: {error}"
                ) from error

        return call_checked


def with_error_checks(client: LanceNamespace, evidence: CheckLog) -> LanceNamespace:
    """The client behind a judge; it looks like the client."""
    return cast(LanceNamespace, ErrorCheckingClient(client, evidence))


def class_name(error: BaseException) -> str:
    """The class of an error, as its user would import it."""
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def format_error(error: LanceNamespaceError) -> str:
    """An error in one line."""
    return f"{type(error).__name__} (error {int(error.code)}): {error}"


@dataclass
class Refusal:
    """The error that came, once it has come."""

    error: LanceNamespaceError | None = None

    @property
    def message(self) -> str:
        """Its text."""
        return str(self.error)


@contextmanager
def expect_error(evidence: CheckLog, *codes: ErrorCode) -> Iterator[Refusal]:
    """What is done inside must be refused with one of these codes."""
    expected = " or ".join(f"{int(code)} ({code.name})" for code in codes)
    refusal = Refusal()
    try:
        yield refusal
    except LanceNamespaceError as error:
        if error.code not in codes:
            if error.code is ErrorCode.UNSUPPORTED:
                raise  # the plug-in knows what that means
            raise AssertionError(
                f"{evidence.operation}: expected error {expected}, got {format_error(error)}"
            ) from error
        refusal.error = error
        evidence.note(f"error {int(error.code)}")
    else:
        raise AssertionError(f"{evidence.operation} succeeded, expected error {expected}")
