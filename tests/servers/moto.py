"""An S3, with IAM and STS, on 127.0.0.1: moto's server in a process of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from threading import Thread
from typing import IO, Any
from uuid import uuid4

from botocore.session import Session

REGION = "us-east-1"
ACCESS_KEY = "AKIDEXAMPLE00"
SECRET_KEY = "verysecretvalue"
ROLE = "arn:aws:iam::123456789012:role/lancehouse"


class MotoError(RuntimeError):
    """The server did not come up; the message ends with its log."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """An empty bucket, and how it is reached."""

    name: str
    endpoint: str
    options: Mapping[str, str] = field(repr=False)
    """Storage options in Lance's names."""

    @property
    def uri(self) -> str:
        """Its address, without a slash at its end."""
        return f"s3://{self.name}"

    def keys(self, prefix: str = "") -> list[str]:
        """The objects in it."""
        pages = client("s3", self.endpoint).get_paginator("list_objects_v2").paginate(Bucket=self.name, Prefix=prefix)
        return [found["Key"] for page in pages for found in page.get("Contents", [])]


@dataclass(frozen=True, slots=True)
class Moto:
    """A running server."""

    endpoint: str
    requests: list[str] = field(default_factory=list, repr=False)
    """All requests so far, by method."""

    def count_requests(self) -> Counter[str]:
        """All requests so far, by method: LIST is a GET of a bucket, and a POST deletes several objects."""
        return Counter("DELETE" if method == "POST" else method for method in self.requests)

    @property
    def options(self) -> dict[str, str]:
        """Storage options in Lance's names."""
        return storage_options(self.endpoint)

    def bucket(self) -> Bucket:
        """A new bucket."""
        name = f"bucket-{uuid4().hex[:12]}"
        client("s3", self.endpoint).create_bucket(Bucket=name)
        return Bucket(name, self.endpoint, self.options)


def storage_options(endpoint: str) -> dict[str, str]:
    """Options of a store on this machine, in Lance's names."""
    return {
        "aws_access_key_id": ACCESS_KEY,
        "aws_secret_access_key": SECRET_KEY,
        "aws_region": REGION,
        "aws_endpoint": endpoint,
        "allow_http": "true",
    }


@cache
def client(service: str, endpoint: str) -> Any:
    """A client of one of the server's services; to make one takes half a second."""
    return Session().create_client(
        service,
        region_name=REGION,
        endpoint_url=endpoint,
        aws_access_key_id=ACCESS_KEY,
        aws_secret_access_key=SECRET_KEY,
    )


@contextmanager
def start_moto() -> Iterator[Moto]:
    """Run the server until the block ends.

    Raises:
        MotoError: it did not come up.
    """
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        moto = Moto(_endpoint(process.stdout))
        drain = Thread(target=_drain, args=(process.stdout, moto.requests))
        try:
            drain.start()
            yield moto
        finally:
            process.kill()
            if drain.ident is not None:
                drain.join()


def _endpoint(log: IO[str]) -> str:
    """The address, as soon as the server says it."""
    said = []
    for line in log:
        said.append(line)
        if match := re.search(r"http://127\.0\.0\.1:\d+", line):
            return match[0]
    raise MotoError("moto did not come up; its log ends:\n" + "".join(said[-40:]))


def _drain(log: IO[str], requests: list[str]) -> None:
    for line in log:
        if match := re.search(r'"(GET|HEAD|PUT|POST|DELETE) /([^ ?]*)(\S*) HTTP', line):
            method, path, query = match.groups()
            requests.append("LIST" if method == "GET" and ("list-type" in query or "/" not in path) else method)
