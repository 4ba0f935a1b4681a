"""What pylance raises becomes a Lance error here, chosen in a table.

pylance tells failures apart by their text alone: a missing table, a refused bucket and a bad filter are all
`ValueError` or `OSError`.
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
        # A column, wherever it was named
        (r"Schema error: No field named |Field \S+ not found in struct", TableColumnNotFoundError),
        (r"[Cc]olumn .+? does not exist in |column '.*' does not exist", TableColumnNotFoundError),
        (r"not found in schema|Embedding column .* is not in the dataset", TableColumnNotFoundError),
        (r"FTS field path '.*' does not exist|^Field '.*' not found\.", TableColumnNotFoundError),
        # The shape of the data
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
        # The store
        (r"ExpiredToken|InvalidAccessKeyId|SignatureDoesNotMatch|InvalidToken", UnauthenticatedError),
        (r"status code: 401|Failed to get AWS credentials|performing token request", UnauthenticatedError),
        (r"status code: 403|Permission denied( \(os error|: ')|Read-only file system", PermissionDeniedError),
        (r"NoSuchBucket|ContainerNotFound|The specified bucket does not exist", InvalidInputError),
        (r"incorrectly configured region|Failed to resolve region for bucket", InvalidInputError),
        (r"Not a directory( \(os error|: ')|File name too long", InvalidInputError),
        (r"status code: 429|SlowDown", ThrottlingError),
        (r"status code: 50[234]|HTTP error: |timed out", ServiceUnavailableError),
        (r"No space left on device|Disk quota exceeded", ServiceUnavailableError),
        # What is not there, or there already
        (r"_versions/[^/]+\.manifest was not found|Version not found error", TableVersionNotFoundError),
        (r"Not found: .*/tree/.*/_versions|Ref not found error: Branch", TableBranchNotFoundError),
        (r"Ref not found error: tag", TableTagNotFoundError),
        (r"Ref conflict error: tag", TableTagAlreadyExistsError),
        (r"Lance index not found", TableIndexNotFoundError),
        (r"Index name '.*' already exists", TableIndexAlreadyExistsError),
        (r"Dataset already exists", TableAlreadyExistsError),
        (r"Dataset at path .* was not found", TableNotFoundError),
        # SQL that fails when it is planned or run
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
"""The first row that is found in the text of a failure decides."""

FROM_NAMESPACE = re.compile(rf"^.*?Namespace error: ({'|'.join(BY_NAMESPACE)}): ", re.DOTALL)
NOISE = re.compile(r"LanceError\(\w+\): |,? ?(location: )?(?<!\S)\S*\.rs:\d+:\d+|[:\s]*\bSchema \{.*", re.DOTALL)
"""Lines of Rust source and dumps of its structures; they mean nothing to a user."""

DUMP = re.compile(r"""IO \{ source: Os \{[^}]*message: "([^"]*)" \}.*""", re.DOTALL)
"""A failure of the machine, as Rust dumps it; its message is what happened."""

DECIMAL = re.compile(
    r"Received literal \w+\((?P<number>[^)]+)\) and could not convert to literal of type "
    r"'Decimal\d+\((?P<digits>\d+), (?P<scale>-?\d+)\)'"
)
"""A filter that compares a decimal with a number that has a point, which Lance takes for a float."""

NULL = re.compile(
    r"field `(?P<field>[^`]+)` contained null values even though the field is marked non-null in the schema"
    r"|Column '(?P<column>[^']+)' is declared as non-nullable but contains null values"
)
"""A null in a column that does not allow it."""

REGION = re.compile(r"Failed to resolve region for bucket '[^']*'")
"""What is said of a bucket that no storage options came for."""
REGION_HINT = (
    r"\g<0>: no storage options say where it is, and perhaps none say who you are; set the properties `storage.region` "
    r"and `storage.access_key_id`, `storage.secret_access_key` (or AWS_REGION and so on in the environment), or let a "
    r"catalog that vends credentials give them, with `header.X-Iceberg-Access-Delegation=vended-credentials`"
)

SECRET_KEYS = re.compile(r"key|secret|token|sas|password|credential|signature", re.IGNORECASE)
SECRETS = re.compile(
    r"(?<=://)[^\s/@:]+:[^\s/@]+@"
    r"|(?<=[\w/])\?[\w.-]+=\S*"
    r"|<(\w*Signature\w*|StringToSign\w*|CanonicalRequest\w*|\w*KeyId|Token\w*)>.*?(?:</\1>|\Z)",
    re.DOTALL,
)
"""What a store may echo: a signed query, a user in an address, the signature that it did not like. It is looked for in
all of a text, so it must not look at the same part of it again and again."""

HEAD, TAIL = 2_000, 1_000
"""Characters at the beginning and at the end of a text that are read and shown. pylance repeats whole filters, and
patterns that search a long text hold up every thread of the process."""


@contextmanager
def translate_errors(about: object, hide: Mapping[str, str] | None = None) -> Iterator[None]:
    """Turn what pylance raises inside into a Lance error that names the table.

    Programming errors pass through as they are, and so do Lance errors.

    Args:
        about: the table, as its user knows it.
        hide: storage options, whose secrets a store might echo.
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
        # A cause is printed with its own text: it may only be shown where there is nothing to hide.
        raise translation from (error if message == text else None)
    except BaseException as error:
        if not is_panic(error):
            raise
        message = redact(str(error), hide or {})
        kind = find_error_class(message) or InternalError
        raise kind(f"{about}: Lance met a case that it does not know: {clean_message(message)}") from None


def find_error_class(text: str) -> Kind | None:
    """The Lance error for a text of pylance, or None where it is not known."""
    text = _shorten(text)
    if wrapped := FROM_NAMESPACE.match(text):
        return BY_NAMESPACE[wrapped[1]]
    return next((kind for pattern, kind in BY_TEXT if pattern.search(text)), None)


def redact(text: str, hide: Mapping[str, str]) -> str:
    """The text without secrets."""
    for key, value in hide.items():
        if value and SECRET_KEYS.search(key):
            text = text.replace(value, "***")
    return SECRETS.sub("", text)


def clean_message(text: str) -> str:
    """The text without what only pylance's authors can read, and with what to write instead where that is known."""
    message = DECIMAL.sub(r"\g<0>: write decimal(\g<digits>,\g<scale>) '\g<number>'", _shorten(text))
    message = REGION.sub(REGION_HINT, message)
    message = NULL.sub(lambda found: f"{found[0]}; {nullable_hint(found['field'] or found['column'])}", message)
    return NOISE.sub("", DUMP.sub(r"\1", FROM_NAMESPACE.sub("", message))).strip()


def _shorten(text: str) -> str:
    return text if len(text) <= HEAD + TAIL else f"{text[:HEAD]} … {text[-TAIL:]}"
