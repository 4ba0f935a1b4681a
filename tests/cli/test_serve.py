"""The command itself, in processes of its own."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPSConnection
from pathlib import Path

import pytest
import trustme
from click import Option
from click.testing import CliRunner

from lancehouse.cli.main import main
from lancehouse.cli.serve import serve as command
from lancehouse.server.setting_table import SERVER_SETTINGS
from tests.server.serving import ServerClient
from tests.servers.lancehouse import PROGRAM
from tests.waiting import wait_until

START_TIMEOUT_S = 60
EMPTY = {"type": "struct", "fields": []}
JSON = "content-type: application/json\r\n"


@dataclass
class Running:
    process: subprocess.Popen[str]
    line: str
    before: list[str]
    """Lines before the one that says `ready`."""
    client: ServerClient
    log: Path

    def workers(self) -> list[int]:
        found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(self.process.pid)], capture_output=True, text=True)
        return [int(pid) for pid in found.stdout.split()]


@contextmanager
def serve(folder: Path, *options: str) -> Iterator[Running]:
    log = folder / "stderr"
    with log.open("w") as errors:
        process = subprocess.Popen(
            [PROGRAM, "serve", "--port", "0", *options],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, "XDG_DATA_HOME": str(folder / "data")},
            process_group=0,
        )
    assert process.stdout is not None
    try:
        before = []
        while (line := process.stdout.readline()) and not line.startswith("ready"):
            before.append(line.rstrip("\n"))
        assert line, log.read_text()
        port = re.search(r"iceberg https?://\S+:(\d+)/iceberg", line)
        assert port
        yield Running(process, line, before, ServerClient(int(port[1])), log)
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait(START_TIMEOUT_S)
        process.stdout.close()


def serve_error(folder: Path, *options: str) -> str:
    environment = {"XDG_DATA_HOME": str(folder / "data")}
    done = CliRunner().invoke(main, ["serve", "--port", "0", *options], env=environment)
    assert done.exit_code == 1
    assert all(line.startswith("new database ") for line in done.stdout.splitlines())
    (sentence,) = done.stderr.splitlines()
    return sentence


def have_ended(pids: Sequence[int]) -> bool:
    return not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_without_options(tmp_path: Path) -> None:
    with serve(tmp_path) as running:
        warehouse = tmp_path / "data" / "lancehouse" / "warehouse"
        assert running.line.endswith(f"warehouses main={warehouse}\n")
        assert running.before == [
            f"new database sqlite:///{tmp_path}/data/lancehouse/catalog.db",
            f"new warehouse main={warehouse}",
            "anybody may do everything: no principal exists",
        ]
        assert running.client.iceberg("GET", "config").json["defaults"]["root"] == str(warehouse)
        assert running.client.send("GET", "/health/ready").status == 200
        assert (tmp_path / "data" / "lancehouse" / "catalog.db").exists()
        running.process.terminate()
        assert running.process.wait(20) == 0
    assert '"route":"getConfig"' in running.log.read_text()


def test_beyond_this_machine_if_told_so(tmp_path: Path) -> None:
    """With warehouses and a root, too; and an interrupt is a stop."""
    one, two = f"one={tmp_path}/1", f"two={tmp_path}/2"
    options = ("--warehouse", one, "--warehouse", two, "--root", f"two={tmp_path}/more", "--host", "0.0.0.0")
    with serve(tmp_path, *options, "--insecure") as running:
        assert running.line.endswith(f"warehouses {one} {two}\n")
        assert running.client.iceberg("POST", "two/namespaces", {"namespace": ["n"]}).status == 200
        for place, status in {"more/t": 200, "elsewhere/t": 400}.items():
            table = {"name": "t", "schema": EMPTY, "location": f"{tmp_path}/{place}"}
            assert running.client.iceberg("POST", "two/namespaces/n/tables", table).status == status
        running.process.send_signal(signal.SIGINT)
        assert running.process.wait(20) == 0
    with serve(tmp_path, "--host", "0.0.0.0", "--auth") as running:  # the warehouses are remembered
        assert running.before == []
        assert running.line.endswith(f"warehouses {one} {two}\n")
        assert running.client.iceberg("GET", "config").error[0] == 401


def test_the_default_warehouse_is_beside_the_database(tmp_path: Path) -> None:
    with serve(tmp_path, "--db", f"sqlite:///{tmp_path}/mine/c.db") as running:
        assert running.before[:2] == [
            f"new database sqlite:///{tmp_path}/mine/c.db",
            f"new warehouse main={tmp_path}/mine/warehouse",
        ]
    assert not (tmp_path / "data").exists()


def test_what_cannot_be_served(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert "is in use" in serve_error(tmp_path, "--port", port)
    pem = tmp_path / "x.pem"
    pem.write_text("nonsense")
    rows = [
        (["--tls-cert", str(pem), "--tls-key", str(pem)], "are no certificate with its key"),
        (["--warehouse", f"w={pem}/below"], "warehouse w: location"),
        (["--warehouse", "w=ftp://x"], "no lance table can lie there"),
        (["--warehouse", f"a={tmp_path}/a", "--warehouse", f"b={tmp_path}/a/b"], "lies in warehouse a at"),
        (["--tls-cert", str(pem)], "--tls-key is missing: --tls-cert and --tls-key are given together"),
        (["--root", "nope=/x"], "--root names warehouse nope, which is not served; there are main"),
        (["--root", "main=s3a://x/y"], "warehouse main: location 's3a://x/y' is not allowed"),
        (["--host", "0.0.0.0"], "lancehouse principal create"),
        (["--host", "no.such.host.invalid"], "is no address"),
        (["--db", "mysql://x"], "no such kind of database"),
        (["--port", "many"], "--port must be a whole number"),
        (["--config", str(tmp_path / "none.yaml")], "cannot be read"),
    ]
    for options, words in rows:
        assert words in serve_error(tmp_path, *options), options


def test_tls(tmp_path: Path) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    certificate.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    certificate.private_key_pem.write_to_path(tmp_path / "key.pem")
    context = ssl.create_default_context()
    authority.configure_trust(context)
    options = ("--tls-cert", str(tmp_path / "cert.pem"), "--tls-key", str(tmp_path / "key.pem"))
    with serve(tmp_path, *options) as running:
        assert "https://127.0.0.1:" in running.line
        connection = HTTPSConnection("127.0.0.1", running.client.port, context=context, timeout=START_TIMEOUT_S)
        connection.request("GET", "/health/live")
        assert connection.getresponse().status == 200
        connection.close()


def trusting(folder: Path) -> ssl.SSLContext:
    """Write the certificate of a new authority, and return the context of those who trust it alone."""
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    certificate.cert_chain_pems[0].write_to_path(folder / "cert.pem")
    certificate.private_key_pem.write_to_path(folder / "key.pem")
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


@pytest.mark.parametrize("workers", [1, 2])
def test_a_hangup_changes_what_can_be_changed(tmp_path: Path, workers: int) -> None:
    """Certificates too; open connections stay, and a faulty file or certificate changes nothing."""
    config, before = tmp_path / "server.yaml", trusting(tmp_path)
    files = f"tls_cert: {tmp_path}/cert.pem\ntls_key: {tmp_path}/key.pem\n"
    config.write_text(f"{files}log_level: error\n")

    def is_served(context: ssl.SSLContext, times: int = 4 * workers, **headers: str) -> bool:
        try:
            for _ in range(times):
                new = HTTPSConnection("127.0.0.1", running.client.port, context=context, timeout=START_TIMEOUT_S)
                new.request("GET", "/iceberg/v1/config", headers=headers)
                status = new.getresponse().status
                new.close()
                if status != 200:
                    return False
        except ssl.SSLCertVerificationError:
            return False
        return True

    def said() -> list[str]:
        return [json.loads(line).get("message", "") for line in running.log.read_text().splitlines()]

    def count_refusals() -> int:
        return sum("stay as they were" in message for message in said())

    def hang_up() -> None:
        os.killpg(running.process.pid, signal.SIGHUP)

    with serve(tmp_path, "--workers", str(workers), "--config", str(config)) as running:
        old = HTTPSConnection("127.0.0.1", running.client.port, context=before, timeout=START_TIMEOUT_S)
        old.request("GET", "/health/live")
        assert old.getresponse().read()
        pids = running.workers()
        assert not is_served(before, 1, host="lake.example.com")
        after = trusting(tmp_path)
        config.write_text(f"{files}log_level: info\nallowed_hosts: lake.example.com\nthreads: 7\n")
        hang_up()
        wait_until(lambda: is_served(after, host="lake.example.com"))
        assert not is_served(before, 1)
        wait_until(lambda: '"route":"getConfig"' in running.log.read_text())
        words = "changed: allowed_hosts, log_level; a restart would change threads"
        wait_until(lambda: sum(words in message for message in said()) == 1)
        for nonsense in ("log_level: nonsense", "log_level: info", "workers: [1"):
            config.write_text(files + nonsense)
            if nonsense == "log_level: info":
                (tmp_path / "cert.pem").write_text("no certificate")
            refused = count_refusals()
            hang_up()
            wait_until(lambda: count_refusals() == refused + 1)  # noqa: B023 - called before the loop goes on
        assert is_served(after, host="lake.example.com")
        old.request("GET", "/health/live")
        assert old.getresponse().status == 200
        old.close()
        assert running.workers() == pids


def metrics(running: Running) -> str:
    return running.client.send("GET", "/metrics").body.decode()


def test_workers(tmp_path: Path) -> None:
    """They share the port, count together, are replaced when they die, and go when their parent goes."""
    with serve(tmp_path, "--workers", "2") as running:
        workers = running.workers()
        assert len(workers) == 2
        connections = [HTTPConnection("127.0.0.1", running.client.port, timeout=START_TIMEOUT_S) for _ in range(8)]
        for connection in connections:
            connection.request("GET", "/iceberg/v1/config")
        for connection in connections:
            assert connection.getresponse().read()
            connection.close()
        wait_until(lambda: metrics(running).count("process_resident_memory_bytes{") == 2)
        assert 'lancehouse_requests_total{method="GET",route="getConfig",status="200"} 8.0' in metrics(running)
        running.client.iceberg("POST", "main/namespaces", {"namespace": ["n"]})
        os.kill(workers[0], signal.SIGKILL)
        wait_until(lambda: len(running.workers()) == 2 and workers[0] not in running.workers())
        assert running.client.iceberg("GET", "main/namespaces").json["namespaces"] == [["n"]]
        wait_until(lambda: 'lancehouse_worker_restarts_total{reason="crashed"} 1.0' in metrics(running))
        wait_until(lambda: 'lancehouse_pool_size{backend="",pool="scans"} 16.0' in metrics(running))
        workers = running.workers()
        running.process.kill()
        wait_until(lambda: have_ended(workers))
    said = [json.loads(line).get("message", "") for line in running.log.read_text().splitlines()]
    assert sum(message.endswith(" starts") for message in said) == 3
    assert sum(message.endswith("and is replaced") for message in said) == 1


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(("number", "to_all"), [(signal.SIGTERM, False), (signal.SIGTERM, True), (signal.SIGINT, True)])
def test_a_stop_finishes_what_was_begun_and_is_silent(
    tmp_path: Path, workers: int, number: signal.Signals, to_all: bool
) -> None:
    """Also where the signal goes to the whole group, as Ctrl-C does, and the workers get it from both sides."""
    body = b'{"namespace": ["n"]}'
    head = f"POST /iceberg/v1/main/namespaces HTTP/1.1\r\nhost: [::1]\r\n{JSON}content-length: {len(body)}\r\n\r\n"
    with serve(tmp_path, "--workers", str(workers)) as running:
        pids = running.workers()
        assert running.client.iceberg("GET", "config").status == 200
        with socket.create_connection(("127.0.0.1", running.client.port), timeout=START_TIMEOUT_S) as connection:
            connection.sendall(head.encode() + body[:5])
            time.sleep(0.3)
            (os.killpg if to_all else os.kill)(running.process.pid, number)
            time.sleep(0.7)
            connection.sendall(body[5:])
            assert connection.recv(1000).startswith(b"HTTP/1.1 200 ")
        assert running.process.wait(30) == 0
        assert have_ended(pids)
    lines = [json.loads(line) for line in running.log.read_text().splitlines()]
    assert {line["level"] for line in lines} == {"info"}
    requests = {line["route"]: line["status"] for line in lines if "route" in line}
    assert requests == {"getConfig": 200, "createNamespace": 200}
    assert "error" not in {line["level"] for line in lines}


@pytest.mark.parametrize("workers", [1, 2])
def test_a_second_signal_stops_at_once(tmp_path: Path, workers: int) -> None:
    with serve(tmp_path, "--workers", str(workers)) as running:
        pids = running.workers()
        assert running.client.iceberg("GET", "config").status == 200
        head = f"POST /iceberg/v1/main/namespaces HTTP/1.1\r\nhost: [::1]\r\n{JSON}content-length: 9\r\n\r\n".encode()
        with socket.create_connection(("127.0.0.1", running.client.port), timeout=START_TIMEOUT_S) as connection:
            connection.sendall(head)
            time.sleep(0.3)
            running.process.terminate()
            time.sleep(0.3)
            running.process.terminate()
            assert running.process.wait(25) == 0  # the request would be waited for for 30 seconds
        assert have_ended(pids)
    assert "lifespan" not in running.log.read_text()


def test_every_setting_is_an_option_and_a_variable(tmp_path: Path) -> None:
    words = CliRunner().invoke(main, ["serve", "--help"]).stdout
    assert all(setting.option in words for setting in SERVER_SETTINGS)
    rows = [
        ("LANCEHOUSE_PORT", "many", "--port must be a whole number from 0 to 65535"),
        ("LANCEHOUSE_WAREHOUSE", "w", "--warehouse must have the form NAME=LOCATION, got 'w'"),
        ("LANCEHOUSE_ROOT", "w=/x w", "--root must have the form NAME=LOCATION, got 'w'"),
        (
            "LANCEHOUSE_SERVER_CONFIG",
            f"{tmp_path}/none",
            f"{tmp_path}/none cannot be read: No such file or directory",
        ),
    ]
    for variable, value, complaint in rows:
        done = CliRunner().invoke(main, ["serve"], env={variable: value})
        assert (done.exit_code, done.stderr) == (1, f"Error: {complaint}\n")


def test_every_setting_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "server.md").read_text()
    settings = {setting.name: setting for setting in SERVER_SETTINGS}
    assert len(command.params) == len(settings) + 3
    for option in command.params:
        assert isinstance(option, Option)
        if (setting := settings.get(str(option.name))) is None:
            row = f"| `{option.opts[0]} {option.metavar}` |  | {option.help} |"
        else:
            default = f"`{setting.default_text}`" if setting.default_text else ""
            row = f"| `{setting.option}` | {default} | {setting.help} |"
        assert row in page
