"""A model hub on the loopback. It answers the routes that huggingface_hub asks for, and fails as told."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_REPO = re.compile(r"/api/models/([^/]+/[^/]+)(/tree/.*|/revision/.*|/paths-info/.*|/refs)?")
_FILE = re.compile(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)")


@dataclass
class Hub:
    """The repositories of a hub, and its faults."""

    repos: dict[str, dict[str, bytes]] = field(default_factory=dict)
    statuses: dict[str, tuple[int, str]] = field(default_factory=dict)
    """Repositories that are answered with a status and an error code."""
    token: str = ""
    """The token that requests must have."""
    cut_after: list[int] = field(default_factory=list)
    """The bytes after which the next downloads are cut off, each once."""
    said_longer: int = 0
    """The bytes by which files are shorter than their metadata say."""
    tag: str = ""
    """The ETag of all files, in place of their content's hash."""
    has_sums: bool = False
    """True if the list has the SHA-256 of files, as a hub's has for large ones."""
    listed: dict[str, bytes] = field(default_factory=dict)
    """The content that the list has in place of a file's."""
    ranges: list[str] = field(default_factory=list)
    """The ranges of the downloads so far, "" for a whole file."""
    loops: bool = False
    """True if each file is redirected to itself."""
    address: str = ""

    def commit(self, repo: str) -> str:
        """Return a hash of all that is in a repository."""
        return hashlib.sha1(repr(sorted(self.repos[repo].items())).encode()).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self._answer(with_body=True)

    def end_headers(self) -> None:
        self.send_header("Connection", "close")  # else the client's pool keeps a thread waiting
        super().end_headers()

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self, *, with_body: bool) -> None:
        path = self.path.partition("?")[0]
        match = _REPO.fullmatch(path) or _FILE.fullmatch(path)
        repo = match[1] if match else ""
        if repo in self.hub.statuses:
            self._refuse(*self.hub.statuses[repo])
        elif self.hub.token and self.headers.get("Authorization") != f"Bearer {self.hub.token}":
            self._refuse(401, "")
        elif match is None or repo not in self.hub.repos:
            self._refuse(404, "RepoNotFound")
        elif match.re is _REPO:
            self._tell(repo, match[2] or "")
        elif self.hub.loops:
            self.send_response(302)
            self.send_header("Location", path)
            self.send_header("Content-Length", "0")
            self.end_headers()
        elif match[3] not in self.hub.repos[repo]:
            self._refuse(404, "EntryNotFound")
        else:
            self._send(repo, self.hub.repos[repo][match[3]], with_body=with_body)

    def _refuse(self, status: int, code: str) -> None:
        self.send_response(status)
        if code:
            self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _tell(self, repo: str, what: str) -> None:
        files = self.hub.repos[repo]
        if what.startswith(("/tree", "/paths-info")):
            page: object = [
                {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
                for name, data in files.items()
            ]
        else:
            siblings = [self._sibling(name, data) for name, data in files.items()]
            page = {"id": repo, "modelId": repo, "sha": self.hub.commit(repo), "siblings": siblings}
        body = json.dumps(page).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _sibling(self, name: str, data: bytes) -> dict[str, object]:
        content = {"sha256": hashlib.sha256(self.hub.listed.get(name, data)).hexdigest()}
        lfs = {**content, "size": len(data), "pointerSize": 100}
        return {"rfilename": name, "size": len(data), **({"lfs": lfs} if self.hub.has_sums else {})}

    def _send(self, repo: str, data: bytes, *, with_body: bool) -> None:
        asked = self.headers.get("Range", "")
        start = int(asked.removeprefix("bytes=").split("-")[0]) if asked else 0
        self.send_response(206 if start else 200)
        self.send_header("X-Repo-Commit", self.hub.commit(repo))
        self.send_header("ETag", f'"{self.hub.tag or hashlib.sha256(data).hexdigest()}"')
        self.send_header("X-Linked-Size", str(len(data) + self.hub.said_longer))
        self.send_header("Accept-Ranges", "bytes")
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        self.send_header("Content-Length", str(len(data) - start))
        self.end_headers()
        if with_body:
            self.hub.ranges.append(asked)
            n_bytes = self.hub.cut_after.pop(0) if self.hub.cut_after else len(data)
            self.wfile.write(data[start : start + n_bytes])


@contextmanager
def running() -> Iterator[Hub]:
    """Run a hub in a thread."""
    hub = Hub()
    handler = type("Handler", (_Handler,), {"hub": hub})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        hub.address = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield hub
        finally:
            server.shutdown()
            thread.join()
