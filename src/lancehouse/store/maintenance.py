"""Rows of maintenance: tables with what is due, leases of workers, records of runs, and marks of progress.

Times of leases are the database's, so that workers on machines with different clocks agree.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from sqlalchemy import (
    Column,
    ColumnElement,
    ScalarSelect,
    Select,
    and_,
    bindparam,
    case,
    delete,
    exists,
    func,
    literal_column,
    or_,
    select,
    union,
    update,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from lancehouse.store.fences import is_closed
from lancehouse.store.model import NUMBER, ChangedTable, MaintainedTable, MaintenanceRun
from lancehouse.store.model import commits as c
from lancehouse.store.model import entries as e
from lancehouse.store.model import fences as f
from lancehouse.store.model import maintained_tables as m
from lancehouse.store.model import maintenance_marks as k
from lancehouse.store.model import maintenance_runs as r
from lancehouse.store.model import namespaces as n
from lancehouse.store.model import snapshots as s
from lancehouse.store.statements import (
    EVERYTHING,
    NONE,
    Row,
    RowType,
    Statement,
    Tx,
    check_indexed,
    from_json,
    index_key,
    insert_into,
    join_levels,
    split_levels,
    to_json,
)

CLAIM_LOCK = 7883954723
"""Advisory lock of Postgres: workers that look for work do so one after the other, so that limits hold."""
RUN = RowType(r, MaintenanceRun)


class _Clock(FunctionElement[int]):
    """The database's own time, in milliseconds since the epoch.

    SQLite counts in Julian days, and the epoch is day 2440587.5. Postgres' `now()` is when the transaction began, which
    may have waited for a lock since; `clock_timestamp()` goes on.
    """

    inherit_cache = True
    type = NUMBER


@compiles(_Clock, "sqlite")
def _compile_sqlite_clock(*_: Any, **__: Any) -> str:
    return "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)"


@compiles(_Clock, "postgresql")
def _compile_postgres_clock(*_: Any, **__: Any) -> str:
    return "CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000 AS BIGINT)"


CLOCK = Statement(select(_Clock()))


def read_clock(tx: Tx) -> int:
    """Return the database's time in milliseconds since the epoch."""
    ((now,),) = tx.fetch_all(CLOCK, {})
    return int(now)


# Marks: how far planning has come, who plans, and counters

FIND_MARK = Statement(select(k.c.number, k.c.holder).where(k.c.name == bindparam("called")))
_mark = insert_into(k, "name", "number", "holder")
PUT_MARK = Statement(
    _mark.on_conflict_do_update(
        index_elements=[k.c.name], set_={"number": _mark.excluded.number, "holder": _mark.excluded.holder}
    )
)
COUNT_UP = Statement(
    _mark.on_conflict_do_update(index_elements=[k.c.name], set_={"number": k.c.number + _mark.excluded.number})
)
TAKE_MARK = Statement(
    _mark.on_conflict_do_update(
        index_elements=[k.c.name],
        set_={"number": _mark.excluded.number, "holder": _mark.excluded.holder},
        where=or_(k.c.holder == _mark.excluded.holder, k.c.number < bindparam("now")),
    )
)
MARKS = Statement(select(k.c.name, k.c.number).where(k.c.name.like(bindparam("pattern"))).order_by(k.c.name))


def find_mark(tx: Tx, name: str) -> int | None:
    """Return the number of a mark, or None."""
    row = tx.fetch_one(FIND_MARK, {"called": name})
    return None if row is None else int(row[0])


def put_mark(tx: Tx, name: str, number: int) -> None:
    """Set a mark."""
    tx.run(PUT_MARK, {"name": name, "number": number, "holder": ""})


def count_up(tx: Tx, name: str, by: int) -> None:
    """Add to a mark that counts."""
    tx.run(COUNT_UP, {"name": name, "number": by, "holder": ""})


def take_mark(tx: Tx, name: str, holder: str, until_ms: int, now_ms: int) -> bool:
    """Take or keep a mark until a time; return False if another holder has it."""
    return tx.run(TAKE_MARK, {"name": name, "holder": holder, "number": until_ms, "now": now_ms}) == 1


def list_marks(tx: Tx, prefix: str) -> dict[str, int]:
    """Return the marks whose names begin with a prefix, without it."""
    rows = tx.fetch_all(MARKS, {"pattern": f"{prefix}%"})
    return {name.removeprefix(prefix): int(number) for name, number in rows}


# Planning: which tables of this catalog have changed, and what was seen of them

LAST_COMMIT = Statement(select(func.max(c.c.id)))
SETTLED_COMMIT = Statement(select(func.max(c.c.id)).where(c.c.id > bindparam("after"), c.c.at_ms < bindparam("before")))
_PLANNED = (
    e.c.id,
    n.c.warehouse_id,
    n.c.path,
    e.c.name,
    e.c.properties,
    e.c.version,
    e.c.updated_ms,
    s.c.summary,
    m.c.due_ms,
    m.c.looked_ms,
    m.c.seen,
)
CHANGED = Statement(
    select(*_PLANNED)
    .select_from(e)
    .join(n, n.c.id == e.c.namespace_id)
    .outerjoin(s, and_(s.c.entry_id == e.c.id, s.c.snapshot_id == e.c.version))
    .outerjoin(m, m.c.entry_id == e.c.id)
    .where(
        e.c.kind == literal_column("'lance'"),
        # By id: for a list of the changed tables without repetitions, SQLite would read all commits, table by table.
        e.c.id.in_(select(c.c.entry_id).where(c.c.id > bindparam("after"))),
    )
)
# The page is cut before the joins: Postgres would else join all tables from the first one on, for each page.
_page = (
    select(e.c.id)
    .where(e.c.kind == literal_column("'lance'"), e.c.namespace_id.is_not(None), e.c.id > bindparam("after"))
    .order_by(e.c.id)
    .limit(bindparam("size"))
    .offset(NONE)
    .subquery()
)
SWEPT = Statement(
    select(*_PLANNED)
    .select_from(_page)
    .join(e, e.c.id == _page.c.id)
    .join(n, n.c.id == e.c.namespace_id)
    .outerjoin(s, and_(s.c.entry_id == e.c.id, s.c.snapshot_id == e.c.version))
    .outerjoin(m, m.c.entry_id == e.c.id)
    .order_by(e.c.id)
)
POLICIES = Statement(
    select(n.c.warehouse_id, n.c.path, n.c.properties).where(n.c.properties.like(bindparam("pattern")))
)
NEW = ("entry_id", "backend", "path", "path_key", "due_ms", "why", "requested", "requested_by")
_new = insert_into(m, *NEW, "lease", "worker", "failures", "error", "seen")
# A table that has failed waits for its turn, however many commits it gets.
_is_sooner = or_(m.c.due_ms.is_(None), and_(m.c.due_ms > _new.excluded.due_ms, m.c.failures == literal_column("0")))
_soon: dict[str, Any] = {
    "due_ms": case((_is_sooner, _new.excluded.due_ms), else_=m.c.due_ms),
    "why": case((_is_sooner, _new.excluded.why), else_=m.c.why),
}
_asked: dict[str, Any] = {
    "due_ms": _new.excluded.due_ms,
    "why": _new.excluded.why,
    "requested": _new.excluded.requested,
    "requested_by": _new.excluded.requested_by,
}
PLAN = Statement(_new.on_conflict_do_update(index_elements=[m.c.backend, m.c.path_key], set_=_soon))
REQUEST = Statement(_new.on_conflict_do_update(index_elements=[m.c.backend, m.c.path_key], set_=_asked))
POSTPONE = Statement(
    update(m)
    .where(m.c.entry_id == bindparam("entry"), m.c.requested == literal_column("''"))
    .values(due_ms=literal_column("NULL"), why=literal_column("''"))
)
FORGET = Statement(delete(m).where(m.c.backend == bindparam("place"), m.c.path_key == bindparam("key")))


def find_last_commit(tx: Tx) -> int:
    """Return the id of the newest commit, or 0."""
    ((last,),) = tx.fetch_all(LAST_COMMIT, {})
    return int(last or 0)


def find_settled_commit(tx: Tx, after: int, before_ms: int) -> int:
    """Return the id of the newest commit before a time, or `after` if there is none since.

    Of two transactions of Postgres the one with the smaller id may be seen later; after a while both are.
    """
    ((last,),) = tx.fetch_all(SETTLED_COMMIT, {"after": after, "before": before_ms})
    return int(last or after)


def list_changed_tables(tx: Tx, after: int) -> list[ChangedTable]:
    """Return the Lance tables with commits after that id."""
    return [_changed_table(row) for row in tx.fetch_all(CHANGED, {"after": after})]


def sweep_tables(tx: Tx, after: int, limit: int) -> list[ChangedTable]:
    """Return a page of all Lance tables, in the order of their ids."""
    return [_changed_table(row) for row in tx.fetch_all(SWEPT, {"after": after, "size": limit})]


def list_namespace_policies(tx: Tx) -> dict[tuple[int, tuple[str, ...]], Mapping[str, str]]:
    """Return the properties of namespaces that may say something of maintenance, by warehouse and levels."""
    rows = tx.fetch_all(POLICIES, {"pattern": '%"maintenance.%'})
    return {(warehouse, split_levels(path)): from_json(properties) for warehouse, path, properties in rows}


def plan_tables(tx: Tx, plans: Iterable[tuple[str, int | tuple[str, ...], int | None, str]]) -> None:
    """Plan that tables are looked at: backend, entry or levels, when, and why. A table that is due sooner stays so."""
    rows = [_new_row(backend, table_key, due_ms, why) for backend, table_key, due_ms, why in plans]
    if rows:
        tx.run_many(PLAN, rows)


def request_maintenance(
    tx: Tx, backend: str, table_key: int | tuple[str, ...], why: str, operations: Sequence[str], by: str
) -> None:
    """Ask for operations on a table, before all that is due."""
    tx.run(REQUEST, {**_new_row(backend, table_key, 0, why), "requested": ",".join(operations), "requested_by": by})


def cancel_plans(tx: Tx, entries: Iterable[int]) -> None:
    """Cancel what is planned for tables that are not maintained, except what was requested."""
    rows = [{"entry": entry} for entry in entries]
    if rows:
        tx.run_many(POSTPONE, rows)


def forget_table(tx: Tx, backend: str, levels: tuple[str, ...]) -> None:
    """Forget a table of another catalog, which is gone there."""
    tx.run(FORGET, {"place": backend, "key": index_key(join_levels(levels))})


def _new_row(backend: str, table_key: int | tuple[str, ...], due_ms: int | None, why: str) -> dict[str, Any]:
    is_own = isinstance(table_key, int)
    path = "" if is_own else join_levels(table_key)  # type: ignore[arg-type]
    return {
        "entry_id": table_key if is_own else None,
        "backend": check_indexed("a backend's name", backend),
        "path": path,
        # No name begins with the separator of levels, so that no path of another catalog looks like this.
        "path_key": f"\x1f{table_key}" if is_own else index_key(path),
        "due_ms": due_ms,
        "why": why,
        "requested": "",
        "requested_by": "",
        "lease": 0,
        "worker": "",
        "failures": 0,
        "error": "",
        "seen": "{}",
    }


def _changed_table(row: Row) -> ChangedTable:
    entry, warehouse, path, name, properties, version, changed_ms, summary, due_ms, looked_ms, seen = row
    return ChangedTable(
        entry,
        warehouse,
        split_levels(path),
        name,
        from_json(properties),
        version,
        changed_ms,
        from_json(summary) if summary else {},
        due_ms,
        looked_ms,
        from_json(seen) if seen else {},
    )


# Leases

_COLUMNS = (
    m.c.id,
    m.c.backend,
    m.c.path,
    n.c.path,
    e.c.name,
    m.c.entry_id,
    m.c.due_ms,
    m.c.why,
    m.c.requested,
    m.c.requested_by,
    m.c.lease,
    m.c.worker,
    m.c.lease_until_ms,
    m.c.started_ms,
    m.c.looked_ms,
    m.c.failures,
    m.c.error,
    m.c.seen,
)
_MAINTAINED = (
    select(*_COLUMNS).select_from(m).outerjoin(e, e.c.id == m.c.entry_id).outerjoin(n, n.c.id == e.c.namespace_id)
)
# A dropped table of this catalog may keep its entry for a while, without a namespace.
_EXISTS = or_(m.c.entry_id.is_(None), n.c.id.is_not(None))
# With a database that is older than its storage, clean-up would delete versions that are newer.
_IS_OPEN = ~exists().where(f.c.warehouse_id == n.c.warehouse_id, is_closed)

COUNT_LEASES = Statement(select(func.count()).select_from(m).where(m.c.lease_until_ms >= bindparam("now")))
DUE = Statement(
    _MAINTAINED.where(_EXISTS, _IS_OPEN, m.c.due_ms <= bindparam("now"), m.c.lease_until_ms.is_(None))
    .order_by(m.c.due_ms, m.c.id)
    .limit(bindparam("size"))
    .offset(NONE)
)
EXPIRED = Statement(
    _MAINTAINED.where(_EXISTS, _IS_OPEN, m.c.lease_until_ms < bindparam("now"))
    .order_by(m.c.lease_until_ms, m.c.id)
    .limit(bindparam("size"))
    .offset(NONE)
)
_IS_THERE = or_(m.c.entry_id.is_(None), e.c.namespace_id.is_not(None))


def _first_ids(condition: ColumnElement[bool], order: Column[Any]) -> Select[tuple[int]]:
    """Return a query for the ids of the first tables that meet a condition, in the order of an index.

    Without the order, Postgres may expect to find them soon, and read all tables.
    """
    ids = (
        select(m.c.id)
        .outerjoin(e, e.c.id == m.c.entry_id)
        .where(condition, _IS_THERE)
        .order_by(order, m.c.id)
        .limit(bindparam("size"))
        .offset(NONE)
    )
    return select(ids.subquery().c.id)


HAS_DUE = Statement(
    _first_ids(and_(m.c.due_ms <= bindparam("now"), m.c.lease_until_ms.is_(None)), m.c.due_ms).union_all(
        _first_ids(m.c.lease_until_ms < bindparam("now"), m.c.lease_until_ms)
    )
)
TAKE = Statement(
    update(m)
    .where(m.c.id == bindparam("table"), m.c.lease == bindparam("known"))
    .values(
        lease=m.c.lease + literal_column("1"),
        worker=bindparam("by"),
        lease_until_ms=bindparam("until"),
        started_ms=bindparam("now"),
        due_ms=literal_column("NULL"),
    )
)
_MINE = (m.c.id == bindparam("table"), m.c.lease == bindparam("known"), m.c.worker == bindparam("by"))
_is_fenced = exists().where(
    e.c.id == m.c.entry_id, n.c.id == e.c.namespace_id, f.c.warehouse_id == n.c.warehouse_id, is_closed
)
RENEW = Statement(update(m).where(*_MINE, ~_is_fenced).values(lease_until_ms=bindparam("until")))
# A request that came while the table was worked on stays, also for the same operations. What was planned meanwhile, for
# a time after 0, is planned again.
_has_no_request = and_(m.c.requested == bindparam("done"), or_(m.c.due_ms.is_(None), m.c.due_ms != literal_column("0")))
FINISH = Statement(
    update(m)
    .where(*_MINE)
    .values(
        lease_until_ms=literal_column("NULL"),
        worker=literal_column("''"),
        looked_ms=bindparam("now"),
        due_ms=case((_has_no_request, bindparam("next_ms", type_=NUMBER)), else_=literal_column("0")),
        why=case((_has_no_request, bindparam("reason")), else_=m.c.why),
        failures=bindparam("failed"),
        error=bindparam("problem"),
        seen=bindparam("found"),
        requested=case((_has_no_request, bindparam("again")), else_=m.c.requested + bindparam("more")),
        requested_by=case((_has_no_request, bindparam("again_by")), else_=m.c.requested_by),
    )
)
INSERT_RUN = Statement(insert_into(r, "table_id", *RUN.names))


def claim_tables(
    tx: Tx, worker: str, count: int, most: int, lease_ms: int
) -> tuple[list[MaintainedTable], list[MaintainedTable]]:
    """Lease tables that are due, the longest due first; return them, and those whose worker has died among them.

    Args:
        tx: the transaction.
        worker: who takes them.
        count: how many at most.
        most: how many may be leased at once, by all workers.
        lease_ms: how long the leases last unless they are renewed.
    """
    tx.lock(CLAIM_LOCK, ())
    now = read_clock(tx)
    ((leased_count,),) = tx.fetch_all(COUNT_LEASES, {"now": now})
    size = min(count, most - leased_count)
    if size < 1:
        return [], []
    abandoned = _to_tables(tx.fetch_all(EXPIRED, {"now": now, "size": size}))
    due = _to_tables(tx.fetch_all(DUE, {"now": now, "size": size - len(abandoned)})) if len(abandoned) < size else []
    leased_tables = [
        table
        for table in (*abandoned, *due)
        if tx.run(TAKE, {"table": table.id, "known": table.lease, "by": worker, "until": now + lease_ms, "now": now})
    ]
    return leased_tables, abandoned


def has_due_tables(tx: Tx) -> bool:
    """Return whether there is a table that could be leased."""
    return tx.fetch_one(HAS_DUE, {"now": read_clock(tx), "size": 1}) is not None


def renew_lease(tx: Tx, table: MaintainedTable, worker: str, lease_ms: int) -> bool:
    """Prolong the lease that `claim_tables` gave; False if another worker has the table, or it must not be changed."""
    values = {"table": table.id, "known": table.lease + 1, "by": worker, "until": read_clock(tx) + lease_ms}
    return tx.run(RENEW, values) == 1


def finish_lease(
    tx: Tx,
    table: MaintainedTable,
    worker: str,
    *,
    next_ms: int | None,
    why: str,
    failures: int,
    error: str,
    is_done: bool,
    seen: Mapping[str, Any],
    runs: Sequence[MaintenanceRun],
) -> bool:
    """End a lease, and record what was done; False, and nothing is recorded, if another worker has the table.

    Args:
        tx: the transaction.
        table: as `claim_tables` returned it.
        worker: who did it.
        next_ms: when the table is due again, if at all.
        why: the reason for that.
        failures: how often in a row it has failed.
        error: the last failure.
        is_done: whether what was requested is done; otherwise the request stays.
        seen: what was found.
        runs: what was done.
    """
    values = {
        "table": table.id,
        "known": table.lease + 1,
        "by": worker,
        "now": read_clock(tx),
        "next_ms": next_ms,
        "reason": why,
        "failed": failures,
        "problem": error,
        "found": to_json(seen),
        "done": table.requested,
        "again": "" if is_done else table.requested,
        # Each name once: a request that is repeated while it fails would grow with every attempt.
        "more": "" if is_done or not table.requested else ",".join(["", *dict.fromkeys(table.requested.split(","))]),
        "again_by": "" if is_done else table.requested_by,
    }
    if tx.run(FINISH, values) != 1:
        return False
    insert_runs(tx, table.id, runs)
    return True


def insert_runs(tx: Tx, table_id: int, runs: Sequence[MaintenanceRun]) -> None:
    """Record what was done to a table, and count it."""
    if not runs:
        return
    tx.run_many(INSERT_RUN, [{"table_id": table_id, **RUN.values(run)} for run in runs])
    for run in runs:
        count_up(tx, f"runs.{run.operation}.{run.outcome}", 1)
        if run.bytes_removed:
            count_up(tx, "bytes.removed", run.bytes_removed)


def _to_tables(rows: Sequence[Row]) -> list[MaintainedTable]:
    return [_maintained_table(row) for row in rows]


def _maintained_table(row: Row) -> MaintainedTable:
    table, backend, path, own_path, name, entry, *rest = row
    levels = _to_levels(path, own_path, name, entry)
    return MaintainedTable(table, backend, levels, entry, *rest[:-1], from_json(rest[-1]))  # type: ignore[call-arg]


def _to_levels(path: str, own_path: str | None, name: str, entry: int | None) -> tuple[str, ...]:
    """Return the levels of a table: of this catalog by its entry, of another one by its path."""
    return (*split_levels(own_path or ""), name) if entry is not None else split_levels(path)


# Status

PAGE = 10_000
"""Tables that are read at once, where all are read."""
FEW = 1_000
"""Tables whose runs are looked up table by table."""
MOST_LOOKED_AT = 200_000
"""Newest runs that are searched for those of many tables."""


_HAS_FAILED = m.c.failures > literal_column("0")
_IS_LISTED = m.c.id.in_(
    union(
        _first_ids(m.c.due_ms <= bindparam("upto"), m.c.due_ms),
        _first_ids(m.c.lease_until_ms.is_not(None), m.c.lease_until_ms),
        _first_ids(_HAS_FAILED, m.c.due_ms),
    )
)
_TURN = (m.c.lease_until_ms.is_(None), m.c.due_ms, m.c.id)
LISTED = Statement(_MAINTAINED.where(_IS_LISTED).order_by(*_TURN).limit(bindparam("size")).offset(NONE))
LISTED_IDS = Statement(select(m.c.id).where(_IS_LISTED).order_by(*_TURN))
KNOWN = Statement(
    select(m.c.id, m.c.backend, m.c.path, n.c.path, e.c.name, m.c.entry_id)
    .select_from(m)
    .outerjoin(e, e.c.id == m.c.entry_id)
    .outerjoin(n, n.c.id == e.c.namespace_id)
    .where(_EXISTS, m.c.id > bindparam("after"))
    .order_by(m.c.id)
    .limit(bindparam("size"))
    .offset(NONE)
)
SOME = 100
"""Ids in one statement."""
_some_ids: list[ColumnElement[int]] = [bindparam(f"id_{number}") for number in range(SOME)]
SOME_TABLES = Statement(_MAINTAINED.where(m.c.id.in_(_some_ids)))
ONE_OWN = Statement(_MAINTAINED.where(m.c.entry_id == bindparam("entry")))
ONE_OTHER = Statement(_MAINTAINED.where(m.c.backend == bindparam("place"), m.c.path_key == bindparam("key")))
_RUNS = (
    select(m.c.backend, m.c.path, n.c.path, e.c.name, m.c.entry_id, *RUN.columns)
    .select_from(r)
    .join(m, m.c.id == r.c.table_id)
    .outerjoin(e, e.c.id == m.c.entry_id)
    .outerjoin(n, n.c.id == e.c.namespace_id)
    .where(_EXISTS)
)
RECENT_RUNS = Statement(_RUNS.order_by(r.c.id.desc()).limit(bindparam("size")).offset(NONE))
RECENT_RUN_IDS = Statement(select(r.c.id, r.c.table_id).order_by(r.c.id.desc()).limit(bindparam("size")).offset(NONE))
SOME_RUNS = Statement(_RUNS.where(r.c.id.in_(_some_ids)).order_by(r.c.id.desc()))
RUN_IDS_OF_SOME = Statement(
    select(r.c.id).where(r.c.table_id.in_(_some_ids)).order_by(r.c.id.desc()).limit(bindparam("size")).offset(NONE)
)
RUNS_OF_TABLE = Statement(
    select(*RUN.columns)
    .where(r.c.table_id == bindparam("table"))
    .order_by(r.c.id.desc())
    .limit(bindparam("size"))
    .offset(NONE)
)


def _count(*conditions: ColumnElement[bool]) -> ScalarSelect[int]:
    return (
        select(func.count())
        .select_from(m)
        .outerjoin(e, e.c.id == m.c.entry_id)
        .where(*conditions, _IS_THERE)
        .scalar_subquery()
    )


_is_due = and_(m.c.due_ms <= bindparam("now"), m.c.lease_until_ms.is_(None))
COUNTS = Statement(
    select(
        _count(_is_due),
        _count(m.c.lease_until_ms >= bindparam("now")),
        _count(_HAS_FAILED),
        select(func.min(m.c.due_ms))
        .select_from(m)
        .outerjoin(e, e.c.id == m.c.entry_id)
        .where(_is_due, m.c.due_ms > literal_column("0"), _IS_THERE)
        .scalar_subquery(),
    )
)
# Dropped tables are few, so they are counted apart: a join would read the entry of every table.
COUNT_KNOWN = Statement(
    select(
        select(func.count()).select_from(m).scalar_subquery()
        - select(func.count())
        .select_from(e)
        .join(m, m.c.entry_id == e.c.id)
        .where(e.c.namespace_id.is_(None))
        .scalar_subquery()
    )
)
DELETE_RUNS = Statement(delete(r).where(r.c.ended_ms < bindparam("before")))


def list_known_tables(tx: Tx) -> Iterator[tuple[int, str, tuple[str, ...]]]:
    """Yield the id, backend and levels of every table under maintenance; it takes the longer, the more there are."""
    after: int | None = 0
    while after is not None:
        page = tx.fetch_all(KNOWN, {"after": after, "size": PAGE})
        for table, backend, path, own_path, name, entry in page:
            yield table, backend, _to_levels(path, own_path, name, entry)
        after = page[-1][0] if len(page) == PAGE else None


def list_maintained_tables(
    tx: Tx, upto_ms: int, limit: int, among: Collection[int] | None = None
) -> list[MaintainedTable]:
    """Return tables that are worked on, that have failed, or that are due until a time, in the order of their turn.

    Args:
        tx: the transaction.
        upto_ms: the time.
        limit: most tables to return.
        among: ids of the tables that may be returned; None for all.
    """
    if among is None:
        return _to_tables(tx.fetch_all(LISTED, {"upto": upto_ms, "size": limit}))
    id_rows = tx.fetch_all(LISTED_IDS, {"upto": upto_ms, "size": EVERYTHING})
    ids = list(islice((table for (table,) in id_rows if table in among), limit))
    table_by_id = {table.id: table for table in _to_tables(_fetch_some(tx, SOME_TABLES, ids))}
    return [table_by_id[table] for table in ids if table in table_by_id]


def _fetch_some(tx: Tx, statement: Statement, ids: Sequence[int], **values: int) -> list[Row]:
    """Run a statement on any number of ids, some of them at a time."""
    rows: list[Row] = []
    for start in range(0, len(ids), SOME):
        batch = ids[start : start + SOME]
        rows += tx.fetch_all(statement, {f"id_{place}": batch[place % len(batch)] for place in range(SOME)} | values)
    return rows


def find_maintained_table(tx: Tx, backend: str, table_key: int | tuple[str, ...]) -> MaintainedTable | None:
    """Return a table by its entry, or by its levels in another catalog; None if nothing was planned for it yet."""
    if isinstance(table_key, int):
        row = tx.fetch_one(ONE_OWN, {"entry": table_key})
    else:
        row = tx.fetch_one(ONE_OTHER, {"place": backend, "key": index_key(join_levels(table_key))})
    return None if row is None else _maintained_table(row)


def list_recent_runs(
    tx: Tx, limit: int, among: Collection[int] | None = None
) -> list[tuple[str, tuple[str, ...], MaintenanceRun]]:
    """Return the newest runs, each with backend and levels of its table.

    Args:
        tx: the transaction.
        limit: most runs to return.
        among: ids of the tables whose runs may be returned; None for all. Of more than `FEW`, the runs are looked for
            among the newest `MOST_LOOKED_AT` of all tables.
    """
    if among is None:
        rows = tx.fetch_all(RECENT_RUNS, {"size": limit})
    else:
        if len(among) <= FEW:
            id_rows = _fetch_some(tx, RUN_IDS_OF_SOME, sorted(among), size=limit)
            newest = sorted((run for (run,) in id_rows), reverse=True)
        else:
            recent = tx.fetch_all(RECENT_RUN_IDS, {"size": MOST_LOOKED_AT})
            newest = [run for run, table in recent if table in among]
        rows = _fetch_some(tx, SOME_RUNS, newest[:limit])
    return [
        (backend, _to_levels(path, own_path, name, entry), RUN.read(run))
        for backend, path, own_path, name, entry, *run in rows
    ]


def list_runs(tx: Tx, table_id: int, limit: int) -> list[MaintenanceRun]:
    """Return the newest runs of a table."""
    return RUN.fetch_all(tx, RUNS_OF_TABLE, {"table": table_id, "size": limit})


def count_tables(tx: Tx) -> dict[str, int]:
    """Return how many tables are due, running and failing, and the age in ms of what is due for longest."""
    now = read_clock(tx)
    ((due, running, failing, oldest),) = tx.fetch_all(COUNTS, {"now": now})
    return {"due": due, "running": running, "failing": failing, "waiting_ms": max(0, now - oldest) if oldest else 0}


def count_known_tables(tx: Tx) -> int:
    """Return how many tables are under maintenance; it takes the longer, the more there are."""
    ((count,),) = tx.fetch_all(COUNT_KNOWN, {})
    return int(count)


def delete_runs_before(tx: Tx, before_ms: int) -> int:
    """Delete records of runs that ended before a time, and return their number."""
    return tx.run(DELETE_RUNS, {"before": before_ms})
