from __future__ import annotations

from tests.cli.commands import ConfiguredCatalog, error_text, lines


def test_tags(place: ConfiguredCatalog) -> None:
    table = place.write()
    place.write(mode="append")
    assert place.run_json("table", "tag", "create", table, "best", "--version", "1")["version"] == 1
    assert place.run_json("table", "tag", "create", table, "latest")["version"] == 2
    assert lines(place.run("table", "tag", "list", table))[2:] == [
        "best          1",
        "latest        2",
        f"{table}: 2 tags",
    ]
    again = error_text(place.run("table", "tag", "create", table, "best"))
    assert "best" in again
    assert "Hint: `lancehouse table tag update ID TAG` lets it name another version" in again
    assert place.run_json("table", "tag", "update", table, "best") == {
        "table": table,
        "tag": "best",
        "before": 1,
        "version": 2,
    }
    assert place.run_json("table", "tag", "delete", table, "latest")["version"] == 2
    found = place.run_json("table", "tag", "list", table)
    assert [(each["tag"], each["version"]) for each in found["tags"]] == [("best", 2)]
    for command in ("update", "delete"):
        words = error_text(place.run("table", "tag", command, table, "latest"))
        assert words.endswith(f"Hint: `{place.typed} table tag list {table}` shows those that there are\n")
    for command in ("create", "update"):
        wrong = place.run("table", "tag", command, table, "best", "--version", "0")
        assert "0 is not in the range" in error_text(wrong, 2)
    missing = error_text(place.run("table", "tag", "create", table, "far", "--version", "9"))
    assert missing.endswith(f"Hint: `{place.typed} table history {table}` shows those that there are\n")
