"""What may be opened for the tables of a backend: its roots, and other places for those who may read all of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from lancehouse.lake.confinement import outside_error, require_no_links
from lancehouse.locations import find_link, is_inside, local_folder


@dataclass(frozen=True, slots=True)
class BackendConfinement:
    """Restricts what is opened of a backend's tables to its roots. Implements `Confinement`.

    Files that a table takes from outside its own location may belong to a namespace that the caller may not read, and
    their location does not show which. So only callers who may read the whole backend get them.
    """

    reads_rows: ClassVar = True
    backend: str
    roots: tuple[str, ...]
    reads_all: bool
    opens: bool = True
    """Whether tables are opened, not only described."""

    def for_descriptions(self) -> Self:
        """Return one for tables that are described and not opened."""
        return replace(self, opens=False)

    def require_table(self, location: str, announced: Sequence[str] = ()) -> None:
        """Refuse a table outside of the roots, unless the catalog announces its location and it is not on this machine.

        Raises:
            OutsideError: it lies elsewhere, or behind a symlink.
        """
        remote = [place for place in announced if local_folder(place) is None]
        if not is_inside(location, (*self.roots, *remote)):
            raise outside_error("the table lies at", location, self._remedy)
        if not self.opens:
            return
        if link := find_link(location, self.roots):
            raise outside_error("the table lies behind a symbolic link,", link, "put the folder itself in its place")
        require_no_links(location)

    def require_choice(self, location: str, announced: Sequence[str] = ()) -> None:
        """Refuse the same locations as `require_table`."""
        self.require_table(location, announced)

    def require_base(self, base: str) -> None:
        """Refuse a base path that the caller may not read.

        Raises:
            OutsideError: the caller may not read it.
        """
        self._require("the table takes files from", base)

    def require_blob(self, uri: str) -> None:
        """Refuse an external blob that the caller may not read.

        Raises:
            OutsideError: the caller may not read it.
        """
        self._require("the table has an external blob,", uri)

    def _require(self, what: str, location: str) -> None:
        if not is_inside(location, self.roots):
            raise outside_error(what, location, self._remedy)
        if not self.reads_all:
            raise outside_error(what, location, f"that takes a grant on all of {self.backend}")

    @property
    def _remedy(self) -> str:
        return f"an operator may name the place in roots of backend {self.backend}"
