"""Azure's blobs on 127.0.0.1: Azurite, and in front of it what it lacks, tokens for a folder.

`python -m tests.servers.azurite` installs it, where there is Node.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit
from uuid import uuid4

from azure.storage import blob, filedatalake

from lancehouse.spark.java import cache_folder
from tests.servers.faults import FaultProxy
from tests.servers.jars import once
from tests.servers.loopback import Answer, Request
from tests.servers.npm import NpmNotFoundError, find_npm
from tests.servers.programs import ProgramError, find_free_port, run_program

VERSION = "3.37.0"
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Azurite's own, which its documentation has."""
INSTALL_TIMEOUT_S = 400


@dataclass(frozen=True, slots=True)
class Container:
    """An empty container, and how it is reached."""

    name: str
    endpoint: str

    @property
    def uri(self) -> str:
        """Its address as Lance and Iceberg know it, without a slash at its end."""
        return f"abfss://{self.name}@{ACCOUNT}.dfs.core.windows.net"

    @property
    def options(self) -> dict[str, str]:
        """Storage options in Lance's names."""
        return {
            "azure_storage_account_name": ACCOUNT,
            "azure_storage_account_key": KEY,
            "azure_storage_endpoint": self.endpoint,
            "allow_http": "true",
        }

    def keys(self, prefix: str = "") -> list[str]:
        """The blobs in it."""
        return [found.name for found in _client(self.endpoint, self.name).list_blobs(name_starts_with=prefix)]


@dataclass(frozen=True, slots=True)
class Azurite:
    """A running server."""

    endpoint: str

    def container(self, endpoint: str | None = None) -> Container:
        """A new container; reached at another endpoint, if one is given."""
        name = f"container-{uuid4().hex[:12]}"
        _client(self.endpoint, name).create_container()
        return Container(name, endpoint or self.endpoint)


def _client(endpoint: str, container: str) -> blob.ContainerClient:
    return blob.ContainerClient(endpoint, container, KEY)


def find_program() -> Path | None:
    """The script that Node runs; None if it was not installed."""
    script = cache_folder() / "npm" / f"azurite-{VERSION}" / "node_modules/azurite/dist/src/blob/main.js"
    return script if script.exists() else None


def install() -> None:
    """Install it, unless that was done.

    Raises:
        NpmNotFoundError: there is no Node, or npm cannot have it.
    """
    once(cache_folder() / "npm" / f"azurite-{VERSION}", _install)


def _install(folder: Path) -> None:
    _, npm = find_npm()
    options = ["--no-save", "--no-package-lock", "--no-audit", "--no-fund", "--ignore-scripts", "--omit=optional"]
    try:
        done = subprocess.run(
            [npm, "install", *options, f"azurite@{VERSION}"],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=INSTALL_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        raise NpmNotFoundError(f"npm did not install Azurite in {INSTALL_TIMEOUT_S} s") from None
    if done.returncode != 0:
        raise NpmNotFoundError(f"npm could not install Azurite: {done.stderr[-1000:]}")


@contextmanager
def start_azurite(folder: Path) -> Iterator[Azurite]:
    """Run the server until the block ends.

    Raises:
        ProgramError: it was not installed, or did not come up.
    """
    script = find_program()
    if script is None:
        raise ProgramError("Azurite was not installed: `python -m tests.servers.azurite` does it")
    port = find_free_port()
    command: list[str | Path] = [
        *("node", script, "--blobHost", "127.0.0.1", "--blobPort", str(port), "--inMemoryPersistence"),
        *("--silent", "--skipApiVersionCheck", "--disableTelemetry"),
    ]
    with run_program(command, port, folder / "azurite.log"):
        yield Azurite(f"http://127.0.0.1:{port}/{ACCOUNT}")


class FolderGate(FaultProxy):
    """An account with a hierarchical namespace: checks tokens for a folder as Azure documents it, and passes the rest.

    Azure cuts the path of a request to the depth that the token names (`sdd`), and signs that. So a token is not good
    for a batch of deletes (POST), which is a request to the container.
    """

    permissions: set[str]
    """All that tokens were used for."""

    def __init__(self, upstream: str) -> None:
        self.permissions = set()
        super().__init__(upstream)

    def answer(self, request: Request) -> Answer:
        query = request.query
        if query.get("restype") == "account":
            return Answer(200, b"", {"x-ms-sku-name": "Standard_LRS", "x-ms-is-hns-enabled": "true"})
        if "sig" not in query:
            return super().answer(request)
        source = request.headers.get("x-ms-copy-source")
        if source is not None:
            source_query = dict(parse_qsl(urlsplit(source).query))
            if not is_folder_token_valid("r", urlsplit(source).path, source_query):
                return _refusal()
            del request.headers["x-ms-copy-source"]
            request.headers["x-ms-copy-source"] = self._sign(source.partition("?")[0], source_query)
        permission = _permission(request)
        path = request.path
        if permission == "l":
            path = f"{request.path.rstrip('/')}/{quote(query.get('prefix', ''))}"
        if not is_folder_token_valid(permission, path, query):
            return _refusal()
        self.permissions.add(permission)
        return super().answer(replace(request, target=self._sign(request.path, query)))

    def _sign(self, path: str, query: dict[str, str]) -> str:
        """The target with a token that Azurite understands."""
        container = urlsplit(path).path.split("/")[2]
        token = filedatalake.generate_file_system_sas(
            ACCOUNT, container, KEY, "racwdl", datetime.now(UTC) + timedelta(hours=1)
        )
        rest = {name: value for name, value in query.items() if not name.startswith("s") or name == "snapshot"}
        return f"{path}?{urlencode(rest)}{'&' if rest else ''}{token}"


def _permission(request: Request) -> str:
    if request.query.get("comp") == "list":
        return "l"
    return {"GET": "r", "HEAD": "r", "PUT": "w", "DELETE": "d", "POST": "d"}[request.method]


def is_folder_token_valid(permission: str, path: str, query: dict[str, str]) -> bool:
    """Is the token for a folder, signed for the one that this path lies in, not over, and for this permission?"""
    if (
        query.get("sr") != "d"
        or permission not in query["sp"]
        or query["se"] < f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
    ):
        return False
    _, account, container, *names = [unquote(name) for name in path.split("/")]
    depth = int(query["sdd"])
    if len(names) <= depth:  # the folder itself is below it only with a slash at its end
        return False
    resource = "/".join(["", "blob", account, container, *names[:depth]])
    fields: tuple[str, ...] = (
        query["sp"],
        query.get("st", ""),
        query["se"],
        resource,
        query.get("si", ""),
        query.get("sip", ""),
    )
    fields += (query.get("spr", ""), query["sv"], query["sr"], "", "", *[""] * 5)
    signature = hmac.digest(base64.b64decode(KEY), "\n".join(fields).encode(), hashlib.sha256)
    return hmac.compare_digest(base64.b64encode(signature).decode(), query["sig"])


def _refusal() -> Answer:
    body = "<?xml version='1.0'?><Error><Code>AuthorizationFailure</Code><Message>not with this token</Message></Error>"
    headers = {"Content-Type": "application/xml", "x-ms-error-code": "AuthorizationFailure"}
    return Answer(403, body.encode(), headers)


if __name__ == "__main__":
    try:
        install()
    except NpmNotFoundError as error:
        print(f"{error}\nThe tests on Azure say that they are skipped.")
