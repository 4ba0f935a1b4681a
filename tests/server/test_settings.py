from __future__ import annotations

import json
import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from lance_namespace.errors import InvalidInputError

from lancehouse.catalog.warehouses import Warehouse
from lancehouse.server.setting_table import SERVER_SETTINGS, ServerLimits
from lancehouse.server.settings import ServerSettings, from_json, is_loopback


def parse(
    given: dict[str, str] | None = None, *warehouses: str, file: str | None = None, tmp_path: Path | None = None
) -> ServerSettings:
    if file is not None:
        assert tmp_path is not None
        (tmp_path / "c.yaml").write_text(file)
    return ServerSettings.parse(given or {}, warehouses, file=str(tmp_path / "c.yaml") if file and tmp_path else None)


def test_defaults(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    settings = parse()
    assert (settings.host, settings.port, settings.workers) == ("127.0.0.1", 8181, 1)
    assert settings.db == f"sqlite:///{tmp_path}/lancehouse/catalog.db"
    assert (settings.default.name, settings.default.location) == ("main", f"{tmp_path}/lancehouse/warehouse")
    assert settings.warehouses == ()
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert parse().db == f"sqlite:///{tmp_path}/.local/share/lancehouse/catalog.db"


@pytest.mark.parametrize(
    ("name", "value", "read"),
    [
        ("port", "0", 0),
        ("max_body", "1MiB", 2**20),
        ("max_body", "10 kb", 10 * 2**10),
        ("scan_cache_bytes", "123", 123),
        ("log_level", "WARNING", "warning"),
        ("request_timeout", "2.5", 2.5),
        ("insecure", "true", True),
    ],
)
def test_values(name: str, value: str, read: Any) -> None:
    settings = parse({name: value})
    setting = next(each for each in SERVER_SETTINGS if each.name == name)
    assert getattr(settings.limits if setting.limit else settings, setting.limit or name) == read


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("port", "70000"),
        ("port", "x"),
        ("host", "a b"),
        ("workers", "0"),
        ("max_body", "-1"),
        ("max_body", "0"),
        ("max_body", "many"),
        ("log_level", "loud"),
        ("tls_cert", "/nowhere.pem"),
        ("insecure", "perhaps"),
        ("request_timeout", "0"),
        ("db", " "),
    ],
)
def test_a_wrong_value_is_named(name: str, value: str) -> None:
    with pytest.raises(InvalidInputError, match="--" + name.replace("_", "-")):
        parse({name: value})


def test_names_of_the_server() -> None:
    settings = parse({"allowed_hosts": "lake.example.com, Lake:8181"})
    assert settings.allowed_hosts == ("lake.example.com", "Lake:8181")
    assert from_json(ServerSettings, json.loads(json.dumps(asdict(settings)))) == settings
    assert parse().allowed_hosts == ()


@pytest.mark.parametrize("names", ["lake example", "http://lake", "a,,b", "[::1]", ""])
def test_names_that_are_none(names: str) -> None:
    with pytest.raises(InvalidInputError, match="--allowed-hosts must be names"):
        parse({"allowed_hosts": names})


def test_every_setting_has_a_field() -> None:
    values = {each.name: str(each.default) for each in SERVER_SETTINGS if each.default is not None}
    assert parse({name: value.lower() for name, value in values.items()}) == parse()


@pytest.mark.parametrize("location", ["/a/b", "x/y", "file:///a/b", "abfss://c@a.dfs.core.windows.net/x=1"])
def test_warehouses_and_roots(location: str) -> None:
    (warehouse,) = parse({}, f"w={location}").warehouses
    assert (warehouse.name, warehouse.location) == ("w", location)
    roots = ServerSettings.parse({}, roots=[f"w={location}", "w=/b", "v=/c"]).roots
    assert roots == {"w": (location, "/b"), "v": ("/c",)}


@pytest.mark.parametrize("given", ["w", "=/x", "w="])
def test_a_wrong_root(given: str) -> None:
    with pytest.raises(InvalidInputError, match="--root must have the form NAME=LOCATION"):
        ServerSettings.parse({}, roots=[given])


@pytest.mark.parametrize(
    ("name", "shown"),
    [("port", "8181"), ("max_body", "16MiB"), ("read_timeout", "60"), ("log_level", "info"), ("auth", ""), ("db", "")],
)
def test_defaults_are_shown_as_people_write_them(name: str, shown: str) -> None:
    setting = next(each for each in SERVER_SETTINGS if each.name == name)
    assert setting.default_text == shown
    assert not shown or setting.parse(shown) == setting.default


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["w"], "NAME=LOCATION"),
        (["=x"], "NAME=LOCATION"),
        (["w="], "NAME=LOCATION"),
        (["w=/a", "w=/b"], "twice"),
        (["namespaces=/a"], "cannot be a warehouse's name"),
        (["config=/a"], "cannot be a warehouse's name"),
        (["a/b=/a"], "cannot be a warehouse's name"),
        (["..=/a"], "cannot be a warehouse's name"),
    ],
)
def test_a_wrong_warehouse(given: list[str], words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        parse({}, *given)


FILE = """
port: 9000
max-body: 2MiB
insecure: true
warehouses:
  plain: /data/plain
  lake:
    location: s3://bucket/lake
    roots: [s3://bucket/more]
    storage: {aws_secret_access_key: "${SECRET}", allow_http: true}
    vend: sts
    role_arn: arn:aws:iam::1:role/r
    static_read: {aws_secret_access_key: "${SECRET}2"}
    cache: s3://bucket/cache
    managed_by: impl
issuers:
  - {issuer: "https://id.example", audience: us, name_claim: email}
"""


def test_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SECRET", "hush")
    settings = parse({"port": "9001"}, file=FILE, tmp_path=tmp_path)
    assert settings.port == 9001  # the command line wins
    assert (settings.limits.body, settings.insecure) == (2 * 2**20, True)
    plain, lake = settings.warehouses
    assert (plain.name, plain.location) == ("plain", "/data/plain")
    assert (lake.location, lake.roots, lake.cache) == ("s3://bucket/lake", ("s3://bucket/more",), "s3://bucket/cache")
    assert lake.storage == {"aws_secret_access_key": "hush", "allow_http": "true"}
    assert lake.static_read == {"aws_secret_access_key": "hush2"}
    assert (lake.vend, lake.role_arn) == ("sts", "arn:aws:iam::1:role/r")
    assert (plain.managed_by, lake.managed_by) == ("storage", "impl")
    assert settings.issuers == ({"issuer": "https://id.example", "audience": "us", "name_claim": "email"},)
    assert "hush" not in repr(settings)
    settings = replace(settings, roots={"lake": ("s3://bucket/old",)})
    told = from_json(ServerSettings, json.loads(json.dumps(asdict(settings))))
    assert told == settings


def test_the_file_describes_what_the_command_line_names(tmp_path: Path) -> None:
    file = "warehouses: {w: {roots: [/more]}, other: /other}"
    (warehouse,) = parse({}, "w=/here", file=file, tmp_path=tmp_path).warehouses
    assert (warehouse.location, warehouse.roots) == ("/here", ("/more",))


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("[1]", "c.yaml:1: the file must have keys and values, such as host, port and warehouses$"),
        ("a: [", "c.yaml:1: this is not valid YAML: while parsing a flow node, expected the node content"),
        ("port: 1\n  host: x", "c.yaml:2: this is not valid YAML: mapping values are not allowed here$"),
        ("db: *hunter2", "c.yaml:1: this is not valid YAML: found undefined alias$"),
        ("db: !hunter2 x", "c.yaml:1: this tag is not supported; put the value in quotes$"),
        ("db: \x07", "c.yaml:1: this is not valid YAML: special characters are not allowed$"),
        ("port: 2026-13-01", "c.yaml:1: key 'port' must be a whole number"),
        ("port: 1\nhost: x\nport: 2", "c.yaml:3: the key 'port' occurs twice$"),
        (
            "backends:\n  d: {impl: dir, root: /a}\n  d: {impl: dir, root: /b}",
            "c.yaml:3: the key 'backends.d' occurs twice$",
        ),
        ("prot: 1", "c.yaml:1: unknown key 'prot'; did you mean port"),
        ("port: x", "key 'port' must be a whole number"),
        ("port: [1]", "key 'port' must be a single value"),
        ("db: ${NOT_THERE_AT_ALL}", "key 'db' needs NOT_THERE_AT_ALL in the environment"),
        ("warehouses: {w: {storage: {k: '${NOT_THERE_AT_ALL}'}}}", "key 'warehouses.w.storage.k' needs"),
        ("warehouses: [a]", "key 'warehouses' must hold keys and values"),
        ("warehouses:\n  w: {}", "c.yaml:2: key 'warehouses.w.location' is missing"),
        (
            "warehouses: {w: {location: /x, root: [/y]}}",
            "c.yaml:1: unknown key 'warehouses.w.root'; did you mean roots",
        ),
        ("warehouses: {w: {location: /x, roots: /y}}", "key 'warehouses.w.roots' must be a list"),
        ("warehouses:\n  w:\n    location: /x\n    vend: all", "c.yaml:4: key 'warehouses.w.vend' must be one of"),
        ("warehouses: {w: {location: /x, static_read: [k]}}", "key 'warehouses.w.static_read' must hold keys"),
        ("warehouses: {w: {location: /x, managed_by: me}}", "key 'warehouses.w.managed_by' must be storage or impl"),
        ("issuers: x", "key 'issuers' must be a list"),
        (
            "webhooks: {etl: {url: 'http://h', secret: 'whsec_****************'}}",
            "key 'webhooks.etl.secret' is not Base64 after whsec_",
        ),
        ("webhooks: {etl: {url: 'http://h', secret: short}}", "key 'webhooks.etl.secret' must be a text of at least"),
        *(
            (f"webhooks: {{etl: {{url: '{url}', secret: {'s' * 30}}}}}", f"key 'webhooks.etl.url' {words}")
            for url, words in (
                ("ftp://h", "must be an http or https URL"),
                ("http://", "must be an http or https URL"),
                ("http://[::1", "must be an http or https URL"),
                ("http://h:99999", "must be an http or https URL"),
                ("http://h:x", "must be an http or https URL"),
                ("http://h:0", "must be an http or https URL"),
                ("http://a..b", "must be an http or https URL"),
                ("http://h/a b", "must be an http or https URL"),
                ("http://me:hunter2@h", "must not carry a user or password"),
            )
        ),
        ("issuers:\n- {issuer: 'https://x'}", r"c.yaml:2: key 'issuers\[0\].audience"),
    ],
)
def test_a_wrong_file_names_the_key(tmp_path: Path, file: str, words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        parse(file=file, tmp_path=tmp_path)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="cannot be read"):
        ServerSettings.parse({}, file=str(tmp_path / "none.yaml"))


def test_certificate_and_key_go_together(tmp_path: Path) -> None:
    (tmp_path / "c.pem").write_text("x")
    with pytest.raises(InvalidInputError, match=r"^--tls-key is missing: --tls-cert and --tls-key"):
        parse({"tls_cert": str(tmp_path / "c.pem")})
    with pytest.raises(InvalidInputError, match=r"^--tls-cert is missing"):
        parse({"tls_key": str(tmp_path / "c.pem")})


@pytest.mark.parametrize(
    ("host", "yes"),
    [
        ("127.0.0.1", True),
        ("127.1.2.3", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("example.org", False),
        ("localhost.example.org", False),
    ],
)
def test_loopback(host: str, yes: bool) -> None:
    assert is_loopback(host) is yes


def test_what_a_running_server_takes() -> None:
    before = ServerSettings(db="sqlite:///x", tls_cert="a", tls_key="b", max_memory=1)
    new = replace(
        before,
        log_level="debug",
        allowed_hosts=("x",),
        tls_cert="c",
        max_memory=2,
        port=1,
        limits=ServerLimits(threads=1, idle_s=1.0),
        warehouses=(Warehouse(0, "w", "/w"),),
    )
    changes = before.take_changes(new)
    assert changes.changed == ("max_memory", "allowed_hosts", "tls_cert", "log_level")
    assert changes.needs_restart == ("port", "warehouses", "threads", "idle_timeout")
    assert changes.settings == replace(before, log_level="debug", allowed_hosts=("x",), tls_cert="c", max_memory=2)
    assert before.take_changes(before).changed == ()
    plain = before.take_changes(replace(before, tls_cert=None, tls_key=None, max_memory=None))
    assert plain.needs_restart == ("max_memory", "tls_cert", "tls_key")
    assert plain.settings == before


def test_the_docs_name_what_can_be_changed() -> None:
    page = (Path(__file__).parents[2] / "docs" / "observability.md").read_text()
    section = page.split("## Changing settings")[1].split("\n## ")[0]
    named = set(re.findall(r"`--([a-z-]+)`", section.split("\n- ")[1]))
    assert named == {each.option.removeprefix("--") for each in SERVER_SETTINGS if each.changeable}


def test_maintenance_of_a_warehouse_and_a_backend(tmp_path: Path) -> None:
    file = tmp_path / "server.yaml"
    file.write_text(
        "warehouses: {main: {location: /data, maintenance: {enabled: true, window: '01:00-05:00'}}}\n"
        "backends: {other: {impl: dir, maintenance: {maintenance.compact.min-fragments: 4}}}\n"
    )
    settings = ServerSettings.parse({}, file=str(file))
    expected = {"maintenance.enabled": "true", "maintenance.window": "01:00-05:00"}
    assert settings.warehouses[0].maintenance == expected
    assert settings.backends[0].maintenance == {"maintenance.compact.min-fragments": "4"}
    told = from_json(ServerSettings, json.loads(json.dumps(asdict(settings))))
    assert told.backends[0].maintenance == settings.backends[0].maintenance
    file.write_text("warehouses:\n  main:\n    location: /data\n    maintenance:\n      enabled: maybe\n")
    with pytest.raises(InvalidInputError, match=r"server.yaml:5: maintenance.enabled must be true or false"):
        ServerSettings.parse({}, file=str(file))
