"""The dashboard and the alerts in `deploy/`, on a real Prometheus that scrapes a running server."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.server.serving import ServerClient
from tests.servers.lancehouse import start_lancehouse
from tests.servers.prometheus import Prometheus, find_program, start_prometheus

pytestmark = [
    pytest.mark.engines,
    pytest.mark.skipif(
        find_program("promtool") is None,
        reason="there is no Prometheus: `python -m tests.servers.prometheus` brings it, from Debian's packages",
    ),
]

DEPLOY = Path(__file__).parents[2] / "deploy"
DASHBOARD = json.loads((DEPLOY / "grafana-dashboard.json").read_text())
RULES = yaml.safe_load((DEPLOY / "alerts.yml").read_text())["groups"][0]["rules"]
SCHEMA = {"type": "struct", "schema-id": 0, "fields": [{"id": 1, "name": "a", "required": False, "type": "long"}]}
PROPERTY = {"requirements": [], "updates": [{"action": "set-properties", "updates": {"a": "1"}}]}
CONFLICT = {"requirements": [{"type": "assert-table-uuid", "uuid": "0"}], "updates": []}


def queries() -> list[str]:
    panels = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
    found = [target["expr"] for panel in panels for target in panel["targets"]]
    return [each.replace("$__rate_interval", "20s").replace("$instance", ".*") for each in found]


def make_traffic(client: ServerClient) -> None:
    table = "main/namespaces/n/tables/t"
    for _ in range(3):
        assert client.iceberg("GET", table).status == 200
        client.iceberg("POST", table, PROPERTY)
        client.iceberg("POST", table, CONFLICT)
        client.send("GET", "/lance/main/v1/namespace/n/table/list")


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    folder = tmp_path_factory.mktemp("prometheus")
    with start_lancehouse(folder, workers=2) as server:
        port = int(server.uri.rpartition(":")[2])
        client = ServerClient(port)
        client.iceberg("POST", "main/namespaces", {"namespace": ["n"]})
        client.iceberg("POST", "main/namespaces/n/tables", {"name": "t", "schema": SCHEMA})
        config = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())
        config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        (job,) = config["scrape_configs"]
        del job["authorization"]
        job["static_configs"] = [{"targets": [f"127.0.0.1:{port}"]}]
        config["rule_files"] = [str(DEPLOY / "alerts.yml")]
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        with start_prometheus(folder, folder / "prometheus.yml") as running:
            deadline = time.monotonic() + 60
            missing = queries()
            while missing and time.monotonic() < deadline:
                make_traffic(client)
                time.sleep(1)
                missing = [query for query in missing if not running.ask("query", query=query)["result"]]
            assert not missing
            yield running


def test_every_panel_has_data(prometheus: Prometheus) -> None:
    """The fixture has waited for it: here, some of the values."""
    ((_, up),) = [each["value"] for each in prometheus.ask("query", query='lancehouse_up{kind="database"}')["result"]]
    assert up == "1"
    commits = prometheus.ask("query", query="lancehouse_commits_total")["result"]
    counts = {each["metric"]["outcome"]: float(each["value"][1]) for each in commits}
    assert counts["committed"] >= 1
    assert counts["conflict"] >= 1
    memory = prometheus.ask("query", query='process_resident_memory_bytes{job="lancehouse"}')["result"]
    assert len(memory) == 2


def test_the_rules_are_evaluated_and_all_is_well(prometheus: Prometheus) -> None:
    (group,) = prometheus.ask("rules")["groups"]
    assert [rule["name"] for rule in group["rules"]] == [rule["alert"] for rule in RULES]
    assert {rule["lastError"] for rule in group["rules"] if "lastError" in rule} == set()
    quiet = {"LancehouseDown", "LancehouseDatabaseNotWritable", "LancehouseWarehouseUnreachable", "LancehouseErrors"}
    assert not {rule["name"] for rule in group["rules"] if rule["state"] != "inactive"} & quiet


def test_the_panels_name_metrics_that_there_are(prometheus: Prometheus) -> None:
    known = set(prometheus.ask("label/__name__/values"))
    ours = {name for name in known if name.startswith("lancehouse_")}
    shown = {name for name in ours if any(name in query for query in [*queries(), *(rule["expr"] for rule in RULES)])}
    helpers = {name for name in ours if name.endswith(("_count", "_sum"))}
    assert ours - shown - helpers == {"lancehouse_look_age_seconds"}


SERIES: dict[str, dict[str, str]] = {
    "LancehouseDown": {'up{job="lancehouse",instance="a"}': "0x60"},
    "LancehouseDatabaseNotWritable": {'lancehouse_up{kind="database",name="x",instance="a"}': "0x60"},
    "LancehousePoolFull": {
        f'lancehouse_pool_{name}{{pool="rows",backend="",instance="a"}}': f"{value}x60"
        for name, value in {"size": 16, "in_use": 16, "waiting": 3}.items()
    },
    "LancehouseErrors": {
        'lancehouse_requests_total{status="503",instance="a"}': "0+10x60",
        'lancehouse_requests_total{status="200",instance="a"}': "0+90x60",
    },
    "LancehouseCommitConflicts": {
        'lancehouse_commits_total{outcome="conflict",instance="a"}': "0+2x60",
        'lancehouse_commits_total{outcome="committed",instance="a"}': "0+1x60",
    },
    "LancehouseWorkersRestart": {'lancehouse_worker_restarts_total{reason="hung",instance="a"}': "0+1x60"},
    "LancehouseStorageErrors": {'lancehouse_storage_errors_total{kind="throttled",instance="a"}': "0+60x60"},
}


@pytest.mark.parametrize("name", SERIES)
def test_alerts_fire(tmp_path: Path, name: str) -> None:
    fires = f'count(ALERTS{{alertname="{name}",alertstate="firing"}})'
    test = {
        "interval": "1m",
        "input_series": [{"series": key, "values": values} for key, values in SERIES[name].items()],
        "promql_expr_test": [{"expr": fires, "eval_time": "59m", "exp_samples": [{"labels": "{}", "value": 1}]}],
    }
    described = {"rule_files": [str(DEPLOY / "alerts.yml")], "evaluation_interval": "1m", "tests": [test]}
    (tmp_path / "test.yml").write_text(yaml.safe_dump(described))
    run_promtool("test", "rules", tmp_path / "test.yml")


def test_promtool_finds_nothing() -> None:
    assert f"{len(RULES)} rules found" in run_promtool("check", "rules", DEPLOY / "alerts.yml")


def run_promtool(*words: str | Path) -> str:
    program = find_program("promtool")
    assert program is not None
    done = subprocess.run([program, *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
