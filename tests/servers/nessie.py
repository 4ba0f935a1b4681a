"""Two habits of Nessie, before a real server: it chooses where tables lie, and its prefix comes percent-encoded."""

from __future__ import annotations

import json
from copy import copy
from dataclasses import replace
from uuid import uuid4

from tests.servers.faults import FaultProxy
from tests.servers.loopback import Answer, Request

PREFIX = "main%7Cwarehouse"
"""As Nessie writes the branch `main` of a warehouse."""


class Nessie(FaultProxy):
    """A server that puts every table at a new place below `root`, whatever it is asked for; faults work too.

    Every path is below `PREFIX`, in this spelling; any other is a route that is not there.
    """

    def __init__(self, upstream: str, root: str, prefix: str = "") -> None:
        """In front of a server whose paths have `prefix`; without `root`, tables lie where they are asked for."""
        self._root = root
        self._real = f"/v1/{prefix}/" if prefix else "/v1/"
        super().__init__(upstream)

    def _forward(self, request: Request) -> Answer:
        if request.path.endswith("/v1/config"):
            answer = super()._forward(request)
            config = json.loads(answer.body)
            defaults = {key: value for key, value in config.get("defaults", {}).items() if key != "root"}
            told = {**config, "defaults": defaults, "overrides": {"prefix": PREFIX}}
            return Answer.json(told, answer.status)
        if f"/v1/{PREFIX}/" not in request.target:
            return Answer.text("<html>no such page</html>", 404, "text/html")
        request = replace(request, target=request.target.replace(f"/v1/{PREFIX}/", self._real, 1))
        if self._root and request.method == "POST" and request.path.endswith("/tables"):
            request = self._relocate(request)
        return super()._forward(request)

    def _relocate(self, request: Request) -> Request:
        wanted = json.loads(request.body)
        place = f"{self._root}/{wanted['name']}_{uuid4().hex}"
        body = json.dumps({**wanted, "location": place}).encode()
        headers = copy(request.headers)
        headers.replace_header("Content-Length", str(len(body)))
        return replace(request, body=body, headers=headers)
