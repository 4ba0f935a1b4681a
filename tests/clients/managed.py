"""Tables whose versions an Iceberg catalog manages: on Iceberg's own server and on ours, seen from outside."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from unittest.mock import patch
from urllib.parse import quote
from urllib.request import urlopen

import lance
import pyarrow as pa
from lance_namespace import (
    CountTableRowsRequest,
    CreateTableRequest,
    LanceNamespace,
    ListTableVersionsRequest,
)
from lance_namespace.errors import InternalError
from pyiceberg.catalog.rest import RestCatalog

from lancehouse import IcebergNamespace
from lancehouse.lake.dataset import TableRef
from lancehouse.lake.manifests import ManifestStore
from lancehouse.lake.versions import list_manifests
from tests.catalogs import LiveCatalog
from tests.lake.folder import stream
from tests.servers.faults import FaultProxy
from tests.servers.lancehouse import Served

Json = dict[str, Any]
Id = list[str]

HINT = "_versions/latest_version_hint.json"
NO = json.dumps({"error": {"message": "not you", "type": "ForbiddenException", "code": 403}})


@dataclass(frozen=True)
class ManagedCatalog(LiveCatalog):
    """An Iceberg server, Iceberg's own or ours, that manages the versions of every new table."""

    def connect(self, **more: str) -> IcebergNamespace:
        return IcebergNamespace(**{**self.properties, **more})

    @cached_property
    def namespace(self) -> IcebergNamespace:
        """One client, which remembers."""
        return self.connect()

    @property
    def is_ours(self) -> bool:
        return self.name == "lancehouse"

    @property
    def endpoint(self) -> str:
        return self.properties["endpoint"]

    def behind(self, proxy: FaultProxy, **more: str) -> IcebergNamespace:
        """Another client, behind a proxy; it does not wait long."""
        patience = {"max_retries": "1", "read_timeout_millis": "3000"}
        return self.connect(endpoint=proxy.uri, **{**patience, **more})

    def table(self, name: str = "t", count: int = 10) -> Id:
        """A table with one version."""
        made = self.id(name)
        self.namespace.create_table(CreateTableRequest(id=made), stream(rows(count)))
        return made

    def entry(self, id: Id) -> Json:
        """What the server says of a table, in its own words."""
        levels = quote(id[1], safe="")
        prefix = f"/{id[0]}" if self.is_ours else ""
        with urlopen(f"{self.endpoint}/v1{prefix}/namespaces/{levels}/tables/{quote(id[-1], safe='')}") as answer:
            told: Json = json.load(answer)["metadata"]
        return told

    def at(self, id: Id, ref: str = "main") -> int | None:
        """Where a branch or tag is."""
        found = self.entry(id).get("refs", {}).get(ref)
        return None if found is None else int(found["snapshot-id"])

    def snapshots(self, id: Id) -> dict[int, Json]:
        """The snapshots by their ids."""
        return {each["snapshot-id"]: each for each in self.entry(id).get("snapshots", [])}

    def columns(self, id: Id) -> list[str]:
        """The names of the columns of the current schema."""
        entry = self.entry(id)
        [current] = [each for each in entry["schemas"] if each["schema-id"] == entry["current-schema-id"]]
        return [field["name"] for field in current["fields"]]

    def files(self, id: Id) -> set[str]:
        """The files of a table, without Iceberg's and without the hint that plain Lance leaves."""
        return files_in(self.folder(id))

    def versions(self, id: Id, branch: str | None = None) -> list[int]:
        """The versions that storage has."""
        return list(list_manifests(TableRef(self.location(id), branch=branch)))

    def iceberg(self) -> RestCatalog:
        """The same server, for pyiceberg."""
        warehouse = {"warehouse": self.parent[0]} if self.is_ours else {}
        return RestCatalog("theirs", uri=self.endpoint, **warehouse)

    def append(self, id: Id, count: int = 1, first: int = 1000) -> lance.LanceDataset:
        """Make a version by adding rows."""
        return lance.write_dataset(rows(count, first), namespace_client=self.namespace, table_id=id, mode="append")

    def check(self, id: Id) -> int:
        """See that catalog and storage agree, and that nothing is left on its way; the version."""
        plain = lance.dataset(self.location(id))
        snapshot = self.snapshots(id)[plain.version]
        assert self.at(id) == plain.version == self.open(id).version
        assert self.columns(id) == plain.schema.names
        assert snapshot["manifest-list"].startswith("lance://")
        assert quote(list_manifests(TableRef(self.location(id)))[plain.version]) in snapshot["manifest-list"]
        assert snapshot["summary"]["lance.version"] == str(plain.version)
        assert on_the_way(self.files(id)) == set()
        return int(plain.version)


def managed_by_lancehouse(server: Served) -> ManagedCatalog:
    """Our server as one, with an empty namespace."""
    properties = {"endpoint": server.iceberg, "managed_by": "impl"}
    return ManagedCatalog("lancehouse", "iceberg", properties, (server.warehouse,)).create_namespace()


def rows(count: int = 10, first: int = 0) -> pa.Table:
    """Rows with a key and a word."""
    ids = range(first, first + count)
    return pa.table({"id": pa.array(ids, pa.int64()), "word": pa.array([f"w{number}" for number in ids])})


def files_in(folder: Path) -> set[str]:
    """The files below a folder, but for Iceberg's metadata and for Lance's hint."""
    found = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    return {file for file in found if not file.startswith("metadata/") and not file.endswith(HINT)}


def on_the_way(files: set[str]) -> set[str]:
    """Manifests that are not in their places."""
    return {file for file in files if file.startswith("_staging/") or re.search(r"\.manifest-", file)}


class Staging:
    """A namespace in which no version is ever accepted; what pylance asked for is kept."""

    def __init__(self, namespace: IcebergNamespace) -> None:
        self._namespace = namespace
        self.requests: list[Json] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._namespace, name)

    def create_table_version(self, request: Json) -> None:
        self.requests.append(dict(request))
        raise InternalError("not today")


def stage_commit(
    namespace: IcebergNamespace, id: Id, commit: Callable[[lance.LanceDataset], object] | None = None
) -> Json:
    """What pylance asks for a commit, by default of one row: its manifest is staged, and nothing else has happened."""
    client = Staging(namespace)
    dataset = lance.dataset(namespace_client=client, table_id=id)
    try:
        (commit or append_one)(dataset)
    except OSError as error:
        assert "is unknown" in str(error)  # noqa: PT017
    return client.requests[0]


def append_one(dataset: lance.LanceDataset) -> None:
    """Add the row 1000."""
    lance.write_dataset(rows(1, 1000), dataset, mode="append")


class KilledError(BaseException):
    """The process was ended; no code of its own runs any more."""


@contextmanager
def killed_before_the_manifest_is_final() -> Iterator[None]:
    """A writer that dies after the catalog's yes."""

    try:
        with patch.object(ManifestStore, "publish", side_effect=KilledError):
            yield
    except KilledError:
        return
    raise AssertionError("nobody died")


def versions(namespace: LanceNamespace, table: Id, **more: Any) -> list[int]:
    """The numbers of the versions that a list has."""
    found = namespace.list_table_versions(ListTableVersionsRequest(id=table, **more)).versions
    return [version.version for version in found]


def count(namespace: LanceNamespace, table: Id, branch: str | None = None) -> int | None:
    """The rows of a table."""
    return namespace.count_table_rows(CountTableRowsRequest(id=table, branch=branch)).count


def open_table(house: ManagedCatalog, table: Id, version: int | None = None) -> lance.LanceDataset:
    return lance.dataset(namespace_client=house.namespace, table_id=table, version=version)


def write_to(namespace: IcebergNamespace, table: Id, mode: str, data: pa.Table) -> None:
    lance.write_dataset(data, namespace_client=namespace, table_id=table, mode=mode)


def write(house: ManagedCatalog, table: Id, mode: str, data: pa.Table) -> None:
    write_to(house.namespace, table, mode, data)
