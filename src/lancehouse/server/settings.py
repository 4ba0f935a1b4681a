"""Validated settings of a server, from the command line, the environment, and a YAML file.

A value comes from the command line, else from LANCEHOUSE_… in the environment, else from the YAML file, else it is the
default.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from ipaddress import ip_address
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from lance_namespace.errors import InvalidInputError

from lancehouse import locations
from lancehouse.catalog.warehouses import Warehouse
from lancehouse.properties import IMPL, STORAGE
from lancehouse.server.http.limits import ServerLimits
from lancehouse.server.setting_table import SERVER_SETTINGS, ServerSetting
from lancehouse.settings import data_folder, default_db
from lancehouse.suggestions import suggest

RESERVED = frozenset({"namespaces", "tables", "views", "transactions", "config", "oauth"})
"""Names that no warehouse may have: they are the first segments of paths without a prefix."""
VEND = ("none", "static", "sts")
DEFAULT_WAREHOUSE = "main"

ISSUER_KEYS = ("issuer", "audience", "jwks_uri", "name_claim", "name_prefix")
BACKEND_KEYS = ("impl", "properties", "roots")
WAREHOUSE_KEYS = (
    "location",
    "roots",
    "storage",
    "vend",
    "role_arn",
    "static_read",
    "cache",
    "blob_roots",
    "managed_by",
)


@dataclass(frozen=True, slots=True)
class BackendSettings:
    """A namespace implementation that the gateway serves. Its repr shows no secret."""

    name: str
    impl: str
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    roots: tuple[str, ...] = ()
    """Locations below which its tables may lie."""


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
    tls_cert: str | None = None
    tls_key: str | None = None
    log_level: str = "info"
    scan_cache_bytes: int = 10 * 2**30
    limits: ServerLimits = field(default_factory=ServerLimits)
    warehouses: tuple[Warehouse, ...] = ()
    """If empty: the warehouses in the database, else one called `main`."""
    default: Warehouse = field(default_factory=lambda: Warehouse(0, DEFAULT_WAREHOUSE, ""))
    roots: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Further locations where tables may lie, by the name of the warehouse."""
    issuers: tuple[Mapping[str, str], ...] = ()
    backends: tuple[BackendSettings, ...] = field(default=(), repr=False)
    """Namespaces besides the warehouses that the gateway serves."""

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
        document = _read_file(file) if file else {}
        values = {setting.name: _resolve_value(setting, options, document) for setting in SERVER_SETTINGS}
        limits = ServerLimits(**{s.limit: values.pop(s.name) for s in SERVER_SETTINGS if s.limit})
        if bool(values["tls_cert"]) != bool(values["tls_key"]):
            missing = "--tls-key" if values["tls_cert"] else "--tls-cert"
            raise InvalidInputError(f"{missing} is missing: --tls-cert and --tls-key are given together")
        values["db"] = values["db"] or default_db()
        values["allowed_hosts"] = values["allowed_hosts"] or ()
        issuers = _parse_issuers(values.pop("issuer"), values.pop("issuer_audience"), document.get("issuers"))
        return cls(
            **values,
            limits=limits,
            warehouses=_parse_warehouses(warehouses, document.get("warehouses")),
            default=Warehouse(0, DEFAULT_WAREHOUSE, str(data_folder() / "warehouse")),
            roots=_parse_roots(roots),
            issuers=issuers,
            backends=_parse_backends(document.get("backends")),
        )

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the server."""
        return is_loopback(self.host)

    def to_json(self) -> dict[str, Any]:
        """Return the settings as JSON for a worker, secrets included."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ServerSettings:
        """Restore the settings that `to_json` returned."""
        return cls(
            **{
                **data,
                "allowed_hosts": tuple(data["allowed_hosts"]),
                "limits": ServerLimits(**data["limits"]),
                "warehouses": tuple(warehouse_from_json(each) for each in data["warehouses"]),
                "default": warehouse_from_json(data["default"]),
                "roots": {name: tuple(places) for name, places in data["roots"].items()},
                "issuers": tuple(data["issuers"]),
                "backends": tuple(BackendSettings(**backend) for backend in data["backends"]),
            }
        )


def warehouse_from_json(data: Mapping[str, Any]) -> Warehouse:
    """Restore a warehouse that a worker receives as JSON."""
    return Warehouse(**{**data, **{key: tuple(data[key]) for key in ("roots", "blob_roots")}})


def is_loopback(host: str) -> bool:
    """Return whether an address is reachable from this machine only."""
    if host == "localhost":
        return True
    try:
        return ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False


def _resolve_value(setting: ServerSetting, options: Mapping[str, str | None], document: Mapping[str, Any]) -> Any:
    value = options.get(setting.name)
    source = setting.option
    if value is None:
        value, source = document.get(setting.name), f"key {setting.name!r}"
    if value is None:
        return setting.default
    if isinstance(value, (dict, list)):
        raise InvalidInputError(f"{source} must be a single value")
    text = str(value).lower() if isinstance(value, bool) else str(value)
    try:
        return setting.parse(text)
    except ValueError as error:
        raise InvalidInputError(f"{source} {error}") from None


def configured_names(file: str) -> frozenset[str]:
    """Return the names of the warehouses and backends in a server's YAML file.

    Environment variables that the file refers to need not be set.

    Raises:
        InvalidInputError: the file cannot be read, or does not have the expected form.
    """
    document = _read_yaml(file)
    return frozenset(str(name) for key in ("warehouses", "backends") for name in _parse_mapping(key, document.get(key)))


def _read_file(file: str) -> dict[str, Any]:
    document = {key: _substitute_variables(key, value) for key, value in _read_yaml(file).items()}
    _check_keys(
        document,
        [*(setting.name for setting in SERVER_SETTINGS), "warehouses", "issuers", "backends"],
        f"the file {file}",
    )
    for name, fields in _parse_mapping("warehouses", document.get("warehouses")).items():
        if isinstance(fields, dict):
            _check_keys(fields, WAREHOUSE_KEYS, f"the file {file}: warehouses.{name}")
    return document


def _read_yaml(file: str) -> dict[str, Any]:
    import yaml

    try:
        document = yaml.load(Path(file).read_text(encoding="utf-8"), _yaml_loader())  # noqa: S506 - a SafeLoader
    except OSError as error:
        raise InvalidInputError(f"the file {file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InvalidInputError(f"the file {file} is no YAML: it is not UTF-8") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        position = f" in line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise InvalidInputError(
            f"the file {file} is no YAML{position}: {_format_yaml_error(error.context, error.problem)}"
        ) from None
    except yaml.reader.ReaderError as error:
        raise InvalidInputError(f"the file {file} is no YAML: {error.reason}, at character {error.position}") from None
    except ValueError as error:  # an invalid date or number
        raise InvalidInputError(f"the file {file} is no YAML: {error}") from None
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise InvalidInputError(f"the file {file} must hold keys and values")
    return {str(key).replace("-", "_"): value for key, value in document.items()}


def _yaml_loader() -> Any:
    """Return a safe YAML loader that refuses duplicate keys, of which YAML silently keeps the last."""
    import yaml

    class UniqueKeyLoader(yaml.SafeLoader):
        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            keys: set[str] = set()
            for key, _ in node.value:
                if key.value in keys:
                    raise yaml.constructor.ConstructorError(problem="a key is there twice", problem_mark=key.start_mark)
                keys.add(str(key.value))
            return super().construct_mapping(node, deep)

    return UniqueKeyLoader


def _format_yaml_error(*parts: str | None) -> str:
    """Return YAML's error message without the names that it quotes: one may be a secret that begins with * or !."""
    words = ", ".join(filter(None, parts))
    return re.sub(r"\b(alias|anchor|tag|handle) ['\"].*", r"\1", words)


def _substitute_variables(path: str, value: Any) -> Any:
    """Replace `${NAME}` by the environment variable of that name, in all texts of a value."""
    if isinstance(value, dict):
        return {key: _substitute_variables(f"{path}.{key}", part) for key, part in value.items()}
    if isinstance(value, list):
        return [_substitute_variables(f"{path}[{index}]", part) for index, part in enumerate(value)]
    if not isinstance(value, str):
        return value

    def lookup_variable(match: re.Match[str]) -> str:
        if match[1] not in os.environ:
            raise InvalidInputError(f"key {path!r} needs {match[1]} in the environment")
        return os.environ[match[1]]

    return re.sub(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}", lookup_variable, value)


def _check_keys(mapping: Mapping[str, Any], allowed: list[str] | tuple[str, ...], place: str) -> None:
    for key in mapping:
        if key not in allowed:
            raise InvalidInputError(f"{place} has an unknown key {key!r}; {suggest(str(key), allowed)}")


def _parse_warehouses(options: Sequence[str], configured: Any) -> tuple[Warehouse, ...]:
    """Return the warehouses of the command line, else of the file; further keys come from the file in both cases."""
    fields_by_name = _parse_mapping("warehouses", configured)
    if not options:
        return tuple(_parse_warehouse(name, _warehouse_fields(name, fields)) for name, fields in fields_by_name.items())
    warehouses: dict[str, Warehouse] = {}
    for option in options:
        name, location = _split_name_location("--warehouse", option)
        if name in warehouses:
            raise InvalidInputError(f"--warehouse names {name} twice")
        warehouses[name] = _parse_warehouse(
            name, {**_warehouse_fields(name, fields_by_name.get(name, {})), "location": location}
        )
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


def _warehouse_fields(name: str, value: Any) -> dict[str, Any]:
    return {"location": value} if isinstance(value, str) else dict(_parse_mapping(f"warehouses.{name}", value))


def _check_name(name: str, what: str) -> None:
    if not re.fullmatch(r"[^\x00-\x1f\x7f/\\]{1,128}", name) or name in RESERVED or name in (".", ".."):
        raise InvalidInputError(f"{name!r} cannot be {what}: it stands in paths")


def _parse_warehouse(name: str, fields: Mapping[str, Any]) -> Warehouse:
    place = f"warehouses.{name}"
    _check_name(name, "a warehouse's name")
    vend: Literal["none", "static", "sts"] = fields.get("vend") or "none"
    if vend not in VEND:
        raise InvalidInputError(f"key '{place}.vend' must be one of {', '.join(VEND)}")
    storage, static_read = (
        {
            str(key): _format_property(value)
            for key, value in _parse_mapping(f"{place}.{name}", fields.get(name)).items()
        }
        for name in ("storage", "static_read")
    )
    cache = fields.get("cache")
    manager = str(fields.get("managed_by") or STORAGE)
    if manager not in (STORAGE, IMPL):
        raise InvalidInputError(f"key '{place}.managed_by' must be {STORAGE} or {IMPL}")
    return Warehouse(
        0,
        name,
        _parse_location(f"{place}.location", fields.get("location")),
        _parse_locations(f"{place}.roots", fields.get("roots")),
        storage,
        vend,
        str(fields["role_arn"]) if fields.get("role_arn") else None,
        _parse_location(f"{place}.cache", cache) if cache else None,
        _parse_locations(f"{place}.blob_roots", fields.get("blob_roots")),
        manager,
        static_read,
    )


def _parse_location(place: str, value: Any) -> str:
    """Return a location as it is written; whether it can be used is checked when the server starts."""
    if not isinstance(value, str) or not value.strip():
        raise InvalidInputError(f"key {place!r} is missing: a location is a path or a URL")
    return value


def _parse_locations(place: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value or [], list):
        raise InvalidInputError(f"key {place!r} must be a list of locations")
    return tuple(_parse_location(place, location) for location in value or [])


def _parse_issuers(url: str | None, audience: str | None, configured: Any) -> tuple[Mapping[str, str], ...]:
    if (url is None) != (audience is None):
        raise InvalidInputError("--issuer and --issuer-audience are given together")
    if not isinstance(configured or [], list):
        raise InvalidInputError("key 'issuers' must be a list")
    issuers = [{"issuer": url, "audience": audience}] if url and audience else []
    for index, issuer in enumerate(configured or []):
        place = f"issuers[{index}]"
        _check_keys(_parse_mapping(place, issuer), ISSUER_KEYS, place)
        for key in ("issuer", "audience"):
            if not issuer.get(key):
                raise InvalidInputError(f"key '{place}.{key}' is missing")
        issuers.append({key: str(value) for key, value in issuer.items()})
    return tuple(issuers)


def _parse_backends(configured: Any) -> tuple[BackendSettings, ...]:
    backends = []
    for name, fields in _parse_mapping("backends", configured).items():
        place = f"backends.{name}"
        _check_name(name, "a backend's name")
        _check_keys(_parse_mapping(place, fields), BACKEND_KEYS, place)
        impl = (fields or {}).get("impl")
        if not isinstance(impl, str) or not impl:
            raise InvalidInputError(f"key '{place}.impl' is missing: iceberg, polaris, unity, dir, or a class path")
        properties = _parse_mapping(f"{place}.properties", fields.get("properties"))
        text_properties = {str(key): _format_property(value) for key, value in properties.items()}
        roots = _parse_locations(f"{place}.roots", fields.get("roots")) or _default_roots(text_properties)
        backends.append(
            BackendSettings(
                name, impl, text_properties, tuple(_normalize_root(f"{place}.roots", root) for root in roots)
            )
        )
    return tuple(backends)


def _default_roots(properties: Mapping[str, str]) -> tuple[str, ...]:
    """Return the client's property `root`, below which it puts tables declared without a location, as the only root."""
    return tuple(value for key, value in properties.items() if key.rpartition(".")[2] == "root" and value)


def _normalize_root(place: str, location: str) -> str:
    """Return an absolute root, after checking that it is a valid location."""
    absolute = location if locations.is_uri(location) else str(Path(location).absolute())
    try:
        locations.key(absolute)
    except InvalidInputError as error:
        raise InvalidInputError(f"key {place!r}: {error}") from None
    return absolute


def _format_property(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _parse_mapping(place: str, value: Any) -> Mapping[str, Any]:
    if value is None:
        return MappingProxyType({})
    if not isinstance(value, dict):
        raise InvalidInputError(f"key {place!r} must hold keys and values")
    return value
