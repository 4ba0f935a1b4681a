from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from lance_namespace.errors import InvalidInputError

import lancehouse
from lancehouse import named_catalogs

ROWS = pa.table({"id": [1, 2, 3]})


@pytest.fixture(autouse=True)
def catalogs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two catalogs on one folder, one of them with a parent."""
    file = tmp_path / "lancehouse.yaml"
    file.write_text(
        f"default: lab\ncatalogs:\n  lab: {{impl: dir, root: '{tmp_path}/lab'}}\n"
        f"  prod: {{impl: dir, root: '{tmp_path}/lab', parent: teams}}\n"
    )
    monkeypatch.setenv(named_catalogs.VARIABLE, str(file))
    return file


def test_rows_are_written_and_opened_by_name() -> None:
    assert lancehouse.write(ROWS, "lab.docs").version == 1
    assert lancehouse.write(ROWS, "lab.docs", mode="append").count_rows() == 6
    assert lancehouse.open("lab.docs").count_rows() == 6
    assert lancehouse.open("lab.docs", version=1).count_rows() == 3


def test_a_version_is_opened_by_its_number_its_tag_or_its_time() -> None:
    docs = lancehouse.write(ROWS, "lab.docs")
    docs.tags.create("first", 1)
    written_at = docs.versions()[0]["timestamp"]
    lancehouse.write(ROWS, "lab.docs", mode="append")
    for at in ({"version": 1}, {"version": "first"}, {"asof": written_at + timedelta(microseconds=1)}):
        assert lancehouse.open("lab.docs", **at).count_rows() == 3


def test_the_parent_of_a_catalog_comes_first() -> None:
    lancehouse.write(ROWS, "lab.docs")
    with pytest.raises(Exception, match="teams"):
        lancehouse.open("prod.docs")


def test_other_packages_are_told_where_a_table_is(tmp_path: Path) -> None:
    """By the arguments that connect, with the parent of the catalog in the id."""
    assert lancehouse.locate("prod.db.docs") == {
        "namespace_impl": "dir",
        "namespace_properties": {"root": f"{tmp_path}/lab"},
        "table_id": ["teams", "db", "docs"],
    }


def test_a_table_that_exists_is_not_created_again() -> None:
    lancehouse.write(ROWS, "lab.docs")
    with pytest.raises(Exception, match="exist"):
        lancehouse.write(ROWS, "lab.docs")
    assert lancehouse.open("lab.docs").count_rows() == 3


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("", "names no table"),
        ("lab", "names no table"),
        ("lb.docs", "did you mean 'lab'|lab"),
        ("lab..docs", "is no id"),
        ("lab.", "is no id"),
    ],
)
def test_a_wrong_name_says_what_is_wrong(name: str, words: str) -> None:
    for look in (lancehouse.open, lancehouse.locate):
        with pytest.raises(InvalidInputError, match=words):
            look(name)


def test_a_catalog_is_connected_by_its_name_or_as_the_default(catalogs: Path) -> None:
    assert lancehouse.connect("lab").namespace_id() == lancehouse.connect().namespace_id()
    catalogs.write_text(
        "catalogs:\n  lab: {impl: iceberg, endpoint: 'http://127.0.0.1:1/iceberg', auth_token: s3cret}\n"
    )
    with pytest.raises(InvalidInputError, match="name a catalog"):
        lancehouse.connect()
    assert repr(lancehouse.connect("lab")) == "IcebergNamespace(endpoint='http://127.0.0.1:1/iceberg')"
