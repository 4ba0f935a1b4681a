from __future__ import annotations

from tests.cli.places import Place, lines, refused


def test_tags(place: Place) -> None:
    table = place.write()
    place.write(mode="append")
    assert place.told("table", "tag", "create", table, "best", "--version", "1")["version"] == 1
    assert place.told("table", "tag", "create", table, "latest")["version"] == 2
    assert lines(place.run("table", "tag", "list", table))[2:] == [
        "best          1",
        "latest        2",
        f"{table}: 2 tags",
    ]
    again = refused(place.run("table", "tag", "create", table, "best"))
    assert "best" in again
    assert "Hint: `lancehouse table tag update ID TAG` lets it name another version" in again
    assert place.told("table", "tag", "update", table, "best") == {
        "table": table,
        "tag": "best",
        "before": 1,
        "version": 2,
    }
    assert place.told("table", "tag", "delete", table, "latest")["version"] == 2
    found = place.told("table", "tag", "list", table)
    assert [(each["tag"], each["version"]) for each in found["tags"]] == [("best", 2)]
    for command in ("update", "delete"):
        words = refused(place.run("table", "tag", command, table, "latest"))
        assert words.endswith(f"Hint: `{place.typed} table tag list {table}` shows those that there are\n")
    for command in ("create", "update"):
        wrong = place.run("table", "tag", command, table, "best", "--version", "0")
        assert "0 is not in the range" in refused(wrong, 2)
    missing = refused(place.run("table", "tag", "create", table, "far", "--version", "9"))
    assert missing.endswith(f"Hint: `{place.typed} table history {table}` shows those that there are\n")
