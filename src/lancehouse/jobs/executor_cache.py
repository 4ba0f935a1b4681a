"""Answers of a catalog that the Python workers of one Spark executor share, so that it fetches credentials only once.

Spark starts a Python process for each task that runs at once, and new ones whenever it likes. Without this module each
of them would describe its tables again, and renew their credentials for itself. The answers are files in the folder of
the executor's block manager, which Spark makes for one executor and removes with it. They hold credentials: nobody but
the user of the executor can read them.
"""

from __future__ import annotations

import json
import os
import re
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeVar, cast
from uuid import uuid4

from lance_namespace import (
    DescribeTableRequest,
    DescribeTableResponse,
    DescribeTableVersionRequest,
    DescribeTableVersionResponse,
    LanceNamespace,
)
from pydantic import BaseModel

from lancehouse.credentials import EXPIRES, expires_soon
from lancehouse.lake.operations import TableOperations

try:
    import fcntl
except ImportError:  # Windows, where every worker asks for itself
    fcntl = None  # type: ignore[assignment]

Json = dict[str, Any]
T = TypeVar("T", bound=BaseModel)

LOCAL_DIRS = "SPARK_LOCAL_DIRS"
"""Variable in which Spark tells its Python workers the folders of the executor's block manager."""
_BLOCK_MANAGER = re.compile(r"blockmgr-[0-9a-f-]{36}")
FOLDER = "lancehouse"
LONGEST_S = 900
"""Seconds for which an answer without an expiry is shared: its keys may be replaced."""


def find_folder() -> Path | None:
    """Return the folder that this process shares with the other workers of its executor; None if it is no worker."""
    first = os.environ.get(LOCAL_DIRS, "").partition(",")[0]
    # A cluster's administrator may set the same variable to a folder that all applications share.
    return _make_folder(Path(first)) if fcntl is not None and _BLOCK_MANAGER.fullmatch(Path(first).name) else None


@lru_cache(4)
def _make_folder(parent: Path) -> Path | None:
    folder = parent / FOLDER
    try:
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        found = folder.lstat()
    except OSError:
        return None
    is_private = stat.S_ISDIR(found.st_mode) and not found.st_mode & 0o077 and found.st_uid == os.getuid()
    return folder if is_private else None


def share(key: Sequence[object], job: str, ask: Callable[[], Json]) -> Json:
    """Return the answer of `ask`, which one worker of an executor asks for all others; each for itself elsewhere.

    Args:
        key: what is asked, and of whom; it may hold secrets.
        job: an answer for another job is not used: a table may have been dropped and created again since.
        ask: returns the answer as JSON. If that has `storage_options`, it is used until they expire.
    """
    folder = find_folder()
    if folder is None:
        return ask()
    file = folder / blake2b(json.dumps(key, default=str).encode(), digest_size=16).hexdigest()
    if (answer := _read(file, job)) is not None:
        return answer
    # Who waited for the lock finds the answer of the worker that had it.
    with _lock(file.with_suffix(".lock")):
        if (answer := _read(file, job)) is None:
            answer = ask()
            _write(file, {"job": job, "at": time.time(), "answer": answer})
    return answer


def _read(file: Path, job: str) -> Json | None:
    try:
        kept = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return None
    answer: Json = kept["answer"]
    options: Mapping[str, str] = answer.get("storage_options") or {}
    is_fresh = not expires_soon(options) if EXPIRES in options else time.time() < kept["at"] + LONGEST_S
    return answer if kept["job"] == job and is_fresh else None


def _write(file: Path, content: Json) -> None:
    """Write a file for this user alone, in one step. A full disk is no error: the next worker asks for itself."""
    part = file.with_suffix(f".{uuid4().hex}")
    with suppress(OSError):
        try:
            with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as opened:
                json.dump(content, opened)
            part.replace(file)
        finally:
            part.unlink(missing_ok=True)


@contextmanager
def _lock(file: Path) -> Iterator[None]:
    """Wait for the other workers; the system ends the lock of one that is killed."""
    try:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError:
        yield
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


class SharedNamespace:
    """A client whose descriptions of tables, and of their numbered versions, the workers of an executor share.

    Args:
        namespace: the client.
        identity: distinguishes clients of other catalogs or principals.
        job: the job that the descriptions are for.
    """

    def __init__(self, namespace: LanceNamespace, identity: Sequence[object], job: str) -> None:
        self.wrapped = namespace
        self._identity = identity
        self._job = job

    def describe_table(self, request: DescribeTableRequest) -> DescribeTableResponse:
        """Describe a table, with credentials that are good for a while; Lance calls this to renew them."""
        return self._share(request, self.wrapped.describe_table, DescribeTableResponse)

    def describe_table_version(self, request: DescribeTableVersionRequest) -> DescribeTableVersionResponse:
        """Describe a version; only a numbered one stays what it is."""
        if _request_fields(request).get("version") is None:
            return self.wrapped.describe_table_version(request)
        return self._share(request, self.wrapped.describe_table_version, DescribeTableVersionResponse)

    def _share(self, request: Any, ask: Callable[[Any], T], model: type[T]) -> T:
        answer = share(
            [*self._identity, model.__name__, sorted(_request_fields(request).items())],
            self._job,
            lambda: _to_json(ask(request)),
        )
        # Lance, which sends a dictionary, expects one.
        return cast("T", answer) if isinstance(request, Mapping) else model.model_validate(answer)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.wrapped, name)


def _request_fields(request: Any) -> Json:
    """Return the fields of a request: a model, or a dictionary, as Lance sends those for versions."""
    return dict(request) if isinstance(request, Mapping) else request.model_dump(exclude_none=True)


def _to_json(answer: BaseModel | Json) -> Json:
    return answer if isinstance(answer, dict) else answer.model_dump(mode="json", by_alias=True, exclude_none=True)


def share_descriptions(namespace: LanceNamespace, identity: Sequence[object], job: str) -> LanceNamespace:
    """Wrap one of our clients so that the workers of an executor share what it tells of tables; elsewhere return it."""
    if find_folder() is None or not isinstance(namespace, TableOperations):
        return namespace
    return cast("LanceNamespace", SharedNamespace(namespace, identity, job))
