"""`%%lance`: run a cell of a notebook as SQL on the tables of a catalog. `%load_ext lancehouse.spark` loads it."""

from __future__ import annotations

from typing import Any

from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from lance_namespace.errors import LanceNamespaceError
from pyspark.sql import DataFrame

from lancehouse.spark.catalog import LanceCatalog
from lancehouse.spark.engine import translate_task_errors

MOST = 20
USAGE = "%%lance [CATALOG] [-o NAME] [-n ROWS]: variables that hold the LanceCatalog, and that take the DataFrame"


def register(shell: InteractiveShell) -> None:
    """Add the magic to a notebook."""

    def lance(line: str, cell: str | None = None) -> Any:
        return run_cell(shell, line, cell)

    shell.register_magic_function(lance, "line_cell", "lance")  # type: ignore[arg-type]


def run_cell(shell: InteractiveShell, line: str, cell: str | None) -> Any:
    """Run SQL; return its first rows as a pandas DataFrame, or nothing if `-o` names a variable for all of them.

    Raises:
        UsageError: an option or a variable is not known; or the SQL failed.
    """
    words = line.split() if cell is not None else []
    options = {"-o": "", "-n": str(MOST)}
    names = []
    while words:
        word = words.pop(0)
        if word in options and words:
            options[word] = words.pop(0)
        elif word.isidentifier():
            names.append(word)
        else:
            raise UsageError(f"{word} is not known; {USAGE}")
    if len(names) > 1 or not options["-n"].isdecimal() or (options["-o"] and not options["-o"].isidentifier()):
        raise UsageError(USAGE)
    catalog = _find_catalog(shell.user_ns, *names)
    try:
        rows: DataFrame = catalog.sql(line if cell is None else cell)
        if options["-o"]:
            shell.user_ns[options["-o"]] = rows
            return None
        with translate_task_errors():
            return rows.limit(int(options["-n"])).toPandas()
    except LanceNamespaceError as error:  # one sentence instead of a traceback through this package
        raise UsageError(str(error)) from None


def _find_catalog(variables: dict[str, Any], name: str | None = None) -> LanceCatalog:
    if name is not None:
        value = variables.get(name)
        if not isinstance(value, LanceCatalog):
            raise UsageError(f"{name} is no LanceCatalog; {USAGE}")
        return value
    catalogs = {
        id(value): (variable, value)
        for variable, value in variables.items()
        if isinstance(value, LanceCatalog) and not variable.startswith("_")
    }
    if len(catalogs) != 1:
        names = ", ".join(variable for variable, _ in catalogs.values())
        raise UsageError(f"name one of {names}: %%lance NAME" if names else "make a LanceCatalog first: cat = …")
    [(_, catalog)] = catalogs.values()
    return catalog
