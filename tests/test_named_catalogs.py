from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest
from lance_namespace.errors import InvalidInputError

from lancehouse import named_catalogs

SECRET = "s3cr3t"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with nothing in it, and no variables."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("LANCEHOUSE_CONFIG", raising=False)
    return tmp_path


def write_config(home: Path, text: str) -> None:
    (home / ".lancehouse.yaml").write_text(dedent(text))


def test_a_file(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_config(
        home,
        """\
        default: prod
        catalogs:
          prod:
            parent: main.`a.b`
            endpoint: https://lake.example/iceberg
            credential: id:${LAKE_SECRET}
            max_retries: 0
            storage:
              access_key_id: 007
              deeper: {one: true}
            header.x-tenant: $${literally}
          local:
            impl: dir
            root: /tmp/tables
          mine: {impl: my.own.Namespace}
        """,
    )
    monkeypatch.setenv("LAKE_SECRET", SECRET)
    found = named_catalogs.load()
    assert (found.default, found.names) == ("prod", ["local", "mine", "prod"])
    prod = found.catalog("PROD")
    assert (prod.impl, prod.parent) == ("lancehouse.IcebergNamespace", ("main", "a.b"))
    assert prod.properties == {
        "endpoint": "https://lake.example/iceberg",
        "credential": f"id:{SECRET}",
        "max_retries": "0",
        "storage.access_key_id": "007",
        "storage.deeper.one": "true",
        "header.x-tenant": "${literally}",
    }
    assert (found.catalog("local").impl, found.catalog("local").parent) == ("dir", ())
    assert found.catalog("mine").impl == "my.own.Namespace"
    assert SECRET not in repr(found) + repr(prod)


def test_what_connects_says_its_name(home: Path) -> None:
    write_config(home, f"catalogs: {{local: {{impl: dir, root: {home}}}}}")
    assert str(home) in named_catalogs.load().catalog("local").connect().namespace_id()


def test_variables_add_and_win(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_config(home, "catalogs:\n  my-Lake:\n    endpoint: http://file\n    rootDir: /file\n    scope: file\n")
    for key, value in {
        "MY_LAKE__ENDPOINT": "http://variable",
        "my_lake__ROOTDIR": "/variable",
        "MY_LAKE__STORAGE__ACCESS_KEY_ID": "${NOT_FILLED}",
        "DEV__IMPL": "unity",
        "DEV__PARENT": "cat",
    }.items():
        monkeypatch.setenv(f"LANCEHOUSE_CATALOG__{key}", value)
    found = named_catalogs.load()
    assert found.names == ["dev", "my-Lake"]
    assert found.catalog("my-lake").properties == {
        "endpoint": "http://variable",
        "rootDir": "/variable",
        "scope": "file",
        "storage.access_key_id": "${NOT_FILLED}",
    }
    assert found.catalog("my_lake") == found.catalog("MY-LAKE")
    assert (found.catalog("dev").impl, found.catalog("Dev").parent) == ("lancehouse.UnityNamespace", ("cat",))


def test_only_what_is_used_must_be_there(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_config(home, "catalogs:\n  a: {credential: 'id:${NOWHERE}'}\n  b: {endpoint: http://b}\n")
    assert named_catalogs.load().catalog("b").properties == {"endpoint": "http://b"}
    with pytest.raises(InvalidInputError, match=r"^~/.lancehouse.yaml:2: key 'credential' needs NOWHERE in"):
        named_catalogs.load().catalog("a")
    monkeypatch.setenv("LANCEHOUSE_CATALOG__A__CREDENTIAL", "x:y")
    assert named_catalogs.load().catalog("a").properties == {"credential": "x:y"}


@pytest.mark.parametrize("text", ["", "# nothing\n", "catalogs:\n", "catalogs: {}\n", "default: prod\n"])
def test_nothing_to_say(text: str, home: Path) -> None:
    assert named_catalogs.load().names == []
    write_config(home, text)
    assert named_catalogs.load().names == []
    with pytest.raises(InvalidInputError) as error:
        named_catalogs.load().catalog("prod")
    assert str(error.value) == (
        "there is no catalog 'prod': write it into ~/.lancehouse.yaml, or set LANCEHOUSE_CATALOG__PROD__ENDPOINT"
    )


def test_an_entry_that_variables_fill(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_config(home, "catalogs:\n  prod:\n")
    monkeypatch.setenv("LANCEHOUSE_CATALOG__PROD__ENDPOINT", "http://x")
    assert named_catalogs.load().catalog("prod").properties == {"endpoint": "http://x"}


def test_another_file(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_config(home, "catalogs: {here: {}}")
    other = tmp_path / "other.yaml"
    other.write_text("catalogs: {there: {}}")
    monkeypatch.setenv("LANCEHOUSE_CONFIG", str(other))
    assert named_catalogs.load().names == ["there"]
    monkeypatch.setenv("LANCEHOUSE_CONFIG", str(tmp_path / "none.yaml"))
    with pytest.raises(InvalidInputError, match=r"none.yaml cannot be read: No such file or directory$"):
        named_catalogs.load()
    monkeypatch.setenv("LANCEHOUSE_CONFIG", "")
    assert named_catalogs.load().names == ["here"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "prd",
            "there is no catalog 'prd'; did you mean prod?",
        ),
        ("xyz", "there is no catalog 'xyz'; ~/.lancehouse.yaml and the environment have dev, prod"),
    ],
)
def test_a_name_that_is_not_known(name: str, said: str, home: Path) -> None:
    write_config(home, "catalogs: {prod: {}, dev: {}}")
    with pytest.raises(InvalidInputError) as error:
        named_catalogs.load().catalog(name)
    assert str(error.value) == said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("- a\n", "1: the file must have keys and values, such as catalogs and default"),
        ("default: a\ncatalog:\n  a: {}\n", "2: unknown key 'catalog'; did you mean catalogs?"),
        ("warehouses: {}\n", "1: unknown key 'warehouses'; expected one of catalogs, default"),
        ("default: [a]\n", "1: key 'default' must be a single value"),
        ("catalogs: [a]\n", "1: key 'catalogs' must hold keys and values"),
        ("catalogs:\n  a: s3cr3t\n", "2: key 'catalogs.a' must hold keys and values"),
        ("catalogs:\n  a:\n    endpoint:\n", "3: key 'catalogs.a.endpoint' has no value"),
        ("catalogs:\n  a:\n    token: [s3cr3t]\n", "3: key 'catalogs.a.token' must be a single value"),
        (
            "catalogs:\n  a:\n    token: !s3cr3t x\n",
            "3: this tag is not supported; put the value in quotes",
        ),
        ("catalogs:\n  a:\n    token: *s3cr3t\n", "3: this is not valid YAML: found undefined alias"),
        ("catalogs:\n  a:\n    token: 's3cr3t\n", "3: this is not valid YAML: while scanning a quoted scalar"),
        ("catalogs:\n\ta: 1\n", "2: this is not valid YAML: while scanning for the next token"),
        ("catalogs:\n  a: {x: 1}\n  A: {x: 2}\n", "3: the catalog A occurs twice"),
        ("catalogs:\n  a:\n    s.k: 1\n    s: {K: 2}\n", "4: the key 'catalogs.a.s.K' occurs twice"),
        ("catalogs:\n  a:\n    1: x\n    [b]: x\n", "4: a key must be text"),
        ("catalogs:\n  a: &a\n    b: *a\n", "3: this contains itself"),
        ("a: 1\n---\nb: 2\n", "2: this is not valid YAML: expected a single document in the stream"),
    ],
)
def test_a_wrong_file(text: str, said: str, home: Path) -> None:
    write_config(home, text)
    with pytest.raises(InvalidInputError) as error:
        named_catalogs.load()
    assert str(error.value).startswith(f"~/.lancehouse.yaml:{said}")
    assert SECRET not in str(error.value)


def test_files_that_are_no_text(home: Path) -> None:
    (home / ".lancehouse.yaml").write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidInputError, match=r"yaml:1: this is not valid YAML: the file is not UTF-8$"):
        named_catalogs.load()
    (home / ".lancehouse.yaml").write_bytes(b"a: \x00")
    with pytest.raises(InvalidInputError, match=r"yaml:1: this is not valid YAML: special characters are not allowed$"):
        named_catalogs.load()


def test_a_wrong_parent(home: Path) -> None:
    write_config(home, "catalogs:\n  a:\n    parent: wh..db\n")
    with pytest.raises(InvalidInputError, match=r"^~/.lancehouse.yaml:3: parent: 'wh..db' is no id"):
        named_catalogs.load().catalog("a")


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        (["PROD"], "the variable LANCEHOUSE_CATALOG__PROD names no property"),
        (["__ENDPOINT"], "the variable LANCEHOUSE_CATALOG____ENDPOINT names no property"),
        (["PROD__"], "the variable LANCEHOUSE_CATALOG__PROD__ names no property"),
        (
            ["PROD__A", "prod__a"],
            "the variables LANCEHOUSE_CATALOG__PROD__A and LANCEHOUSE_CATALOG__prod__a say the same",
        ),
    ],
)
def test_wrong_variables(variables: list[str], said: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for each in variables:
        monkeypatch.setenv(f"LANCEHOUSE_CATALOG__{each}", SECRET)
    with pytest.raises(InvalidInputError) as error:
        named_catalogs.load()
    assert str(error.value).startswith(said)
    assert SECRET not in str(error.value)
