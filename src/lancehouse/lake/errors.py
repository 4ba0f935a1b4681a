"""Translate exceptions of pylance to errors of the Lance interface, by a table of message patterns.

pylance's exceptions differ by their text alone: a missing table, a refused bucket and a bad filter are all `ValueError`
or `OSError`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

from lance_namespace.errors import (
    ConcurrentModificationError,
    InternalError,
    InvalidInputError,
    InvalidTableStateError,
    LanceNamespaceError,
    NamespaceAlreadyExistsError,
    NamespaceNotEmptyError,
    NamespaceNotFoundError,
    PermissionDeniedError,
    ServiceUnavailableError,
    TableAlreadyExistsError,
    TableBranchAlreadyExistsError,
    TableBranchNotFoundError,
    TableColumnNotFoundError,
    TableIndexAlreadyExistsError,
    TableIndexNotFoundError,
    TableNotFoundError,
    TableSchemaValidationError,
    TableTagAlreadyExistsError,
    TableTagNotFoundError,
    TableVersionNotFoundError,
    ThrottlingError,
    TransactionNotFoundError,
    UnauthenticatedError,
    UnsupportedOperationError,
)

from lancehouse.errors import CommitStateUnknownError, is_panic
from lancehouse.schema.walk import nullable_hint
from lancehouse.secrets import redact

Kind = type[LanceNamespaceError]

BY_NAMESPACE: Mapping[str, Kind] = MappingProxyType(
    {
        "Unsupported": UnsupportedOperationError,
        "Namespace not found": NamespaceNotFoundError,
        "Namespace already exists": NamespaceAlreadyExistsError,
        "Namespace not empty": NamespaceNotEmptyError,
        "Table not found": TableNotFoundError,
        "Table already exists": TableAlreadyExistsError,
        "Table index not found": TableIndexNotFoundError,
        "Table index already exists": TableIndexAlreadyExistsError,
        "Table tag not found": TableTagNotFoundError,
        "Table tag already exists": TableTagAlreadyExistsError,
        "Transaction not found": TransactionNotFoundError,
        "Table version not found": TableVersionNotFoundError,
        "Table column not found": TableColumnNotFoundError,
        "Invalid input": InvalidInputError,
        "Concurrent modification": ConcurrentModificationError,
        "Permission denied": PermissionDeniedError,
        "Unauthenticated": UnauthenticatedError,
        "Service unavailable": ServiceUnavailableError,
        "Internal error": InternalError,
        "Invalid table state": InvalidTableStateError,
        "Table schema validation error": TableSchemaValidationError,
        "Throttling": ThrottlingError,
        "Table branch not found": TableBranchNotFoundError,
        "Table branch already exists": TableBranchAlreadyExistsError,
    }
)
"""How Rust names an error that a Python namespace raised while Rust called it: `Namespace error: <name>: <text>`."""

BY_TEXT: tuple[tuple[re.Pattern[str], Kind], ...] = tuple(
    (re.compile(pattern, re.DOTALL), kind)
    for pattern, kind in (
        # Missing columns
        (r"Schema error: No field named |Field \S+ not found in struct", TableColumnNotFoundError),
        (r"[Cc]olumn .+? does not exist in |column '.*' does not exist", TableColumnNotFoundError),
        (r"not found in schema|Embedding column .* is not in the dataset", TableColumnNotFoundError),
        (r"FTS field path '.*' does not exist|^Field '.*' not found\.", TableColumnNotFoundError),
        # Schema of the data
        (r"Append with different schema|Duplicate field name", TableSchemaValidationError),
        (r"is marked non-null|is declared as non-nullable", TableSchemaValidationError),
        (r"Cannot cast column|Column .* already exists in the dataset", TableSchemaValidationError),
        (r"Unsupported data type: |Cannot encode dictionary type ", TableSchemaValidationError),
        (
            r"contains a FixedSizeList with dimension 0|Top level field .* cannot contain `\.`",
            TableSchemaValidationError,
        ),
        (r"Primary key column (and all its ancestors )?must ", TableSchemaValidationError),
        (r"LanceError\(Schema\): Field .* not found", TableColumnNotFoundError),
        # Arguments
        (r"^Invalid user input|Invalid argument error|Ref is invalid|Cannot drop all columns", InvalidInputError),
        (r"must be (>|<=|1 or more|divisible|specified)|must have the same length", InvalidInputError),
        (r"does not match index column size|Metric .* not supported|can't set tokenizer", InvalidInputError),
        (r"(index|Vector|Query) column .* must (be|have) ", InvalidInputError),
        (r"Invalid field path '|Error parsing Path |embedded null byte|\bNulError\(", InvalidInputError),
        (r"^Not supported: Nested column references", UnsupportedOperationError),
        (r"is referenced by .* versions|tagged version\(s\) have been marked", InvalidInputError),
        # Commits
        (r"Commit result for version \d+ is unknown", CommitStateUnknownError),
        (r"[Cc]ommit conflict|Too many concurrent writers|with concurrent transaction", ConcurrentModificationError),
        # Storage
        (r"ExpiredToken|InvalidAccessKeyId|SignatureDoesNotMatch|InvalidToken", UnauthenticatedError),
        (r"status code: 401|Failed to get AWS credentials|performing token request", UnauthenticatedError),
        (r"status code: 403|Permission denied( \(os error|: ')|Read-only file system", PermissionDeniedError),
        (r"NoSuchBucket|ContainerNotFound|The specified bucket does not exist", InvalidInputError),
        (r"incorrectly configured region|Failed to resolve region for bucket", InvalidInputError),
        (r"Not a directory( \(os error|: ')|File name too long", InvalidInputError),
        (r"status code: 429|SlowDown", ThrottlingError),
        (r"status code: 50[234]|HTTP error: |timed out", ServiceUnavailableError),
        (r"No space left on device|Disk quota exceeded", ServiceUnavailableError),
        # Missing or existing objects
        (r"_versions/[^/]+\.manifest was not found|Version not found error", TableVersionNotFoundError),
        (r"Not found: .*/tree/.*/_versions|Ref not found error: Branch", TableBranchNotFoundError),
        (r"Ref not found error: tag", TableTagNotFoundError),
        (r"Ref conflict error: tag", TableTagAlreadyExistsError),
        (r"Lance index not found", TableIndexNotFoundError),
        (r"Index name '.*' already exists", TableIndexAlreadyExistsError),
        (r"Dataset already exists", TableAlreadyExistsError),
        (r"Dataset at path .* was not found", TableNotFoundError),
        # SQL that fails in planning or execution
        (r"Physical plan does not support logical expression|Unnest should be rewritten", InvalidInputError),
        (r"Scans must request at least one column|failed to construct the fuzzy query", InvalidInputError),
        (r"Error applying filter expression to batch|Query Execution error: Execution error: ", InvalidInputError),
        (r"This feature is not implemented: ", InvalidInputError),
        (
            r"(Arrow error|LanceError\(Arrow\)): (Cast|Parser|Compute|Arithmetic overflow|Divide by zero) ?error",
            InvalidInputError,
        ),
    )
)
"""Message patterns and their errors; the first pattern that matches decides."""

FROM_NAMESPACE = re.compile(rf"^.*?Namespace error: ({'|'.join(BY_NAMESPACE)}): ", re.DOTALL)
NOISE = re.compile(r"LanceError\(\w+\): |,? ?(location: )?(?<!\S)\S*\.rs:\d+:\d+|[:\s]*\bSchema \{.*", re.DOTALL)
"""Locations in Rust source and dumps of its structures, which mean nothing to a user."""

DUMP = re.compile(r"""IO \{ source: Os \{[^}]*message: "([^"]*)" \}.*""", re.DOTALL)
"""Rust's dump of an error of the operating system, with its message."""

DECIMAL = re.compile(
    r"Received literal \w+\((?P<number>[^)]+)\) and could not convert to literal of type "
    r"'Decimal\d+\((?P<digits>\d+), (?P<scale>-?\d+)\)'"
)
"""A filter that compares a decimal with a number with a fraction, which Lance takes for a float."""

NULL = re.compile(
    r"field `(?P<field>[^`]+)` contained null values even though the field is marked non-null in the schema"
    r"|Column '(?P<column>[^']+)' is declared as non-nullable but contains null values"
)
"""A null in a column that does not allow it."""

REGION = re.compile(r"Failed to resolve region for bucket '[^']*'")
"""Lance's message for a bucket without storage options."""
REGION_HINT = (
    r"\g<0>: no storage options say where it is, and perhaps none say who you are; set the properties `storage.region` "
    r"and `storage.access_key_id`, `storage.secret_access_key` (or AWS_REGION and so on in the environment), or let a "
    r"catalog that vends credentials give them (`vend_credentials` must not be false)"
)

HEAD, TAIL = 2_000, 1_000
"""Characters at the start and at the end of a message that are searched and shown.

pylance repeats whole filters, and a pattern that searches a long text blocks every thread of the process.
"""


@contextmanager
def translate_errors(about: object, hide: Mapping[str, str] | None = None) -> Iterator[None]:
    """Translate exceptions of pylance raised inside to Lance errors that name the table.

    Programming errors and Lance errors are not changed.

    Args:
        about: the table, as its user knows it.
        hide: storage options whose secrets must not appear in the message, because a store might echo them.
    """
    try:
        yield
    except OverflowError as error:
        raise InvalidInputError(f"{about}: a number is out of range: {error}") from error
    except (OSError, ValueError, RuntimeError, KeyError, TypeError) as error:
        text = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
        message = redact(text, hide or {})
        kind = find_error_class(text)
        if kind is None and isinstance(error, (KeyError, TypeError)):
            raise
        translation = (kind or InternalError)(f"{about}: {clean_message(message)}")
        # The cause is printed with its own text, so it is kept only if nothing had to be hidden.
        raise translation from (error if message == text else None)
    except BaseException as error:
        if not is_panic(error):
            raise
        message = redact(str(error), hide or {})
        kind = find_error_class(message) or InternalError
        raise kind(f"{about}: Lance met a case that it does not know: {clean_message(message)}") from None


def find_error_class(text: str) -> Kind | None:
    """Return the Lance error for a message of pylance; None if the message is not known."""
    text = _shorten(text)
    if wrapped := FROM_NAMESPACE.match(text):
        return BY_NAMESPACE[wrapped[1]]
    return next((kind for pattern, kind in BY_TEXT if pattern.search(text)), None)


def clean_message(text: str) -> str:
    """Remove what only pylance's authors understand from a message, and add advice where it is known."""
    message = DECIMAL.sub(r"\g<0>: write decimal(\g<digits>,\g<scale>) '\g<number>'", _shorten(text))
    message = REGION.sub(REGION_HINT, message)
    message = NULL.sub(lambda found: f"{found[0]}; {nullable_hint(found['field'] or found['column'])}", message)
    return NOISE.sub("", DUMP.sub(r"\1", FROM_NAMESPACE.sub("", message))).strip()


def _shorten(text: str) -> str:
    return text if len(text) <= HEAD + TAIL else f"{text[:HEAD]} … {text[-TAIL:]}"
