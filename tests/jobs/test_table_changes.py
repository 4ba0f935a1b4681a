from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import lance
import pyarrow as pa
import pytest
from lance_namespace.errors import (
    InvalidInputError,
    LanceNamespaceError,
    NamespaceAlreadyExistsError,
    NamespaceNotEmptyError,
    NamespaceNotFoundError,
    TableAlreadyExistsError,
    TableBranchAlreadyExistsError,
    TableBranchNotFoundError,
    TableColumnNotFoundError,
    TableIndexNotFoundError,
    TableNotFoundError,
    TableSchemaValidationError,
    TableTagAlreadyExistsError,
    TableTagNotFoundError,
    TableVersionNotFoundError,
    UnsupportedOperationError,
)

import lancehouse
from lancehouse.connection import Connection
from lancehouse.jobs import TableJobs
from lancehouse.schema.spark import parse_schema
from tests.catalogs import Shared, open_catalog
from tests.clients.managed import managed_by_lancehouse

ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int32()), "word": ["a", "b", "c"], "x": [0.5, 1.5, 2.5]})
RENAMES = ("managed", "lakekeeper")
CASCADES = ("unity",)
NO_SERVER = cast("Shared", None)
"""The emulators are started for one test, and need no server that all share."""


@dataclass(frozen=True)
class Place:
    """A catalog, and the levels above the tables of a test."""

    kind: str
    jobs: TableJobs
    namespace: tuple[str, ...]

    def id(self, name: str) -> list[str]:
        return [*self.namespace, name]

    def write(self, name: str = "t", rows: pa.Table = ROWS) -> list[str]:
        """Create a table with rows, or append to it."""
        ref = self.jobs._address(self.id(name)).to_ref()
        mode = "append" if ref.exists() else "create"
        how: dict[str, Any] = {"mode": mode, "enable_stable_row_ids": True}
        lance.write_dataset(rows, namespace_client=ref.namespace, table_id=list(ref.id), **how)
        return self.id(name)

    def open(self, name: str = "t") -> lance.LanceDataset:
        return self.jobs._address(self.id(name)).to_ref().open()


@pytest.fixture(params=["dir", "managed", "polaris", "unity", "lakekeeper"])
def any_place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param in ("dir", "managed"):
        yield place_of(request, request.param)
        return
    with open_catalog(request.param, NO_SERVER, tmp_path) as catalog:
        catalog.create_namespace()
        yield Place(request.param, TableJobs(Connection(catalog.impl, catalog.properties)), tuple(catalog.levels))


@pytest.fixture(params=["dir", "managed"])
def place(request: pytest.FixtureRequest) -> Place:
    return place_of(request, request.param)


@pytest.fixture
def folder(request: pytest.FixtureRequest) -> Place:
    return place_of(request, "dir")


def place_of(request: pytest.FixtureRequest, kind: str) -> Place:
    if kind == "dir":
        return Place(kind, TableJobs(Connection("dir", {"root": str(request.getfixturevalue("tmp_path"))})), ())
    catalog = managed_by_lancehouse(request.getfixturevalue("lancehouse_server"))
    return Place(kind, TableJobs(Connection(catalog.impl, catalog.properties)), tuple(catalog.levels))


def test_all_verbs_on_every_catalog(any_place: Place) -> None:
    jobs, table = any_place.jobs, any_place.id("t")
    text = ".".join(table)
    assert not jobs.exists(table)
    assert jobs.create_table(table, "id int NOT NULL, word string", properties={"owner": "me"}, comment="words") == 2
    assert jobs.exists(text)
    assert jobs.tables(any_place.namespace) == [text]
    assert jobs.schema(table) == parse_schema("id int NOT NULL, word string")
    assert jobs.create_table(table, "other int", exist_ok=True) == 2
    with pytest.raises(TableAlreadyExistsError, match="exists; drop it first"):
        jobs.create_table(table, "id int")

    assert {**jobs.properties(table), "owner": "me", "comment": "words"} == jobs.properties(table)
    jobs.set_properties(table, {"a": "1", "b": "2"})
    jobs.unset_properties(table, ["a", "c"])
    assert [jobs.properties(table).get(key) for key in ("a", "b")] == [None, "2"]

    any_place.write(rows=pa.table({"id": pa.array([7], pa.int32()), "word": ["a"]}, jobs.schema(table)))
    jobs.add_columns(table, pa.schema([("n", pa.int16())]))
    jobs.alter_columns(table, {"n": {"type": "bigint"}, "id": {"nullable": True}})
    jobs.rename_columns(table, {"word": "text"})
    before = jobs.tag(table, "best")
    jobs.drop_columns(table, ["text"])
    assert any_place.open().to_table().to_pylist() == [{"id": 7, "n": None}]
    assert jobs.schema(table) == pa.schema([("id", pa.int32()), ("n", pa.int64())])
    assert jobs.schema(table, tag="best").names == jobs.schema(table, version=before).names == ["id", "text", "n"]

    assert jobs.restore(table, tag="best") == any_place.open().version == before + 2
    assert jobs.restore(table, version=before + 2) == before + 2, "it is the current one"
    assert any_place.open().to_table().to_pylist() == [{"id": 7, "text": "a", "n": None}]
    with pytest.raises(TableTagAlreadyExistsError):
        jobs.tag(table, "best", 1)
    assert jobs.tag(table, "best", 1, replace=True) == 1
    assert jobs.tag(table, "new", replace=True) == before + 2
    jobs.untag(table, "best")
    with pytest.raises(TableTagNotFoundError):
        jobs.untag(table, "best")
    jobs.branch(table, "dev", version=2)
    assert [*any_place.open().branches.list()] == ["dev"]
    with pytest.raises(TableBranchAlreadyExistsError):
        jobs.branch(table, "dev")
    jobs.drop_branch(table, "dev")
    with pytest.raises(TableBranchNotFoundError):
        jobs.drop_branch(table, "dev")

    if any_place.kind in RENAMES:
        jobs.rename(table, "other")
        assert jobs.tables(any_place.namespace) == [".".join(any_place.id("other"))]
        jobs.rename(any_place.id("other"), table)
    else:
        with pytest.raises(UnsupportedOperationError, match="rename"):
            jobs.rename(table, "other")
    jobs.drop(table)
    assert not jobs.exists(table)
    assert jobs.tables(any_place.namespace) == []
    with pytest.raises(TableNotFoundError):
        jobs.drop(table)
    jobs.drop(table, missing_ok=True)


def test_namespaces(any_place: Place) -> None:
    jobs, above = any_place.jobs, any_place.namespace
    if any_place.kind == "unity":
        above = above[:-1]
    name = ".".join([*above, "lower"])
    jobs.create_namespace(name, {"owner": "me"} if any_place.kind != "dir" else None)
    assert name in jobs.namespaces(above)
    jobs.create_namespace(name, exist_ok=True)
    with pytest.raises(NamespaceAlreadyExistsError):
        jobs.create_namespace(name)
    jobs.create_table(f"{name}.t", "id int")
    with pytest.raises(NamespaceNotEmptyError):
        jobs.drop_namespace(name)
    if any_place.kind in CASCADES:
        jobs.drop_namespace(name, cascade=True)
    else:
        with pytest.raises(UnsupportedOperationError, match="drops empty namespaces only"):
            jobs.drop_namespace(name, cascade=True)
        assert jobs.exists(f"{name}.t")
        jobs.drop(f"{name}.t")
        jobs.drop_namespace(name)
    assert name not in jobs.namespaces(above)
    assert not jobs.exists(f"{name}.t"), "neither the namespace nor the table is there"
    with pytest.raises(NamespaceNotFoundError):
        jobs.drop_namespace(name)


def test_names_with_dots_are_quoted(folder: Place) -> None:
    folder.jobs.create_namespace("`a.b`")
    folder.jobs.create_table("`a.b`.t", "id int")
    assert folder.jobs.namespaces() == ["`a.b`"]
    assert folder.jobs.tables("`a.b`") == ["`a.b`.t"]
    assert folder.jobs.exists(folder.jobs.tables("`a.b`")[0])


def test_a_table_written_past_the_catalog_is_not_silently_kept(folder: Place, tmp_path: Path) -> None:
    lance.write_dataset(ROWS, tmp_path / "past.lance")
    assert folder.jobs.exists("past")
    with pytest.raises(TableNotFoundError, match="written without the catalog"):
        folder.jobs.drop("past", missing_ok=True)


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ("id void", "column id has the type null"),
        ("", "schema must be columns"),
        (pa.schema([]), "schema must be columns"),
        ("id nonsense", "no type for Spark nonsense"),
        (pa.schema([("a.b", pa.int32())]), "no column with a dot"),
    ],
)
def test_columns_that_cannot_be(folder: Place, schema: Any, says: str) -> None:
    with pytest.raises((InvalidInputError, TableSchemaValidationError), match=says):
        folder.jobs.create_table("t", schema)
    assert folder.jobs.tables() == [], "nothing was declared"


@pytest.mark.parametrize("name", ["../evil", "..%2Fevil", "a/b", "a\\b", "..", "%252e%252e%252fevil"])
def test_a_folder_keeps_its_tables(folder: Place, name: str) -> None:
    """Lance's `dir` takes such names, and writes beside its root."""
    with pytest.raises(InvalidInputError, match="cannot be a name in a catalog of folders"):
        folder.jobs.create_table([name], pa.schema([("id", pa.int64())]))
    assert folder.jobs.tables() == []


Change = Callable[[TableJobs, list[str]], Any]

REFUSED: list[tuple[Change, type[LanceNamespaceError], str]] = [
    (lambda jobs, t: jobs.drop_columns(t, "nope"), TableColumnNotFoundError, "has no column nope; it has id, word, x"),
    (lambda jobs, t: jobs.drop_columns(t, ["id", "word", "x"]), InvalidInputError, "Cannot drop all columns"),
    (lambda jobs, t: jobs.drop_columns(t, []), InvalidInputError, "name at least one"),
    (lambda jobs, t: jobs.rename_columns(t, {"nope": "a"}), TableColumnNotFoundError, "has no column nope"),
    (lambda jobs, t: jobs.rename_columns(t, {"id": "word"}), TableSchemaValidationError, "Duplicate field name"),
    (lambda jobs, t: jobs.rename_columns(t, {"id": "a.b"}), TableSchemaValidationError, r"such as a\.b"),
    (lambda jobs, t: jobs.rename_columns(t, {"id": "_lancehouse_x"}), InvalidInputError, "are taken"),
    (lambda jobs, t: jobs.rename_columns(t, {"id": "_rowid"}), InvalidInputError, "_rowid is a column that"),
    (lambda jobs, t: jobs.add_columns(t, {"_rowaddr": "1"}), InvalidInputError, "_rowaddr is a column that"),
    (lambda jobs, t: jobs.add_columns(t, {"a\0b": "id"}), InvalidInputError, "has no null character"),
    (lambda jobs, t: jobs.add_columns(t, {"_lancehouse_x": "id"}), InvalidInputError, "are taken"),
    (lambda jobs, t: jobs.define_columns(t, {"": "id"}), TableSchemaValidationError, "column 1 has no name"),
    (lambda jobs, t: jobs.define_columns(t, {"a`b": "id"}), TableSchemaValidationError, "backquote"),
    (lambda jobs, t: jobs.define_columns(t, {"a\0b": "id"}), InvalidInputError, "has no null character"),
    (
        lambda jobs, t: jobs.define_columns(t, {"_row_created_at_version": "id"}),
        InvalidInputError,
        "_row_created_at_version is a column that",
    ),
    (
        lambda jobs, t: jobs.create_materialized_view("v", t, columns={"_rowid": "id"}),
        InvalidInputError,
        "_rowid is a column that",
    ),
    (
        lambda jobs, t: jobs.create_materialized_view("v", t, columns={"_lancehouse_source": "id"}),
        InvalidInputError,
        "each name once",
    ),
    (
        lambda jobs, t: jobs.create_materialized_view("v", t, columns={"a": "id LIMIT 1"}),
        InvalidInputError,
        "found: LIMIT",
    ),
    (
        lambda jobs, t: jobs.create_table("new", pa.schema([("_rowid", pa.int8())])),
        InvalidInputError,
        "_rowid",
    ),
    (lambda jobs, t: jobs.alter_columns(t, {"nope": {"nullable": True}}), TableColumnNotFoundError, "no column nope"),
    (lambda jobs, t: jobs.alter_columns(t, {"id": {"type": "smallint"}}), TableSchemaValidationError, "int32 and can"),
    (lambda jobs, t: jobs.alter_columns(t, {"x": {"type": pa.float32()}}), TableSchemaValidationError, "only wider"),
    (lambda jobs, t: jobs.alter_columns(t, {"id": {"type": "string"}}), TableSchemaValidationError, "cannot become"),
    (lambda jobs, t: jobs.alter_columns(t, {"id": {}}), InvalidInputError, "changes: id must be"),
    (lambda jobs, t: jobs.alter_columns(t, {"id": {"typ": "int"}}), InvalidInputError, "changes: id must be"),
    (lambda jobs, t: jobs.add_columns(t, pa.schema([("WORD", pa.int8())])), TableSchemaValidationError, "word already"),
    (
        lambda jobs, t: jobs.add_columns(t, pa.schema([pa.field("n", pa.int8(), nullable=False)])),
        TableSchemaValidationError,
        "it must be nullable",
    ),
    (lambda jobs, t: jobs.set_properties(t, {"managed_by": "impl"}), InvalidInputError, "the catalog's entry"),
    (lambda jobs, t: jobs.set_properties(t, {"storage.key": "s"}), InvalidInputError, "the catalog's entry"),
    (lambda jobs, t: jobs.restore(t), InvalidInputError, "needs a version, a tag or a time"),
    (lambda jobs, t: jobs.restore(t, version=99), TableVersionNotFoundError, "has no version 99; the latest is 1$"),
    (lambda jobs, t: jobs.tag(t, "new", 99), TableVersionNotFoundError, "has no version 99; the latest is 1$"),
    (lambda jobs, t: jobs.branch(t, "../up"), InvalidInputError, "branch|Branch"),
]


@pytest.mark.parametrize(("change", "kind", "says"), REFUSED, ids=[says[:30] for _, _, says in REFUSED])
def test_what_is_refused_changes_nothing(
    folder: Place, change: Change, kind: type[LanceNamespaceError], says: str
) -> None:
    table = folder.write()
    with pytest.raises(kind, match=says):
        change(folder.jobs, table)
    assert folder.open().version == 1


def test_fields_of_structs(folder: Place) -> None:
    struct = pa.array([{"a": 1, "b": "x"}], pa.struct([("a", pa.int32()), ("b", pa.string())]))
    table = folder.write(rows=pa.table({"id": [1], "s": struct}))
    folder.jobs.alter_columns(table, {"s.a": {"type": pa.int64()}})
    folder.jobs.rename_columns(table, {"s.a": "c"})
    folder.jobs.drop_columns(table, "s.b")
    assert folder.open().to_table().to_pylist() == [{"id": 1, "s": {"c": 1}}]


def test_indices_follow_their_columns(folder: Place) -> None:
    table = folder.write()
    folder.jobs.create_index(table, "id", "BTREE")
    folder.jobs.rename_columns(table, {"id": "key"})
    assert [index.field_names for index in folder.open().describe_indices()] == [["key"]]
    with pytest.raises(TableSchemaValidationError, match=r"they have 1 index\(es\) attached"):
        folder.jobs.alter_columns(table, {"key": {"type": "bigint"}})
    assert [index["name"] for index in folder.jobs.indices(table)] == ["id_idx"]
    folder.jobs.drop_index(table, "id_idx")
    with pytest.raises(TableIndexNotFoundError):
        folder.jobs.drop_index(table, "id_idx")
    folder.jobs.alter_columns(table, {"key": {"type": "bigint"}})
    folder.jobs.create_index(table, "key", "BTREE")
    folder.jobs.drop_columns(table, "key")
    assert folder.open().describe_indices() == []


@lancehouse.column(version="1", inputs=["word"], returns=pa.int32())
def lengths(words: Any) -> Any:
    if "c" in words.to_pylist():
        raise ValueError("c is wrong")
    return [len(word) for word in words.to_pylist()]


def test_a_computed_column_goes_with_all_that_is_kept_of_it(place: Place) -> None:
    table, jobs = place.write(), place.jobs
    jobs.add_columns(table, {"length": lengths}, on_error="null")
    jobs.define_columns(table, {"twice": "x * 2"})
    assert "_lancehouse_length" in place.open().schema.names
    assert jobs.schema(table).names == ["id", "word", "x", "length", "twice"], "companions are not shown"
    for column, dependents in [("word", "length"), ("x", "twice")]:
        with pytest.raises(InvalidInputError, match=f": {dependents} is computed from what would be dropped"):
            jobs.drop_columns(table, column)
    with pytest.raises(InvalidInputError, match="drop that column"):
        jobs.drop_columns(table, "_lancehouse_length")
    with pytest.raises(InvalidInputError, match="length is computed; define it by a function"):
        jobs.alter_columns(table, {"length": {"type": "bigint"}})
    assert jobs.rename_columns(table, {"word": "text", "length": "size"})
    with pytest.raises(InvalidInputError, match="the SQL of twice names what would be renamed"):
        jobs.rename_columns(table, {"x": "y"})
    assert [row["column"] for row in jobs.computed_columns(table).to_pylist()] == ["size", "twice"]
    assert jobs.computed_columns(table)["inputs"].to_pylist()[0] == ["text"]
    [error] = jobs.column_errors(table, "size", "text").to_pylist()
    assert (error["text"], error["exception"]) == ("c", "ValueError: c is wrong")
    jobs.drop_columns(table, ["size", "twice", "text"])
    assert place.open().schema.names == ["id", "x"]
    jobs.rename_columns(table, {"x": "y"})
    assert not list(Path(str(place.open().uri).removeprefix("file://")).glob("_lancehouse/errors/*"))


def test_changes_of_columns_by_several_at_once(place: Place) -> None:
    table = place.write()
    changes: list[Callable[[], Any]] = [
        lambda: place.jobs.rename_columns(table, {"word": "text"}),
        lambda: place.jobs.drop_columns(table, "x"),
        lambda: place.jobs.add_columns(table, pa.schema([("n", pa.int64())])),
        lambda: place.jobs.alter_columns(table, {"id": {"type": "bigint"}}),
        lambda: place.jobs.set_properties(table, {"a": "1"}),
    ]
    with ThreadPoolExecutor(len(changes)) as pool:
        versions = {run.result() for run in [pool.submit(change) for change in changes]}
    assert place.jobs.schema(table) == parse_schema("id bigint, text string, n bigint")
    assert place.open().count_rows() == 3
    assert versions <= set(range(2, 7))


def test_a_restore_that_somebody_overtakes(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    from lance_namespace.errors import ConcurrentModificationError

    from lancehouse.lake import commits

    table = place.write()
    place.write()
    restore = commits.restore

    def restore_late(*arguments: Any) -> int:
        place.write()
        return restore(*arguments)

    monkeypatch.setattr(commits, "restore", restore_late)
    with pytest.raises(ConcurrentModificationError, match="would undo that"):
        place.jobs.restore(table, version=1)
    assert place.open().count_rows() == 9


def test_secrets_of_entries_are_not_shown(tmp_path: Path) -> None:
    with open_catalog("polaris", NO_SERVER, tmp_path) as catalog:
        catalog.create_namespace()
        jobs, table = TableJobs(Connection(catalog.impl, catalog.properties)), catalog.id("t")
        jobs.create_table(table, "id int", properties={"storage.secret_access_key": "hush-hush", "owner": "me"})
        shown = jobs.properties(table)
        assert shown["owner"] == "me"
        assert "hush-hush" not in repr(shown)
        assert "storage.secret_access_key" not in catalog.open("t").config()


def test_a_named_catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "catalogs.yaml"
    file.write_text(f"catalogs:\n  prod:\n    impl: dir\n    parent: db\n    root: {tmp_path / 'root'}\n")
    monkeypatch.setenv("LANCEHOUSE_CONFIG", str(file))
    whole = TableJobs(Connection("dir", {"root": str(tmp_path / "root")}))
    whole.create_namespace("db")
    jobs = TableJobs.named("prod")
    jobs.create_table("docs", "id int")
    assert (jobs.tables(), whole.tables("db"), jobs.exists("docs")) == (["docs"], ["db.docs"], True)
    jobs.create_namespace("lower")
    assert (jobs.namespaces(), whole.namespaces("db")) == (["lower"], ["db.lower"])
    assert list(jobs.compact(namespace="")) == ["db.docs"]
    with pytest.raises(InvalidInputError, match="there is no catalog 'prd'; did you mean prod"):
        TableJobs.named("prd")
