"""Send the changes of warehouses to the URLs that the server's configuration names, signed, in order, until taken.

One server at a time sends to a URL: who holds its lease. A server that dies leaves it to another when the lease ends.
So every event is sent at least once; after a failure it is sent again, and those after it wait.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from threading import Event
from time import time
from urllib.parse import urlsplit
from uuid import uuid4

import orjson
import urllib3
from lance_namespace.errors import LanceNamespaceError

from lancehouse.catalog.audit import TYPE, Audit, to_event
from lancehouse.catalog.entries import now_ms
from lancehouse.catalog.warehouses import Webhook
from lancehouse.store import audit
from lancehouse.store.database import Database
from lancehouse.store.model import Json

log = logging.getLogger(__name__)

CONTENT_TYPE = "application/cloudevents+json"
LOOK_EVERY_S = 1.0
TIMEOUT_S = 10.0
LEASE_MS = 60_000
"""Longer than it takes to send one event: to connect and to wait for the status of the reply both end in time."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 300.0
AT_ONCE = 100
"""Events that are read at once."""


class WebhookSender:
    """Sends events to webhooks. Every worker of every server has one; leases in the database share the work."""

    def __init__(self, database: Database, webhooks: Sequence[Webhook]) -> None:
        self._database = database
        self._audit = Audit(database)
        self._webhooks = webhooks
        self._holder = uuid4().hex
        self._http = urllib3.PoolManager(retries=False, timeout=urllib3.Timeout(total=TIMEOUT_S))
        self._pauses: dict[str, tuple[float, float]] = {}
        """For webhooks that failed: when to try again, and how long the next pause is."""

    def run(self, stop: Event) -> None:
        """Send events until `stop` is set."""
        while not stop.wait(LOOK_EVERY_S):
            for webhook in self._webhooks:
                if self._pauses.get(webhook.name, (0.0, 0.0))[0] > time():
                    continue
                try:
                    while not stop.is_set() and self.send_next(webhook):
                        pass
                except LanceNamespaceError as error:  # of the database
                    log.warning("events for webhook %s wait: %s", webhook.name, error)

    def send_next(self, webhook: Webhook) -> bool:
        """Send what is next for a webhook, as far as it is this server's turn; return whether there may be more."""
        now = now_ms()
        position = self._database.read(lambda tx: audit.find_webhook(tx, webhook.name))
        if position is None:  # a new webhook: it gets the changes from now on
            first = self._audit.last_position()
            self._database.write(lambda tx: audit.insert_webhook(tx, webhook.name, first))
            return False
        if not self._has_news(position):
            return False
        leased_position = self._database.write(
            lambda tx: audit.lease_webhook(tx, webhook.name, self._holder, now, now + LEASE_MS)
        )
        if leased_position is None:
            return False
        rows = self._database.read(lambda tx: audit.list_numbered(tx, leased_position, AT_ONCE))
        for number, row in rows:
            if webhook.selects(row.action, row.warehouse) and not self._send(webhook, to_event(number, row)):
                return False
            until = now_ms() + LEASE_MS
            if not self._database.write(
                lambda tx: audit.move_webhook(tx, webhook.name, self._holder, number, until)  # noqa: B023
            ):
                return False  # the lease has ended, and another server goes on
        return len(rows) == AT_ONCE

    def _has_news(self, position: int) -> bool:
        if self._database.read(audit.has_unnumbered):
            self._database.write(audit.number_changes)
        return bool(self._database.read(lambda tx: audit.list_numbered(tx, position, 1)))

    def _send(self, webhook: Webhook, event: Json) -> bool:
        body, timestamp = orjson.dumps(event), int(time())
        headers = {
            "Content-Type": CONTENT_TYPE,
            "User-Agent": "lancehouse",
            "Webhook-Id": event["id"],
            "Webhook-Timestamp": str(timestamp),
            "Webhook-Signature": webhook.sign(event["id"], timestamp, body),
        }
        try:
            reply = self._http.request(
                "POST", webhook.url, body=body, headers=headers, redirect=False, preload_content=False
            )
        except urllib3.exceptions.HTTPError as error:
            return self._fail(webhook, event, type(error).__name__)
        # The body is not read: a receiver that sends it byte by byte would be waited for beyond all timeouts. A
        # connection with an unread body cannot be used again.
        if reply.length_remaining == 0:
            reply.release_conn()
        else:
            reply.close()
        if not 200 <= reply.status < 300:
            return self._fail(webhook, event, f"status {reply.status}")
        self._pauses.pop(webhook.name, None)
        return True

    def _fail(self, webhook: Webhook, event: Json, reason: str) -> bool:
        """Pause, twice as long each time; the URL is not logged whole, as it may hold a secret."""
        pause = self._pauses.get(webhook.name, (0.0, FIRST_PAUSE_S))[1]
        self._pauses[webhook.name] = time() + pause, min(2 * pause, LONGEST_PAUSE_S)
        host = urlsplit(webhook.url).hostname
        kind = event["type"].removeprefix(TYPE)
        log.warning("webhook %s at %s has not taken event %s (%s): %s", webhook.name, host, event["id"], kind, reason)
        return False
