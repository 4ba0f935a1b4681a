"""Routes of maintenance: what is due and done, which policy counts, and asking for it now; and its metrics."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

from lance_namespace.errors import InvalidInputError, LanceNamespaceError, NamespaceNotFoundError
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from lancehouse.catalog.maintenance import MOST_LISTED, Maintenance
from lancehouse.gateway.backends import Backend
from lancehouse.gateway.messages import parse_query
from lancehouse.server.http import responses
from lancehouse.server.http.responses import Response
from lancehouse.server.http.routes import Call, Route

BASE = "/maintenance/v1/"
SHOWN = 200
"""Tables and runs in a response, unless the caller asks for less or more."""
STATES = ("known", "due", "running", "failing")


def status(call: Call) -> Response:
    """Return what is due, running and failing, and what was done last, of the tables that the caller may read."""
    status_now = call.catalog.maintenance.status(_parse_limit(call), call.caller)
    tables = [
        {
            "in": table.backend,
            "levels": table.levels,
            "state": table.state(status_now.now_ms),
            "due_ms": table.due_ms if table.due_ms != 0 else status_now.now_ms,
            "why": table.why,
            "worker": table.worker,
            "started_ms": table.started_ms if table.worker else None,
            "failures": table.failures,
            "error": table.error,
            "seen": {key: table.seen.get(key) for key in ("version", "rows", "bytes", "fragments", "versions")},
        }
        for table in status_now.tables
    ]
    runs = [{"in": backend, "levels": levels, **asdict(run)} for backend, levels, run in status_now.runs]
    # Numbers of all tables are for those who may see all of them.
    counts: Mapping[str, int] | None = status_now.counts if call.caller.identity.is_admin_everywhere else None
    return responses.json({"now_ms": status_now.now_ms, "counts": counts, "tables": tables, "runs": runs})


def _parse_limit(call: Call) -> int:
    text = call.query.get("limit", str(SHOWN))
    if not re.fullmatch(r"[0-9]{1,9}", text) or not 1 <= int(text) <= MOST_LISTED:
        raise InvalidInputError(f"limit must be a whole number from 1 to {MOST_LISTED}, got {text[:40]!r}")
    return int(text)


def routes(backends: Mapping[str, Backend]) -> list[Route]:
    """Return the routes."""

    def parse_table(call: Call) -> tuple[Backend, tuple[str, ...], Mapping[str, Any]]:
        query = parse_query(call.raw_query)
        name, levels = next(iter(query.get("in", ())), ""), tuple(query.get("level", ()))
        backend = backends.get(name)
        if backend is None:
            raise NamespaceNotFoundError(f"there is no backend {name[:80]!r} here")
        if "" in levels or not levels:
            raise InvalidInputError("no table is named: give its levels, one by one, as level=…")
        backend.check_ids([levels])
        return backend, levels, query

    def policy(call: Call) -> Response:
        """Return the properties that count for a table or namespace of a warehouse, and where each comes from."""
        backend, levels, _ = parse_table(call)
        if not backend.is_warehouse:
            raise InvalidInputError("policies of other catalogs are shown by `lancehouse maintenance show`")
        values = call.catalog.maintenance.explain(call.caller, call.catalog.warehouses[backend.name], levels)
        return responses.json({"properties": [asdict(value) for value in values]})

    def run(call: Call) -> Response:
        """Ask for maintenance of a table now; its writers may."""
        backend, levels, query = parse_table(call)
        if len(levels) < 2:
            raise InvalidInputError("a table has a namespace: give the levels of both")
        operations = call.catalog.maintenance.request(
            call.caller, backend.name, levels, tuple(query.get("operation", ()))
        )
        return responses.json({"in": backend.name, "levels": levels, "operations": operations}, 202)

    def route(name: str, method: str, handler: Callable[[Call], Response]) -> Route:
        return Route(f"maintenance {name}", method, BASE + name, handler, alters=method == "POST")

    return [
        route("status", "GET", status),
        route("policy", "GET", policy),
        route("run", "POST", run),
    ]


def maintenance_metrics(maintenance: Maintenance) -> Iterator[Metric]:
    """Yield what the database knows of maintenance; nothing while it is out of reach."""
    try:
        counts, counters = maintenance.counters()
    except LanceNamespaceError:  # a server without its database still reports its other metrics
        return
    tables = GaugeMetricFamily("lancehouse_maintenance_tables", "Tables by state.", labels=["state"])
    for state in STATES:
        tables.add_metric([state], counts[state])
    yield tables
    waiting = counts["waiting_ms"] / 1000
    yield GaugeMetricFamily("lancehouse_maintenance_waiting_seconds", "Age of what is due for longest.", waiting)
    runs = CounterMetricFamily("lancehouse_maintenance_runs", "What was done.", labels=["operation", "outcome"])
    for name, number in counters.items():
        operation, _, outcome = name.partition(".")
        if outcome:
            runs.add_metric([operation, outcome], number)
    yield runs
    removed_bytes = counters.get("removed", 0)
    yield CounterMetricFamily("lancehouse_maintenance_removed_bytes", "Bytes of files deleted.", removed_bytes)
