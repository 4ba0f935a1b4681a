"""The pytest plug-in of the conformance suite: options, the `subject` fixture, and collection of results.

A check is a function `check_AREA_NAME` in `lancehouse/conformance/checks/`; pytest reports it as usual, and unsupported
operations as skipped. To get the results as data, register a `Collector`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from lance_namespace.errors import InvalidInputError, LanceNamespaceError, UnsupportedOperationError

from lancehouse.conformance.checks import AREAS
from lancehouse.conformance.results import CheckOutcome, CheckResult, ConformanceReport
from lancehouse.conformance.subject import BASIC, Subject, class_name, format_error
from lancehouse.conformance.target import ConformanceTarget
from lancehouse.connection import parse_property
from lancehouse.identifiers import parse_levels

CHECKS = Path(__file__).parent / "checks"
TARGET = pytest.StashKey[ConformanceTarget]()
UNSUPPORTED = "unsupported: "


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of `lancehouse conformance`, with a prefix of their own."""
    group = parser.getgroup("lancehouse", "conformance of a LanceNamespace implementation")
    group.addoption("--namespace-impl", metavar="NAME", help="alias or class path of the implementation")
    group.addoption(
        "--namespace-property", metavar="KEY=VALUE", action="append", default=[], help="repeat for each one"
    )
    group.addoption("--namespace-parent", metavar="ID", default="", help="the namespace to work in")
    group.addoption("--namespace-root", metavar="FOLDER", help="where tables may lie")
    group.addoption("--namespace-entries", metavar="N", type=int, default=12, help="how long a long list is")
    group.addoption("--namespace-known", metavar="CHECK", action="append", default=[], help="a check known to fail")


def pytest_configure(config: pytest.Config) -> None:
    """Let pytest find the checks, wherever it is started."""
    config.addinivalue_line("python_files", f"{CHECKS.as_posix()}/*.py")
    config.addinivalue_line("python_functions", "check_*")
    if TARGET not in config.stash and (impl := config.getoption("--namespace-impl")):
        try:
            config.stash[TARGET] = ConformanceTarget(
                impl=impl,
                properties=dict(map(parse_property, config.getoption("--namespace-property"))),
                parent=parse_levels(config.getoption("--namespace-parent")),
                root=config.getoption("--namespace-root"),
                entries=config.getoption("--namespace-entries"),
                known=frozenset(config.getoption("--namespace-known")),
            )
        except InvalidInputError as error:
            raise pytest.UsageError(str(error)) from None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Select the requested areas and sort them; `cleanup` always runs last, and checks what the others left."""
    checks = [item for item in items if is_check(item)]
    if not checks:
        return
    if TARGET not in config.stash:
        raise pytest.UsageError("--namespace-impl says which implementation to check")
    target = config.stash[TARGET]
    areas = {*(target.areas or AREAS), "cleanup"}
    deselected = [item for item in checks if area_of(item) not in areas]
    config.hook.pytest_deselected(items=deselected)
    selected = sorted((item for item in checks if area_of(item) in areas), key=lambda item: AREAS.index(area_of(item)))
    items[:] = [item for item in items if not is_check(item)] + selected
    if unknown := target.known - {name_of(item) for item in checks}:
        raise pytest.UsageError(f"there is no check called {', '.join(sorted(unknown))}")
    for item in selected:
        if name_of(item) in target.known:
            item.add_marker(pytest.mark.xfail(reason="known", strict=False))


@pytest.fixture(scope="session", name="_subject")
def session_subject(pytestconfig: pytest.Config) -> Iterator[Subject]:
    """Create one client for all checks, and remove what it created when the run ends, also after an interrupt."""
    subject = Subject(pytestconfig.stash[TARGET])
    yield subject
    subject.close()


@pytest.fixture
def subject(_subject: Subject) -> Iterator[Subject]:
    """Return the implementation under test; what a check created is removed when it ends."""
    _subject.log.clear()
    yield _subject
    _subject.created_objects.remove_entries()


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Turn an unexpected error of the interface into a skipped or failed check."""
    subject = pyfuncitem.funcargs.get("subject")
    if not isinstance(subject, Subject):
        return (yield)
    try:
        return (yield)
    except UnsupportedOperationError as error:
        operation = subject.log.operation
        if operation in BASIC:
            pytest.fail(f"{operation} is one of the eight basic operations: {format_error(error)}", pytrace=False)
        pytest.skip(f"{UNSUPPORTED}{operation}")
    except LanceNamespaceError as error:
        raise AssertionError(f"{subject.log.operation or 'the client'} raised {format_error(error)}") from error


def is_check(item: pytest.Item) -> bool:
    """Return whether a test is a check of this suite."""
    return item.path.parent == CHECKS


def area_of(item: pytest.Item) -> str:
    """Return the area of a check."""
    return name_of(item).partition(".")[0]


def name_of(item: pytest.Item) -> str:
    """Return the name of a check, as `--known` takes it."""
    return item.name.removeprefix("check_").replace("_", ".", 1)


def sentence_of(item: pytest.Item) -> str:
    """Return what the check asserts, from its docstring."""
    text = (getattr(item, "function", item).__doc__ or item.name).partition("\n")[0]
    callspec = getattr(item, "callspec", None)
    return text.replace("{}", callspec.id) if callspec else text


class Collector:
    """A pytest plug-in that collects the results."""

    def __init__(self, target: ConformanceTarget, on_result: Callable[[CheckResult], None] | None = None) -> None:
        self.report = ConformanceReport(target.impl, target.parent)
        self._target = target
        self._on_result = on_result
        self._failed_before: set[str] = set()

    @pytest.hookimpl(tryfirst=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        """Pass the target to the other plug-in."""
        config.stash[TARGET] = self._target

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Record a file of checks that cannot be imported as a problem of the suite."""
        if report.failed:
            self.report.trouble.append(f"{report.nodeid}: {report.longreprtext}")

    def pytest_internalerror(self, excrepr: object) -> None:
        """Record an internal error of pytest as a problem of the suite."""
        self.report.trouble.append(str(excrepr))

    def pytest_keyboard_interrupt(self) -> None:
        """Record that the user interrupted the run."""
        self.report.interrupted = True

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Record the result of a check."""
        report = yield
        is_over = report.when == "call" or report.failed or (report.when == "setup" and report.skipped)
        if is_over and is_check(item) and item.nodeid not in self._failed_before:
            outcome, seen = self._classify(item, report, call)
            if report.failed:
                # Its clean-up may fail as well, which is another report: a check has one result.
                self._failed_before.add(item.nodeid)
            self._add_result(item, outcome, seen, report.duration)
        return report

    def _classify(self, item: pytest.Item, report: Any, call: pytest.CallInfo[None]) -> tuple[CheckOutcome, str]:
        notes = "; ".join(self._notes(item))
        if report.passed:
            return CheckOutcome.HOLDS, notes
        message = first_line(call.excinfo.value) if call.excinfo else ""
        if hasattr(report, "wasxfail"):
            return CheckOutcome.KNOWN, message
        if report.failed:
            return CheckOutcome.FAILS, message
        if message.startswith(UNSUPPORTED):
            return CheckOutcome.UNSUPPORTED, message.removeprefix(UNSUPPORTED)
        return CheckOutcome.SKIPPED, message

    def _notes(self, item: pytest.Item) -> list[str]:
        subject = getattr(item, "funcargs", {}).get("subject")
        return subject.log.notes if isinstance(subject, Subject) else []

    def _add_result(self, item: pytest.Item, outcome: CheckOutcome, seen: str, seconds: float) -> None:
        sentence = sentence_of(item)
        result = CheckResult(
            area_of(item), name_of(item), sentence, outcome, self._target.redact(seen), round(seconds, 3)
        )
        self.report.results.append(result)
        if self._on_result:
            self._on_result(result)


def first_line(error: BaseException) -> str:
    """Return an error's message in one line, with its class unless it is a failed assertion or a skip."""
    text = " ".join(str(error).partition("\nassert ")[0].split())
    if isinstance(error, (AssertionError, pytest.skip.Exception, pytest.fail.Exception)):
        return text or type(error).__name__
    return f"{class_name(error)}: {text}"
