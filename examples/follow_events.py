"""Run a pipeline, or any command, each time a table changes, according to the events of a Lancehouse server.

    python -m examples.follow_events main.ml.docs --server http://127.0.0.1:8181 -- lancehouse run pipeline.yaml

Set LANCEHOUSE_TOKEN to the token of a principal who may read the table. The position is stored in a file, so that a
restart continues with what has changed since: an event may arrive twice, and none is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode
from urllib.request import Request, urlopen

WAIT_S = 30


def follow(server: str, warehouse: str, position: Path, token: str | None = None) -> Iterator[list[dict[str, Any]]]:
    """Yield lists of events after the stored position, which advances when the next list is requested."""
    base = f"{server.rstrip('/')}/iceberg/v1/{quote(warehouse, safe='')}/lancehouse/events"
    after = position.read_text() if position.exists() else "now"
    while True:
        request = Request(f"{base}?{urlencode({'after': after, 'wait': WAIT_S})}")
        if token:
            request.add_header("Authorization", f"Bearer {token}")
        with urlopen(request, timeout=2 * WAIT_S) as response:
            page = json.load(response)
        if page["events"]:
            yield page["events"]
        after = str(page["next"])
        part = position.with_suffix(".part")
        part.write_text(after)
        part.replace(position)


def main(arguments: Sequence[str] | None = None) -> None:
    """Follow the changes of one table until stopped."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("table", help="warehouse.namespace.table")
    parser.add_argument("--server", default="http://127.0.0.1:8181")
    parser.add_argument("--position", type=Path, default=Path("events.position"), help="file that keeps the position")
    parser.add_argument("--times", type=int, help="stop after so many runs")
    parser.add_argument("command", nargs="+", help="what to run, after --")
    options = parser.parse_args(arguments)
    warehouse, _, table = options.table.partition(".")
    runs = 0
    for events in follow(options.server, warehouse, options.position, os.environ.get("LANCEHOUSE_TOKEN")):
        changes = [event for event in events if event["subject"] == table and event["type"].endswith(".commit")]
        if not changes:
            continue
        # Changes that come together need one run: a pipeline reads the table as it is now.
        print(f"{len(changes)} changes of {options.table}, the last by {changes[-1]['data']['principal']}", flush=True)
        subprocess.run(options.command, check=True)
        runs += 1
        if runs == options.times:
            return


if __name__ == "__main__":
    main()
