"""Images in folders."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from lance_namespace.errors import InvalidInputError

from lancehouse.jobs.sources import formats
from lancehouse.jobs.sources.ingest_source import open_source
from tests.jobs.sources.reading import read, rows

PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d49444154789c6360606060000000050001a5f64540"
    "0000000049454e44ae426082"
)
NAMES = ["cats/a b.PNG", "cats/b.jpeg", "dogs/ü.jpg", "dogs/more/c.webp", "d.gif", "e.bmp", "f.tif", "g.tiff"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number, name in enumerate(NAMES):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(PNG + bytes(number))
    return tmp_path


def test_a_row_for_each_image(folder: Path) -> None:
    found = {row["path"]: row for row in rows(folder)}
    assert found.keys() == {str(folder / name) for name in NAMES}
    cat = found[str(folder / "cats/a b.PNG")]
    modified = (folder / "cats/a b.PNG").stat().st_mtime_ns // 1000
    assert cat.pop("image")["data"] == PNG
    assert cat == {
        "path": str(folder / "cats/a b.PNG"),
        "folder": "cats",
        "media_type": "image/png",
        "size": len(PNG),
        "modified": datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=modified),
    }
    assert found[str(folder / "dogs/more/c.webp")]["folder"] == "more"
    kinds = sorted(row["media_type"] for row in found.values())
    assert kinds == sorted(f"image/{kind}" for kind in ("png", "jpeg", "jpeg", "webp", "gif", "bmp", "tiff", "tiff"))


def test_lance_keeps_them_as_blobs(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Large ones outside the data, so that scans do not read them."""
    large = PNG + bytes(3 << 20)
    (folder / "large.png").write_bytes(large)
    source = open_source(folder)
    place = tmp_path_factory.mktemp("lance") / "t"
    batches = [batch for unit in source.units for batch in unit.batches(source.schema)]
    lance.write_dataset(pa.RecordBatchReader.from_batches(source.schema, batches), place)
    dataset = lance.dataset(place)
    assert any(path.suffix == ".blob" for path in place.rglob("*"))
    found = dataset.to_table(columns=["path"], with_row_id=True).to_pylist()
    (row,) = [row["_rowid"] for row in found if row["path"].endswith("large.png")]
    assert dataset.take_blobs("image", ids=[row])[0].readall() == large
    # The table's own schema, for an append
    assert read(source, dataset.schema).num_rows == len(NAMES) + 1


def test_columns_of_images(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the bytes no file is opened."""
    source = open_source(folder, columns=["folder", "size"])
    monkeypatch.setattr(formats, "_read_file", None)
    assert read(source).num_rows == len(NAMES)


def test_folders_tell_columns_of_images(tmp_path: Path) -> None:
    for name in ("split=a/x/1.png", "split=a/x/2.png", "split=b/x/3.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(PNG)
    assert [(row["split"], row["folder"]) for row in rows(tmp_path)] == [("a", "x"), ("a", "x"), ("b", "x")]


def test_images_in_windows(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory holds no more than a window of them; one that is larger comes alone."""
    monkeypatch.setattr(formats, "WINDOW_BYTES", 3 * len(PNG))
    (folder / "a.png").write_bytes(PNG * 10)
    source = open_source(folder)
    batches = [batch for unit in source.units for batch in unit.batches(source.schema)]
    assert sum(batch.num_rows for batch in batches) == len(NAMES) + 1
    assert max(batch.num_rows for batch in batches) <= 3
    (alone,) = [batch for batch in batches if str(folder / "a.png") in batch.column("path").to_pylist()]
    assert alone.num_rows == 1


def test_images_that_cannot_be_read(folder: Path) -> None:
    (folder / "labels.csv").write_text("a\n1\n")
    with pytest.raises(InvalidInputError, match=r"is images but \S+/labels\.csv is csv"):
        open_source(folder)
    source = open_source(folder, "images")
    (folder / "d.gif").unlink()
    with pytest.raises(InvalidInputError, match=f"there is no file at {folder}/d.gif"):
        read(source)
    (folder / "d.gif").write_bytes(b"")
    with pytest.raises(InvalidInputError, match=f"{folder}/d.gif is empty"):
        open_source(folder, "images")
