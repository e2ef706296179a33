"""A run folder that answers three questions, and how its page is opened."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.report.made_training import store_monitored


@pytest.fixture(scope="session")
def visit(browser):
    """Opens an address without a network, as a new page of one context, and notes what the browser asks for and complains of."""
    contexts = {}

    def opened(address: str, width: int = 1280, scheme: str = "light", *, scripts: bool = True):
        if scripts not in contexts:
            contexts[scripts] = browser.new_context(java_script_enabled=scripts)
        page = contexts[scripts].new_page()
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme=scheme)
        log = SimpleNamespace(requests=[], complaints=[])
        page.on("request", lambda r: log.requests.append(r.url))
        page.on("console", lambda m: log.complaints.append(m.text))
        page.on("pageerror", lambda e: log.complaints.append(str(e)))
        page.goto(address)
        return page, log

    yield opened
    for context in contexts.values():
        context.close()


@pytest.fixture(scope="session")
def whole_folder(tmp_path_factory: pytest.TempPathFactory, eight_records, monitored, scan_into) -> Path:
    """A run with set-ups, a monitored training and a scan of cuts; nothing about defenses."""
    folder = tmp_path_factory.mktemp("whole-audit")
    eight_records(folder)
    store_monitored(folder, monitored(name="encoder.layers.11.attention.output.dense.weight"))
    scan_into(folder)
    return folder
