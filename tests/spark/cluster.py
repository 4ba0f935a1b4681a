"""Spark as a cluster on 127.0.0.1: a master, workers and drivers, each in a process of its own."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pyspark

from lancehouse.spark.java import find_java
from tests.servers.jars import LIGHT
from tests.servers.lancehouse import UNTIL_INPUT_ENDS

ROOT = Path(__file__).parents[2]
SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
START_TIMEOUT_S = 60
STOP_TIMEOUT_S = 20
HOSTS = ("127.0.0.1", "localhost")
"""What workers are called, in turn: Spark tries a task a second time on another host only, and goes by the name."""
ANSWER = "answer: "
"""What a driver says begins so; all else that is printed there is Spark's."""


class ClusterError(RuntimeError):
    """A process of the cluster did not come up, or ended; the message ends with its log."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """A master and workers that run."""

    master: str
    folder: Path
    workers: tuple[int, ...]
    """Their process ids."""

    def executors(self, app: str = "") -> list[int]:
        """The process ids of the executors, of all drivers or of one: JVMs that workers have started."""
        return [pid for worker in self.workers for pid in children(worker) if app in _command(pid)]

    @contextmanager
    def driver(self, **settings: str) -> Iterator[Driver]:
        """A driver, until the block ends.

        Args:
            settings: of Spark; in their names, `_` stands for a dot.
        """
        number = len(list(self.folder.glob("driver-*.log")))
        named = {f"spark.{name.replace('_', '.')}": value for name, value in settings.items()}
        with start_driver(self.folder / f"driver-{number}.log", self.master, named) as driver:
            yield driver


class Driver:
    """A process with a Spark session that does what it is asked, one thing after another.

    Args:
        process: that runs `tests.spark.driver`.
        log: what it prints beside its answers.
    """

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self._process, self._log = process, log

    def ask(self, work: str, **arguments: Any) -> Any:
        """Have it call `module:function` of the tests, with the session and these arguments; what that returns."""
        self.send(work, **arguments)
        return self.answer()

    def send(self, work: str, **arguments: Any) -> None:
        """The same without waiting for the end."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"work": work, "arguments": arguments}) + "\n")
        self._process.stdin.flush()

    def answer(self) -> Any:
        """What came of the last thing that was sent.

        Raises:
            ClusterError: the driver ended.
        """
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(ANSWER):
                return json.loads(line.removeprefix(ANSWER))
        raise ClusterError(f"the driver ended; its log ends:\n{_tail(self._log)}")

    def kill(self) -> None:
        """As when its machine stops: neither Python nor the JVM does anything from now on."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        """Let it end by itself."""
        if self._process.poll() is None:
            try:
                self._process.communicate(timeout=STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self.kill()
                raise
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


@contextmanager
def start_cluster(folder: Path, *, workers: int = 2, cores: int = 16) -> Iterator[Cluster]:
    """Run a cluster until the block ends.

    Args:
        folder: where its logs and the folders of its executors go.
        workers: how many there are.
        cores: how many each of them claims to have, whatever the machine has.

    Raises:
        ClusterError: it did not come up.
    """
    folder.mkdir(parents=True, exist_ok=True)
    ports = ("--port", "0", "--webui-port", "0")
    deploy = "org.apache.spark.deploy"
    with ExitStack() as stack:
        process = _start(folder, "master", [f"{deploy}.master.Master", "--host", HOSTS[0], *ports])
        stack.callback(_stop, [process])
        master, _ = _wait(folder, "master", r"Starting Spark master at (spark://[\w.:]+)")
        names = [f"worker-{number}" for number in range(workers)]
        processes: list[subprocess.Popen[bytes]] = []
        stack.callback(_stop, processes)
        for name, host in zip(names, cycle(HOSTS), strict=False):
            where = ("--host", host, *ports, "--work-dir", str(folder / name))
            has = ("--cores", str(cores), "--memory", "2g")
            processes.append(_start(folder, name, [f"{deploy}.worker.Worker", *where, *has, master]))
        pids = [_wait(folder, name, "(Successfully registered) with master")[1] for name in names]
        yield Cluster(master, folder, tuple(pids))


@contextmanager
def start_driver(log: Path, master: str, settings: Mapping[str, str] | None = None) -> Iterator[Driver]:
    """Run a driver until the block ends.

    Args:
        log: for what it prints.
        master: where its tasks run; `sc://…` is a server of Spark Connect.
        settings: of Spark, besides those of `tests.spark.driver`.
    """
    command = [sys.executable, "-m", "tests.spark.driver", master, json.dumps(settings or {})]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=output,
            text=True,
            cwd=ROOT,
            env=environment(),
            start_new_session=True,
        )
    driver = Driver(process, log)
    try:
        yield driver
    finally:
        driver.stop()


@contextmanager
def start_connect(folder: Path, **settings: str) -> Iterator[str]:
    """Run a server of Spark Connect on two cores until the block ends; its address.

    Raises:
        ClusterError: it did not come up.
    """
    folder.mkdir(parents=True, exist_ok=True)
    chosen = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.python.daemon.module": "tests.spark.faults",
        "spark.ui.enabled": "false",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        **{f"spark.{name.replace('_', '.')}": value for name, value in settings.items()},
    }
    server = "org.apache.spark.sql.connect.service.SparkConnectServer"
    words = [word for key, value in chosen.items() for word in ("--conf", f"{key}={value}")]
    submit = ["org.apache.spark.deploy.SparkSubmit", "--class", server, "--master", "local[2]", *words]
    process = _start(folder, "connect", [*submit, "spark-internal"], "768m")
    try:
        port, _ = _wait(folder, "connect", r"Spark Connect server started at: \S*?:(\d+)")
        yield f"sc://127.0.0.1:{port}"
    finally:
        _stop([process])


def environment() -> dict[str, str]:
    """For processes of Spark: our Java, our Python, our tests, and nothing of a session that runs here."""
    ours = {
        "JAVA_HOME": str(find_java()),
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT),
        "SPARK_DAEMON_JAVA_OPTS": " ".join(LIGHT),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_PUBLIC_DNS": "127.0.0.1",
    }
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
    return kept | ours


def children(pid: int) -> list[int]:
    """The processes that a process has started and that still run."""
    found = subprocess.run(["ps", "-o", "pid=,stat=", "--ppid", str(pid)], capture_output=True, text=True).stdout
    rows = [line.split() for line in found.splitlines()]
    return [int(each) for each, state in rows if not state.startswith("Z")]


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    except OSError:  # it has ended
        return ""


def _start(folder: Path, name: str, command: Sequence[str], memory: str = "256m") -> subprocess.Popen[bytes]:
    with (folder / f"{name}.log").open("wb") as output:
        return subprocess.Popen(
            ["sh", "-c", UNTIL_INPUT_ENDS, "sh", str(SPARK_CLASS), *command],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env={**environment(), "SPARK_DAEMON_MEMORY": memory},
            start_new_session=True,
        )


def _wait(folder: Path, name: str, said: str) -> tuple[str, int]:
    """What a process says when it is ready, and its id."""
    log = folder / f"{name}.log"
    deadline = monotonic() + START_TIMEOUT_S
    while monotonic() < deadline:
        text = log.read_text(errors="replace")
        pid = re.search(r"^pid (\d+)$", text, re.MULTILINE)
        if pid and (ready := re.search(said, text)):
            return ready[1], int(pid[1])
        if pid and not _runs(int(pid[1])):
            break
        sleep(0.05)
    raise ClusterError(f"{name} did not come up; its log ends:\n{_tail(log)}")


def _runs(pid: int) -> bool:
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True).stdout
    return bool(state.strip()) and not state.startswith("Z")


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-60:])


def _stop(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        assert process.stdin is not None
        process.stdin.close()
    for process in processes:
        try:
            process.wait(timeout=STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
