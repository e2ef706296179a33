"""Short summaries in Markdown for a pull request. Names and sentences are escaped: none can add a link, a mention or HTML."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from leakgauge.audit import gate
from leakgauge.audit.advice import advise
from leakgauge.audit.advice.sentences import verdicts
from leakgauge.audit.compare import ORDER, Comparison, Difference
from leakgauge.audit.findings import Findings
from leakgauge.audit.records import Record

ROWS = 12
"""Rows of a table that stand open; the others are folded away."""
ADVICE = 3
_JOINER = "\u2060"  # invisible; what follows is no longer a mention, a reference or an address
_WORDS = {
    "feasible": "🔴 feasible",
    "partial": "🟠 partial",
    "infeasible_within_budget": "🔵 infeasible within budget",
}
_MARKS = {"worse": "🔴 ", "lost": "⚪ ", "better": "🟢 "}


def plain(text: object) -> str:
    """Text that is shown as it is: no emphasis, code, link, mention, issue reference, table cell or HTML.

    >>> plain("a|b <i>*c*</i>")
    'a\\\\|b &lt;i&gt;\\\\*c\\\\*&lt;/i&gt;'
    """
    line = " ".join(str(text).split())
    line = line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    line = re.sub(r"([\\`*_\[\]|~])", r"\\\1", line)
    line = re.sub(r"([@#])(?=\w)", rf"\1{_JOINER}", line)
    line = re.sub(r"(?i)(https?|ftp|www)(?=[:.])", rf"\1{_JOINER}", line)
    return re.sub(
        r"^(\s*)([-+=]|\d+(?=[.)](?:\s|$)))", r"\1\\\2" if re.match(r"\s*[-+=]", line) else rf"\1\2{_JOINER}", line
    )


def code(text: object) -> str:
    """Text as a code span, also inside a table.

    >>> code("a`b|c")
    "`a'b\\\\|c`"
    """
    line = " ".join(str(text).split()).replace("`", "'").replace("|", "\\|")
    return f"`{line or ' '}`"


def run_summary(records: Sequence[Record], findings: Findings | None, *, limit: str | None, report: str = "") -> str:
    """One run: the verdict, the gate, a small table, what to do, and the rest folded away."""
    findings = findings or Findings()
    answered = [v for v in verdicts(findings) if v.word != "Not asked"]
    first = answered[0] if answered else None
    lines = [f"### leakgauge: {plain(first.word) if first else 'no result'}", ""]
    lines += [plain(" ".join(first.sentences)), ""] if first else []
    lines += [*_gate(records, limit), ""]
    rows = [_row(record) for record in records]
    head = ("set-up", "verdict", "SSIM", "PSNR", "null PSNR")
    lines += [*_table(head, rows[:ROWS]), ""] if rows else []
    lines += [f"- **{plain(v.asked)}** {plain(v.word)}: {plain(' '.join(v.sentences))}" for v in answered[1:]]
    lines += [""] if answered[1:] else []
    advice = advise(findings)
    if advice:
        lines += ["**What to do**", ""]
        lines += [f"{i}. **{plain(one.title)}** {plain(one.why)}" for i, one in enumerate(advice[:ADVICE], 1)]
        lines.append("")
    inner = [*_table(head, rows[ROWS:]), ""] if rows[ROWS:] else []
    for verdict in answered:
        inner += [f"- {plain(verdict.asked)}"]
        inner += [f"  - {plain(kind)}: {plain(what)}" for kind, what in verdict.assumptions]
        inner += [f"  - budget: {plain(verdict.budget)}"] if verdict.budget else []
    inner += [f"- {code(r.case.get('name') or r.key)}: {plain(r.reason)}" for r in records if r.reason]
    inner += [f"- {plain(', '.join(f'{k} {v}' for k, v in records[-1].versions.items()))}"] if records else []
    inner += [f"- report: {code(report)}"] if report else []
    inner += [
        "",
        "A negative verdict is no proof of safety: it says that these attacks, with this budget, did not succeed.",
    ]
    return "\n".join([*lines, *_folded("Assumptions, budget, versions", inner)])


def comparison_summary(found: Comparison) -> str:
    """Two runs: what got worse first, then the warnings, then everything else folded away."""
    lines = [f"### leakgauge: {plain(found.sentence)}", "", f"{code(found.before)} → {code(found.after)}", ""]
    lines += [*(f"> ⚠️ {plain(warning)}" for warning in found.warnings), *([""] if found.warnings else [])]
    rows = [
        (
            code(pair.name), _word(pair.before), _word(pair.after),
            _MARKS.get(pair.direction, "") + ORDER[pair.direction], *(_moved(d) for d in pair.differences),
        )
        for pair in found.cases
    ]  # fmt: skip
    head = ("set-up", "before", "after", "change", "SSIM", "PSNR")
    lines += [*_table(head, rows[:ROWS]), ""] if rows else []
    others = [
        (
            plain(c.what),
            plain(c.before),
            plain(c.after),
            _MARKS.get(c.direction, "") + ORDER[c.direction],
            plain(c.note),
        )
        for c in found.changes
    ]
    lines += [*_table(("also", "before", "after", "change", "note"), others[:ROWS]), ""] if others else []
    inner = [*_table(head, rows[ROWS:]), ""] if rows[ROWS:] else []
    inner += [*_table(("also", "before", "after", "change", "note"), others[ROWS:]), ""] if others[ROWS:] else []
    for pair in found.cases:
        inner += [f"- {code(pair.name)}: {plain(note)}" for note in (*pair.notes, *_spreads(pair.differences))]
    inner += [f"- only before: {code(name)}" for name in found.only_before]
    inner += [f"- only after: {code(name)}" for name in found.only_after]
    inner += [f"- {plain(name)}: {code(a)} → {code(b)}" for name, a, b in found.settings]
    return "\n".join([*lines, *_folded("Spread, settings and what only one run has", inner)])


def _gate(records: Sequence[Record], limit: str | None) -> list[str]:
    if limit is None:
        return []
    failing, judged = gate.over(records, limit), gate.judged(records)
    allowed = limit.replace("_", " ")
    if failing:
        return [f"**Gate failed**: {len(failing)} of {len(judged)} judged set-ups are worse than *{allowed}*."]
    if not judged:
        return ["**Gate failed**: no set-up was judged."]
    return [f"**Gate passed**: no set-up is worse than *{allowed}*."]


def _row(record: Record) -> tuple[str, ...]:
    figures = [_figure(source.get(metric), metric) for source, metric in (
        (record.metrics, "ssim"), (record.metrics, "psnr"), (record.null, "psnr"),
    )]  # fmt: skip
    return code(record.case.get("name") or record.key), _word(record), *figures


def _word(record: Record) -> str:
    return _WORDS.get(record.verdict or "", plain(record.status))


def _figure(summary: dict[str, float] | None, metric: str) -> str:
    mean = (summary or {}).get("mean")
    return "" if mean is None else f"{mean:.3f}" if metric == "ssim" else f"{mean:.1f} dB".replace("inf", "∞")


def _moved(difference: Difference) -> str:
    if difference.value is None:
        return ""
    text = f"{difference.value:+.3f}" if difference.metric == "ssim" else f"{difference.value:+.1f} dB"
    return text + {True: "", False: " (within spread)", None: " (spread unknown)"}[difference.beyond]


def _spreads(differences: Iterable[Difference]) -> list[str]:
    """SSIM speaks for both figures, which come from the same restarts."""
    return [f"SSIM: {d.note}" for d in differences if d.note and d.metric == "ssim"]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)]


def _folded(title: str, inner: Sequence[str]) -> list[str]:
    return ["<details>", f"<summary>{title}</summary>", "", *inner, "", "</details>", ""] if inner else []
