"""A web server on 127.0.0.1 that serves one file and misbehaves as told."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class MisbehavingServer(ThreadingHTTPServer):
    """Serves `content` at every path; the path's first part says how.

    /good       as it should
    /cut/N      at most N bytes a request, then the connection closes
    /norange    Range headers are ignored
    /cutnorange/N  both
    /status/N   answers N
    /wrong      other bytes of the same length
    /short      another, shorter file
    /endless    twice the bytes, no length announced
    """

    daemon_threads = True

    def __init__(self, content: bytes) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.content = content
        self.seen: list[tuple[str, str | None]] = []
        """(path, Range header) of every request."""

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}{path}"


class _Handler(BaseHTTPRequestHandler):
    server: MisbehavingServer

    def do_GET(self) -> None:
        asked = self.headers.get("Range")
        self.server.seen.append((self.path, asked))
        how, *rest = self.path.strip("/").split("/")
        content = self.server.content
        if how == "status":
            self.send_error(int(rest[0]))
            return
        if how == "wrong":
            content = bytes(255 - byte for byte in content)
        if how == "short":
            content = b"<html>moved</html>"
        if how == "endless":
            self.send_response(200)
            self.end_headers()
            self.wfile.write(content + content)
            return
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and "norange" not in how else 0
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        body = content[start:]
        self.wfile.write(body[: int(rest[0])] if how.startswith("cut") else body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def serving(content: bytes) -> Iterator[MisbehavingServer]:
    with MisbehavingServer(content) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
