"""The live page: a small web server on this machine alone, whose page asks for the newest figures every second."""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from leakgauge.audit.monitor_records import MonitorRun
from leakgauge.errors import BadInput
from leakgauge.report import live

HOST = "127.0.0.1"
LAST_LOOK = 3.0
"""Seconds that an open page is given to fetch the end of the run before the server goes away."""


class LivePage:
    """Serves the run on ``http://127.0.0.1:port``. Port 0 takes any that is free.

    Figures are drawn when a page asks, in the server's thread: nobody looking costs the training nothing.
    """

    def __init__(self, port: int) -> None:
        if not 0 <= port < 65536:
            raise BadInput(f"--port must lie between 0 and 65535, got {port}")
        self._run = MonitorRun(about={})
        self._changed, self._asked_at, self._served = 0, 0.0, -1
        self._drawn: tuple[int, bytes] = (-1, b"")
        self._drawing = threading.Lock()
        handler = type("Handler", (_Handler,), {"page": self})
        try:
            self._server = ThreadingHTTPServer((HOST, port), handler)
        except OSError as trouble:
            raise BadInput(
                f"port {port} cannot be used ({trouble.strerror}); choose another with --port, or 0 for any free one"
            ) from trouble
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]
        self.address: str = f"http://{HOST}:{self.port}/"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)

    def __enter__(self) -> LivePage:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._wait_for_the_last_look()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def show(self, run: MonitorRun) -> None:
        self._run = run
        self._changed += 1

    def state(self) -> bytes:
        """The JSON that the page asks for: a number that grows, whether the run has ended, and the figures as markup."""
        self._asked_at = time.monotonic()
        with self._drawing:
            number, run = self._changed, self._run
            if self._drawn[0] != number:
                newest = run.reports[-1] if run.reports else {}
                body = {
                    "number": number,
                    "ended": run.end.get("how"),
                    "step": newest.get("step", 0),
                    "alarm_at": newest.get("alarm_at"),
                    "section": live.section(run),
                }
                self._drawn = number, json.dumps(body, ensure_ascii=False).encode()
        self._served = number
        return self._drawn[1]

    def _wait_for_the_last_look(self) -> None:
        looking = time.monotonic() - self._asked_at < LAST_LOOK
        until = time.monotonic() + LAST_LOOK
        while looking and self._served < self._changed and time.monotonic() < until:
            time.sleep(0.05)


class _Handler(BaseHTTPRequestHandler):
    page: LivePage

    def do_GET(self) -> None:
        if self.headers.get("Host") not in (f"{HOST}:{self.page.port}", f"localhost:{self.page.port}"):
            self._send(403, b"this page is for this machine alone\n", "text/plain")  # a name that was rebound to it
        elif self.path == "/":
            document, policy = live.page()
            self._send(200, document.encode(), "text/html", policy)
        elif self.path == "/state.json":
            self._send(200, self.page.state(), "application/json")
        else:
            self._send(404, b"not found\n", "text/plain")

    def _send(self, code: int, body: bytes, kind: str, policy: str = "default-src 'none'") -> None:
        self.send_response(code)
        for name, value in (
            ("Content-Type", f"{kind}; charset=utf-8"),
            ("Content-Length", str(len(body))),
            ("Content-Security-Policy", policy),
            ("Cache-Control", "no-store"),
            ("X-Content-Type-Options", "nosniff"),
            ("Referrer-Policy", "no-referrer"),
        ):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Keeps the terminal for the training."""
