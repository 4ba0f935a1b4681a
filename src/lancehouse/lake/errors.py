"""Translate exceptions of pylance to errors of the Lance interface, by a table of message patterns.

pylance's exceptions differ by their text alone: a missing table, a refused bucket and a bad filter are all `ValueError`
or `OSError`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
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

from lancehouse import measures
from lancehouse.credentials import is_read_only
from lancehouse.errors import CommitStateUnknownError, is_panic
from lancehouse.schema.walk import nullable_hint
from lancehouse.secrets import redact

Kind = type[LanceNamespaceError]
Options = Mapping[str, str] | Callable[[], Mapping[str, str] | None] | None

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
        (r"operation that includes row addresses must not target deleted rows", InvalidInputError),
        (r"^Not supported: Nested column references", UnsupportedOperationError),
        (r"is referenced by .* versions|tagged version\(s\) have been marked", InvalidInputError),
        # Commits
        (r"Commit result for version \d+ is unknown", CommitStateUnknownError),
        (r"[Cc]ommit conflict|Too many concurrent writers|with concurrent transaction", ConcurrentModificationError),
        # Storage
        (r"ExpiredToken|InvalidAccessKeyId|SignatureDoesNotMatch|InvalidToken", UnauthenticatedError),
        (r"XAdminUserNotFound|TokenRefreshRequired|RequestTimeTooSkewed", UnauthenticatedError),
        (r"status code: 401|Failed to get AWS credentials|performing token request", UnauthenticatedError),
        (r"status code: 403|Permission denied( \(os error|: ')|Read-only file system", PermissionDeniedError),
        (r"NoSuchBucket|ContainerNotFound|The specified bucket does not exist", InvalidInputError),
        (r"incorrectly configured region|Failed to resolve region for bucket", InvalidInputError),
        (r"AuthorizationHeaderMalformed|HTTP error: builder error", InvalidInputError),
        (r"Not a directory( \(os error|: ')|File name too long", InvalidInputError),
        (r"status code: 429|SlowDown", ThrottlingError),
        (r"status code: (408|50[0234])|HTTP error: |timed out", ServiceUnavailableError),
        (r"No space left on device|Disk quota exceeded", ServiceUnavailableError),
        # Missing or existing objects
        (r"_versions/[^/]+\.manifest was not found|Version not found error", TableVersionNotFoundError),
        (r"Not found: .*/tree/.*/_versions|Ref not found error: Branch", TableBranchNotFoundError),
        (r"Not found: .*/_refs/tags/\S*%25", UnsupportedOperationError),
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

ENCLOSED = re.compile(
    r"SELECT (1 FROM t WHERE )?\((?P<statement>.*)\n\)( FROM t)? \((?P<why>.*)\)"
    r"|(?P<before>filter expression |Expression is not valid: )\((?P<sql>.*)\n\)",
    re.DOTALL,
)
"""A condition or an expression that `enclose_sql` put in parentheses, with what Lance says of it."""
_PLACE = re.compile(r" at Line: \d+, Column: \d+")

OWN_KEYS = (
    "the properties `storage.region`, `storage.access_key_id` and `storage.secret_access_key` (or AWS_REGION and so on "
    "in the environment)"
)
VENDING = "use a catalog that vends credentials (`vend_credentials` must not be false)"
FORBIDDEN_HINT = (
    "the store knows who you are, and does not allow this: if you write, perhaps the catalog gave credentials that can "
    "only read, or your own can do no more"
)
READ_ONLY_HINT = (
    "the catalog gave credentials that can only read this table: to write, ask for the right to do so in the catalog, "
    f"or set `vend_credentials` to false and {OWN_KEYS}"
)
HINTS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), hint)
    for pattern, hint in (
        (
            r"Not found: .*/_refs/tags/\S*%25",
            "Lance cannot list the tags of a table if the name of one is not ASCII: delete that tag, and give its "
            "version one with another name",
        ),
        (
            r"Failed to resolve region for bucket",
            "no storage options say where the bucket is, and perhaps none say who you are: set "
            f"{OWN_KEYS}, or {VENDING}",
        ),
        (
            r"AuthorizationHeaderMalformed|incorrectly configured region",
            "the bucket is in another region, or in a store that has none: set the property `storage.region` to the "
            "one that the store expects",
        ),
        (
            r"Failed to get AWS credentials",
            f"no storage options say who you are: set {OWN_KEYS}, or {VENDING}",
        ),
        (
            r"performing token request|no storage account configured",
            "no storage options say who you are: set the properties `storage.account_name` and `storage.account_key` "
            f"for Azure, `storage.google_service_account` for GCS, or {VENDING}",
        ),
        (
            r"InvalidAccessKeyId|XAdminUserNotFound",
            "the store does not know this key: check `storage.access_key_id`, and whether `storage.endpoint` is the "
            "store that gave it",
        ),
        (
            r"SignatureDoesNotMatch",
            "the secret does not belong to the key: check `storage.secret_access_key`",
        ),
        (
            r"ExpiredToken|TokenRefreshRequired",
            "the credentials have expired: a table that is opened by its name in a catalog gets new ones by itself; "
            "your own `storage.session_token` must be replaced together with its key and secret",
        ),
        (
            r"InvalidToken",
            "the session token does not belong to the key, or the store gives none: set `storage.session_token` "
            "together with its key and secret, or remove it (and AWS_SESSION_TOKEN)",
        ),
        (
            r"RequestTimeTooSkewed",
            "the clock of this machine is wrong",
        ),
        (
            r"HTTP error: builder error",
            "the endpoint is no URL, or one without TLS: for http:// set the property `storage.allow_http` to true",
        ),
        (
            r"HTTP error: error sending request",
            "no store answers there: check that it runs, that `storage.endpoint` is right, and whether it is http:// "
            "or https://",
        ),
        (
            r"NoSuchBucket|ContainerNotFound",
            "check the name of the bucket, and `storage.endpoint` if the store is not the cloud's own",
        ),
        (r"status code: 403", FORBIDDEN_HINT),
    )
)
"""What to do about a refusal, of a store above all, by patterns of its message; the first that matches counts."""

HEAD, TAIL = 2_000, 1_000
"""Characters at the start and at the end of a message that are searched and shown.

pylance repeats whole filters, and a pattern that searches a long text blocks every thread of the process.
"""


@contextmanager
def translate_errors(about: object, options: Options = None) -> Iterator[None]:
    """Translate exceptions of pylance raised inside to Lance errors that name the table.

    Programming errors and Lance errors are not changed.

    Args:
        about: the table, as its user knows it.
        options: storage options in use, or a call that returns them. Their secrets must not appear in the message,
            because a store might echo them; and they say whether the catalog allows only reading.
    """
    try:
        yield
    except OverflowError as error:
        raise InvalidInputError(f"{about}: a number is out of range: {error}") from error
    except (OSError, ValueError, RuntimeError, KeyError, TypeError) as error:
        text = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
        store_options = _resolve_options(options)
        message = redact(text, store_options)
        kind = find_error_class(text)
        if kind is None and isinstance(error, (KeyError, TypeError)):
            raise  # a mistake in a program, which must not look like a failure of storage
        if not FROM_NAMESPACE.match(text):
            measures.report_storage_error(kind)
        translation = (kind or InternalError)(f"{about}: {clean_message(message, store_options)}")
        # The cause is printed with its own text, so it is kept only if nothing had to be hidden.
        raise translation from (error if message == text else None)
    except BaseException as error:  # a panic of Rust is no `Exception`
        if not is_panic(error):
            raise
        message = redact(str(error), _resolve_options(options))
        kind = find_error_class(message) or InternalError
        raise kind(f"{about}: Lance met a case that it does not know: {clean_message(message)}") from None


def find_error_class(text: str) -> Kind | None:
    """Return the Lance error for a message of pylance; None if the message is not known."""
    text = _shorten(text)
    if wrapped := FROM_NAMESPACE.match(text):
        return BY_NAMESPACE[wrapped[1]]
    return next((kind for pattern, kind in BY_TEXT if pattern.search(text)), None)


def _resolve_options(options: Options) -> Mapping[str, str]:
    try:
        return (options() if callable(options) else options) or {}
    except Exception:  # noqa: BLE001 - what went wrong before is what the user must know
        return {}


def clean_message(text: str, options: Mapping[str, str] | None = None) -> str:
    """Remove what only pylance's authors understand from a message, and add advice where it is known.

    Args:
        text: the message.
        options: storage options in use, see `translate_errors`.
    """
    message = DECIMAL.sub(r"\g<0>: write decimal(\g<digits>,\g<scale>) '\g<number>'", _shorten(text))
    message = NULL.sub(lambda match: f"{match[0]}; {nullable_hint(match['field'] or match['column'])}", message)
    message = NOISE.sub("", DUMP.sub(r"\1", FROM_NAMESPACE.sub("", message))).strip()
    message = ENCLOSED.sub(_show_own_sql, message)
    hint = _find_hint(message, options or {})
    return f"{message}; {hint}" if hint else message


def _show_own_sql(match: re.Match[str]) -> str:
    """Return what is wrong with SQL as its user wrote it: the parentheses around it are ours."""
    if match["sql"] is not None:
        return f"{match['before']}{match['sql']}"
    sql, why = match["statement"], _PLACE.sub("", match["why"])
    if ")" not in sql:
        why = why.replace("found: )", "found: EOF")
    if sql.count("(") == sql.count(")"):
        why = why.replace("Expected: ),", "Expected: EOF,")
    return f"{sql} ({why})"


def _find_hint(message: str, options: Mapping[str, str]) -> str | None:
    """Return what to do about a refusal of a store; None if that is not known, or is in the message already."""
    hint = next((hint for pattern, hint in HINTS if pattern.search(message)), None)
    if hint is None or hint in message or READ_ONLY_HINT in message:
        return None  # the message was cleaned before, in a layer below
    return READ_ONLY_HINT if hint is FORBIDDEN_HINT and is_read_only(options) else hint


def _shorten(text: str) -> str:
    return text if len(text) <= HEAD + TAIL else f"{text[:HEAD]} … {text[-TAIL:]}"
