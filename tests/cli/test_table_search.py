from __future__ import annotations

from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pytest
from lance_namespace.errors import PermissionDeniedError

from tests.cli.commands import ConfiguredCatalog, error_text, lines, open_configured


def test_by_a_vector(place: ConfiguredCatalog, tmp_path: Path) -> None:
    table = place.write()
    found = place.run_json("table", "search", table, "--vector", "2.2,0,1,2", "-k", "2")
    assert [row["id"] for row in found["rows"]] == [2, 3]
    assert found["rows"][0]["_distance"] == pytest.approx(0.04, abs=1e-4)
    assert list(found["rows"][0]) == ["_distance", "id", "text", "vector"]
    (tmp_path / "vector.json").write_text("[2.2, 0, 1, 2]\n")
    again = place.run_json("table", "search", table, "--vector", f"@{tmp_path}/vector.json", "-k", "2")
    assert again == found
    where = place.run_json("table", "search", table, "--vector", "0,0,1,2", "--where", "id > 1", "--column", "id")
    assert [row["id"] for row in where["rows"]] == [2, 3]
    assert lines(place.run("table", "search", table, "--like", "id = 3", "-k", "1"))[2].split()[:2] == ["0.0", "3"]


def test_effort(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    place = open_configured("dir", request, tmp_path)
    vectors = pa.FixedSizeListArray.from_arrays(pa.array([float(number) for number in range(1024)], pa.float32()), 2)
    table = place.write(rows=pa.table({"id": range(512), "vector": vectors}))
    dataset = lance.dataset(namespace_client=place.connect(), table_id=[*place.levels, "docs"])
    dataset.create_index("vector", "IVF_FLAT", num_partitions=8)
    words = ["table", "search", table, "--vector", "0,1", "-k", "200", "--column", "id"]
    assert [row["id"] for row in place.run_json(*words)["rows"]] == [*range(200)]
    few = place.run_json(*words, "--nprobes", "1", "--refine-factor", "1")["rows"]
    assert [row["id"] for row in few] == [*range(len(few))]
    assert len(few) < 200


def test_like_the_first_row_that_has_a_vector(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    place = open_configured("dir", request, tmp_path)
    vectors = pa.array([None, [1.0, 2.0]], pa.list_(pa.float32(), 2))
    table = place.write(rows=pa.table({"k": [1, 1], "a vector": vectors}))
    found = place.run_json("table", "search", table, "--like", "k = 1 OR k = 2", "--column", "k")
    assert found["rows"] == [{"_distance": 0.0, "k": 1}]


def test_by_words(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    place = open_configured("dir", request, tmp_path)
    table = place.write()
    words = error_text(place.run("table", "search", table, "--text", "words"))
    assert "has no full-text index" in words
    assert "Hint: `lancehouse table index ID --column NAME --kind INVERTED` builds one" in words
    dataset = lance.dataset(namespace_client=place.connect(), table_id=[*place.levels, "docs"])
    dataset.create_scalar_index("text", "INVERTED")
    found = place.run_json("table", "search", table, "--text", "words")
    assert [(row["id"], row["_score"] > 0) for row in found["rows"]] == [(1, True)]
    assert (
        place.run_json("table", "search", table, "--text", "words", "--on", "text", "--where", "id > 1")["rows"] == []
    )
    assert "no full-text index of id" in error_text(place.run("table", "search", table, "--text", "x", "--on", "id"))


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        ([], 2, "give --vector NUMBERS, or --like SQL, or --text WORDS"),
        (["--vector", "1,2,3,4", "--text", "x"], 2, "give --vector NUMBERS, or --like SQL, or --text WORDS"),
        (["--text", "x", "--metric", "dot"], 2, "--metric goes with --vector and --like"),
        (["--vector", "one,two"], 2, "a vector is numbers such as 0.1,0.2,0.3"),
        *(
            (["--vector", f"{odd},1,2,3"], 2, "a vector is numbers")
            for odd in ("NaN", "Infinity", "1e39", "true", '"1"')
        ),
        (["--vector", "[" * 100_000], 2, "a vector is numbers"),
        (["--vector", "1,2,3,4", "-k", "99999999999999999999"], 2, "is not in the range"),
        (["--vector", "@/nowhere"], 2, "/nowhere cannot be read: No such file"),
        (["--vector", "1,2"], 1, "holds vectors of 4 numbers, the one given has 2"),
        (["--vector", "1,2", "--where", "id > 1"], 1, "holds vectors of 4 numbers, the one given has 2"),
        (["--vector", "1,2,3,4", "--on", "text"], 1, "column text holds string, no vectors"),
        (["--vector", "1,2,3,4", "--on", "nothing"], 1, "has no column nothing"),
        (["--like", "id = 99"], 1, "no row with a vector in vector is like that: id = 99"),
        (["--like", "id = 1) OR (true"], 1, "id = 1) OR (true closes a parenthesis that it does not open"),
        (["--like", "nothing = 99"], 1, "there is no column nothing"),
        (["--vector", "1,2,3,4", "-k", "0"], 2, "0 is not in the range"),
        (["--text", "x", "--nprobes", "1"], 2, "--nprobes goes with --vector and --like"),
        (["--vector", "1,2,3,4", "--nprobes", "0"], 2, "0 is not in the range"),
        (["--vector", "1,2,3,4", "--refine-factor", "-1"], 2, "-1 is not in the range"),
        (["--vector", "1,2,3,4", "--ef", "many"], 2, "'many' is not a valid integer"),
        (["--vector", "1,2,3,4", "--ef", "3"], 1, "ef is 3, and has to be k at least, which is 10"),
    ],
)
def test_wrong_words(words: list[str], status: int, said: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    place = open_configured("dir", request, tmp_path)
    assert said in " ".join(error_text(place.run("table", "search", place.write(), *words), status).split())


def test_recall(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = open_configured("dir", request, tmp_path)
    numbers = np.random.default_rng(1).normal(size=1024).astype("f4")
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(numbers), 2)
    table = place.write(rows=pa.table({"id": range(512), "vector": vectors}))
    dataset = lance.dataset(namespace_client=place.connect(), table_id=[*place.levels, "docs"])
    dataset.create_index("vector", "IVF_FLAT", num_partitions=4)
    words = ["table", "recall", table, "--queries", "5", "-k", "3", "--nprobes", "4", "--refine-factor", "1"]
    drawn = tmp_path / "recall.svg"
    found = place.run_json(*words, "--plot", str(drawn), "--engine", "local")
    assert [(row["nprobes"], row["recall"]) for row in found["rows"]] == [(None, 1.0), (4, 1.0)]
    assert found["kept"] is True
    assert place.run_json(*words, "--no-keep", "--engine", "local")["kept"] is False

    def refuse(*_: object) -> int:
        raise PermissionDeniedError("you may not write")

    with monkeypatch.context() as patch:
        patch.setattr("lancehouse.jobs.recall.keep_note", refuse)
        assert place.run_json(*words, "--engine", "local")["kept"] is False
        said = " ".join(" ".join(lines(place.run(*words, "--engine", "local"))).split())
    assert "The measured recall is not kept with the table: you may not write" in said
    assert drawn.read_text().startswith("<svg")
    shown = lines(place.run(*words, "--engine", "local"))
    assert "recall@3 of 5 searches" in " ".join(shown)
    assert any(line.split()[:3] == ["4", "1", "1.000"] for line in shown), shown
