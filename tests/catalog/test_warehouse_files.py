"""Metadata files: whole, durable, and where Iceberg's clients look for them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow.fs as fs
import pytest
from lance_namespace.errors import InvalidInputError, ServiceUnavailableError
from moto.server import ThreadedMotoServer
from pyiceberg.io.pyarrow import PyArrowFileIO

from lancehouse.catalog.errors import MetadataNotFoundError
from lancehouse.catalog.warehouse_files import MAX_BYTES, WarehouseFiles
from lancehouse.catalog.warehouses import Warehouse


@pytest.fixture
def files(tmp_path: Path) -> WarehouseFiles:
    return WarehouseFiles(Warehouse(1, "w", str(tmp_path)))


@pytest.fixture(scope="module")
def storage() -> Iterator[dict[str, str]]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    options = {
        "aws_access_key_id": "test",
        "aws_secret_access_key": "secret-of-the-test",
        "aws_region": "us-east-1",
        "aws_endpoint": f"http://{host}:{port}",
        "allow_http": "true",
    }
    s3 = fs.S3FileSystem(
        access_key="test",
        secret_key="secret-of-the-test",
        region="us-east-1",
        endpoint_override=options["aws_endpoint"],
        allow_bucket_creation=True,
    )
    s3.create_dir("bucket")
    yield options
    server.stop()


@pytest.mark.parametrize("prefix", ["", "file:", "file://"])
@pytest.mark.parametrize("name", ["a.json", "a b.json", "a%20b.json", "ä%2Fß.json", "x:y.json"])
def test_clients_find_what_was_written(files: WarehouseFiles, tmp_path: Path, prefix: str, name: str) -> None:
    place = f"{prefix}{tmp_path}/new/folder/{name}"
    files.write(place, b"one")
    assert (tmp_path / "new" / "folder" / name).read_bytes() == b"one"
    assert PyArrowFileIO().new_input(place).open().read() == b"one"
    for same in ("", "file:", "file://"):
        assert files.read(place.replace(prefix, same, 1) if prefix else same + place) == b"one"
    files.write(place, b"two")
    assert files.read(place) == b"two"
    assert files.exists(place)
    assert files.may_exist(place)
    assert [path.name for path in (tmp_path / "new" / "folder").iterdir()] == [name]
    files.delete(place)
    files.delete(place)
    assert not files.exists(place)
    assert not files.may_exist(place)


def test_what_is_not_there(files: WarehouseFiles, tmp_path: Path) -> None:
    with pytest.raises(MetadataNotFoundError, match=f"^Failed to open input stream for file: {tmp_path}/x$"):
        files.read(f"{tmp_path}/x")


@pytest.mark.parametrize(
    "place",
    [
        "",
        "x",
        "relative/x",
        "file://host/x",
        "//x",
        "file:///a?b",
        "file:/a#b",
        "s3://bucket",
        "s3:/b/k",
        "ftp",
        "s3://b/k#f",
    ],
)
def test_no_place_for_a_file(files: WarehouseFiles, place: str) -> None:
    for call in (files.read, files.delete, files.exists, lambda path: files.write(path, b"")):
        with pytest.raises(InvalidInputError):
            call(place)


@pytest.mark.parametrize("name", ["x" * 300, "a\0b", "file/inside"])
def test_paths_that_cannot_be(files: WarehouseFiles, tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(InvalidInputError, match="cannot be written"):
        files.write(f"{tmp_path}/{name}", b"")


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="no file that can never be read")
def test_a_broken_disk_is_not_the_clients_fault(files: WarehouseFiles) -> None:
    with pytest.raises(ServiceUnavailableError, match="cannot be read"):
        files.read("/proc/self/mem")


def test_a_failed_write_leaves_nothing(files: WarehouseFiles, tmp_path: Path) -> None:
    (tmp_path / "taken.json").mkdir()
    with pytest.raises(InvalidInputError, match="cannot be written"):
        files.write(f"{tmp_path}/taken.json", b"x")
    assert [path.name for path in tmp_path.iterdir()] == ["taken.json"]


def test_files_that_are_too_large(files: WarehouseFiles, tmp_path: Path) -> None:
    place = f"{tmp_path}/large"
    with Path(place).open("wb") as stream:
        stream.truncate(MAX_BYTES + 1)
    with pytest.raises(InvalidInputError, match=f"^{place} has more than 268435456 bytes"):
        files.read(place)


@pytest.mark.parametrize("place", ["{folder}/x", "s3://bucket/t/x"])
def test_the_largest_file(tmp_path: Path, storage: dict[str, str], place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    files, place = WarehouseFiles(Warehouse(1, "w", "s3://bucket", storage=storage)), place.format(folder=tmp_path)
    files.write(place, b"12345")
    monkeypatch.setattr("lancehouse.catalog.warehouse_files.MAX_BYTES", 5)
    assert files.read(place) == b"12345"
    with pytest.raises(InvalidInputError, match="has more than 5 bytes"):
        files.write(place, b"123456")
    assert files.read(place) == b"12345"
    monkeypatch.setattr("lancehouse.catalog.warehouse_files.MAX_BYTES", 4)
    with pytest.raises(InvalidInputError, match="has more than 4 bytes"):
        files.read(place)


def test_object_store(storage: dict[str, str]) -> None:
    files = WarehouseFiles(Warehouse(1, "w", "s3://bucket", storage=storage))
    place = "s3://bucket/t/metadata/a%20b c.json"
    with pytest.raises(MetadataNotFoundError, match="Failed to open input stream for file: s3://bucket/t/"):
        files.read(place)
    assert not files.exists(place)
    files.write(place, b"one")
    files.write(place, b"two")
    assert files.read(place) == b"two"
    assert files.exists(place)
    assert files.may_exist(place)
    files.delete(place)
    files.delete(place)
    assert not files.exists(place)


def test_object_store_that_fails(storage: dict[str, str]) -> None:
    files = WarehouseFiles(Warehouse(1, "w", "s3://bucket", storage=storage))
    with pytest.raises(ServiceUnavailableError, match="s3://missing/x cannot be written") as caught:
        files.write("s3://missing/x", b"")
    assert "secret-of-the-test" not in str(caught.value)


@pytest.mark.parametrize("link", ["metadata", "metadata/v1.json"])
def test_links_are_not_followed(tmp_path: Path, link: str) -> None:
    root = tmp_path / "warehouse" / "t"
    (tmp_path / "aside").mkdir()
    (tmp_path / "aside" / "v1.json").write_bytes(b"secret")
    (root / link).parent.mkdir(parents=True)
    (root / link).symlink_to(tmp_path / "aside" / link.removeprefix("metadata").strip("/"))
    files = WarehouseFiles(Warehouse(1, "main", str(tmp_path / "warehouse")))
    with pytest.raises(InvalidInputError, match="symlink on the way"):
        files.read(str(root / "metadata" / "v1.json"))
