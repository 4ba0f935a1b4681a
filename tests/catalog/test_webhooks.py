from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from lancehouse.catalog import webhooks
from lancehouse.catalog.bootstrap import open_database, record_warehouses
from lancehouse.catalog.callers import ANYBODY, Caller
from lancehouse.catalog.catalog import Catalog
from lancehouse.catalog.warehouses import Warehouse, Webhook
from lancehouse.catalog.webhooks import WebhookSender
from tests.servers.postgres import new_database

SECRET = "a secret of some length"
CALLER = Caller(ANYBODY)


class Receiver:
    """A URL that keeps what it gets, and answers as it is told to."""

    def __init__(self) -> None:
        self.got: list[tuple[dict[str, str], bytes]] = []
        self.answers: list[int] = []
        self.body: Event | None = None
        """If set, replies have a body, which does not come until then."""
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                receiver.got.append(({key.lower(): value for key, value in self.headers.items()}, body))
                self.send_response(receiver.answers.pop(0) if receiver.answers else 204)
                self.send_header("content-length", "0" if receiver.body is None else "10")
                self.end_headers()
                if receiver.body is not None:
                    receiver.body.wait(30)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/hook?token=hush"
        Thread(target=self.server.serve_forever, daemon=True).start()

    def events(self) -> list[str]:
        return [".".join(json.loads(body)["data"]["namespace"]) for _, body in self.got]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.server.shutdown()
    made.server.server_close()


@pytest.fixture(params=["sqlite", "postgres"])
def catalog(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Catalog]:
    postgres = request.param == "postgres"
    url = new_database(request.getfixturevalue("postgres")) if postgres else f"sqlite:///{tmp_path / 'catalog.db'}"
    database = open_database(url)
    wanted = [Warehouse(0, name, str(tmp_path / name)) for name in ("main", "other")]
    made = Catalog(database, record_warehouses(database, wanted, wanted[0]))
    make(made, "before")
    yield made
    database.close()


def make(catalog: Catalog, name: str, warehouse: str = "main") -> None:
    catalog.namespaces.create(CALLER, catalog.warehouses[warehouse], (name,), {})


def start(catalog: Catalog, receiver: Receiver, **more: Any) -> tuple[WebhookSender, Webhook]:
    webhook = Webhook("etl", receiver.url, SECRET, **more)
    sender = WebhookSender(catalog.database, [webhook])
    assert not sender.send_next(webhook)  # it begins now
    return sender, webhook


def test_events_are_sent_signed_and_once(catalog: Catalog, receiver: Receiver) -> None:
    sender, webhook = start(catalog, receiver)
    for name in ("a", "b"):
        make(catalog, name)
    for _ in range(2):
        sender.send_next(webhook)
    assert receiver.events() == ["a", "b"]
    headers, body = receiver.got[0]
    content = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    signature = base64.b64encode(hmac.new(SECRET.encode(), content, hashlib.sha256).digest()).decode()
    assert headers["webhook-signature"] == f"v1,{signature}"
    assert headers["content-type"] == "application/cloudevents+json"
    assert json.loads(body)["id"] == headers["webhook-id"]


def test_what_is_not_taken_is_sent_again_in_order(
    catalog: Catalog, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(webhooks, "LOOK_EVERY_S", 0.01)
    monkeypatch.setattr(webhooks, "FIRST_PAUSE_S", 0.01)
    sender, _ = start(catalog, receiver)
    receiver.answers = [500, 302, 204, 429]
    for name in ("a", "b"):
        make(catalog, name)
    stop = Event()
    thread = Thread(target=sender.run, args=(stop,))
    thread.start()
    while len(receiver.got) < 5:
        stop.wait(0.02)
    stop.set()
    thread.join(30)
    assert receiver.events() == ["a", "a", "a", "b", "b"]
    assert "webhook etl at 127.0.0.1 has not taken event" in caplog.text
    assert "hush" not in caplog.text
    assert SECRET not in repr(Webhook("etl", receiver.url, SECRET))


def test_one_server_at_a_time(catalog: Catalog, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    first, webhook = start(catalog, receiver)
    second = WebhookSender(catalog.database, [webhook])
    make(catalog, "a")
    first.send_next(webhook)
    make(catalog, "b")
    second.send_next(webhook)
    assert receiver.events() == ["a"], "the first holds the lease"
    first.send_next(webhook)
    assert receiver.events() == ["a", "b"]
    make(catalog, "c")
    now = time.time()
    monkeypatch.setattr(webhooks, "now_ms", lambda: int((now + 3600) * 1000))
    second.send_next(webhook)
    assert receiver.events() == ["a", "b", "c"], "the lease of a dead server ends"


def test_only_what_is_wanted(catalog: Catalog, receiver: Receiver) -> None:
    sender, webhook = start(catalog, receiver, warehouse="main", types=("namespace.create",))
    make(catalog, "a", "other")
    make(catalog, "b")
    catalog.namespaces.drop(CALLER, catalog.warehouses["main"], ("b",))
    make(catalog, "c")
    sender.send_next(webhook)
    assert receiver.events() == ["b", "c"]


def test_a_receiver_that_is_not_there(catalog: Catalog) -> None:
    webhook = Webhook("etl", "http://127.0.0.1:9/x", SECRET)
    sender = WebhookSender(catalog.database, [webhook])
    sender.send_next(webhook)
    make(catalog, "a")
    assert not sender.send_next(webhook)


def test_the_body_of_a_reply_is_not_waited_for(
    catalog: Catalog, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhooks, "TIMEOUT_S", 0.5)
    sender, webhook = start(catalog, receiver)
    receiver.answers, receiver.body = [200, 200], Event()
    for name in ("a", "b"):
        make(catalog, name)
        sender.send_next(webhook)
    receiver.body.set()
    assert receiver.events() == ["a", "b"]


def test_encoded_secrets() -> None:
    raw = base64.b64encode(b"key").decode()
    assert Webhook("a", "http://h", f"whsec_{raw}").sign("1", 2, b"x") == Webhook("a", "http://h", "key").sign(
        "1", 2, b"x"
    )
