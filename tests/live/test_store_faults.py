"""What people do to tables in a real S3, with the store in order, stopped, killed, slow, and failing now and then."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest
from lance_namespace.errors import LanceNamespaceError

from lancehouse.spark import SparkEngine
from tests.live.object_store import (
    FAULTS,
    HARMLESS,
    OPERATIONS,
    House,
    Operation,
    Store,
    check_error,
)
from tests.servers.faults import ALWAYS
from tests.servers.versitygw import find_program
from tests.spark.conftest import spark  # noqa: F401 - one Spark for all tests

pytestmark = [
    pytest.mark.engines,
    pytest.mark.skipif(find_program() is None, reason="versitygw was not built, which takes Go"),
    pytest.mark.timeout(600),
]

LONGEST_S = 300
"""Nothing takes longer, whatever the store does."""
EVERY = 3
"""Where the store fails at one request after another, this is the next: all would take an hour."""


@dataclass(frozen=True)
class Attempt:
    """An operation that was done once, and what became of it."""

    operation: Operation
    fault: str
    error: LanceNamespaceError | None


@pytest.fixture(scope="module", params=FAULTS)
def attempts(request: pytest.FixtureRequest, house: House, store: Store, soak: bool) -> dict[str, Attempt]:
    """All operations at once under one fault, each on a table of its own."""
    operations = {name: kind(house) for name, kind in OPERATIONS.items()}
    with ThreadPoolExecutor(len(operations)) as pool, FAULTS[request.param](store, soak):
        futures = {name: pool.submit(_attempt, operation) for name, operation in operations.items()}
        errors = {name: future.result(LONGEST_S) for name, future in futures.items()}
    return {name: Attempt(operation, request.param, errors[name]) for name, operation in operations.items()}


def _attempt(operation: Operation) -> LanceNamespaceError | None:
    try:
        operation.run()
    except LanceNamespaceError as error:
        return error
    return None


@pytest.mark.parametrize("name", OPERATIONS)
def test_operation(attempts: dict[str, Attempt], name: str) -> None:
    """It is done, or it says why not, is not half done, and is done the next time."""
    tried = attempts[name]
    if tried.fault in HARMLESS:
        assert tried.error is None
        assert tried.operation.list_leftovers() == []
    _finish(tried)


def _finish(tried: Attempt) -> None:
    """Do it again if it failed, and look what is left."""
    if tried.error is not None:
        check_error(tried.error, tried.operation.name)
        tried.operation.check_unharmed()
        tried.operation.run()
    tried.operation.check()
    tried.operation.remove_leftovers()
    assert tried.operation.list_leftovers() == []


@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")
@pytest.mark.filterwarnings("ignore:lance is not fork-safe:UserWarning")
@pytest.mark.parametrize("name", ["ingest", "merge"])
def test_on_spark(house: House, spark: Any, name: str) -> None:  # noqa: F811
    operation = OPERATIONS[name](house, SparkEngine(spark))
    operation.run()
    operation.check()
    assert operation.list_leftovers() == []


@pytest.fixture(scope="module")
def impatient_house(store: Store, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """Its clients ask the store once, and fail."""
    properties = {"storage.client_max_retries": "0", "storage.client_retry_timeout": "1"}
    with ExitStack() as stack:
        yield House(store.bucket(), tmp_path_factory.mktemp("impatient"), stack, **properties)


@pytest.mark.soak
@pytest.mark.parametrize("times", [1, ALWAYS], ids=["once", "for good"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_fault_at_any_request(impatient_house: House, store: Store, name: str, times: int) -> None:
    """Wherever the store fails, the same holds."""
    for number in range(0, 1000, EVERY):
        operation = OPERATIONS[name](impatient_house)
        with store.failing_at(number, times) as failed:
            error = _attempt(operation)
        _finish(Attempt(operation, f"request {number}", error))
        if not failed.is_set():
            return
    pytest.fail("it has no end")
