"""Where a table is, and what can be said of it without knowing its catalog."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, Self, runtime_checkable
from urllib.parse import quote

import lance
from lance.file import LanceFileSession
from lance_namespace import LanceNamespace
from lance_namespace.errors import InvalidInputError, LanceNamespaceError, TableNotFoundError
from lance_namespace_urllib3_client.models.json_arrow_schema import JsonArrowSchema
from lance_namespace_urllib3_client.models.table_basic_stats import TableBasicStats

from lancehouse.errors import CommitStateUnknownError
from lancehouse.lake.confinement import Confinement, require_inside, require_no_links
from lancehouse.lake.errors import translate_errors
from lancehouse.locations import local_folder as local_folder
from lancehouse.schema.jsonarrow import to_jsonarrow

MAIN = "main"
"""Lance's name for the branch that has none."""

StorageOptions = Mapping[str, str]

_BRANCH = re.compile(r"[\w.-]+(/[\w.-]+)*")
_UNKNOWN = re.compile(r"Commit result for version (\d+) is unknown")


@dataclass(frozen=True, slots=True)
class TableRef:
    """The address of a table, by its location or by its name in a namespace; it can be sent to other processes.

    A table that is opened by its name has its credentials refreshed, and its commits go through the namespace where it
    manages versions.
    """

    location: str | None = None
    storage_options: StorageOptions = field(default_factory=dict, repr=False, hash=False)
    namespace: LanceNamespace | None = field(default=None, repr=False, hash=False)
    id: tuple[str, ...] = ()
    version: int | None = None
    branch: str | None = None
    tag: str | None = None
    confinement: Confinement | None = field(default=None, repr=False, hash=False, compare=False)
    """What of the table may be opened; None: whatever it names. Where there is a namespace, that one says it."""

    def __post_init__(self) -> None:
        if (self.location is None) == (self.namespace is None or not self.id):
            raise InvalidInputError("a table is addressed by its location, or by a namespace and its id there")
        if self.tag is not None and (self.version is not None or self.branch is not None):
            raise InvalidInputError("a tag names a version of a branch: it goes with neither version nor branch")
        if self.branch:
            require_branch_name(self.branch)

    @classmethod
    def in_namespace(
        cls,
        namespace: LanceNamespace,
        id: Sequence[str] | None,
        *,
        version: int | None = None,
        branch: str | None = None,
        tag: str | None = None,
    ) -> Self:
        """A table that a request names.

        Raises:
            InvalidInputError: the request has no id, or tag together with version or branch.
        """
        if not id:
            raise InvalidInputError("the request names no table: its id is missing")
        confinement = getattr(namespace, "confinement", None)
        return cls(None, {}, namespace, tuple(id), version, branch, tag, confinement)

    def open(self) -> lance.LanceDataset:
        """The table as it is now, or at the version that this address names.

        Raises:
            TableNotFoundError: there is no such table, or it is only declared.
            TableVersionNotFoundError, TableBranchNotFoundError, TableTagNotFoundError: the table has no such thing.
            PermissionDeniedError: it names files in places that are not to be opened.
        """
        address: dict[str, Any] = (
            {"uri": self.location}
            if self.location is not None
            else {"namespace_client": self.namespace, "table_id": list(self.id)}
        )
        if self.confinement is not None and self.location is not None:
            require_no_links(self.location, reads_rows=self.confinement.reads_rows)
        with translate_errors(self, self.storage_options):
            if self.branch in (None, MAIN):
                version = self.version if self.tag is None else self.tag
                dataset = lance.dataset(**address, version=version, storage_options=self._lance_options())
                location = dataset.uri
            else:
                main = lance.dataset(**address, storage_options=self._lance_options())
                location, dataset = main.uri, main.checkout_version((self.branch, None))
                if self.version is not None:
                    dataset = dataset.checkout_version((self.branch, self.version))
            if self.confinement is not None:
                require_inside(dataset, location, self.confinement)
            return dataset

    def exists(self) -> bool:
        """Whether there is such a table, with at least one version."""
        try:
            self.open()
        except TableNotFoundError:
            return False
        return True

    @contextmanager
    def dataset(self) -> Iterator[lance.LanceDataset]:
        """The table, for calls of pylance whose failures become Lance errors."""
        dataset = self.open()
        with translate_refusals(self.namespace, self.id), translate_errors(self, self.storage_options):
            yield dataset

    def _lance_options(self) -> dict[str, str] | None:
        return dict(self.storage_options) or None

    def __str__(self) -> str:
        at = (("version", self.version), ("branch", self.branch), ("tag", self.tag))
        named = self.location if self.location is not None else f"table {'.'.join(self.id)}"
        return named + "".join(f" {name} {value}" for name, value in at if value is not None)


@runtime_checkable
class RefusalReporter(Protocol):
    """A namespace that knows why it refused a commit."""

    def commit_mark(self) -> int:
        """A moment."""

    def commit_refusal(self, id: Sequence[str], version: int, since: int = 0) -> LanceNamespaceError | None:
        """Why a version was refused since a moment; None if it may have been accepted."""


@contextmanager
def translate_refusals(namespace: LanceNamespace | None, id: Sequence[str]) -> Iterator[None]:
    """Turn a commit of which pylance only knows that it failed into the reason why the namespace refused it.

    pylance says of every refusal, be it a missing permission, that the result is unknown.
    """
    since = namespace.commit_mark() if isinstance(namespace, RefusalReporter) else 0
    try:
        yield
    except CommitStateUnknownError as error:
        version = _UNKNOWN.search(str(error))
        if version is None or not isinstance(namespace, RefusalReporter):
            raise
        refused = namespace.commit_refusal(id, int(version[1]), since)
        if refused is None:
            raise
        raise refused from error


@dataclass(frozen=True, slots=True)
class TableDetails:
    """What describing a table in detail adds to its catalog entry."""

    version: int
    schema: JsonArrowSchema
    stats: TableBasicStats
    metadata: dict[str, str]


def read_details(table: TableRef) -> TableDetails:
    """Open a table and describe it. `metadata` is the summary of its manifest: rows, files and bytes.

    Raises:
        TableNotFoundError: there is no such table, or it is only declared.
        TableSchemaValidationError: a type that the interface has no word for.
    """
    with table.dataset() as dataset:
        schema, latest, stats = dataset.schema, dataset.get_version(), dataset.stats.dataset_stats()
    return TableDetails(
        version=latest["version"],
        schema=to_jsonarrow(schema),
        stats=TableBasicStats(num_deleted_rows=stats["num_deleted_rows"], num_fragments=stats["num_fragments"]),
        metadata=latest["metadata"],
    )


def exists(location: str, storage_options: StorageOptions | None = None) -> bool:
    """Whether there is a Lance dataset with at least one version.

    Only a place that could be looked at and holds none is False. No access, an unknown bucket or a store that does not
    answer raises.
    """
    return TableRef(location, storage_options or {}).exists()


def require_branch_name(name: str) -> None:
    """Refuse what no branch is called: a branch is a folder, and such a name might lead out of its table.

    Raises:
        InvalidInputError: Lance allows no branch of that name.
    """
    if not _BRANCH.fullmatch(name) or ".." in name or "." in name.split("/"):
        raise InvalidInputError(f"{name!r} is no name of a branch: letters, digits and . - _, parted by /")


def require_below(location: str, file: str) -> None:
    """Refuse the name of a file that would lead out of a location, or says nothing.

    Raises:
        InvalidInputError: it would.
    """
    if not {"", ".", ".."}.isdisjoint(file.split("/")):
        raise InvalidInputError(f"{file!r} is no file below {location}")


def delete_file(location: str, options: dict[str, str], file: str) -> None:
    """Delete a file below a location, if nobody else just did: object stores do not even tell.

    Raises:
        InvalidInputError: it is not below it.
    """
    require_below(location, file)
    if folder := local_folder(location):
        (folder / file).unlink(missing_ok=True)
    else:
        # A name such as `a%2Fb.json` is encoded once more by `delete_file`, but not as part of the session's address.
        LanceFileSession(f"{location.rstrip('/')}/{quote(file)}", storage_options=options or None).delete_file("")
