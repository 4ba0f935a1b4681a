"""`lancehouse serve`: run the server."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, TypeVar

import click

from lancehouse.server.setting_table import SERVER_SETTINGS

F = TypeVar("F", bound=Callable[..., Any])


def _add_setting_options(command: F) -> F:
    """Add an option to a command for each setting of the server."""
    for setting in reversed(SERVER_SETTINGS):
        default_text = f"  [default: {setting.default_text}]" if setting.default_text else ""
        extra: dict[str, Any] = {"is_flag": True, "flag_value": "true"} if setting.is_flag else {"metavar": "VALUE"}
        command = click.option(
            setting.option,
            setting.name,
            envvar=setting.variable,
            default=None,
            help=setting.help + default_text,
            **extra,
        )(command)
    return command


@click.command()
@click.option(
    "--warehouse",
    "warehouses",
    multiple=True,
    metavar="NAME=LOCATION",
    envvar="LANCEHOUSE_WAREHOUSE",
    help="a warehouse to serve; by default those that the database knows, "
    "else main beside SQLite's file or, with Postgres, in the data folder",
)
@click.option(
    "--root",
    "roots",
    multiple=True,
    metavar="NAME=LOCATION",
    envvar="LANCEHOUSE_ROOT",
    help="another location where tables of the warehouse may be",
)
@click.option(
    "--config", "file", envvar="LANCEHOUSE_SERVER_CONFIG", metavar="FILE", help="YAML file with the same settings"
)
@_add_setting_options
def serve(warehouses: tuple[str, ...], roots: tuple[str, ...], file: str | None, **options: str | None) -> None:
    """Serve an Iceberg REST catalog with Lance tables in it."""
    from lance_namespace.errors import InvalidInputError

    if missing := [name for name in ("uvicorn", "orjson", "pyiceberg", "sqlalchemy") if find_spec(name) is None]:
        raise InvalidInputError(f"the server needs {', '.join(missing)}: pip install 'lancehouse[server]'")
    from lancehouse.server import run
    from lancehouse.server.settings import ServerSettings
    from lancehouse.server.workers import WorkerSupervisor

    settings = ServerSettings.parse(options, warehouses, roots, file)
    with run.listen(settings) as listener:
        served = run.prepare(settings, click.echo)

        def ready() -> None:
            click.echo(run.ready_line(settings, listener, served))

        if settings.workers == 1 and settings.max_memory is None:
            run.run(settings, listener, served, ready)
        else:
            WorkerSupervisor(settings, listener, served).run(ready)
