"""Draws the pictures of docs/console.md: `python -m tests.browser.shots [FOLDER]`."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

from tests.browser.conftest import ARGUMENTS, CHROMIUM
from tests.browser.house import Open, open_house

DOCS = Path(__file__).parents[2] / "docs"
LARGEST = 150_000
"""Bytes of a picture."""
SIZE = {"width": 1120, "height": 680}
TABLE = "#/table/main/library/docs"

SHOTS: dict[str, dict[str, Any]] = {
    "rows": {"hash": f"{TABLE}?filter=topic+%3D+%27sailing%27+AND+score+%3E+0.5", "wait": ".grid tbody tr"},
    "versions": {"hash": f"{TABLE}?tab=versions", "wait": ".timeline > li"},
    "vectors": {"hash": f"{TABLE}?tab=vectors&row=5", "wait": ".near-list li"},
    "images": {"hash": "#/table/main/library/pictures?tab=images", "wait": ".shot img", "scheme": "dark"},
    "storage": {"hash": f"{TABLE}?tab=storage", "wait": ".strip", "scheme": "dark"},
    "lineage": {"hash": "#/table/main/words/split?tab=lineage", "wait": ".lineage-list"},
    "search": {
        "hash": "#/ns/main/many",
        "wait": ".names li",
        "keys": ["/"],
        "type": "t001",
        "then": "#search-results [role=option]",
    },
    "narrow": {"hash": f"{TABLE}?tab=schema", "wait": ".schema .meter", "width": 480},
}


def take(browser: Browser, house: Open, shot: dict[str, Any], file: Path) -> None:
    """One picture."""
    size = {**SIZE, **({"width": shot["width"]} if "width" in shot else {})}
    context = browser.new_context(viewport=size, color_scheme=shot.get("scheme", "light"))  # type: ignore[arg-type]
    page: Page = context.new_page()
    page.add_init_script(f"sessionStorage.setItem('lancehouse.token', {json.dumps(house.tokens['ada'])})")
    page.goto(f"{house.uri}/{shot['hash']}")
    page.locator(shot["wait"]).first.wait_for()
    for key in shot.get("keys", ()):
        page.keyboard.press(key)
    if "type" in shot:
        page.keyboard.type(shot["type"])
        page.locator(shot["then"]).first.wait_for()
    page.wait_for_load_state("networkidle")
    page.wait_for_timeout(300)
    page.screenshot(path=file)
    context.close()
    print(f"{file.name} {file.stat().st_size}")
    if file.stat().st_size > LARGEST:
        raise SystemExit(f"{file} has more than {LARGEST} bytes")


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else DOCS
    with tempfile.TemporaryDirectory() as place, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=[*ARGUMENTS])
        with open_house(Path(place), many=300, count=3000, shots=48) as house:
            for name, shot in SHOTS.items():
                take(browser, house, shot, folder / f"console-{name}.png")
        browser.close()


if __name__ == "__main__":
    main()
