"""Properties of the catalog clients: name, parser, default and help of each, and their validation.

Properties arrive as strings, as `lance_namespace.connect` passes them. They are checked here, once, before any request
is sent.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

from lance_namespace.errors import InvalidInputError

from lancehouse import CATALOGS, in_process
from lancehouse.properties import IMPL, STORAGE, STORAGE_PREFIX
from lancehouse.suggestions import suggest

HEADER_PREFIX = "header."
MILLIS_SUFFIX = "_millis"
ALL = "all"
HARMLESS = "harmless"
AUTO = "auto"


def data_folder() -> Path:
    """Return the folder for persistent data: `$XDG_DATA_HOME/lancehouse` or `~/.local/share/lancehouse`."""
    xdg_home = os.environ.get("XDG_DATA_HOME", "")
    root = Path(xdg_home) if Path(xdg_home).is_absolute() else Path.home() / ".local" / "share"
    return root / "lancehouse"


def default_db() -> str:
    """Return the URL of the database that is used where none is given."""
    return f"sqlite:///{data_folder() / 'catalog.db'}"


def is_http_url(text: str) -> bool:
    """Return whether a text is a URL with http or https, with a host and a port that can be."""
    try:
        parts = urlsplit(text)
        is_complete = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        (parts.hostname or "").encode("idna")
    except ValueError:  # also of `port`, and of names that no host has
        return False
    return is_complete and text.isprintable() and " " not in text


def _parse_text(value: str) -> str:
    if not value.strip():
        raise ValueError("must not be empty")
    return value


def _parse_url(value: str) -> str:
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https", in_process.SCHEME) or not parts.hostname or re.search(r"\s", value):
        raise ValueError("must be a URL that starts with http:// or https://")
    if parts.port == 0:  # reading `port` raises if it is not a number or too large
        raise ValueError("must not have port 0")
    if parts.username or parts.password:
        raise ValueError("must not carry a user or password; use `auth_token` or `credential`")
    if parts.query or parts.fragment:
        raise ValueError("must not have a query or a fragment")
    try:
        parts.hostname.encode("idna")
    except UnicodeError:
        raise ValueError("must have a valid host name") from None
    return parts.geturl().rstrip("/")  # the scheme in lower case, and no empty query or fragment


def _parse_credential(value: str) -> str:
    if not all(value.partition(":")):
        raise ValueError("must have the form client_id:client_secret")
    return value


def _parse_token(value: str) -> str:
    if not value or not value.isascii() or not value.isprintable():
        raise ValueError("must be a printable ASCII token")
    return value


def _parse_count(value: str) -> int:
    if not re.fullmatch(r"\d{1,9}", value):
        raise ValueError("must be a whole number, 0 or more")
    return int(value)


def _parse_duration(value: str) -> float:
    if not re.fullmatch(r"\d{1,9}(\.\d+)?", value) or float(value) == 0:
        raise ValueError("must be a number greater than 0")
    return float(value)


def _parse_file(value: str) -> str:
    if not Path(value).is_file():
        raise ValueError(f"names no file: {value!r}")
    return value


def _choice_parser(*words: str) -> Callable[[str], str]:
    def parse(value: str) -> str:
        if value.lower() not in words:
            raise ValueError(f"must be {', '.join(words[:-1])} or {words[-1]}")
        return value.lower()

    return parse


def _parse_path(value: str) -> str:
    return "/" + value.strip("/")


@dataclass(frozen=True, slots=True)
class Setting:
    """One property of the clients: its name, parser, help, and default."""

    name: str
    read: Callable[[str], Any]
    help: str
    default: Any = None
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Those of clients that differ."""
    clients: tuple[str, ...] = tuple(CATALOGS)
    secret: bool = False
    required: bool = False

    def default_for(self, client: str) -> Any:
        """Return the default of a client."""
        return self.defaults.get(client, self.default)


CLIENT_SETTINGS: tuple[Setting, ...] = (
    Setting("endpoint", _parse_url, "URL of the catalog server, without the path of its API", required=True),
    Setting("catalog", _parse_text, "name of the Unity catalog to use", clients=("unity",), required=True),
    Setting(
        "api_path", _parse_path, "path of the API below the endpoint", "/api/2.1/unity-catalog", clients=("unity",)
    ),
    Setting("auth_token", _parse_token, "bearer token", secret=True),
    Setting("credential", _parse_credential, "OAuth2 client credential, client_id:client_secret", secret=True),
    Setting("oauth2_server_uri", _parse_url, "token endpoint for `credential`, if it is not the catalog's own"),
    Setting(
        "scope",
        _parse_text,
        "OAuth2 scope for `credential`",
        "catalog",
        {"polaris": "PRINCIPAL_ROLE:ALL", "unity": "all-apis", "lakekeeper": "lakekeeper"},
    ),
    Setting(
        "connect_timeout",
        _parse_duration,
        "time to wait for a connection, in milliseconds; for unity in seconds",
        10000.0,
        {"unity": 10.0},
    ),
    Setting(
        "read_timeout",
        _parse_duration,
        "time to wait for a response, in milliseconds; for unity in seconds",
        30000.0,
        {"unity": 60.0},
    ),
    Setting("max_retries", _parse_count, "number of retries of calls that are safe to repeat", 3),
    Setting(
        "managed_by",
        _choice_parser(STORAGE, IMPL),
        "who decides which version of a new table is current, unless its properties set it: storage or impl",
        STORAGE,
    ),
    Setting("root", _parse_text, "location of tables that are declared without one"),
    Setting(
        "table_storage",
        _choice_parser(ALL, HARMLESS),
        "which `storage.*` properties of a table are used: all, or harmless, which cannot redirect credentials",
        ALL,
    ),
    Setting(
        "vend_credentials",
        _choice_parser(AUTO, "true", "false"),
        "whether to request storage credentials from the catalog: auto (use them if it vends any), true (an error if it"
        " vends none), or false",
        AUTO,
    ),
    Setting("ca_bundle", _parse_file, "PEM file with the certificates of the authorities to trust"),
    Setting(
        "client_cert", _parse_file, "PEM file with the client's certificate, and its key unless `client_key` is given"
    ),
    Setting("client_key", _parse_file, "PEM file with the key of `client_cert`"),
    Setting("sigv4.region", _parse_text, "AWS region: requests are signed with SigV4", clients=("iceberg",)),
    Setting(
        "sigv4.service", _parse_text, "AWS service that SigV4 signs for, such as glue or s3tables", clients=("iceberg",)
    ),
)

MILLISECOND_S = 0.001
UNIT_S: Mapping[str, float] = MappingProxyType({"unity": 1.0})
"""Seconds in one unit of a client's timeouts, where that is not a millisecond."""


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """The validated settings of one client. Its repr shows no secret."""

    client: str
    endpoint: str
    connect_timeout_s: float
    read_timeout_s: float
    max_retries: int
    managed_by: str
    scope: str
    table_storage: str
    vend_credentials: str
    catalog: str = ""
    api_path: str = ""
    auth_token: str | None = field(default=None, repr=False)
    credential: str | None = field(default=None, repr=False)
    oauth2_server_uri: str | None = None
    root: str | None = None
    ca_bundle: str | None = None
    client_cert: str | None = None
    client_key: str | None = None
    sigv4_region: str | None = None
    sigv4_service: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    storage: Mapping[str, str] = field(default_factory=dict, repr=False)
    digest: str = ""

    @classmethod
    def parse(cls, client: str, properties: Mapping[str, object]) -> ClientSettings:
        """Validate the properties of a client.

        The spellings of lance-namespace-impls are accepted too: `polaris.endpoint`, `unity.read_timeout_millis`.

        Raises:
            InvalidInputError: a property is unknown, missing or invalid. The message never shows a value that may be a
                secret.
        """
        table = {setting.name: setting for setting in CLIENT_SETTINGS if client in setting.clients}
        unit_s = UNIT_S.get(client, MILLISECOND_S)
        values: dict[str, Any] = {name: setting.default_for(client) for name, setting in table.items()}
        headers: dict[str, str] = {}
        storage: dict[str, str] = {}
        keys_by_name: dict[str, str] = {}
        for key, value in properties.items():
            text = _to_text(key, value)
            name = key.removeprefix(f"{client}.")
            if name.startswith(HEADER_PREFIX):
                headers[_check_header_name(key, name.removeprefix(HEADER_PREFIX))] = _check_header_value(key, text)
                continue
            if name.startswith(STORAGE_PREFIX) and name != STORAGE_PREFIX:
                storage[name.removeprefix(STORAGE_PREFIX)] = text
                continue
            in_millis = name.endswith(f"_timeout{MILLIS_SUFFIX}")
            name = name.removesuffix(MILLIS_SUFFIX) if in_millis else name
            if name not in table:
                raise InvalidInputError(_unknown_property_message(client, key, table))
            if name in keys_by_name:
                raise InvalidInputError(
                    f"{client}: property {key!r} says the same as {keys_by_name[name]!r}; give one of them"
                )
            keys_by_name[name] = key
            try:
                values[name] = table[name].read(text)
            except ValueError as error:
                raise InvalidInputError(f"{client}: property {key!r} {error}") from None
            if in_millis:
                values[name] *= MILLISECOND_S / unit_s
        _check_required(client, table, values)
        return cls(
            client=client,
            connect_timeout_s=values.pop("connect_timeout") * unit_s,
            read_timeout_s=values.pop("read_timeout") * unit_s,
            headers=MappingProxyType(headers),
            storage=MappingProxyType(storage),
            digest=_digest(properties),
            **{name.replace(".", "_"): value for name, value in values.items()},
        )


def _to_text(key: str, value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise InvalidInputError(f"property {key!r} must be a string, not {type(value).__name__}")
    try:
        f"{key}={value}".encode()
    except UnicodeEncodeError:  # part of an environment variable or a command line that is not UTF-8
        raise InvalidInputError(f"property {key!r} is not Unicode text") from None
    return str(value)


def _check_header_name(key: str, name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", name):
        raise InvalidInputError(f"property {key!r} names no HTTP header")
    if name.lower() in ("content-length", "transfer-encoding"):
        raise InvalidInputError(f"property {key!r} cannot be set: it follows from the body of each request")
    return name


def _check_header_value(key: str, value: str) -> str:
    if not value.isprintable() or not value.isascii():
        raise InvalidInputError(f"property {key!r} has a value that no HTTP header can carry")
    return value


def _unknown_property_message(client: str, key: str, table: Mapping[str, Setting]) -> str:
    names = [*table, "header.*", "storage.*"]
    return f"{client}: unknown property {key!r}; {suggest(key.removeprefix(f'{client}.'), names)}"


def _check_required(client: str, table: Mapping[str, Setting], values: Mapping[str, Any]) -> None:
    for name, setting in table.items():
        if setting.required and values[name] is None:
            raise InvalidInputError(f"{client}: property {name!r} is required: {setting.help}")
    if client == "unity" and values["credential"] and not values["oauth2_server_uri"]:
        raise InvalidInputError(
            "unity: property 'credential' needs 'oauth2_server_uri', the address that issues tokens"
        )
    if values["client_key"] and not values["client_cert"]:
        raise InvalidInputError(f"{client}: property 'client_key' needs 'client_cert'")
    if client == "iceberg" and bool(values["sigv4.region"]) != bool(values["sigv4.service"]):
        raise InvalidInputError("iceberg: properties 'sigv4.region' and 'sigv4.service' are given together")


def _digest(properties: Mapping[str, object]) -> str:
    """Return a short hash that identifies these properties without revealing them."""
    text = "\0".join(f"{key}={properties[key]}" for key in sorted(properties))
    return hashlib.sha256(text.encode()).hexdigest()[:8]
