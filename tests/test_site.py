"""The site is built from the docs, whole, and loads nothing from elsewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent


class Loaded(HTMLParser):
    """What a browser fetches to show a page; links that somebody may follow are not."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        key = "src" if tag in ("script", "img", "iframe", "source") else "href" if tag == "link" else None
        if key and values.get("rel") != "canonical":
            self.found.append(values.get(key) or "")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_every_page_is_there(site: Path) -> None:
    assert {page.stem for page in (ROOT / "docs").glob("*.md")} <= {page.stem for page in site.glob("*.html")}
    assert (site / "search" / "search_index.json").stat().st_size > 100_000


def test_nothing_comes_from_elsewhere(site: Path) -> None:
    for page in site.glob("*.html"):
        loaded = Loaded()
        loaded.feed(page.read_text())
        assert len(loaded.found) > 3
        assert [each for each in loaded.found if re.match(r"(https?:)?//", each)] == [], page.name
    for style in site.rglob("*.css"):
        assert not re.search(r"(@import|url\()\s*['\"]?(https?:)?//", style.read_text()), style.name


def test_each_page_has_one_place() -> None:
    """Strict builds fail on a page without a place; this one on two."""
    listed = re.findall(r"[\w-]+\.md", yaml.safe_dump(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]))
    assert sorted(listed) == sorted(page.name for page in (ROOT / "docs").glob("*.md"))
