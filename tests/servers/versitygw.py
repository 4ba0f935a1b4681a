"""A real S3 on 127.0.0.1: versitygw in front of a folder, built once with Go from the module registry.

`python -m tests.servers.versitygw` builds it, where there is Go. It takes two minutes, so no test does.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from lancehouse.spark.java import cache_folder
from tests.servers.jars import once
from tests.servers.moto import ACCESS_KEY, REGION, SECRET_KEY, Bucket, client, storage_options
from tests.servers.programs import ProgramError, find_free_port, install_go, run_program

VERSION = "v1.8.0"
_OPERATION = re.compile(r" s3_(\w+) ")
_METHODS = {"ListObjects": "LIST", "Get": "GET", "Head": "HEAD", "Copy": "COPY", "Put": "PUT", "Delete": "DELETE"}


@dataclass(frozen=True, slots=True)
class Versitygw:
    """A running server."""

    endpoint: str
    folder: Path
    log: Path
    pid: int

    def bucket(self) -> Bucket:
        """A new bucket."""
        name = f"bucket-{uuid4().hex[:12]}"
        (self.folder / name).mkdir()
        return Bucket(name, self.endpoint, storage_options(self.endpoint))

    def add_reader(self, bucket: Bucket) -> dict[str, str]:
        """Keys, in Lance's names, of a new user who may read a bucket and not write to it."""
        access, secret = f"READER{uuid4().hex[:8]}", uuid4().hex
        root = ("-a", ACCESS_KEY, "-s", SECRET_KEY, "-er", self.endpoint)
        create = ("create-user", "-a", access, "-s", secret, "-r", "user")
        subprocess.run([str(find_program()), "admin", *root, *create], check=True, timeout=30)
        statement = {
            "Effect": "Allow",
            "Principal": {"AWS": [access]},
            "Action": ["s3:GetObject", "s3:ListBucket"],
            "Resource": [f"arn:aws:s3:::{bucket.name}", f"arn:aws:s3:::{bucket.name}/*"],
        }
        policy = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
        client("s3", self.endpoint).put_bucket_policy(Bucket=bucket.name, Policy=policy)
        return {"aws_access_key_id": access, "aws_secret_access_key": secret}

    def count_requests(self) -> Counter[str]:
        """All requests so far, by method; those of a multipart upload are PUTs."""
        text = self.log.read_text() if self.log.exists() else ""
        return Counter(_find_method(operation) for operation in _OPERATION.findall(text))


def _find_method(operation: str) -> str:
    return next((method for start, method in _METHODS.items() if operation.startswith(start)), "PUT")


def find_program() -> Path | None:
    """The program; None if it was not built."""
    program = cache_folder() / "versitygw" / VERSION / "versitygw"
    return program if program.exists() else None


def build() -> None:
    """Build the program, unless that was done.

    Raises:
        ProgramError: there is no Go, or it failed.
    """
    module = f"github.com/versity/versitygw/cmd/versitygw@{VERSION}"
    once(cache_folder() / "versitygw" / VERSION, lambda folder: install_go(module, folder))


@contextmanager
def start_versitygw(folder: Path, port: int = 0) -> Iterator[Versitygw]:
    """Run the server until the block ends; its buckets are folders below `folder`. Port 0 is a free one.

    Raises:
        ProgramError: it was not built, or did not come up.
    """
    program = find_program()
    if program is None:
        raise ProgramError("versitygw was not built: `python -m tests.servers.versitygw` does it")
    buckets, users, log = folder / "buckets", folder / "users", folder / "access.log"
    for needed in (buckets, users):
        needed.mkdir(parents=True, exist_ok=True)
    port = port or find_free_port()
    command: list[str | Path] = [
        *(program, "--access", ACCESS_KEY, "--secret", SECRET_KEY, "--region", REGION),
        *("--port", f"127.0.0.1:{port}", "--access-log", log, "--iam-dir", users, "--quiet"),
        *("posix", buckets),
    ]
    with run_program(command, port, folder / "versitygw.log") as pid:
        yield Versitygw(f"http://127.0.0.1:{port}", buckets, log, pid)


if __name__ == "__main__":
    try:
        build()
    except ProgramError as error:
        print(f"{error}\nmoto stands in for a real S3 where it can; the other tests say that they are skipped.")
