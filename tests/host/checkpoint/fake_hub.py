"""A hub on a loopback port: as much of the real one as a download needs."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

Files = Mapping[str, bytes]


class FakeHub(ThreadingHTTPServer):
    """repositories: name -> revision -> files. asked: every path that was asked for. token: what a client must bring."""

    daemon_threads = True

    def __init__(self, repositories: dict[str, dict[str, Files]], token: str | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repositories = repositories
        self.token = token
        self.asked: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def files(self, repository: str, revision: str) -> tuple[str, Files] | None:
        """Return (commit, files) of a branch, tag or commit."""
        for name, files in self.repositories.get(repository, {}).items():
            if revision in (name, commit(repository, name)):
                return commit(repository, name), files
        return None

    @contextlib.contextmanager
    def serving(self) -> Iterator[FakeHub]:
        thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield self
        finally:
            self.shutdown()
            self.server_close()
            thread.join()


def commit(repository: str, revision: str) -> str:
    return hashlib.sha1(f"{repository} {revision}".encode()).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    server: FakeHub

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.server.asked.append(path)
        if self.server.token and self.headers.get("Authorization") != f"Bearer {self.server.token}":
            return self._answer(401, b"{}", {"X-Error-Message": "Invalid username or password."})
        match = re.fullmatch(r"/api/models/(\w+/[\w.-]+)(?:/(revision|tree)/([\w.-]+))?", path)
        if match is not None:
            return self._api(match[1], match[2], match[3] or "main")
        match = re.fullmatch(r"/(\w+/[\w.-]+)/resolve/([\w.-]+)/(.+)", path)
        found = self.server.files(match[1], match[2]) if match else None
        if match is None or found is None or match[3] not in found[1]:
            return self._answer(404, b"{}", {"X-Error-Code": "EntryNotFound"})
        raw = found[1][match[3]]
        etag = f'"{hashlib.sha1(raw).hexdigest()}"'
        return self._answer(200, raw, {"ETag": etag, "X-Repo-Commit": found[0]})

    do_HEAD = do_GET

    def _api(self, repository: str, what: str, revision: str) -> None:
        found = self.server.files(repository, revision)
        if found is None:
            code = "RevisionNotFound" if repository in self.server.repositories else "RepoNotFound"
            return self._answer(404, b"{}", {"X-Error-Code": code, "X-Error-Message": "There is none."})
        sha, files = found
        listed: Any = {"id": repository, "sha": sha, "siblings": [{"rfilename": name} for name in files]}
        if what == "tree":
            listed = [
                {"type": "file", "path": name, "size": len(raw), "oid": hashlib.sha1(raw).hexdigest()}
                for name, raw in files.items()
            ]
        return self._answer(200, json.dumps(listed).encode(), {"Content-Type": "application/json"})

    def _answer(self, status: int, raw: bytes, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(raw))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(raw)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""
