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
class Evidence:
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


class Judge:
    """Stands before a client. Errors of the interface pass; any other is a failure that names its class."""

    def __init__(self, client: LanceNamespace, evidence: Evidence) -> None:
        self._client = client
        self._evidence = evidence

    def __getattr__(self, operation: str) -> Callable[..., Any]:
        call = getattr(self._client, operation)

        def judged(*arguments: Any) -> Any:
            self._evidence.operation = operation
            try:
                return call(*arguments)
            except LanceNamespaceError as error:
                self._evidence.errors.append(str(error))
                raise
            except Exception as error:  # whatever an implementation raises is what is judged here
                self._evidence.errors.append(str(error))
                raise AssertionError(f"{operation} raised {named(error)}, no LanceNamespaceError: {error}") from error

        return judged


def judge(client: LanceNamespace, evidence: Evidence) -> LanceNamespace:
    """The client behind a judge; it looks like the client."""
    return cast(LanceNamespace, Judge(client, evidence))


def named(error: BaseException) -> str:
    """The class of an error, as its user would import it."""
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def described(error: LanceNamespaceError) -> str:
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
def refused(evidence: Evidence, *codes: ErrorCode) -> Iterator[Refusal]:
    """What is done inside must be refused with one of these codes."""
    wanted = " or ".join(f"{int(code)} ({code.name})" for code in codes)
    refusal = Refusal()
    try:
        yield refusal
    except LanceNamespaceError as error:
        if error.code not in codes:
            if error.code is ErrorCode.UNSUPPORTED:
                raise  # the plug-in knows what that means
            raise AssertionError(f"{evidence.operation}: expected error {wanted}, got {described(error)}") from error
        refusal.error = error
        evidence.note(f"error {int(error.code)}")
    else:
        raise AssertionError(f"{evidence.operation} succeeded, expected error {wanted}")
