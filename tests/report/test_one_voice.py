"""All views of one run say the same: page, terminal, Markdown, JUnit, JSON and a comparison, sentence by sentence and number by number.

The run has all four questions, made by hand. A number is the same in two views if each shows it rounded to its own decimals.
"""

from __future__ import annotations

import html
import io
import json
import math
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from rich.console import Console

from leakgauge.audit import findings, gate, records
from leakgauge.audit.advice import advise, as_text
from leakgauge.audit.compare import Comparison, compare
from leakgauge.audit.findings import Findings, read_findings
from leakgauge.audit.questions import defense_records as defenses
from leakgauge.audit.questions import split_records, training
from leakgauge.audit.verdict import Outcome
from leakgauge.audit.wording import Statement, ending, rule, split_notes, statements
from leakgauge.cli.monitor.live import view
from leakgauge.cli.screen import verdict_table
from leakgauge.report import compare_page
from leakgauge.report.page import render

from .eight_setups import store_eight
from .made_defenses import store_defenses
from .made_scan import make_scan
from .made_training import make_monitored, store_monitored

QUESTIONS = ("updates", "training", "split", "defenses")


@dataclass(frozen=True)
class Views:
    """One run, and everything that shows it as text: what a reader sees, without markup and line breaks."""

    folder: Path
    found: Findings
    page: str
    terminal: str
    markdown: str
    junit: str
    json: str
    comparison: Comparison

    @property
    def statements(self) -> tuple[Statement, ...]:
        return statements(self.found)

    def texts(self) -> dict[str, str]:
        return {name: getattr(self, name) for name in ("terminal", "markdown", "junit", "json")} | {
            "page": plain(self.page)
        }


def plain(markup: str) -> str:
    body = re.sub(r"<(style|script)>.*?</\1>|<wbr>", "", markup, flags=re.S)
    return flat(html.unescape(re.sub(r"<[^>]+>", " ", body)))


def flat(text: str) -> str:
    return " ".join(text.replace("\u2060", "").replace("\u202f", "").split())


def printed(*things: object) -> str:
    screen = Console(file=io.StringIO(), width=10_000, record=True)
    for one in things:
        screen.print(one)
    return flat(screen.export_text())


@pytest.fixture(scope="module")
def views(tmp_path_factory: pytest.TempPathFactory) -> Views:
    folder = tmp_path_factory.mktemp("runs") / "one"
    folder.mkdir()
    store_eight(folder)
    store_monitored(folder, make_monitored())
    make_scan(folder)
    store_defenses(folder)
    other = folder.parent / "other"
    shutil.copytree(folder, other)
    cases, found, limit = records.read(folder), read_findings(folder), Outcome.PARTIAL
    suite = ElementTree.fromstring(gate.junit(cases, limit, found))
    markdown = html.unescape(gate.run_summary(cases, found, limit=limit))
    return Views(
        folder=folder,
        found=found,
        page=render(folder),
        terminal=printed(verdict_table(cases), as_text(found, width=10_000)),
        markdown=flat(re.sub(r"\\([\\`*_\[\]|~=+-])", r"\1", markdown)),
        junit=flat(" ".join(value for node in suite.iter() for value in node.attrib.values())),
        json=flat(json.dumps(gate.summary(cases, limit, found), ensure_ascii=False)),
        comparison=compare(folder, other),
    )


def section(views: Views, question: str) -> str:
    """The markup of one question's section."""
    start = views.page.index(f'<section class="question" id="{question}"')
    end = re.search(r'<section class="(question|appendix)', views.page[start + 10 :])
    assert end
    return views.page[start : start + 10 + end.start()]


# ---------------------------------------------------------------------------------------------------------- sentences


def test_the_run_answers_everything(views: Views):
    assert [one.state for one in views.statements] == ["answered"] * 4
    assert all(one.budget and one.assumptions for one in views.statements)


@pytest.mark.parametrize("question", QUESTIONS)
def test_every_view_has_every_sentence(views: Views, question: str):
    (statement,) = [one for one in views.statements if one.question == question]
    for name, text in views.texts().items():
        for sentence in statement.sentences:
            assert flat(sentence) in text, name
        assert statement.badge in text, name
    for name in ("page", "terminal", "markdown", "json"):  # JUnit has no room for it
        assert flat(statement.budget) in views.texts()[name], name


@pytest.mark.parametrize("question", QUESTIONS)
def test_the_section_says_what_the_top_says(views: Views, question: str):
    (statement,) = [one for one in views.statements if one.question == question]
    inside = plain(section(views, question))
    top = plain(views.page[: views.page.index('<section class="question"')])
    for sentence in statement.sentences:
        assert flat(sentence) in inside
        assert flat(sentence) in top


def test_every_view_that_gives_advice_gives_the_same(views: Views):
    for one in advise(views.found)[: gate.ADVICE]:
        for name in ("page", "terminal", "markdown"):
            assert flat(one.title) in views.texts()[name], name
            assert flat(one.why) in views.texts()[name], name


def test_the_live_view_and_the_page_have_one_sentence_on_the_alarm(views: Views):
    (alarm, *_) = next(one for one in views.statements if one.question == "training").sentences
    assert alarm in printed(view(training.read(views.folder)))
    assert alarm in plain(views.page)


def test_the_notes_of_a_scan_are_on_the_page(views: Views):
    assert views.found.split
    assert all(flat(note) in plain(section(views, "split")) for note in split_notes(views.found.split))


# ------------------------------------------------------------------------------------------------------------ numbers

NUMBER = re.compile(r"(?<![\w.])[-−+]?(?:\d[\d\u202f]*(?:\.\d+)?(?:e[-−]?\d+)?|∞)(?![\w])")


def shows(text: str, value: float) -> bool:
    """Whether some number of the text is this value, at the decimals that the text gives it."""
    for written in NUMBER.findall(text):
        digits = written.replace("−", "-").replace("\u202f", "").replace("∞", "inf")
        places = len(digits.partition(".")[2])
        if float(digits) == float(f"{value:.{places}f}") and (places or math.isinf(value) or value == int(value)):
            return True
    return False


def test_the_law_itself_finds_a_number_only_where_it_is():
    assert shows("AUC 0.98 (95 % CI 0.85 to 1.00)", 0.981)
    assert not shows("AUC 0.98 (95 % CI 0.85 to 1.00)", 0.97)
    assert shows("PSNR ∞ dB", float("inf"))
    assert not shows("cut12 of v1.5x", 12.0)


def rows(markup: str) -> Iterator[list[str]]:
    """The cells of each row of each table body."""
    for body in re.findall(r"<tbody>(.*?)</tbody>", markup, flags=re.S):
        for row in re.findall(r"<tr.*?</tr>", body, flags=re.S):
            yield [plain(cell) for cell in re.findall(r"<t[hd][^>]*>.*?</t[hd]>", row, flags=re.S)]


def test_every_view_has_the_scores_of_every_set_up(views: Views):
    shown = {cells[0]: cells for cells in rows(section(views, "updates")) if len(cells) >= 9}
    plain_cases = {case["name"]: case for case in json.loads(views.json)["cases"]}
    table = dict(re.findall(r"\| `([^`]*)` \| ([^`]*?) \|(?= \||$| \s*-| \*\*)", views.markdown))
    pairs = {pair.after.key: pair for pair in views.comparison.cases}
    assert len(pairs) == len(plain_cases) == 8
    for number, record in enumerate(records.read(views.folder), start=1):
        row = " ".join(next(cells for name, cells in shown.items() if name.startswith(f"{number}. {record.case.name}")))
        line = next(text for name, text in table.items() if name == record.case.name) if table else views.markdown
        compared = pairs[record.key]
        assert plain_cases[record.case.name]["verdict"] == record.outcome
        assert ending(record).label in row
        if record.scores is None or record.null is None or record.verdict is None:
            assert not re.search(r"\d\.\d", row.partition(record.case.name)[2])
            assert all(difference.before is None for difference in compared.differences)
            continue
        assert rule(record.verdict) in plain(views.page)
        for name, scores in (("psnr", record.scores), ("ssim", record.scores), ("psnr", record.null)):
            value = scores.mean(name)
            assert shows(row, value), (record.case.name, name)
            assert shows(line, value), (record.case.name, name)
            assert shows(views.terminal, value), (record.case.name, name)
        for difference in compared.differences:
            value = record.scores.mean(difference.metric)
            assert difference.before == difference.after == value
            written = plain_cases[record.case.name][difference.metric]
            assert float(written) == value
            assert shows(plain(compare_page.render(views.comparison)), value)


def test_the_numbers_of_the_training_are_those_of_the_statement(views: Views):
    found = views.found.training
    assert found
    assert found.peak
    assert found.last
    assert found.auc
    inside = section(views, "training")
    by_step = {cells[0]: " ".join(cells[1:]) for cells in rows(inside) if cells[0].isdigit()}
    last = {cells[0]: cells[1] for cells in rows(inside) if not cells[0].isdigit()}
    (critic,) = [value for name, value in last.items() if name.startswith("Critic (InfoNCE)")]
    live = printed(view(training.read(views.folder)))
    (statement,) = [one for one in views.statements if one.question == "training"]
    for measured in (found.peak, found.last, found.auc):
        assert shows(by_step[str(measured.step)], measured.value)
        assert shows(statement.text, measured.value)
    assert shows(critic, found.last.value)
    assert shows(live, found.last.value)
    assert shows(live, found.auc.value)
    (auc,) = [change for change in views.comparison.changes if "AUC at the last look" in change.what]
    assert auc.before == auc.after
    assert shows(auc.after, found.auc.value)


def test_the_numbers_of_the_cuts_are_those_of_the_statement(views: Views):
    found = views.found.split
    assert found
    assert found.recommended
    assert found.fvu is not None
    assert found.bytes is not None
    (row,) = [cells for cells in rows(section(views, "split")) if "recommended" in cells[0]]
    assert found.recommended in row[0].replace(" ", "")
    (statement,) = [one for one in views.statements if one.question == "split"]
    (cut,) = [change for change in views.comparison.changes if change.question == "split"]
    for value in (found.fvu, float(found.bytes)):
        for text in (" ".join(row), statement.text, cut.after):
            assert shows(text, value)


def test_the_numbers_of_the_defenses_are_those_of_the_statement(views: Views):
    found = views.found.defenses
    assert found
    table = [cells for cells in rows(section(views, "defenses")) if re.match(r"\d+\. ", cells[0])]
    compared = {change.what: change for change in views.comparison.changes if change.question == "defenses"}
    every = (found.undefended, *found.rows)
    assert len(table) == len(every) == len(compared)
    for row, cells in zip(every, table, strict=True):
        text = compared["No defense" if not row.defenses else f"Defense {row.name}"].after
        for value in (row.ssim, row.auc, row.cost):
            if value is not None:
                assert shows(" ".join(cells[2:]), value), row.name
                assert shows(text, value), row.name
    held = sum(row.outcome is Outcome.INFEASIBLE for row in found.rows)
    badges = [cells[1] for cells in table]
    assert sum(badge.startswith("Infeasible") for badge in badges) == held
    assert f"{held} of {len(found.rows)} defenses" in next(s.text for s in views.statements if s.question == "defenses")


def test_a_number_that_is_wrong_in_one_place_is_found(views: Views):
    """The tests above would see a view that rounds or counts by itself."""
    assert views.found.training
    assert views.found.training.auc
    wrong = replace(views.found.training.auc, value=0.5)
    (statement,) = [one for one in views.statements if one.question == "training"]
    assert not shows(statement.sentences[2].partition(";")[0], wrong.value)


# -------------------------------------------------------------------------------------------------------------- rules


def test_moving_a_threshold_moves_every_view(views: Views, monkeypatch: pytest.MonkeyPatch):
    """A rule is written once: with another number of steps that count, no view quotes the critic any more."""
    monkeypatch.setattr(findings.training, "SETTLED", 1_000_000)
    found = read_findings(views.folder)
    assert found.training
    assert found.training.peak is None
    page = plain(render(views.folder)).partition("Appendix")[0]
    (statement,) = [one for one in statements(found) if one.question == "training"]
    assert statement.sentences[1] in page
    assert "Leakage estimate with its interval" not in page
    peak = views.found.training.peak if views.found.training else None
    assert peak
    quoted = re.compile(rf"\b({re.escape(f'{peak.value:.2f}')}|{re.escape(f'{peak.value:.3f}')})\b")
    assert quoted.search(plain(views.page).partition("Appendix")[0])
    without_raw_looks = re.sub(r"<tbody>.*?</tbody>", "", render(views.folder), flags=re.S)
    assert not quoted.search(plain(without_raw_looks).partition("Appendix")[0])
    assert not quoted.search(printed(view(training.read(views.folder))))


def test_the_records_are_all_that_the_views_read(views: Views):
    names = {records.FILE, training.FILE, split_records.PLAN, split_records.FILE, split_records.CONCLUSION}
    names |= {defenses.FILE}
    assert {path.name for path in views.folder.iterdir() if path.suffix != ".png"} == names
