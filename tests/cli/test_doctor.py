from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import lance
import pytest

from tests.cli.commands import TWO_ROWS, ConfiguredCatalog, open_small, run
from tests.servers.faults import FaultProxy, answer_always


@pytest.fixture
def home(request: pytest.FixtureRequest, tmp_path: Path) -> ConfiguredCatalog:
    return open_small("served", request, tmp_path)


def test_one_table_that_fails_does_not_stop_the_others(
    home: ConfiguredCatalog, faults: Callable[[str], FaultProxy]
) -> None:
    for name in ("a", "b", "c"):
        home.write(name)
    lose_all = home.folder("c")
    for each in lose_all.iterdir():
        shutil.rmtree(each) if each.is_dir() else each.unlink()
    proxy = faults(home.properties["endpoint"].removesuffix("/iceberg"))
    proxy.add(answer_always(500), path=f"/{home.ns}/tables/b", times=100)
    found = home.findings_here("--property", f"endpoint={proxy.uri}/iceberg", "--property", "max_retries=0")
    assert [(each["about"].split(".")[1], each["kind"]) for each in found] == [("b", "unreadable"), ("c", "no-data")]


def test_what_people_see(home: ConfiguredCatalog) -> None:
    table = home.declare(managed_by="impl")
    home.write(mode="append")
    lance.write_dataset(TWO_ROWS, str(home.folder("docs")), mode="append")
    done = home.run("doctor", table)
    assert done.exit_code == 1
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["#", "Severity", "Table", "or", "place", "What", "is", "wrong"]
    assert lines[-3:] == [
        "1 table: 1 error",
        "What to type:",
        f"1  lancehouse --catalog served table manage {table} --by impl --adopt",
    ]
    assert all(len(line) <= 80 for line in lines[:-1])


def test_commands_without_a_named_catalog(home: ConfiguredCatalog) -> None:
    table = home.declare()
    given = ("--property", f"endpoint={home.properties['endpoint']}", "--property", "auth_token=s3cr3t")
    done = run("--output", "json", "doctor", f"main.{table}", "--impl", "iceberg", *given)
    [found] = json.loads(done.stdout)["findings"]
    assert f"table deregister main.{table} --impl iceberg --property 'auth_token=***'" in found["command"]
    assert "s3cr3t" not in done.output


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["nowhere.docs", "--root", "/tmp"], 2, "--root goes with"),
        (["a.b", "--namespace", "a"], 2, "give the ID of a table, or --namespace NS"),
        (["--older-than", "5m"], 2, "give 1h or more"),
        (["--namespace", "nowhere"], 1, "nowhere"),
        (["nowhere.docs"], 1, "nowhere"),
        (["HERE.gone"], 1, "gone"),
    ],
)
def test_wrong_words(home: ConfiguredCatalog, words: list[str], status: int, said: str) -> None:
    done = home.run("doctor", *(word.replace("HERE", home.ns) for word in words))
    assert done.exit_code == status, done.output
    assert said in done.stderr
    assert "Traceback" not in done.output
