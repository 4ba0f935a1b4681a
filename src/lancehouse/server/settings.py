"""Validated settings of a server, from the command line, the environment, and a YAML file.

A value comes from the command line, else from LANCEHOUSE_… in the environment, else from the YAML file, else it is the
default.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeVar
from urllib.parse import urlsplit

from lance_namespace.errors import InvalidInputError

from lancehouse import CATALOGS, locations, maintenance_policy
from lancehouse.catalog.warehouses import RETENTION_S, Warehouse, Webhook
from lancehouse.documents import Document, format_loc, read_yaml, substitute_variables, to_plain
from lancehouse.properties import IMPL, STORAGE
from lancehouse.secrets import is_secret
from lancehouse.server.setting_table import SERVER_SETTINGS, ServerLimits, ServerSetting, parse_retention
from lancehouse.settings import data_folder, default_db, is_http_url

T = TypeVar("T")

RESERVED = frozenset({"namespaces", "tables", "views", "transactions", "config", "oauth"})
"""Names that no warehouse may have: they are the first segments of paths without a prefix."""
VEND = ("none", "static", "sts", "sas")
SAS_SCOPES = ("folder", "container")
DEFAULT_WAREHOUSE = "main"
SHORTEST_SECRET = 16

ISSUER_KEYS = ("issuer", "audience", "jwks_uri", "name_claim", "name_prefix", "groups_claim")
BACKEND_KEYS = ("impl", "properties", "roots", "identity", "maintenance", "catalogs")
IDENTITIES = ("own", "forward", "exchange")
"""In whose name a backend is asked: the server's own, or the caller's, whose token is passed on or exchanged."""
BEARERS = tuple(CATALOGS)
"""Clients that a token can be given to."""
WAREHOUSE_KEYS = (
    "location",
    "roots",
    "storage",
    "vend",
    "role_arn",
    "static_read",
    "sas_scope",
    "cache",
    "blob_roots",
    "managed_by",
    "retention",
    "maintenance",
)
WEBHOOK_KEYS = ("url", "secret", "warehouse", "types")


@dataclass(frozen=True, slots=True)
class BackendSettings:
    """A namespace implementation that the gateway serves. Its repr shows no secret."""

    name: str
    impl: str
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    roots: tuple[str, ...] = ()
    """Locations below which its tables may lie."""
    identity: str = "own"
    """In whose name it is asked."""
    maintenance: Mapping[str, str] = field(default_factory=dict)
    """Properties `maintenance.*` of all its tables, unless a namespace or a table sets them."""
    catalogs: tuple[str, ...] = ()
    """First levels of the tables that are maintained, where its catalog does not list them."""


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """The validated settings of one server. Its repr shows no secret."""

    host: str = "127.0.0.1"
    port: int = 8181
    db: str = field(default="", repr=False)
    workers: int = 1
    max_memory: int | None = None
    auth: bool = False
    insecure: bool = False
    allowed_hosts: tuple[str, ...] = ()
    """Host names of the server, besides its addresses."""
    trusted_proxies: tuple[str, ...] = ()
    """Networks of proxies whose X-Forwarded-For is believed."""
    tls_cert: str | None = None
    tls_key: str | None = None
    log_level: str = "info"
    scan_cache_bytes: int = 10 * 2**30
    storage_refresh: float = 60.0
    fence_interval: float = 30.0
    maintenance_threads: int = 0
    maintenance_jobs: int = 8
    maintenance_poll: float = 3600.0
    maintenance_functions: tuple[str, ...] = ()
    """Functions and modules that may be imported to fill columns and refresh views."""
    maintenance_sources: tuple[str, ...] = ()
    """Tables that may be read to refresh views."""
    limits: ServerLimits = field(default_factory=ServerLimits)
    warehouses: tuple[Warehouse, ...] = ()
    """If empty: the warehouses in the database, else one called `main`."""
    default: Warehouse = field(default_factory=lambda: Warehouse(0, DEFAULT_WAREHOUSE, ""))
    roots: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Further locations where tables may lie, by the name of the warehouse."""
    issuers: tuple[Mapping[str, str], ...] = ()
    backends: tuple[BackendSettings, ...] = field(default=(), repr=False)
    """Namespaces besides the warehouses that the gateway serves."""
    webhooks: tuple[Webhook, ...] = field(default=(), repr=False)
    """URLs that get the changes of warehouses."""

    @classmethod
    def parse(
        cls,
        options: Mapping[str, str | None],
        warehouses: Sequence[str] = (),
        roots: Sequence[str] = (),
        file: str | None = None,
    ) -> ServerSettings:
        """Validate all settings.

        Args:
            options: values of the command line and the environment, by name.
            warehouses: NAME=LOCATION, each.
            roots: NAME=LOCATION, each; in addition to those of the file.
            file: a YAML file with the rest.

        Raises:
            InvalidInputError: a setting is unknown or invalid. The message names it, but shows no secret.
        """
        document = _read_file(file) if file else Document()
        values = {setting.name: _resolve_value(setting, options, document) for setting in SERVER_SETTINGS}
        limits = ServerLimits(**{s.limit: values.pop(s.name) for s in SERVER_SETTINGS if s.limit})
        if bool(values["tls_cert"]) != bool(values["tls_key"]):
            missing = "--tls-key" if values["tls_cert"] else "--tls-cert"
            raise InvalidInputError(f"{missing} is missing: --tls-cert and --tls-key are given together")
        values["db"] = values["db"] or default_db()
        for name in ("allowed_hosts", "trusted_proxies", "maintenance_functions", "maintenance_sources"):
            values[name] = values[name] or ()
        retention = values.pop("retention")
        retention_s = RETENTION_S if retention is None else retention
        issuers = _parse_issuers(values.pop("issuer"), values.pop("issuer_audience"), document)
        return cls(
            **values,
            limits=limits,
            warehouses=_parse_warehouses(warehouses, document, retention_s),
            default=Warehouse(0, DEFAULT_WAREHOUSE, str(data_folder() / "warehouse"), retention_s=retention_s),
            roots=_parse_roots(roots),
            issuers=issuers,
            backends=_parse_backends(document),
            webhooks=_parse_webhooks(document),
        )

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the server."""
        return is_loopback(self.host)

    def take_changes(self, new: ServerSettings) -> SettingChanges:
        """Return what a running server does with new settings: it takes some, and keeps its own for the rest."""
        changeable = {setting.name for setting in SERVER_SETTINGS if setting.changeable}
        if (self.tls_cert is None) != (new.tls_cert is None):  # connections are either encrypted or not
            changeable -= {"tls_cert", "tls_key"}
        if (self.max_memory is None) != (new.max_memory is None):  # only a parent watches memory
            changeable -= {"max_memory"}
        differing = [name for name in type(self).__slots__ if getattr(self, name) != getattr(new, name)]
        changes = {name: getattr(new, name) for name in differing if name in changeable}
        limits = [
            s.name for s in SERVER_SETTINGS if s.limit and getattr(self.limits, s.limit) != getattr(new.limits, s.limit)
        ]
        needs_restart = [name for name in differing if name not in changeable and name != "limits"]
        return SettingChanges(replace(self, **changes), tuple(changes), (*needs_restart, *limits))


@dataclass(frozen=True, slots=True)
class SettingChanges:
    """What a running server does with new settings."""

    settings: ServerSettings
    """Those with which it goes on."""
    changed: tuple[str, ...]
    """Names of those that it takes."""
    needs_restart: tuple[str, ...]
    """Names of those that it does not take."""

    def __str__(self) -> str:
        text = f"the settings were read again; changed: {', '.join(self.changed) or 'none'}"
        return text + (f"; a restart would change {', '.join(self.needs_restart)}" if self.needs_restart else "")


def from_json(kind: type[T], data: Any) -> T:
    """Return settings or warehouses that another process has sent as JSON."""
    from pydantic import TypeAdapter

    return TypeAdapter(kind).validate_python(data)


def is_loopback(host: str) -> bool:
    """Return whether an address is reachable from this machine only."""
    if host == "localhost":
        return True
    try:
        return ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False


def _resolve_value(setting: ServerSetting, options: Mapping[str, str | None], document: Document) -> Any:
    option = options.get(setting.name)
    value = document.values.get(setting.name) if option is None else option
    if value is None:
        return setting.default
    try:
        if isinstance(value, (dict, list)):
            raise ValueError("must be a single value")
        return setting.parse(_format_property(value))
    except ValueError as error:
        if option is None:
            raise document.key_error(str(error), setting.name) from None
        raise InvalidInputError(f"{setting.option} {error}") from None


def configured_names(file: str) -> frozenset[str]:
    """Return the names of the warehouses and backends in a server's YAML file.

    Environment variables that the file refers to need not be set.

    Raises:
        InvalidInputError: the file cannot be read, or does not have the expected form.
    """
    document = _read_document(file)
    return frozenset(name for key in ("warehouses", "backends") for name in _parse_section(document, key))


def configured_maintenance(file: str) -> dict[str, dict[str, str]]:
    """Return the maintenance properties of the warehouses and backends in a server's YAML file, by name.

    Environment variables that the file refers to need not be set.

    Raises:
        InvalidInputError: the file cannot be read, or does not have the expected form.
    """
    document = _read_document(file)
    sections = {key: _parse_section(document, key) for key in ("warehouses", "backends")}
    return {
        name: _parse_maintenance(document, fields.get("maintenance"), key, name, "maintenance")
        for key, section in sections.items()
        for name, fields in section.items()
        if isinstance(fields, dict)
    }


def _read_file(file: str) -> Document:
    document = _read_document(file)
    values = substitute_variables(
        document.values, lambda name, loc: document.key_error(f"needs {name} in the environment", *loc)
    )
    document = replace(document, values=values)
    names = [*(setting.name for setting in SERVER_SETTINGS), "warehouses", "issuers", "backends", "webhooks"]
    document.check_keys(document.values, names)
    for name, fields in _parse_section(document, "warehouses").items():
        if isinstance(fields, dict):
            document.check_keys(fields, WAREHOUSE_KEYS, "warehouses", name)
    return document


def _read_document(file: str) -> Document:
    """Read the file; its keys may be spelled as on the command line, with hyphens."""

    def rename(key: str) -> str:
        return key.replace("-", "_")

    document = read_yaml(Path(file), file, "host, port and warehouses")
    values = {rename(key): to_plain(value) for key, value in document.values.items()}
    return Document(file, values, {(*map(rename, loc[:1]), *loc[1:]): line for loc, line in document.lines.items()})


def _parse_warehouses(options: Sequence[str], document: Document, retention_s: int) -> tuple[Warehouse, ...]:
    """Return the warehouses of the command line, else of the file; further keys come from the file in both cases."""
    configured = _parse_section(document, "warehouses")
    if not options:
        return tuple(_parse_warehouse(document, name, value, retention_s) for name, value in configured.items())
    warehouses: dict[str, Warehouse] = {}
    for option in options:
        name, location = _split_name_location("--warehouse", option)
        if name in warehouses:
            raise InvalidInputError(f"--warehouse names {name} twice")
        warehouses[name] = _parse_warehouse(document, name, configured.get(name), retention_s, location)
    return tuple(warehouses.values())


def _parse_roots(options: Sequence[str]) -> dict[str, tuple[str, ...]]:
    roots: dict[str, tuple[str, ...]] = {}
    for option in options:
        name, location = _split_name_location("--root", option)
        roots[name] = (*roots.get(name, ()), location)
    return roots


def _split_name_location(option: str, value: str) -> tuple[str, str]:
    name, _, location = value.partition("=")
    if not name or not location:
        raise InvalidInputError(f"{option} must have the form NAME=LOCATION, got {value!r}")
    return name, location


def _check_name(name: str, what: str) -> None:
    if not re.fullmatch(r"[^\x00-\x1f\x7f/\\]{1,128}", name) or name in RESERVED or name in (".", ".."):
        raise InvalidInputError(f"{name!r} cannot be {what}: it stands in paths")


def _parse_warehouse(
    document: Document, name: str, value: Any, retention_s: int, location: str | None = None
) -> Warehouse:
    _check_name(name, "a warehouse's name")
    loc = ("warehouses", name)
    fields = _parse_mapping(document, {"location": value} if isinstance(value, str) else value, *loc)
    location_value = fields.get("location") if location is None else location
    vend: Literal["none", "static", "sts", "sas"] = fields.get("vend") or "none"
    if vend not in VEND:
        raise document.key_error(f"must be one of {', '.join(VEND)}", *loc, "vend")
    sas_scope: Literal["folder", "container"] = fields.get("sas_scope") or "folder"
    if sas_scope not in SAS_SCOPES:
        raise document.key_error(f"must be one of {', '.join(SAS_SCOPES)}", *loc, "sas_scope")
    manager = str(fields.get("managed_by") or STORAGE)
    if manager not in (STORAGE, IMPL):
        raise document.key_error(f"must be {STORAGE} or {IMPL}", *loc, "managed_by")
    storage, static_read = (
        {key: _format_property(value) for key, value in _parse_mapping(document, fields.get(name), *loc, name).items()}
        for name in ("storage", "static_read")
    )
    cache = fields.get("cache")
    return Warehouse(
        0,
        name,
        _parse_location(document, location_value, *loc, "location"),
        _parse_locations(document, fields.get("roots"), *loc, "roots"),
        storage,
        vend,
        str(fields["role_arn"]) if fields.get("role_arn") else None,
        _parse_location(document, cache, *loc, "cache") if cache else None,
        _parse_locations(document, fields.get("blob_roots"), *loc, "blob_roots"),
        manager,
        static_read,
        sas_scope,
        _parse_retention(document, fields.get("retention"), retention_s, *loc, "retention"),
        _parse_maintenance(document, fields.get("maintenance"), *loc, "maintenance"),
    )


def _parse_webhooks(document: Document) -> tuple[Webhook, ...]:
    webhooks = []
    for name, value in _parse_section(document, "webhooks").items():
        _check_name(name, "a webhook's name")
        loc = ("webhooks", name)
        fields = _parse_mapping(document, value, *loc)
        document.check_keys(fields, WEBHOOK_KEYS, *loc)
        url, secret, types = fields.get("url"), fields.get("secret"), fields.get("types") or []
        if not isinstance(url, str) or not is_http_url(url):
            raise document.key_error("must be an http or https URL", *loc, "url")
        if "@" in urlsplit(url).netloc:
            raise document.key_error("must not carry a user or password: they would not be sent", *loc, "url")
        if not isinstance(secret, str) or len(secret) < SHORTEST_SECRET:
            raise document.key_error(f"must be a text of at least {SHORTEST_SECRET} characters", *loc, "secret")
        if not isinstance(types, list) or not all(isinstance(text, str) for text in types):
            raise document.key_error("must be a list such as [table.commit, table.drop]", *loc, "types")
        warehouse = fields.get("warehouse")
        webhook = Webhook(name, url, secret, None if warehouse is None else str(warehouse), tuple(types))
        try:
            webhook.sign("", 0, b"")
        except ValueError:
            raise document.key_error("is not Base64 after whsec_", *loc, "secret") from None
        webhooks.append(webhook)
    return tuple(webhooks)


def _parse_retention(document: Document, value: Any, default_s: int, *loc: Any) -> int:
    try:
        return default_s if value is None else parse_retention(str(value))
    except ValueError as error:
        raise document.key_error(str(error), *loc) from None


def _parse_location(document: Document, value: Any, *loc: Any) -> str:
    """Return a location as it is written; whether it can be used is checked when the server starts."""
    if not isinstance(value, str) or not value.strip():
        raise document.key_error("is missing: a location is a path or a URL", *loc)
    return value


def _parse_locations(document: Document, value: Any, *loc: Any) -> tuple[str, ...]:
    if not isinstance(value or [], list):
        raise document.key_error("must be a list of locations", *loc)
    return tuple(_parse_location(document, location, *loc, index) for index, location in enumerate(value or []))


def _parse_issuers(url: str | None, audience: str | None, document: Document) -> tuple[Mapping[str, str], ...]:
    if (url is None) != (audience is None):
        raise InvalidInputError("--issuer and --issuer-audience are given together")
    configured = document.values.get("issuers") or []
    if not isinstance(configured, list):
        raise document.key_error("must be a list", "issuers")
    issuers = [{"issuer": url, "audience": audience}] if url and audience else []
    for index, value in enumerate(configured):
        loc = ("issuers", index)
        issuer = _parse_mapping(document, value, *loc)
        document.check_keys(issuer, ISSUER_KEYS, *loc)
        for key in ("issuer", "audience"):
            if not issuer.get(key):
                raise document.key_error("is missing", *loc, key)
        issuers.append({key: str(value) for key, value in issuer.items()})
    return tuple(issuers)


def _parse_backends(document: Document) -> tuple[BackendSettings, ...]:
    backends = []
    for name, value in _parse_section(document, "backends").items():
        loc = ("backends", name)
        _check_name(name, "a backend's name")
        fields = _parse_mapping(document, value, *loc)
        document.check_keys(fields, BACKEND_KEYS, *loc)
        impl = fields.get("impl")
        if not isinstance(impl, str) or not impl:
            raise document.key_error(
                "is missing: iceberg, polaris, unity, lakekeeper, dir, or a class path", *loc, "impl"
            )
        properties = {
            key: _format_property(value)
            for key, value in _parse_mapping(document, fields.get("properties"), *loc, "properties").items()
        }
        roots = _parse_locations(document, fields.get("roots"), *loc, "roots") or _default_roots(properties)
        absolute_roots = tuple(_normalize_root(document, root, *loc, "roots") for root in roots)
        identity = fields.get("identity", "own")
        _check_identity(document, identity, impl, properties, *loc)
        maintenance = _parse_maintenance(document, fields.get("maintenance"), *loc, "maintenance")
        catalogs = fields.get("catalogs") or []
        if not isinstance(catalogs, list) or not all(isinstance(catalog, str) and catalog for catalog in catalogs):
            raise document.key_error("must be a list of names", *loc, "catalogs")
        backends.append(BackendSettings(name, impl, properties, absolute_roots, identity, maintenance, tuple(catalogs)))
    return tuple(backends)


def _check_identity(document: Document, identity: Any, impl: str, properties: Mapping[str, str], *loc: Any) -> None:
    """Refuse settings with which the caller's identity would not be what counts."""
    if identity not in IDENTITIES:
        raise document.key_error(f"must be {', '.join(IDENTITIES[:-1])} or {IDENTITIES[-1]}", *loc, "identity")
    if identity == "own":
        return
    if impl not in BEARERS:
        raise document.key_error(f"takes one of the clients {', '.join(BEARERS)}", *loc, "identity")
    named_properties = {key.removeprefix(f"{impl}."): value for key, value in properties.items()}
    refused = {"auth_token", "sigv4_region", "sigv4_service"} | ({"credential"} if identity == "forward" else set())
    if own := sorted(named_properties.keys() & refused):
        raise document.key_error(f"{own[0]} must not be given: the caller's token is sent", *loc, "identity")
    if identity == "exchange" and not re.match(r"https?://", named_properties.get("oauth2_server_uri", "")):
        raise document.key_error("needs the property oauth2_server_uri, where tokens are exchanged", *loc, "identity")
    if stored := sorted(key for key in named_properties if key.startswith("storage.") and is_secret(key)):
        raise document.key_error(
            f"{stored[0]} must not be given: data are reached by credentials that the catalog gives the caller",
            *loc,
            "identity",
        )


def _parse_maintenance(document: Document, value: Any, *loc: Any) -> dict[str, str]:
    """Return the maintenance properties of a warehouse or backend; their keys may stand without the prefix."""
    properties: dict[str, str] = {}
    for key, text in _parse_mapping(document, value, *loc).items():
        name = key if key.startswith(maintenance_policy.PREFIX) else maintenance_policy.PREFIX + key
        properties[name] = _format_property(text)
        try:
            maintenance_policy.check_properties({name: properties[name]})
        except InvalidInputError as error:
            raise document.error(str(error), *loc, key) from None
    return properties


def _default_roots(properties: Mapping[str, str]) -> tuple[str, ...]:
    """Return the client's property `root`, below which it puts tables declared without a location, as the only root."""
    return tuple(value for key, value in properties.items() if key.rpartition(".")[2] == "root" and value)


def _normalize_root(document: Document, location: str, *loc: Any) -> str:
    """Return an absolute root, after checking that it is a valid location."""
    absolute = location if locations.is_uri(location) else str(Path(location).absolute())
    try:
        locations.key(absolute)
    except InvalidInputError as error:
        raise document.error(f"key '{format_loc(loc)}': {error}", *loc) from None
    return absolute


def _format_property(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _parse_mapping(document: Document, value: Any, *loc: Any) -> Mapping[str, Any]:
    if value is None:
        return MappingProxyType({})
    if not isinstance(value, dict):
        raise document.key_error("must hold keys and values", *loc)
    return value


def _parse_section(document: Document, key: str) -> Mapping[str, Any]:
    return _parse_mapping(document, document.values.get(key), key)
