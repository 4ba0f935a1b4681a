"""Views' metadata do what Iceberg's own library does, and whatever comes in."""

from __future__ import annotations

import copy
from contextlib import suppress
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from lance_namespace.errors import ConcurrentModificationError, InvalidInputError, LanceNamespaceError

from lancehouse.catalog.errors import IllegalArgumentError, ValidationError
from lancehouse.catalog.iceberg import views
from tests.catalog.iceberg.shapes import CREATE_VIEW, SCHEMA, UUID, VIEW_UPDATES, VIEW_VERSION, spoilt

Json = dict[str, Any]
CURRENT = {"action": "set-current-view-version", "view-version-id": -1}


def view(*updates: Json) -> Json:
    return views.apply_updates(views.new_view(CREATE_VIEW, "/v"), [], list(updates))


def version(sql: str = "select 1", dialect: str = "spark", /, **changes: Any) -> Json:
    representations = [{"type": "sql", "sql": sql, "dialect": dialect}]
    whole = {**VIEW_VERSION, "schema-id": 0, "representations": representations, **changes}
    return {"action": "add-view-version", "view-version": whole}


def test_new() -> None:
    md = views.new_view(CREATE_VIEW, "/v")
    assert (md["location"], md["current-version-id"], md["properties"]) == ("/v", 1, {"a": "b"})
    assert md["versions"] == [{**VIEW_VERSION, "schema-id": 0}]
    assert md["version-log"] == [{"timestamp-ms": VIEW_VERSION["timestamp-ms"], "version-id": 1}]
    assert md["schemas"][0]["schema-id"] == 0
    assert views.parse(orjson.dumps(md)) == md


def test_versions_are_added_once() -> None:
    md = view(version("select 2"), CURRENT)
    assert (md["current-version-id"], len(md["versions"]), len(md["version-log"])) == (2, 2, 2)
    back = views.apply_updates(md, [], [version("select 1", **{"version-id": 9}), CURRENT])
    assert (back["current-version-id"], len(back["versions"]), len(back["version-log"])) == (1, 2, 3)
    assert views.apply_updates(back, [], [version("select 1"), CURRENT]) is back


def test_schemas_are_added_once() -> None:
    other = {**SCHEMA, "identifier-field-ids": []}
    md = view(
        {"action": "add-schema", "schema": SCHEMA},
        {"action": "add-schema", "schema": other},
        version(**{"schema-id": -1}),
        CURRENT,
    )
    assert [schema["schema-id"] for schema in md["schemas"]] == [0, 1]
    assert md["versions"][-1]["schema-id"] == 1


def test_old_versions_are_forgotten() -> None:
    md = view({"action": "set-properties", "updates": {"version.history.num-entries": "2"}})
    for number in range(4):
        md = views.apply_updates(md, [], [version(f"select {number}0"), CURRENT])
    assert [item["version-id"] for item in md["versions"]] == [4, 5]
    assert [item["version-id"] for item in md["version-log"]] == [4, 5]


def test_properties_and_location() -> None:
    md = view(*VIEW_UPDATES[2:5])
    assert md["location"] == "/v2"
    assert md["properties"] == {"version.history.num-entries": "3"}
    assert views.next_metadata_location(md, "/v/metadata/00002-x.metadata.json").startswith("/v2/metadata/00003-")


def test_dialects_are_not_lost() -> None:
    lost = [version("select 2", "trino"), CURRENT]
    with pytest.raises(IllegalArgumentError, match=r"loss of view dialects.*\n.*\[spark\]\n.*\[trino\]"):
        view(*lost)
    allowed = {"action": "set-properties", "updates": {"replace.drop-dialect.allowed": "true"}}
    assert view(allowed, *lost)["current-version-id"] == 2


def test_a_commit_changes_no_other_state() -> None:
    md = view()
    before = copy.deepcopy(md)
    views.apply_updates(md, [], VIEW_UPDATES)
    assert md == before


def test_requirements() -> None:
    md = view()
    views.apply_updates(md, [{"type": "assert-view-uuid", "uuid": md["view-uuid"].upper()}], [])
    with pytest.raises(ConcurrentModificationError, match="view UUID does not match: expected"):
        views.apply_updates(md, [{"type": "assert-view-uuid", "uuid": UUID}], [])
    with pytest.raises(InvalidInputError, match="requirement 'assert-create' is not supported"):
        views.apply_updates(md, [{"type": "assert-create"}], [])


@pytest.mark.parametrize(
    ("update", "kind", "words"),
    [
        ({"action": "assign-uuid", "uuid": UUID}, IllegalArgumentError, "Cannot reassign uuid"),
        (
            {"action": "upgrade-format-version", "format-version": 0},
            IllegalArgumentError,
            "Cannot downgrade v1 view to v0",
        ),
        (
            {"action": "upgrade-format-version", "format-version": 2},
            IllegalArgumentError,
            "Unsupported format version: 2",
        ),
        (CURRENT, ValidationError, "no current version id has been set"),
        ({**CURRENT, "view-version-id": 7}, IllegalArgumentError, "unknown version: 7"),
        (version("select 3", **{"schema-id": 7}), IllegalArgumentError, "unknown schema: 7"),
        (
            version(representations=VIEW_VERSION["representations"] * 2),
            IllegalArgumentError,
            "multiple queries for dialect spark",
        ),
        (
            version(representations=[{"type": "plan"}]),
            IllegalArgumentError,
            "unsupported view representations: .'plan'",
        ),
        ({"action": "add-spec", "spec": {}}, InvalidInputError, "update 'add-spec' is not supported"),
        (
            {"action": "set-properties", "updates": {"version.history.num-entries": "0"}},
            IllegalArgumentError,
            "must be positive",
        ),
    ],
)
def test_updates_that_cannot_be(update: Json, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        view(update)


def test_no_view_without_a_query() -> None:
    with pytest.raises(IllegalArgumentError, match="without specifying a query"):
        views.new_view({**CREATE_VIEW, "view-version": {**VIEW_VERSION, "representations": []}}, "/v")


@pytest.mark.parametrize("raw", [b"", b"[]", b"{}", orjson.dumps({"format-version": 2})])
def test_files_that_are_no_view(raw: bytes) -> None:
    with pytest.raises(InvalidInputError):
        views.parse(raw)


QUIET = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@QUIET
@given(spoilt(CREATE_VIEW), spoilt(VIEW_UPDATES), spoilt([{"type": "assert-view-uuid", "uuid": UUID}]))
@example(CREATE_VIEW, VIEW_UPDATES, [])
def test_views_take_anything(request: Any, updates: Any, requirements: Any) -> None:
    requirement: Any
    for requirement in ([], requirements):
        try:
            md = views.new_view(request, "/v")
        except LanceNamespaceError:
            md = view()
        with suppress(LanceNamespaceError):
            md = views.apply_updates(md, requirement, updates)
        assert views.parse(orjson.dumps(md)) == md


@QUIET
@given(st.data())
def test_files_hold_anything(data: st.DataObject) -> None:
    spoiled = data.draw(spoilt(view(version("select 2"), CURRENT)))
    try:
        raw = orjson.dumps(spoiled)
    except TypeError:
        return  # numbers that no JSON file of ours can hold
    with suppress(LanceNamespaceError):
        views.apply_updates(views.parse(raw), [], VIEW_UPDATES)
