"""`Fence`: refuse changes to a warehouse while the database is older than its storage, or a copy of it is at work.

Each warehouse has a small file that says which catalog wrote there last, in which epoch, and a random token that
changes with every renewal. The database knows the last tokens of its own servers. A token that it does not know was
written by a server on another copy of the database: a clone, or the original of a backup that was restored.

The file is looked at when a server starts and then by one server for each database, which holds a lease in it. A commit
costs no request: it looks at a flag in memory.

There is no conditional write, as not all stores have one, and it would gain nothing: of two copies that renew at the
same time, the last write stays, and the other one finds at its next renewal a token that it does not know.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from threading import Event, Thread
from time import monotonic, time
from uuid import uuid4

import orjson
from lance_namespace.errors import InvalidInputError, LanceNamespaceError

from lancehouse.catalog.errors import MetadataNotFoundError, WarehouseFencedError
from lancehouse.catalog.location_access import epoch_file_location, require_no_link
from lancehouse.catalog.warehouse_files import WarehouseFiles
from lancehouse.catalog.warehouses import Warehouse
from lancehouse.store import fences
from lancehouse.store.database import Database
from lancehouse.store.maintenance import read_clock
from lancehouse.store.model import FenceRow, FenceState
from lancehouse.store.statements import Tx

log = logging.getLogger(__name__)

INTERVAL_S = 30.0
"""Default of the seconds between two renewals."""
LEASES = 2.5
"""How many intervals a lease lasts: a renewal may fail once before another server takes over."""
REFRESH_S = 5.0
"""Most seconds until a process knows what another one has found."""
FIRST_LOOK_S = 10.0
"""Most seconds for which a start waits for the stores."""
LOOK_S = 8.0
"""Most seconds for which a look waits for the stores; one that answers later is noted when it does."""
LAST_RENEWAL_S = 4.0
"""Most seconds for which a stop waits for the stores."""
MOST_TOKENS = 32
"""Tokens that are recalled. A server that stood still between its two writes for so many renewals is taken for one on
another copy."""
LARGEST_FILE = 4096
REMEDY = "reads go on; stop the other server if there is one, then run `lancehouse db adopt`"
ADOPTING = "an adoption has begun and is not finished; run `lancehouse db adopt` again"

_TEXTS = {"catalog": r"[0-9a-f]{32}", "token": r"[0-9a-f]{16}", "writer": r"[\w.:-]{1,100}"}
_NUMBERS = ("epoch", "position", "written_ms")
LARGEST = 1 << 47
"""Bound of the numbers in the file; as a time it is one that can be shown."""
LAST_EPOCH = 1 << 40
"""An adoption counts on from the epoch in the file only below this number, which no catalog reaches."""

CLOSED: tuple[FenceState, ...] = ("fenced", "adopting")
"""States in which changes are refused."""


@dataclass(frozen=True, slots=True)
class EpochFile:
    """The content of the file in a warehouse."""

    catalog: str
    epoch: int
    token: str
    position: int
    written_ms: int
    writer: str
    """Host and process, for the operator who looks for the other server."""

    @classmethod
    def parse(cls, data: bytes) -> EpochFile:
        """Parse a file, of which nothing is trusted: its words are shown to callers.

        Raises:
            InvalidInputError: no server of ours wrote it.
        """
        try:
            fields = orjson.loads(data)
        except ValueError:
            fields = None
        if not isinstance(fields, dict):
            raise InvalidInputError("it is no JSON object")
        for name, shape in _TEXTS.items():
            if not isinstance(fields.get(name), str) or not re.fullmatch(shape, fields[name], re.ASCII):
                raise InvalidInputError(f"{name!r} is missing or malformed")
        for name in _NUMBERS:
            if type(fields.get(name)) is not int or not 0 <= fields[name] < LARGEST:
                raise InvalidInputError(f"{name!r} is missing or malformed")
        return cls(**{name: fields[name] for name in (*_TEXTS, *_NUMBERS)})

    def to_json(self) -> bytes:
        """Return the bytes to write."""
        about = "Written by Lancehouse servers, to notice databases that were restored or copied. Do not change it."
        return orjson.dumps({"about": about, **{name: getattr(self, name) for name in (*_TEXTS, *_NUMBERS)}})


FoundFile = EpochFile | str | None
"""The file in a warehouse; why it is not one of ours; or None if there is none."""


def find_conflict(row: FenceRow, file: FoundFile, last_change: int) -> str | None:
    """Return why a warehouse is not this database's to change; None if it is.

    Args:
        row: what the database knows.
        file: the file in the warehouse.
        last_change: the id of the last change in the database.
    """
    if file is None:
        # A new warehouse, or the file was deleted, which is no evidence against the reason for which it was fenced.
        return row.reason if row.state == "fenced" else None
    if isinstance(file, str):
        return f"its epoch file is not one that a Lancehouse server wrote: {file}"
    sighting = f"at {datetime.fromtimestamp(file.written_ms // 1000, UTC):%Y-%m-%d %H:%M:%S} UTC by {file.writer}"
    if file.catalog != row.catalog:
        return f"another catalog's server changes it, last seen {sighting}"
    if file.epoch > row.epoch:
        return f"another copy of this database adopted it, last seen {sighting}"
    if file.epoch < row.epoch or file.token in row.tokens:
        return None
    position = max(last_change, row.position)  # the last change itself is gone if the audit was pruned
    if file.position > position:
        return (
            f"the database is older than the warehouse: it ends with change {position}, and change {file.position} "
            f"was seen {sighting}. It was restored from a backup, or a server works on another copy of it"
        )
    return f"a server works on another copy of this database, last seen {sighting}"


class Fence:
    """Which warehouses take changes, for one process of a server. Until `start`, all do."""

    def __init__(self, database: Database, warehouses: Iterable[Warehouse], interval_s: float = INTERVAL_S) -> None:
        self._database = database
        self._warehouses = tuple(warehouses)
        self._interval_s = interval_s
        self._writer = f"{re.sub(r'[^A-Za-z0-9_.-]', '-', socket.gethostname())[:80]}:{os.getpid()}"
        self._lease = uuid4().hex
        self._new_catalog = uuid4().hex
        self._rows: dict[int, FenceRow] = {}
        self._refusals: dict[int, str] = {}
        """Why changes are refused, by warehouse. Replaced as a whole, so that readers need no lock."""
        self._stop = Event()
        self._first_look_ended = Event()
        self._thread: Thread | None = None
        self._looks: dict[int, Thread] = {}
        """The last look at each warehouse."""

    def require_open(self, warehouse: Warehouse) -> None:
        """Raise if a warehouse takes no changes.

        Raises:
            WarehouseFencedError: it does not; the message says why, and what to do.
        """
        if (reason := self._refusals.get(warehouse.id)) is not None:
            raise WarehouseFencedError(f"warehouse {warehouse.name} takes no changes: {reason}; {REMEDY}")

    def refusal(self, warehouse: Warehouse) -> str | None:
        """Return why a warehouse takes no changes, or None."""
        return self._refusals.get(warehouse.id)

    def gap(self, warehouse: Warehouse) -> str | None:
        """Return why a server on another copy of the database would go unnoticed in a warehouse, or None."""
        row = self._rows.get(warehouse.id)
        return row.reason if row is not None and row.state == "unguarded" else None

    # Of a server

    def start(self) -> None:
        """Look at the warehouses, and go on to do so in a thread.

        A store that does not answer within some seconds does not keep the server from starting: as with one that
        cannot be reached, what the database says counts. Those who cannot reach it cannot commit to it either, and
        a store that is down must not take the catalog down.
        """
        self._thread = Thread(target=self._run, name="fence", daemon=True)
        self._thread.start()
        self._first_look_ended.wait(FIRST_LOOK_S)

    def close(self) -> None:
        """Renew once more, so that the file has the position of the last change, and release the lease."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(LAST_RENEWAL_S + 1)

    def _run(self) -> None:
        self._attempt(lambda: self.look(is_first=True))
        self._first_look_ended.set()
        due = monotonic() + self._interval_s
        while not self._stop.wait(min(self._interval_s, REFRESH_S)):
            if monotonic() >= due:
                due = monotonic() + self._interval_s
                self._attempt(self.look)
            else:
                self._attempt(self.refresh)
        self._attempt(self._end)

    def _attempt(self, work: Callable[[], None]) -> None:
        try:
            work()
        except LanceNamespaceError as error:  # of the database: what is known by now stays
            log.warning("whether the warehouses are still this catalog's is not known: %s", error)
        except Exception:
            log.exception("the look at the warehouses failed")

    def refresh(self) -> None:
        """Take over what other processes have found."""
        rows = self._database.read(fences.list_fences)
        self._rows = rows
        self._refusals = {row.warehouse_id: row.reason for row in rows.values() if row.state in CLOSED}

    def look(self, *, is_first: bool = False) -> None:
        """Look at the file of each warehouse, and renew it, as far as another server does not.

        The first time the file is read in any case: a lease of another server may come from a backup.
        """
        rows, now = self._database.read(lambda tx: (fences.list_fences(tx), read_clock(tx)))
        due = [
            (warehouse, rows.get(warehouse.id))
            for warehouse in self._warehouses
            if is_first or (row := rows.get(warehouse.id)) is None or self._may_renew(row, now)
        ]
        self._look_at_all(due, LOOK_S)
        self.refresh()

    def _may_renew(self, row: FenceRow, now: int) -> bool:
        lease_ms = int(self._interval_s * LEASES * 1000)
        # A lease that ends too late was taken before the clock was set back: its holder may be dead.
        return row.holder == self._lease or row.leased_until_ms <= now or row.leased_until_ms > now + 2 * lease_ms

    def _is_leased(self, row: FenceRow | None) -> bool:
        return row is not None and row.holder == self._lease

    def _look_at_all(self, warehouses: Iterable[tuple[Warehouse, FenceRow | None]], timeout_s: float) -> None:
        """Look at warehouses at the same time: a store that does not answer must not leave the others unguarded."""
        for warehouse, row in warehouses:
            if (last := self._looks.get(warehouse.id)) is not None and last.is_alive():
                continue
            work = partial(self._attempt, partial(self._look_at, warehouse, row))
            self._looks[warehouse.id] = Thread(target=work, name=f"fence-{warehouse.name}", daemon=True)
            self._looks[warehouse.id].start()
        deadline = monotonic() + timeout_s
        for thread in self._looks.values():
            thread.join(max(0.0, deadline - monotonic()))

    def _look_at(self, warehouse: Warehouse, before: FenceRow | None) -> None:
        token = secrets.token_hex(8)
        try:
            file = read_epoch_file(warehouse)
        except LanceNamespaceError as error:
            self._update(warehouse, partial(_unguard, reason=f"its epoch file cannot be read: {error}"))
            return
        # The database knows the token before the file does: if this process ends in between, or its write comes late,
        # the file holds a token that the database knows, whichever it is.
        was_fenced = before is not None and before.state == "fenced"
        row = self._update(warehouse, partial(self._decide, file=file, token=token, was_fenced=was_fenced))
        if token not in row.tokens:
            return
        try:
            self._write(warehouse, row)
        except LanceNamespaceError as error:
            self._update(warehouse, partial(_unguard, reason=f"its epoch file cannot be written: {error}"))
        else:
            self._update(warehouse, partial(_note_renewal, epoch=row.epoch))

    def _decide(self, tx: Tx, row: FenceRow, file: FoundFile, token: str, was_fenced: bool) -> FenceRow:
        """Return the row as it is to be; with `token`, if this process is to write the file."""
        if row.state == "adopting":
            return row
        if row.state == "fenced" and not was_fenced:
            return row  # fenced while this process read the file, which may have been the one before
        now, last_change = read_clock(tx), fences.find_last_change(tx)
        conflict = find_conflict(row, file, last_change)
        if conflict is not None:
            # The first reason stays: what the other server has written since would only change its times.
            return row if row.state == "fenced" else replace(row, state="fenced", reason=conflict)
        if not self._may_renew(row, now):
            return replace(row, state="open", reason="") if row.state == "fenced" else row
        token_in_file = file.token if isinstance(file, EpochFile) else ""
        # The token in the file is kept in any case: writes may fail for longer than tokens are recalled.
        tokens = [old_token for old_token in row.tokens if old_token != token_in_file] + [token_in_file] * (
            token_in_file in row.tokens
        )
        return replace(
            row,
            tokens=(*tokens[1 - MOST_TOKENS :], token),
            position=max(last_change, row.position),
            holder=self._lease,
            leased_until_ms=now + int(self._interval_s * LEASES * 1000),
        )

    def _end(self) -> None:
        rows = self._database.read(fences.list_fences)
        leased = [warehouse for warehouse in self._warehouses if self._is_leased(rows.get(warehouse.id))]
        self._look_at_all([(warehouse, rows[warehouse.id]) for warehouse in leased], LAST_RENEWAL_S)
        for warehouse in leased:
            self._update(warehouse, lambda _, row: replace(row, holder="", leased_until_ms=0))

    # Of `lancehouse db adopt`

    def begin_adoption(self, warehouse: Warehouse) -> None:
        """Take a warehouse over: the servers of all other copies find a greater epoch at their next look.

        It takes no changes until `finish_adoption`, except those of this process.

        Raises:
            ServiceUnavailableError: its file cannot be read or written.
        """
        file, token = read_epoch_file(warehouse), secrets.token_hex(8)
        last = file.epoch if isinstance(file, EpochFile) and file.epoch < LAST_EPOCH else 0
        self._write(
            warehouse,
            self._update(
                warehouse,
                lambda _, row: replace(
                    row, epoch=max(row.epoch, last) + 1, tokens=(token,), state="adopting", reason=ADOPTING
                ),
            ),
        )

    def finish_adoption(self, warehouse: Warehouse) -> None:
        """Let the warehouse take changes again."""
        self._update(warehouse, lambda _, row: replace(row, state="open", reason="", holder="", leased_until_ms=0))

    def _write(self, warehouse: Warehouse, row: FenceRow) -> None:
        file = EpochFile(row.catalog, row.epoch, row.tokens[-1], row.position, int(time() * 1000), self._writer)
        WarehouseFiles(warehouse).write(epoch_file_location(warehouse), file.to_json())

    def _update(self, warehouse: Warehouse, change: Callable[[Tx, FenceRow], FenceRow]) -> FenceRow:
        """Change the row of a warehouse in a transaction, and return it; a change of its state is logged."""

        def work(tx: Tx) -> tuple[FenceRow, FenceRow]:
            row = fences.lock_fence(tx, warehouse.id, self._new_catalog)
            after = change(tx, row)
            if after != row:
                fences.put_fence(tx, after)
            return row, after

        before, after = self._database.write(work)
        if after.state != before.state:
            level, words = LOGGED[after.state]
            log.log(level, "warehouse %s %s%s", warehouse.name, words, f": {after.reason}" if after.reason else "")
        return after


LOGGED: dict[FenceState, tuple[int, str]] = {
    "open": (logging.INFO, "takes changes of this catalog"),
    "unguarded": (logging.WARNING, "takes changes, and nobody would notice another copy of the database at work"),
    "fenced": (logging.ERROR, "takes no more changes of this catalog"),
    "adopting": (logging.INFO, "is being adopted"),
}
"""What is logged when a state begins."""


def _unguard(_: Tx, row: FenceRow, reason: str) -> FenceRow:
    """Return a row of which it is not known whether another copy is at work: what was known of it stays."""
    return replace(row, state="unguarded", reason=reason) if row.state == "open" else row


def _note_renewal(tx: Tx, row: FenceRow, epoch: int) -> FenceRow:
    if row.state == "adopting" or row.epoch != epoch:  # an adoption came meanwhile
        return row
    return replace(row, state="open", reason="", renewed_ms=read_clock(tx))


def read_epoch_file(warehouse: Warehouse) -> FoundFile:
    """Return what is in the epoch file of a warehouse.

    Raises:
        InvalidInputError: there is a link on the way to it, which says nothing of who wrote it.
        ServiceUnavailableError: the storage cannot be read now.
    """
    path = epoch_file_location(warehouse)
    require_no_link(warehouse, path, "iceberg")
    try:
        return EpochFile.parse(WarehouseFiles(warehouse).read(path, LARGEST_FILE))
    except MetadataNotFoundError:
        return None
    except InvalidInputError as error:
        return str(error)
