"""Ingest images as blobs into a Lance table of a catalog, compute features of their bytes, and find similar images.

Run it with `python -m examples.images`; `--page FILE` writes the result as a page for a browser. It starts a catalog
server and Spark, needs no network, and leaves nothing else behind.
"""

from __future__ import annotations

import argparse
import base64
import struct
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from rich.columns import Columns
from rich.panel import Panel
from rich.text import Text

from examples.telling import Story, telling
from lancehouse.spark import LanceCatalog

TABLE = "main.gallery.images"
SIDE = 64
EACH = 24
GRID = 4
"""An image is described by the mean colours of this many tiles in each direction."""
NEAREST = 4

Pixels = np.ndarray[Any, np.dtype[np.uint8]]
Painter = Callable[[np.random.Generator, np.ndarray, np.ndarray], np.ndarray]


def main() -> None:
    """Run the example, from a folder of images to a page of similar ones."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--page", type=Path, metavar="FILE", help="write a page for a browser there")
    page: Path | None = parser.parse_args().page
    with telling("Images: from a folder of files to those that look alike") as story:
        with story.step("Paint some images, in a folder for each scene"):
            count = paint(story.folder / "images")
        story.say(f"{count} PNG files of {SIDE} × {SIDE} pixels: {', '.join(SCENES)}")
        found = tell(story, story.catalog("gallery"))
        if page is not None:
            page.write_text(as_page(found))
    if page is not None:
        story.say(f"Look at {page}")


def tell(story: Story, catalog: LanceCatalog) -> list[list[Any]]:
    """Run the steps that need the catalog; return an image of each scene with those most similar to it."""
    with story.step("Ingest the folder: a row for each file, its bytes as a blob"):
        version = catalog.ingest(story.folder / "images", TABLE)
        size = catalog.aggregate(TABLE, sum="size").collect()[0]["size_sum"]
    story.say(f"version {version} has {catalog.count(TABLE)} images, {size / 1000:.0f} kB")

    with story.step("Add a column: the mean colours of their tiles, computed from the bytes in Spark's tasks"):
        catalog.add_columns(TABLE, {"colours": colours}, read_columns=["image"])
    story.say(f"a vector of {GRID * GRID * 3} numbers for each; the images were not written again")

    with story.step("For one image of each scene, find those most like it"):
        found = []
        for scene in SCENES:
            [asked] = catalog.read(TABLE, columns=["colours"], filter=f"folder = '{scene}'", limit=1).collect()
            found.append(catalog.search(TABLE, asked["colours"], k=NEAREST, columns=["folder", "image"]).collect())
    for row in found if story.is_seen else ():
        story.show(Columns(thumbnail(each) for each in row))
    alike = sum(hit["folder"] == row[0]["folder"] for row in found for hit in row[1:])
    story.say(f"{alike} of {len(found) * (NEAREST - 1)} neighbours are of the same scene")
    return found


def colours(batch: pa.RecordBatch) -> pa.Array[Any]:
    """Return the features of a batch of images. This runs in Spark's tasks, in Arrow."""
    images: list[Any] = batch["image"].to_pylist()
    tiles = [mean_colours(decode_png(image)) for image in images]
    vectors = np.concatenate(tiles or [np.zeros(0, np.float32)])
    return pa.FixedSizeListArray.from_arrays(pa.array(vectors, pa.float32()), GRID * GRID * 3)


def mean_colours(pixels: Pixels) -> Any:
    """Return the mean of red, green and blue in each tile, between 0 and 1."""
    height, width = (length // GRID * GRID for length in pixels.shape[:2])
    tiles = pixels[:height, :width].reshape(GRID, height // GRID, GRID, width // GRID, 3)
    return (tiles.mean(axis=(1, 3)) / 255).astype(np.float32).ravel()


# Painting


def paint(folder: Path) -> int:
    """Write the images; return how many."""
    chance = np.random.default_rng(7)
    down, across = np.mgrid[0 : 1 : SIDE * 1j, 0 : 1 : SIDE * 1j]
    for scene, painter in SCENES.items():
        (folder / scene).mkdir(parents=True)
        for number in range(EACH):
            painted = painter(chance, down[..., None], across[..., None]) + chance.normal(0, 0.02, (SIDE, SIDE, 3))
            file = folder / scene / f"{number:02}.png"
            file.write_bytes(encode_png((painted.clip(0, 1) * 255).astype(np.uint8)))
    return len(SCENES) * EACH


def sunset(chance: np.random.Generator, down: np.ndarray, across: np.ndarray) -> np.ndarray:
    """Return a sun before a red sky."""
    sky = (1 - down) * [0.35, 0.15, 0.4] + down * [1.0, 0.5, 0.2]
    x, y = chance.uniform(0.2, 0.8), chance.uniform(0.5, 0.8)
    return np.where((across - x) ** 2 + (down - y) ** 2 < 0.02, [1.0, 0.9, 0.5], sky)


def forest(chance: np.random.Generator, down: np.ndarray, across: np.ndarray) -> np.ndarray:
    """Return trunks before leaves."""
    leaves = (1 - down) * [0.3, 0.6, 0.2] + down * [0.1, 0.3, 0.1]
    trunks = np.sin(across * chance.uniform(20, 40) + chance.uniform(0, 6)) > 0.6
    return np.where(trunks, [0.3, 0.2, 0.1], leaves)


def sea(chance: np.random.Generator, down: np.ndarray, across: np.ndarray) -> np.ndarray:
    """Return waves below a bright sky."""
    horizon = chance.uniform(0.3, 0.5)
    waves = 0.1 * np.sin(down * 60 + across * chance.uniform(3, 9)) + [0.1, 0.35, 0.6]
    return np.where(down > horizon, waves, [0.7, 0.85, 0.95] + 0 * down * across)


def night(chance: np.random.Generator, down: np.ndarray, across: np.ndarray) -> np.ndarray:
    """Return stars in the dark."""
    stars = chance.random((SIDE, SIDE, 1)) > 0.985
    return np.where(stars, [0.9, 0.9, 0.8], [0.02, 0.02, 0.1] + 0.1 * down * across)


SCENES: dict[str, Painter] = {"sunset": sunset, "forest": forest, "sea": sea, "night": night}


# PNG, as far as it is needed here

SIGNATURE = b"\x89PNG\r\n\x1a\n"


def encode_png(pixels: Pixels) -> bytes:
    """Return pixels as a PNG file with 8 bits for each of red, green and blue."""
    height, width, _ = pixels.shape
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    lines = b"".join(b"\0" + line.tobytes() for line in pixels)
    return SIGNATURE + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b"")


def chunk(kind: bytes, data: bytes) -> bytes:
    """Return a chunk of a PNG file."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def decode_png(image: bytes) -> Pixels:
    """Return the pixels of a file that `encode_png` wrote; read other files with Pillow."""
    width, height = struct.unpack(">II", image[16:24])
    data, at = b"", len(SIGNATURE)
    while at < len(image):
        length, kind = struct.unpack(">I4s", image[at : at + 8])
        if kind == b"IDAT":
            data += image[at + 8 : at + 8 + length]
        at += length + 12
    lines = np.frombuffer(zlib.decompress(data), np.uint8).reshape(height, 1 + width * 3)
    return lines[:, 1:].reshape(height, width, 3)


# Looking


def thumbnail(hit: Any) -> Panel:
    """Return an image as text, in which each character shows two pixels."""
    small = decode_png(hit["image"])[:: SIDE // 16, :: SIDE // 16]
    text = Text()
    for upper, lower in zip(small[::2], small[1::2], strict=True):
        for above, below in zip(upper.tolist(), lower.tolist(), strict=True):
            text.append("▀", f"rgb({','.join(map(str, above))}) on rgb({','.join(map(str, below))})")
        text.append("\n")
    return Panel.fit(text[:-1], padding=0, title=f"{hit['folder']} {hit['_distance']:.2f}", border_style="dim")


def as_page(found: Sequence[Sequence[Any]]) -> str:
    """Return a page that shows the images in a browser."""
    rows = "\n".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in found)
    return f"""<!doctype html>
<meta charset="utf-8">
<title>Images that look alike</title>
<style>body {{ font: 14px sans-serif; margin: 2em }} td {{ padding: 8px }} img {{ width: 128px; display: block }}
</style>
<h1>Images that look alike</h1>
<p>The first of each row was asked for; the distance of the others is below them.</p>
<table>
{rows}
</table>
"""


def _cell(hit: Any) -> str:
    source = f"data:image/png;base64,{base64.b64encode(hit['image']).decode()}"
    return f'<td><img src="{source}" alt="{hit["folder"]}">{hit["folder"]} {hit["_distance"]:.3f}</td>'


if __name__ == "__main__":
    main()
