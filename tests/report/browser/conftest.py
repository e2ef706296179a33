"""One Chromium for all tests of this folder, a run folder that answers three questions, and what is measured on its page."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from leakgauge.audit import monitor_records

ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

# Smallest contrast of text against what lies behind it, with the text, over all visible text of the page.
CONTRAST = """() => {
  const parse = c => { const m = c.match(/[\\d.]+/g).map(Number); return m.length < 4 ? [...m, 1] : m; };
  const light = ([r, g, b]) => [r, g, b].map(v => v / 255)
    .map(v => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
    .reduce((s, v, i) => s + v * [.2126, .7152, .0722][i], 0);
  const behind = e => { for (; e; e = e.parentElement) {
    const c = parse(getComputedStyle(e).backgroundColor); if (c[3] === 1) return c; } return [255, 255, 255, 1]; };
  let worst = {ratio: 99}; let seen = 0;
  for (const e of document.querySelectorAll('body *')) {
    const own = [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim());
    if (!own || !e.checkVisibility() || ['TITLE', 'DESC'].includes(e.tagName.toUpperCase())) continue;
    const style = getComputedStyle(e);
    const ink = parse(e instanceof SVGElement ? style.fill : style.color);
    const [a, b] = [light(ink), light(behind(e))].sort((x, y) => y - x);
    const ratio = (a + .05) / (b + .05); seen++;
    if (ratio < worst.ratio) worst = {ratio, text: e.textContent.trim().slice(0, 60), css: String(e.className)};
  }
  return {...worst, seen};
}"""


@pytest.fixture(scope="session")
def browser():
    """One Chromium for all tests of this folder."""
    from playwright.sync_api import sync_playwright

    found = shutil.which("chromium")
    if not found:
        pytest.fail("these tests need Chromium; install it with: apt-get install chromium", pytrace=False)
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=found, args=ARGUMENTS)
        yield started
        started.close()


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
    run = monitored(name="encoder.layers.11.attention.output.dense.weight")
    monitor_records.append(folder, "run", run.about)
    for line in run.reports:
        monitor_records.append(folder, "report", line)
    monitor_records.append(folder, "end", run.end)
    scan_into(folder)
    return folder


@pytest.fixture(scope="session")
def contrast() -> str:
    """JavaScript that gives the smallest contrast of text against what lies behind it, over all visible text."""
    return CONTRAST
