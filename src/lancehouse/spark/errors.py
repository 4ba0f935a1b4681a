"""Restore on the driver the Lance errors that tasks raised, of which Spark passes on only the text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module

from lance_namespace.errors import InternalError, InvalidInputError, LanceNamespaceError
from pyspark.errors import PySparkException

_OURS = re.compile(r"^((?:lance_namespace|lancehouse)\.[\w.]+)\.(\w+): ", re.MULTILINE)
_RAISED = re.compile(r"^(?:\S+\.)?(\w+Error): (.*)", re.MULTILINE | re.DOTALL)
_ABSENT = re.compile(r"ModuleNotFoundError: No module named '([\w.]+)'")
_END = re.compile(r"\n\s*(?:at \S+\(|Driver stacktrace|JVM stacktrace)", re.DOTALL)


@contextmanager
def translate_task_errors() -> Iterator[None]:
    """Raise the Lance error that a task raised; for other errors, raise Spark's message without the stack traces."""
    try:
        yield
    except PySparkException as error:
        raise _to_lance_error(str(error)) from error


def _to_lance_error(text: str) -> LanceNamespaceError:
    if absent := _ABSENT.search(text):
        return InvalidInputError(
            f"the executors have no module {absent[1]}, which a function needs: send it to them before the call with "
            f"spark.addArtifacts('{absent[1].partition('.')[0]}.py', pyfile=True), or start Spark with --py-files; a "
            "package is sent as a .zip"
        )
    for match in reversed(list(_OURS.finditer(text))):
        kind = getattr(import_module(match[1]), match[2], None)
        if isinstance(kind, type) and issubclass(kind, LanceNamespaceError):
            return kind(_strip_traces(text[match.end() :]))
    raised = _RAISED.search(text)
    return InternalError(f"Spark could not do it: {_strip_traces(raised[0] if raised else text)}")


def _strip_traces(text: str) -> str:
    """Return a message up to where the stack traces begin."""
    return _END.split(text, maxsplit=1)[0].split("\n\n", 1)[0].strip()
