"""Our clients beside `lance-namespace-impls`, on the same servers, in one run. `python -m bench.clients --help`."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count, cycle, islice
from pathlib import Path

import lance
import lance_namespace_impls.iceberg
import lance_namespace_impls.polaris
import lance_namespace_impls.unity
import pyarrow as pa
from lance_namespace import DeclareTableRequest, DescribeTableRequest, LanceNamespace, ListTablesRequest
from lance_namespace_impls.rest_client import NamespaceException
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench import report, servers
from bench.report import ClientRow, Section, Steps, count_requests, side_by_side
from lancehouse import IcebergNamespace, PolarisNamespace, UnityNamespace

CALLS = 5
"""How many calls of DescribeTable or DeclareTable make up a round."""
QUICK = [10, 30]
SINGLES = 8
"""Calls of one request have so many times the rounds of listings."""
UNITY_PAGE = 90
"""Fewer than a page of Unity: the most that the peer lists rightly."""
SINGLE_MARK, LIST_MARK, SLOW_LIST_MARK = 0.85, 1.5, 4.0
"""What is expected of one call, which is one request for both; of lists; and of lists on a slow network."""
VARIANTS: Mapping[str, Sequence[tuple[str, bool | None]]] = {
    "": [("", None)],
    "polaris": [("", None), (", `include_declared=False`", False)],
}
"""The forms of ListTables: what the title says, and `include_declared`."""

SERVERS = {
    "iceberg": "Iceberg's own reference server 1.11 (**real**) on SQLite",
    "polaris": "an **emulator** of Polaris 1.4",
    "unity": "an **emulator** of Unity Catalog 0.6",
}


@dataclass(frozen=True, slots=True)
class Contender:
    """One of the two clients."""

    connect: Callable[[str], LanceNamespace]
    catalog: str
    """The first level of its ids."""

    def table(self, namespace: str, name: str) -> list[str]:
        """A table's id."""
        return [self.catalog, namespace, name]


@dataclass(frozen=True, slots=True)
class ClientCase:
    """What is measured together; a title and a mark for each job of a round."""

    titles: Sequence[str]
    mark: float
    steps: Callable[[Contender, str], Steps]
    rounds: int
    calls: int = 1
    expected: Collection[str] = ()


def contenders(client: str, address: servers.Address) -> tuple[Contender, Contender]:
    """Ours and the peer's, with settings with which both of them work."""
    plain = {"root": address.root}
    known = {**plain, "auth_token": address.token}
    prefixed = {f"{client}.{key}": value for key, value in known.items()}
    match client:
        case "iceberg":
            # The peer always puts the warehouse into the path, where this server has none. urllib3 resolves a dot away.
            return (
                Contender(lambda uri: IcebergNamespace(endpoint=uri, **plain), servers.CATALOG),
                Contender(lambda uri: lance_namespace_impls.iceberg.IcebergNamespace(endpoint=uri, **plain), "."),
            )
        case "polaris":
            theirs = lance_namespace_impls.polaris.PolarisNamespace
            return (
                Contender(lambda uri: PolarisNamespace(endpoint=uri, **known), servers.CATALOG),
                Contender(lambda uri: theirs(**{"polaris.endpoint": uri}, **prefixed), servers.CATALOG),
            )
        case "unity":
            theirs = lance_namespace_impls.unity.UnityNamespace
            return (
                Contender(
                    # The peer asks for no credentials, which take a request of their own here.
                    lambda uri: UnityNamespace(
                        endpoint=uri, catalog=servers.CATALOG, vend_credentials="false", **known
                    ),
                    servers.CATALOG,
                ),
                Contender(lambda uri: theirs(**{"unity.endpoint": uri}, **prefixed), servers.CATALOG),
            )
    raise ValueError(f"no such client: {client}")


def describe(names: Sequence[str], namespace: str, who: Contender, uri: str) -> Steps:
    """Describe tables one after the other, with a client that has done so before."""
    client = who.connect(uri)
    tables = cycle(who.table(namespace, name) for name in names)

    def job() -> Collection[str]:
        for table in islice(tables, CALLS):
            client.describe_table(DescribeTableRequest(id=table))
        return ()

    job()
    return lambda: [job]


def declare(fresh: Iterator[int], who: Contender, uri: str) -> Steps:
    """Declare new tables, with a client that knows the namespace."""
    client = who.connect(uri)

    def job() -> Collection[str]:
        for number in islice(fresh, CALLS):
            client.declare_table(DeclareTableRequest(id=who.table(servers.DECLARED, f"d{number:06}")))
        return ()

    def warm() -> Collection[str]:
        try:
            return job()
        except NamespaceException:
            return ()

    warm()
    return lambda: [job]


def listing(namespace: str, include_declared: bool | None, times: int, who: Contender, uri: str) -> Steps:
    """List with a new client, whose making counts too, and then perhaps once more with the same one."""
    request = ListTablesRequest(id=[who.catalog, namespace], include_declared=include_declared)

    def steps() -> Sequence[Callable[[], Collection[str]]]:
        clients: list[LanceNamespace] = []

        def first() -> Collection[str]:
            clients.append(who.connect(uri))
            return second()

        def second() -> Collection[str]:
            return clients[0].list_tables(request).tables

        return [first, second][:times]

    return steps


def cases(client: str, sizes: Sequence[int], rounds: int, *, slow: bool) -> list[ClientCase]:
    """What is measured on one server."""
    few = sizes[0]
    found = []
    for size in sizes:
        # Only Iceberg can answer "not changed"; elsewhere a second long list is as long as the first.
        times = 2 if size == few or (client == "iceberg" and not slow) else 1
        for words, include_declared in VARIANTS.get(client, VARIANTS[""]):
            title = f"ListTables, {size:,} tables{words}"
            found.append(
                ClientCase(
                    [title, f"{title}, second time"][:times],
                    # Unity's list has all that is needed: both send the same requests.
                    SINGLE_MARK if client == "unity" else SLOW_LIST_MARK if slow else LIST_MARK,
                    partial(listing, servers.namespace_of(size), include_declared, times),
                    rounds,
                    expected=servers.lance_names(size),
                )
            )
    describing = partial(describe, servers.lance_names(few), servers.namespace_of(few))
    declaring = partial(declare, count(500_000 if slow else 0))
    singles = rounds * SINGLES if rounds > 1 else 1
    found.append(ClientCase(["DescribeTable"], SINGLE_MARK, describing, singles, CALLS))
    found.append(ClientCase(["DeclareTable"], SINGLE_MARK, declaring, singles, CALLS))
    return found


def measure(client: str, sizes: Sequence[int], rounds: int, dataset: Path, progress: Progress) -> Section:
    """Start a client's server and run its cases, directly and with latency."""
    task = progress.add_task(f"{client}: starting and filling its server", total=None)
    all_sizes = sorted({*sizes, UNITY_PAGE}) if client == "unity" else sorted(sizes)
    rows = []
    with servers.start(client, all_sizes, dataset) as address:
        ours, peer = contenders(client, address)
        for who in (ours, peer):  # a server on the JVM is slow at first
            listing(servers.namespace_of(all_sizes[-1]), None, 1, who, address.uri)()[0]()
        ways = [(0, address.uri), (servers.LATENCY_MS, address.slow.uri)]
        todo = [(way, case) for way in ways for case in cases(client, all_sizes, rounds, slow=way[0] > 0)]
        progress.update(task, total=len(todo))
        for (latency_ms, uri), case in todo:
            progress.update(task, description=f"{client}: {case.titles[0]}{f', {latency_ms} ms' if latency_ms else ''}")
            pairs = side_by_side(case.steps(ours, uri), case.steps(peer, uri), case.rounds, NamespaceException)
            requests = [
                count_requests(case.steps(who, address.counting.uri), address.counting.requests, NamespaceException)
                for who in (ours, peer)
            ]
            for title, (our_side, peer_side), *numbers in zip(case.titles, pairs, *requests, strict=True):
                our_side.requests, peer_side.requests = numbers
                if set(our_side.runs[-1].names) != set(case.expected):
                    raise AssertionError(f"{client}, {title}: our own answer is wrong")
                rows.append(ClientRow(title, latency_ms, our_side, peer_side, case.mark, case.calls, case.expected))
            progress.advance(task)
    progress.update(task, description=f"{client}: done")
    return Section(client, SERVERS[client], rows)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run it."""
    parser = argparse.ArgumentParser(prog="python -m bench.clients", description=__doc__)
    parser.add_argument("--clients", nargs="+", choices=SERVERS, default=list(SERVERS))
    parser.add_argument("--tables", nargs="+", type=int, default=[200, 2000], help="sizes of the listed namespaces")
    parser.add_argument("--rounds", type=int, default=7, help="slow cases have fewer, but at least three")
    parser.add_argument("--quick", action="store_true", help="small, to see that it works; the figures say little")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/benchmarks.md")
    options = parser.parse_args(arguments)
    sizes, rounds = (QUICK, 1) if options.quick else (options.tables, options.rounds)
    columns = (TextColumn("{task.description}"), MofNCompleteColumn(), TimeElapsedColumn())
    progress = Progress(*columns, console=Console(stderr=True))
    with tempfile.TemporaryDirectory(prefix="bench-") as folder, progress:
        dataset = Path(folder) / "data"
        lance.write_dataset(pa.table({"id": [1, 2, 3]}), dataset)
        sections = [measure(client, sizes, rounds, dataset, progress) for client in options.clients]
    console = Console()
    report.show(console if console.is_terminal else Console(width=170), sections, marks=not options.quick)
    if options.write:
        report.write(sections, rounds)


if __name__ == "__main__":
    main()
