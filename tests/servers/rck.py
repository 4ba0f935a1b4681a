"""Iceberg's REST Compatibility Kit: its own tests of a REST catalog, run against any server."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from lancehouse.spark.java import find_java
from tests.servers import jars
from tests.servers.lancehouse import start_lancehouse

NEWEST, OLDEST = "1.11.0", "1.9.0"
SUITES = ("RESTCompatibilityKitCatalogTests", "RESTCompatibilityKitViewCatalogTests")
PACKAGE = "org.apache.iceberg.rest"
LAUNCHER = "org.junit.platform.console.ConsoleLauncher"
SMALL = ("-Xmx512m", *jars.LIGHT, "-Dorg.slf4j.simpleLogger.defaultLogLevel=error")
TIMEOUT_S = 900
ASSUMED = "assumption was not met due to: "
BASE_LOCATION = "file:/tmp"
"""Tests that choose a table's location choose it below this one, whatever the warehouse."""
SOME_FAILED = 1
"""The launcher's exit code when it did its work and a test failed."""
DOTS = {"rck.supports-names-with-dot": "true"}
"""What a server may leave out, and ours does not."""
REPORTING = {"Catalog.testCatalogWithCustomMetricsReporter"}
"""It counts reports of scans, and Iceberg's own client makes none of a scan that the server plans."""
PLANNING_THEMSELVES = {"scan-planning-mode": "client"}


class KitError(RuntimeError):
    """The kit did not run to its end; the message ends with what it said."""


@dataclass(frozen=True, slots=True)
class Results:
    """What became of each test, by names such as `Catalog.testListTables`."""

    passed: frozenset[str]
    failed: Mapping[str, str]
    """With the reason."""
    skipped: Mapping[str, str]
    """Or aborted, because the test asks for what this catalog says that it does not do."""

    def __str__(self) -> str:
        lines = [f"{len(self.passed)} passed, {len(self.failed)} failed, {len(self.skipped)} skipped or aborted"]
        for title, tests in (("failed", self.failed), ("skipped", self.skipped)):
            lines += [f"{title}: {name}: {reason}" for name, reason in sorted(tests.items())]
        return "\n".join(lines)


def run_rck(
    uri: str,
    warehouse: str,
    version: str = NEWEST,
    *,
    properties: Mapping[str, str] | None = None,
    only: Collection[str] = (),
) -> Results:
    """Run the kit on an empty catalog.

    Args:
        uri: of the server.
        warehouse: what the kit's client asks `/v1/config` for: a name, or a folder if the server has no names.
        version: of the kit.
        properties: more properties of its client.
        only: names of tests, as `Results` has them; all without.

    Raises:
        KitError: it did not run to its end.
    """
    client = {"uri": uri, "rck.uri": uri, "rck.local": "false", "warehouse": warehouse}
    wanted = {**client, "rck.requires-namespace-create": "true", **(properties or {})}
    with tempfile.TemporaryDirectory(prefix="rck-") as folder:
        command = [
            str(find_java() / "bin" / "java"),
            *SMALL,
            *(f"-D{key}={value}" for key, value in wanted.items()),
            *("-cp", f"{jars.bring(jars.compatibility_kit(version))}/*", LAUNCHER, "execute", "--disable-banner"),
            *(_select_options(only) or (f"--select-class={PACKAGE}.{suite}" for suite in SUITES)),
            *("--config=rck.local=false", "--details=none", f"--reports-dir={folder}"),
        ]
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=folder, timeout=TIMEOUT_S
        )
        reports = sorted(Path(folder).glob("TEST-*.xml"))
        if done.returncode not in (0, SOME_FAILED) or not reports:
            raise KitError(f"the kit did not run (exit {done.returncode}):\n{done.stdout[-8000:]}")
        return read_reports(reports)


def _select_options(names: Collection[str]) -> list[str]:
    parts = (name.partition(".") for name in names)
    return [f"--select-method={PACKAGE}.RESTCompatibilityKit{suite}Tests#{test}" for suite, _, test in parts]


def read_reports(reports: Sequence[Path]) -> Results:
    """The results in JUnit's XML reports.

    Raises:
        KitError: there are none.
    """
    passed, failed, skipped = set(), {}, {}
    for case in (case for report in reports for case in ET.parse(report).getroot().iter("testcase")):
        name = f"{_suite(case.get('classname', ''))}.{case.get('name', '').removesuffix('()')}"
        if (failure := _child(case, "failure", "error")) is not None:
            failed[name] = _reason(failure)
        elif (skip := _child(case, "skipped")) is not None:
            skipped[name] = _reason(skip)
        else:
            passed.add(name)
    if not passed and not failed:
        raise KitError("the kit ran no test")
    return Results(frozenset(passed), failed, skipped)


def _suite(classname: str) -> str:
    return classname.rpartition(".")[2].removeprefix("RESTCompatibilityKit").removesuffix("Tests")


def _child(case: ET.Element, *tags: str) -> ET.Element | None:
    return next((child for child in case if child.tag in tags), None)


def _reason(element: ET.Element) -> str:
    """What was expected and what came, without the stack."""
    lines = [line.strip() for line in (element.get("message") or element.text or "").splitlines()]
    said = " ".join(line for line in takewhile(lambda line: not line.startswith("at "), lines) if line)
    return said.rpartition(ASSUMED)[2][:500]


def run_on_ours(folder: Path, version: str = NEWEST) -> Results:
    """The kit on a fresh `lancehouse serve`, which plans the scans; then, planning themselves, what needs that."""
    with start_lancehouse(folder / "planning", roots=[BASE_LOCATION]) as server:
        results = run_rck(server.iceberg, server.warehouse, version, properties=DOTS)
    again = REPORTING & results.failed.keys()
    if not again:
        return results
    with start_lancehouse(folder / "reporting", roots=[BASE_LOCATION]) as server:
        second = run_rck(server.iceberg, server.warehouse, version, properties=PLANNING_THEMSELVES, only=again)
    failed = {name: why for name, why in results.failed.items() if name not in second.passed}
    return Results(results.passed | second.passed, failed, results.skipped)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the kit on a fresh `lancehouse serve`, or on a server that runs already."""
    parser = argparse.ArgumentParser(prog="python -m tests.servers.rck", description=main.__doc__)
    parser.add_argument("--version", choices=list(jars.KIT_SERVERS), default=NEWEST, help="of the kit")
    parser.add_argument("--uri", help="of a server with an empty catalog; without it, one is started")
    parser.add_argument("--warehouse", default="main")
    options = parser.parse_args(arguments)
    if options.uri:
        results = run_rck(options.uri, options.warehouse, options.version)
    else:
        with tempfile.TemporaryDirectory(prefix="rck-") as folder:
            results = run_on_ours(Path(folder), options.version)
    print(results)
    sys.exit(bool(results.failed))


if __name__ == "__main__":
    main()
