"""An object store on loopback, as much of S3 as Lance uses, which can also be told to refuse."""

from __future__ import annotations

import threading
from email.utils import formatdate
from hashlib import md5
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

BUCKET = "bucket"


class FakeStore:
    """Objects by key, in one bucket."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.refusal: tuple[int, str] | None = None
        store = self

        class Handler(_Handler):
            pass

        Handler.store = store
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})

    @property
    def options(self) -> dict[str, str]:
        """Storage options with which Lance finds this store."""
        return {
            "aws_access_key_id": "AKIDEXAMPLE00",
            "aws_secret_access_key": "verysecretvalue",
            "aws_region": "us-east-1",
            "aws_endpoint": f"http://127.0.0.1:{self._server.server_port}",
            "allow_http": "true",
            "client_max_retries": "0",
            "client_retry_timeout": "1",
        }

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    store: FakeStore
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        if self._refuse():
            return
        if self._key:
            self._object()
        else:
            self._list()

    do_HEAD = do_GET  # noqa: N815

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self._refuse():
            return
        if self.headers.get("If-None-Match") == "*" and self._key in self.store.objects:
            self._answer(412, _error("PreconditionFailed"))
            return
        source = self.headers.get("x-amz-copy-source")
        self.store.objects[self._key] = self.store.objects[unquote(source).split("/", 2)[-1]] if source else body
        self._answer(200, b"", {"ETag": _etag(self.store.objects[self._key])})

    def do_DELETE(self) -> None:
        if not self._refuse():
            self.store.objects.pop(self._key, None)
            self._answer(204)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        if self._refuse():
            return
        keys = [part.split("</Key>")[0] for part in body.split("<Key>")[1:]]
        for key in keys:
            self.store.objects.pop(key, None)
        deleted = "".join(f"<Deleted><Key>{escape(key)}</Key></Deleted>" for key in keys)
        self._answer(200, f"<DeleteResult>{deleted}</DeleteResult>".encode())

    @property
    def _key(self) -> str:
        return unquote(urlsplit(self.path).path).removeprefix(f"/{BUCKET}").lstrip("/")

    def _refuse(self) -> bool:
        refusal = self.store.refusal  # who reads the answer may lift it at once
        if refusal is not None:
            status, code = refusal
            self._answer(status, _error(code))
        return refusal is not None

    def _object(self) -> None:
        body = self.store.objects.get(self._key)
        if body is None:
            self._answer(404, _error("NoSuchKey"))
            return
        told = {"ETag": _etag(body), "Last-Modified": formatdate(0, usegmt=True)}
        if span := self.headers.get("Range"):
            first, _, last = span.removeprefix("bytes=").partition("-")
            start = int(first) if first else len(body) - int(last)
            end = min(int(last), len(body) - 1) if first and last else len(body) - 1
            told["Content-Range"] = f"bytes {start}-{end}/{len(body)}"
            self._answer(206, body[start : end + 1], told)
        else:
            self._answer(200, body, told)

    def _list(self) -> None:
        query = {name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()}
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter")
        keys = sorted(key for key in self.store.objects if key.startswith(prefix))
        folders = sorted({prefix + k[len(prefix) :].split("/")[0] + "/" for k in keys if "/" in k[len(prefix) :]})
        shown = [key for key in keys if not delimiter or "/" not in key[len(prefix) :]]
        contents = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{len(self.store.objects[key])}</Size>"
            f"<LastModified>2026-11-15T00:00:00.000Z</LastModified><ETag>{_etag(self.store.objects[key])}</ETag></Contents>"
            for key in shown
        )
        common = "".join(f"<CommonPrefixes><Prefix>{escape(folder)}</Prefix></CommonPrefixes>" for folder in folders)
        body = f"<ListBucketResult><KeyCount>{len(shown)}</KeyCount><IsTruncated>false</IsTruncated>{contents}"
        self._answer(200, f"{body}{common if delimiter else ''}</ListBucketResult>".encode())

    def _answer(self, status: int, body: bytes = b"", told: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": "application/xml", **(told or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _error(code: str) -> bytes:
    return (
        f"<Error><Code>{code}</Code><Message>{code}</Message><AWSAccessKeyId>AKIDEXAMPLE00</AWSAccessKeyId>"
        f"<StringToSign>abc</StringToSign></Error>"
    ).encode()


def _etag(body: bytes) -> str:
    return f'"{md5(body).hexdigest()}"'
