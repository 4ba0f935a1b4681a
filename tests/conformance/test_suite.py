"""The suite on what is right, on pylance's own directory namespace, on what is permitted and on what is broken."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from lance_namespace import ListNamespacesRequest, connect
from lance_namespace.errors import InvalidInputError, NamespaceNotFoundError

from lancehouse.conformance.checks import AREAS
from lancehouse.conformance.results import CheckOutcome, ConformanceReport
from lancehouse.conformance.runner import run
from lancehouse.conformance.target import ConformanceTarget
from tests.conformance import broken, model, permitted

ON_ROWS = ("rows", "indices", "versions", "columns")
ON_THE_CATALOG = tuple(area for area in AREAS if area not in ON_ROWS)

DIR_FAILS = {
    "namespaces.list_missing": "an empty list",
    "tables.list_missing": "an empty list",
    "namespaces.levels": "an empty level is a name",
    "tables.levels": "an empty level is a name",
    **dict.fromkeys(
        ("namespaces.dropped_is_forgotten", "tables.declare_in_missing", "rows.create_in_missing"),
        "tables can be made where there is no namespace",
    ),
    **dict.fromkeys(
        (
            *("modes.exist_ok", "modes.overwrite", "modes.overwrite_non_empty", "modes.spelling_create[*]"),
            *("modes.drop_skip", "modes.spelling_drop[*]", "modes.cascade"),
            *("modes.bogus_create", "modes.bogus_drop", "modes.bogus_behavior"),
        ),
        "modes and behaviors of namespaces are not read",
    ),
    "names.table[a dollar]": "$ joins levels",
    "names.namespace[a dollar]": "$ joins levels",
    "names.namespace[an apostrophe]": "error 18 from a SQL statement",
    "names.table[255 characters]": "error 18 from the file system",
    "names.namespace[255 characters]": "error 18 from the file system",
    "entries.register_overwrite": "the mode of RegisterTable is not read",
    "entries.rename*": "a NotImplementedError, no UnsupportedOperationError",
    "entries.list_all": "tables of child namespaces are not there",
    "details.detailed_stats": "stats is null",
    "details.describe_version": "a RuntimeError",
    "versions.describe": "it takes a dict, no DescribeTableVersionRequest",
    "versions.describe_missing": "it takes a dict, no DescribeTableVersionRequest",
    "versions.delete": "it takes a dict, no BatchDeleteTableVersionsRequest",
    "versions.restore_missing": "a RuntimeError",
    "columns.drop_missing": "error 18",
    "columns.rename_missing": "error 18",
}
"""What pylance 14.0.2 does not keep of the interface, and how."""


def check(
    impl: type[model.ModelNamespace], root: Path, *, parent: tuple[str, ...] = (), **options: object
) -> ConformanceReport:
    properties = {"root": str(root), "endpoint": "http://localhost:1", "token": "a-secret-token"}
    path = f"{impl.__module__}.{impl.__qualname__}"
    return run(ConformanceTarget(path, properties, parent, **options))  # type: ignore[arg-type]


def fails(report: ConformanceReport) -> set[str]:
    assert report.trouble == []
    return {result.check for result in report.with_outcome(CheckOutcome.FAILS)}


def assert_matched(found: set[str], patterns: set[str]) -> None:
    """Every check that failed was expected to, and every expectation came true."""
    matching = {pattern: {name for name in found if matches(name, pattern)} for pattern in patterns}
    assert found - set().union(*matching.values()) == set()
    assert {pattern for pattern, names in matching.items() if not names} == set()


def matches(name: str, pattern: str) -> bool:
    return fnmatchcase(name, pattern.replace("[", "[[]"))


def test_model_holds(tmp_path: Path) -> None:
    report = check(model.ModelNamespace, tmp_path)
    assert fails(report) == set()
    assert report.ok
    assert {result.area for result in report.results} == set(AREAS)
    assert {result.area for result in report.with_outcome(CheckOutcome.UNSUPPORTED)} == {*ON_ROWS, "details", "modes"}
    assert model.STORES[str(tmp_path)] == model.ModelStore(model.STORES[str(tmp_path)].lock)
    assert list(tmp_path.iterdir()) == []


def test_long_lists(tmp_path: Path) -> None:
    report = check(model.ModelNamespace, tmp_path, entries=205, areas=("lists",))
    assert report.ok
    assert "205 tables" in {result.seen for result in report.results}


def test_directory(tmp_path: Path) -> None:
    report = run(ConformanceTarget("dir", {"root": str(tmp_path)}))
    assert_matched(fails(report), set(DIR_FAILS))
    assert {result.check for result in report.with_outcome(CheckOutcome.UNSUPPORTED)} == {
        "connection.pickle",
        "columns.field_metadata",
    }
    namespace = connect("dir", {"root": str(tmp_path)})
    assert namespace.list_namespaces(ListNamespacesRequest(id=[])).namespaces == []
    assert [folder.name for folder in tmp_path.iterdir()] == ["__manifest"]


@pytest.mark.parametrize("impl", broken.FOUND_BY, ids=lambda impl: impl.__name__)
def test_broken(tmp_path: Path, impl: type[model.ModelNamespace]) -> None:
    report = check(impl, tmp_path, areas=ON_THE_CATALOG)
    assert_matched(fails(report), broken.FOUND_BY[impl])
    assert not report.ok
    assert list(tmp_path.iterdir()) == []
    if "cleanup.nothing_left" not in broken.FOUND_BY[impl]:
        assert model.STORES[str(tmp_path)].namespaces == {}
        assert model.STORES[str(tmp_path)].tables == {}


@pytest.mark.parametrize("impl", broken.FOUND_IN_ROWS, ids=lambda impl: impl.__name__)
def test_broken_rows(tmp_path: Path, impl: type[object]) -> None:
    expected = broken.FOUND_IN_ROWS[impl]
    areas = tuple({name.partition(".")[0] for name in expected})
    target = ConformanceTarget(f"{impl.__module__}.{impl.__qualname__}", {"root": str(tmp_path)}, areas=areas)
    known = {name for name in DIR_FAILS if name.startswith(areas)}
    assert_matched(fails(run(target)), expected | known)


@pytest.mark.parametrize("impl", permitted.PERMITTED, ids=lambda impl: impl.__name__)
def test_permitted(tmp_path: Path, impl: type[model.ModelNamespace]) -> None:
    model.STORES[str(tmp_path)] = model.ModelStore(namespaces={("cat",): {}})
    report = check(impl, tmp_path, parent=("cat",), areas=ON_THE_CATALOG)
    assert fails(report) == set()
    assert report.ok
    seen = {result.check: result.seen for result in report.results}
    for name, words in permitted.PERMITTED[impl].items():
        assert seen[name].startswith(words)
    assert list(tmp_path.iterdir()) == []


def test_below_a_parent(tmp_path: Path) -> None:
    store = model.STORES.setdefault(str(tmp_path), model.ModelStore())
    store.namespaces[("cat.alog",)] = {}
    store.namespaces[("cat.alog", "theirs")] = {"mine": "no"}
    report = check(model.ModelNamespace, tmp_path, parent=("cat.alog",), areas=ON_THE_CATALOG)
    assert report.ok
    assert store.namespaces == {("cat.alog",): {}, ("cat.alog", "theirs"): {"mine": "no"}}


def test_known_failures_do_not_count(tmp_path: Path) -> None:
    known = frozenset({"lists.tables_sorted", "lists.pages_in_order", "lists.tables_complete"})
    report = check(broken.Unsorted, tmp_path, areas=("lists",), known=known)
    assert report.ok
    assert {result.check for result in report.with_outcome(CheckOutcome.KNOWN)} == known - {"lists.tables_complete"}


def test_unknown_names_of_checks_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InvalidInputError):
        check(model.ModelNamespace, tmp_path, known=frozenset({"lists.nonsense"}))
    assert "there is no check called lists.nonsense" in capsys.readouterr().err


def test_secrets_are_in_no_result(tmp_path: Path) -> None:
    report = check(broken.TellsSecret, tmp_path, areas=("tables",))
    assert "***" in str(report.to_rows())
    assert "a-secret-token" not in str(report.to_rows())


def test_missing_parent_is_said_once(tmp_path: Path) -> None:
    with pytest.raises(NamespaceNotFoundError, match="nowhere"):
        check(model.ModelNamespace, tmp_path, parent=("nowhere",))
