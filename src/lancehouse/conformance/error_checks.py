"""Checks of the errors that an implementation raises: their class and their code."""

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
"""Operations that every implementation must support."""


@dataclass
class CheckLog:
    """What was observed during one check."""

    notes: list[str] = field(default_factory=list)
    operation: str = ""
    """The operation that was called last."""
    errors: list[str] = field(default_factory=list)
    """Messages of all errors of the run, which must not contain a secret."""

    def clear(self) -> None:
        """Reset notes and operation before the next check."""
        self.notes.clear()
        self.operation = ""

    def note(self, text: str) -> None:
        """Add a note, unless it is there already."""
        if text not in self.notes:
            self.notes.append(text)


class ErrorCheckingClient:
    """Wraps a client. LanceNamespaceErrors pass; any other exception becomes a failed check that names its class."""

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
            except Exception as error:  # any exception of an implementation is to be judged
                self._evidence.errors.append(str(error))
                raise AssertionError(
                    f"{operation} raised {class_name(error)}, no LanceNamespaceError: {error}"
                ) from error

        return call_checked


def with_error_checks(client: LanceNamespace, evidence: CheckLog) -> LanceNamespace:
    """Wrap a client in an ErrorCheckingClient."""
    return cast(LanceNamespace, ErrorCheckingClient(client, evidence))


def class_name(error: BaseException) -> str:
    """Return the qualified class name of an error."""
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def format_error(error: LanceNamespaceError) -> str:
    """Format an error in one line."""
    return f"{type(error).__name__} (error {int(error.code)}): {error}"


@dataclass
class Refusal:
    """Holds the expected error, once it is raised."""

    error: LanceNamespaceError | None = None

    @property
    def message(self) -> str:
        """Text of the error."""
        return str(self.error)


@contextmanager
def expect_error(evidence: CheckLog, *codes: ErrorCode) -> Iterator[Refusal]:
    """Fail the check unless one of these errors is raised inside the context."""
    expected = " or ".join(f"{int(code)} ({code.name})" for code in codes)
    refusal = Refusal()
    try:
        yield refusal
    except LanceNamespaceError as error:
        if error.code not in codes:
            if error.code is ErrorCode.UNSUPPORTED:
                raise  # the plug-in reports it as unsupported
            raise AssertionError(
                f"{evidence.operation}: expected error {expected}, got {format_error(error)}"
            ) from error
        refusal.error = error
        evidence.note(f"error {int(error.code)}")
    else:
        raise AssertionError(f"{evidence.operation} succeeded, expected error {expected}")
