"""Back up the catalog's database while servers use it."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

from lance_namespace.errors import InternalError, InvalidInputError, ServiceUnavailableError

from lancehouse.store import statements
from lancehouse.store.database import PATIENCE_S, Database

PART = ".part"
"""Suffix of the file until it is complete."""


def backup(database: Database, target: Path) -> None:
    """Copy the state of one moment into a new file, which only its owner may read.

    For SQLite the copy is a database file that can replace the original. For Postgres it is an archive for
    `pg_restore`.

    Raises:
        InvalidInputError: the file exists or cannot be created, or there is no database.
    """
    if target.exists():
        raise InvalidInputError(f"{target} exists already: choose another name")
    part = target.with_name(target.name + PART)
    if part.exists():
        raise InvalidInputError(f"{part} exists: another backup runs, or was killed; remove it then")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except OSError as error:
        raise InvalidInputError(f"{target} cannot be made: {error.strerror}") from error
    try:
        if database.file is not None:
            _copy_sqlite(database.file, part)
        else:
            _dump_postgres(database.url, part)
        _publish(part, target)
    finally:
        part.unlink(missing_ok=True)


def _copy_sqlite(file: Path, part: Path) -> None:
    if not file.exists():
        raise InvalidInputError(f"there is no database {file}")
    try:
        with (
            closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=rw", uri=True, timeout=PATIENCE_S)) as source,
            closing(sqlite3.connect(part)) as copy,
        ):
            # All pages in one step: writers do not wait, and the copy need not restart when they write.
            source.backup(copy)
            copy.execute("PRAGMA journal_mode=DELETE")
            (check_result,) = copy.execute("PRAGMA quick_check").fetchone()
    except sqlite3.Error as error:
        raise ServiceUnavailableError(f"{file} cannot be copied: {error}") from error
    if check_result != "ok":
        raise InternalError(f"{file} is damaged: {check_result}")


def _dump_postgres(url: str, part: Path) -> None:
    """Run `pg_dump`.

    The password goes into the environment, because other users can see the command line.
    """
    program = shutil.which("pg_dump")
    if program is None:
        raise InvalidInputError("a backup of Postgres needs `pg_dump` on PATH: install Postgres' client programs")
    from lancehouse.store.postgres import split_secrets

    where, variables = split_secrets(url)
    result = subprocess.run(  # noqa: S603
        [program, "--format=custom", "--no-password", f"--file={part}", f"--dbname={where}"],
        env={**os.environ, **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode != 0:
        raise ServiceUnavailableError(f"pg_dump failed: {statements.first_line(result.stderr)}")


def _publish(part: Path, target: Path) -> None:
    """Sync the file and give it its final name, without ever replacing an existing file."""
    _sync(part)
    try:
        # A link fails if the target exists, whereas a rename would replace it.
        os.link(part, target)
    except FileExistsError:
        raise InvalidInputError(f"{target} exists already: choose another name") from None
    _sync(target.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
