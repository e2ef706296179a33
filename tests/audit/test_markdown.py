"""The Markdown for a pull request, read by an independent parser: whatever a name holds, it stays text."""

from __future__ import annotations

import re

import pytest
from markdown_it import MarkdownIt

from leakgauge.audit.case import Case
from leakgauge.audit.compare import CasePair, Comparison, Difference, OtherChange
from leakgauge.audit.findings import Findings, updates_of
from leakgauge.audit.gate import ROWS, code, comparison_summary, plain, run_summary
from leakgauge.audit.records import Record
from leakgauge.audit.verdict import Outcome
from tests.made import FEASIBLE, INFEASIBLE, PARTIAL
from tests.made import record as made_record


def record(outcome: Outcome | None, **case) -> Record:
    return made_record(outcome, case=Case(**case), status="done" if outcome else "error", assumptions=())


HOSTILE = [
    "a|b|c",
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "[click](javascript:alert(1))",
    "![](http://evil.example/x.png)",
    "**bold** _it_ ~~no~~ `code`",
    "```\nfence",
    "a\n\n# heading\n- item",
    "- item",
    "1. one",
    "=== line",
    "</details>",
    "&lt;b&gt; &amp;",
    "back\\slash \\| pipe",
    "``double`` `",
    "<!-- comment -->",
]


def rendered(markdown: str) -> str:
    return MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).render(markdown)


def text_of(html: str) -> str:
    from html import unescape

    return unescape(re.sub(r"<[^>]*>", "", html)).replace("\u2060", "").strip()


@pytest.mark.parametrize("name", HOSTILE)
def test_plain_text_stays_text(name):
    html = rendered(plain(name))
    assert html.startswith("<p>")
    assert re.findall(r"<[^>]*>", html) == ["<p>", "</p>"]
    assert text_of(html) == " ".join(name.split())


@pytest.mark.parametrize("name", HOSTILE)
def test_a_code_span_stays_one_cell(name):
    html = rendered(f"| a | b |\n| --- | --- |\n| {code(name)} | x |\n")
    assert html.count("<td>") == 2
    assert re.findall(r"<(?!/?(?:table|thead|tbody|tr|th|td|code)\b)[^>]*>", html) == []


def test_no_mention_no_reference_no_address():
    said = plain("@everyone see #12 at https://evil.example or www.evil.example")
    assert not re.search(r"@\w|#\d|https?:|www\.", said)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_whole_summary_with_hostile_names(name):
    case = record(FEASIBLE, name=name, model=name)
    failed = record(None, name=name, mode="train")
    html = rendered(run_summary([case, failed], Findings(updates=updates_of([case])), limit=PARTIAL))
    assert "<script" not in html
    assert "<img" not in html
    assert "href" not in html
    assert html.count("<details>") == html.count("</details>") == 1
    assert html.count("<h3>") == 1
    assert html.count("<td>") == 2 * 6


def test_the_verdict_comes_first_then_the_gate_then_the_table():
    found = [record(FEASIBLE), record(INFEASIBLE, mode="train")]
    lines = run_summary(
        found, Findings(updates=updates_of(found)), limit=PARTIAL, report="runs/a/report.html"
    ).splitlines()
    assert lines[0] == "### leakgauge: Leaks"
    assert "**Gate failed**: 1 of 2 judged set-ups are worse than *partial*." in lines
    assert "🔴 feasible" in next(line for line in lines if line.startswith("| `cnn, eval"))
    assert "**What to do**" in lines
    assert lines.index("<details>") > lines.index("**What to do**")
    assert any("runs/a/report.html" in line for line in lines[lines.index("<details>") :])


@pytest.mark.parametrize(
    ("verdict", "limit", "said"),
    [
        (PARTIAL, PARTIAL, "**Gate passed**"),
        (None, PARTIAL, "**Gate failed**: no set-up was judged"),
        (FEASIBLE, None, ""),
    ],
)
def test_the_gate(verdict, limit, said):
    text = run_summary([record(verdict)], None, limit=limit)
    assert said in text
    assert ("Gate" in text) == bool(said)


def test_a_long_table_is_folded():
    found = [record(PARTIAL, batch_size=n) for n in range(1, ROWS + 4)]
    open_, folded = run_summary(found, None, limit=None).split("<details>")
    assert open_.count("🟠 partial") == ROWS
    assert folded.count("🟠 partial") == 3


def test_a_comparison_says_what_got_worse_in_words():
    found = Comparison(
        "a", "b`|c",
        cases=(
            CasePair("set-up |", record(PARTIAL), record(FEASIBLE), "worse", (Difference("ssim", 0.4, 0.6, False, "why"),)),
        ),
        changes=(OtherChange("split", "Recommended cut", "1", "none", "worse", "<b>"),),
        only_after=("x",), settings=(("seed", "0", "1"),), warnings=("different budgets",),
    )  # fmt: skip
    text = comparison_summary(found)
    assert "| `set-up \\|` | 🟠 partial | 🔴 feasible | 🔴 WORSE | +0.200 (within spread) |" in text
    assert "⚠️ different budgets" in text
    assert "&lt;b&gt;" in text
    assert rendered(text).count("<table>") == 2
