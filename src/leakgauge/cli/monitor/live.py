"""What the monitor shows while a model trains: the newest numbers in the terminal, and a page for browsers on this machine."""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from leakgauge.audit.findings import Training, Unanswered, counted, training_of
from leakgauge.audit.phrasing import number
from leakgauge.audit.questions.training import MonitorRun
from leakgauge.audit.wording import alarm, conclude_training
from leakgauge.cli.terminal import shown
from leakgauge.errors import BadInput
from leakgauge.report.page import live_page, live_section

BLOCKS = " ▁▂▃▄▅▆▇█"
LAYERS = 6
PAUSE = 0.2
"""Fewest seconds between two drawings, to leave the processor to the training."""
HOST = "127.0.0.1"
MOST_CONNECTIONS, LONGEST = 16, 10.0
"""Connections at a time, and seconds that one may last."""
LAST_LOOK = 3.0
"""Seconds that an open page has to fetch the end of the run before the server stops."""


class Screen:
    """Draws the run in place. Without a terminal, or with --quiet, it draws nothing."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None
        self._drawn = 0.0

    def __enter__(self) -> Screen:
        if self._console.is_terminal and not self._console.quiet:
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, run: MonitorRun) -> None:
        if self._live is not None and time.monotonic() - self._drawn > PAUSE:
            self._live.update(view(run), refresh=True)
            self._drawn = time.monotonic()


def view(run: MonitorRun) -> RenderableType:
    """What a terminal shows of the run."""
    about = run.about
    title = f"{about.get('model', '?')}, {about.get('optimizer', '?')}, view {about.get('view', '?')}"
    found = training_of(run)
    if isinstance(found, Unanswered):
        return Text(f"leakgauge monitor: {title}: waiting for the first report")
    return Group(
        Text(f"leakgauge monitor: {title}, step {found.steps}", style="bold"),
        Text(conclude_training(found)),
        _numbers(run),
        Text(
            f"{alarm(found)} (false alarms at most {found.alpha:g} over any length)",
            "bold red" if found.alarmed else "",
        ),
        _layers(found),
        Text("A value near 0 does not mean that nothing leaks. Ctrl-C stops and keeps what was measured.", style="dim"),
    )


def _numbers(run: MonitorRun) -> Table:
    table = Table(box=None, padding=(0, 1))
    for heading in ("", "now", "95 % interval", "over the run", "read it as"):
        table.add_column(heading, no_wrap=True)
    read = [v for report in run.reports if (v := counted(report, "infonce_nats")) is not None]
    nats = (0.0, max([0.1, *read]))  # one scale for the critic and its controls, to compare them
    rows = (
        ("white-box AUC", "whitebox/auc", (0.5, 1.0), "0.5 is guessing, 1 recognises every member"),
        ("  all looks", "whitebox/pooled_auc", (0.5, 1.0), "the same over all probes so far"),
        ("InfoNCE, nats", "infonce_nats", nats, "counts above its controls"),
        ("  control null", "control/null_nats", nats, "must not be above 0"),
        ("  control decoy", "control/decoy_nats", nats, "must not be above 0"),
        ("  control noise 10x", "control/noise_10x_nats", nats, "must fall"),
    )
    for label, name, limits, reading in rows:
        values = [counted(report, name) for report in run.reports]
        low, high = counted(run.reports[-1], name, "_low"), counted(run.reports[-1], name, "_high")
        interval = "" if low is None or high is None else f"{number(low, 3)} to {number(high, 3)}"
        table.add_row(label, _number(values[-1]), interval, sparkline(values, *limits), reading)
    return table


def _layers(found: Training) -> Table:
    table = Table(box=None, padding=(0, 1), show_header=False)
    top = found.layers[0][1] if found.layers else 0.0
    for name, value in found.layers[:LAYERS]:
        share = 0 if top <= 0 else round(24 * max(value, 0.0) / top)
        table.add_row(shown(name), _number(value), "█" * share)
    return table


def _number(value: float | None) -> str:
    return number(value, 3, missing="-")


def sparkline(values: list[float | None], low: float, high: float, width: int = 28) -> str:
    """
    >>> sparkline([0.0, 0.5, None, 1.0], 0.0, 1.0)
    '▁▅ █'
    """
    shown = values if len(values) <= width else [values[i * (len(values) - 1) // (width - 1)] for i in range(width)]
    steps = len(BLOCKS) - 2
    level = [None if v is None else min(max((v - low) / (high - low), 0.0), 1.0) for v in shown]
    return "".join(" " if v is None else BLOCKS[1 + round(v * steps)] for v in level)


class LivePage:
    """Serves the run on ``http://127.0.0.1:port``. Port 0 takes any free one.

    Figures are drawn when a page asks, in the server's thread: nobody looking costs the training nothing.
    """

    def __init__(self, port: int) -> None:
        if not 0 <= port < 65536:
            raise BadInput(f"--port must be from 0 to 65535, got {port}")
        self._run = MonitorRun(about={})
        self._changed, self._asked_at, self._served = 0, 0.0, -1
        self._drawn: tuple[int, bytes] = (-1, b"")
        self._drawing = threading.Lock()
        handler = type("Handler", (_Handler,), {"page": self})
        try:
            self._server = _Server((HOST, port), handler)
        except OSError as trouble:
            raise BadInput(
                f"port {port} cannot be used ({trouble.strerror}); choose another with --port, or 0 for any free one"
            ) from trouble
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
                    "section": live_section(run),
                }
                self._drawn = number, json.dumps(body, ensure_ascii=False).encode()
        self._served = number
        return self._drawn[1]

    def _wait_for_the_last_look(self) -> None:
        looking = time.monotonic() - self._asked_at < LAST_LOOK
        until = time.monotonic() + LAST_LOOK
        while looking and self._served < self._changed and time.monotonic() < until:
            time.sleep(0.05)


class _Server(ThreadingHTTPServer):
    """Serves few at a time, and none for long: the descriptors and the terminal belong to the training."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(address, handler)
        self._open: dict[Any, float] = {}

    def process_request(self, request: Any, client_address: Any) -> None:
        if len(self._open) >= MOST_CONNECTIONS:
            self.shutdown_request(request)
            return
        self._open[request] = time.monotonic()
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._open.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Ends connections that have lasted too long, whatever they still send."""
        for request, began in list(self._open.items()):
            if time.monotonic() - began > LONGEST:
                with contextlib.suppress(OSError):  # it has ended by itself
                    request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A visitor who goes away is no error; anything else is one of ours, and is shown."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    page: LivePage
    timeout = 5.0

    def do_GET(self) -> None:
        if self.headers.get("Host") not in (f"{HOST}:{self.page.port}", f"localhost:{self.page.port}"):
            self._send(403, b"this page is for this machine alone\n", "text/plain")  # a name that was rebound to it
        elif self.path == "/":
            document, policy = live_page()
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
