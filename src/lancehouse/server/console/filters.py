"""Error messages about filters, reworded to one sentence for the user of the console."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from lance_namespace.errors import InvalidInputError, TableColumnNotFoundError

LONGEST = 400
UNKNOWN = "The filter cannot be used"
"""Start of a sentence that repeats Lance's own message."""

_PATTERNS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern, re.DOTALL), words)
    for pattern, words in (
        (r"^filter: it cannot be read as SQL: (?P<why>.+?) \(see “", "The filter is no condition in SQL: {why}."),
        (r"^filter: the function (?P<name>\S+) is not allowed", "The filter cannot use the function {name}."),
        (r"^filter: (?P<why>.+?) \(see “", UNKNOWN + ": {why}."),
        (r"sql parser error: (?P<why>.+?)\)?\s*$", "The filter is no condition in SQL: {why}."),
        (
            r"No field named (?P<name>.+?)\. Did you mean '?(?P<near>[^'?]+)'?\?",
            "There is no column {name}; did you mean {near}?",
        ),
        (
            r"No field named (?P<name>.+?)\. Valid fields are (?P<known>.+?)\.?\s*$",
            "There is no column {name}; the table has {known}.",
        ),
        (r"No field named (?P<name>[^.]+)", "There is no column {name}."),
        (
            r"Received literal \w+\((?P<value>.*?)\) and could not convert to literal of type '(?P<type>[^']+)': "
            r"write (?P<way>.+?)\s*$",
            "The value {value} does not fit a column of type {type}: write {way}.",
        ),
        (
            r"Received literal \w+\((?P<value>.*?)\) and could not convert to literal of type '(?P<type>[^']+)'",
            "The value {value} does not fit a column of type {type}.",
        ),
        (r"Invalid function '(?P<name>[^']+)'", "There is no function {name}."),
        (
            r"The filter (?P<filter>.+) does not return a boolean",
            "The filter {filter} is no condition: it has to be true or false for each row.",
        ),
    )
)
"""Messages of the gateway's parser, then those of Lance, and their replacements; the first match counts."""

_HIDDEN = re.compile(r"(, )?\b_\w+")
"""Columns that Lance adds to the ones that it lists."""
_NOISE = re.compile(r"^(table [^:]+|backend [^:]+): |Invalid user input: |Error [a-z ]+:? (?=[A-Z])")


@contextmanager
def explain_filter_errors(filter: str | None) -> Iterator[None]:
    """Reword errors about a filter that are raised inside the context.

    Raises:
        InvalidInputError: the filter is wrong; the message is one sentence.
    """
    try:
        yield
    except (InvalidInputError, TableColumnNotFoundError) as error:
        if not filter:
            raise
        raise InvalidInputError(format_filter_error(str(error))) from None


def format_filter_error(message: str) -> str:
    """Reword an error message about a filter to one sentence."""
    for pattern, words in _PATTERNS:
        if match := pattern.search(message):
            parts = {name: _HIDDEN.sub("", value).strip() for name, value in match.groupdict().items()}
            return " ".join(words.format(**parts).split())[:LONGEST]
    first = _NOISE.sub("", message).splitlines()[0].rstrip(". ")
    return f"{UNKNOWN}: {first[:LONGEST]}."
