"""Write the map of modules into docs/architecture.md, from the first lines of their docstrings: `make map`."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "lancehouse"
PAGE = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- map: `make map` writes what follows -->\n", "<!-- end of the map -->\n"


def first_line(file: Path) -> str:
    """Return the first line of a module's docstring."""
    docstring = ast.get_docstring(ast.parse(file.read_text()))
    if not docstring:
        raise SystemExit(f"{file.relative_to(ROOT)} has no docstring")
    return docstring.splitlines()[0]


def write_map() -> str:
    """Return the map: a table for each package, in the order of their names."""
    packages = sorted({file.parent for file in SOURCE.rglob("*.py") if "migrations" not in file.parts})
    sections = []
    for package in packages:
        name = package.relative_to(SOURCE).as_posix()
        title = "lancehouse" if package == SOURCE else f"lancehouse/{name}"
        rows = [
            f"| `{file.name}` | {first_line(file).replace('|', chr(92) + '|')} |"
            for file in sorted(package.glob("*.py"))
            if file.name != "__init__.py"
        ]
        if rows:
            about = first_line(package / "__init__.py")
            sections.append(
                "\n".join([f"### `{title}/`", "", about, "", "| module | what it holds |", "|---|---|", *rows])
            )
    return "\n\n".join(sections) + "\n"


def main() -> None:
    """Put the map into the page; with `--check`, fail if it is not there."""
    page = PAGE.read_text()
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    mapped = f"{before}{BEGIN}\n{write_map()}\n{END}{after}"
    if mapped == page:
        return
    if "--check" in sys.argv[1:]:
        raise SystemExit("the map in docs/architecture.md is out of date: run `make map`")
    PAGE.write_text(mapped)


if __name__ == "__main__":
    main()
