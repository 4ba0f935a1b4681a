"""One browser and one furnished server for all tests of the page."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from tests.browser.house import Open, open_house

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or "/usr/bin/chromium"
ARGUMENTS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
)
MANY = 2500
PATIENCE_MS = 30_000
"""For what should come at once: machines are noisy."""

Opens = Callable[..., Page]


def until(page: Page, condition: str) -> None:
    """Wait for a condition in JavaScript. Playwright's own way evaluates it in the page, whose policy forbids that."""
    deadline = monotonic() + PATIENCE_MS / 1000
    while not page.evaluate(condition):
        assert monotonic() < deadline, f"it never came that {condition}"
        page.wait_for_timeout(20)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A Chromium; Debian's will do. It ends with the file: as long as it runs, nobody else can start an event loop."""
    if not Path(CHROMIUM).exists():
        pytest.skip("there is no Chromium: apt-get install -y chromium brings one")
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=[*ARGUMENTS])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def house(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Open]:
    with open_house(tmp_path_factory.mktemp("house"), many=MANY) as house:
        yield house


class PageWatch:
    """What a page does that it must not: fail, or ask anybody but its server."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self.seen: list[str] = []

    def on(self, page: Page) -> None:
        page.on("pageerror", lambda error: self.seen.append(f"error: {error}"))
        page.on("console", lambda message: self._on_console(message.type, message.text))
        page.on("request", lambda request: self._on_request(request.url))
        page.on("dialog", lambda dialog: self.seen.append(f"dialog: {dialog.message}"))

    def _on_console(self, kind: str, text: str) -> None:
        # The browser itself says of every answer from 400 on that it could not be loaded.
        if kind in ("error", "warning") and "Failed to load resource" not in text:
            self.seen.append(f"{kind}: {text}")

    def _on_request(self, url: str) -> None:
        if not url.startswith((self._uri, "blob:")):
            self.seen.append(f"asked elsewhere: {url}")


@pytest.fixture
def open_page(browser: Browser, house: Open) -> Iterator[Opens]:
    """Opens pages, as a principal or as nobody yet. In the end none of them may have done what it must not."""
    contexts: list[BrowserContext] = []
    watch = PageWatch(house.uri)

    def open_(hash: str = "", name: str | None = "ada", **options: Any) -> Page:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 800}, **options})
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        watch.on(page)
        if name:
            token = json.dumps(house.tokens[name])
            page.add_init_script(f"sessionStorage.setItem('lancehouse.token', {token})")
        page.goto(f"{house.uri}/{hash}")
        return page

    yield open_
    for context in contexts:
        context.close()
    assert watch.seen == []
