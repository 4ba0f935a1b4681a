from __future__ import annotations

import os
from pathlib import Path

import pytest
from lance_namespace.errors import PermissionDeniedError

from lancehouse.lake import confinement
from lancehouse.lake.confinement import is_known_without_links, require_no_links


@pytest.fixture(autouse=True)
def _settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders that changed a moment ago are remembered too."""
    monkeypatch.setattr(confinement, "is_settled", lambda changed_ns, now_ns: True)


def test_links_are_known_after_a_look_until_something_changes(tmp_path: Path) -> None:
    (tmp_path / "data" / "inner").mkdir(parents=True)
    assert not is_known_without_links(str(tmp_path))
    require_no_links(str(tmp_path))
    assert is_known_without_links(str(tmp_path))
    (tmp_path / "data" / "inner" / "link").symlink_to(tmp_path)
    assert not is_known_without_links(str(tmp_path))
    with pytest.raises(PermissionDeniedError):
        require_no_links(str(tmp_path))


def test_few_folders_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes a call of the operating system, on the event loop."""
    for number in range(100):
        (tmp_path / "data" / str(number)).mkdir(parents=True)
    require_no_links(str(tmp_path))
    assert is_known_without_links(str(tmp_path), most=200)
    looked_at: list[str] = []
    lstat = os.lstat

    def note(path: str) -> os.stat_result:
        looked_at.append(path)
        return lstat(path)

    monkeypatch.setattr(os, "lstat", note)
    assert not is_known_without_links(str(tmp_path), most=20)
    assert len(looked_at) < 40


def test_a_folder_that_cannot_be_looked_at_is_not_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data").mkdir()
    require_no_links(str(tmp_path))

    def refuse(path: str) -> os.stat_result:
        raise PermissionError(path)

    monkeypatch.setattr(os, "lstat", refuse)
    assert not is_known_without_links(str(tmp_path))
