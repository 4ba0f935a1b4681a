"""Runs the conformance suite in this process, and returns its report."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from lance_namespace import ListNamespacesRequest
from lance_namespace.errors import (
    InvalidInputError,
    LanceNamespaceError,
    NamespaceNotFoundError,
    PermissionDeniedError,
    ServiceUnavailableError,
    UnauthenticatedError,
)

from lancehouse.conformance.plugin import CHECKS, Collector
from lancehouse.conformance.results import CheckResult, ConformanceReport
from lancehouse.conformance.subject import CheckLog, with_error_checks
from lancehouse.conformance.target import ConformanceTarget

HOPELESS = (NamespaceNotFoundError, PermissionDeniedError, ServiceUnavailableError, UnauthenticatedError)
"""Errors on listing the parent that every check would only repeat."""

ARGUMENTS = (
    *("-p", "lancehouse.conformance.plugin"),
    *("-c", os.devnull, "--rootdir", str(CHECKS)),
    *(f"-pno:{name}" for name in ("terminalreporter", "cacheprovider", "warnings", "logging", "faulthandler")),
    *("--capture=no", "--tb=short", str(CHECKS)),
)


def run(target: ConformanceTarget, on_result: Callable[[CheckResult], None] | None = None) -> ConformanceReport:
    """Check an implementation.

    Args:
        target: what to check.
        on_result: is called with each result.

    Raises:
        InvalidInputError: there is no such implementation or check, or it does not accept these properties.
        LanceNamespaceError: the server cannot be reached, refuses access, or has no such parent.
    """
    check_reachable(target)
    collector = Collector(target, on_result)
    with quiet_environment():
        status = pytest.main([*ARGUMENTS], plugins=[collector])
    report = collector.report
    if status == pytest.ExitCode.USAGE_ERROR:
        raise InvalidInputError("the suite did not start")
    if status not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.INTERRUPTED):
        report.trouble.append(f"pytest ended with {pytest.ExitCode(status).name}")
    return report


def check_reachable(target: ConformanceTarget) -> None:
    """Try to list the parent; raise only errors that would make every check fail."""
    client = with_error_checks(target.connect(), CheckLog())
    try:
        client.list_namespaces(ListNamespacesRequest(id=list(target.parent), limit=1))
    except HOPELESS as error:
        raise type(error)(target.redact(str(error))) from None
    except (LanceNamespaceError, AssertionError):
        pass  # the checks will report it in more detail


@contextmanager
def quiet_environment() -> Iterator[None]:
    """Turn off plug-ins and options that the environment sets for pytest: the suite runs the same everywhere."""
    variables = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": "", "PYTEST_PLUGINS": ""}
    # pytest sets PYTEST_CURRENT_TEST and removes it, also where the suite runs within a test.
    before = {name: os.environ.get(name) for name in (*variables, "PYTEST_CURRENT_TEST")}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
