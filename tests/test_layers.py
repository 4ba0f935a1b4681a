"""Imports point down the layers of docs/architecture.md, and other libraries stay in their packages."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "lancehouse"

BASE = {
    "CATALOGS",  # the table in lancehouse/__init__.py
    "connection",
    "deprecation",
    "documents",
    "caches",
    "suggestions",
    "tracing",
    "credentials",
    "errors",
    "identifiers",
    "in_process",
    "locations",
    "log_lines",
    "measures",
    "maintenance_policy",
    "modes",
    "named_catalogs",
    "paging",
    "parsing",
    "properties",
    "row_policy",
    "secrets",
    "settings",
    "catalog_walk",
    "protocol_models",
}
SHAPES = {"schema", "wire"}
MAY_IMPORT = {
    **dict.fromkeys(BASE, BASE),
    "schema": BASE,
    "wire": BASE,
    "lake": BASE | {"schema"},
    "store": BASE,
    "clients": BASE | SHAPES | {"lake"},
    "catalog": BASE | SHAPES | {"lake", "store"},
    "jobs": BASE | SHAPES | {"lake"},
    "admin": BASE | SHAPES | {"lake", "jobs", "clients"},
    "gateway": BASE | SHAPES | {"lake"},
    "server": BASE | SHAPES | {"catalog", "gateway"},
    "server/console": BASE | SHAPES | {"catalog", "gateway", "lake", "server"},
    "spark": BASE | SHAPES | {"lake", "jobs"},
    "pipelines": BASE | SHAPES | {"lake", "jobs", "spark"},
    "maintenance": BASE | SHAPES | {"lake", "store", "catalog", "clients", "jobs", "gateway", "server", "spark"},
    "conformance": BASE,
}
"""What each package may import besides itself; `cli` may import all."""

ONE_USER = {
    "lance": {"lake", "jobs", "conformance", "server/console"},
    "urllib3": {"clients/http.py", "catalog/webhooks.py"},
    "httptools": {"clients/http.py"},
    "sqlalchemy": {"store"},
    "sqlglot": {"cli/sql.py", "gateway/sql.py", "spark"},
    "click": {"cli"},
    "rich": {"cli"},
    "pyspark": {"spark", "pipelines"},
    "opentelemetry": {"tracing"},
    "openlineage": {"jobs/lineage_events.py"},
    "botocore": {"clients/rest.py", "catalog/temporary_credentials.py"},
    "azure": {"catalog/temporary_credentials.py"},
    "google": {"catalog/temporary_credentials.py"},
}
"""Which packages, or files, may import a library."""


def imports(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative imports hide the layer"
            module = node.module or ""
            yield from ([f"{module}.{alias.name}" for alias in node.names] if module == "lancehouse" else [module])


def files() -> list[Path]:
    return [file for file in SOURCE.rglob("*.py") if file.parent != SOURCE or file.stem in BASE]


@pytest.mark.parametrize("file", files(), ids=lambda file: str(file.relative_to(SOURCE)))
def test_imports_point_down(file: Path) -> None:
    here = file.relative_to(SOURCE)
    package = here.parts[0].removesuffix(".py")
    if here.is_relative_to("server/console"):
        package = "server/console"
    for name in imports(file):
        library, *rest = name.split(".")
        if library == "lancehouse" and package != "cli":
            assert not rest or rest[0] == package or rest[0] in MAY_IMPORT[package], f"{here} imports {name}"
        if library in ONE_USER and (package, library) != ("cli", "lance"):
            assert package in ONE_USER[library] or here.as_posix() in ONE_USER[library], f"{here} imports {library}"
