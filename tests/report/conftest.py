"""Run folders made by hand, and one browser to look at their pages."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from leakgauge.audit.questions.training import MonitorRun
from leakgauge.audit.records import Record

from .eight_setups import build, make_record, store_eight
from .made_defenses import store_defenses
from .made_scan import make_scan
from .made_training import make_monitored

ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="session")
def eight_records() -> Callable[[Path], None]:
    """Stores the eight set-ups in a folder."""
    return store_eight


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole run on disk, made once; nobody may change it but by writing its report."""
    folder = tmp_path_factory.mktemp("hospital-pilot")
    store_eight(folder)
    return folder


@pytest.fixture(scope="session")
def guarded_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trials of defenses on disk; nobody may change them but by writing their report."""
    folder = tmp_path_factory.mktemp("guarded")
    store_defenses(folder)
    return folder


@pytest.fixture(scope="session")
def make() -> Callable[..., Record]:
    """:func:`make_record`, given as a fixture."""
    return make_record


@pytest.fixture
def one(tmp_path: Path) -> Record:
    """A single feasible set-up whose pictures lie in ``tmp_path``."""
    return make_record(tmp_path, "k", name="one", batch=2)


@pytest.fixture
def eight(tmp_path: Path) -> list[Record]:
    return build(tmp_path)


@pytest.fixture(scope="session")
def monitored() -> Callable[..., MonitorRun]:
    """:func:`make_monitored`, given as a fixture."""
    return make_monitored


@pytest.fixture(scope="session")
def scan_into() -> Callable[..., None]:
    """:func:`make_scan`, given as a fixture."""
    return make_scan


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
def contrast() -> str:
    """JavaScript that gives the smallest contrast of text against what lies behind it, over all visible text."""
    return (Path(__file__).parent / "contrast.js").read_text(encoding="utf-8")
