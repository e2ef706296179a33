"""The live page's server: this machine alone, two addresses, nothing else."""

from __future__ import annotations

import json
import socket
import struct
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from leakgauge.audit.questions.training import MonitorRun
from leakgauge.cli.monitor import live
from leakgauge.cli.monitor.live import LivePage
from leakgauge.errors import BadInput


def ask(address: str, **headers: str):
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    return opener.open(urllib.request.Request(address, headers=headers), timeout=10)


@pytest.fixture
def page():
    with LivePage(0) as page:
        yield page


def test_it_listens_on_this_machine_alone(page):
    assert page.address.startswith("http://127.0.0.1:")
    assert page._server.server_address[0] == "127.0.0.1"


def test_the_page_may_load_nothing_from_elsewhere_and_run_its_own_script_only(page):
    with ask(page.address) as answer:
        policy, body = answer.headers["Content-Security-Policy"], answer.read().decode()
        assert answer.headers["Cache-Control"] == "no-store"
    assert policy.startswith("default-src 'none'")
    assert "script-src 'sha256-" in policy
    assert "unsafe-inline" not in policy.split("script-src")[1]
    assert "http" not in body.replace("http-equiv", "")


def test_the_state_grows_with_the_run(page):
    with ask(page.address + "state.json") as answer:
        first = json.load(answer)
    page.show(MonitorRun(about={"model": "<b>LeNet</b>"}, end={"how": "finished"}))
    with ask(page.address + "state.json") as answer:
        second = json.load(answer)
    assert (first["number"], first["ended"], first["step"], first["alarm_at"]) == (0, None, 0, None)
    assert (second["number"], second["ended"]) == (1, "finished")
    assert "&lt;b&gt;LeNet" in second["section"]
    assert "<b>" not in second["section"]


@pytest.mark.parametrize("path", ["nothing", "../etc/passwd", "state.json?x=1"])
def test_there_is_nothing_else(page, path):
    with pytest.raises(urllib.error.HTTPError) as refused:
        ask(page.address + path)
    assert refused.value.code == 404


def test_a_foreign_name_for_this_machine_is_refused(page):
    with pytest.raises(urllib.error.HTTPError) as refused:
        ask(page.address, Host="evil.example")
    assert refused.value.code == 403
    assert ask(page.address, Host=f"localhost:{page.port}").status == 200


def test_a_port_that_is_taken():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(BadInput, match=f"port {port} cannot be used .*; choose another with --port"):
            LivePage(port)


def test_a_port_that_does_not_exist():
    with pytest.raises(BadInput, match="from 0 to 65535, got 70000"):
        LivePage(70000)


def test_the_address_is_free_again_afterwards():
    with LivePage(0) as page:
        pass
    with pytest.raises(urllib.error.URLError):
        ask(page.address)


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def idle(page, count: int) -> list[socket.socket]:
    """So many visitors who begin a request and never end it."""
    found = [socket.create_connection(("127.0.0.1", page.port), timeout=10) for _ in range(count)]
    for one in found:
        one.sendall(b"GET / HTTP/1.1\r\nX: ")
    return found


def test_visitors_who_wait_do_not_take_the_descriptors_of_the_training(page, capfd):
    before = descriptors()
    visitors = idle(page, 100)
    refused = [one for one in visitors if _ended(one, within=0.2)]
    assert len(refused) >= 100 - live.MOST_CONNECTIONS
    assert descriptors() <= before + 100 + live.MOST_CONNECTIONS  # those of the visitors are ours too
    for one in visitors:
        one.close()
    assert capfd.readouterr().err == ""


def test_nobody_is_served_for_long(page, monkeypatch, capfd):
    monkeypatch.setattr(live, "LONGEST", 0.2)
    (visitor,) = idle(page, 1)
    assert _ended(visitor, within=20)
    visitor.close()
    with ask(page.address) as answer:  # others are served
        assert answer.status == 200
    assert capfd.readouterr().err == ""


def test_a_visitor_who_goes_away_is_not_talked_about(page, monkeypatch, capfd):
    monkeypatch.setattr(live, "live_page", lambda: ("x" * 10**8, ""))
    for _ in range(3):
        visitor = socket.create_connection(("127.0.0.1", page.port), timeout=10)
        visitor.sendall(f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{page.port}\r\n\r\n".encode())
        visitor.recv(10)
        visitor.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # ends it at once
        visitor.close()
    until = time.monotonic() + 120
    while page._server._open and time.monotonic() < until:
        time.sleep(0.02)
    assert not page._server._open
    assert capfd.readouterr().err == ""


def _ended(visitor: socket.socket, within: float) -> bool:
    visitor.settimeout(within)
    try:
        return visitor.recv(1) == b""
    except TimeoutError:
        return False
    except ConnectionError:
        return True
