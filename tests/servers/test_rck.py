"""The kit's reports are read rightly, and it finds on Iceberg's own server what is known of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.servers.rck import KitError, read_reports, run_rck
from tests.servers.reference import start_reference

REPORT = """<testsuite>
<testcase name="testListTables()" classname="org.apache.iceberg.rest.RESTCompatibilityKitCatalogTests"/>
<testcase name="testOdd()" classname="org.apache.iceberg.rest.RESTCompatibilityKitCatalogTests">
  <failure message="expected 1&#10;but was 2" type="x">at java.base/…</failure></testcase>
<testcase name="testBroken()" classname="org.apache.iceberg.rest.RESTCompatibilityKitViewCatalogTests">
  <error type="x">java.lang.NullPointerException
  at java.base/…</error></testcase>
<testcase name="testDot()" classname="org.apache.iceberg.rest.RESTCompatibilityKitCatalogTests">
  <skipped>org.opentest4j.TestAbortedException: assumption was not met due to: [Only with dots]
  at org.assertj…</skipped></testcase>
</testsuite>"""


def test_reports(tmp_path: Path) -> None:
    report = tmp_path / "TEST-junit-jupiter.xml"
    report.write_text(REPORT)
    results = read_reports([report])
    assert results.passed == {"Catalog.testListTables"}
    assert results.failed == {
        "Catalog.testOdd": "expected 1 but was 2",
        "ViewCatalog.testBroken": "java.lang.NullPointerException",
    }
    assert results.skipped == {"Catalog.testDot": "[Only with dots]"}


def test_a_run_without_tests_is_no_success(tmp_path: Path) -> None:
    report = tmp_path / "TEST-junit-jupiter.xml"
    report.write_text("<testsuite/>")
    with pytest.raises(KitError, match="ran no test"):
        read_reports([report])


@pytest.mark.soak
def test_on_the_reference_server(tmp_path: Path) -> None:
    with start_reference(tmp_path) as server:
        results = run_rck(server.uri, server.warehouse)
    assert (len(results.passed), list(results.failed), len(results.skipped)) == (
        144,
        ["Catalog.tableCreationWithoutNamespace"],
        12,
    )
