"""What a task raised, on the driver: Spark passes on its text alone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from lance_namespace import errors
from lance_namespace.errors import InternalError, LanceNamespaceError
from pyspark.errors import PySparkException

from lancehouse.errors import CommitStateUnknownError

KINDS: dict[str, type[LanceNamespaceError]] = {
    CommitStateUnknownError.__name__: CommitStateUnknownError,
    **{
        name: kind
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, LanceNamespaceError)
    },
}
_RAISED = re.compile(r"^(?:\S+\.)?(\w+Error): (.*)", re.MULTILINE | re.DOTALL)
_END = re.compile(r"\n\s*(?:at \S+\(|Driver stacktrace|JVM stacktrace)", re.DOTALL)


@contextmanager
def translated() -> Iterator[None]:
    """Raise what a task raised if that was a Lance error; else say what Spark says, without the stack traces."""
    try:
        yield
    except PySparkException as error:
        raise _meant(str(error)) from error


def _meant(text: str) -> LanceNamespaceError:
    for found in reversed(list(re.finditer(r"^(?:\S+\.)?(\w+Error): ", text, re.MULTILINE))):
        if (kind := KINDS.get(found[1])) is not None:
            return kind(_first(text[found.end() :]))
    raised = _RAISED.search(text)
    return InternalError(f"Spark could not do it: {_first(raised[0] if raised else text)}")


def _first(text: str) -> str:
    """A message, up to where the traces begin."""
    return _END.split(text, maxsplit=1)[0].split("\n\n", 1)[0].strip()
