"""How fast the console is: `python -m bench.console`, with Debian's Chromium, on a server in a process of its own."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter
from urllib.request import Request, urlopen

from playwright.sync_api import Browser, Page, sync_playwright

from tests.browser.conftest import ARGUMENTS, CHROMIUM, until
from tests.browser.house import Open, open_house

MANY = 10_000
TIMES = 7
NODE = "[role=treeitem]:has(.label:text-is('{}'))"


def time_ms(what: Callable[[], object]) -> float:
    """Milliseconds."""
    started = perf_counter()
    what()
    return (perf_counter() - started) * 1000


def page_of(browser: Browser, house: Open) -> Page:
    for context in browser.contexts:
        context.close()
    page = browser.new_context(viewport={"width": 1280, "height": 800}).new_page()
    page.add_init_script(f"sessionStorage.setItem('lancehouse.token', {json.dumps(house.tokens['ada'])})")
    return page


def time_page(page: Page, house: Open, hash: str, shown: str) -> float:
    """Until something of the page can be seen."""

    def work() -> None:
        page.goto(f"{house.uri}/{hash}")
        page.locator(shown).first.wait_for()

    return time_ms(work)


def time_request(house: Open, question: str) -> float:
    """Of the server alone."""
    token = {"Authorization": f"Bearer {house.tokens['ada']}"}

    def work() -> None:
        with urlopen(Request(f"{house.uri}/console/v1/{question}", headers=token)) as reply:
            reply.read()

    return time_ms(work)


def end_of_list(page: Page, house: Open) -> float:
    """From the first of ten thousand tables in the tree to the last."""
    time_page(page, house, "#/table/main/many/t00000", NODE.format("t00001"))

    def work() -> None:
        down = "document.querySelector('.tree').scrollTop = 1e9"
        until(page, f"({down}, document.querySelector('.tree-rows').clientHeight > {MANY} * 28)")

    return time_ms(work)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=[*ARGUMENTS])
        with open_house(Path(folder), many=MANY, count=3000) as house:
            docs = "in=main&level=library&level=docs"
            cases: dict[str, Callable[[], float]] = {
                "page, first visit": lambda: time_page(page_of(browser, house), house, "", NODE.format("main")),
                "table with its rows, first visit": lambda: time_page(
                    page_of(browser, house), house, "#/table/main/library/docs", ".grid tbody tr"
                ),
                "link to the last of 10,000 tables": lambda: time_page(
                    page_of(browser, house), house, f"#/table/main/many/t{MANY - 1:05}", NODE.format(f"t{MANY - 1:05}")
                ),
                "tree, from the first table to the last": lambda: end_of_list(page_of(browser, house), house),
                "server: 2,000 names": lambda: time_request(house, "entries?in=main&level=many&limit=2000"),
                "server: search over all": lambda: time_request(house, "search?q=t09999"),
                "server: 50 rows": lambda: time_request(house, f"rows?{docs}"),
                "server: plane of 2,000 vectors": lambda: time_request(
                    house, f"plane?{docs}&column=embedding&label=topic"
                ),
                "server: 10 neighbours": lambda: time_request(house, f"neighbours?{docs}&column=embedding&row=5"),
                "server: versions": lambda: time_request(house, f"versions?{docs}"),
            }
            for name, case in cases.items():
                case()
                times = sorted(case() for _ in range(TIMES))
                print(f"{name:42} {median(times):7.1f} ms  ({times[0]:.1f} to {times[-1]:.1f})")
        browser.close()


if __name__ == "__main__":
    main()
