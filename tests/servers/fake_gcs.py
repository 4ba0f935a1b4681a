"""Google's objects on 127.0.0.1: fake-gcs-server, built once with Go; in front of it what it lacks: tokens, and PUT.

`python -m tests.servers.fake_gcs` builds it, where there is Go.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlencode, urlsplit
from uuid import uuid4

import urllib3

from lancehouse.spark.java import cache_folder
from tests.servers.faults import FaultProxy
from tests.servers.jars import once
from tests.servers.loopback import Answer, Request
from tests.servers.programs import ProgramError, find_free_port, install_go, run_program

VERSION = "v1.56.1"
OWN_TOKEN = "ya29.own"
"""What the server's own account gets."""
READER, WRITER = "inRole:roles/storage.objectViewer", "inRole:roles/storage.objectUser"


@dataclass(frozen=True, slots=True)
class GoogleBucket:
    """An empty bucket, and how it is reached."""

    name: str
    endpoint: str

    @property
    def uri(self) -> str:
        """Its address, without a slash at its end."""
        return f"gs://{self.name}"

    @property
    def options(self) -> dict[str, str]:
        """Storage options in Lance's names."""
        return {"google_storage_token": OWN_TOKEN, "google_base_url": self.endpoint, "allow_http": "true"}

    def keys(self, prefix: str = "") -> list[str]:
        """The objects in it."""
        answer = urllib3.request(
            "GET",
            f"{self.endpoint}/storage/v1/b/{self.name}/o?prefix={quote(prefix)}",
            headers={"Authorization": f"Bearer {OWN_TOKEN}"},
        )
        return [found["name"] for found in answer.json().get("items", [])]


@dataclass(frozen=True, slots=True)
class FakeGcs:
    """A running server."""

    endpoint: str

    def bucket(self, endpoint: str | None = None) -> GoogleBucket:
        """A new bucket; reached at another endpoint, if one is given."""
        name = f"bucket{uuid4().hex[:12]}"  # Lance encodes a hyphen, which the server does not decode
        answer = urllib3.request("POST", f"{self.endpoint}/storage/v1/b", json={"name": name})
        assert answer.status == 200, answer.data
        return GoogleBucket(name, endpoint or self.endpoint)


def find_program() -> Path | None:
    """The program; None if it was not built."""
    program = cache_folder() / "fake-gcs-server" / VERSION / "fake-gcs-server"
    return program if program.exists() else None


def build() -> None:
    """Build the program, unless that was done.

    Raises:
        ProgramError: there is no Go, or it failed.
    """
    module = f"github.com/fsouza/fake-gcs-server@{VERSION}"
    once(cache_folder() / "fake-gcs-server" / VERSION, lambda folder: install_go(module, folder))


@contextmanager
def start_fake_gcs(folder: Path) -> Iterator[FakeGcs]:
    """Run the server until the block ends.

    Raises:
        ProgramError: it was not built, or did not come up.
    """
    program = find_program()
    if program is None:
        raise ProgramError("fake-gcs-server was not built: `python -m tests.servers.fake_gcs` does it")
    port = find_free_port()
    command: list[str | Path] = [
        *(program, "-scheme", "http", "-host", "127.0.0.1", "-port", str(port), "-backend", "memory"),
        *("-public-host", f"127.0.0.1:{port}", "-log-level", "error"),
    ]
    with run_program(command, port, folder / "fake-gcs.log"):
        yield FakeGcs(f"http://127.0.0.1:{port}")


@dataclass(frozen=True, slots=True)
class _Rule:
    """What a rule of a credential access boundary says."""

    role: str
    objects: str
    listed: str

    @classmethod
    def parse(cls, rule: dict[str, Any]) -> _Rule:
        [role] = rule["availablePermissions"]
        match = re.fullmatch(
            r"resource\.name\.startsWith\((\".*\")\) \|\| "
            r"api\.getAttribute\(\"storage\.googleapis\.com/objectListPrefix\", \"\"\)\.startsWith\((\".*\")\)",
            rule["availabilityCondition"]["expression"],
        )
        assert match, rule
        objects, listed = json.loads(match[1]), json.loads(match[2])
        bucket = rule["availableResource"].removeprefix("//storage.googleapis.com/projects/_/buckets/")
        assert objects == f"projects/_/buckets/{bucket}/objects/{listed}", rule
        return cls(role, f"{bucket}/{listed}", f"{bucket}/{listed}")


class TokenGate(FaultProxy):
    """Google's Security Token Service, and a store that asks for its tokens and heeds their boundaries."""

    exchanges: list[dict[str, str]]
    """The forms of all exchanges."""
    expires_in: int | None = 3600
    """What the service says of a token's lifetime; of those of service accounts, Google says nothing."""

    def __init__(self, upstream: str) -> None:
        self.exchanges = []
        self._boundaries: dict[str, list[_Rule]] = {}
        super().__init__(upstream)

    @property
    def token_url(self) -> str:
        """Where the service exchanges tokens."""
        return f"{self.uri}/v1/token"

    def answer(self, request: Request) -> Answer:
        request = replace(request, target=request.target.removeprefix("/xmlapi"))
        if request.path == "/v1/token":
            return self._exchange(request.form)
        if request.path == "/oauth2/token":  # of a service account
            assert request.form["grant_type"] == "urn:ietf:params:oauth:grant-type:jwt-bearer"
            return Answer.json({"access_token": OWN_TOKEN, "expires_in": 3599, "token_type": "Bearer"})
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        is_own = token == OWN_TOKEN or token.startswith("ey")  # Lance signs tokens of a service account by itself
        if not is_own and token not in self._boundaries:
            return Answer.json({"error": {"code": 401, "message": "who are you?"}}, 401)
        if not is_own and not self._is_allowed(request, self._boundaries[token]):
            return Answer.json({"error": {"code": 403, "message": "not with this token"}}, 403)
        # The server answers under its own name only, and names itself where an upload is to go on.
        del request.headers["Host"]
        request.headers["Host"] = self._upstream.netloc
        is_put = request.method == "PUT" and not request.path.startswith("/upload/")
        answer = self._put(request) if is_put else super().answer(request)
        headers = {
            name: value.replace(self._upstream.netloc, urlsplit(self.uri).netloc)
            if name.lower() == "location"
            else value
            for name, value in answer.headers.items()
        }
        return replace(answer, headers=headers)

    def _put(self, request: Request) -> Answer:
        """Put an object, as Google's XML API has it, which the server lacks; with its condition, that there is none."""
        place, _ = _find_place(request)
        bucket, _, name = place.partition("/")
        query = {"uploadType": "media", "name": name}
        if generation := request.headers.get("x-goog-if-generation-match"):
            query["ifGenerationMatch"] = generation
        target = f"/upload/storage/v1/b/{bucket}/o?{urlencode(query)}"
        answer = super().answer(replace(request, method="POST", target=target))
        if answer.status != 200:
            return answer
        made = json.loads(answer.body)
        return Answer(200, b"", {"ETag": made["etag"], "x-goog-generation": str(made["generation"])})

    def _exchange(self, form: dict[str, str]) -> Answer:
        if form["subject_token"] != OWN_TOKEN:
            return Answer.json({"error": "invalid_grant", "error_description": f"bad token {form}"}, 400)
        self.exchanges.append(form)
        token = f"ya29.dr.{len(self.exchanges)}"
        options = json.loads(unquote(form["options"]))  # encoded twice
        self._boundaries[token] = list(map(_Rule.parse, options["accessBoundary"]["accessBoundaryRules"]))
        answer = {"access_token": token, "issued_token_type": form["requested_token_type"], "token_type": "Bearer"}
        return Answer.json(answer | ({"expires_in": self.expires_in} if self.expires_in else {}))

    def _is_allowed(self, request: Request, rules: list[_Rule]) -> bool:
        place, is_list = _find_place(request)
        places = [place]
        if source := request.headers.get("x-goog-copy-source"):
            places.append(unquote(source).lstrip("/"))
        needed = {READER, WRITER} if request.method in ("GET", "HEAD") else {WRITER}
        return all(
            any(place.startswith(rule.listed if is_list else rule.objects) and rule.role in roles for rule in rules)
            for place, roles in zip(places, (needed, {READER, WRITER}), strict=False)
        )


def _find_place(request: Request) -> tuple[str, bool]:
    """Bucket and object, or bucket and prefix of a list; in both of Google's APIs."""
    if match := re.fullmatch(r"/(?:upload/|download/)?storage/v1/b/([^/]+)/o(?:/(.+))?", request.path):
        bucket, name = match[1], match[2]
        if name is not None:
            return f"{bucket}/{unquote(name)}", False
        if request.method == "POST":
            name = request.query.get("name") or json.loads(request.body or b"{}").get("name", "")
            return f"{bucket}/{name}", False
        return f"{bucket}/{request.query.get('prefix', '')}", True
    bucket, *names = request.segments
    if any(names):
        return "/".join([bucket, *names]), False
    return f"{bucket}/{request.query.get('prefix', '')}", True


if __name__ == "__main__":
    try:
        build()
    except ProgramError as error:
        print(f"{error}\nThe tests on Google's store say that they are skipped.")
