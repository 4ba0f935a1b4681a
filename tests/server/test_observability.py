from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from lancehouse.log_lines import JsonFormatter, log_about
from lancehouse.server.http.application import RequestIds
from lancehouse.server.http.observability import JsonLogHandler, Log
from lancehouse.server.http.responses import Response
from lancehouse.server.http.routes import Call, Route
from tests.server.serving import serving


def lines(file: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def open_log(file: Path, level: str = "info") -> Log:
    return Log(level, os.open(file, os.O_WRONLY | os.O_CREAT))


def test_every_line_of_every_thread_arrives(tmp_path: Path) -> None:
    log = open_log(tmp_path / "log")

    def write(number: int) -> None:
        for index in range(500):
            log.write_line(logging.INFO, {"thread": number, "index": index})

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    log.close()
    found = {(line["thread"], line["index"]) for line in lines(tmp_path / "log")}
    assert len(found) == 8 * 500


@pytest.mark.parametrize(
    ("level", "expected"),
    [("debug", ["debug", "info", "error"]), ("info", ["info", "error"]), ("error", ["error"])],
)
def test_levels(tmp_path: Path, level: str, expected: list[str]) -> None:
    log = open_log(tmp_path / "log", level)
    for number in (logging.DEBUG, logging.INFO, logging.ERROR):
        log.write_line(number, {"a": "ü\n"})
    log.close()
    assert [line["level"] for line in lines(tmp_path / "log")] == expected


def test_what_modules_log_has_the_same_form(tmp_path: Path) -> None:
    log = open_log(tmp_path / "log")
    logger = logging.Logger("some.module")
    logger.addHandler(JsonLogHandler(log))
    try:
        raise ValueError("why")
    except ValueError:
        logger.exception("it %s", "broke")
    log.close()
    (line,) = lines(tmp_path / "log")
    assert (line["logger"], line["message"], line["level"]) == ("some.module", "it broke", "error")
    assert "ValueError: why" in str(line["trace"])


def test_a_log_that_nobody_reads_stops_nobody(tmp_path: Path) -> None:
    read, write = os.pipe()
    log = Log("info", write)
    for _ in range(20_000):  # far more than a pipe holds
        log.write_line(logging.INFO, {"text": "x" * 100})
    os.close(read)  # the writer's thread gets an error instead of waiting for ever
    log.close()
    os.close(write)


def test_ids_are_different() -> None:
    first, second = RequestIds(), RequestIds()
    assert len({first.next(), first.next(), second.next(), second.next()}) == 4


FORGED = 'x\n{"level":"error"}\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029\x1b[31m\x9b31m\x7f\x00'


@pytest.mark.parametrize("text", [FORGED, "ü", "\ud800 half a pair", "😀"])
def test_no_value_begins_a_line(tmp_path: Path, text: str) -> None:
    log = open_log(tmp_path / "log")
    log.write_line(logging.INFO, {"table": text})
    log.close()
    written = (tmp_path / "log").read_bytes().decode()
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029]", written)
    (line,) = written.splitlines()
    assert json.loads(line)["table"] == text


def test_lines_of_programs_have_the_same_form() -> None:
    record = logging.LogRecord("some.module", logging.WARNING, "x.py", 1, "%s: left", (FORGED,), None)
    with log_about(table="db.docs"), log_about(run="r1"):
        line = JsonFormatter().format(record)
    assert len(line.splitlines()) == 1
    fields = json.loads(line)
    assert fields.pop("time").endswith("Z")
    assert fields == {
        "level": "warning",
        "logger": "some.module",
        "message": f"{FORGED}: left",
        "table": "db.docs",
        "run": "r1",
    }
    assert "table" not in json.loads(JsonFormatter().format(record))


def test_what_is_printed_and_what_nobody_catches_is_logged() -> None:
    """Also from outside of Python; and the real stderr is back afterwards."""
    program = """
import os, sys, threading, time, warnings
from lancehouse.server.http.observability import Log, capture_stderr, install_logging

class Broken:
    def __del__(self):
        raise ValueError("in vain")

with capture_stderr() as stderr:
    log = Log("info", stderr)
    install_logging(log)
    os.write(2, b"thread panicked\\nat lib.rs:1\\n")
    warnings.warn("old")
    thread = threading.Thread(target=lambda: 1 / 0)
    thread.start()
    thread.join()
    Broken()
    sys.excepthook(KeyError, KeyError("why"), None)
    time.sleep(0.3)
    log.close()
print("the end", file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    *lines, last = done.stderr.splitlines()
    assert last == "the end"
    found = [json.loads(line) for line in lines]
    assert {"thread panicked", "at lib.rs:1"} <= {line["message"] for line in found if line["logger"] == "stderr"}
    traces = " ".join(line.get("trace", "") for line in found)
    assert all(word in traces for word in ("ZeroDivisionError", "in vain", "KeyError: 'why'"))
    assert any(line["logger"] == "py.warnings" and "old" in line["message"] for line in found)


def test_requests_name_their_tables(tmp_path: Path) -> None:
    schema = {"type": "struct", "schema-id": 0, "fields": []}
    with serving(tmp_path, more=[Route("fail", "GET", "/v1/{prefix}/views/rename", fail)]) as client:
        client.iceberg("POST", "main/namespaces", {"namespace": ["a", "b.c"]})
        client.iceberg("POST", "main/namespaces/a%1Fb.c/tables", {"name": "new", "schema": schema})
        client.iceberg("GET", "main/namespaces/a%1Fb.c/tables/t%0A%7B%7D")
        names = [{"namespace": ["a"], "name": name} for name in ("t", "u")]
        client.iceberg("POST", "main/tables/rename", dict(zip(("source", "destination"), names, strict=True)))
        changes = [{"identifier": name, "requirements": [], "updates": []} for name in names]
        client.iceberg("POST", "main/transactions/commit", {"table-changes": changes})
        client.iceberg("GET", "main/views/rename")
        time.sleep(0.2)
    lines = [line for line in client.lines() if "status" in line]
    assert [(line.get("table"), line.get("tables")) for line in lines] == [
        (None, None),
        ("a.`b.c`.new", None),
        ("a.`b.c`.t\n{}", None),
        ("a.t", ["a.t", "a.u"]),
        ("a.t", ["a.t", "a.u"]),
        (None, None),
    ]


def fail(call: Call) -> Response:
    logging.getLogger("x").error("while at work")
    raise RuntimeError("unforeseen")
