"""Checks of the client itself, and at the end of what the run leaves behind: no secret in an error, and no object."""

from __future__ import annotations

import pickle
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from lance_namespace import DescribeTableRequest, ListNamespacesRequest
from lance_namespace.errors import ErrorCode, InvalidInputError

from lancehouse.conformance.subject import Subject
from lancehouse.conformance.target import DEAD_URL

THREADS = 8
ROUNDS = 5
PROMPT_S = 5.0


def check_connection_constructor_offline(subject: Subject) -> None:
    """A client is made without its server."""
    dead = _dead_properties(subject)
    started = time.monotonic()
    try:
        subject.target.connect(**dead)
    except InvalidInputError as error:
        raise AssertionError(f"the constructor wants its server: {error}") from error
    assert time.monotonic() - started < PROMPT_S, f"the constructor took {time.monotonic() - started:.1f} s"


def check_connection_unreachable(subject: Subject) -> None:
    """A server that cannot be reached is error 17."""
    client = subject.with_error_checks(subject.target.connect(**_dead_properties(subject)))
    with subject.expect_error(ErrorCode.SERVICE_UNAVAILABLE):
        client.list_namespaces(ListNamespacesRequest(id=subject.parent))


def check_connection_namespace_id(subject: Subject) -> None:
    """namespace_id is stable, and the same for equal clients."""
    mine, again, other = (
        subject.raw_client.namespace_id(),
        subject.raw_client.namespace_id(),
        subject.target.connect().namespace_id(),
    )
    assert isinstance(mine, str), f"namespace_id is {mine!r}, no string"
    assert mine, "namespace_id is empty"
    assert mine == again, f"namespace_id changes from {mine!r} to {again!r}"
    assert mine == other, f"two clients with the same properties are {mine!r} and {other!r}"


def check_connection_no_secret_shown(subject: Subject) -> None:
    """No secret is in namespace_id, repr or str."""
    texts = {
        "namespace_id": subject.raw_client.namespace_id(),
        "repr": repr(subject.raw_client),
        "str": str(subject.raw_client),
    }
    leaking = [source for source, text in texts.items() for secret in subject.target.secrets if secret in text]
    assert not leaking, f"a secret is in {', '.join(leaking)}"
    if not subject.target.secrets:
        subject.note("no property holds a secret")


def check_connection_pickle(subject: Subject) -> None:
    """A client can be pickled, as Spark and Ray do, and works after that."""
    try:
        copy = pickle.loads(pickle.dumps(subject.raw_client))
    except (TypeError, AttributeError, pickle.PicklingError) as error:
        pytest.skip(f"unsupported: pickle ({error})")
    children = (
        subject.with_error_checks(copy).list_namespaces(ListNamespacesRequest(id=[*subject.home[:-1]])).namespaces
    )
    assert any(name.endswith(subject.home[-1]) for name in children), "the copy does not see what its original sees"


def check_connection_threads(subject: Subject) -> None:
    """Threads that share a client get the right answers."""
    tables = [subject.new_table() for _ in range(3)]
    expected = {table[-1]: subject.describe(table).location for table in tables}

    def work(number: int) -> None:
        table = tables[number % len(tables)]
        for _ in range(ROUNDS):
            location = subject.describe(table).location
            assert location == expected[table[-1]], f"{table[-1]} is at {location}, not at {expected[table[-1]]}"
            names = subject.list_tables(table[:-1])
            assert set(expected) <= set(names), f"a list lacks {sorted(set(expected) - set(names))}"

    with ThreadPoolExecutor(THREADS) as pool:
        for future in [pool.submit(work, number) for number in range(THREADS)]:
            future.result()
    subject.note(f"{THREADS} threads, {THREADS * ROUNDS * 2} calls")


def check_connection_other_client(subject: Subject) -> None:
    """What one client made, another one sees at once."""
    table = subject.new_table()
    other = subject.with_error_checks(subject.target.connect())
    location = other.describe_table(DescribeTableRequest(id=table)).location
    assert location == subject.describe(table).location, f"another client sees it at {location}"


def _dead_properties(subject: Subject) -> dict[str, str]:
    if not subject.target.urls:
        pytest.skip("no property holds the address of a server")
    return dict.fromkeys(subject.target.urls, DEAD_URL)


def check_cleanup_no_secret_in_errors(subject: Subject) -> None:
    """No error of the whole run holds a secret."""
    errors = subject.log.errors
    leaking = [error for error in errors if any(secret in error for secret in subject.target.secrets)]
    assert not leaking, f"{len(leaking)} of {len(errors)} errors hold a secret, such as: {leaking[0]}"
    subject.note(f"{len(errors)} errors read")


def check_cleanup_nothing_left(subject: Subject) -> None:
    """The suite leaves nothing behind."""
    failures = subject.close()
    names = [name for name in subject.list_namespaces(subject.parent) if subject.token in name]
    assert not names, f"{len(names)} namespaces are left, such as {names[0]}; {'; '.join(failures[:1])}"
