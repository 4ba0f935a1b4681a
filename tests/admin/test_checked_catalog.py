from __future__ import annotations

import pytest

from lancehouse.admin.checked_catalog import Shell


@pytest.mark.parametrize(
    ("words", "typed"),
    [
        (["doctor"], "lh doctor --property a=b"),
        (["table", "list", "my db"], "lh table list 'my db' --property a=b"),
        (["table", "drop", "`$(x)`.t"], "lh table drop '`$(x)`.t' --property a=b"),
        (["table", "manage", "db.t", "--by", "impl"], "lh table manage db.t --by impl --property a=b"),
        (["table", "drop", "-db.t"], "lh table drop --property a=b -- -db.t"),
        (
            ["table", "register", "-db.-t", "/p", "--overwrite"],
            "lh table register --overwrite --property a=b -- -db.-t /p",
        ),
        (["doctor", "--db.t", "--older-than", "1h"], "lh doctor --older-than 1h --property a=b -- --db.t"),
    ],
)
def test_what_is_to_be_typed(words: list[str], typed: str) -> None:
    assert Shell("lh", "--property a=b").command(*words) == typed
