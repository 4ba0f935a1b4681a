from __future__ import annotations

import json
import logging
import os
import threading
from pathlib import Path

import pytest

from lancehouse.server.http.observability import JsonLogHandler, Log, RequestIds


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
