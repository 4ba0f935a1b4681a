from __future__ import annotations

import os
from pathlib import Path

import pytest
from lance_namespace.errors import PermissionDeniedError

from lancehouse.lake import confinement
from lancehouse.lake.confinement import require_no_links


def test_folders_that_have_not_changed_are_not_listed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confinement, "is_settled", lambda changed_ns, now_ns: True)
    (tmp_path / "data" / "inner").mkdir(parents=True)
    require_no_links(str(tmp_path))
    listed: list[str] = []
    scandir = os.scandir

    def note(path: str) -> object:
        listed.append(path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", note)
    require_no_links(str(tmp_path))
    assert not listed
    (tmp_path / "data" / "inner" / "link").symlink_to(tmp_path)
    with pytest.raises(PermissionDeniedError):
        require_no_links(str(tmp_path))
    assert listed
